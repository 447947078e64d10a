"""Sums in a fixed order: of the learnable gradients, and of everything.

A channel's elements, in C order of (outer, inner), are cut into tiles of TILE; a *task* is one tile
of one channel, or of a block of channels that lie side by side. The order of a sum is fixed
(docs/numerics.md, "Sums"): element e of a tile goes to lane e % LANES, a lane adds in order in
float64, the lanes are folded by halves, and tiles are added in order, GROUP at a time. The sums of
a tensor are those of its rows, added as tiles are. Every walk below adds in this order, so layouts
and threads do not change a bit.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

import numpy as np
from numba import types

from npquant.cpu.borrowed import Borrowed, keep
from npquant.cpu.channels import (
    Way,
    channel_pieces,
    last_axes_joined,
    leading,
    parts,
    views_in_boxes,
    way_of,
)
from npquant.cpu.every_second import brought, rooms_for
from npquant.cpu.gradients import (
    BLOCK,
    BLOCK_ROW,
    LONG_ROW,
    MOST_BESIDE,
    PART,
    SHORT,
    SHORT_APART,
    STRIP,
    apart_of,
    beside_of,
    clear,
    parts_of,
    runs_of,
    short_of,
)
from npquant.cpu.lanes import TOGETHER, add_terms, folded
from npquant.cpu.loops import NUMBER_TYPES, number_type
from npquant.cpu.lowered import called
from npquant.cpu.rooms import local
from npquant.cpu.steps import in_steps
from npquant.cpu.strided import VIEWS, lend, room, taken
from npquant.cpu.strided import key as key_of
from npquant.cpu.target import (
    GRAIN,
    PARALLEL_FROM,
    Function,
    Kernel,
    Types,
    array_type,
    array_types,
    threads,
)
from npquant.cpu.walk import contiguous, plain, readable
from npquant.dtypes import DType, float32, float64
from npquant.layout import GROUP, LANES, TILE, Granularity, rows_of_tensor, whole
from npquant.primitives import each, store

Array = np.ndarray[Any, Any]

#: Channels that are done at a time: of each, its sums and some copies of its qparams are kept.
CHANNELS_AT_A_TIME = 1 << 14
#: Rows of a tensor that are done at a time; half of them if they are more, as their sums wait.
ROWS_AT_A_TIME = 1 << 13
#: What stands for gradients where sums of tiles are asked for, and the other way round.
NO_ROOM, NO_SUMS = (np.empty(0, np.float32),) * 2, np.empty((2, 0, 1))


# --- learnable gradients ----------------------------------------------------------------------


class Gradients:
    """grad, x, qparams -> grad_input and the sums for scale and zero point, in one pass.

    Parameters
    ----------
    parameters : callable
        ``parameters(x, scale, zero_point, constants, y) -> p``, once a channel.
    element : callable
        ``element(g, x, p, constants) -> (inside, slope, shift)``.
    wide : callable, optional
        The element where float32 does not hold codes or data.
    """

    def __init__(
        self,
        parameters: Callable[..., Any],
        element: Callable[..., Any],
        wide: Callable[..., Any] | None = None,
    ) -> None:
        self._wide = None if wide is None else Gradients(parameters, wide)
        runs, short = runs_of(parameters, element), short_of(parameters, element)
        name = f"{parameters.__name__}_{element.__name__}"

        def kernel(segment: Function, of: str, signature: Any = _gradients_signature) -> Kernel:
            return Kernel(segment, f"{name}_{of}", signature, 4)

        self._runs = kernel(runs, "runs")
        self._beside = kernel(beside_of(parameters, element), "beside")
        self._parts = kernel(parts_of(parameters, element), "parts")
        self._short = kernel(short, "short")
        self._apart = kernel(apart_of(called(runs)), "apart", _gradients_apart_signature)
        self._short_apart = kernel(
            apart_of(called(short), TOGETHER), "short_apart", _gradients_apart_signature
        )

    def at_once(
        self, granularity: Granularity, shape: tuple[int, ...], dtype: DType, code: str
    ) -> Callable[..., bool] | None:
        """A function of contiguous arrays of this shape, their qparams, and results.

        As a call, but that it looks at the qparams first, and tells whether they are usual: else
        nothing was written. None where there is nothing, and of tensors whose rows are several
        tiles each, or more than ROWS_AT_A_TIME.
        """
        if code != "float32" and self._wide is not None:
            return self._wide.at_once(granularity, shape, dtype, code)
        n, (channels, inner, _) = prod(shape), granularity
        if n == 0:
            return None
        scales = channels
        if granularity.axis is None and channels == 1:
            channels, inner, _ = rows_of_tensor(shape)
            if not (channels == 1 or (inner <= TILE and channels <= ROWS_AT_A_TIME)):
                return None
        count = n // channels
        tiles = -(-count // TILE)
        cut = partial(self._cut, channels, inner, count, tiles)
        kernel, tasks, block, inner = cut()
        large, several = n * kernel.work >= PARALLEL_FROM, channels * tiles > scales
        entries: dict[DType, Any] = {}  # by the dtype of zero points

        def call(
            grad: Array, x: Array, scale: Array, zero_point: Array, lo: float, hi: float,
            factor: float, y: Array, grad_scale: Array, grad_zero_point: Array,
        ) -> bool:  # fmt: skip
            entry = entries.get(given := zero_point.dtype)
            if entry is None:
                entries[given] = entry = kernel.serial[dtype, float32, given, code]
            slope, shift, sums = grad_scale, grad_zero_point, NO_SUMS
            in_tiles = several or not (slope.dtype is shift.dtype is float32)
            if in_tiles:
                (slope, shift), sums = NO_ROOM, np.empty((2, channels, tiles))
            if scales < channels:
                scale, zero_point = scale.repeat(channels), zero_point.repeat(channels)
            some = threads() if large else 1  # of several one looks, and all compute
            if not entry(0, tasks if some == 1 else 0, scales, block, channels, inner, count, grad,
                         x, scale, zero_point, lo, hi, factor, y, sums, slope, shift):  # fmt: skip
                return False
            if some > 1:
                _, every, part, _ = cut(some)
                kernel(every, n, (0, part, channels, inner, count, grad, x, scale, zero_point,
                                  lo, hi, factor, y, sums, slope, shift),
                       (dtype, float32, given, code))  # fmt: skip
            if in_tiles:
                both = grad_scale, grad_zero_point
                sums, dtypes = sums.reshape(2, scales, -1), (both[0].dtype, both[1].dtype)
                _add_tiles(scales, sums.size, (sums, *both), dtypes)
            return True

        return call

    def __call__(
        self, granularity: Granularity, grad: Array, x: Array, scale: Array, zero_point: Array,
        constants: tuple[Any, Any, Any], code: str, y: Array, grad_scale: Array,
        grad_zero_point: Array,
    ) -> None:  # fmt: skip
        """Write grad_input to `y`, and the sums of each channel to the last two.

        `constants` are lo, hi and grad_factor; `code` names the type of lo and hi. Sums are
        rounded to the dtype of their arrays, float32 or float64.
        """
        if code != "float32" and self._wide is not None:
            self._wide(granularity, grad, x, scale, zero_point, constants, code, y, grad_scale,
                       grad_zero_point)  # fmt: skip
            return
        channels, _, axis = granularity
        single = grad_scale.dtype == grad_zero_point.dtype == float32
        few = channels <= CHANNELS_AT_A_TIME
        way = self.way(granularity, grad, x, y) if single or few else None
        if way is not None:
            self.in_one_call(way, grad, x, y, scale, zero_point, constants, code, grad_scale,
                             grad_zero_point)  # fmt: skip
            return
        rows = rows_of_tensor(x.shape) if axis is None and channels == 1 else granularity
        if rows.channels > channels:
            self._of_rows(rows, grad, x, scale, zero_point, constants, code, y, grad_scale,
                          grad_zero_point)  # fmt: skip
            return
        if not few:
            for part, (g, u, v) in parts(granularity, (grad, x, y), CHANNELS_AT_A_TIME):
                s, z = part.of(scale), part.of(zero_point)
                slope, shift = part.room(grad_scale), part.room(grad_zero_point)
                self(part.granularity, g, u, s, z, constants, code, v, slope, shift)
                part.put(grad_scale, slope)
                part.put(grad_zero_point, shift)
            return
        sums = np.empty((2, channels, -(-(x.size // channels) // TILE)))
        for layout, some, tiles, (g, u, v) in channel_pieces(
            granularity, (grad, x), (y,), TILE, ordered=True
        ):
            rest = scale[some], zero_point[some], constants, code, sums[:, some, tiles]
            self._piece(layout, g, u, v, *rest)
        dtypes = grad_scale.dtype, grad_zero_point.dtype
        _add_tiles(channels, sums.size, (sums, grad_scale, grad_zero_point), dtypes)

    def way(self, granularity: Granularity, *arrays: Array) -> Way | None:
        """How one call takes (grad, x, y), if one can with little memory.

        Of many channels none may be kept: their sums are float32 gradients in their order.
        """
        if granularity.axis is None and granularity.channels == 1:
            rows = rows_of_tensor(arrays[1].shape)
            return None if rows.channels > ROWS_AT_A_TIME else way_of(rows, arrays, TILE)
        few = granularity.channels <= CHANNELS_AT_A_TIME
        if not few and arrays[1].size > TILE * granularity.channels:
            return None
        way = way_of(granularity, arrays, TILE)
        return None if way is None or (way.turned and not few) else way

    def in_one_call(
        self, way: Way, grad: Array, x: Array, y: Array, scale: Array, zero_point: Array,
        constants: tuple[Any, Any, Any], code: str, grad_scale: Array, grad_zero_point: Array,
    ) -> None:  # fmt: skip
        """As a call, of arrays that lie as `way` tells. A tensor's channels are its rows."""
        if code != "float32" and self._wide is not None:
            self._wide.in_one_call(way, grad, x, y, scale, zero_point, constants, code, grad_scale,
                                   grad_zero_point)  # fmt: skip
            return
        channels, scales = way.channels, scale.size
        tiles = -(-(x.size // channels) // TILE)
        dtypes = grad_scale.dtype, grad_zero_point.dtype
        sums, into = NO_SUMS, (grad_scale, grad_zero_point)  # type: Any, Any
        single = tiles == 1 and way.lines == scales and dtypes == (float32, float32)
        if not single:
            sums, into = np.empty((2, channels, tiles)), NO_ROOM
        s, z = way.in_memory(scale, scales), way.in_memory(zero_point, scales)
        g, u, v = way.seen(grad), way.seen(x), way.seen(y)
        if way.flat:
            self._piece(way.told, g, u, v, s, z, constants, code, sums, into)
        else:
            views, some, length = way.told
            lines, count = way.lines, x.size // way.lines
            args = (views, some, length, lines, count, g, u, s, z, *constants, v,
                    sums if single else sums.reshape(2, lines, -1), *into)  # fmt: skip
            key = (x.dtype, scale.dtype, zero_point.dtype, code)
            short = count <= SHORT_APART and count % LANES == 0
            kernel = self._short_apart if short else self._apart
            kernel(-(-lines // some) * -(-count // length), x.size, args, key)
        if single:
            if way.turned:  # NumPy copies what overlaps
                way.put(into, grad_scale, grad_zero_point)
            return
        if tiles > 1 and (scales < channels or way.turned):
            found = np.empty((2, channels, 1))
            _add_tiles(channels, sums.size, (sums, *found[..., 0]), (float64, float64))
            sums = found
        if way.turned:
            found = np.empty((2, channels, 1))
            way.put(sums, *found[..., 0])
            sums = found
        sums = sums.reshape(2, scales, -1)
        _add_tiles(scales, sums.size, (sums, grad_scale, grad_zero_point), dtypes)

    def _of_rows(
        self, rows: Granularity, grad: Array, x: Array, scale: Array, zero_point: Array,
        constants: tuple[Any, Any, Any], code: str, y: Array, grad_scale: Array,
        grad_zero_point: Array,
    ) -> None:  # fmt: skip
        """As a call, of a tensor: its rows are channels, whose sums are added as tiles are."""
        count, inner, _ = rows
        if plain(grad) and plain(x) and plain(y):
            grad, x, y = (a.reshape(count, inner) for a in (grad, x, y))
        else:
            grad, x, y = last_axes_joined((grad, x, y), inner)
        sums = np.empty((2, 1, -(-count // GROUP)))
        # Of a part the sums of whole groups are added; those of the rest wait for the next one.
        room = np.zeros((2, min(count, ROWS_AT_A_TIME // 2) + GROUP))
        waiting = done = 0
        for part, m in leading(x.shape, count, ROWS_AT_A_TIME // 2):
            kept = waiting + m
            self(Granularity(m, inner, None), grad[part], x[part], scale.repeat(m),
                 zero_point.repeat(m), constants, code, y[part],
                 *room[:, waiting:kept])  # fmt: skip
            groups, waiting = divmod(kept, GROUP)
            if done + kept == count and waiting:
                room[:, kept : (groups + 1) * GROUP] = 0
                groups, waiting = groups + 1, 0
            if groups:
                found = room[:, : groups * GROUP].copy().reshape(2, groups, GROUP)
                to = sums[:, 0, done // GROUP :]
                _add_tiles(groups, found.size, (found, *to), (to.dtype, to.dtype))
                room[:, :waiting] = room[:, kept - waiting : kept]
                done += groups * GROUP
        # By the kernel of the rows, not another one of the dtype of the results.
        found = np.empty((2, 1))
        _add_tiles(1, sums.size, (sums, *found), (found.dtype, found.dtype))
        with np.errstate(over="ignore"):
            grad_scale[...], grad_zero_point[...] = found

    def _piece(
        self, layout: tuple[int, int], grad: Array, x: Array, y: Array, scale: Array,
        zero_point: Array, constants: tuple[Any, Any, Any], code: str, sums: Array,
        into: Any = NO_ROOM,
    ) -> None:  # fmt: skip
        """Flat data: to the sums of tiles, or `into` gradients, if there is room for these."""
        channels, inner = layout
        n = x.size
        outer = scale.size // channels
        count = n // scale.size
        some = threads() if n * self._parts.work >= PARALLEL_FROM else 1
        kernel, tasks, block, inner = self._cut(channels, inner, count, outer * sums.shape[2], some)
        args = (0, block, channels, inner, count, grad, x, scale, zero_point, *constants, y, sums,
                *into)  # fmt: skip
        key = (key_of(x), scale.dtype, zero_point.dtype, code)
        kernel(tasks, n, args, key)

    def _cut(
        self, channels: int, inner: int, count: int, tiles: int, some: int = 1
    ) -> tuple[Kernel, int, int, int]:
        """The loop for so many channels, again and again, and how it is told what to do.

        A channel has `count` elements, and there are so many tiles of one, of all that come again.
        Returned are the loop, its tasks, for `some` threads, the channels of a block, and `inner`.
        """
        if channels == 1:
            inner = count
        if inner < count and LANES % inner == 0:
            if channels <= MOST_BESIDE and channels * inner <= BLOCK_ROW:
                kernel, block = self._beside, channels
            else:
                line = channels * inner
                parts = max(-(-line // LONG_ROW), min(-(-some // tiles), line // PART))
                kernel, block = self._parts, -(-channels // (parts * LANES)) * LANES
        elif inner == count <= SHORT and inner % LANES == 0 and channels >= TOGETHER:
            kernel, block = self._short, TOGETHER
        else:
            # Neighbours are read on to, but a run that fills a tile is read on by itself.
            block = min(BLOCK, channels, max(1, GRAIN // inner)) if inner < TILE else 1
            kernel = self._runs
        return kernel, -(-channels // block) * tiles, block, inner


def _gradients_signature(x: Any, scale: Any, zero_point: Any, code: Any) -> Types:
    data, y, sums = array_type(x), array_type(x.base), Borrowed(types.float64, 3, "A")
    bound, number, gradient = NUMBER_TYPES[code], number_type(x), array_type(float32)
    return (
        types.intp, types.intp, types.intp, types.intp, types.intp, data, data,
        array_type(scale), array_type(zero_point), bound, bound, number, y, sums, gradient,
        gradient,
    )  # fmt: skip


def _gradients_apart_signature(*key: Any) -> Types:
    _, _, _, _, _, *rest = _gradients_signature(*key)
    return VIEWS, types.intp, types.intp, types.intp, types.intp, *rest


def _sums_of_tiles(begin: Any, end: Any, sums: Any, grad_scale: Any, grad_zero_point: Any) -> None:
    """The tiles of each channel added in order, GROUP at a time."""
    tiles = sums.shape[2]
    for c in range(begin, end):
        step = 1
        while step < tiles:  # to the first of each group, until one is left
            for start in range(0, tiles, step * GROUP):
                slope, shift, stop = sums[0, c, start], sums[1, c, start], start + step * GROUP
                for tile in range(start + step, stop if stop < tiles else tiles, step):
                    slope += sums[0, c, tile]
                    shift += sums[1, c, tile]
                sums[0, c, start], sums[1, c, start] = slope, shift
            step *= GROUP
        store(grad_scale, c, sums[0, c, 0])
        store(grad_zero_point, c, sums[1, c, 0])


def _sums_signature(scale: Any, zero_point: Any) -> Types:
    return Borrowed(types.float64, 3, "C"), array_type(scale), array_type(zero_point)


_add_tiles = Kernel(_sums_of_tiles, "sums_of_tiles", _sums_signature)


# --- sums of everything -------------------------------------------------------------------------


class Total:
    """The sum of one term for each element of some arrays of one shape, as a float.

    Parameters
    ----------
    element : callable
        ``element(values, number) -> term``: one element of every array, and what all share.
    steps : tuple of callable, optional
        The same as `element`, as of `in_steps`, where each waits for the one before.
    """

    def __init__(
        self,
        element: Callable[..., Any],
        steps: tuple[Callable[..., Any], ...] = (),
    ) -> None:
        def only(values: Any, made: Any, number: Any) -> Any:
            return element(values, number)

        strip = in_steps(*steps or (called(only),))

        def of_tiles(
            begin: Any, end: Any, first: Any, size: Any, x: Any, number: Any, sums: Any
        ) -> None:
            """Tasks (tile), of `size` elements from `first` on."""
            lanes = local(LANES, 0.0)
            kind = element(each(x, 0), number)
            terms, rooms = (local(STRIP, kind),), rooms_for(STRIP, x)
            for tile in range(begin, end):
                clear(lanes, 0, LANES)
                stop = min(size, (tile + 1) * TILE)
                for start in range(tile * TILE, stop, STRIP):
                    m = min(STRIP, stop - start)
                    u, at = brought(x, np.uintp(first + start), np.uintp(m), rooms)
                    strip(u, at, m, (), number, kind, terms[0], np.uintp(0))
                    add_terms(lanes, 0, terms, 0, 0, m)
                sums[tile] = folded(lanes, 0, terms)[0]

        of_row = called(of_tiles)

        def apart(
            begin: Any, end: Any, views: Any, some: Any, length: Any, lines: Any, count: Any,
            x: Any, number: Any, sums: Any,
        ) -> None:  # fmt: skip
            """Tasks (some lines, some tiles): `of_tiles`, of data that are not flat."""
            made = room(x, some * length)
            rooms = lend(made)
            parts = (count + length - 1) // length
            for task in range(begin, end):
                c, e = task // parts * some, task % parts * length
                rows, m = min(some, lines - c), min(length, count - e)
                data = taken(x, views, 0, c * count + e * rows, rows * m, rooms, None)
                tiles = (m + TILE - 1) // TILE
                for r in range(rows):
                    tile = ((c + r) * count + e) // TILE
                    of_row(0, tiles, r * m, m, data, number, sums[tile : tile + tiles])
            keep(made)

        self._kernel = Kernel(of_tiles, f"{element.__name__}_total", _total_signature, 4)
        self._apart = Kernel(apart, f"{element.__name__}_total_apart", _total_apart_signature, 4)

    def __call__(self, inputs: tuple[Array, ...], number: float = 0.0) -> float:
        """The sum; `number` becomes a float32, or a float64 beside a first array of float64."""
        n = inputs[0].size
        if n == 0:
            return 0.0
        sums = np.empty(-(-n // TILE))
        key = tuple([a.dtype for a in inputs])
        if n <= TILE:
            self._kernel.serial[key](0, 1, 0, n, tuple(map(contiguous, inputs)), number, sums)
            return float(sums.item())
        one = whole(n)
        if all(map(plain, inputs)):
            self._kernel(sums.size, n, (0, n, tuple(inputs), number, sums), key)
        elif not all(map(readable, inputs)) and (boxes := views_in_boxes(one, inputs, TILE)):
            views, some, length, count, arrays = boxes
            lines = n // count
            args = views, some, length, lines, count, tuple(arrays), number, sums
            self._apart(-(-lines // some) * -(-count // length), n, args, key)
        else:
            for _, _, tiles, x in channel_pieces(one, inputs, (), TILE, ordered=True, pairs=True):
                size, part = x[0].size, sums[tiles]
                key = tuple(map(key_of, x))
                self._kernel(part.size, size, (0, size, tuple(x), number, part), key)
        while sums.size > 1:  # as in `_sums_of_tiles`; a zero changes no sum
            groups = np.zeros((-(-sums.size // GROUP), GROUP))
            groups.ravel()[: sums.size] = sums
            with np.errstate(over="ignore", invalid="ignore"):  # as in kernels
                sums = np.add.accumulate(groups, axis=1)[:, -1]
        return float(sums[0])


def _total_signature(*dtypes: Any) -> Types:
    data = types.Tuple(array_types(*dtypes))
    return types.intp, types.intp, data, number_type(dtypes[0]), array_type(float64)


def _total_apart_signature(*dtypes: Any) -> Types:
    _, _, *rest = _total_signature(*dtypes)
    return VIEWS, types.intp, types.intp, types.intp, types.intp, *rest
