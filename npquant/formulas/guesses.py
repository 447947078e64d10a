"""Codes that are guessed in float32, by fewer steps than the rules of `quantize.py` take.

With a guess comes what tells whether it is in doubt: then it is done again by the rule, whose bits
all codes have.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from npquant.dtypes import bfloat16, float32, float64
from npquant.formulas.base import formula, reciprocal
from npquant.primitives import (
    bits,
    fma,
    key,
    larger_number,
    near_reciprocal,
    of_bits,
    rint,
    smaller_number,
    value,
    whole,
    widen,
)

#: Added to a float32 between -2**22 and 2**22, it leaves an integer in the last bits.
MIDDLE = np.float32(1.5 * 2**23)
MIDDLE_BITS = MIDDLE.view(np.int32)

# --- qparams that are given: of float64 scales --------------------------------------------------

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


# --- qparams chosen from the rows, where nothing is far beyond the bounds, and nothing a NaN -----


class Guess(NamedTuple):
    """A way for some dtypes.

    Parameters
    ----------
    of : callable
        ``of(x, scale)``: whether dtypes are those that it is for.
    split : callable
        ``split(scale, zero_point) -> p``, three float32, once a row.
    code : callable
        ``code(x, p) -> (code, doubt)``: it is what the rule gives if the doubt is 0.
    """

    of: Callable[[Any, Any], bool]
    split: Callable[..., Any]
    code: Callable[..., Any]


#: The bounds of int8, what takes a key to the next one, and no doubt.
_LEAST, _GREATEST, _NEXT, _NO_DOUBT = np.int32(-128), np.int32(127), np.int32(1), np.int32(0)


@formula
def around_inverse(scale: Any, zero_point: Any) -> Any:
    """Parameters of `between`: a float32 on each side of the reciprocal, and what is added."""
    near = np.float32(reciprocal(scale))
    below, above = (
        value(np.int32(key(near) - _NEXT), near),
        value(np.int32(key(near) + _NEXT), near),
    )
    return below, above, np.float32(MIDDLE + np.float32(zero_point))


@formula
def between(x: Any, p: Any) -> Any:
    """What `quantize_zero_first` gives of a float64 scale as an int8.

    Both factors are 2**-25 of the reciprocal or more away from it, and `fma` rounds once, to an
    integer. The rule rounds twice before, by 2**-53 at most each time. Near a tie the quotient is a
    half or more, as a zero point is an integer: so the rule's sum lies between, and rounding keeps
    the order.
    """
    below, above, middle = p
    x = widen(x)
    one, other = bits(fma(x, below, middle)), bits(fma(x, above, middle))
    # An instruction that makes an int8 clamps.
    code = min(max(np.int32(one - MIDDLE_BITS), _LEAST), _GREATEST)
    return code, np.int32(one ^ other)


@formula
def inverse_alone(scale: Any, zero_point: Any) -> Any:
    """Parameters of the next two, whose zero points are 0: there is but one."""
    inverse = widen(reciprocal(scale))
    return inverse, inverse, inverse


@formula
def centred(x: Any, p: Any) -> Any:
    """What `quantize_zero_first` gives of a float32 scale: no quotient is rounded beyond 127."""
    inverse, _, _ = p
    return np.int32(bits(widen(x) * inverse + MIDDLE) - MIDDLE_BITS), _NO_DOUBT


#: What, times the power of two of its exponent, leaves the eight bits of a bfloat16 of whatever has
#: this exponent and is added to it.
_EIGHT_BITS = np.float32(1.5 * 2**16)
#: The bits of `MIDDLE` and a code of -127 or 127.
_LEAST_BITS, _GREATEST_BITS = np.int32(MIDDLE_BITS - 127), np.int32(MIDDLE_BITS + 127)


@formula
def centred_in_bfloat16(x: Any, p: Any) -> Any:
    """The same of bfloat16, which the quotient is rounded to; it may be 127.5."""
    inverse, _, _ = p
    t = widen(x) * inverse
    far = value(np.int32(bits(t) & _EXPONENT), t) * _EIGHT_BITS
    k = bits((t + far) - far + MIDDLE)
    return np.int32(min(max(k, _LEAST_BITS), _GREATEST_BITS) - MIDDLE_BITS), _NO_DOUBT


#: For scales of `choose_qparams_per_token`, and of `choose_qparams_per_token_asymmetric`.
SYMMETRIC = (
    Guess(lambda x, scale: scale == float32, inverse_alone, centred),
    Guess(lambda x, scale: scale == bfloat16, inverse_alone, centred_in_bfloat16),
)
ASYMMETRIC = (Guess(lambda x, scale: x != float64, around_inverse, between),)
