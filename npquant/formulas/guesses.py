"""How rows are quantized in float32 with qparams that were chosen from them.

Nothing in such a row is far beyond the bounds, and nothing a NaN, so that fewer steps have the bits
of the rule, or tell that they might not have them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from npquant.dtypes import bfloat16, float32, float64
from npquant.formulas.base import formula, reciprocal
from npquant.primitives import bits, fma, key, value, widen


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


#: Added to a float32 between -2**22 and 2**22, it leaves an integer in the last bits.
MIDDLE = np.float32(1.5 * 2**23)
MIDDLE_BITS = MIDDLE.view(np.int32)
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


#: The bits of the exponent of a float32; and what, times that power of two, leaves the eight bits
#: of a bfloat16 of whatever has this exponent and is added to it.
_EXPONENT, _EIGHT_BITS = np.int32(0x7F800000), np.float32(1.5 * 2**16)
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
