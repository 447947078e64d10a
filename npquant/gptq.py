"""GPTQ: rounding column by column, the error of each made up for by those that follow.

Frantar et al., "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers",
2022.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from npquant import checks, layout
from npquant.dtypes import SINGLE_AND_DOUBLE, float32
from npquant.errors import show

__all__ = ["gptq"]

Array = np.ndarray[Any, Any]

ORDERS = ("natural", "activation")

#: Rows that are done together: a block of so many columns of them stays in a cache. (Measured.)
ROWS = 512


@np.errstate(under="ignore")  # of squares and errors that are next to nothing
def gptq(
    weight: Array,
    gram: Array,
    scale: Any,
    zero_point: Any,
    quant_min: int,
    quant_max: int,
    *,
    axis: int | None = 0,
    group_size: int | None = None,
    block: int = 128,
    damping: float = 0.01,
    order: str = "natural",
) -> tuple[Array, Array]:
    """Quantize the weight of a linear layer so that its outputs change little.

    With the Gram matrix ``G = inputs.T @ inputs`` of the layer's inputs, the squared change of the
    outputs is ``trace((Q - W) @ G @ (Q - W).T)``. Columns of W are rounded one after another; what
    is not rounded yet takes on the error, as the inverse of G says.

    Parameters
    ----------
    weight : ndarray of shape (rows, columns)
        Weight of ``inputs @ weight.T``; float32 or float64, finite in float32.
    gram : ndarray of shape (columns, columns)
        Gram matrix of the inputs, symmetric to a relative 1e-3 (its symmetric part is used), with
        no negative number on its diagonal; a factor common to all of it makes no difference.
        Float32 or float64, finite.
    scale : float or array
        Distance between the values of neighbouring codes, positive and finite in float32. A number
        with ``axis=None``, else of shape (rows,), (columns,) with ``axis=1``, or (rows, groups of a
        row), or flat, with `group_size`. It is rounded to float32.
    zero_point : int or array
        Code that stands for 0.0, between `quant_min` and `quant_max`; as many as scales. A
        fractional one, in an array, is truncated.
    quant_min, quant_max : int
        Least and greatest code, both included, within +-2**23.
    axis : int or None, default 0
        Axis whose every index has its own scale; None for one scale.
    group_size : int, optional
        Number of neighbours in a row that share a scale, in place of `axis`, which must be 0 or
        None then.
    block : int, default 128
        Number of columns after which the others are brought up to date, at least 1. It makes a
        difference to speed, and to results only by the order of sums.
    damping : float, default 0.01
        Share of the mean of G's diagonal that is added to the diagonal, at least 0.
    order : str, default "natural"
        "natural", or "activation" to round the columns with the largest inputs first.

    Returns
    -------
    values : ndarray
        Quantized weights, ``(codes - zero_point) * scale``, of the shape and dtype of `weight`.
    codes : ndarray
        Codes as int32, of the shape of `weight`.

    Raises
    ------
    TypeError
        If an argument is of the wrong kind or of a dtype that is not allowed.
    ValueError
        If shapes do not fit, a number is not finite or out of its range, `gram` is not symmetric
        (to a relative 1e-3), has a negative number on its diagonal, or is not positive definite
        after damping.

    See Also
    --------
    npquant.adaround.optimize_rounding : Learn which way each weight is rounded.

    Notes
    -----
    PyTorch has no such op. Elsewhere `gram` is called the Hessian, of which it is half, `block` and
    `damping` are ``blocksize`` and ``percdamp``, and ``order="activation"`` is ``act_order`` or
    ``desc_act``. Everything is computed in float64, with NumPy's LAPACK. Columns whose
    inputs were all 0 (a 0 on the diagonal) are *dead*: their weights make no difference and become
    0, as in the paper's code, and their diagonal the mean. A column is quantized by
    ``clamp(rint(w / scale) + zero_point, quant_min, quant_max)``.

    References
    ----------
    .. [1] E. Frantar et al., "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained
       Transformers", ICLR 2023, arXiv:2210.17323.

    Examples
    --------
    Two inputs that are nearly the same: the second weight makes up for the error of the first.

    >>> import numpy as np
    >>> from npquant.gptq import gptq
    >>> w = np.array([[0.4, 0.4]], np.float32)
    >>> gram = np.array([[1, 0.99], [0.99, 1]], np.float32)
    >>> values, codes = gptq(w, gram, [1.0], [0], -8, 7)
    >>> codes
    array([[0, 1]], dtype=int32)
    """
    w = checks.host_array(weight, "weight", SINGLE_AND_DOUBLE)
    if w.ndim != 2:
        raise ValueError(f"weight must have 2 axes, got shape {w.shape}")
    rows, columns = w.shape
    h = checks.gram(gram, "gram", columns)
    lo, hi = checks.bounds(quant_min, quant_max)
    checks.adaround_precision(lo, hi, float32)
    scales, zeros = _of_columns(w, scale, zero_point, lo, hi, axis, group_size)
    width = checks.shaping(block, "block")
    if width < 1:
        raise ValueError(f"block must be at least 1, got {show(width)}")
    damp = checks.at_least(damping, "damping", 0.0)
    by_activation = checks.option(order, "order", ORDERS) == "activation"
    checks.finite_array(w, "weight")
    if (peak := np.abs(w).max(initial=0)) > np.finfo(np.float32).max:
        raise ValueError(f"weight must be finite in float32, as its scales are, got {peak}")
    if w.size == 0:
        return w.copy(), np.empty(w.shape, np.int32)
    dead, reach = np.diag(h) == 0, float(np.abs(h).max())
    if np.abs(h[dead]).max(initial=0) > 1e-12 * reach:  # no inputs have that, nor lost squares
        raise ValueError(
            "gram must be positive semidefinite, got a 0 on its diagonal beside others"
        )
    h[dead] = h[:, dead] = 0
    # What is added to it, or its inverse, might leave float64; its size is all one.
    if not (reach > 2.0**-500 and reach * max(damp, 1.0) < 2.0**500):
        h = np.ldexp(h, -np.frexp(reach)[1])
        if damp == 0:  # of a square that is lost nothing is left to divide by
            dead = np.diag(h) == 0

    left = w.astype(np.float64)
    mean = float(np.mean(np.diag(h)))
    h[dead, dead] = mean or 1.0
    left[:, dead] = 0
    chosen = np.argsort(-np.diag(h), kind="stable") if by_activation else np.arange(columns)
    left = left[:, chosen]
    upper = _upper_of_inverse(h[np.ix_(chosen, chosen)], mean, damp)

    values, codes = np.empty_like(w), np.empty_like(w, np.int32)
    for start in range(0, columns, width):
        stop = min(columns, start + width)
        some, errors = chosen[start:stop], np.empty((rows, stop - start))
        for top in range(0, rows, ROWS):
            part = np.arange(top, min(top + ROWS, rows))
            places = np.ix_(part, some)
            found = _rounded(
                left[part, start:stop].T.copy(), scales[places].T.copy(), zeros[places].T.copy(),
                upper[start:stop, start:stop], lo, hi,
            )  # fmt: skip
            with np.errstate(over="ignore"):  # a value beyond float32 is infinite, as dequantized
                values[places], codes[places], errors[part] = (a.T for a in found)
        left[:, stop:] -= errors @ upper[start:stop, stop:]
    return values, codes


def _rounded(
    left: Array, scales: Array, zeros: Array, upper: Array, lo: int, hi: int
) -> tuple[Array, Array, Array]:
    """The values, codes and errors of some columns, which lie as rows here."""
    values, codes, errors = np.empty_like(left), np.empty_like(left), np.empty_like(left)
    for j, (w, s, z) in enumerate(zip(left, scales, zeros, strict=True)):
        codes[j] = np.clip(np.rint(w / s) + z, lo, hi)
        values[j] = (codes[j] - z) * s
        errors[j] = (w - values[j]) / upper[j, j]
        left[j + 1 :] -= np.outer(upper[j, j + 1 :], errors[j])
    return values, codes, errors


def _upper_of_inverse(h: Array, mean: float, damping: float) -> Array:
    """U with inverse(h, damped) = U.T @ U, upper triangular."""
    h[np.diag_indices(len(h))] += damping * mean
    try:
        # h is R @ R.T, R upper triangular: Cholesky's factor of h turned round. U is the inverse of
        # R; that of h has the squares of its numbers, which may overflow.
        return np.linalg.inv(np.linalg.cholesky(h[::-1, ::-1])[::-1, ::-1])
    except np.linalg.LinAlgError:
        raise ValueError(
            f"gram must be positive definite after damping; it is not with damping {damping}"
        ) from None


def _of_columns(
    w: Array, scale: Any, zero_point: Any, lo: int, hi: int, axis: Any, group_size: Any
) -> tuple[Array, Array]:
    """The scale and the zero point of every element, as views where they repeat."""
    if group_size is not None:
        granularity, shapes = checks.groups(w.shape, group_size, 2, "weight")
        if axis is not None and checks.shaping(axis, "axis") != 0:
            raise ValueError(f"axis must be None or 0 where group_size is given, got {show(axis)}")
        pair = _qparams(w, scale, zero_point, shapes, lo, hi)
        return tuple(np.repeat(p.reshape(shapes[0]), granularity.inner, axis=1) for p in pair)  # type: ignore[return-value]
    if axis is None:
        s, z = checks.scale_float32(scale), checks.zero_point_inside(zero_point, lo, hi)
        one = np.float64(np.float32(s)), np.float64(z)
        return tuple(np.broadcast_to(p, w.shape) for p in one)  # type: ignore[return-value]
    a = checks.axis_of(axis, w, data="weight")
    granularity = layout.per_channel(w.shape, a)
    shapes = checks.ShapesBy(((granularity.channels,),))
    shapes.by = " without group_size (axis=None takes one of all)"
    pair = _qparams(w, scale, zero_point, shapes, lo, hi)
    shape = (-1, 1) if a == 0 else (1, -1)
    return tuple(np.broadcast_to(p.reshape(shape), w.shape) for p in pair)  # type: ignore[return-value]


def _qparams(
    w: Array, scale: Any, zero_point: Any, shapes: tuple[tuple[int, ...], ...], lo: int, hi: int
) -> tuple[Array, Array]:
    s = checks.scales_float32(scale, "scale", shapes, w, "weight")
    z = checks.parameters(zero_point, "zero_point", shapes, w, "weight")
    z = checks.truncated_inside(z, "zero_point", lo, hi)
    return s.astype(np.float64), z.astype(np.float64)
