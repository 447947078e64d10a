"""Sums in a fixed order: of the learnable gradients, and of everything.

They are added in the order of npquant.cpu.sums, so they have its bits for any launch: a block
makes the terms of a tile, and the threads that are its lanes add them in order. Where a channel's
elements lie far apart, or are few, a thread is a lane of one channel, makes its terms itself, and a
block takes several channels. The tiles of a channel are added in order by a second kernel, as are
the sums of a tensor's rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import types

from npquant.cuda.arrays import DeviceArray, device
from npquant.cuda.reduce import Shape, divided, walked
from npquant.cuda.target import COUNT, SIMULATED, THREADS, Kernel, Types, cuda, pointer
from npquant.cuda.vectors import moved, vectors
from npquant.cuda.walk import pieces
from npquant.formulas.base import formula
from npquant.layout import GROUP, LANES, TILE, Granularity, rows_of_tensor
from npquant.primitives import at, each, masked, store

#: Terms that wait to be added. There is room for twice as many: the next are made meanwhile.
STRIP = 1024
#: Warps that take turns at adding, or one part of a multiprocessor would do it for all blocks.
TURNS = 4
#: Terms that a lane reads before it adds them: each waits for the sum of those before it.
AHEAD = 8
#: Tiles of a channel that a block adds, and not a thread; and the threads of that block.
MANY, ADDERS = 32, 64 if SIMULATED else 256


# --- the tiles ----------------------------------------------------------------------------


class _Strips(NamedTuple):
    """How the terms of a strip lie in shared memory, and which threads make them.

    A thread makes `vectors` of `width` terms. Term e of the strip is at
    (e % width) * column + e // width: threads that write beside each other, and lanes that read,
    never meet in a bank.
    """

    width: int

    @property
    def threads(self) -> int:
        return min(THREADS, STRIP // self.width)

    @property
    def vectors(self) -> int:
        return STRIP // (self.width * self.threads)

    @property
    def column(self) -> int:
        return (STRIP + LANES) // self.width


def _adder(strips: _Strips, sums: int) -> Callable[..., None]:
    """What the threads do that are lanes, once the terms of a strip are there."""
    width, column, part = strips.width, strips.column, STRIP + LANES
    step, turns = LANES // width, min(TURNS, strips.threads // 32)

    @formula
    def add(t: Any, strip: Any, n: Any, terms: Any, lanes: Any) -> None:
        lane = t % 32
        i = lane % LANES
        if t // 32 == strip % turns and lane < sums * LANES and i < n:
            start = strip % 2 * (sums * part) + lane // LANES * part + i % width * column
            at_term = COUNT(start + i // width)
            total, count = lanes[lane], COUNT((n - i + LANES - 1) // LANES)
            ahead = cuda.local.array(AHEAD, types.float64)
            for _ in range(count // COUNT(AHEAD)):
                for k in range(AHEAD):
                    ahead[k] = np.float64(terms[COUNT(at_term + COUNT(k * step))])
                at_term = COUNT(at_term + COUNT(AHEAD * step))
                for k in range(AHEAD):
                    total += ahead[k]
            for _ in range(count % COUNT(AHEAD)):
                total += np.float64(terms[at_term])
                at_term = COUNT(at_term + COUNT(step))
            lanes[lane] = total

    return add


@formula
def _fold(t: Any, lanes: Any, sums: Any, width: Any) -> None:
    """Fold the lanes of each sum by halves: row i of `width` takes row i + h."""
    h = LANES // 2
    while h > 0:
        cuda.syncthreads()
        if t < sums * h * width:
            s = t // (h * width)
            k = s * (LANES * width) + t - s * (h * width)
            lanes[k] += lanes[k + h * width]
        h //= 2


# --- learnable gradients ------------------------------------------------------------------


def _gradient_runs(
    parameters: Callable[..., Any], element: Callable[..., Any], term: Any, width: int, single: bool
) -> Callable[..., None]:
    """A block for each (channel, tile), or (tile, channel) where short runs lie side by side."""
    strips = _Strips(width)
    threads, count, column, part = strips.threads, strips.vectors, strips.column, STRIP + LANES
    load, scratch, write = vectors(width, 1)
    scratch_of_all = vectors(width, count).scratch
    add, room_of_terms, room_of_lanes = _adder(strips, 2), 4 * part, 2 * LANES
    begin_of, place_of = walked(single)

    @formula
    def read(
        values: Any, first: Any, left: Any, skip: Any, channels: Any, inner: Any, data: Any
    ) -> None:
        """What a thread takes of a strip, from element `first` on; nothing behind the last."""
        for u in range(count):
            e = first + u * (width * threads)
            if e + width <= left:
                to = place_of(COUNT(skip + COUNT(e)), channels, inner)
                found = load(moved(data, to), COUNT(0), COUNT(0))
                for k in range(width):
                    values[0][u * width + k] = found[0][k]
                    values[1][u * width + k] = found[1][k]
            elif single and e < left:  # the end of all data
                for k in range(width):
                    values[0][u * width + k] = data[0][min(e + k, left - 1)]
                    values[1][u * width + k] = data[1][min(e + k, left - 1)]

    def kernel(
        channels: Any, inner: Any, length: Any, tiles: Any, apart: Any, g: Any, x: Any, scale: Any,
        zero_point: Any, lo: Any, hi: Any, factor: Any, y: Any, sums: Any, by_channel: Any,
        by_tile: Any,
    ) -> None:  # fmt: skip
        terms = cuda.shared.array(room_of_terms, term)
        lanes = cuda.shared.array(room_of_lanes, types.float64)
        t, task = cuda.threadIdx.x, cuda.blockIdx.x
        if single or inner >= TILE:
            c, tile = divided(task, tiles)
        else:
            tile, c = divided(task, channels)
        start = tile * TILE
        left = min(length - start, TILE)
        begin, skip = begin_of(c, start, channels, inner)
        data, out = moved((g, x), begin), moved((y,), begin)
        constants = lo, hi, factor
        p = parameters(x, at(scale, c * apart), at(zero_point, c * apart), constants, y)
        if t < 2 * LANES:
            lanes[t] = 0
        values = scratch_of_all((g, x))
        read(values, t * width, left, skip, channels, inner, data)
        for strip in range((left + STRIP - 1) // STRIP):
            first, base = strip * STRIP + t * width, COUNT(strip % 2 * (2 * part) + t)
            for u in range(count):
                e = first + u * (width * threads)
                if e < left:
                    room = scratch((y,))
                    for k in range(width):
                        v = values[0][u * width + k]
                        inside, slope, shift = element(v, values[1][u * width + k], p, constants)
                        store(room[0], k, masked(v, inside))
                        at_term = COUNT(base + COUNT(u * threads + k * column))
                        terms[at_term] = slope
                        terms[COUNT(at_term + COUNT(part))] = shift
                    if e + width <= left:
                        to = place_of(COUNT(skip + COUNT(e)), channels, inner)
                        write(moved(out, to), COUNT(0), COUNT(0), room)
                    elif single:
                        for k in range(width):
                            if e + k < left:
                                out[0][e + k] = room[0][k]
            # The next strip is on its way while the terms of this one are added.
            read(values, first + STRIP, left, skip, channels, inner, data)
            cuda.syncthreads()
            add(t, strip, min(left - strip * STRIP, STRIP), terms, lanes)
        _fold(t, lanes, 2, 1)
        if t < 2:
            sums[t * channels * tiles + c * by_channel + tile * by_tile] = lanes[t * LANES]

    return kernel


def _gradient_lanes(
    parameters: Callable[..., Any], element: Callable[..., Any], wide: int, beside: bool,
    batch: int,
) -> Callable[..., None]:  # fmt: skip
    """A block for each (tile, `wide` channels): a thread is a lane of a channel."""
    load, room_of_lanes = vectors(1, batch).load, 2 * LANES * wide

    def kernel(
        channels: Any, blocks: Any, pitch: Any, jump: Any, length: Any, tiles: Any, apart: Any,
        g: Any, x: Any, scale: Any, zero_point: Any, lo: Any, hi: Any, factor: Any, y: Any,
        sums: Any, by_channel: Any, by_tile: Any,
    ) -> None:  # fmt: skip
        lanes = cuda.shared.array(room_of_lanes, types.float64)
        t = cuda.threadIdx.x
        tile, block = divided(cuda.blockIdx.x, blocks)
        if beside:
            lane, k = t // wide, t % wide
        else:
            lane, k = t % LANES, t // LANES
        c = block * wide + k
        slopes = shifts = np.float64(0)
        if c < channels:
            left = min(length - tile * TILE, TILE)
            begin = (tile * TILE + lane) * pitch + c * jump
            g, x, y = moved((g, x, y), begin)
            constants = lo, hi, factor
            p = parameters(x, at(scale, c * apart), at(zero_point, c * apart), constants, y)
            step, e = LANES * pitch, lane
            while e < left:
                if e + (batch - 1) * LANES < left:
                    found = load((g, x), COUNT(0), COUNT(step))
                    for u in range(batch):
                        v = found[0][u]
                        inside, slope, shift = element(v, found[1][u], p, constants)
                        store(y, u * step, masked(v, inside))
                        slopes += np.float64(slope)
                        shifts += np.float64(shift)
                    e += batch * LANES
                    g, x, y = moved((g, x, y), batch * step)
                else:
                    inside, slope, shift = element(g[0], x[0], p, constants)
                    store(y, 0, masked(g[0], inside))
                    slopes += np.float64(slope)
                    shifts += np.float64(shift)
                    e += LANES
                    g, x, y = moved((g, x, y), step)
        lanes[lane * wide + k] = slopes
        lanes[(LANES + lane) * wide + k] = shifts
        _fold(t, lanes, 2, wide)
        cuda.syncthreads()
        if lane == 0 and c < channels:
            to = c * by_channel + tile * by_tile
            sums[to] = lanes[k]
            sums[channels * tiles + to] = lanes[LANES * wide + k]

    return kernel


class Gradients:
    """grad, x, qparams -> grad_input and the sums for scale and zero point, in one pass.

    Parameters
    ----------
    parameters : callable
        ``parameters(x, scale, zero_point, constants, y) -> p``, once a channel.
    element : callable
        ``element(g, x, p, constants) -> (inside, slope, shift)``.
    wide : Gradients, optional
        The same where float32 does not hold codes or data.
    """

    def __init__(
        self,
        parameters: Callable[..., Any],
        element: Callable[..., Any],
        wide: Gradients | None = None,
    ) -> None:
        self._parameters, self._element, self._wide = parameters, element, wide
        name = f"{parameters.__name__}_{element.__name__}"
        self.runs = Kernel(self._make_runs, f"{name}_runs")
        self.lanes = Kernel(self._make_lanes, f"{name}_lanes")

    def __call__(
        self, granularity: Granularity, grad: Any, x: Any, scale: Any, zero_point: Any,
        constants: tuple[Any, Any, Any], code: str, y: Any, grad_scale: Any, grad_zero_point: Any,
    ) -> None:  # fmt: skip
        """Write grad_input to `y`, and the sums of each channel to the last two.

        `constants` are lo, hi and grad_factor; `code` names the type of lo and hi. Sums are
        rounded to the dtype of their arrays, float32 or float64.
        """
        if code != "float32" and self._wide is not None:
            self._wide(granularity, grad, x, scale, zero_point, constants, code, y, grad_scale,
                       grad_zero_point)  # fmt: skip
            return
        g, x, y, s, z = map(device, (grad, x, y, scale, zero_point))
        to = device(grad_scale), device(grad_zero_point)
        tensor = granularity.axis is None and granularity.channels == 1
        if tensor:
            granularity = rows_of_tensor(x.shape)
        channels, on = granularity.channels, x.stream()
        tiles, apart = -(-(x.size // channels) // TILE), int(not tensor)
        sums, by = _partial_sums(x, 2, channels, tiles)
        key = (x.dtype, s.dtype, z.dtype, code)
        for layout, flat in pieces(granularity, (g, x), (y,), ordered=True):
            shape = Shape.of(layout, x.size)
            data = [a.argument() for a in flat]
            rest = (
                *data[:2],
                s.argument(),
                z.argument(),
                *constants,
                data[2],
                sums.argument(),
                *by,
            )
            if shape.beside or shape.short:
                wide, blocks, pitch, jump = shape.across()
                args = (channels, blocks, pitch, jump, shape.length, tiles, apart, *rest)
                form = wide, shape.beside, shape.batch
                self.lanes(blocks * tiles, wide * LANES, args, (*key, *form), on)
            else:
                width = shape.width(*flat)
                self.runs(channels * tiles, _Strips(width).threads, (*shape, tiles, apart, *rest),
                          (*key, width, shape.single), on)  # fmt: skip
        if tensor and channels > 1:  # its rows' sums are added as tiles are
            if tiles > 1:
                found = x.new((2, channels), np.float64)
                _add_tiles(sums, channels, tiles, _both(found))
                sums = found
            channels, tiles = 1, channels
        _add_tiles(sums, channels, tiles, to)

    def _make_runs(
        self, x: Any, scale: Any, zero_point: Any, code: str, width: int, single: bool
    ) -> tuple[Callable[..., None], Types]:
        rest = _gradient_types(x, scale, zero_point, code)
        kernel = _gradient_runs(self._parameters, self._element, rest[6], width, single)
        return kernel, (*[types.int64] * 5, *rest)

    def _make_lanes(
        self, x: Any, scale: Any, zero_point: Any, code: str, wide: int, beside: bool, batch: int
    ) -> tuple[Callable[..., None], Types]:
        kernel = _gradient_lanes(self._parameters, self._element, wide, beside, batch)
        return kernel, (*[types.int64] * 7, *_gradient_types(x, scale, zero_point, code))


def _gradient_types(x: Any, scale: Any, zero_point: Any, code: Any) -> Types:
    data, bound, number = (
        pointer(x), types.float32 if code == "float32" else types.float64,
        types.float64 if x == np.float64 else types.float32,
    )  # fmt: skip
    return (
        data, data, pointer(scale), pointer(zero_point), bound, bound, number, data,
        types.CPointer(types.float64), types.int64, types.int64,
    )  # fmt: skip


# --- their tiles added --------------------------------------------------------------------


def _partial_sums(
    like: DeviceArray, sums: int, channels: int, tiles: int
) -> tuple[DeviceArray, tuple[int, int]]:
    """Room for the tiles of sums, and how far apart channels and tiles are in it.

    What a thread adds lies beside what the next one does; what a block adds lies together.
    """
    by = (tiles, 1) if tiles >= MANY else (1, channels)
    return like.new((sums * channels * tiles,), np.float64), by


def _both(sums: DeviceArray) -> tuple[DeviceArray, DeviceArray]:
    """The two rows of an array that was made for them."""
    _, n = sums.shape
    first, last = (sums.pointer + k * n * sums.dtype.itemsize for k in range(2))
    return (
        DeviceArray(sums.owner, sums.library, first, (n,), sums.dtype),
        DeviceArray(sums.owner, sums.library, last, (n,), sums.dtype),
    )


def _make_few(*outputs: Any) -> tuple[Callable[..., None], Types]:
    """A thread for each channel of each sum."""
    several = len(outputs)

    def kernel(channels: Any, tiles: Any, sums: Any, first: Any, last: Any) -> None:
        k = np.int64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        if k < channels * several:
            s = np.int64(k >= channels)
            c = k - s * channels
            place = s * channels * tiles + c
            total = np.float64(0)
            for tile in range(tiles):
                total += sums[place + tile * channels]
            if s == 0:
                store(first, c, total)
            else:
                store(last, c, total)

    return kernel, _sum_types(outputs)


def _make_many(*outputs: Any) -> tuple[Callable[..., None], Types]:
    """A block for each channel of each sum: a warp adds a group, until one is left."""
    room = ADDERS // 32 * GROUP

    def kernel(channels: Any, tiles: Any, sums: Any, first: Any, last: Any) -> None:
        groups = cuda.shared.array(room, types.float64)
        t, (s, c) = cuda.threadIdx.x, divided(cuda.blockIdx.x, channels)
        here, n = moved(sums, (s * channels + c) * tiles), tiles
        while n > 1:
            for start in range(0, n, room):
                for i in range(t, min(room, n - start), ADDERS):
                    groups[COUNT(i)] = here[start + i]
                cuda.syncthreads()
                base = t // 32 * GROUP
                if t % 32 == 0 and start + base < n:
                    total = np.float64(0)
                    for i in range(base, min(base + GROUP, n - start)):
                        total += groups[COUNT(i)]
                    here[(start + base) // GROUP] = total  # what was there has been read
                cuda.syncthreads()
            n = (n + GROUP - 1) // GROUP
        if t == 0:
            if s == 0:
                store(first, c, here[0])
            else:
                store(last, c, here[0])

    return kernel, _sum_types(outputs)


def _sum_types(outputs: tuple[Any, ...]) -> Types:
    first, last = outputs[0], outputs[-1]
    return (types.int64, types.int64, types.CPointer(types.float64), pointer(first), pointer(last))


_few, _many = Kernel(_make_few, "sums_of_few_tiles"), Kernel(_make_many, "sums_of_many_tiles")


def _add_tiles(
    sums: DeviceArray, channels: int, tiles: int, outputs: tuple[DeviceArray, ...]
) -> None:
    """The tiles of each channel in order, GROUP at a time, to one output for each sum."""
    n, key = channels * len(outputs), tuple([a.dtype for a in outputs])
    args = (channels, tiles, sums.argument(), outputs[0].argument(), outputs[-1].argument())
    if tiles >= MANY:
        _many(n, ADDERS, args, key, sums.stream())
    else:
        _few(-(-n // THREADS), THREADS, args, key, sums.stream())


# --- sums of everything -------------------------------------------------------------------------


class Total:
    """The sum of one term for each element of some arrays of one shape.

    Parameters
    ----------
    element : callable
        ``element(values, number) -> term``: one element of every array, and what all share.
    """

    def __init__(self, element: Callable[..., Any]) -> None:
        self._element = element
        self.kernel = Kernel(self._make, f"{element.__name__}_total")

    def __call__(self, inputs: tuple[Any, ...], number: float = 0.0) -> DeviceArray:
        """The sum, float64 of shape () on the device: a float would have to be waited for.

        `number` becomes a float32, or a float64 beside a first array of float64.
        """
        x = tuple(map(device, inputs))
        n, on = x[0].size, x[0].stream()
        tiles = -(-n // TILE)
        total = x[0].new((), np.float64)
        sums, _ = _partial_sums(x[0], 1, 1, tiles)
        if n:
            for layout, flat in pieces(Granularity(1, n, None), x, (), ordered=True):
                width = Shape.of(layout, n).width(*flat)
                args = (n, tuple([a.argument() for a in flat]), number, sums.argument())
                key = (width, *[a.dtype for a in x])
                self.kernel(tiles, _Strips(width).threads, args, key, on)
        _add_tiles(sums, 1, tiles, (total,))
        return total

    def _make(self, width: int, *dtypes: Any) -> tuple[Callable[..., None], Types]:
        element, strips = self._element, _Strips(width)
        threads, count, column, part = strips.threads, strips.vectors, strips.column, STRIP + LANES
        load, add = vectors(width, count).load, _adder(strips, 1)
        last, room = width * threads * (count - 1) + width, 2 * part

        def kernel(length: Any, x: Any, number: Any, sums: Any) -> None:
            """A block for each tile; terms are added as float64, so they wait as that."""
            terms = cuda.shared.array(room, types.float64)
            lanes = cuda.shared.array(LANES, types.float64)
            t, tile = cuda.threadIdx.x, np.int64(cuda.blockIdx.x)
            left = min(length - tile * TILE, TILE)
            data = moved(x, tile * TILE)
            if t < LANES:
                lanes[t] = 0
            for strip in range((left + STRIP - 1) // STRIP):
                e, base = strip * STRIP + t * width, COUNT(strip % 2 * part + t)
                if e + last <= left:
                    found = load(data, COUNT(e), COUNT(width * threads))
                    for u in range(count):
                        for k in range(width):
                            at_term = COUNT(base + COUNT(u * threads + k * column))
                            terms[at_term] = np.float64(element(each(found, u * width + k), number))
                else:
                    for u in range(count):
                        for k in range(width):
                            i = e + u * (width * threads) + k
                            if i < left:
                                at_term = COUNT(base + COUNT(u * threads + k * column))
                                terms[at_term] = np.float64(element(each(data, i), number))
                cuda.syncthreads()
                add(t, strip, min(left - strip * STRIP, STRIP), terms, lanes)
            _fold(t, lanes, 1, 1)
            if t == 0:
                sums[tile] = lanes[0]

        number = types.float64 if dtypes[0] == np.float64 else types.float32
        data = types.Tuple(list(map(pointer, dtypes)))
        return kernel, (types.int64, data, number, types.CPointer(types.float64))
