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

from npquant.cpu import strided
from npquant.cpu.lanes import LANES, add_terms, folded
from npquant.cpu.lowered import called
from npquant.cpu.memory import Borrowed
from npquant.cpu.target import PARALLEL_FROM, Kernel, Types, array_type, compiled, threads
from npquant.cpu.walk import channel_pieces
from npquant.formulas import histogram as f
from npquant.formulas.base import clamp
from npquant.formulas.qparams import affine_qparams, symmetric_qparams
from npquant.layout import Granularity

Array = np.ndarray[Any, Any]

#: Elements that get their bins before they are counted.
STRIP = 1024
#: Tables that are counted into in turn.
TABLES = 4
#: Channels of a block, where they lie side by side: a cache line of float32.
BLOCK = 16
#: A part has fewer elements than an int32 counts.
LONGEST = 1 << 30


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
        def runs(
            begin: Any, end: Any, channels: Any, inner: Any, count: Any, parts: Any, x: Any,
            low: Any, high: Any, counts: Any,
        ) -> None:  # fmt: skip
            """Tasks (channel, part)."""
            bins = counts.shape[1]
            width = bins + 1
            places = np.empty(STRIP, np.int32)
            tables = np.zeros(TABLES * width, np.int32)
            for task in range(begin, end):
                c = task // parts
                part = task - c * parts
                p = parameters(low[c], high[c], bins)
                e, last = count * part // parts, count * (part + 1) // parts
                row = e // inner
                i = e - row * inner
                while e < last:
                    m = min(inner - i, last - e, STRIP)
                    base = np.uintp((row * channels + c) * inner + i)
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
                    e += m
                    i += m
                    if i == inner:
                        row += 1
                        i = 0
                for t in range(TABLES):
                    table = tables[t * width : t * width + bins]
                    for k in range(bins):
                        counts[task, k] += table[k]
                tables[:] = 0

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

        self._runs = Kernel(runs, f"{place.__name__}_runs", _count_signature, 4)
        self._beside = Kernel(beside, f"{place.__name__}_beside", _count_signature, 4)

    def __call__(
        self, granularity: Granularity, x: Array, low: Array, high: Array, counts: Array
    ) -> None:
        """Add to `counts`, int64 of shape (channels, bins).

        `low` and `high` are what the parameters of each channel are made of.
        """
        for layout, some, _, (flat,) in channel_pieces(
            granularity, (x,), (), 1, ordered=False, pairs=True
        ):
            channels, inner = layout
            n = flat.size
            count, key = n // channels, (strided.key(flat), low.dtype)
            if inner == 1 and channels > 1:
                args = (channels, inner, count, 1, flat, low[some], high[some], counts[some])
                self._beside(-(-channels // BLOCK), n, args, key)
                continue
            parts = -(-count // LONGEST)
            if n * self._runs.work >= PARALLEL_FROM and channels < 4 * threads():
                parts = max(parts, threads())
            part = counts[some]
            into = part if parts == 1 else np.zeros((channels * parts, counts.shape[1]), np.int64)
            args = (channels, inner, count, parts, flat, low[some], high[some], into)
            self._runs(channels * parts, n, args, key)
            if parts > 1:
                part += into.reshape(channels, parts, -1).sum(axis=1)


def _count_signature(x: Any, bound: Any) -> Types:
    bounds, counts = array_type(bound), _COUNTS
    return (types.intp, types.intp, types.intp, types.intp, array_type(x), bounds, bounds, counts)


count_linear = Count(f.linear_bins, f.linear_bin)
count_doubling = Count(f.doubling_bins, f.doubling_bin)


# --- PyTorch's histogram observer -------------------------------------------------------------


@called
def bin_of_part(edges: Any, bins: Any, middle: Any) -> Any:
    """The new bin that the middle of a part is in.

    By torch.bucketize's own search: where steps are subnormal numbers, edges may not ascend.
    """
    first, last = 0, bins + 1
    while first < last:
        half = first + (last - first) // 2
        if edges[half] > middle:
            last = half
        else:
            first = half + 1
    return min(max(first - 1, 0), bins - 1)


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


_FLOATS = array_type(np.dtype(np.float32))
_INTEGERS = array_type(np.dtype(np.int64))
_respread_call = compiled(_respread, lambda _: (_FLOATS, *[types.float32] * 4, types.intp, _FLOATS))


def respread(
    histogram: Array, low: float, high: float, new_low: float, new_high: float, parts: int,
    new: Array,
) -> None:  # fmt: skip
    """Add a float32 histogram of one range to that of a wider one, by `parts` of each bin."""
    _respread_call[None](histogram, low, high, new_low, new_high, parts, new)


@called
def _cascade(x: Any, first: Any, stride: Any, rows: Any) -> Any:
    """torch.sum's order for one accumulator: what a level has gathered goes up one in turn."""
    power = 0
    while (1 << power) < rows:
        power += 1
    power = max(4, power // 4)
    step = 1 << power
    zero = np.float32(0)
    lowest = second = third = top = zero
    i = 0
    while i + step <= rows:
        for _ in range(step):
            lowest += x[first + i * stride]
            i += 1
        second += lowest
        lowest = zero
        if i & ((step - 1) << power) == 0:
            third += second
            second = zero
            if i & ((step - 1) << (2 * power)) == 0:
                top += third
                third = zero
    while i < rows:
        lowest += x[first + i * stride]
        i += 1
    return lowest + second + third + top


@called
def _row_sum(x: Any, first: Any, stride: Any, rows: Any) -> Any:
    """Four accumulators side by side; what is left over goes to the first."""
    quarter = rows // 4
    total = _cascade(x, first, 4 * stride, quarter)
    for i in range(quarter * 4, rows):
        total += x[first + i * stride]
    for k in range(1, 4):
        total += _cascade(x, first + k * stride, 4 * stride, quarter)
    return total


@called
def torch_sum(x: Any, n: Any) -> Any:
    """The bits of torch.sum of `n` float32 on one thread: eight lanes of four accumulators."""
    total = np.float32(0)
    if n < 8:
        return total + _row_sum(x, 0, 1, n)
    for i in range(n // 8 * 8, n):
        total += x[i]
    for lane in range(8):
        total += _row_sum(x, lane, 8, n // 8)
    return total


@called
def _clipping_error(
    histogram: Any, bins: Any, widths: Any, start: Any, codes: Any, errors: Any, worker: Any
) -> Any:
    """The squared error of codes from bin `start` on."""
    width, step, half = widths
    w, s, h, last = np.float32(width), np.float32(step), np.float32(half), np.float32(codes - 1)
    for i in range(bins):
        errors[i] = f.clip_error(histogram[i], i, start, w, s, h, last)
    return torch_sum(errors, bins)


@called
def search_of_ends(
    histogram: Any, bins: Any, low: Any, high: Any, codes: Any, cumulative: Any, errors: Any,
    bounds: Any, clipping_error: Any, worker: Any,
) -> None:  # fmt: skip
    """HistogramObserver's search for the range whose codes have the least squared error.

    `cumulative` and `errors` have room for all bins. ``clipping_error(histogram, bins, widths,
    start, codes, errors, worker)`` may share the work with others that search the same.
    """
    total = np.float64(torch_sum(histogram, bins))
    running = np.float64(0)
    for i in range(bins):
        running += np.float64(histogram[i])
        cumulative[i] = np.float32(running)
    alpha, beta = np.float64(0), np.float64(1)
    start, end = 0, bins - 1
    least = np.float32(np.inf)
    while alpha < beta:
        left, right = start, end
        while left < end and cumulative[left] < f.quantile_count(alpha + STEP, total):
            left += 1
        while right > start and cumulative[right] > f.quantile_count(beta - STEP, total):
            right -= 1
        if left - start > end - right:
            new_start, new_end, alpha = left, end, alpha + STEP
        else:
            new_start, new_end, beta = start, right, beta - STEP
        if new_start == start and new_end == end:
            continue
        widths = f.clip_widths(low, high, bins, new_end - new_start + 1, codes)
        error = np.float32(0)
        if widths[1] != 0:
            error = clipping_error(histogram, bins, widths, new_start, codes, errors, worker)
        if error > least:
            break
        least, start, end = error, new_start, new_end
    bounds[0] = f.bin_edge(low, high, bins, start)
    bounds[1] = f.bin_edge(low, high, bins, end + 1)


def _clip_linear(histogram: Any, low: Any, high: Any, codes: Any, bounds: Any) -> None:
    bins = histogram.size
    cumulative, errors = np.empty(bins, np.float32), np.empty(bins, np.float32)
    search_of_ends(
        histogram, bins, low, high, codes, cumulative, errors, bounds, _clipping_error, 0
    )


#: How far a step of the search moves a quantile.
STEP = 1e-5
_clip_linear_call = compiled(
    _clip_linear, lambda _: (_FLOATS, types.float32, types.float32, types.int64, _FLOATS)
)


def clip_linear(histogram: Array, low: float, high: float, codes: int, bounds: Array) -> None:
    """Write the two ends of the range that HistogramObserver's search finds to `bounds`."""
    _clip_linear_call[None](histogram, low, high, codes, bounds)


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


# A search is of one channel: its bins, how many, and the width of one, its extremes, the bounds of
# the codes and the zero point of a symmetric scheme, and a number of the method. `rooms` are arrays
# of integers (three for half of the bins and one more) and of floats (two for all bins and LANES
# more). ``error(counts, first, n, rooms, low, high, lo, hi, middle, eps, choose, worker)`` is the
# squared error of a range; it may share the work with others that search the same.


@called
def _total(counts: Any, bins: Any) -> Any:
    total = 0
    for i in range(bins):
        total += counts[i]
    return total


@called
def _place_of_rank(counts: Any, bins: Any, edge: Any, width: Any, rank: Any) -> Any:
    """Where the value of a rank lies; the first bin begins at `edge`."""
    below = 0
    for i in range(bins):
        if counts[i] > 0 and below + counts[i] >= rank:
            return f.inside_bin(edge + width * i, width, rank, below, counts[i])
        below += counts[i]
    return edge + width * bins


@called
def _magnitudes(counts: Any, bins: Any, sizes: Any) -> Any:
    """Write the bins of the absolute values; how many there are."""
    half = bins // 2
    for i in range(half):
        sizes[i] = counts[half + i] + counts[half - 1 - i]
    return half


@called
def percentile(
    counts: Any, bins: Any, width: Any, least: Any, greatest: Any, lo: Any, hi: Any, middle: Any,
    option: Any, rooms: Any, error: Any, worker: Any,
) -> Any:  # fmt: skip
    """From the percentile to its counterpart."""
    total, edge = _total(counts, bins), f.doubling_edge(width, bins, 0)
    low = _place_of_rank(counts, bins, edge, width, f.percentile_rank(total, 100 - option))
    high = _place_of_rank(counts, bins, edge, width, f.percentile_rank(total, option))
    return low, high


@called
def percentile_symmetric(
    counts: Any, bins: Any, width: Any, least: Any, greatest: Any, lo: Any, hi: Any, middle: Any,
    option: Any, rooms: Any, error: Any, worker: Any,
) -> Any:  # fmt: skip
    """The percentile of the absolute values."""
    sizes = rooms[0]
    half = _magnitudes(counts, bins, sizes)
    rank = f.percentile_rank(_total(sizes, half), option)
    reach = _place_of_rank(sizes, half, 0.0, width, rank)
    return -reach, reach


@called
def _filled(counts: Any, bins: Any, width: Any, least: Any, greatest: Any, edges: Any) -> Any:
    """The first bin that holds something, and how many are from it to the last.

    Their edges in the range are written.
    """
    first, last = 0, bins - 1
    while counts[first] == 0 and first < last:
        first += 1
    while counts[last] == 0 and last > first:
        last -= 1
    for i in range(last - first + 2):
        edges[i] = clamp(f.doubling_edge(width, bins, first + i), least, greatest)
    return first, last - first + 1


@called
def codes_of(low: Any, high: Any, lo: Any, hi: Any, middle: Any, eps: Any, choose: Any) -> Any:
    """The scale for the range low..high, and the least and the greatest code without zero point."""
    s = np.float32(0)
    scale, z = choose(np.float32(low), np.float32(high), lo, hi, np.float32(eps), middle, s)
    return np.float64(scale), np.float64(lo - z), np.float64(hi - z)


@called
def _squared_error(
    counts: Any, first: Any, n: Any, rooms: Any, low: Any, high: Any, lo: Any, hi: Any, middle: Any,
    eps: Any, choose: Any, worker: Any,
) -> Any:  # fmt: skip
    """The squared error of quantizing what is held, with the qparams of the range low..high."""
    scale, least, greatest = codes_of(low, high, lo, hi, middle, eps, choose)
    held, edges, lanes = counts[first : first + n], rooms[3], np.empty(LANES)
    terms = rooms[4]
    for i in range(np.uintp(n)):
        terms[i] = f.squared_error_of_bin(held[i], edges[i], edges[i + 1], scale, least, greatest)
    lanes[:] = 0
    add_terms(lanes, 0, (terms,), 0, 0, n)
    return folded(lanes, 0, (terms,))[0]


#: Ends of a range are tried at so many fractions of it.
FRACTIONS = 100


@called
def mse(
    counts: Any, bins: Any, width: Any, least: Any, greatest: Any, lo: Any, hi: Any, middle: Any,
    option: Any, rooms: Any, error: Any, worker: Any,
) -> Any:  # fmt: skip
    """Both ends at once, then each in turn until neither moves; of equals the widest."""
    first, held = _filled(counts, bins, width, least, greatest, rooms[3])
    i = j = FRACTIONS
    best = np.inf
    for n in range(FRACTIONS, 0, -1):
        found = error(
            counts, first, held, rooms, f.shrunk(least, n, FRACTIONS),
            f.shrunk(greatest, n, FRACTIONS), lo, hi, middle, option, affine_qparams, worker,
        )  # fmt: skip
        if found < best:
            best, i, j = found, n, n
    moved = True
    while moved:
        moved = False
        for end in range(2):
            for n in range(FRACTIONS, 0, -1):
                u, v = (n, j) if end == 0 else (i, n)
                found = error(
                    counts, first, held, rooms, f.shrunk(least, u, FRACTIONS),
                    f.shrunk(greatest, v, FRACTIONS), lo, hi, middle, option, affine_qparams,
                    worker,
                )  # fmt: skip
                if found < best:
                    best, i, j, moved = found, u, v, True
    return f.shrunk(least, i, FRACTIONS), f.shrunk(greatest, j, FRACTIONS)


@called
def mse_symmetric(
    counts: Any, bins: Any, width: Any, least: Any, greatest: Any, lo: Any, hi: Any, middle: Any,
    option: Any, rooms: Any, error: Any, worker: Any,
) -> Any:  # fmt: skip
    """The same of one end; the other is as far from zero."""
    first, held = _filled(counts, bins, width, least, greatest, rooms[3])
    whole = max(-least, greatest)
    reach, best = whole, np.inf
    for n in range(FRACTIONS, 0, -1):
        tried = f.shrunk(whole, n, FRACTIONS)
        found = error(
            counts, first, held, rooms, -tried, tried, lo, hi, middle, option, symmetric_qparams,
            worker,
        )  # fmt: skip
        if found < best:
            best, reach = found, tried
    return -reach, reach


@called
def _least_divergence(half: Any, levels: Any, rooms: Any) -> Any:
    """How many bins of the absolute values to keep, of at least `levels`; of equals the most."""
    sizes, below, filled, entropy = rooms[0], rooms[1], rooms[2], rooms[3]
    top = half
    while top > 0 and sizes[top - 1] == 0:
        top -= 1
    below[0] = filled[0] = 0
    entropy[0] = 0.0
    for i in range(top):
        below[i + 1] = below[i] + sizes[i]
        filled[i + 1] = filled[i] + (sizes[i] > 0)
        entropy[i + 1] = entropy[i] + f.plogp(sizes[i])
    total = below[top]
    chosen, best = top, np.inf
    for kept in range(levels, top + 1):
        clipped = total - below[kept]
        cross = 0.0
        for level in range(levels):
            first, last = level * kept // levels, (level + 1) * kept // levels
            inside, bins = below[last] - below[first], filled[last] - filled[first]
            if level < levels - 1:
                cross += f.expanded(inside, inside, bins) if inside > 0 else 0.0
            elif inside + clipped > 0:
                # What is clipped belongs to the last bin of P, and not to Q.
                bins += sizes[kept - 1] == 0 and clipped > 0
                cross += f.expanded(inside + clipped, inside, bins)
        # One bin says nothing of a shape; nor is most of what was seen an outlier.
        if clipped == 0 or (filled[kept] > 1 and clipped <= below[kept]):
            p = entropy[kept - 1] + f.plogp(sizes[kept - 1] + clipped)
            found = f.divergence(p, cross, total, below[kept])
            if found <= best:
                chosen, best = kept, found
    return chosen


@called
def entropy(
    counts: Any, bins: Any, width: Any, least: Any, greatest: Any, lo: Any, hi: Any, middle: Any,
    option: Any, rooms: Any, error: Any, worker: Any,
) -> Any:  # fmt: skip
    """Values on one side of zero have all codes for themselves."""
    levels = hi - lo + 1 if least >= 0 or greatest <= 0 else (hi - lo + 1) // 2
    half = _magnitudes(counts, bins, rooms[0])
    reach = width * _least_divergence(half, levels, rooms)
    return -reach, reach


@called
def entropy_symmetric(
    counts: Any, bins: Any, width: Any, least: Any, greatest: Any, lo: Any, hi: Any, middle: Any,
    option: Any, rooms: Any, error: Any, worker: Any,
) -> Any:  # fmt: skip
    """The same, with half of the codes for each side."""
    half = _magnitudes(counts, bins, rooms[0])
    reach = width * _least_divergence(half, (hi - lo + 1) // 2, rooms)
    return -reach, reach


class Clip:
    """The counts of each channel -> its range, within its extremes.

    Parameters
    ----------
    search : callable
        One of the searches above: ``-> (low, high)``.
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
                    option, rooms, _squared_error, 0,
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
    width, integer = array_type(np.dtype(np.float64)), types.int64
    return (_COUNTS, width, _FLOATS, _FLOATS, integer, integer, integer, types.float64,
            _FLOATS, _FLOATS)  # fmt: skip


clip_percentile = Clip(percentile)
clip_percentile_symmetric = Clip(percentile_symmetric)
clip_mse = Clip(mse)
clip_mse_symmetric = Clip(mse_symmetric)
clip_entropy = Clip(entropy)
clip_entropy_symmetric = Clip(entropy_symmetric)
