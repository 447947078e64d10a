"""What observers must see and choose: whole-array NumPy, slow and clear, independent of npquant.

PyTorch's observers as docs/numerics.md has them, and the definitions of the others, by other means
than the kernels: data is counted all at once, errors are summed code by code, distributions are
written out.
"""

import itertools
import math

import numpy as np

from oracle import fma

F32, F64 = np.float32, np.float64
EPS = F32(2.0**-23)
quiet = np.errstate(all="ignore")


# --- ranges and qparams -----------------------------------------------------------------------


@quiet
def extremes(x, axis=None):
    """Return the float32 minimum and maximum, of everything or of each index of an axis."""
    rest = None if axis is None else tuple(i for i in range(x.ndim) if i != axis % x.ndim)
    wide = x.astype(F64)
    return wide.min(axis=rest).astype(F32), wide.max(axis=rest).astype(F32)


@quiet
def move(running, seen, constant):
    """Return a moving bound after one more array."""
    return (running + F32(constant) * (seen - running)).astype(F32)


@quiet
def qparams(low, high, quant_min, quant_max, qscheme, middle, eps=EPS):
    """Return the float32 scales and the zero points of an observer."""
    low, high = np.atleast_1d(low), np.atleast_1d(high)
    zero = F32(0)
    if qscheme.endswith("float_qparams"):
        scale = (high - low) / F32(quant_max - quant_min)
        scale = np.where(scale > eps, scale, F32(1))
        return scale, F32(-1) * low / scale
    below, above = np.minimum(low, zero), np.maximum(high, zero)
    if qscheme.endswith("symmetric"):
        scale = np.maximum(-below, above) / F32((quant_max - quant_min) / 2)
        scale = np.maximum(scale, eps)
        return scale, np.full(scale.shape, middle, np.int64)
    scale = np.maximum((above - below) / F32(quant_max - quant_min), eps)
    steps = np.rint(below / scale).astype(F64)
    steps = np.where(np.abs(steps) < 2.0**31, steps, -(2.0**31)).astype(np.int64)
    z = (quant_min - steps + 2**31) % 2**32 - 2**31  # int32 wraps
    return scale, np.clip(z, quant_min, quant_max).astype(np.int32)


# --- PyTorch's histogram ----------------------------------------------------------------------


@quiet
def histc(x, bins, low, high):
    """Return torch.histc of float32 data; in float64 where float32 would overflow."""
    low, high = F32(low), F32(high)
    if low == high:
        a, b = low - F32(1), high + F32(1)
        low = a if a < low else np.nextafter(low, F32(-np.inf))
        high = b if b > high else np.nextafter(high, F32(np.inf))
    kind = F32 if np.isfinite((high - low) * F32(bins)) else F64
    v, a, b = x.astype(kind), kind(low), kind(high)
    v = v[(v >= a) & (v <= b)]
    place = np.minimum(((v - a) * kind(bins)) / (b - a), kind(bins - 1))
    return np.bincount(place.astype(np.int64), minlength=bins).astype(F32)


def linspace(low, high, n):
    """Return torch.linspace, each half from its own end by one fma."""
    low, high = F32(low), F32(high)
    step, i = (high - low) / F32(n - 1), np.arange(n)
    return np.where(
        i < n // 2, fma(step, i.astype(F32), low), fma(-step, (n - 1 - i).astype(F32), high)
    )


def respread(histogram, old, new, parts):
    """Return the histogram over a wider range."""
    bins = histogram.size
    pieces = np.repeat(histogram, parts) / F32(parts)
    size = (F32(old[1]) - F32(old[0])) / F32(bins * parts)
    middles = linspace(*old, bins * parts + 1)[:-1] + F32(0.5) * size
    places = np.searchsorted(linspace(*new, bins + 1), middles, side="right") - 1
    result = np.zeros(bins, F32)
    np.add.at(result, np.clip(places, 0, bins - 1), pieces)
    return result


def _cascade(rows):
    """Return the sum down the first axis, in four levels."""
    n = len(rows)
    power = max(4, (n - 1).bit_length() // 4 if n else 0)
    levels = [np.zeros(rows.shape[1:], F32) for _ in range(4)]
    for i in range(1, n + 1):
        levels[0] = levels[0] + rows[i - 1]
        if i % (1 << power) == 0:
            for level in range(1, 4):
                levels[level] = levels[level] + levels[level - 1]
                levels[level - 1] = np.zeros(rows.shape[1:], F32)
                if i % (1 << (power * (level + 1))):
                    break
    return ((levels[0] + levels[1]) + levels[2]) + levels[3]


def torch_sum(x):
    """Return torch.sum of a float32 vector on one thread."""
    n = x.size
    width = 8 if n >= 8 else 1
    body = x[: n // width * width].reshape(-1, width)
    quarter = len(body) // 4
    four = _cascade(body[: quarter * 4].reshape(quarter, 4, width))
    first = four[0]
    for row in body[quarter * 4 :]:
        first = first + row
    lanes = ((first + four[1]) + four[2]) + four[3]
    total = F32(0)
    for v in (*x[body.size :], *lanes):
        total = total + v
    return total


@quiet
def clipping_error(histogram, low, high, start, end, codes):
    """Return what HistogramObserver minimises."""
    bins = histogram.size
    width = (float(high) - float(low)) / bins
    step = width * (end - start + 1) / codes
    if step == 0:
        return F32(0)
    w, s, half, last = F32(width), F32(step), F32(step / 2), F32(codes - 1)
    left = (np.arange(bins) - start).astype(F32) * w
    right = left + w
    first, final = (np.clip(np.floor_divide(v, s), F32(0), last) for v in (left, right))

    def norm(a, b):
        return (histogram / w) * ((b * b * b - a * a * a) / F32(3))

    error = norm(left - (first + F32(0.5)) * s, half)
    error = error + (final - first - F32(1)) * norm(-half, half)
    return torch_sum(error + norm(-half, right - (final * s + half)))


@quiet
def clip_linear(histogram, low, high, codes):
    """Return the range that HistogramObserver's search finds."""
    bins = histogram.size
    total = float(torch_sum(histogram))
    cumulative = np.cumsum(histogram, dtype=F64).astype(F32)
    alpha, beta, start, end, least = 0.0, 1.0, 0, bins - 1, math.inf
    while alpha < beta:
        left, right = start, end
        while left < end and cumulative[left] < F32((alpha + 1e-5) * total):
            left += 1
        while right > start and cumulative[right] > F32((beta - 1e-5) * total):
            right -= 1
        a, b = start, end
        if left - start > end - right:
            a, alpha = left, alpha + 1e-5
        else:
            b, beta = right, beta - 1e-5
        if (a, b) == (start, end):
            continue
        error = clipping_error(histogram, low, high, a, b, codes)
        if error > least:
            break
        least, start, end = error, a, b
    width = (F32(high) - F32(low)) / F32(bins)
    return F32(low) + width * F32(start), F32(low) + width * F32(end + 1)


class Histogram:
    """HistogramObserver: its statistics after some arrays."""

    def __init__(self, bins, parts=16):
        self.bins, self.parts, self.low = bins, parts, None

    def observe(self, x):
        """Add an array of finite values."""
        x = np.asarray(x).astype(F32)
        if self.low is None:
            self.low, self.high = x.min(), x.max()
            self.counts = histc(x, self.bins, self.low, self.high)
            return
        low, high = min(self.low, x.min()), max(self.high, x.max())
        kept = self.counts
        if (low, high) != (self.low, self.high):
            if self.low == self.high:
                kept = histc(np.array([self.low]), self.bins, low, high) * kept.sum()
            else:
                kept = respread(kept, (self.low, self.high), (low, high), self.parts)
        self.counts = kept + histc(x, self.bins, low, high)
        self.low, self.high = low, high


# --- doubling histograms ----------------------------------------------------------------------


def doubling(x, bins):
    """Return the counts of all of `x`, and the exponent of the bound, counted all at once."""
    v = np.asarray(x).astype(F32).astype(F64).reshape(-1)
    exponent = max(-100, int(np.frexp(np.abs(v).max())[1])) if v.any() else -100
    step = np.floor(np.ldexp(np.abs(v), bins.bit_length() - 2 - exponent)).astype(np.int64)
    place = np.where(v >= 0, bins // 2 + step, bins // 2 - 1 - step)
    return np.bincount(place, minlength=bins), exponent


def edges(bins, exponent):
    """Return the edges of the bins."""
    return np.ldexp(np.arange(-(bins // 2), bins // 2 + 1) / (bins // 2), exponent)


def value_of_rank(counts, edge, rank):
    """Return the value below which `rank` of the values lie."""
    below = np.cumsum(counts) - counts
    i = np.flatnonzero((counts > 0) & (below + counts >= rank))[0]
    return edge[i] + (edge[i + 1] - edge[i]) * ((rank - below[i]) / counts[i])


def squared_error(counts, edge, least, greatest, scale, quant_min, quant_max, zero_point):
    """Return the squared error of codes for bins that are filled evenly, summed code by code."""
    total = 0.0
    points = (np.arange(quant_min, quant_max + 1) - int(zero_point)) * float(scale)
    middles = (points[1:] + points[:-1]) / 2
    for i in np.flatnonzero(counts):
        a, b = max(edge[i], least), min(edge[i + 1], greatest)
        if a == b:
            total += counts[i] * np.min(np.abs(points - a)) ** 2
            continue
        cuts = [a, *middles[(middles > a) & (middles < b)], b]
        for p, q in itertools.pairwise(cuts):
            c = points[np.argmin(np.abs(points - (p + q) / 2))]
            total += counts[i] * ((q - c) ** 3 - (p - c) ** 3) / 3 / (b - a)
    return total


def divergences(sizes, levels):
    """Return {bins kept: KL(P || Q)} of magnitudes, both distributions written out."""
    top = int(np.flatnonzero(sizes)[-1]) + 1
    sizes = np.concatenate([np.sort(sizes[:2])[:1], sizes[1:]]) if top > 1 else sizes
    found = {}
    for kept in range(levels, top + 1):
        inside = sizes[:kept].astype(F64)
        if not inside.any():
            continue
        p, beyond = inside.copy(), sizes[kept:].sum()
        if beyond and (np.count_nonzero(inside) == 1 or beyond > inside.sum()):
            continue
        p[-1] += beyond
        q = np.zeros(kept)
        for level in range(levels):
            span = slice(level * kept // levels, (level + 1) * kept // levels)
            holds = p[span] > 0
            if holds.any():
                q[span][holds] = inside[span].sum() / holds.sum()
        q[(p > 0) & (q == 0)] = 2.0**-1022
        p, total = p / p.sum(), q.sum()
        terms = p[p > 0] * (np.log(p[p > 0]) - np.log(q[p > 0]) + np.log(total))
        found[kept] = terms.sum()
    return found
