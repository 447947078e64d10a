"""Counting values into bins, and the ranges that are chosen from the counts.

A channel's elements are cut into parts, and a task is one of them. Elements of a strip get their
bins in a vectorised loop and are counted in a second one, into a few tables in turn: to increment
one place twice in a row would wait for the store before. Counts are integers, so neither the parts
nor the threads nor the layout change them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types

from npquant.cpu import searches, strided
from npquant.cpu.borrowed import Borrowed, keep
from npquant.cpu.channels import as_they_lie, by_view, channel_pieces
from npquant.cpu.lowered import called
from npquant.cpu.searches import bin_of_part, search_of_ends
from npquant.cpu.strided import VIEWS, lend, long_row, room, taken, up_to_row
from npquant.cpu.target import PARALLEL_FROM, Function, Kernel, Types, array_type, compiled, threads
from npquant.cpu.walk import PIECE
from npquant.dtypes import float32, float64, int64
from npquant.formulas import histogram as f
from npquant.formulas.base import clamp
from npquant.layout import LANES, TILE, Granularity

Array = np.ndarray[Any, Any]

#: Elements that get their bins before they are counted.
STRIP = 1024
#: Tables that are counted into in turn.
TABLES = 4
#: Channels of a block, where they lie side by side: a cache line of float32.
BLOCK = 16
#: A part has fewer elements than an int32 counts.
LONGEST = 1 << 30


def _count_of(place: Function) -> Function:
    """What counts some elements of a channel into the tables, one after another."""

    @called
    def count(x: Any, begin: Any, n: Any, p: Any, places: Any, tables: Any) -> None:
        width = len(tables) // TABLES
        for start in range(0, n, STRIP):
            m = min(n - start, STRIP)
            base = np.uintp(begin + start)
            for k in range(np.uintp(m)):
                places[k] = place(x[base + k], p)
            whole = m // TABLES * TABLES
            for k in range(0, whole, TABLES):
                tables[np.uintp(places[k])] += 1
                tables[np.uintp(width + places[k + 1])] += 1
                tables[np.uintp(2 * width + places[k + 2])] += 1
                tables[np.uintp(3 * width + places[k + 3])] += 1
            for k in range(whole, m):
                tables[np.uintp(places[k])] += 1

    return count  # type: ignore[no-any-return]


@called
def _added(tables: Any, counts: Any, task: Any) -> None:
    """Add the tables to the counts of a task; then they are empty again."""
    bins = counts.shape[1]
    for t in range(TABLES):
        first = np.uintp(t * (bins + 1))
        for k in range(np.uintp(bins)):
            counts[task, k] += tables[first + k]
    tables[:] = 0


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
        self._runs, self._apart = _of_channels(parameters, place)
        self._beside = _of_channels_side_by_side(parameters, place)

    def __call__(
        self, granularity: Granularity, x: Array, low: Array, high: Array, counts: Array
    ) -> None:
        """Add to `counts`, int64 of shape (channels, bins).

        `low` and `high` are what the parameters of each channel are made of.
        """
        apart = x.size > PIECE and as_they_lie(granularity, x)[0] is None
        if apart and (seen := by_view(granularity, x)) is not None:
            views, memory = seen
            lying = views, x.size // granularity.channels
            self._in_parts(self._apart, x.dtype, lying, x.size, memory, low, high, counts)
            return
        for layout, some, _, (flat,) in channel_pieces(
            granularity, (x,), (), 1, ordered=False, pairs=True
        ):
            channels, inner = layout
            n, kind = flat.size, strided.key(flat)
            runs, ends = (channels, inner, n // channels), (low[some], high[some])
            if inner == 1 and channels > 1:
                args = (*runs, 1, flat, *ends, counts[some])
                self._beside(-(-channels // BLOCK), n, args, (kind, low.dtype))
                continue
            self._in_parts(self._runs, kind, runs, n, flat, *ends, counts[some])

    def _in_parts(
        self, kernel: Kernel, kind: Any, lying: tuple[Any, ...], n: int, x: Array, low: Array,
        high: Array, counts: Array,
    ) -> None:  # fmt: skip
        """Add to `counts` of `n` elements, which are `lying` so, each channel in some parts."""
        channels, bins = counts.shape
        parts = -(-n // channels // LONGEST)
        if n * kernel.work >= PARALLEL_FROM and channels < 4 * threads():
            # Tables of fewer bytes than there are elements, or to add them takes longest.
            some = min(threads(), -(-4 * threads() // channels), n // (8 * channels * bins))
            parts = max(parts, some)
        into = counts if parts == 1 else np.zeros((channels * parts, bins), np.int64)
        args = (*lying, parts, x, low, high, into)
        kernel(channels * parts, n, args, (kind, low.dtype))
        if parts > 1:
            counts += into.reshape(channels, parts, bins).sum(axis=1)


def _of_channels(parameters: Function, place: Function) -> tuple[Kernel, Kernel]:
    """Of flat data, and of data that are not, what counts a part of a channel after another."""
    count_some = _count_of(place)

    def runs(
        begin: Any, end: Any, channels: Any, inner: Any, count: Any, parts: Any, x: Any,
        low: Any, high: Any, counts: Any,
    ) -> None:  # fmt: skip
        """Tasks (channel, part)."""
        bins = counts.shape[1]
        places = np.empty(STRIP, np.int32)
        tables = np.zeros(TABLES * (bins + 1), np.int32)
        for task in range(begin, end):
            c = task // parts
            part = task - c * parts
            p = parameters(low[c], high[c], bins)
            e, last = count * part // parts, count * (part + 1) // parts
            row = e // inner
            i = e - row * inner
            while e < last:
                m = min(inner - i, last - e)
                count_some(x, (row * channels + c) * inner + i, m, p, places, tables)
                e += m
                row += 1
                i = 0
            _added(tables, counts, task)

    def apart(
        begin: Any, end: Any, views: Any, count: Any, parts: Any, x: Any, low: Any, high: Any,
        counts: Any,
    ) -> None:  # fmt: skip
        """The same of data that are not flat."""
        bins, long = counts.shape[1], long_row(x, None)
        places = np.empty(STRIP, np.int32)
        tables = np.zeros(TABLES * (bins + 1), np.int32)
        made = room(x, TILE)
        packed = lend(made)
        for task in range(begin, end):
            c = task // parts
            part = task - c * parts
            p = parameters(low[c], high[c], bins)
            e, last = c * count + count * part // parts, c * count + count * (part + 1) // parts
            while e < last:
                m = up_to_row(views, e, min(last - e, TILE), long)
                u = taken(x, views, 0, e, m, packed, None)
                count_some(u, 0, m, p, places, tables)
                e += m
            _added(tables, counts, task)
        keep(made)

    name = place.__name__
    return (
        Kernel(runs, f"{name}_runs", _count_signature, 4),
        Kernel(apart, f"{name}_apart", _apart_signature, 4),
    )


def _of_channels_side_by_side(parameters: Function, place: Function) -> Kernel:
    def beside(
        begin: Any, end: Any, channels: Any, inner: Any, count: Any, parts: Any, x: Any,
        low: Any, high: Any, counts: Any,
    ) -> None:  # fmt: skip
        """Tasks (block of channels), the channels side by side; inner is 1."""
        bins = counts.shape[1]
        places = np.empty(BLOCK, np.int32)
        for task in range(begin, end):
            first = task * BLOCK
            width = min(BLOCK, channels - first)
            lows, highs = low[first : first + width], high[first : first + width]
            for row in range(count):
                base = np.uintp(row * channels + first)
                for k in range(np.uintp(width)):
                    places[k] = place(x[base + k], parameters(lows[k], highs[k], bins))
                for k in range(width):
                    if places[k] < bins:
                        counts[first + k, places[k]] += 1

    return Kernel(beside, f"{place.__name__}_beside", _count_signature, 4)


def _count_signature(x: Any, bound: Any) -> Types:
    bounds, counts = array_type(bound), _COUNTS
    return (types.intp, types.intp, types.intp, types.intp, array_type(x), bounds, bounds, counts)


def _apart_signature(x: Any, bound: Any) -> Types:
    return VIEWS, types.intp, *_count_signature(x, bound)[3:]


count_linear = Count(f.linear_bins, f.linear_bin)
count_doubling = Count(f.doubling_bins, f.doubling_bin)


# --- PyTorch's histogram observer -------------------------------------------------------------


def _respread(
    histogram: Any, low: Any, high: Any, new_low: Any, new_high: Any, parts: Any, new: Any
) -> None:
    """Parts of the old bins, each to the new bin that its middle is in."""
    bins = histogram.size
    edges = np.empty(bins + 1, np.float32)
    for i in range(bins + 1):
        edges[i] = f.linspace(new_low, new_high, bins + 1, i)
    for i in range(bins * parts):
        middle = f.middle_of_part(low, high, bins * parts, i)
        new[bin_of_part(edges, bins, middle)] += f.share(histogram[i // parts], parts)


_FLOATS = array_type(float32)
_INTEGERS = array_type(int64)
_respread_call = compiled(_respread, lambda _: (_FLOATS, *[types.float32] * 4, types.intp, _FLOATS))


def respread(
    histogram: Array, low: float, high: float, new_low: float, new_high: float, parts: int,
    new: Array,
) -> None:  # fmt: skip
    """Add a float32 histogram of one range to that of a wider one, by `parts` of each bin."""
    _respread_call[None](histogram, low, high, new_low, new_high, parts, new)


_search_of_ends = compiled(
    search_of_ends, lambda _: (_FLOATS, types.float32, types.float32, types.int64, _FLOATS)
)


def clip_linear(histogram: Array, low: float, high: float, codes: int, bounds: Array) -> None:
    """Write the two ends of the range that HistogramObserver's search finds to `bounds`."""
    _search_of_ends[None](histogram, low, high, codes, bounds)


# --- doubling histograms ----------------------------------------------------------------------


def _double(begin: Any, end: Any, shifts: Any, counts: Any) -> None:
    """Bins of each channel to those of a bound 2**shift times as large, in place."""
    half = counts.shape[1] // 2
    for c in range(begin, end):
        shift = min(shifts[c], 31)
        if shift == 0:
            continue
        for step in range(half):
            to = step >> shift
            above, below = counts[c, half + step], counts[c, half - 1 - step]
            counts[c, half + step] = 0
            counts[c, half - 1 - step] = 0
            counts[c, half + to] += above
            counts[c, half - 1 - to] += below


_COUNTS = Borrowed(types.int64, 2, "C")
_double_kernel = Kernel(_double, "double", lambda: (_INTEGERS, _COUNTS))


def double_range(shifts: Array, counts: Array) -> None:
    """Double the range of each channel of `counts` as often as `shifts` says, in place."""
    _double_kernel(shifts.size, counts.size, (shifts, counts), ())


class Clip:
    """The counts of each channel -> its range, within its extremes.

    Parameters
    ----------
    search : callable
        One of `searches` in a doubling histogram: ``-> (low, high)``.
    """

    def __init__(self, search: Callable[..., Any]) -> None:
        def channels(
            begin: Any, end: Any, counts: Any, width: Any, least: Any, greatest: Any,
            lo: Any, hi: Any, middle: Any, option: Any, low: Any, high: Any,
        ) -> None:  # fmt: skip
            bins = counts.shape[1]
            some, more = bins // 2 + 1, bins + LANES
            rooms = (
                np.empty(some, np.int64), np.empty(some, np.int64), np.empty(some, np.int64),
                np.empty(more), np.empty(more),
            )  # fmt: skip
            for c in range(begin, end):
                a, b = least[c], greatest[c]
                u, v = search(
                    counts[c], bins, width[c], np.float64(a), np.float64(b), lo, hi, middle,
                    option, rooms,
                )  # fmt: skip
                low[c] = clamp(np.float32(u), a, b)
                high[c] = clamp(np.float32(v), a, b)

        self._kernel = Kernel(channels, f"clip_{search.__name__}", _clip_signature, 4)

    def __call__(
        self, counts: Array, width: Array, least: Array, greatest: Array, bounds: tuple[int, int],
        middle: int, option: float, low: Array, high: Array,
    ) -> None:  # fmt: skip
        """Write the range of each channel to `low` and `high`."""
        args = (counts, width, least, greatest, *bounds, middle, option, low, high)
        self._kernel(least.size, counts.size, args, ())


def _clip_signature() -> Types:
    width, integer = array_type(float64), types.int64
    return (_COUNTS, width, _FLOATS, _FLOATS, integer, integer, integer, types.float64,
            _FLOATS, _FLOATS)  # fmt: skip


clip_percentile = Clip(searches.percentile)
clip_percentile_symmetric = Clip(searches.percentile_symmetric)
clip_mse = Clip(searches.mse)
clip_mse_symmetric = Clip(searches.mse_symmetric)
clip_entropy = Clip(searches.entropy)
clip_entropy_symmetric = Clip(searches.entropy_symmetric)
