"""What `optimize_rounding` is given: layers, the grids of their weights, and Gram matrices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import npquant as nq
from npquant import autograd as ag
from npquant import checks
from npquant.arrays import on_host
from npquant.autograd import functional
from npquant.autograd.rules import RULES
from npquant.dtypes import float32
from npquant.errors import show
from npquant.modules.module import Module
from npquant.owners import is_array

Array = np.ndarray[Any, Any]

#: As many rows, and elements of them, at a time: what a layer makes on its way stays small.
ROWS, ELEMENTS = 256, 1 << 20


@dataclass(frozen=True, eq=False)
class Linear:
    """A linear layer: ``activation(x @ weight.T + bias)``.

    It is a step of a `npquant.autograd.Tape`. What it is given is checked when it is used.

    Parameters
    ----------
    weight : ndarray of shape (outputs, inputs)
        Weights, float32.
    bias : ndarray of shape (outputs,), optional
        Bias, float32. By default none.
    activation : step, optional
        What the loss sees the outputs through: `npquant.autograd.relu` or another step of a tape,
        or an object with a method ``forward(apply, x)``, such as a `FakeQuantize` whose observer
        is off. By default nothing.

    Examples
    --------
    >>> import numpy as np
    >>> import npquant.autograd as ag
    >>> from npquant.adaround import Linear
    >>> layer = Linear(np.array([[1.0], [-2.0]], np.float32), activation=ag.relu)
    >>> ag.call(layer, np.array([[3.0]], np.float32))
    array([[3., 0.]], dtype=float32)
    """

    weight: Array
    bias: Array | None = None
    activation: Any = None

    def forward(self, apply: Callable[..., Any], x: Array, weight: Array | None = None) -> Array:
        """Compute the layer, by default with its own weight.

        Parameters
        ----------
        apply : callable
            ``tape.apply``, or `npquant.autograd.call`.
        x : ndarray of shape (..., inputs)
            Rows, float32.
        weight : ndarray, optional
            Another weight.

        Returns
        -------
        ndarray of shape (..., outputs)
            Outputs.
        """
        w = self.weight if weight is None else weight
        return _activated(self, apply, apply(ag.linear, x, w, self.bias))

    def _columns(self, x: Array) -> Array:
        """What the weights multiply: (groups, inputs, rows)."""
        return functional.rows(x).T[np.newaxis]


@dataclass(frozen=True, eq=False)
class Conv2d:
    """A convolution of images: ``activation(conv2d(x, weight, bias, ...))``.

    It is a step of a `npquant.autograd.Tape`. What it is given is checked when it is used.

    Parameters
    ----------
    weight : ndarray of shape (K, C / groups, h, w)
        Kernels, float32.
    bias : ndarray of shape (K,), optional
        Bias, float32. By default none.
    stride, padding : int or pair of int, default 1 and 0
        As in `npquant.autograd.conv2d`.
    groups : int, default 1
        Number of groups of channels.
    activation : step, optional
        As in `Linear`.

    Examples
    --------
    >>> import numpy as np
    >>> import npquant.autograd as ag
    >>> from npquant.adaround import Conv2d
    >>> layer = Conv2d(np.ones((1, 1, 2, 2), np.float32), stride=2)
    >>> ag.call(layer, np.ones((1, 1, 4, 4), np.float32))
    array([[[[4., 4.],
             [4., 4.]]]], dtype=float32)
    """

    weight: Array
    bias: Array | None = None
    stride: int | tuple[int, int] = 1
    padding: int | tuple[int, int] = 0
    groups: int = 1
    activation: Any = None

    def forward(self, apply: Callable[..., Any], x: Array, weight: Array | None = None) -> Array:
        """Compute the layer, by default with its own weight.

        Parameters
        ----------
        apply : callable
            ``tape.apply``, or `npquant.autograd.call`.
        x : ndarray of shape (N, C, H, W)
            Images, float32.
        weight : ndarray, optional
            Another weight.

        Returns
        -------
        ndarray of shape (N, K, H', W')
            Outputs.
        """
        w = self.weight if weight is None else weight
        y = apply(ag.conv2d, x, w, self.bias, self.stride, self.padding, groups=self.groups)
        return _activated(self, apply, y)

    def _columns(self, x: Array) -> Array:
        """What the kernels multiply: (groups, inputs of a place, places)."""
        x, w, stride, padding, groups = functional.correlation(
            x, self.weight, self.stride, self.padding, self.groups
        )
        return functional.columns(x, w.shape[2:], stride, padding, groups)


Layer = Linear | Conv2d


@dataclass(frozen=True, eq=False)
class Grid:
    """The values that the weights of a layer may take: ``(code - zero_point) * scale``.

    What it is given is checked when it is used.

    Parameters
    ----------
    scale : float or array
        Distance between neighbours, positive and finite in float32. A number; with `axis` one for
        each channel, of shape (C,); with `group_size` one for each group, of shape (..., groups of
        a row) or flat. It is rounded to float32.
    zero_point : int or array
        Code that stands for 0.0, between the bounds; a number, or with `axis` or `group_size` an
        array of the shape of the scales. A fractional one, in an array, is truncated.
    quant_min, quant_max : int
        Least and greatest code, both included, within +-2**23.
    axis : int, optional
        Axis of the weight whose every index has its own scale. By default there is one for all.
    group_size : int, optional
        Number of neighbours along the last axis that share a scale. Not beside `axis`.

    Examples
    --------
    A step of 1/2 for the first row of a weight, and of 1/4 for the second.

    >>> import numpy as np
    >>> from npquant.adaround import Grid, Linear, optimize_rounding
    >>> layer = Linear(np.array([[0.3, -0.7], [0.7, 0.1]], np.float32))
    >>> grid = Grid([0.5, 0.25], [0, 0], -8, 7, axis=0)
    >>> optimize_rounding(layer, grid, np.eye(2, dtype=np.float32), held_out=0.0, rng=0).weight
    array([[ 0.5 , -0.5 ],
           [ 0.75,  0.  ]], dtype=float32)
    """

    scale: Any
    zero_point: Any
    quant_min: int
    quant_max: int
    axis: int | None = None
    group_size: int | None = None


@dataclass(frozen=True, eq=False)
class Gram:
    """Gram matrices of the inputs of a linear layer, in place of these.

    With X the inputs as the quantized predecessors give them, F as the float ones do, one row each,
    all that the squared error of the outputs depends on is here. A common factor, such as the
    number of rows, makes no difference. What it is given is checked when it is used: each number
    must be one that sums of products can be beside the sums of squares on the diagonals.

    Parameters
    ----------
    inputs : ndarray of shape (columns, columns)
        ``X.T @ X``; float32 or float64, symmetric to a relative 1e-3 (its symmetric part is used),
        with no negative number on its diagonal.
    cross : ndarray of shape (columns, columns), optional
        ``X.T @ F``. By default X and F are the same.
    floats : ndarray of shape (columns, columns), optional
        ``F.T @ F``, as `inputs`; given with `cross`.

    Examples
    --------
    >>> import numpy as np
    >>> from npquant.adaround import Gram
    >>> x = np.array([[1.0, 2.0], [0.5, -1.0]])
    >>> Gram(x.T @ x).inputs
    array([[1.25, 1.5 ],
           [1.5 , 5.  ]])
    """

    inputs: Array
    cross: Array | None = None
    floats: Array | None = None


def checked_layer(value: Layer, name: str) -> Layer:
    """A layer whose arrays are float32 and finite, and fit each other."""
    axes, shape = (2, "(outputs, inputs)") if isinstance(value, Linear) else (4, "(K, C, h, w)")
    weight = _finite(value.weight, f"{name}.weight")
    if weight.ndim != axes or weight.size == 0:
        raise ValueError(
            f"{name}.weight must have the shape {shape} with elements, got {weight.shape}"
        )
    bias = None if value.bias is None else _finite(value.bias, f"{name}.bias")
    if bias is not None:
        checks.of_shape(bias, f"{name}.bias", weight.shape[:1])
    step = value.activation
    try:
        known = step in RULES
    except (TypeError, ValueError):  # it has no hash, a memoryview neither
        known = False
    if not (step is None or known or callable(getattr(step, "forward", None))):
        raise TypeError(
            f"{name}.activation must be a step of npquant.autograd, an object with a method "
            f"forward(apply, x), or None, got {show(step)}"
        )
    check_settled(step, f"{name}.activation")
    return replace(value, weight=weight, bias=bias)


def check_settled(step: Any, name: str) -> None:
    """Refuse a module that observes: what it gives for a row would depend on those before."""
    step = getattr(step, "__self__", step)  # of a method
    for module in [m for _, m in step._walk("")] if isinstance(step, Module) else [step]:
        switch = "static_enabled" if hasattr(module, "static_enabled") else "observer_enabled"
        found = getattr(module, switch, None)
        if is_array(found) and np.any(on_host(found)):
            raise ValueError(
                f"{name} must give the same for the same rows, got a module that observes: its "
                f"{switch} is on"
            )


def checked_grid(value: Any, name: str, weight: Array) -> Grid:
    """A grid that fits a weight."""
    if not isinstance(value, Grid):
        raise TypeError(f"{name} must be a Grid, got {show(value)}")
    spec = nq.ArraySpec(weight.shape, float32)
    for key in ("scale", "zero_point", "quant_min", "quant_max"):
        if isinstance(getattr(value, key), nq.ArraySpec):
            raise TypeError(f"{name}: {key} must be numbers, got an ArraySpec")
    try:
        if value.group_size is not None and value.axis is None:
            checks.group_size_of(value.group_size, spec, "weight")
        elif value.axis is not None and value.group_size is None:
            checks.axis_of(value.axis, spec, data="weight")
        nq.adaround_soft(spec, spec, **vars(value))
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name}: {error}") from None
    return value


def check_fit(chain: list[Any], x: Array) -> None:
    """Refuse rows that layers cannot be computed of, one of which is handed through them."""
    row = x[:1].copy()  # a function may change what it is given
    for i, layer in enumerate(chain):
        name = f"layers[{i}]"
        if not isinstance(layer, Layer):
            row = results(layer, row, name)
            continue
        try:
            y = ag.call(replace(layer, activation=None), row)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{name} must fit rows of shape {row.shape[1:]}: {error}") from None
        try:
            row = _activated(layer, ag.call, y)
        except (TypeError, ValueError) as error:
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(f"{name}.activation must take what the layer gives: {error}") from error


def checked_rows(value: Any, name: str) -> Array:
    """Inputs of layers: float32 and finite, one sample for each index of the first axis."""
    x = _finite(value, name)
    if x.ndim < 2 or x.size == 0:
        raise ValueError(f"{name} must have rows and columns with elements, got shape {x.shape}")
    return x


def checked_gram(value: Gram, name: str, columns: int) -> tuple[Array, Array, Array]:
    """The three matrices in float64."""
    first = checks.gram(value.inputs, f"{name}.inputs", columns)
    _within_squares(first, f"{name}.inputs", first, first)
    if (value.cross is None) != (value.floats is None):
        raise ValueError(f"{name} must have both cross and floats, or neither, got one of them")
    if value.cross is None:
        return first, first, first
    cross = checks.square_matrix(value.cross, f"{name}.cross", columns)
    floats = checks.gram(value.floats, f"{name}.floats", columns)
    _within_squares(floats, f"{name}.floats", floats, floats)
    _within_squares(cross, f"{name}.cross", first, floats)
    return first, cross, floats


def _within_squares(x: Array, name: str, first: Array, second: Array) -> None:
    """Refuse what are no sums of products: each is within the root of those of the squares."""
    reach = np.outer(np.sqrt(np.diag(first)), np.sqrt(np.diag(second)))
    beyond = np.argwhere(np.abs(x) - reach > 1e-3 * reach.max(initial=0))
    if len(beyond):
        at = tuple(map(int, beyond[0]))
        raise ValueError(
            f"{name} must be sums of products of inputs, of which that at {at} is within "
            f"{reach[at]} by the sums of their squares, got {x[at]}"
        )


def parts(x: Array) -> list[slice]:
    """Which rows are computed at once where all are."""
    step = max(1, min(ROWS, ELEMENTS // (x[0].size or 1)))
    return [slice(i, i + step) for i in range(0, len(x), step)]


def outputs(layer: Layer, x: Array, weight: Array | None = None) -> Array:
    """The outputs of a layer, some rows at a time."""
    return np.concatenate([ag.call(layer, x[part], weight) for part in parts(x)])


def results(function: Callable[[Array], Any], x: Array, name: str) -> Array:
    """The same of a function among the layers."""
    found = []
    for part in parts(x):
        rows = x[part]
        y = checks.host_array(function(rows), f"what {name} gives", (float32,))
        if y.shape[:1] != (len(rows),):
            got = len(y) if y.ndim else "no axis"
            raise ValueError(f"{name} must give as many rows as it takes, {len(rows)}, got {got}")
        found.append(y)
    return np.concatenate(found)


def _activated(layer: Layer, apply: Callable[..., Any], y: Array) -> Array:
    return y if layer.activation is None else apply(layer.activation, y)


def _finite(value: Any, name: str) -> Array:
    x: Array = checks.finite_array(checks.host_array(value, name, (float32,)), name)
    return x
