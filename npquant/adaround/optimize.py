"""Learn the rounding of the weights of layers, one layer after another."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import npquant as nq
from npquant import autograd as ag
from npquant import checks, dtypes
from npquant.adaround.layers import (
    Gram,
    Grid,
    Layer,
    Linear,
    check_fit,
    check_settled,
    checked_gram,
    checked_grid,
    checked_layer,
    checked_rows,
    outputs,
    parts,
    results,
)
from npquant.adaround.loss import MOST_STEPS, AdaroundLoss
from npquant.cpu.metrics import dot, total_squared_difference
from npquant.errors import show
from npquant.optim import Adam

#: The least and the greatest of float32, as Python's floats: NumPy makes a float32 of such a number
#: beside one of its own, and warns if that overflows.
_TINY, _MOST = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)

#: Dtypes of numbers of rows.
_ROWS = dtypes.INTEGERS | {np.dtype(np.uint64), dtypes.bool_}

Array = np.ndarray[Any, Any]

KEEP = ("best", "adaround")

#: |V| below which h(V) lies between 0.01 and 0.99.
UNDECIDED = math.log((0.99 + 0.1) / (1.1 - 0.99))

#: Steps between two looks at what is undecided.
LOOK = 20


@dataclass(frozen=True)
class RoundingReport:
    """What learning the rounding of a layer has brought.

    Losses and errors are mean squared differences from the outputs of the float layer, divided by
    the mean square of these. Where the layer has no activation, its bias makes no difference, and
    is left out of both.

    Parameters
    ----------
    loss_nearest, loss_adaround : float
        Loss on the rows that were learned from: with weights rounded to nearest, which is where
        learning begins, and with the rounding that was learned; both on the grid.
    held_out_nearest, held_out_adaround : float
        The same on rows that were not learned from; on those that were, if none are held out.
    kept : str
        "adaround" or "nearest": whose weights the result has, and the layers that follow saw.
    undecided : float
        Share of the weights whose h(V) lay between 0.01 and 0.99 in the end. They are rounded by
        the sign of V like all others.
    flipped : float
        Share of the weights whose learned code is not the nearest.
    steps : int
        Number of steps taken.

    Examples
    --------
    >>> import numpy as np
    >>> from npquant.adaround import Grid, Linear, optimize_rounding
    >>> layer = Linear(np.array([[0.3, -0.72], [0.75, 0.1]], np.float32))
    >>> x = np.array([[1, 2], [0.5, -1], [2, 1], [1, 1]], np.float32)
    >>> report = optimize_rounding(layer, Grid(0.5, 0, -8, 7), x, held_out=0.0, rng=0).report
    >>> round(report.loss_nearest, 2), round(report.loss_adaround, 2), report.worse
    (0.19, 0.08, False)
    >>> report.kept, report.flipped
    ('adaround', 0.25)
    """

    loss_nearest: float
    loss_adaround: float
    held_out_nearest: float
    held_out_adaround: float
    kept: str
    undecided: float
    flipped: float
    steps: int

    @property
    def worse(self) -> bool:
        """Whether the learned rounding is worse than nearest on the held-out rows."""
        return not self.held_out_adaround <= self.held_out_nearest


@dataclass(frozen=True, eq=False)
class Rounded:
    """A layer on the grid.

    Parameters
    ----------
    weight : ndarray
        Weights, float32: ``(codes - zero_point) * scale``.
    codes : ndarray
        Codes, int32, of the shape of the weight.
    report : RoundingReport
        What learning has brought.

    Examples
    --------
    >>> import numpy as np
    >>> from npquant.adaround import Grid, Linear, optimize_rounding
    >>> layer = Linear(np.array([[0.3, -0.72], [0.75, 0.1]], np.float32))
    >>> x = np.array([[1, 2], [0.5, -1], [2, 1], [1, 1]], np.float32)
    >>> done = optimize_rounding(layer, Grid(0.5, 0, -8, 7), x, held_out=0.0, rng=0)
    >>> done.codes
    array([[ 1, -2],
           [ 2,  0]], dtype=int32)
    >>> done.weight
    array([[ 0.5, -1. ],
           [ 1. ,  0. ]], dtype=float32)
    """

    weight: Array
    codes: Array
    report: RoundingReport


@np.errstate(under="ignore")  # of squares and slopes that are next to nothing
def optimize_rounding(
    layers: Any,
    grids: Any,
    inputs: Any,
    *,
    float_inputs: Array | None = None,
    held_out: Any = None,
    gram: bool = True,
    batch_size: int = 256,
    steps: int = 1000,
    lr: float = 0.03,
    reg_param: float = 0.3,
    warm_start: float = 0.2,
    beta_range: tuple[float, float] = (20, 2),
    stop_undecided: float = 0.0,
    keep: str = "best",
    rng: Any = None,
    progress: bool = False,
) -> Any:
    """Learn whether each weight is rounded up or down, layer by layer: AdaRound.

    A layer is given the outputs of its *quantized* predecessors, and learns to put out what it does
    in the *float* network. With V for each weight, from `adaround_init`, Adam minimises ::

        weight.size * mean((output - target)**2) / mean(target**2) + regularizer(V)

    where the regularizer is that of `AdaroundLoss`, so that each weight's share of the two does not
    depend on the size of the layer or of its values. In the end every weight is rounded by the sign
    of its V. If that is worse than rounding to nearest on held-out rows, nearest is kept.

    Parameters
    ----------
    layers : Linear, Conv2d, or sequence of these and of functions
        Layers in the order of computation. A function of an array, such as
        `npquant.autograd.flatten`, stands for what is computed between two layers, each row for
        itself. A module among them, or in a layer, must not observe.
    grids : Grid or sequence of Grid
        The values that weights may take: one for each layer that is not a function.
    inputs : ndarray of shape (rows, ...) or Gram
        What the first layer is given, float32; or the Gram matrices of that, for a single `Linear`
        without an activation.
    float_inputs : ndarray, optional
        What the first layer is given in the float network, of the shape of `inputs`, where its
        predecessors are quantized already. By default the same.
    held_out : float, array_like of int or bool, or Gram, optional
        What is not learned from, and judges: a share of the rows, at least 0 and less than 1, drawn
        by `rng`, or the rows as NumPy indexes them: numbers, negative ones from the end, or a mask.
        By default a fifth. Beside a `Gram` it is another, by default the same.
    gram : bool, default True
        Whether layers without an activation learn from Gram matrices of their inputs, that is from
        all rows at every step, for the price of one product with a square matrix, as wide as the
        weight. Without, it is two products with the rows (of a convolution, the places) of a batch,
        which is less where these are fewer than half the columns of the weight.
    batch_size : int, default 256
        Number of rows that other layers learn from in a step, drawn by `rng`; all of them if there
        are no more.
    steps : int, default 1000
        Number of steps for a layer, at least 1.
    lr : float, default 0.03
        Learning rate of Adam, at least 0.
    reg_param, warm_start, beta_range : optional
        As in `AdaroundLoss`, by default 0.3, 0.2 and (20, 2). That `reg_param` is greater than the
        default there, as the other term is relative to the square of the outputs here, times the
        number of weights.
    stop_undecided : float, default 0.0
        Share of undecided weights, within 0..1, at which a layer is done once the regularizer is at
        work; 1 stops at the end of the warm start.
    keep : str, default "best"
        "best" to keep nearest where the learned rounding is worse on held-out rows, or "adaround".
    rng : numpy.random.Generator, int or None
        Source of what is random, or a seed.
    progress : bool, default False
        Whether to show a bar for each layer, by tqdm.

    Returns
    -------
    Rounded or list of Rounded
        For each layer that is not a function its weights, codes and report, in their order; for a
        single layer its own alone.

    Raises
    ------
    ImportError
        If `progress` is asked for and tqdm is not installed.
    TypeError
        If an argument is of the wrong kind or of a dtype that is not allowed.
    ValueError
        If shapes do not fit, a number is not finite or out of its range, a module observes, or no
        row is left to learn from; or the mean square of a layer's outputs, or that of its inputs
        relative to it, is too large or too small for float32. Nothing has been learned then, unless
        earlier layers have put out such numbers.

    See Also
    --------
    npquant.gptq.gptq : Round column by column, without learning.
    AdaroundLoss : The regularizer.

    Notes
    -----
    PyTorch's ``torch.ao.quantization.experimental`` has an ``AdaptiveRoundingOptimizer``, which no
    wheel contains, and whose final weights are soft (departure D14).

    References
    ----------
    .. [1] M. Nagel et al., "Up or Down? Adaptive Rounding for Post-Training Quantization", ICML
       2020, arXiv:2004.10568.

    Examples
    --------
    >>> import numpy as np
    >>> from npquant.adaround import Grid, Linear, optimize_rounding
    >>> rng = np.random.default_rng(0)
    >>> x = (rng.normal(size=(500, 4)) @ rng.normal(size=(4, 16))).astype(np.float32)
    >>> w = rng.normal(size=(8, 16)).astype(np.float32)
    >>> scale = np.abs(w).max(axis=1) / 3
    >>> done = optimize_rounding(Linear(w), Grid(scale, [0] * 8, -4, 3, axis=0), x, rng=0)
    >>> done.codes.min(), done.codes.max()
    (np.int32(-3), np.int32(3))
    >>> done.report.kept, done.report.held_out_adaround < done.report.held_out_nearest / 2
    ('adaround', True)
    """
    single = isinstance(layers, Layer)
    chain, grid_of = _checked_layers(layers, grids, single)
    options = _Options(
        gram=checks.switch(gram, "gram"),
        batch_size=checks.within(batch_size, "batch_size", 1, MOST_STEPS),
        lr=_rate(lr),
        loss=AdaroundLoss(
            checks.within(steps, "steps", 1, MOST_STEPS), warm_start, beta_range, reg_param
        ),
        stop_undecided=checks.share(stop_undecided, "stop_undecided"),
        keep=checks.option(keep, "keep", KEEP),
        rng=_generator(rng),
        bar=_bars(checks.switch(progress, "progress")),
    )
    if isinstance(inputs, Gram):
        if float_inputs is not None:
            raise TypeError("float_inputs must be None beside a Gram, which has them in cross")
        if len(chain) != 1 or not isinstance(chain[0], Linear) or chain[0].activation is not None:
            raise TypeError("layers must be one Linear without an activation beside a Gram")
        done = [_from_gram(chain[0], grid_of[0], inputs, held_out, options)]
    else:
        x = checked_rows(inputs, "inputs")
        f = x if float_inputs is None else checked_rows(float_inputs, "float_inputs")
        checks.of_shape(f, "float_inputs", x.shape)
        check_fit(chain, x)
        done = _from_rows(chain, grid_of, x, f, held_out, options)
    return done[0] if single else done


def _rate(lr: Any) -> float:
    """A learning rate, which Adam divides by ``1 - 0.9`` in its first step."""
    rate = checks.at_least_in_float32(lr, "lr", 0.0)
    checks.finite_float32(rate / (1 - 0.9), "lr / (1 - 0.9), Adam's first step,")
    return rate


@dataclass(frozen=True)
class _Options:
    """The checked options, and where randomness comes from."""

    gram: bool
    batch_size: int
    lr: float
    loss: AdaroundLoss
    stop_undecided: float
    keep: str
    rng: np.random.Generator
    bar: Callable[..., Any]


# --- the objective: where a gradient and an error come from -----------------------------------


class _Rows:
    """A layer, what it is given, and what it should give."""

    def __init__(self, layer: Layer, x: Array, f: Array) -> None:
        # Without an activation, the bias is on both sides.
        self.layer = layer if layer.activation is not None else replace(layer, bias=None)
        self.x = x
        with np.errstate(over="ignore", invalid="ignore"):  # of what is refused
            self.target = outputs(self.layer, f)
        self.power = dot((self.target, self.target)) / self.target.size or 1.0
        with np.errstate(over="ignore", under="ignore"):
            self.share = np.array(layer.weight.size / self.power, np.float32)

    def check(self, name: str) -> None:
        """Refuse outputs whose loss float32 cannot hold, nor a gradient of it."""
        if not (_TINY <= self.share <= _MOST and self.power <= _MOST):
            raise ValueError(
                f"{name} must give outputs whose mean square is within float32, got {self.power}"
            )

    def check_held_out(self, name: str) -> None:
        """The same of rows that only judge, whose outputs may all be 0."""
        if not self.power <= _MOST:
            raise ValueError(
                f"held_out must be of rows of which {name} gives outputs whose mean square is "
                f"within float32, got {self.power}"
            )

    def error(self, weight: Array) -> float:
        """The normalised loss with this weight."""
        found = 0.0
        for part in parts(self.x):
            y = ag.call(self.layer, self.x[part], weight)
            found += total_squared_difference((y, self.target[part]))
        return found / self.target.size / self.power

    def gradient(self, weight: Array, batch: Any) -> Array:
        """Of as many times the loss as there are weights, on some of the rows."""
        with ag.Tape() as tape:
            tape.watch(weight)
            y = tape.apply(self.layer, self.x[batch], weight)
            with np.errstate(over="ignore"):  # of a loss that nobody reads
                loss = tape.apply(ag.mse_loss, y, self.target[batch])
        found: Array = tape.gradient(loss, weight, self.share)
        return found

    def batches(self, size: int, rng: np.random.Generator) -> Iterator[Any]:
        """Rows for each step: all of them, or shuffled ones without end."""
        count = len(self.x)
        while True:
            if size >= count:
                yield slice(None)
                continue
            order = rng.permutation(count)
            for i in range(0, count - size + 1, size):
                yield order[i : i + size]


class _Moments:
    """The loss of a layer without activation, as a square form of the change of its weight.

    With D the change, G the Gram matrix of the inputs X, and F the float inputs, it is
    ``tr(D G D') + 2 tr(D C') + rest`` with ``C = W (X - F)' X``; everything in float64, and a
    convolution's groups each for themselves.
    """

    def __init__(self, weight: Array, gram: Array, shift: Array, rest: float, power: float) -> None:
        groups, columns, _ = gram.shape
        self.weight = weight.reshape(groups, -1, columns)
        self.gram, self.rest, self.power = gram, rest, power or 1.0
        share = 2 * weight.size / self.power
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):  # of what is refused
            self.shift = self.weight @ shift
            self.slope = (share * gram).astype(np.float32)
            self.start = (share * self.shift).astype(np.float32)
        self.change, self.found = np.empty_like(self.weight), np.empty_like(self.weight)

    def check(self, inputs: str, some: bool) -> None:
        """Refuse inputs, of which some are not 0, whose gradient float32 cannot hold."""
        steepest, limits = np.abs(self.slope).max(), np.finfo(np.float32)
        known = steepest <= limits.max and np.isfinite(self.start).all()
        if not known or (some and steepest < limits.tiny):
            raise ValueError(
                f"{inputs} must have squares that are within float32 beside those of the outputs, "
                f"got a slope of {steepest}"
            )

    @classmethod
    def of_rows(cls, rows: _Rows, f: Array, name: str) -> _Moments:
        """The moments of data; sums of parts in float64."""
        layer = rows.layer
        gram: Any = 0.0
        shift: Any = 0.0
        with np.errstate(over="ignore", invalid="ignore"):  # of what is refused
            for part in parts(f):
                seen = layer._columns(rows.x[part])
                turned = seen.swapaxes(1, 2)
                gram = gram + (seen @ turned).astype(np.float64)
                if rows.x is not f:
                    ahead = seen - layer._columns(f[part])
                    shift = shift + (ahead @ turned).astype(np.float64)
        count = rows.target.size
        shift = np.zeros_like(gram) if rows.x is f else shift / count
        found = cls(layer.weight, gram / count, shift, 0.0, rows.power)
        found.check(f"the inputs of {name}", bool(rows.x.any()))
        return found

    @classmethod
    def of_gram(cls, weight: Array, gram: Gram, name: str) -> _Moments:
        """The moments that the caller has."""
        g, cross, floats = checked_gram(gram, name, weight.shape[1])
        w = weight.astype(np.float64)
        rest = np.vdot(w @ (g - cross - cross.T + floats), w)
        power = np.vdot(w @ floats, w)
        # Each of its products is rounded, and so is each sum of them, of at most so many.
        sums, size = w.size + len(g), np.vdot(np.abs(w) @ np.abs(floats), np.abs(w))
        if power < -sums * np.finfo(np.float64).eps * size:
            raise ValueError(
                f"{name} must be sums of products of inputs, which have no negative eigenvalue; "
                f"got outputs whose mean square is {power}"
            )
        found = cls(weight, g[None], (g - cross.T)[None], float(rest), max(0.0, float(power)))
        found.check(name, bool(g.any()))
        return found

    def error(self, weight: Array) -> float:
        """The normalised loss with this weight."""
        change = weight.reshape(self.weight.shape).astype(np.float64) - self.weight
        found = np.vdot(change @ self.gram + 2 * self.shift, change) + self.rest
        return max(float(found), 0.0) / self.power  # a NaN, which comes first, stays one

    def gradient(self, weight: Array, batch: None) -> Array:
        """Of as many times the loss as there are weights."""
        np.subtract(weight.reshape(self.weight.shape), self.weight, out=self.change)
        np.matmul(self.change, self.slope, out=self.found)
        self.found += self.start
        return self.found.reshape(weight.shape)

    def batches(self, size: int, rng: np.random.Generator) -> Iterator[None]:
        """There is nothing to choose."""
        while True:
            yield None


_Objective = _Rows | _Moments


# --- learning ---------------------------------------------------------------------------------


def _from_rows(
    chain: list[Any], grids: list[Grid], x: Array, f: Array, held_out: Any, options: _Options
) -> list[Rounded]:
    learned, judging = _split(len(x), held_out, options.rng)
    # The rows that are learned from first, so that both parts are views.
    order = np.concatenate([learned, judging])
    same = x is f
    x = x[order]
    f = x if same else f[order]
    n = len(learned)
    done: list[Rounded] = []
    for i, layer in enumerate(chain):
        name = f"layers[{i}]"
        if not isinstance(layer, Layer):
            following = results(layer, x, name)
            f = following if x is f else results(layer, f, name)
            x = following
            continue
        rows = _Rows(layer, x[:n], f[:n])
        rows.check(name)
        judge = _Rows(layer, x[n:], f[n:]) if n < len(x) else rows
        judge.check_held_out(name)
        objective: _Objective = rows
        if options.gram and layer.activation is None:
            objective = _Moments.of_rows(rows, rows.x if x is f else f[:n], name)
        grid = grids[len(done)]
        done.append(_learn(layer.weight, grid, objective, rows, judge, options, name))
        if len(done) < len(grids):
            x, f = outputs(layer, x, done[-1].weight), outputs(layer, f)
    return done


def _from_gram(
    layer: Linear, grid: Grid, inputs: Gram, held_out: Any, options: _Options
) -> Rounded:
    objective = _Moments.of_gram(layer.weight, inputs, "inputs")
    judge = objective
    if held_out is not None:
        if not isinstance(held_out, Gram):
            raise TypeError(f"held_out must be a Gram or None beside a Gram, got {show(held_out)}")
        judge = _Moments.of_gram(layer.weight, held_out, "held_out")
    return _learn(layer.weight, grid, objective, objective, judge, options, "layers[0]")


def _learn(
    weight: Array, grid: Grid, objective: _Objective, before: _Objective, judge: _Objective,
    options: _Options, name: str,
) -> Rounded:  # fmt: skip
    """Learn V of one layer, and round by it; `before` and `judge` give the errors of the report."""
    V = nq.adaround_init(weight, grid.scale, axis=grid.axis, group_size=grid.group_size)
    nearest = _hard(weight, V, grid)
    steps, undecided = _descend(weight, V, objective, grid, options, name)
    adaround = _hard(weight, V, grid)

    judged = [judge.error(w) for w, _ in (nearest, adaround)]
    better = judged[1] <= judged[0] or options.keep == "adaround"
    report = RoundingReport(
        loss_nearest=before.error(nearest[0]),
        loss_adaround=before.error(adaround[0]),
        held_out_nearest=judged[0],
        held_out_adaround=judged[1],
        kept="adaround" if better else "nearest",
        undecided=undecided,
        flipped=float(np.mean(nearest[1] != adaround[1])),
        steps=steps,
    )
    return Rounded(*(adaround if better else nearest), report)


def _descend(
    weight: Array, V: Array, objective: _Objective, grid: Grid, options: _Options, name: str
) -> tuple[int, float]:
    """Move V; return the number of steps, and the share of the weights that are undecided."""
    qparams = vars(grid)
    adam = Adam([V], lr=options.lr)
    soft, gradient, drive = (np.empty_like(weight) for _ in range(3))
    batches = objective.batches(options.batch_size, options.rng)
    step, undecided = 0, _undecided(V, drive)
    regularized = 0  # steps
    with options.bar(range(options.loss.max_iter), desc=name) as steps:
        for step in steps:
            regular = options.loss.beta(step) is not None
            if regular and regularized % LOOK == 0:
                undecided = _undecided(V, drive)
                if undecided <= options.stop_undecided:
                    return step, undecided
            nq.adaround_soft(weight, V, **qparams, out=soft)
            slope = objective.gradient(soft, next(batches))
            nq.adaround_soft_backward(slope, weight, V, **qparams, out=gradient)
            if regular:
                regularized += 1
                gradient += options.loss.regularizer_backward(step, V, out=drive)
            adam.step([gradient])
    return step + 1, _undecided(V, drive)


def _hard(weight: Array, V: Array, grid: Grid) -> tuple[Array, Array]:
    """Weights on the grid, and their codes."""
    return (
        nq.adaround_hard(weight, V, **vars(grid)),
        nq.adaround_codes(weight, V, **vars(grid), dtype=np.int32),
    )


def _undecided(V: Array, buffer: Array) -> float:
    return float(np.mean(~(np.abs(V, out=buffer) >= UNDECIDED)))


# --- arguments --------------------------------------------------------------------------------


def _checked_layers(layers: Any, grids: Any, single: bool) -> tuple[list[Any], list[Grid]]:
    given = [layers] if single else layers
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise TypeError(f"layers must be a Linear, a Conv2d or a sequence, got {show(layers)}")
    chain = []
    for i, layer in enumerate(given):
        if isinstance(layer, Layer):
            layer = checked_layer(layer, f"layers[{i}]")
        elif not callable(layer):
            raise TypeError(
                f"layers[{i}] must be a Linear, a Conv2d or a function, got {show(layer)}"
            )
        else:
            check_settled(layer, f"layers[{i}]")
        chain.append(layer)
    learned = [layer for layer in chain if isinstance(layer, Layer)]
    if not learned:
        raise ValueError("layers must have a Linear or a Conv2d, got none")
    while not isinstance(chain[-1], Layer):  # it hands on to nothing that is learned
        chain.pop()
    found = [grids] if isinstance(grids, Grid) else grids
    if not isinstance(found, Sequence) or isinstance(found, str):
        raise TypeError(f"grids must be a Grid or a sequence, got {show(grids)}")
    if len(found) != len(learned):
        raise ValueError(f"grids must be {len(learned)}, one for each layer, got {len(found)}")
    return chain, [
        checked_grid(grid, f"grids[{i}]", layer.weight)
        for i, (grid, layer) in enumerate(zip(found, learned, strict=True))
    ]


def _split(rows: int, held_out: Any, rng: np.random.Generator) -> tuple[Array, Array]:
    """The rows to learn from, and those that judge."""
    if isinstance(held_out, Gram):
        raise TypeError("held_out must be a share or indices of rows where inputs is no Gram")
    if isinstance(held_out, (list, tuple, range)):
        held_out = checks.array_of_numbers(list(held_out) or np.empty(0, np.intp), "held_out")
    if isinstance(held_out, np.ndarray) and held_out.ndim == 1:
        judging = checks.host_array(held_out, "held_out", _ROWS)
        if judging.dtype == np.bool_:
            if len(judging) != rows:
                raise ValueError(f"held_out must have an element for each of {rows} rows where it "
                                 f"is a mask, got {len(judging)}")  # fmt: skip
            judging = np.flatnonzero(judging)
        elif len(judging) and (judging.min() < -rows or judging.max() >= rows):
            raise ValueError(f"held_out must lie within {-rows}..{rows - 1}, got {judging.min()}.."
                             f"{judging.max()}")  # fmt: skip
        judging = np.unique(judging.astype(np.intp) % rows)
    else:
        if isinstance(held_out, np.ndarray) and held_out.ndim:
            raise TypeError(
                f"held_out must be a share, or an array of one axis of rows, got {show(held_out)}"
            )
        share = 0.2 if held_out is None else checks.below_one(held_out, "held_out")
        count = math.ceil(share * rows * (1 - 1e-15))  # 0.07 of 100 is 7, and no float is 0.07
        judging = np.sort(rng.permutation(rows)[:count])
    learned = np.delete(np.arange(rows), judging)
    if len(learned) == 0:
        got = "a fifth, which is the default" if held_out is None else show(held_out)
        raise ValueError(f"held_out must leave rows to learn from, of {rows}, got {got}")
    return learned, judging


def _generator(rng: Any) -> np.random.Generator:
    if rng is None or isinstance(rng, np.random.Generator):
        return np.random.default_rng(rng)
    if isinstance(rng, (bool, np.bool_, np.timedelta64)) or not isinstance(rng, (int, np.integer)):
        raise TypeError(f"rng must be a Generator of NumPy, an integer or None, got {show(rng)}")
    if rng < 0:
        raise ValueError(f"rng must not be negative, got {show(rng)}")
    return np.random.default_rng(int(rng))


def _no_bar(steps: range, desc: str) -> Any:
    return nullcontext(steps)


def _bars(progress: bool) -> Callable[..., Any]:
    """What goes through the steps of a layer, and may show how far it is."""
    if not progress:
        return _no_bar
    try:
        from tqdm import tqdm
    except ImportError:
        raise ImportError("progress needs tqdm: pip install tqdm") from None
    bars: Callable[..., Any] = tqdm
    return bars
