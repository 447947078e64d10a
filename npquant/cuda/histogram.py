"""Counting values into bins, and the ranges that are chosen from the counts.

A block counts a part of a channel in shared memory and adds that to the counts; where there are
more bins than it has room for, or few elements to a bin, each element is added at once. Counts are
integers, so no order changes them. Ranges are searched by one block, whose threads take all steps
together and divide what costs most.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types

from npquant.cpu import searches
from npquant.cpu.searches import bin_of_part, codes_of, search_of_ends, torch_sum
from npquant.cuda.arrays import device
from npquant.cuda.reduce import RUNS, Shape, divided, parts_of, walked
from npquant.cuda.target import COUNT, SIMULATED, THREADS, Kernel, Types, cuda, pointer
from npquant.cuda.vectors import moved, vectors
from npquant.cuda.walk import pieces
from npquant.formulas import histogram as f
from npquant.formulas.base import clamp, formula
from npquant.layout import LANES, TILE, Granularity

if not SIMULATED:
    from npquant.cuda.target import intrinsic, overload

#: Bins that fit in the shared memory of a block, as int32.
ROOM = 1 << 13

#: Threads of a search.
SEARCHERS = 2 if SIMULATED else 256


def _add(counts: Any, i: Any, n: Any) -> None:
    """counts[i] += n, of a pointer to int64, by many threads at once."""
    cuda.atomic.add(counts, i, n)


if not SIMULATED:

    @intrinsic
    def _atomic_add(context: Any, counts: Any, i: Any, n: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            place = builder.gep(args[0], [args[1]])
            builder.atomic_rmw("add", place, args[2], "monotonic")
            return context.get_dummy_value()

        return types.void(counts, types.int64, types.int64), codegen

    @overload(_add)
    def _added(counts, i, n):
        return lambda counts, i, n: _atomic_add(counts, i, n)  # type: ignore[call-arg]


class Count:
    """x -> how many of each channel fall into each bin.

    Parameters
    ----------
    parameters : callable
        ``parameters(low, high, bins) -> p``, once a channel.
    place : callable
        ``place(x, p) -> bin``, or `bins` for what is not counted.
    """

    def __init__(self, parameters: Callable[..., Any], place: Callable[..., Any]) -> None:
        self._parameters, self._bin = parameters, place
        self.blocks = Kernel(self._make_blocks, f"{place.__name__}_blocks")
        self.elements = Kernel(self._make_elements, f"{place.__name__}_elements")

    def __call__(self, granularity: Granularity, x: Any, low: Any, high: Any, counts: Any) -> None:
        """Add to `counts`, int64 of shape (channels, bins).

        `low` and `high` are what the parameters of each channel are made of.
        """
        x, low, high, counts = map(device, (x, low, high, counts))
        if not x.size:
            return
        bins = counts.shape[1]
        for layout, (flat,) in pieces(granularity, (x,), ()):
            shape = Shape.of(layout, x.size)
            rest = (bins, flat.argument(), low.argument(), high.argument(), counts.argument())
            key, on = (x.dtype, low.dtype), x.stream()
            if bins > ROOM or shape.beside or shape.length < 2 * bins:
                each = (x.size, shape.channels, shape.inner, *rest)
                blocks = -(-x.size // THREADS)
                self.elements(blocks, THREADS, each, (*key, x.size >= 1 << 32), on)
            else:
                parts, span = parts_of(shape.length, shape.channels, max(TILE, 4 * bins))
                room = max(256, 1 << (bins - 1).bit_length())
                form = (min(shape.width(flat), 8), shape.single, room)
                args = (*shape.told, parts, span, *rest)
                self.blocks(shape.channels * parts, THREADS, args, (*key, *form), on)

    def _make_blocks(
        self, x: Any, bound: Any, width: int, single: bool, room: int
    ) -> tuple[Callable[..., None], Types]:
        parameters, bin_of, load = self._parameters, self._bin, vectors(width, 1).load
        begin_of, place_of = walked(single)

        def kernel(
            channels: Any, inner: Any, length: Any, parts: Any, span: Any, bins: Any, x: Any,
            low: Any, high: Any, counts: Any,
        ) -> None:  # fmt: skip
            """A block for each (channel, part)."""
            table = cuda.shared.array(room, types.int32)
            t, (c, part) = cuda.threadIdx.x, divided(cuda.blockIdx.x, parts)
            start = part * span
            left = min(length - start, span)
            begin, skip = begin_of(c, start, channels, inner)
            data = moved(x, begin)
            for k in range(t, bins, THREADS):
                table[k] = 0
            p = parameters(low[c], high[c], bins)
            cuda.syncthreads()
            for e in range(t * width, left, THREADS * width):
                if e + width <= left:
                    to = place_of(COUNT(skip + COUNT(e)), channels, inner)
                    found = load((moved(data, to),), COUNT(0), COUNT(0))
                    for k in range(width):
                        place = bin_of(found[0][k], p)
                        if place < bins:
                            cuda.atomic.add(table, place, 1)
                else:
                    for i in range(e, left):
                        to = place_of(COUNT(skip + COUNT(i)), channels, inner)
                        place = bin_of(data[to], p)
                        if place < bins:
                            cuda.atomic.add(table, place, 1)
            cuda.syncthreads()
            for k in range(t, bins, THREADS):
                if table[k] > 0:
                    _add(counts, c * bins + k, np.int64(table[k]))

        return kernel, (types.int64, RUNS, *[types.int64] * 4, *_count_types(x, bound))

    def _make_elements(self, x: Any, bound: Any, far: bool) -> tuple[Callable[..., None], Types]:
        parameters, bin_of = self._parameters, self._bin
        index = np.int64 if far else np.uint32

        def kernel(
            n: Any, channels: Any, inner: Any, bins: Any, x: Any, low: Any, high: Any, counts: Any
        ) -> None:
            """A thread for each element."""
            i = np.int64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
            if i < n:
                c = np.int64(index(index(i) // index(inner)) % index(channels))
                place = bin_of(x[i], parameters(low[c], high[c], bins))
                if place < bins:
                    _add(counts, c * bins + place, np.int64(1))

        return kernel, (*[types.int64] * 4, *_count_types(x, bound))


def _count_types(x: Any, bound: Any) -> Types:
    return pointer(x), pointer(bound), pointer(bound), types.CPointer(types.int64)


count_linear = Count(f.linear_bins, f.linear_bin)
count_doubling = Count(f.doubling_bins, f.doubling_bin)


# --- PyTorch's histogram observer -------------------------------------------------------------


def _make_respread() -> tuple[Callable[..., None], Types]:
    def kernel(
        bins: Any, parts: Any, histogram: Any, low: Any, high: Any, new_low: Any, new_high: Any,
        edges: Any, places: Any, new: Any,
    ) -> None:  # fmt: skip
        """A block; a thread adds to its bins alone, in the order of the parts."""
        t = cuda.threadIdx.x
        for i in range(t, bins + 1, SEARCHERS):
            edges[i] = f.linspace(new_low, new_high, bins + 1, i)
        cuda.syncthreads()
        for i in range(t, bins * parts, SEARCHERS):
            middle = f.middle_of_part(low, high, bins * parts, i)
            places[i] = bin_of_part(edges, bins, middle)
        cuda.syncthreads()
        for k in range(bins):
            part = f.share(histogram[k], parts)
            for i in range(k * parts, (k + 1) * parts):
                if places[i] % SEARCHERS == t:
                    new[places[i]] += part

    data = pointer(np.float32)
    return kernel, (
        types.int64, types.int64, data, *[types.float32] * 4, data, pointer(np.int32), data,
    )  # fmt: skip


_respread = Kernel(_make_respread, "respread")


def respread(
    histogram: Any, low: float, high: float, new_low: float, new_high: float, parts: int, new: Any
) -> None:
    """Add a float32 histogram of one range to that of a wider one, by `parts` of each bin."""
    old, to = device(histogram), device(new)
    bins = old.size
    edges, places = old.new((bins + 1,), np.float32), old.new((bins * parts,), np.int32)
    args = (
        bins, parts, old.argument(), low, high, new_low, new_high, edges.argument(),
        places.argument(), to.argument(),
    )  # fmt: skip
    _respread(1, SEARCHERS, args, (), old.stream())


def _make_clip_linear() -> tuple[Callable[..., None], Types]:
    @formula
    def clipping_error(
        histogram: Any, bins: Any, widths: Any, start: Any, codes: Any, errors: Any, t: Any
    ) -> Any:
        """As that of the CPU; each thread has some bins, and the first adds."""
        total = cuda.shared.array(1, types.float32)
        width, step, half = widths
        w, s, h, last = np.float32(width), np.float32(step), np.float32(half), np.float32(codes - 1)
        for i in range(t, bins, SEARCHERS):
            errors[i] = f.clip_error(histogram[i], i, start, w, s, h, last)
        cuda.syncthreads()
        if t == 0:
            total[0] = torch_sum(errors, bins)
        cuda.syncthreads()
        found = total[0]
        cuda.syncthreads()
        return found

    def kernel(
        bins: Any, codes: Any, histogram: Any, low: Any, high: Any, cumulative: Any, errors: Any,
        bounds: Any,
    ) -> None:  # fmt: skip
        """A block; all its threads take the same steps."""
        search_of_ends(
            histogram, bins, low, high, codes, cumulative, errors, bounds, clipping_error,
            cuda.threadIdx.x,
        )  # fmt: skip

    data = pointer(np.float32)
    return kernel, (
        types.int64, types.int64, data, types.float32, types.float32, data, data, data,
    )  # fmt: skip


_clip_linear = Kernel(_make_clip_linear, "clip_linear")


def clip_linear(histogram: Any, low: float, high: float, codes: int, bounds: Any) -> None:
    """Write the two ends of the range that HistogramObserver's search finds to `bounds`."""
    x, to = device(histogram), device(bounds)
    room = x.new((2, x.size), np.float32)
    args = (
        x.size, codes, x.argument(), low, high, room.argument(), room.argument(x.size),
        to.argument(),
    )  # fmt: skip
    _clip_linear(1, SEARCHERS, args, (), x.stream())


# --- doubling histograms ----------------------------------------------------------------------


def _make_double() -> tuple[Callable[..., None], Types]:
    def kernel(channels: Any, bins: Any, shifts: Any, counts: Any) -> None:
        """A thread for each channel and sign, from the middle outwards."""
        k = np.int64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        if k < 2 * channels:
            c = k // 2
            first, step = c * bins + bins // 2, np.int64(1)
            if k % 2:
                first, step = first - 1, -step
            shift = min(shifts[c], np.int64(31))
            if shift > 0:
                for i in range(bins // 2):
                    n = counts[first + i * step]
                    counts[first + i * step] = 0
                    counts[first + (i >> shift) * step] += n

    return kernel, (types.int64, types.int64, pointer(np.int64), pointer(np.int64))


_double = Kernel(_make_double, "double")


def double_range(shifts: Any, counts: Any) -> None:
    """Double the range of each channel of `counts` as often as `shifts` says, in place."""
    by, to = device(shifts), device(counts)
    channels, bins = to.shape
    args = (channels, bins, by.argument(), to.argument())
    _double(-(-2 * channels // THREADS), THREADS, args, (), to.stream())


# --- clip ranges from a doubling histogram ------------------------------------------------------


@formula
def _squared_error(
    counts: Any, first: Any, n: Any, rooms: Any, low: Any, high: Any, lo: Any, hi: Any, middle: Any,
    eps: Any, choose: Any, t: Any,
) -> Any:  # fmt: skip
    """As that of the CPU; each thread has some bins, and then some lanes."""
    lanes = cuda.shared.array(LANES, types.float64)
    scale, least, greatest = codes_of(low, high, lo, hi, middle, eps, choose)
    edges, terms = rooms[3], rooms[4]
    for i in range(t, n, SEARCHERS):
        terms[i] = f.squared_error_of_bin(
            counts[first + i], edges[i], edges[i + 1], scale, least, greatest
        )
    cuda.syncthreads()
    for lane in range(t, LANES, SEARCHERS):
        total = np.float64(0)
        for i in range(lane, n, LANES):
            total += terms[i]
        lanes[lane] = total
    cuda.syncthreads()
    if t == 0:
        h = LANES // 2
        while h > 0:
            for i in range(h):
                lanes[i] += lanes[i + h]
            h //= 2
    cuda.syncthreads()
    found = lanes[0]
    cuda.syncthreads()
    return found


class Clip:
    """The counts of each channel -> its range, within its extremes.

    Parameters
    ----------
    search : callable
        A search of npquant.cpu.searches.
    integers, floats : int
        How many rooms of either kind it needs.
    threads : int
        The threads that search together.
    """

    def __init__(
        self, search: Callable[..., Any], integers: int, floats: int, threads: int = 1
    ) -> None:
        self._search, self._rooms, self._threads = search, (integers, floats), threads
        self.kernel = Kernel(self._make, f"clip_{search.__name__}")

    def __call__(
        self, counts: Any, width: Any, least: Any, greatest: Any, bounds: tuple[int, int],
        middle: int, option: float, low: Any, high: Any,
    ) -> None:  # fmt: skip
        """Write the range of each channel to `low` and `high`."""
        x, *given = map(device, (counts, width, least, greatest))
        channels, bins = x.shape
        integers, floats = self._rooms
        some, more = bins // 2 + 1, bins + LANES
        rooms = (
            x.new((channels, integers, some), np.int64), x.new((channels, floats, more), np.float64)
        )  # fmt: skip
        args = (
            bins, x.argument(), *[a.argument() for a in given], *bounds, middle, option,
            *[a.argument() for a in (*rooms, *map(device, (low, high)))],
        )  # fmt: skip
        self.kernel(channels, self._threads, args, (), x.stream())

    def _make(self) -> tuple[Callable[..., None], Types]:
        search, (integers, floats) = self._search, self._rooms

        def kernel(
            bins: Any, counts: Any, width: Any, least: Any, greatest: Any, lo: Any, hi: Any,
            middle: Any, option: Any, whole: Any, real: Any, low: Any, high: Any,
        ) -> None:  # fmt: skip
            """A block for each channel."""
            c = np.int64(cuda.blockIdx.x)
            some, more = bins // 2 + 1, bins + LANES
            i, r = moved(whole, c * integers * some), moved(real, c * floats * more)
            rooms = i, moved(i, some), moved(i, 2 * some), r, moved(r, more)
            a, b = least[c], greatest[c]
            u, v = search(
                moved(counts, c * bins), bins, width[c], np.float64(a), np.float64(b), lo, hi,
                middle, option, rooms, _squared_error, cuda.threadIdx.x,
            )  # fmt: skip
            low[c] = clamp(np.float32(u), a, b)
            high[c] = clamp(np.float32(v), a, b)

        whole, real, data = map(pointer, (np.int64, np.float64, np.float32))
        return kernel, (
            types.int64, whole, real, data, data, types.int64, types.int64, types.int64,
            types.float64, whole, real, data, data,
        )  # fmt: skip


clip_percentile = Clip(searches.percentile, 0, 0)
clip_percentile_symmetric = Clip(searches.percentile_symmetric, 1, 0)
clip_mse = Clip(searches.mse, 0, 2, SEARCHERS)
clip_mse_symmetric = Clip(searches.mse_symmetric, 0, 2, SEARCHERS)
clip_entropy = Clip(searches.entropy, 3, 1)
clip_entropy_symmetric = Clip(searches.entropy_symmetric, 3, 1)
