"""Histograms, and ranges found in them."""

from __future__ import annotations

from typing import Any

import numpy as np

from npquant.formulas.base import INFINITY, clamp, formula
from npquant.formulas.elementary import log
from npquant.primitives import bits, floating, floor, fma, key, like, rint, trunc, value, widen

# --- histograms ---------------------------------------------------------------------------------
#
# Values are counted as float32. (low, high, bins) -> p, once a channel; (x, p) -> the bin of a
# value, `bins` for one that is not counted.


@formula
def finite_key_above(x: Any) -> Any:
    """The key of `x` for a minimum of finite values: one that is none in float32 is +inf."""
    return key(x if abs(np.float32(widen(x))) < INFINITY else like(INFINITY, x))


@formula
def finite_key_below(x: Any) -> Any:
    """The key of `x` for a maximum of finite values: one that is none in float32 is -inf."""
    return key(x if abs(np.float32(widen(x))) < INFINITY else like(-INFINITY, x))


@formula
def next_above(v: Any) -> Any:
    """The next number after a finite `v` that is not zero."""
    k = bits(abs(v))
    away = v > like(np.float32(0), v)
    m = value(k + np.int32(1) if away else k - np.int32(1), v)
    return m if away else -m


@formula
def linear_bins(low: Any, high: Any, bins: Any) -> Any:
    """Parameters of `linear_bin`; of a single value the bounds are moved apart, as torch.histc."""
    one = like(np.float32(1), low)
    a, b = low, high
    if low == high:
        a = low - one if low - one < low else -next_above(-low)
        b = low + one if low + one > low else next_above(low)
    return a, b, b - a, like(bins, low)


@formula
def linear_bin(x: Any, p: Any) -> Any:
    """torch.histc: the bin of `x` among equal ones from low to high, each step rounded."""
    low, high, width, bins = p
    v = like(np.float32(widen(floating(x))), low)  # of long integers rounded once
    last = bins - like(np.float32(1), bins)
    place = ((v - low) * bins) / width
    place = place if place < last else last
    return np.int32(place if (v >= low) & (v <= high) else bins)


@formula
def doubling_bins(inverse: Any, bound: Any, bins: Any) -> Any:
    """Parameters of `doubling_bin`: of a power of two that bounds the values, and 1 / width."""
    return inverse, bound, np.float32(bins), np.float32(bins) / np.float32(2)


@formula
def doubling_bin(x: Any, p: Any) -> Any:
    """The bin of `x` among `bins` from -bound to bound, mirrored at zero.

    Widths are powers of two, so nothing is rounded, and the bins of half the width nest in these.
    """
    inverse, bound, bins, half = p
    v = np.float32(widen(floating(x)))
    step = trunc(abs(v) * inverse)
    place = half + step if v >= np.float32(0) else half - np.float32(1) - step
    return np.int32(place if abs(v) < bound else bins)


# --- PyTorch's histogram observer ---------------------------------------------------------------


@formula
def linspace(low: Any, high: Any, n: Any, i: Any) -> Any:
    """Point `i` of torch.linspace, by one fma from the nearer end; `n` points."""
    step = (high - low) / np.float32(n - np.int64(1))
    if i < n // np.int64(2):
        return fma(step, np.float32(i), low)
    return fma(-step, np.float32(n - np.int64(1) - i), high)


@formula
def middle_of_part(low: Any, high: Any, parts: Any, i: Any) -> Any:
    """The middle of part `i` of the range, as HistogramObserver rounds it."""
    size = (high - low) / np.float32(parts)
    return linspace(low, high, parts + np.int64(1), i) + np.float32(0.5) * size


@formula
def share(count: Any, parts: Any) -> Any:
    """What each part of a bin gets."""
    return count / np.float32(parts)


@formula
def floor_divided(a: Any, b: Any) -> Any:
    """The floor of a / b of two float32, by the steps of torch.floor_divide; b > 0.

    Its fmod is exact, and so is this one: a quotient that fits a float64 but for its last bit is
    off by one at most, and an fma tells.
    """
    if b == np.float32(0):
        return a / b
    u, v = np.float64(a), np.float64(b)
    rest = fma(-trunc(u / v), v, u)
    if u >= np.float64(0):
        rest = rest + v if rest < np.float64(0) else rest - v if rest >= v else rest
    else:
        rest = rest - v if rest > np.float64(0) else rest + v if rest <= -v else rest
    quotient = (a - np.float32(rest)) / b
    quotient = quotient - np.float32(1) if rest < np.float64(0) else quotient
    whole = floor(quotient)
    return whole + np.float32(1) if quotient - whole > np.float32(0.5) else whole


@formula
def norm_between(begin: Any, end: Any, density: Any) -> Any:
    """The integral of density * x**2 from begin to end, each step rounded."""
    cubes = end * end * end - begin * begin * begin
    return density * (cubes / np.float32(3))


@formula
def clip_error(count: Any, i: Any, start: Any, width: Any, step: Any, half: Any, last: Any) -> Any:
    """The error of the codes of bin `i`, uniformly filled, in float32 as HistogramObserver adds it.

    Bins are `width` wide and codes `step`, `half` is half of it; the first code begins at bin
    `start`, and `last` is the last.
    """
    zero = np.float32(0)
    left = np.float32(i - start) * width
    right = left + width
    first = clamp(floor_divided(left, step), zero, last)
    final = clamp(floor_divided(right, step), zero, last)
    density = count / width
    error = zero + norm_between(left - (first + np.float32(0.5)) * step, half, density)
    error = error + (final - first - np.float32(1)) * norm_between(-half, half, density)
    return error + norm_between(-half, right - (final * step + half), density)


@formula
def clip_widths(low: Any, high: Any, bins: Any, kept: Any, codes: Any) -> Any:
    """The width of a bin, of a code where `kept` bins share `codes`, and half of it, in float64."""
    width = (np.float64(high) - np.float64(low)) / np.float64(bins)
    step = width * np.float64(kept) / np.float64(codes)
    return width, step, step / np.float64(2)


@formula
def quantile_count(quantile: Any, total: Any) -> Any:
    """How many values lie below a quantile, as HistogramObserver compares it: in float32."""
    return np.float32(quantile * total)


@formula
def bin_edge(low: Any, high: Any, bins: Any, i: Any) -> Any:
    """Where bin `i` begins, as HistogramObserver rounds it."""
    return low + (high - low) / np.float32(bins) * np.float32(i)


# --- clip ranges from a doubling histogram ------------------------------------------------------


@formula
def doubling_edge(width: Any, bins: Any, i: Any) -> Any:
    """Where bin `i` begins, exactly."""
    return width * np.float64(i - bins // np.int64(2))


#: Three roundings come to no more than 3 / 2**53 of a rank.
_ROUNDED = np.float64(2.0**-51)


@formula
def percentile_rank(total: Any, percentile: Any) -> Any:
    """How many of the values lie below the percentile: a whole number, if one is next to it.

    No float is 99.9, and so 99.9 % of 41,000 values would be a little more than 40,959.
    """
    rank = np.float64(total) * percentile / np.float64(100)
    whole = rint(rank)
    return whole if abs(rank - whole) <= rank * _ROUNDED else rank


@formula
def inside_bin(edge: Any, width: Any, rank: Any, below: Any, count: Any) -> Any:
    """Where the value of a rank lies in its bin, which is uniformly filled."""
    return edge + width * ((rank - np.float64(below)) / np.float64(count))


@formula
def squared_error_up_to(x: Any, scale: Any, least: Any, greatest: Any) -> Any:
    """The integral of (t - q(t))**2 from 0 to `x`; q(t) is the nearest code times `scale`.

    Between two codes the error is a parabola, of which a whole one has the integral scale**3 / 12;
    beyond the last code its arm goes on. So with the code n of x it is n wholes and the rest.
    """
    n = clamp(rint(x / scale), least, greatest)
    rest = x - n * scale
    third = np.float64(1) / np.float64(3)
    return n * (scale * scale * scale / np.float64(12)) + rest * rest * rest * third


@formula
def squared_error_of_bin(
    count: Any, begin: Any, end: Any, scale: Any, least: Any, greatest: Any
) -> Any:
    """The squared error of `count` values spread from begin to end, or all at one place."""
    if end > begin:
        area = squared_error_up_to(end, scale, least, greatest) - squared_error_up_to(
            begin, scale, least, greatest
        )
        return np.float64(count) * (area / (end - begin))
    rest = begin - clamp(rint(begin / scale), least, greatest) * scale
    return np.float64(count) * (rest * rest)


@formula
def shrunk(bound: Any, step: Any, steps: Any) -> Any:
    """`bound` times step / steps."""
    return bound * (np.float64(step) / np.float64(steps))


@formula
def plogp(count: Any) -> Any:
    """count * log(count), 0 of nothing."""
    c = np.float64(count)
    return c * log(c) if c > np.float64(0) else c


#: Stands for the 0 that Q has where only what is clipped lies.
_NEXT_TO_NOTHING = np.float64(2.0**-1022)


@formula
def expanded(level: Any, kept: Any, filled: Any) -> Any:
    """A level's part of sum(p * log(q)), not yet divided by the totals.

    `level` is what it holds of P; its part of Q, `kept`, is spread over `filled` bins.
    """
    share = np.float64(kept) / np.float64(filled)
    return np.float64(level) * log(share if share > np.float64(0) else _NEXT_TO_NOTHING)


@formula
def divergence(entropy: Any, cross: Any, total: Any, kept: Any) -> Any:
    """KL(P || Q) from unnormalised sums: P holds `total` values, and Q `kept`."""
    return (entropy - cross) / np.float64(total) - log(np.float64(total) / np.float64(kept))
