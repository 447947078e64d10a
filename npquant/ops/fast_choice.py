"""The short way of what chooses qparams from data: choices, dynamic rows and steps of training.

Rows of any number whose codes are made, too, go it, whole tensors in any order, and other
reductions of small arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

import numpy as np

from npquant import backend, checks, cpu, dtypes
from npquant.cpu import dynamic, strided
from npquant.cpu.channels import leading
from npquant.cpu.extremes import few
from npquant.cpu.folded import folds
from npquant.cpu.fused import OVERLAP, REST
from npquant.cpu.qparams import RANGES_KEPT
from npquant.cpu.target import GRAIN, PARALLEL_FROM, threads
from npquant.cpu.walk import PIECE, plain
from npquant.dtypes import DType, Precision
from npquant.layout import Granularity, memory_order
from npquant.meta import ArraySpec
from npquant.ops.fast_path import Entries, FastPath, Order, no_fast_path, repeated, ways
from npquant.owners import Array

_BOOL = dtypes.bool_
# Names of this module are found sooner than those of another.
_Array, _empty, _float32 = np.ndarray, np.empty, dtypes.float32

#: As `FastPath`, of data, to codes, scales and zero points.
Dynamic = Callable[[Array], tuple[Array, Array, Array] | None]


class Choice(NamedTuple):
    """What of a choice of qparams does not depend on the data, or on the range."""

    #: The kernel's name.
    kernel: str
    #: Of the data, or of the least values and of the greatest.
    shape: tuple[int, ...]
    dtype: DType
    granularity: Granularity
    #: Of the codes; the least scale, and the zero point of symmetric schemes.
    bounds: tuple[int, int]
    eps: float
    middle: int
    #: In which scales are computed.
    precision: str
    #: The shape of scales and zero points, and their dtypes.
    results: tuple[int, ...]
    kinds: tuple[DType, DType]


def fast_choice(kind: type, choice: Choice, anew: Any = None) -> FastPath:
    """A function of data, to scales and zero points.

    One kernel finds the range of each channel and chooses from it; None if it cannot.
    """
    kernel, shape, dtype, granularity, bounds, eps, middle, precision, results, kinds = choice
    n = prod(shape)
    if kind is not np.ndarray or not few(granularity, n):
        return repeated(kind, anew)
    channels, inner, _ = granularity
    choose, key = getattr(cpu, kernel), (dtype, precision, *kinds)
    compiled = choose.of_data
    if 1 < channels == n // inner:
        compiled = choose.of_rows[folds(inner)]
    (lo, hi), (scales, zero_points) = bounds, kinds

    def turned(lying: tuple[int, ...], order: Order) -> FastPath | None:
        cut = granularity.layout(shape, order)
        if cut is not None:
            there = choice._replace(shape=lying, granularity=Granularity(*cut, None))
            return fast_choice(kind, there) if few(there.granularity, n) else None
        if order[-1] != len(order) - 1 or results[:-1] != shape[:-1]:
            return None
        there = choice._replace(shape=lying, results=lying[:-1] + results[-1:])
        at_once, back = fast_choice(kind, there), np.argsort(order)

        def rows_in_memory(x: Array) -> tuple[Array, Array] | None:
            done = at_once(x)
            return None if done is None else tuple(q.transpose(back).copy() for q in done)

        return rows_in_memory

    def call(x: Array) -> tuple[Array, Array] | None:
        if not (x.flags.carray or plain(x)):
            return by_strides[x.strides](x)
        scale, zero_point = np.empty(results, scales), np.empty(results, zero_points)
        compiled[key](channels, inner, x, lo, hi, eps, middle, scale, zero_point)
        return scale, zero_point

    by_strides: dict[Any, FastPath] = ways(call, shape, dtype.itemsize, 0, turned)
    return call


def fast_dynamic(
    kind: type, choice: Choice, constants: tuple[Any, ...], target: DType, anew: Dynamic
) -> Dynamic:
    """A function of data, to codes of their rows with qparams so chosen, and to these.

    One kernel does both with a row, and all is looked at when it is done; None if it cannot.
    """
    kernel, shape, dtype, _, bounds, eps, _, _, results, kinds = choice
    n, inner = prod(shape), shape[-1] if shape else 1
    if dtype in dtypes.INTEGERS or kind is ArraySpec:
        return repeated(kind, anew)
    if kind is not np.ndarray:
        on_gpu, code = backend.of_kind(kind), dtypes.compute(dtype).name
        found: Dynamic | None = getattr(on_gpu, kernel).at_once(
            shape, dtype, bounds, eps, results, kinds, constants, code, target
        )
        again = repeated(kind, anew)

        def on_a_gpu(x: Array) -> tuple[Array, Array, Array] | None:
            done: tuple[Array, Array, Array] | None = again(x)
            return found(x) if done is None and found is not None else done

        return on_a_gpu
    if not dynamic.one_pass(n // max(inner, 1), inner, dtype.itemsize):
        return no_fast_path
    flat, apart = (getattr(dynamic, kernel).of_rows(inner, apart) for apart in (False, True))
    key = dtype, *kinds, dtypes.compute(dtype).name, target
    large, rows, grain = n * flat.work >= PARALLEL_FROM, n // inner, max(1, GRAIN // inner)
    (bottom, top), (lo, hi, nan), (scales, zero_points) = bounds, map(float, constants), kinds
    within = float(-checks.MOST), float(checks.MOST)

    def into(run: Any, views: Any, x: Array, rows: int, scale: Any, zero_point: Any, y: Any) -> Any:
        """Write the results of some rows, and tell whether the qparams are usual."""
        args = rows, inner, x, bottom, top, eps, lo, hi, nan, scale, zero_point, y
        done = 0
        if large and threads() > 1:  # all compute, and one looks
            run(rows, n, (*views, 0, 0.0, 0.0, *args), key, grain)
            done = rows
        return run.serial[key](done, rows, *views, rows, *within, *args)

    def call(x: Array) -> tuple[Array, Array, Array] | None:
        run: Any = flat
        views: tuple[Any, ...] = ()
        if not (x.flags.carray or plain(x)):
            if n <= PIECE or memory_order(x) is not None:
                return by_strides[x.strides](x)
            if not strided.aligned(x):
                return None
            run, views, x = apart, (strided.view(x)[None],), strided.forward(x)
        y, scale, zero_point = (
            _empty(shape, target), _empty(results, scales), _empty(results, zero_points),
        )  # fmt: skip
        return (y, scale, zero_point) if into(run, views, x, rows, scale, zero_point, y) else None

    def turned(lying: tuple[int, ...], order: Order) -> Dynamic | None:
        if order[-1] != len(order) - 1:  # rows are torn apart
            return None if n <= PIECE else no_fast_path
        parts = [some for some, _ in leading(lying, prod(lying[:-1]), max(1, RANGES_KEPT // 2))]

        def rows_in_memory(x: Array) -> tuple[Array, Array, Array] | None:
            """Whose qparams are put into their order, some at a time."""
            if not plain(x):
                return None
            y, scale, zero_point = (
                _empty(lying, target), _empty(results, scales), _empty(results, zero_points),
            )  # fmt: skip
            turned_scale, turned_zero_point = scale.transpose(order), zero_point.transpose(order)
            for some in parts:
                u, v = turned_scale[some], turned_zero_point[some]
                s, z = _empty(u.shape, scales), _empty(v.shape, zero_points)
                if not into(flat, (), x[some], s.size, s, z, y[some]):
                    return None
                u[...], v[...] = s, z
            return y, scale, zero_point

        return rows_in_memory

    by_strides: dict[Any, Dynamic] = ways(call, shape, dtype.itemsize, 1, turned)
    return call


def fast_choice_of_range(kind: type, choice: Choice, anew: Any) -> FastPath:
    """A function of (least, greatest) values, to scales and zero points, if these are in order."""
    kernel, shape, dtype, _, bounds, eps, middle, precision, results, kinds = choice
    if kind is not np.ndarray or not 0 < prod(shape) < GRAIN:
        return repeated(kind, anew)
    compiled, key = getattr(cpu, kernel).in_order, (dtype, precision, *kinds)
    (lo, hi), (scales, zero_points) = bounds, kinds

    def call(ends: tuple[Array, Array]) -> tuple[Array, Array] | None:
        least, greatest = ends
        if not (plain(least) and plain(greatest)):
            return by_strides[least.strides](ends)
        found = s, z = np.empty(results, scales), np.empty(results, zero_points)
        return found if compiled[key](least, greatest, lo, hi, eps, middle, s, z) else None

    by_strides: dict[Any, FastPath] = ways(call, shape, dtype.itemsize, 0, place=0)
    return call


def usual_state(low: Any, high: Any, scale: Any, zero_point: Any, shapes: checks.Shapes) -> bool:
    """Whether what a step of training updates is as it mostly is, with nothing to refuse.

    But for what shares memory, and the dtype of zero points.
    """
    return (
        type(low) is type(high) is type(scale) is type(zero_point) is _Array
        and low.dtype is high.dtype is scale.dtype is _float32
        and low.shape in shapes
        and low.shape == high.shape == scale.shape == zero_point.shape
        and low.flags.carray
        and high.flags.carray
        and scale.flags.carray
        and zero_point.flags.carray
    )


#: The places of what a step of training updates.
_STATE = (2, 3, 4, 5)


class Step(NamedTuple):
    """What of a step of training does not depend on the data, or on the state."""

    #: The kernel's name, and whether it is of a symmetric scheme.
    kernel: str
    symmetric: bool
    #: Of the data.
    shape: tuple[int, ...]
    dtype: DType
    granularity: Granularity
    #: That arrays of the state may have, and the dtypes of zero points.
    shapes: checks.Shapes
    kinds: tuple[DType, ...]
    #: The weight of what is new, the bounds of the codes, the least scale.
    constant: float
    bounds: tuple[int, int]
    eps: float
    #: Of a scale, a zero point and codes.
    precision: Precision
    #: Whether there is a mask, too.
    masked: bool


def fast_step(kind: type, step: Step, anew: Any = None) -> FastPath:
    """A function of data, a switch and the state of one scale: a step of training in one kernel."""
    (
        kernel, _, shape, dtype, granularity, shapes, kinds, constant, bounds, eps, precision,
        masked,
    ) = step  # fmt: skip
    n, code = prod(shape), precision.code
    if kind is not np.ndarray or not few(granularity, n) or code == "wide":
        return repeated(kind, anew, 0, _STATE)
    fused, (lo, hi) = getattr(cpu, kernel), bounds
    entries = Entries(lambda z: fused.whole[dtype, z, code, not masked] if z in kinds else None)

    def call(
        x: Array, observing: bool, low: Any, high: Any, scale: Any, zero_point: Any
    ) -> tuple[Array, Any] | None:
        if not (x.flags.carray or plain(x)):
            return by_strides[x.strides](x, observing, low, high, scale, zero_point)
        if not usual_state(low, high, scale, zero_point, shapes):
            return None
        entry = entries[zero_point.dtype]
        if entry is None:
            return None
        y, mask = _empty(shape, dtype), _empty(shape, _BOOL) if masked else None
        found = entry(x, observing, constant, low, high, lo, hi, eps, scale, zero_point, lo, hi, y,
                      mask)  # fmt: skip
        if found == OVERLAP:
            return None
        if found == REST:
            fused.quantize(x, bounds, scale, zero_point, precision, y, mask)
        return y, mask

    def turned(lying: tuple[int, ...], order: Order) -> FastPath:
        return fast_step(kind, step._replace(shape=lying))

    by_strides: dict[Any, FastPath] = ways(call, shape, dtype.itemsize, 2, turned, updated=True)
    return call


def fast_rows(kind: type, step: Step, anew: Any) -> FastPath:
    """The same with a scale for each row of contiguous data, in one pass over them."""
    (
        kernel, _, shape, dtype, granularity, shapes, kinds, constant, bounds, eps, precision,
        masked,
    ) = step  # fmt: skip
    n, (channels, inner, _), code = prod(shape), granularity, precision.code
    if (
        kind is not np.ndarray
        or n != channels * inner
        or code == "wide"
        or not dynamic.one_pass(channels, inner, dtype.itemsize)
    ):
        return repeated(kind, anew, 0, _STATE)
    run, key, (lo, hi) = getattr(cpu, kernel).rows, (dtype, code, not masked), bounds
    large, grain = n * run.work >= PARALLEL_FROM, max(1, GRAIN // inner)

    def call(
        x: Array, observing: bool, low: Any, high: Any, scale: Any, zero_point: Any
    ) -> tuple[Array, Any] | None:
        if not (x.flags.carray or plain(x)):
            if n > PIECE:
                return None
            return by_strides[x.strides](x, observing, low, high, scale, zero_point)
        if not (usual_state(low, high, scale, zero_point, shapes) and zero_point.dtype in kinds):
            return None
        y, mask = _empty(shape, dtype), _empty(shape, _BOOL) if masked else None
        args = (channels, inner, x, observing, constant, low, high, lo, hi, eps, scale, zero_point,
                lo, hi, y, mask)  # fmt: skip
        some = large and threads() > 1
        if run.serial[key](0, 0 if some else channels, *args) == OVERLAP:
            return None
        if some:
            run(channels, n, args, key, grain)
        return y, mask

    by_strides: dict[Any, FastPath] = ways(call, shape, dtype.itemsize, 2, updated=True)
    return call
