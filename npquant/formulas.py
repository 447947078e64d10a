"""Every scalar formula of npquant, once. docs/numerics.md says where each comes from.

A formula is plain Python on scalars; the types of its arguments carry the precision (a product of
two float32 is a float32), so one text serves every dtype. `formula` lets CPU and CUDA kernels call
it. There is no float literal without a type here: Numba would make it a float64.

They come in pairs. *Parameters* make what all elements of a channel share, from its scale, its zero
point and the constants of the call (lo, hi, nan: the bounds of the codes, and what a NaN becomes);
the arrays of input and output tell them types alone. An *element* turns one value of the input,
these parameters and the constants into a result and whether it was inside the range. Types, by the
letters used below:

* T: the compute precision of the input: float32, or float64 for float64 input.
* K: the precision of codes, and so of the constants: T wherever it holds every code.
"""

from __future__ import annotations

from math import factorial
from typing import Any

import numpy as np
from numba.extending import register_jitable

from npquant.primitives import (
    by_precision,
    code_of,
    exponent,
    floor,
    fma,
    item,
    key,
    like,
    mantissa,
    over,
    plus,
    power_of_two,
    rint,
    rounded_code,
    sqrt,
    times,
    trunc,
    widen,
)

#: What int32 and int64 do not hold: it, and all beyond.
INT32_END, INT64_END = np.float32(2.0**31), np.float32(2.0**63)

INFINITY = np.float32(np.inf)

#: Takes a float32 a step or two toward zero.
STEP_BACK = np.float32(1 - 2.0**-23)

#: Kernels alone call formulas, so no C wrapper is compiled for them; all are inlined, since a loop
#: around a call is not vectorised.
formula = register_jitable(no_cfunc_wrapper=True, forceinline=True)


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
def tensor_inverse(x: Any, inverse: Any, zero_point: Any, constants: Any, y: Any) -> Any:
    """Parameters of `quantize` per tensor: the host has divided, in float64."""
    return inverse, zero_point


@formula
def channel_inverse(x: Any, scale: Any, zero_point: Any, constants: Any, y: Any) -> Any:
    """Parameters of the quantize ops per channel, token and group."""
    return reciprocal(scale), zero_point


@formula
def quantize(x: Any, p: Any, constants: Any, y: Any) -> Any:
    """rint(x / scale) + zero_point, clamped to [lo, hi]; a NaN becomes `nan`."""
    inverse, zero_point = p
    lo, hi, nan = constants
    return rounded_code(widen(x) * inverse, zero_point, lo, hi, nan, item(y)), True


@formula
def quantize_zero_first(x: Any, p: Any, constants: Any, y: Any) -> Any:
    """rint(x / scale + zero_point), clamped: per token and per group round after adding.

    A two-byte input with scales of its own dtype is rounded to it at each step. An integer takes
    the dtype of the scales.
    """
    inverse, zero_point = p
    lo, hi, nan = constants
    t = widen(plus(times(x, inverse), zero_point))
    return rounded_code(t, None, lo, hi, nan, item(y)), True


@formula
def quantize_by_division(x: Any, p: Any, constants: Any, y: Any) -> Any:
    """ONNX's rule for all granularities: the quotient is rounded to the type x and scale share."""
    scale, zero_point = p
    lo, hi, nan = constants
    return rounded_code(widen(over(x, scale)), zero_point, lo, hi, nan, item(y)), True


@formula
def quantize_by_division_to_float8(x: Any, p: Any, constants: Any, y: Any) -> Any:
    """ONNX's float8 codes: x / scale + zero_point, rounded to the grid of float8 alone."""
    scale, zero_point = p
    lo, hi, nan = constants
    t = widen(over(x, scale))
    # Where nothing is added, a zero keeps its sign.
    t = plus(t, zero_point) if widen(zero_point) != np.float32(0) else t
    return code_of(t, lo, hi, nan), True


# --- quantized_decomposed: dequantize ---------------------------------------------------------


@formula
def in_output(q: Any, scale: Any, zero_point: Any, constants: Any, y: Any) -> Any:
    """Parameters of `dequantize`: the zero point rounded to the output's dtype."""
    return scale, like(zero_point, item(y))


@formula
def dequantize(q: Any, p: Any, constants: Any, y: Any) -> Any:
    """(q - zero_point) * scale, each step rounded to the output's dtype."""
    scale, zero_point = p
    return (like(q, zero_point) - zero_point) * scale, True


@formula
def as_given(q: Any, scale: Any, zero_point: Any, constants: Any, y: Any) -> Any:
    """Parameters to divide by; of `dequantize_promoted`, brought to one precision by the host."""
    return scale, zero_point


@formula
def dequantize_promoted(q: Any, p: Any, constants: Any, y: Any) -> Any:
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
def affine(x: Any, scale: Any, zero_point: Any, constants: Any, y: Any) -> Any:
    """Parameters where K is T: the scale in float32, the bounds less the zero point."""
    lo, hi, _ = constants
    s, z = np.float32(widen(scale)), like(zero_point, lo)
    return np.float32(1) / s, s, lo - z, hi - z


@formula
def fake_quantize_per_tensor(x: Any, p: Any, constants: Any, y: Any) -> Any:
    """aten per tensor: the product is a float32 even for float64 input."""
    inverse, scale, least, greatest = p
    r = rint(widen(x) * inverse)
    q = np.float32(clamp_number(r, least, greatest))
    return fma(q, scale, np.float32(0)), (least <= r) & (r <= greatest)


@formula
def fake_quantize_per_channel(x: Any, p: Any, constants: Any, y: Any) -> Any:
    """aten per channel, integer zero points: the product in T, rounded once."""
    inverse, scale, least, greatest = p
    r = rint(widen(x) * inverse)
    q = clamp_number(r, least, greatest)
    return fma(q, like(scale, q), like(np.float32(0), q)), (least <= r) & (r <= greatest)


@formula
def affine_wide(x: Any, scale: Any, zero_point: Any, constants: Any, y: Any) -> Any:
    """Parameters where codes are too large for T, or their differences are; K is float64."""
    s = np.float32(widen(scale))
    return np.float32(1) / s, s, zero_point


@formula
def fake_quantize_per_tensor_wide(x: Any, p: Any, constants: Any, y: Any) -> Any:
    """aten per tensor step by step; the mask compares in T, where a bound may be rounded."""
    inverse, scale, zero_point = p
    lo, hi, _ = constants
    x = widen(x)
    t = like(zero_point, x) + rint(x * inverse)
    q = clamp_number(t, lo, hi)
    return np.float32(q - zero_point) * scale, (like(lo, x) <= t) & (t <= like(hi, x))


@formula
def fake_quantize_per_channel_wide(x: Any, p: Any, constants: Any, y: Any) -> Any:
    """aten per channel step by step; the product is a float64, rounded once."""
    inverse, scale, zero_point = p
    lo, hi, _ = constants
    x = widen(x)
    t = like(zero_point, x) + rint(x * inverse)
    q = clamp_number(t, lo, hi)
    return (q - like(zero_point, lo)) * like(scale, lo), (lo <= t) & (t <= hi)


@formula
def fake_quantize_float_zero_point(x: Any, p: Any, constants: Any, y: Any) -> Any:
    """aten per channel, float32 zero points: added before rounding, by one fma."""
    inverse, scale, zero_point = p
    lo, hi, _ = constants
    x = widen(x)
    # + 0 makes -0.0, which a code is not, 0.0
    t = rint(np.float32(fma(x, like(inverse, x), like(zero_point, x)))) + np.float32(0)
    q = clamp_number(t, lo, hi)
    return (q - widen(zero_point)) * like(scale, lo), (lo <= t) & (t <= hi)


@formula
def fake_quantize_half_zero_point(x: Any, p: Any, constants: Any, y: Any) -> Any:
    """aten per channel, float16 zero points: as float32 ones, but with two roundings."""
    inverse, scale, zero_point = p
    lo, hi, _ = constants
    x = widen(x)
    t = rint(np.float32(x * inverse + widen(zero_point))) + np.float32(0)
    q = clamp_number(t, lo, hi)
    return (q - widen(zero_point)) * like(scale, lo), (lo <= t) & (t <= hi)


@formula
def affine_in_input(x: Any, scale: Any, zero_point: Any, constants: Any, y: Any) -> Any:
    """Parameters of `fake_quantize_decomposed`: everything in T."""
    s = like(scale, widen(item(x)))
    return np.float32(1) / s, s, like(zero_point, s)


@formula
def fake_quantize_decomposed(x: Any, p: Any, constants: Any, y: Any) -> Any:
    """quantized_decomposed.fake_quant_per_channel: a NaN stays NaN."""
    inverse, scale, zero_point = p
    lo, hi, _ = constants
    t = rint(widen(x) * inverse) + zero_point
    return (clamp(t, lo, hi) - zero_point) * scale, (lo <= t) & (t <= hi)


# With x / scale in place of x and 1 in place of 1 / scale, each is the same by division.


@formula
def fake_quantize_per_tensor_by_division(x: Any, p: Any, constants: Any, y: Any) -> Any:
    """`fake_quantize_per_tensor`, dividing."""
    _, scale, least, greatest = p
    p = np.float32(1), scale, least, greatest
    return fake_quantize_per_tensor(widen(x) / scale, p, constants, y)


@formula
def fake_quantize_per_channel_by_division(x: Any, p: Any, constants: Any, y: Any) -> Any:
    """`fake_quantize_per_channel`, dividing."""
    _, scale, least, greatest = p
    p = np.float32(1), scale, least, greatest
    return fake_quantize_per_channel(widen(x) / scale, p, constants, y)


@formula
def fake_quantize_per_tensor_wide_by_division(x: Any, p: Any, constants: Any, y: Any) -> Any:
    """`fake_quantize_per_tensor_wide`, dividing."""
    _, scale, zero_point = p
    p = np.float32(1), scale, zero_point
    return fake_quantize_per_tensor_wide(widen(x) / scale, p, constants, y)


@formula
def fake_quantize_per_channel_wide_by_division(x: Any, p: Any, constants: Any, y: Any) -> Any:
    """`fake_quantize_per_channel_wide`, dividing; also of zero points that are floats."""
    _, scale, zero_point = p
    p = np.float32(1), scale, zero_point
    return fake_quantize_per_channel_wide(widen(x) / scale, p, constants, y)


@formula
def fake_quantize_decomposed_by_division(x: Any, p: Any, constants: Any, y: Any) -> Any:
    """`fake_quantize_decomposed`, dividing."""
    _, scale, zero_point = p
    p = np.float32(1), scale, zero_point
    return fake_quantize_decomposed(widen(x) / scale, p, constants, y)


# --- learnable --------------------------------------------------------------------------------


@formula
def nearest(zero_point: Any, lo: Any, hi: Any) -> Any:
    """A learned zero point in float32: rounded to the nearest, clamped to the bounds."""
    z = rint(np.float32(widen(zero_point)))
    return clamp(z, np.float32(lo), np.float32(hi))


@formula
def learned(x: Any, scale: Any, zero_point: Any, constants: Any, y: Any) -> Any:
    """Parameters of the learnable forward."""
    lo, hi, _ = constants
    return affine(x, scale, nearest(zero_point, lo, hi), constants, y)


@formula
def learned_wide(x: Any, scale: Any, zero_point: Any, constants: Any, y: Any) -> Any:
    """Parameters of the learnable forward with wide codes.

    A bound may be rounded to a float32 outside of the range: the zero point steps back into it.
    """
    lo, hi, _ = constants
    z = nearest(zero_point, lo, hi)
    if z > hi or z < lo:
        z = z * STEP_BACK
    return affine_wide(x, scale, z, constants, y)


@formula
def slopes_per_channel(x: Any, scale: Any, zero_point: Any, constants: Any, y: Any) -> Any:
    """Parameters of the learnable backward per channel: the zero point is a float32."""
    lo, hi, _ = constants
    s = np.float32(widen(scale))
    return np.float32(1) / s, s, nearest(zero_point, lo, hi)


@formula
def slopes_per_tensor(x: Any, scale: Any, zero_point: Any, constants: Any, y: Any) -> Any:
    """Parameters of the learnable backward per tensor: the zero point is an integer, so in K."""
    lo, hi, _ = constants
    s = np.float32(widen(scale))
    return np.float32(1) / s, s, like(nearest(zero_point, lo, hi), lo)


@formula
def slopes_truncated(x: Any, scale: Any, zero_point: Any, constants: Any, y: Any) -> Any:
    """What PyTorch's per-tensor backward uses instead: trunc(zero_point + 1/2)."""
    lo, hi, _ = constants
    s, z = np.float32(widen(scale)), np.float32(widen(zero_point)) + np.float32(0.5)
    z = trunc(clamp(z, np.float32(lo), np.float32(hi)))
    return np.float32(1) / s, s, like(z, lo)


@formula
def gradients_zero_first(g: Any, x: Any, p: Any, constants: Any) -> Any:
    """PyTorch's learnable backward: its code is rint of one fma, the zero point inside."""
    inverse, _, zero_point = p
    x = widen(x)
    t = rint(fma(x, like(inverse, x), like(zero_point, x)))
    return gradients(widen(g), x, t, p, constants)


@formula
def gradients_zero_last(g: Any, x: Any, p: Any, constants: Any) -> Any:
    """The backward with the code of its forward, so that they agree at ties."""
    inverse, _, zero_point = p
    x = widen(x)
    t = like(zero_point, x) + rint(x * inverse)
    return gradients(widen(g), x, t, p, constants)


@formula
def gradients(g: Any, x: Any, t: Any, p: Any, constants: Any) -> Any:
    """The gradients of one element from its unclamped code `t` (LSQ+, Bhalgat et al. 2020).

    Returns whether it is inside the range, and its terms of grad_scale and grad_zero_point. A NaN
    counts as below. Codes are compared in K; the rest is in T.
    """
    inverse, scale, zero_point = p
    lo, hi, factor = constants
    s = like(scale, x)
    inside = (t >= lo) & (t <= hi)
    residual = fma(like(t - zero_point, x), s, -x)
    clipped = like(like(hi if t > hi else lo, zero_point) - zero_point, x)
    slope = g * (residual if inside else clipped)
    slope = slope * like(inverse, x) if inside else slope
    shift = like(np.float32(0), x) if inside else (g * -s) * factor
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


# --- exponential and logarithm ------------------------------------------------------------------
#
# Made of fma, so that they are vectorised and the same bits everywhere. Their Taylor series are cut
# where the rest is less than a tenth of an ulp; the first coefficient stands apart, for Horner's
# rule to begin with.

_TAYLOR_32 = tuple(np.float32(1 / factorial(k)) for k in range(7, -1, -1))
_TAYLOR_64 = tuple(np.float64(1 / factorial(k)) for k in range(13, -1, -1))
_EXP_32, _EXP_32_REST = _TAYLOR_32[0], _TAYLOR_32[1:]
_EXP_64, _EXP_64_REST = _TAYLOR_64[0], _TAYLOR_64[1:]

# atanh(s) / s, in powers of s**2.
_ATANH_32 = tuple(np.float32(1 / k) for k in range(9, 0, -2))
_ATANH_64 = tuple(np.float64(1 / k) for k in range(21, 0, -2))
_LOG_32, _LOG_32_REST = _ATANH_32[0], _ATANH_32[1:]
_LOG_64, _LOG_64_REST = _ATANH_64[0], _ATANH_64[1:]

#: ln 2 to some 107 bits, as a float64 and what it lacks, and as a float32 and what that lacks.
_LN2_64, _LN2_64_REST = np.float64(0.6931471805599453), np.float64(2.3190468138462996e-17)
_LN2_32 = np.float32(_LN2_64)
_LN2_32_REST = np.float32(_LN2_64 - np.float64(_LN2_32))
_PER_LN2 = np.float64(1 / _LN2_64)

#: Beyond these exp is 0 or infinite, below it twice more than enough.
_EXP_32_ENDS = np.float32(-104), np.float32(89)
_EXP_64_ENDS = np.float64(-746), np.float64(710)
_EXP2_32_ENDS = np.float32(-151), np.float32(128)
_EXP2_64_ENDS = np.float64(-1076), np.float64(1024)


@formula
def horner(r: Any, first: Any, rest: Any) -> Any:
    """The polynomial in `r` of these coefficients, the highest power first."""
    y = first
    for c in rest:
        y = fma(y, r, c)
    return y


@formula
def scaled(y: Any, n: Any) -> Any:
    """y * 2**n, rounded once: in two steps, of which but the last may be inexact."""
    half = floor(n * like(np.float32(0.5), n))
    return y * power_of_two(half) * power_of_two(n - half)


@formula
def _exp_32(v: Any) -> Any:
    lo, hi = _EXP_32_ENDS
    v = clamp(v, lo, hi)
    n = rint(v * np.float32(_PER_LN2))
    r = fma(n, -_LN2_32_REST, fma(n, -_LN2_32, v))
    return scaled(horner(r, _EXP_32, _EXP_32_REST), n)


@formula
def _exp_64(v: Any) -> Any:
    lo, hi = _EXP_64_ENDS
    v = clamp(v, lo, hi)
    n = rint(v * _PER_LN2)
    r = fma(n, -_LN2_64_REST, fma(n, -_LN2_64, v))
    return scaled(horner(r, _EXP_64, _EXP_64_REST), n)


@formula
def exp(v: Any) -> Any:
    """e**v, subnormal results too, within 1 ulp; NaN stays NaN."""
    return by_precision(v, _exp_32, _exp_64)


@formula
def _exp2_32(v: Any) -> Any:
    lo, hi = _EXP2_32_ENDS
    v = clamp(v, lo, hi)
    n = rint(v)
    return scaled(horner((v - n) * _LN2_32, _EXP_32, _EXP_32_REST), n)


@formula
def _exp2_64(v: Any) -> Any:
    lo, hi = _EXP2_64_ENDS
    v = clamp(v, lo, hi)
    n = rint(v)
    return scaled(horner((v - n) * _LN2_64, _EXP_64, _EXP_64_REST), n)


@formula
def exp2(v: Any) -> Any:
    """2**v, subnormal results too, within 1 ulp; NaN stays NaN."""
    return by_precision(v, _exp2_32, _exp2_64)


@formula
def _log_series_32(z: Any) -> Any:
    return horner(z, _LOG_32, _LOG_32_REST)


@formula
def _log_series_64(z: Any) -> Any:
    return horner(z, _LOG_64, _LOG_64_REST)


@formula
def _log_of_mantissa(v: Any) -> Any:
    """log of the mantissa of `v`: 2 atanh((m - 1) / (m + 1))."""
    one, m = like(np.float32(1), v), mantissa(v)
    s = (m - one) / (m + one)
    return (s + s) * by_precision(s * s, _log_series_32, _log_series_64)


@formula
def log(v: Any) -> Any:
    """The natural logarithm of a normal number > 0, within 3 ulp (0 of 1); NaN stays NaN."""
    e = exponent(v)
    y = fma(e, like(_LN2_64, v), _log_of_mantissa(v))
    return y if v == v else v


@formula
def log2(v: Any) -> Any:
    """The logarithm to base 2 of a normal number > 0, within 4 ulp (0 of 1); NaN stays NaN."""
    y = fma(_log_of_mantissa(v), like(_PER_LN2, v), exponent(v))
    return y if v == v else v


@formula
def power(v: Any, exponent: Any) -> Any:
    """v**exponent, of 0 <= v <= 1 and an exponent >= 0; 0 of 0, whatever the exponent.

    Within an ulp *of 1*: an error of the logarithm weighs most where the power is 1/e.
    """
    zero, y = like(np.float32(0), v), exp2(exponent * log2(v))
    return zero if v == zero else y


@formula
def sigmoid(v: Any) -> Any:
    """1 / (1 + exp(-v)), within 3 ulp at both ends: the exponential is that of -|v|."""
    one, e = like(np.float32(1), v), exp(-abs(v))
    return (e if v < like(np.float32(0), v) else one) / (one + e)


# --- AdaRound -----------------------------------------------------------------------------------
#
# Nagel et al., "Up or Down? Adaptive Rounding for Post-Training Quantization", 2020. A weight is
# rounded down, and h(V) in [0, 1] is added: a sigmoid stretched over both ends. PyTorch has its
# constants in float32.

_ZETA, _GAMMA = np.float32(1.1), np.float32(-0.1)
_SPAN = np.float32(_ZETA - _GAMMA)


@formula
def rounding(x: Any, scale: Any, zero_point: Any, constants: Any, y: Any) -> Any:
    """Parameters of AdaRound: everything in T."""
    lo, _, _ = constants
    return like(scale, lo), like(zero_point, lo)


@formula
def stretched(sigma: Any) -> Any:
    """The sigmoid over [gamma, zeta]."""
    return sigma * like(_SPAN, sigma) + like(_GAMMA, sigma)


@formula
def within_one(h: Any) -> Any:
    """`h` in [0, 1]; NaN stays NaN."""
    return clamp(h, like(np.float32(0), h), like(np.float32(1), h))


@formula
def rectified_sigmoid(v: Any) -> Any:
    """h(V): what is added to a weight that was rounded down."""
    return within_one(stretched(sigmoid(v)))


@formula
def slope_of_rectified_sigmoid(g: Any, sigma: Any) -> Any:
    """`g` times the derivative of h(V): none where h is cut off."""
    h, zero, one = stretched(sigma), like(np.float32(0), sigma), like(np.float32(1), sigma)
    g = g if (zero <= h) & (h <= one) else zero
    return ((g * like(_SPAN, sigma)) * (one - sigma)) * sigma


@formula
def floored(x: Any, p: Any) -> Any:
    """floor(x / scale) + zero_point."""
    scale, zero_point = p
    return floor(widen(x) / scale) + zero_point


@formula
def adaround_init(x: Any, p: Any, constants: Any, y: Any) -> Any:
    """The V whose h(V) is the fraction that rounding down drops."""
    scale, _ = p
    t = widen(x) / scale
    fraction = t - floor(t)
    ratio = like(_SPAN, t) / (fraction - like(_GAMMA, t))
    return -log(ratio - like(np.float32(1), t)), True


@formula
def adaround_soft(values: Any, p: Any, constants: Any, y: Any) -> Any:
    """The weight as it is while V is learned: h(V) above the code below it."""
    x, v = values
    scale, zero_point = p
    lo, hi, _ = constants
    q = clamp(floored(x, p) + rectified_sigmoid(v), lo, hi)
    return (q - zero_point) * scale, True


@formula
def adaround_soft_backward(values: Any, p: Any, constants: Any, y: Any) -> Any:
    """The gradient of V; none where the code was clamped."""
    g, x, v = values
    scale, _ = p
    lo, hi, _ = constants
    sigma, zero = sigmoid(v), like(np.float32(0), v)
    q = floored(x, p) + within_one(stretched(sigma))
    g = widen(g) * scale if (lo <= q) & (q <= hi) else zero
    return slope_of_rectified_sigmoid(g, sigma), True


@formula
def rounded_up(x: Any, v: Any, p: Any) -> Any:
    """The code that V has decided for: the one above where V >= 0, and so h >= 1/2."""
    up = like(np.float32(1) if v >= like(np.float32(0), v) else np.float32(0), v)
    return floored(x, p) + up


@formula
def adaround_hard(values: Any, p: Any, constants: Any, y: Any) -> Any:
    """The weight as it is in the end, on the grid."""
    x, v = values
    scale, zero_point = p
    lo, hi, _ = constants
    return (clamp(rounded_up(x, v, p), lo, hi) - zero_point) * scale, True


@formula
def adaround_codes(values: Any, p: Any, constants: Any, y: Any) -> Any:
    """The code in the end; a NaN becomes `nan`."""
    x, v = values
    lo, hi, nan = constants
    return rounded_code(rounded_up(x, v, p), None, lo, hi, nan, item(y)), True


@formula
def undecided(v: Any) -> Any:
    """2h - 1: -1 and 1 where h has decided, 0 in the middle."""
    h = rectified_sigmoid(v)
    return like(np.float32(2), v) * h - like(np.float32(1), v)


@formula
def adaround_regularizer(values: Any, beta: Any) -> Any:
    """1 - |2h - 1|**beta: 1 in the middle, 0 where h has decided."""
    (v,) = values
    return like(np.float32(1), v) - power(abs(undecided(v)), beta)


@formula
def regularizing(v: Any, beta: Any, weight: Any, constants: Any, y: Any) -> Any:
    """Parameters of `adaround_regularizer_backward`, which has these in place of qparams."""
    return beta, weight


@formula
def adaround_regularizer_backward(v: Any, p: Any, constants: Any, y: Any) -> Any:
    """The gradient of weight * (1 - |2h - 1|**beta)."""
    beta, weight = p
    zero, one, two = (
        like(np.float32(0), v), like(np.float32(1), v), like(np.float32(2), v),
    )  # fmt: skip
    d = undecided(v)
    g = -weight * (beta * power(abs(d), beta - one))
    g = g if d > zero else -g
    return slope_of_rectified_sigmoid(g * two, sigmoid(v)), True


# --- metrics ------------------------------------------------------------------------------------


@formula
def product(values: Any, number: Any) -> Any:
    """A term of the inner product, in float64."""
    a, b = values
    return np.float64(widen(a)) * np.float64(widen(b))


@formula
def squared_difference(values: Any, number: Any) -> Any:
    """A term of the squared distance, in float64."""
    a, b = values
    d = np.float64(widen(a)) - np.float64(widen(b))
    return d * d


@formula
def value(values: Any, number: Any) -> Any:
    """A term of the sum, in float64."""
    (a,) = values
    return np.float64(widen(a))


@formula
def magnitude(values: Any, number: Any) -> Any:
    """A term of the sum of magnitudes, in float64."""
    (a,) = values
    return abs(np.float64(widen(a)))


# --- optimizers ---------------------------------------------------------------------------------
#
# PyTorch's single-tensor rules: what each of its kernels rounds, and where it fuses a product with
# a sum.


@formula
def decayed(g: Any, value: Any, weight_decay: Any) -> Any:
    """The gradient with that of weight_decay / 2 * value**2."""
    return fma(weight_decay, value, g)


@formula
def undecayed(g: Any, value: Any, weight_decay: Any) -> Any:
    """The gradient as it is."""
    return g


@formula
def sgd(value: Any, g: Any, lr: Any) -> Any:
    """value - lr * g, rounded once."""
    return fma(-lr, g, value)


@formula
def sgd_momentum(buffer: Any, g: Any, momentum: Any) -> Any:
    """momentum * buffer + g, each step rounded."""
    return buffer * momentum + g


@formula
def adam_mean(mean: Any, g: Any, rate: Any) -> Any:
    """The mean of the gradients, moved toward `g`: PyTorch's lerp, from its nearer end."""
    d = g - mean
    one, half = like(np.float32(1), g), like(np.float32(0.5), g)
    return fma(rate, d, mean) if rate < half else fma(rate - one, d, g)


@formula
def adam_square(square: Any, g: Any, beta2: Any, rate: Any) -> Any:
    """The mean of their squares."""
    return fma(rate * g, g, square * beta2)


@formula
def adam(value: Any, mean: Any, square: Any, step: Any, root: Any, eps: Any) -> Any:
    """value + step * mean / (sqrt(square) / root + eps); `step` is negative."""
    return value + step * mean / (sqrt(square) / root + eps)


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
