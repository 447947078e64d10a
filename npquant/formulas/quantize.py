"""Quantize and dequantize, as quantized_decomposed does."""

from __future__ import annotations

from typing import Any

import numpy as np

from npquant.formulas.base import formula, reciprocal
from npquant.formulas.guesses import MIDDLE, MIDDLE_BITS
from npquant.primitives import (
    bits,
    code_of,
    floating,
    fma,
    item,
    larger_number,
    like,
    narrowed,
    near_reciprocal,
    of_bits,
    over,
    plus,
    rint,
    rounded_code,
    shifted,
    smaller_number,
    times,
    whole,
    widen,
)

# --- quantized_decomposed: quantize -------------------------------------------------------------


@formula
def tensor_inverse(x: Any, inverse: Any, zero_point: Any, constants: Any, y: Any) -> Any:
    """Parameters of `quantize` per tensor: the host has divided, in float64."""
    return inverse, zero_point


@formula
def channel_inverse(x: Any, scale: Any, zero_point: Any, constants: Any, y: Any) -> Any:
    """Parameters of `quantize` per channel; on a GPU also of `quantize_zero_first`."""
    inverse = reciprocal(scale)
    return inverse, narrowed(zero_point, widen(item(x)) * inverse, item(y))


@formula
def quantize(x: Any, p: Any, constants: Any, y: Any) -> Any:
    """rint(x / scale) + zero_point, clamped to [lo, hi]; a NaN becomes `nan`."""
    inverse, zero_point = p
    lo, hi, nan = constants
    return rounded_code(widen(x) * inverse, zero_point, lo, hi, nan, item(y)), True


#: Whatever is added to it stays what it is.
_NOTHING = np.float32(-0.0)


@formula
def token_inverse(x: Any, scale: Any, zero_point: Any, constants: Any, y: Any) -> Any:
    """Parameters of `quantize_zero_first`: the zero point in the type of what it is added to."""
    inverse = reciprocal(scale)
    return inverse, plus(like(_NOTHING, times(item(x), inverse)), zero_point)


@formula
def quantize_zero_first(x: Any, p: Any, constants: Any, y: Any) -> Any:
    """rint(x / scale + zero_point), clamped: per token and per group round after adding.

    A two-byte input with scales of its own dtype is rounded to it at each step. An integer takes
    the dtype of the scales.
    """
    inverse, zero_point = p
    lo, hi, nan = constants
    t = shifted(times(x, inverse), zero_point, item(y))
    return rounded_code(t, None, lo, hi, nan, item(y)), True


#: As far as this from an integer, rounding is sure: errors are 2**-24 of two roundings, and up to
#: 2**-22 of a reciprocal that is subnormal. The bits of a float32, which grow as it does.
SURE = np.float32(0.5 - 2.0**-21).view(np.int32)
#: From here on a code is too large for `MIDDLE`.
_FAR = np.float64(2.0**20)
_QUARTER = np.float64(0.25)


@formula
def split_inverse(x: Any, scale: Any, zero_point: Any, constants: Any, y: Any) -> Any:
    """Parameters of `guess`: the reciprocal in two float32, and where x is cut off.

    That is a quarter of a code beyond the last ones, so that it still is rounded to them. An odd
    zero point does no harm in what is added: ties alone go the other way, and none is sure.
    """
    lo, hi, _ = constants
    inverse, z = reciprocal(scale), np.float64(widen(zero_point))
    high, least, most = np.float32(inverse), lo - z, hi - z
    low = np.float32(inverse - high)
    fits = (least > -_FAR) & (most < _FAR) & (z == rint(z))
    high = high if fits else np.float32(np.nan)
    middle = np.float32(np.float64(MIDDLE) + z)
    least, most = (least - _QUARTER) * scale, (most + _QUARTER) * scale
    return high, low, np.float32(least), np.float32(most), middle


@formula
def code_and_rest(x: Any, p: Any) -> Any:
    """What both ways to quantize mostly give of a float64 scale, and how far it is from x."""
    high, low, least, most, middle = p
    x = widen(x)
    x = least if x < least else x
    x = most if x > most else x
    t = fma(x, high, middle)
    return np.int32(bits(t) - MIDDLE_BITS), fma(x, low, fma(x, high, middle - t))


@formula
def guess(x: Any, p: Any, constants: Any, y: Any) -> Any:
    """The code, and how far from an integer: where that is below `SURE`, the code is right.

    That of a NaN is not.
    """
    code, rest = code_and_rest(x, p)
    return code, bits(abs(rest))


# --- the same on a GPU: of integer zero points, and codes of two bytes at most ------------------

#: Scales between are guessed: what their reciprocals are made of are normal numbers.
_LEAST_SCALE, _MOST_SCALE = np.float64(2.0**-100), np.float64(2.0**100)
#: The same as the upper half of their bits.
_UPPER = np.int64(32)
_LEAST_UPPER, _MOST_UPPER = (
    np.int32(s.view(np.int64) >> _UPPER) for s in (_LEAST_SCALE, _MOST_SCALE)
)
#: How many bits of a float64 a float32 has not, those bits, how many of them are too many for a
#: second float32, and by how much the exponents of the one are higher.
_BEHIND, _BEHIND_MASK, _TOO_MANY = np.int64(29), np.int64((1 << 29) - 1), np.int32(6)
_REBIASED = np.int64((1023 - 127) << 23)
#: The exponent of a float32, how far that of the second one lies below, and a mantissa.
_EXPONENT, _BELOW, _MANTISSA = np.int32(0x7F800000), np.int32(23 << 23), np.int32(0x7FFFFF)
#: Zero points up to here, and codes of two bytes, are within `_FAR` of each other.
_MOST_ZERO_POINT, _ONE, _QUARTER_OF_ONE = np.int64(1 << 19), np.float32(1), np.float32(0.25)
_NAN, _SURE_REST = np.float32(np.nan), SURE.view(np.float32)


@formula
def _near_zero(zero_point: Any) -> Any:
    """Whether a zero point is small; as an int32, and in the last bits of `MIDDLE`."""
    z = whole(zero_point)
    small = np.int32(z)
    middle = of_bits(np.int32(MIDDLE_BITS + small), MIDDLE)
    return (z >= -_MOST_ZERO_POINT) & (z < _MOST_ZERO_POINT), small, middle


@formula
def halves(high: Any, low: Any, near: Any) -> Any:
    """1 / (high + low) as the sum of two float32, off by 2**-42 of it; `near` is about 1 / high."""
    rest = fma(-low, near, fma(-high, near, _ONE))
    inverse = fma(near, rest, near)
    return inverse, fma(near, rest, near - inverse)


@formula
def split_inverse_by_bits(x: Any, scale: Any, zero_point: Any, constants: Any, y: Any) -> Any:
    """As `split_inverse`, without float64.

    The scale is cut in two, of 24 bits and of 23. x is cut off up to 3/16 of a code farther in or
    out, as the first is used alone.
    """
    lo, hi, _ = constants
    k, (fits, _, middle) = bits(scale), _near_zero(zero_point)
    upper = np.int32(k >> _UPPER)
    fits = fits & (upper >= _LEAST_UPPER) & (upper < _MOST_UPPER)
    head, behind = np.int32((k >> _BEHIND) - _REBIASED), np.int32(k & _BEHIND_MASK)
    base = np.int32(np.int32(head & _EXPONENT) - _BELOW)
    s, floor = of_bits(head, MIDDLE), of_bits(base, MIDDLE)
    low = of_bits(np.int32(base | np.int32(behind >> _TOO_MANY)), MIDDLE) - floor
    inverse, rest = halves(s, low, near_reciprocal(s))
    zero = middle - MIDDLE
    least = (np.float32(lo) - zero - _QUARTER_OF_ONE) * s
    most = (np.float32(hi) - zero + _QUARTER_OF_ONE) * s
    return (inverse if fits else _NAN), rest, least, most, middle


@formula
def guess_or_doubt(x: Any, p: Any, constants: Any, y: Any) -> Any:
    """`guess`, and whether to doubt it."""
    code, rest = code_and_rest(x, p)
    return code, not abs(rest) < _SURE_REST


@formula
def rounded_reciprocal(scale: Any, near: Any) -> Any:
    """1 / scale, correctly rounded, of a number that is not near the ends of float32.

    A test has found so of every mantissa but the last one, and of every `near` that is off by two
    ulp at most.
    """
    near = fma(near, fma(-scale, near, _ONE), near)
    return fma(near, fma(-scale, near, _ONE), near)


@formula
def inverse_in_float32(x: Any, scale: Any, zero_point: Any, constants: Any, y: Any) -> Any:
    """Parameters of the next two: the reciprocal of a float32, the zero point twice, and bounds."""
    lo, hi, _ = constants
    fits, small, middle = _near_zero(zero_point)
    fits = fits & (scale >= np.float32(_LEAST_SCALE)) & (scale < np.float32(_MOST_SCALE))
    fits = fits & (np.int32(bits(scale) & _MANTISSA) != _MANTISSA)
    inverse = rounded_reciprocal(scale, near_reciprocal(scale))
    return (inverse if fits else _NAN), small, middle - MIDDLE, np.float32(lo), np.float32(hi)


@formula
def zero_last(x: Any, p: Any, constants: Any, y: Any) -> Any:
    """`quantize` of a float32 scale, and whether to doubt it; a zero point moves the bounds."""
    inverse, small, zero, lo, hi = p
    t = widen(x) * inverse
    near = smaller_number(larger_number(t, lo - zero), hi - zero)
    return np.int32(np.int32(bits(near + MIDDLE) - MIDDLE_BITS) + small), t != t


@formula
def zero_first(x: Any, p: Any, constants: Any, y: Any) -> Any:
    """`quantize_zero_first` of a float32 scale, and whether to doubt it."""
    inverse, _, zero, lo, hi = p
    t = widen(x) * inverse + zero
    return np.int32(bits(smaller_number(larger_number(t, lo), hi) + MIDDLE) - MIDDLE_BITS), t != t


# --- ONNX: quantize -----------------------------------------------------------------------------


@formula
def quantize_by_division(x: Any, p: Any, constants: Any, y: Any) -> Any:
    """ONNX's rule for all granularities: the quotient is rounded to the type x and scale share."""
    scale, zero_point = p
    lo, hi, nan = constants
    return rounded_code(over(x, scale), zero_point, lo, hi, nan, item(y)), True


@formula
def quantize_by_division_to_float8(x: Any, p: Any, constants: Any, y: Any) -> Any:
    """ONNX's float8 codes: x / scale + zero_point, rounded to the grid of float8 alone."""
    scale, zero_point = p
    lo, hi, nan = constants
    t = widen(over(x, scale))
    # Where nothing is added, a zero keeps its sign.
    t = plus(t, zero_point) if widen(zero_point) != np.float32(0) else t
    return code_of(t, lo, hi, nan), True


# --- quantized_decomposed: dequantize -----------------------------------------------------------


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
    """Parameters as they are: to divide by."""
    return scale, zero_point


@formula
def in_integers(q: Any, scale: Any, zero_point: Any, constants: Any, y: Any) -> Any:
    """Parameters of `dequantize_promoted` where zero points may be of any size."""
    return scale, whole(zero_point)


@formula
def in_floats(q: Any, scale: Any, zero_point: Any, constants: Any, y: Any) -> Any:
    """Parameters of `dequantize_promoted`, integer zero points as the floats that hold them."""
    return scale, floating(zero_point)


@formula
def dequantize_promoted(q: Any, p: Any, constants: Any, y: Any) -> Any:
    """(q - zero_point) * scale in the precision of the scale, rounded once to the output."""
    scale, zero_point = p
    return like(like(q, zero_point) - zero_point, scale) * scale, True


@formula
def split_scale(q: Any, scale: Any, zero_point: Any, constants: Any, y: Any) -> Any:
    """Parameters of `dequantize_in_float32`: a float64 scale as the sum of two float32."""
    high = np.float32(scale)
    return high, np.float32(scale - np.float64(high)), floating(zero_point)


@formula
def dequantize_in_float32(q: Any, p: Any, constants: Any, y: Any) -> Any:
    """What `dequantize_promoted` mostly gives of a float64 scale for float32."""
    high, low, zero_point = p
    d = like(q, zero_point) - zero_point
    return fma(d, high, d * low), True
