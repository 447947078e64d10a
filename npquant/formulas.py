"""Every scalar formula of npquant, once. docs/numerics.md says where each comes from.

A formula is plain Python on scalars; the types of its arguments carry the precision (a product of
two float32 is a float32), so one text serves every dtype. `formula` lets CPU and CUDA kernels call
it. There is no float literal without a type here: Numba would make it a float64.

They come in pairs. *Parameters* make what all elements of a channel share, from its scale, its zero
point and the constants of the call; the arrays of input and output tell them types alone. An
*element* turns one value of the input and these parameters into a result and whether it was inside
the range. Types, by the letters used below:

* T: the compute precision of the input: float32, or float64 for float64 input.
* K: the precision of codes, and so of the constants: T wherever it holds every code.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.extending import register_jitable

from npquant.primitives import code_of, fma, item, key, like, plus, rint, times, trunc, widen

#: What int32 and int64 do not hold: it, and all beyond.
INT32_END, INT64_END = np.float32(2.0**31), np.float32(2.0**63)

INFINITY = np.float32(np.inf)

#: Takes a float32 a step or two toward zero.
STEP_BACK = np.float32(1 - 2.0**-23)

#: Kernels alone call formulas, so no C wrapper is compiled for them.
formula = register_jitable(no_cfunc_wrapper=True)


@formula
def clamp(v: Any, lo: Any, hi: Any) -> Any:
    """`v` in [lo, hi]; NaN stays NaN, and so does -0.0 at a bound of 0."""
    v = lo if v < lo else v
    return hi if v > hi else v


@formula
def clamp_number(v: Any, lo: Any, hi: Any) -> Any:
    """`v` in [lo, hi]; NaN becomes lo."""
    v = v if v > lo else lo
    return v if v < hi else hi


@formula
def reciprocal(scale: Any) -> Any:
    """1 / scale, rounded to the type of the scale."""
    return like(np.float32(1) / widen(scale), scale)


# --- quantized_decomposed: quantize -----------------------------------------------------------


@formula
def tensor_inverse(
    x: Any, inverse: Any, zero_point: Any, lo: Any, hi: Any, nan: Any, y: Any
) -> Any:
    """Parameters of `quantize` per tensor: the host has divided, in float64."""
    return inverse, zero_point, lo, hi, nan


@formula
def channel_inverse(x: Any, scale: Any, zero_point: Any, lo: Any, hi: Any, nan: Any, y: Any) -> Any:
    """Parameters of the quantize ops per channel, token and group."""
    return reciprocal(scale), zero_point, lo, hi, nan


@formula
def quantize(x: Any, p: Any) -> Any:
    """rint(x / scale) + zero_point, clamped to [lo, hi]; a NaN becomes `nan`."""
    inverse, zero_point, lo, hi, nan = p
    return code_of(plus(rint(widen(x) * inverse), zero_point), lo, hi, nan), True


@formula
def quantize_zero_first(x: Any, p: Any) -> Any:
    """rint(x / scale + zero_point), clamped: per token and per group round after adding.

    A two-byte input with scales of its own dtype is rounded to it at each step. An integer takes
    the dtype of the scales.
    """
    inverse, zero_point, lo, hi, nan = p
    return code_of(widen(rint(plus(times(x, inverse), zero_point))), lo, hi, nan), True


# --- quantized_decomposed: dequantize ---------------------------------------------------------


@formula
def in_output(q: Any, scale: Any, zero_point: Any, lo: Any, hi: Any, nan: Any, y: Any) -> Any:
    """Parameters of `dequantize`: the zero point rounded to the output's dtype."""
    return scale, like(zero_point, item(y))


@formula
def dequantize(q: Any, p: Any) -> Any:
    """(q - zero_point) * scale, each step rounded to the output's dtype."""
    scale, zero_point = p
    return (like(q, zero_point) - zero_point) * scale, True


@formula
def as_given(q: Any, scale: Any, zero_point: Any, lo: Any, hi: Any, nan: Any, y: Any) -> Any:
    """Parameters of `dequantize_promoted`: the host has brought them to one precision."""
    return scale, zero_point


@formula
def dequantize_promoted(q: Any, p: Any) -> Any:
    """(q - zero_point) * scale in the precision of the scale, rounded once to the output."""
    scale, zero_point = p
    return like(like(q, zero_point) - zero_point, scale) * scale, True


# --- fake quantize ----------------------------------------------------------------------------
#
# PyTorch's steps are t = zero_point + rint(x / scale), q = clamp(t, lo, hi), (q - zero_point) *
# scale. Where every step is exact, the zero point cancels: rint(x / scale) clamped to
# [lo - zero_point, hi - zero_point] has the same bits but one, the sign of a zero, which t does not
# keep; a fused product with + 0 drops it too. That is five instructions instead of seven.


@formula
def affine(x: Any, scale: Any, zero_point: Any, lo: Any, hi: Any, nan: Any, y: Any) -> Any:
    """Parameters where K is T: the scale in float32, the bounds less the zero point."""
    s, z = np.float32(widen(scale)), like(zero_point, lo)
    return np.float32(1) / s, s, lo - z, hi - z


@formula
def fake_quantize_per_tensor(x: Any, p: Any) -> Any:
    """aten per tensor: the product is a float32 even for float64 input."""
    inverse, scale, least, greatest = p
    r = rint(widen(x) * inverse)
    q = np.float32(clamp_number(r, least, greatest))
    return fma(q, scale, np.float32(0)), (least <= r) & (r <= greatest)


@formula
def fake_quantize_per_channel(x: Any, p: Any) -> Any:
    """aten per channel, integer zero points: the product in T, rounded once."""
    inverse, scale, least, greatest = p
    r = rint(widen(x) * inverse)
    q = clamp_number(r, least, greatest)
    return fma(q, like(scale, q), like(np.float32(0), q)), (least <= r) & (r <= greatest)


@formula
def affine_wide(x: Any, scale: Any, zero_point: Any, lo: Any, hi: Any, nan: Any, y: Any) -> Any:
    """Parameters where codes are too large for T, or their differences are; K is float64."""
    s = np.float32(widen(scale))
    return np.float32(1) / s, s, zero_point, lo, hi


@formula
def fake_quantize_per_tensor_wide(x: Any, p: Any) -> Any:
    """aten per tensor step by step; the mask compares in T, where a bound may be rounded."""
    inverse, scale, zero_point, lo, hi = p
    x = widen(x)
    t = like(zero_point, x) + rint(x * inverse)
    q = clamp_number(t, lo, hi)
    return np.float32(q - zero_point) * scale, (like(lo, x) <= t) & (t <= like(hi, x))


@formula
def fake_quantize_per_channel_wide(x: Any, p: Any) -> Any:
    """aten per channel step by step; the product is a float64, rounded once."""
    inverse, scale, zero_point, lo, hi = p
    x = widen(x)
    t = like(zero_point, x) + rint(x * inverse)
    q = clamp_number(t, lo, hi)
    return (q - like(zero_point, lo)) * like(scale, lo), (lo <= t) & (t <= hi)


@formula
def fake_quantize_float_zero_point(x: Any, p: Any) -> Any:
    """aten per channel, float32 zero points: added before rounding, by one fma."""
    inverse, scale, zero_point, lo, hi = p
    x = widen(x)
    # + 0 makes -0.0, which a code is not, 0.0
    t = rint(np.float32(fma(x, like(inverse, x), like(zero_point, x)))) + np.float32(0)
    q = clamp_number(t, lo, hi)
    return (q - widen(zero_point)) * like(scale, lo), (lo <= t) & (t <= hi)


@formula
def fake_quantize_half_zero_point(x: Any, p: Any) -> Any:
    """aten per channel, float16 zero points: as float32 ones, but with two roundings."""
    inverse, scale, zero_point, lo, hi = p
    x = widen(x)
    t = rint(np.float32(x * inverse + widen(zero_point))) + np.float32(0)
    q = clamp_number(t, lo, hi)
    return (q - widen(zero_point)) * like(scale, lo), (lo <= t) & (t <= hi)


@formula
def affine_in_input(x: Any, scale: Any, zero_point: Any, lo: Any, hi: Any, nan: Any, y: Any) -> Any:
    """Parameters of `fake_quantize_decomposed`: everything in T."""
    s = like(scale, widen(item(x)))
    return np.float32(1) / s, s, like(zero_point, s), lo, hi


@formula
def fake_quantize_decomposed(x: Any, p: Any) -> Any:
    """quantized_decomposed.fake_quant_per_channel: a NaN stays NaN."""
    inverse, scale, zero_point, lo, hi = p
    t = rint(widen(x) * inverse) + zero_point
    return (clamp(t, lo, hi) - zero_point) * scale, (lo <= t) & (t <= hi)


# --- learnable --------------------------------------------------------------------------------


@formula
def nearest(zero_point: Any, lo: Any, hi: Any) -> Any:
    """A learned zero point in float32: rounded to the nearest, clamped to the bounds."""
    z = rint(np.float32(widen(zero_point)))
    return clamp(z, np.float32(lo), np.float32(hi))


@formula
def learned(x: Any, scale: Any, zero_point: Any, lo: Any, hi: Any, nan: Any, y: Any) -> Any:
    """Parameters of the learnable forward."""
    return affine(x, scale, nearest(zero_point, lo, hi), lo, hi, nan, y)


@formula
def learned_wide(x: Any, scale: Any, zero_point: Any, lo: Any, hi: Any, nan: Any, y: Any) -> Any:
    """Parameters of the learnable forward with wide codes.

    A bound may be rounded to a float32 outside of the range: the zero point steps back into it.
    """
    z = nearest(zero_point, lo, hi)
    if z > hi or z < lo:
        z = z * STEP_BACK
    return affine_wide(x, scale, z, lo, hi, nan, y)


@formula
def slopes_per_channel(
    x: Any, scale: Any, zero_point: Any, lo: Any, hi: Any, factor: Any, y: Any
) -> Any:
    """Parameters of the learnable backward per channel: the zero point is a float32."""
    s = np.float32(widen(scale))
    return np.float32(1) / s, s, nearest(zero_point, lo, hi), lo, hi, factor


@formula
def slopes_per_tensor(
    x: Any, scale: Any, zero_point: Any, lo: Any, hi: Any, factor: Any, y: Any
) -> Any:
    """Parameters of the learnable backward per tensor: the zero point is an integer, so in K."""
    s = np.float32(widen(scale))
    return np.float32(1) / s, s, like(nearest(zero_point, lo, hi), lo), lo, hi, factor


@formula
def slopes_truncated(
    x: Any, scale: Any, zero_point: Any, lo: Any, hi: Any, factor: Any, y: Any
) -> Any:
    """What PyTorch's per-tensor backward uses instead: trunc(zero_point + 1/2)."""
    s, z = np.float32(widen(scale)), np.float32(widen(zero_point)) + np.float32(0.5)
    z = trunc(clamp(z, np.float32(lo), np.float32(hi)))
    return np.float32(1) / s, s, like(z, lo), lo, hi, factor


@formula
def gradients_zero_first(g: Any, x: Any, p: Any) -> Any:
    """PyTorch's learnable backward: its code is rint of one fma, the zero point inside."""
    inverse, _, zero_point, _, _, _ = p
    x = widen(x)
    t = rint(fma(x, like(inverse, x), like(zero_point, x)))
    return gradients(widen(g), x, t, p)


@formula
def gradients_zero_last(g: Any, x: Any, p: Any) -> Any:
    """The backward with the code of its forward, so that they agree at ties."""
    inverse, _, zero_point, _, _, _ = p
    x = widen(x)
    t = like(zero_point, x) + rint(x * inverse)
    return gradients(widen(g), x, t, p)


@formula
def gradients(g: Any, x: Any, t: Any, p: Any) -> Any:
    """The gradients of one element from its unclamped code `t` (LSQ+, Bhalgat et al. 2020).

    Returns whether it is inside the range, and its terms of grad_scale and grad_zero_point. A NaN
    counts as below. Codes are compared in K; the rest is in T.
    """
    inverse, scale, zero_point, lo, hi, factor = p
    s = like(scale, x)
    inside = (t >= lo) & (t <= hi)
    residual = fma(like(t - zero_point, x), s, -x)
    clipped = like(like(hi if t > hi else lo, zero_point) - zero_point, x)
    slope = (g * residual) * inverse if inside else g * clipped
    shift = like(np.float32(0), x) if inside else (-g * s) * factor
    return inside, slope * factor, shift


# --- qparams from a range ---------------------------------------------------------------------
#
# (least, greatest, lo, hi, eps, middle, s) -> (scale, zero_point): the range of a channel, the
# integer bounds of its codes, the least scale, the zero point of symmetric schemes, and a value of
# the type of the scale to be made.


@formula
def larger(a: Any, b: Any) -> Any:
    """The larger of two; NaN if either is."""
    return a if widen(a) > widen(b) or widen(a) != widen(a) else b


@formula
def smaller(a: Any, b: Any) -> Any:
    """The smaller of two; NaN if either is."""
    return a if widen(a) < widen(b) or widen(a) != widen(a) else b


@formula
def divided(v: Any, by: Any) -> Any:
    """v / by as PyTorch divides: in float32 at least, rounded to the type of `v`."""
    return like(widen(v) / like(by, widen(v)), v)


@formula
def truncated(v: Any, limit: Any) -> Any:
    """`v` as an integer; what is not within +-limit, and NaN, becomes -limit, as on x86."""
    return np.int64(v) if abs(v) < limit else np.int64(-limit)


@formula
def affine_qparams(
    least: Any, greatest: Any, lo: Any, hi: Any, eps: Any, middle: Any, s: Any
) -> Any:
    """PyTorch's determine_qparams, affine: in the type of the range, then in that of eps."""
    zero = like(np.float32(0), least)
    low, high = smaller(least, zero), larger(greatest, zero)
    scale = larger(like(divided(high - low, hi - lo), eps), eps)
    offset = truncated(rint(like(low, eps) / scale), INT32_END)
    z = np.int64(np.int32(lo - offset))  # int32 wraps there
    return like(scale, s), min(max(z, lo), hi)


@formula
def symmetric_qparams(
    least: Any, greatest: Any, lo: Any, hi: Any, eps: Any, middle: Any, s: Any
) -> Any:
    """PyTorch's determine_qparams, symmetric."""
    zero = like(np.float32(0), least)
    reach = larger(zero - smaller(least, zero), larger(greatest, zero))
    half = np.float64(hi - lo) / np.float64(2)
    return like(larger(like(divided(reach, half), eps), eps), s), middle


@formula
def float_qparams(
    least: Any, greatest: Any, lo: Any, hi: Any, eps: Any, middle: Any, s: Any
) -> Any:
    """PyTorch's determine_qparams with float zero points, which it truncates."""
    scale, z = kept_float_qparams(least, greatest, lo, hi, eps, middle, s)
    return scale, truncated(widen(z), INT64_END)


@formula
def kept_float_qparams(
    least: Any, greatest: Any, lo: Any, hi: Any, eps: Any, middle: Any, s: Any
) -> Any:
    """The same of PyTorch's observers, which keep the zero point a float."""
    scale = divided(greatest - least, hi - lo)
    scale = scale if like(scale, eps) > eps else like(np.float32(1), scale)
    z = divided(least * like(-np.float32(1), least), widen(scale))
    return like(scale, s), z


@formula
def token_qparams(
    least: Any, greatest: Any, lo: Any, hi: Any, eps: Any, middle: Any, s: Any
) -> Any:
    """choose_qparams_per_token: the largest magnitude, in the type of the scale, over hi."""
    largest = like(larger(abs(widen(least)), abs(widen(greatest))), s)
    return divided(larger(largest, like(eps, s)), hi), like(middle, s)


@formula
def token_asymmetric_qparams(
    least: Any, greatest: Any, lo: Any, hi: Any, eps: Any, middle: Any, s: Any
) -> Any:
    """choose_qparams_per_token_asymmetric: every step rounded to the type of the range."""
    zero, bottom, top = (
        like(np.float32(0), least), like(np.float32(lo), least), like(np.float32(hi), least),
    )  # fmt: skip
    low, high = smaller(least, zero), larger(greatest, zero)
    scale = larger(divided(high - low, hi - lo), like(eps, least))
    low, high = divided(low, widen(scale)), divided(high, widen(scale))
    below = widen((bottom + low) + (top + high)) > np.float32(0)
    z = rint(clamp(widen(bottom - low if below else top - high), widen(bottom), widen(top)))
    return like(scale, s), truncated(z, INT64_END)


@formula
def moving_average(running: Any, seen: Any, constant: Any) -> Any:
    """One step of a running bound; an infinite one starts from `seen`."""
    return seen if np.isinf(running) else step_towards(running, seen, constant)


@formula
def step_towards(running: Any, seen: Any, constant: Any) -> Any:
    """One step of a moving average, each operation rounded."""
    return running + constant * (seen - running)


@formula
def fbgemm_qparams(
    least: Any, greatest: Any, lo: Any, hi: Any, eps: Any, middle: Any, s: Any
) -> Any:
    """FBGEMM's ChooseQuantizationParams: float32 ranges, float64 quotients.

    The zero point follows from the rounded scale. `eps` is the least scale.
    """
    return _fbgemm(least, greatest, lo, hi, eps, False)


@formula
def fbgemm_symmetric_qparams(
    least: Any, greatest: Any, lo: Any, hi: Any, eps: Any, middle: Any, s: Any
) -> Any:
    """The same for a symmetric scheme, which a range on one side of zero is exempt from."""
    if not (least < np.float32(0) and greatest > np.float32(0)):
        return _fbgemm(least, greatest, lo, hi, eps, False)
    half = (hi - lo) // np.int64(2)
    below, above = np.float32(-half - np.int64(1)), np.float32(half)
    unit = larger(abs(least / below), abs(greatest / above))
    return _fbgemm(unit * below, unit * above, lo, hi, eps, True)


@formula
def _fbgemm(least: Any, greatest: Any, lo: Any, hi: Any, eps: Any, centred: Any) -> Any:
    zero, span = np.float32(0), hi - lo
    low, high = smaller(least, zero), larger(greatest, zero)
    scale = np.float32((np.float64(high) - np.float64(low)) / np.float64(span))
    if scale == zero or np.isinf(np.float32(1) / scale):
        scale = np.float32(0.1)
    if scale < eps:
        grown = eps / scale
        if low == zero:
            high = eps * np.float32(span)
        elif high == zero:
            low = -(eps * np.float32(span))
        else:
            low, high = low * grown, high * grown
        scale = eps
    below, above = np.float64(low) / np.float64(scale), np.float64(high) / np.float64(scale)
    if centred:
        z = np.float64(lo + hi) / np.float64(2)
    elif np.float64(abs(lo)) + abs(below) < np.float64(abs(hi)) + abs(above):
        z = np.float64(lo) - below
    else:
        z = np.float64(hi) - above
    z = clamp(z, np.float64(lo), np.float64(hi))
    return scale, truncated(rint(z), INT32_END)


# --- histograms -------------------------------------------------------------------------------
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
def linear_bins(low: Any, high: Any, bins: Any) -> Any:
    """Parameters of `linear_bin`; of a single value the bounds are moved apart, as torch.histc."""
    one = like(np.float32(1), low)
    a, b = low, high
    if low == high:
        a = low - one if low - one < low else np.nextafter(low, -like(INFINITY, low))
        b = low + one if low + one > low else np.nextafter(low, like(INFINITY, low))
    return a, b, b - a, like(bins, low)


@formula
def linear_bin(x: Any, p: Any) -> Any:
    """torch.histc: the bin of `x` among equal ones from low to high, each step rounded."""
    low, high, width, bins = p
    v = like(np.float32(widen(x)), low)
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
    v = np.float32(widen(x))
    step = trunc(abs(v) * inverse)
    place = half + step if v >= np.float32(0) else half - np.float32(1) - step
    return np.int32(place if abs(v) < bound else bins)


# --- PyTorch's histogram observer -------------------------------------------------------------


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
    whole = np.floor(quotient)
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


# --- clip ranges from a doubling histogram ----------------------------------------------------


@formula
def doubling_edge(width: Any, bins: Any, i: Any) -> Any:
    """Where bin `i` begins, exactly."""
    return width * np.float64(i - bins // np.int64(2))


@formula
def percentile_rank(total: Any, percentile: Any) -> Any:
    """How many of the values lie below the percentile."""
    return np.float64(total) * (percentile / np.float64(100))


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
    return c * np.log(c) if c > np.float64(0) else c


@formula
def expanded(level: Any, kept: Any, filled: Any) -> Any:
    """A level's part of sum(p * log(q)), not yet divided by the totals.

    `level` is what it holds of P; its part of Q, `kept`, is spread over `filled` bins.
    """
    return np.float64(level) * np.log(np.float64(kept) / np.float64(filled))


@formula
def divergence(entropy: Any, cross: Any, total: Any, kept: Any) -> Any:
    """KL(P || Q) from unnormalised sums: P holds `total` values, and Q `kept`."""
    return (entropy - cross) / np.float64(total) - np.log(np.float64(total) / np.float64(kept))
