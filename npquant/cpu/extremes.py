"""Minima and maxima of channels, which depend on no order.

A channel's elements, in C order of (outer, inner), are cut into tiles of TILE; a *task* is one tile
of one channel, or of channels that lie side by side.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import numpy as np
from numba import types

from npquant.cpu.borrowed import Borrowed, keep, width
from npquant.cpu.channels import as_they_lie, by_view, channel_pieces, rows_in_memory, turned
from npquant.cpu.fetching import beyond_second, fetch
from npquant.cpu.folded import folds, ranges_by_folding
from npquant.cpu.lines import AHEAD, FETCHED, FETCHED_SHORT, FETCHED_TO_READ
from npquant.cpu.lowered import called
from npquant.cpu.rooms import from_line
from npquant.cpu.storage import TYPES
from npquant.cpu.strided import LONGER_ROW, VIEWS, lend, long_row, room, taken, up_to_row
from npquant.cpu.strided import key as key_of
from npquant.cpu.target import GRAIN, PARALLEL_FROM, Function, Kernel, Types, array_type
from npquant.cpu.vectors import VECTORS, extremes_in_vectors, extremes_in_vectors_fetched
from npquant.formulas.base import extremes_of
from npquant.formulas.histogram import finite_key_above, finite_key_below
from npquant.layout import TILE, Granularity, Layout, Spans
from npquant.primitives import KEYS, item, key

Array = np.ndarray[Any, Any]

#: Columns whose minima and maxima are kept at once: those of some rows, if these are short.
WIDE = 1024
#: Extremes of tiles that are kept at a time, where channels lie side by side.
EXTREMES_KEPT = 1 << 15
#: A run of no more elements of a channel, again and again, is as many columns, if all of them are
#: at most so many: of more there would be one task.
SHORT, MOST = 64, EXTREMES_KEPT // 2


@cache
def _run(low: Function, high: Function, fetched: bool) -> Function:
    """The keys after a run of `n` more elements."""

    def run(x: Any, begin: Any, n: Any, lo: Any, hi: Any) -> Any:
        end = begin + n
        while begin < end:
            m = end - begin
            if fetched and beyond_second(x):
                m = min(m, FETCHED)
                fetch(x, begin + AHEAD, m)
            base = np.uintp(begin)
            for k in range(np.uintp(m)):
                lo, hi = min(lo, low(x[base + k])), max(hi, high(x[base + k]))
            begin += m
        return lo, hi

    def run_of_keys(x: Any, begin: Any, n: Any, lo: Any, hi: Any) -> Any:
        if n * width(x) > VECTORS:  # one more, as every second element is read in pairs
            if fetched and beyond_second(x):
                return extremes_in_vectors_fetched(x, begin, n, lo, hi)
            return extremes_in_vectors(x, begin, n, lo, hi)
        return run(x, begin, n, lo, hi)

    run = called(run)
    return called(run_of_keys) if low is high is key else run  # type: ignore[no-any-return]


def _runs_of(low: Function, high: Function, run_on: Function) -> Function:
    """The loop of tiles of channels."""

    def runs(
        begin: Any, end: Any, channels: Any, inner: Any, count: Any, x: Any,
        least: Any, greatest: Any,
    ) -> None:  # fmt: skip
        """Tasks (channel, tile): the least and the greatest key of each.

        Tiles that follow one another have those of all of them: to begin anew takes time.
        """
        tiles = least.shape[1]
        while begin < end:
            c = begin // tiles
            tile = begin - c * tiles
            some = min(tiles - tile, end - begin)
            left = min(count - tile * TILE, some * TILE)
            row = tile * TILE // inner
            i = tile * TILE - row * inner
            v = x[(row * channels + c) * inner + i]
            lo, hi = low(v), high(v)
            while left > 0:
                m = min(inner - i, left)
                lo, hi = run_on(x, (row * channels + c) * inner + i, m, lo, hi)
                left -= m
                row += 1
                i = 0
            for k in range(tile, tile + some):
                least[c, k], greatest[c, k] = lo, hi
            begin += some

    return runs


def _short_of(folded: Function) -> Function:
    """The loop of rows that are folded."""

    def short(begin: Any, end: Any, inner: Any, x: Any, least: Any, greatest: Any) -> None:
        """Tasks (row): the least and the greatest of each."""
        folded(x, begin, end - begin, inner, least, greatest, begin)

    return short


def _beside_of(low: Function, high: Function) -> Function:
    """The loop of channels that lie side by side."""

    def beside(
        begin: Any, end: Any, run: Any, beside: Any, rows: Any, x: Any,
        least: Any, greatest: Any,
    ) -> None:  # fmt: skip
        """Tasks (span, tile of so many rows): the least and the greatest key of every column.

        Some rows are seen as one, or a loop would be as short as a row. What is found lies as
        the columns do, a row for each tile.
        """
        tiles = least.shape[0]
        most = beside
        while 2 * most <= WIDE:
            most *= 2
        lo, hi = from_line(most, least), from_line(most, least)
        for task in range(begin, end):
            a = task // tiles
            tile = task - a * tiles
            n = (min(run, (tile + 1) * rows) - tile * rows) * beside
            width = most
            while width > n:
                width //= 2
            first = np.uintp((a * run + tile * rows) * beside)
            for k in range(np.uintp(width)):
                lo[k], hi[k] = low(x[first + k]), high(x[first + k])
            whole = width + (n - width) // (4 * width) * 4 * width
            by = np.uintp(width)
            for start in range(width, whole, 4 * width):
                base = first + np.uintp(start)
                for k in range(by):
                    p, q = x[base + k], x[base + by + k]
                    r, s = x[base + by + by + k], x[base + by + by + by + k]
                    lo[k] = min(lo[k], min(min(low(p), low(q)), min(low(r), low(s))))
                    hi[k] = max(hi[k], max(max(high(p), high(q)), max(high(r), high(s))))
            for start in range(whole, n, width):
                base = first + np.uintp(start)
                for k in range(np.uintp(min(width, n - start))):
                    lo[k] = min(lo[k], low(x[base + k]))
                    hi[k] = max(hi[k], high(x[base + k]))
            while width > beside:  # halves are folded
                width //= 2
                half = np.uintp(width)
                for k in range(half):
                    lo[k] = min(lo[k], lo[half + k])
                    hi[k] = max(hi[k], hi[half + k])
            column = np.uintp(a * beside)
            for c in range(np.uintp(beside)):
                least[tile, column + c], greatest[tile, column + c] = lo[c], hi[c]

    return beside


def _apart_of(low: Function, high: Function, run_on: Function) -> Function:
    """The loop of tiles of data that are not flat."""

    def apart(
        begin: Any, end: Any, views: Any, count: Any, x: Any, least: Any, greatest: Any
    ) -> None:
        """Tasks (channel, tile)."""
        tiles, long = least.shape[1], long_row(x, None)
        made = room(x, TILE)
        packed = lend(made)
        for task in range(begin, end):
            c = task // tiles
            tile = task - c * tiles
            first = c * count + tile * TILE
            stop = c * count + min(count, (tile + 1) * TILE)
            v = taken(x, views, 0, first, 1, packed, None)[0]
            lo, hi = low(v), high(v)
            while first < stop:
                m = up_to_row(views, first, stop - first, long)
                u = taken(x, views, 0, first, m, packed, None)
                lo, hi = run_on(u, 0, m, lo, hi)
                first += m
            least[c, tile], greatest[c, tile] = lo, hi
        keep(made)

    return apart


def _short_apart_of(folded: Function) -> Function:
    """The loop of rows that are folded, of data that are not flat."""

    def short_apart(
        begin: Any, end: Any, views: Any, inner: Any, x: Any, least: Any, greatest: Any
    ) -> None:
        """Tasks (row)."""
        some = GRAIN // inner
        made = room(x, some * inner)
        packed = lend(made)
        while begin < end:
            m = up_to_row(views, begin * inner, min(some, end - begin) * inner, LONGER_ROW)
            n = max(1, m // inner)  # a row may be several of memory
            u = taken(x, views, 0, begin * inner, n * inner, packed, None)
            folded(u, 0, n, inner, least, greatest, begin)
            begin += n
        keep(made)

    return short_apart


class Extremes:
    """x -> the least and the greatest element of each channel, in one pass.

    Parameters
    ----------
    low, high : callable
        ``low(x) -> key`` to find the least, and ``high(x) -> key`` to find the greatest of.
    fetched, fetched_short : bool
        Whether what comes next of an array beyond the caches is fetched: of long runs, and of rows
        that are short or data with gaps.
    """

    def __init__(
        self, low: Function, high: Function, fetched: bool = FETCHED_TO_READ,
        fetched_short: bool = FETCHED_SHORT,
    ) -> None:  # fmt: skip
        run_on, folded = _run(low, high, fetched), ranges_by_folding(fetched_short)
        name = f"extremes_{low.__name__}"
        self._runs = Kernel(_runs_of(low, high, run_on), f"{name}_runs", _extremes_signature)
        #: Of rows that are folded, of which the least and the greatest key are of one function.
        self.short: Any = None
        if low is high is key:
            self.short = Kernel(_short_of(folded), f"{name}_short", _short_signature)
            self._short_apart = Kernel(
                _short_apart_of(folded), f"{name}_short_apart", _short_apart_signature
            )
        self._apart = Kernel(
            _apart_of(low, high, _run(low, high, fetched_short)), f"{name}_apart", _apart_signature
        )
        self._beside = Kernel(_beside_of(low, high), f"{name}_beside", _beside_signature)

    def __call__(self, granularity: Granularity, x: Array) -> tuple[Array, Array]:
        dtype: Any = x.dtype
        kind = dtype if dtype.kind in "iu" else np.dtype(KEYS[dtype.itemsize])
        if x.size == 0:
            return np.empty(0, dtype), np.empty(0, dtype)
        order = rows_in_memory(granularity, x)
        if order is not None:
            x = x.transpose(order)
        channels = granularity.channels
        count = x.size // channels
        found, axes = as_they_lie(granularity, x)
        if isinstance(found, Layout) and channels > 1:
            inner = found.inner
            if inner < count and (inner == 1 or (inner <= SHORT and channels * inner <= MOST)):
                found = Spans(1, count // inner, channels * inner)
        flat = x if axes is None else x.transpose(axes)
        lo, hi = np.empty(channels, dtype), np.empty(channels, dtype)
        short = self.short is not None and folds(count)
        if isinstance(found, Layout) and found.inner == count and short:
            rows = flat.reshape(x.size)
            self.short(channels, x.size, (count, rows, lo, hi), (key_of(flat), dtype))
        elif short and found is None and (seen := by_view(granularity, x)) is not None:
            views, memory = seen
            self._short_apart(channels, x.size, (views, count, memory, lo, hi), (dtype, dtype))
        else:
            if isinstance(found, Spans):
                least, greatest = self._of_columns(found, flat, kind)
                least, greatest = least.reshape(channels, -1), greatest.reshape(channels, -1)
            else:
                least, greatest = self._by_tile(granularity, found, x, flat, kind)
            _of_tiles(channels, least.size, (least, greatest, lo, hi), (dtype, kind))
        if order is not None:
            back = tuple(np.argsort(order))
            lo, hi = (turned(v, x.shape, back).reshape(-1) for v in (lo, hi))
        return lo, hi

    def _by_tile(
        self, granularity: Granularity, found: Layout | None, x: Array, flat: Array, kind: Any
    ) -> tuple[Array, Array]:
        """The least and the greatest key of each tile of each channel."""
        count, dtype = x.size // granularity.channels, x.dtype
        shape = granularity.channels, -(-count // TILE)
        least, greatest = np.empty(shape, kind), np.empty(shape, kind)
        if found is not None:
            whole = *found, count, flat.reshape(x.size), least, greatest
            self._runs(least.size, x.size, whole, (key_of(flat), kind))
        elif (seen := by_view(granularity, x)) is not None:
            views, memory = seen
            self._apart(least.size, x.size, (views, count, memory, least, greatest), (dtype, kind))
        else:
            for layout, some, tiles, (part,) in channel_pieces(
                granularity, (x,), (), TILE, ordered=False
            ):
                lo, hi = least[some, tiles], greatest[some, tiles]
                args = *layout, part.size // layout.channels, part, lo, hi
                self._runs(lo.size, part.size, args, (dtype, kind))
        return least, greatest

    def _of_columns(self, spans: Spans, x: Array, kind: Any) -> tuple[Array, Array]:
        """The least and the greatest key of each column; columns lie side by side."""
        outer, run, beside = spans
        columns = outer * beside
        rows = max(-(-run // max(1, EXTREMES_KEPT // columns)), 4 * GRAIN // beside, 1)
        shape = -(-run // rows), columns
        least, greatest = np.empty(shape, kind), np.empty(shape, kind)
        args = run, beside, rows, x.reshape(x.size), least, greatest
        self._beside(outer * shape[0], x.size, args, (key_of(x), kind))
        if shape[0] > 1:
            least, greatest = least.min(0, keepdims=True), greatest.max(0, keepdims=True)
        return least.T, greatest.T


def _extremes_signature(dtype: Any, kind: Any) -> Types:
    keys = Borrowed(TYPES[kind], 2, "A")
    return types.intp, types.intp, types.intp, array_type(dtype), keys, keys


def _short_signature(dtype: Any, kind: Any) -> Types:
    return types.intp, array_type(dtype), array_type(kind), array_type(kind)


def _short_apart_signature(*dtypes: Any) -> Types:
    return VIEWS, *_short_signature(*dtypes)


def _beside_signature(dtype: Any, kind: Any) -> Types:
    return *_extremes_signature(dtype, kind)[:4], *_keys_signature(kind)


def _apart_signature(dtype: Any, kind: Any) -> Types:
    return VIEWS, types.intp, *_extremes_signature(dtype, kind)[3:]


#: NaN where there is one.
of_any_size = Extremes(key, key)

#: Of what is finite in float32; +inf and -inf where nothing is.
minmax_finite = Extremes(finite_key_above, finite_key_below)


_run_of_keys = _run(key, key, FETCHED_TO_READ)


@called
def range_of_run(x: Any, begin: Any, n: Any) -> Any:
    """The least and the greatest of `n` elements from `begin` on."""
    v = x[begin]
    low, high = _run_of_keys(x, begin, n, key(v), key(v))
    return extremes_of(low, high, v)


@called
def ranges_of_rows(
    x: Any, row: Any, rows: Any, inner: Any, least: Any, greatest: Any, to: Any
) -> None:
    """The least and the greatest element of `rows` rows from `row` on, from the place `to` on."""
    for r in range(rows):
        least[to + r], greatest[to + r] = range_of_run(x, (row + r) * inner, inner)


#: The same, by whether rows are folded together.
ranges: Final = {False: ranges_of_rows, True: ranges_by_folding(FETCHED_SHORT)}


def _extremes_of_tiles(begin: Any, end: Any, least: Any, greatest: Any, lo: Any, hi: Any) -> None:
    """The keys of the tiles of a channel -> its two values."""
    for c in range(begin, end):
        a, b = least[c, 0], greatest[c, 0]
        for tile in range(1, least.shape[1]):
            a, b = min(a, least[c, tile]), max(b, greatest[c, tile])
        lo[c], hi[c] = extremes_of(a, b, item(lo))


def _tiles_signature(dtype: Any, kind: Any) -> Types:
    return *_keys_signature(kind), array_type(dtype), array_type(dtype)


def _keys_signature(kind: Any) -> Types:
    return (Borrowed(TYPES[kind], 2, "C"),) * 2


_of_tiles = Kernel(_extremes_of_tiles, "extremes_of_tiles", _tiles_signature)


#: Up to so many elements, one compiled call that goes from channel to channel is faster than
#: several that go along the memory: always, and where runs are of `RUN` elements. (Measured.)
ONE_CALL, ONE_CALL_OF_RUNS, RUN = 1 << 12, PARALLEL_FROM - 1, 16


@called
def range_of(x: Any, c: Any, channels: Any, inner: Any) -> Any:
    """The least and the greatest element of one channel."""
    a = b = key(x[c * inner])
    for row in range(c * inner, x.size, channels * inner):
        base = np.uintp(row)
        for k in range(np.uintp(inner)):
            i = key(x[base + k])
            a, b = min(a, i), max(b, i)
    return extremes_of(a, b, item(x))


def _ranges(
    begin: Any, end: Any, channels: Any, inner: Any, x: Any, least: Any, greatest: Any
) -> None:
    for c in range(begin, end):
        least[c], greatest[c] = range_of(x, c, channels, inner)


def _ranges_signature(dtype: Any) -> Types:
    x = array_type(dtype)
    return types.intp, types.intp, x, x, x


_small_ranges = Kernel(_ranges, "ranges", _ranges_signature)


def few(granularity: Granularity, n: int) -> bool:
    """Whether one call that goes from channel to channel is best for contiguous `n` elements."""
    return 0 < n <= (ONE_CALL_OF_RUNS if granularity.inner >= RUN else ONE_CALL)


def minmax(granularity: Granularity, x: Array) -> tuple[Array, Array]:
    """The least and the greatest element of each channel; of small arrays in one compiled call."""
    channels, inner, _ = granularity
    if not (few(granularity, x.size) and x.flags.carray):
        return of_any_size(granularity, x)
    dtype = x.dtype
    least, greatest = np.empty(channels, dtype), np.empty(channels, dtype)
    if folds(inner) and channels * inner == x.size:
        of_any_size.short.serial[dtype, dtype](0, channels, inner, x, least, greatest)
    else:
        _small_ranges.serial[(dtype,)](0, channels, channels, inner, x, least, greatest)
    return least, greatest
