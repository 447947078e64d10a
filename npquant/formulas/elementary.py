"""exp, log and what is made of them."""

from __future__ import annotations

from math import factorial
from typing import Any

import numpy as np

from npquant.formulas.base import clamp, formula
from npquant.primitives import (
    by_precision,
    exponent,
    floor,
    fma,
    like,
    mantissa,
    power_of_two,
    rint,
)

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
