"""Searches of histograms for a range or a bin, which kernels of histogram.py call."""

from __future__ import annotations

from typing import Any

import numpy as np

from npquant.cpu.lanes import add_terms, folded
from npquant.cpu.lowered import called
from npquant.formulas import histogram as f
from npquant.formulas.base import clamp
from npquant.formulas.qparams import affine_qparams, larger, symmetric_qparams
from npquant.layout import LANES

#: How far a step of the search moves a quantile.
STEP = 1e-5

#: Ends of a range are tried at so many fractions of it.
FRACTIONS = 100


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
def clipping_error(
    histogram: Any, bins: Any, widths: Any, start: Any, codes: Any, errors: Any
) -> Any:
    """The squared error of codes from bin `start` on."""
    width, step, half = widths
    w, s, h, last = np.float32(width), np.float32(step), np.float32(half), np.float32(codes - 1)
    for i in range(bins):
        errors[i] = f.clip_error(histogram[i], i, start, w, s, h, last)
    return torch_sum(errors, bins)


def search_of_ends(histogram: Any, low: Any, high: Any, codes: Any, bounds: Any) -> None:
    """HistogramObserver's search for the range whose codes have the least squared error."""
    bins = histogram.size
    cumulative, errors = np.empty(bins, np.float32), np.empty(bins, np.float32)
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
            error = clipping_error(histogram, bins, widths, new_start, codes, errors)
        if error > least:
            break
        least, start, end = error, new_start, new_end
    bounds[0] = f.bin_edge(low, high, bins, start)
    bounds[1] = f.bin_edge(low, high, bins, end + 1)


# --- doubling histograms ----------------------------------------------------------------------

# A search is of one channel: its bins, how many, and the width of one, its extremes, the bounds of
# the codes and the zero point of a symmetric scheme, and a number of the method. `rooms` are arrays
# of integers (three for half of the bins and one more) and of floats (two for all bins and LANES
# more).


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
    option: Any, rooms: Any,
) -> Any:  # fmt: skip
    """From the percentile to its counterpart."""
    total, edge = _total(counts, bins), f.doubling_edge(width, bins, 0)
    rank = f.percentile_rank(total, option)
    low = _place_of_rank(counts, bins, edge, width, total - rank)
    return low, _place_of_rank(counts, bins, edge, width, rank)


@called
def percentile_symmetric(
    counts: Any, bins: Any, width: Any, least: Any, greatest: Any, lo: Any, hi: Any, middle: Any,
    option: Any, rooms: Any,
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
    s, low, high = np.float32(0), np.float32(low), np.float32(high)
    if high - low < np.float32(np.inf):
        scale, z = choose(low, high, lo, hi, np.float32(eps), middle, s)
    else:  # as the observer chooses where float32 does not hold the width
        wide = np.float64(low), np.float64(high), lo, hi, np.float64(eps)
        scale, z = choose(*wide, middle, s)
    return np.float64(scale), np.float64(lo - z), np.float64(hi - z)


@called
def squared_error(
    counts: Any, first: Any, n: Any, rooms: Any, low: Any, high: Any, lo: Any, hi: Any, middle: Any,
    eps: Any, choose: Any,
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


@called
def mse(
    counts: Any, bins: Any, width: Any, least: Any, greatest: Any, lo: Any, hi: Any, middle: Any,
    option: Any, rooms: Any,
) -> Any:  # fmt: skip
    """Both ends at once, then each in turn until neither moves; of equals the widest."""
    first, held = _filled(counts, bins, width, least, greatest, rooms[3])
    i = j = FRACTIONS
    best = np.inf
    for n in range(FRACTIONS, 0, -1):
        found = squared_error(
            counts, first, held, rooms, f.shrunk(least, n, FRACTIONS),
            f.shrunk(greatest, n, FRACTIONS), lo, hi, middle, option, affine_qparams,
        )  # fmt: skip
        if found < best:
            best, i, j = found, n, n
    moved = True
    while moved:
        moved = False
        for end in range(2):
            for n in range(FRACTIONS, 0, -1):
                u, v = (n, j) if end == 0 else (i, n)
                found = squared_error(
                    counts, first, held, rooms, f.shrunk(least, u, FRACTIONS),
                    f.shrunk(greatest, v, FRACTIONS), lo, hi, middle, option, affine_qparams,
                )  # fmt: skip
                if found < best:
                    best, i, j, moved = found, u, v, True
    return f.shrunk(least, i, FRACTIONS), f.shrunk(greatest, j, FRACTIONS)


@called
def mse_symmetric(
    counts: Any, bins: Any, width: Any, least: Any, greatest: Any, lo: Any, hi: Any, middle: Any,
    option: Any, rooms: Any,
) -> Any:  # fmt: skip
    """The same of one end; the other is as far from zero."""
    first, held = _filled(counts, bins, width, least, greatest, rooms[3])
    whole = larger(-least, greatest)
    reach, best = whole, np.inf
    for n in range(FRACTIONS, 0, -1):
        tried = f.shrunk(whole, n, FRACTIONS)
        found = squared_error(
            counts, first, held, rooms, -tried, tried, lo, hi, middle, option, symmetric_qparams,
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
    if top > 1:  # zeros, which any range keeps exactly, must not stand for their whole bin
        sizes[0] = min(sizes[0], sizes[1])
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
    option: Any, rooms: Any,
) -> Any:  # fmt: skip
    """Values on one side of zero have all codes for themselves."""
    levels = hi - lo + 1 if least >= 0 or greatest <= 0 else (hi - lo + 1) // 2
    half = _magnitudes(counts, bins, rooms[0])
    reach = width * _least_divergence(half, levels, rooms)
    return -reach, reach


@called
def entropy_symmetric(
    counts: Any, bins: Any, width: Any, least: Any, greatest: Any, lo: Any, hi: Any, middle: Any,
    option: Any, rooms: Any,
) -> Any:  # fmt: skip
    """The same, with half of the codes for each side."""
    half = _magnitudes(counts, bins, rooms[0])
    reach = width * _least_divergence(half, (hi - lo + 1) // 2, rooms)
    return -reach, reach
