"""The sigmoid, the logarithm and the power that AdaRound needs.

Made of fma, so that they are vectorised and the same bits everywhere. Each is a polynomial, of
Chebyshev's interpolation, that is off by less than half a unit in the last place of its greatest
value; that of the start of AdaRound by one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from npquant.formulas.base import clamp, formula
from npquant.primitives import (
    by_precision,
    exponent,
    fma,
    from_one,
    like,
    mantissa,
    power_of_two,
    rint,
)


def _quads(kind: Any, *coefficients: float) -> tuple[Any, Any]:
    """Coefficients, those of the lowest powers first, for `polynomial`."""
    numbers = iter([kind(c) for c in coefficients])
    first, *rest = reversed([*zip(numbers, numbers, numbers, numbers, strict=True)])
    return first, tuple(rest)


# (sigmoid(v) - 1/2) / v in powers of v**2, for |v| <= 2.4.
_SIGMOID_32 = _quads(
    np.float32,
    0.24999999, -0.020833068, 0.0020823416, -2.0937291e-04,
    2.0296966e-05, -1.717963e-06, 1.0460989e-07, -3.1787029e-09,
)  # fmt: skip
_SIGMOID_64 = _quads(
    np.float64,
    0.25, -0.020833333333333325, 0.0020833333333331403, -2.1081349206170902e-04,
    2.1356922389857853e-05, -2.1638758355729033e-06, 2.1924604334342138e-07,
    -2.2214195068828434e-08, 2.2506979871637652e-09, -2.2798962204752244e-10,
    2.3068837126949107e-11, -2.3232289323183437e-12, 2.3043169085009953e-13,
    -2.1990862416049964e-14, 1.9402497435427447e-15, -1.4970968488744015e-16,
    9.425752250831087e-18, -4.431736310405025e-19, 1.3589011912105153e-20,
    -2.0140939068386988e-22,
)  # fmt: skip
_END = np.float32(2.4)

# log((r + 0.1) / (1.1 - r)) / (1/2 - r) in powers of (1/2 - r)**2 - 1/8, for 0 <= r <= 1, with the
# least error that so many can have. In powers of the square alone they are millions that cancel.
_LOGIT_32 = np.float32(-949353.75), tuple(map(np.float32, (
    -152476.2, -4754.4575, -4657.6885, -1736.5305, -441.51263, -124.8335, -38.248547, -12.754714,
    -5.117527, -3.8270032,
)))  # fmt: skip
_MIDDLE = np.float32(-0.125)

# 2**r in powers of r, for |r| <= 1/2.
_EXP2_32 = _quads(
    np.float32,
    1, 0.6931472, 0.2402265, 0.05550411, 0.009618025, 0.0013333479, 1.5469729e-04, 1.53037e-05,
)  # fmt: skip
_EXP2_64 = _quads(
    np.float64,
    1, 0.6931471805599453, 0.24022650695910158, 0.055504108664821625, 0.009618129107587256,
    0.001333355814640647, 1.5403530463724353e-04, 1.5252733841556773e-05, 1.3215432535912375e-06,
    1.0178057087733941e-07, 7.074194297288521e-09, 4.4558179083360645e-10,
)  # fmt: skip
#: Here `power_of_two` gives 0.
_LEAST_32, _LEAST_64 = np.float32(-127), np.float64(-1023)

# atanh(s) / s in powers of s**2, for what mantissas give.
_ATANH_32, _ = _quads(np.float32, 1, 0.3333341, 0.19987425, 0.14962195)
_ATANH_64 = _quads(
    np.float64,
    1, 0.33333333333333826, 0.1999999999965117, 0.1428571438032084, 0.11111098528363024,
    0.09091815840114664, 0.07656264074182095, 0.07404855180327638,
)  # fmt: skip

_LN2 = np.float64(0.6931471805599453)
_TWO_PER_LN2 = np.float64(2 / _LN2)


@formula
def _quad(quad: Any, r: Any, rr: Any) -> Any:
    a, b, c, d = quad
    return fma(fma(d, r, c), rr, fma(b, r, a))


@formula
def polynomial(r: Any, coefficients: Any) -> Any:
    """The polynomial in `r` of these `_quads`: four powers at a time, by Estrin's scheme.

    By Horner's, each step waits for the one before, and a processor waits most of the time.
    """
    first, rest = coefficients
    rr = r * r
    y, rrrr = _quad(first, r, rr), rr * rr
    for c in rest:
        y = fma(y, rrrr, _quad(c, r, rr))
    return y


@formula
def _sigmoid_32(vv: Any) -> Any:
    return polynomial(vv, _SIGMOID_32)


@formula
def _sigmoid_64(vv: Any) -> Any:
    return polynomial(vv, _SIGMOID_64)


@formula
def sigmoid(v: Any) -> Any:
    """1 / (1 + exp(-v)) of -2.4 <= v <= 2.4, and what it is there beyond; NaN stays NaN.

    Within 2**-23, or 2**-52.
    """
    v = clamp(v, like(-_END, v), like(_END, v))
    return fma(v, by_precision(v * v, _sigmoid_32, _sigmoid_64), like(np.float32(0.5), v))


@formula
def stretched_logit(r: Any) -> Any:
    """log((r + 0.1) / (1.1 - r)) of 0 <= r <= 1 in float32, within 8 * 2**-23; -0.0 of 1/2.

    A polynomial by Horner's scheme, which has the fewest products: no quotient, and no difference
    of numbers that are nearly the same.
    """
    d = np.float32(0.5) - r
    w = fma(d, d, _MIDDLE)
    y, rest = _LOGIT_32
    for c in rest:
        y = fma(y, w, c)
    return d * y


@formula
def _exp2_32(v: Any) -> Any:
    v = v if v > _LEAST_32 else _LEAST_32
    n = rint(v)
    return polynomial(v - n, _EXP2_32) * power_of_two(n)


@formula
def _exp2_64(v: Any) -> Any:
    v = v if v > _LEAST_64 else _LEAST_64
    n = rint(v)
    return polynomial(v - n, _EXP2_64) * power_of_two(n)


@formula
def _atanh_32(ss: Any) -> Any:
    return _quad(_ATANH_32, ss, ss * ss)


@formula
def _atanh_64(ss: Any) -> Any:
    return polynomial(ss, _ATANH_64)


@formula
def _half_log_of_mantissa(v: Any) -> Any:
    """Half the log of the mantissa of `v`: atanh((m - 1) / (m + 1))."""
    s = from_one(mantissa(v))
    return s * by_precision(s * s, _atanh_32, _atanh_64)


@formula
def log(v: Any) -> Any:
    """The natural logarithm of a normal number > 0, within 5 ulp (0 of 1); NaN stays NaN."""
    half = _half_log_of_mantissa(v)
    y = fma(exponent(v), like(_LN2, v), half + half)
    return y if v == v else v


@formula
def log2(v: Any) -> Any:
    """The logarithm to base 2 of a normal number > 0, within 6 ulp (0 of 1)."""
    return fma(_half_log_of_mantissa(v), like(_TWO_PER_LN2, v), exponent(v))


@formula
def raised(v: Any, t: Any) -> Any:
    """v**exponent, of t = exponent * log2(v), 0 <= v <= 1 and an exponent >= 0; 0 of v = 0.

    Within 4 * 2**-23, or 4 * 2**-52: an error of the logarithm weighs most where the power is 1/e.
    NaN stays NaN.
    """
    y = by_precision(t, _exp2_32, _exp2_64)
    return y if v > like(np.float32(0), v) else v
