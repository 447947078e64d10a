"""The few scalar operations that formulas are made of, as plain Python.

Each has the same meaning in every backend; `cpu/primitives.py` (and its CUDA twin) teach the
compilers to do them in a few instructions. Uncompiled (`NUMBA_DISABLE_JIT=1`) these bodies run.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np

_IN_FLOAT64 = (np.int32, np.int64, np.uint32, int)


def rint(x: Any) -> Any:
    """Round to an integral value, ties to even."""
    return type(x)(np.rint(x))


def trunc(x: Any) -> Any:
    """Round to an integral value, toward zero."""
    return type(x)(np.trunc(x))


def floor(x: Any) -> Any:
    """Round to an integral value, down."""
    return type(x)(np.floor(x))


def sqrt(x: Any) -> Any:
    """The square root, correctly rounded."""
    return type(x)(np.sqrt(x))


def fma(a: Any, b: Any, c: Any) -> Any:
    """a * b + c with one rounding, in the type of `a`."""
    kind = type(a)
    if not (math.isfinite(a) and math.isfinite(b) and math.isfinite(c)):
        return a * b + c
    exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
    if exact == 0:
        return a * b + c
    try:
        near = float(exact)  # correctly rounded
    except OverflowError:
        return kind(math.inf if exact > 0 else -math.inf)
    if kind is np.float32 and Fraction(near) != exact:
        # Round to odd in float64 first, so that the second rounding is the only one that counts.
        toward = math.inf if exact > Fraction(near) else -math.inf
        if not np.float64(near).view(np.int64) & 1:
            near = math.nextafter(near, toward)
    return kind(near)


def larger_number(a: Any, b: Any) -> Any:
    """The larger of two, `b` if `a` is a NaN; of zeros that of either sign. `b` is none."""
    return a if a > b else b


def smaller_number(a: Any, b: Any) -> Any:
    """The smaller of two; see `larger_number`."""
    return a if a < b else b


def widen(v: Any) -> Any:
    """`v` in the narrowest of float32 and float64 that holds every value of its type."""
    if isinstance(v, (np.float32, np.float64)):
        return v
    return np.float64(v) if isinstance(v, _IN_FLOAT64) else np.float32(v)


def like(v: Any, other: Any) -> Any:
    """`v` rounded to the type of `other`; float64 reaches two-byte floats by way of float32."""
    kind = type(other)
    if kind in (np.float16, ml_dtypes.bfloat16):
        return kind(np.float32(v))
    return _float8(v, np.dtype(kind)) if kind in _FLOAT8 else kind(v)


def floating(v: Any) -> Any:
    """`v`; an integer as a float32."""
    return np.float32(v) if isinstance(v, (int, np.integer)) else v


def whole(v: Any) -> Any:
    """`v`; an integer as an int64, in which differences of those of 32 bits are exact."""
    return np.int64(v) if isinstance(v, (int, np.integer)) else v


def at(p: Any, c: Any) -> Any:
    """The parameter of channel `c`: `p` is one number for all, or an array of one a channel."""
    return p[c] if isinstance(p, np.ndarray) else p


def each(x: Any, i: Any) -> Any:
    """Element `i`: of an array, or of every array of a tuple."""
    return tuple(a[i] for a in x) if isinstance(x, tuple) else x[i]


def put(arrays: Any, i: Any, values: Any) -> None:
    """Write one value to element `i` of each array of a tuple, and drop what is left of them."""
    for a, v in zip(arrays, values, strict=False):
        store(a, i, v)


def by_precision(v: Any, single: Callable[..., Any], double: Callable[..., Any]) -> Any:
    """What belongs to the type of `v`: single(v) of a float32, double(v) of a float64."""
    return double(v) if isinstance(v, np.float64) else single(v)


def times(x: Any, s: Any) -> Any:
    """x * s: an integer `x` takes the type of `s`, a floating one promotes."""
    return (like(x, s) if isinstance(x, (int, np.integer)) else x) * s


def over(x: Any, s: Any) -> Any:
    """x / s: an integer `x` takes the type of `s`, a floating one promotes."""
    return (like(x, s) if isinstance(x, (int, np.integer)) else x) / s


def plus(t: Any, z: Any) -> Any:
    """t + z: an integer `z` takes the type of `t`, a floating one promotes."""
    return t + (like(z, t) if isinstance(z, (int, np.integer)) else z)


def shifted(t: Any, z: Any, other: Any) -> Any:
    """t + z as of `plus`, for codes of the type of `other`.

    Where these are integers, a zero need not be added: they have no sign of their zeros.
    """
    return plus(t, z)


def narrowed(zero_point: Any, t: Any, other: Any) -> Any:
    """The zero point as `rounded_code` adds it to `t`, in no more bits than that takes."""
    return zero_point


def code_of(v: Any, lo: Any, hi: Any, nan: Any) -> Any:
    """`v` clamped to [lo, hi], a NaN as `nan`, in the type of these: truncated to an integer one.

    -0.0 at a bound of 0 stays: float8 shows it.
    """
    if v != v:
        return nan
    return lo if v < lo else hi if v > hi else like(v, lo)


def rounded_code(t: Any, zero_point: Any, lo: Any, hi: Any, nan: Any, other: Any) -> Any:
    """rint(t) + zero_point (None: rint(t)) as a code, for codes of the type of `other`.

    Of a two-byte `t` both are in float32. An integer zero point lies within +-2**20 where `other`
    has at most 16 bits.
    """
    t = rint(widen(t))
    return code_of(t if zero_point is None else plus(t, zero_point), lo, hi, nan)


def item(y: np.ndarray[Any, Any]) -> Any:
    """A value of the type of the elements of `y`."""
    return y.dtype.type(0)


def store(y: np.ndarray[Any, Any] | None, i: Any, v: Any) -> None:
    """y[i] = v; where there is no `y`, nothing.

    Integers are truncated: a formula has clamped `v` to the range of the target before, but for a
    guess, an int32, that is not sure. float8_e4m3fn saturates, other floats overflow to infinity.
    """
    if y is None:
        return
    kind = y.dtype.type
    if np.issubdtype(y.dtype, np.bool_) or kind in (np.float32, np.float64):
        y[i] = v
    elif y.dtype.kind in "iu":
        y[i] = v.astype(y.dtype) if type(v) is np.int32 else int(v)
    elif kind in _SUB_BYTE:
        y[i] = int(v)
    else:
        y[i] = like(v, y.dtype.type(0))


def _float8(v: Any, dtype: Any) -> Any:
    """As PyTorch: e4m3fn saturates, and the NaN of both has all bits but the sign."""
    v = np.float32(v)
    if v != v:
        return np.uint8(0xFF if np.signbit(v) else 0x7F).view(dtype)
    if dtype == ml_dtypes.float8_e4m3fn:
        v = np.clip(v, np.float32(-448), np.float32(448))
    return v.astype(dtype)


_FLOAT8 = (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)
_SUB_BYTE = (ml_dtypes.int4, ml_dtypes.uint4, ml_dtypes.int2, ml_dtypes.uint2)
KEYS: dict[int, Any] = {2: np.int16, 4: np.int32, 8: np.int64}
_BIAS = {4: 127, 8: 1023}

#: Where `mantissa` begins: the bits of the square root of 1/2, cut to a float32.
SQRT_HALF = 11863283 * 2.0**-24


def key(v: Any) -> Any:
    """An integer that orders as `v` does: -NaN < -inf < ... < -0.0 < 0.0 < ... < inf < NaN.

    Minima and maxima of integers are exact, associative and vectorised; those of floats are not
    all three. An integer is its own key.
    """
    if isinstance(v, (int, np.integer)):
        return v
    kind = KEYS[v.itemsize]
    bits = np.asarray(v).view(kind)[()]
    return kind(bits ^ (np.iinfo(kind).max if bits < 0 else 0))


def bits(v: Any) -> Any:
    """The bits of a float as a signed integer; an integer is its own."""
    if isinstance(v, (int, np.integer)):
        return v
    return np.asarray(v).view(KEYS[v.itemsize])[()]


def of_bits(k: Any, other: Any) -> Any:
    """The value whose bits are the lowest of the integer `k`, in the type of `other`."""
    return np.asarray(k).astype(f"u{other.itemsize}").view(type(other))[()]


def value(k: Any, other: Any) -> Any:
    """What the key `k` was made of, in the type of `other`."""
    if isinstance(other, (int, np.integer)):
        return k
    bits = k ^ (np.iinfo(k.dtype).max if k < 0 else 0)
    return np.asarray(bits, k.dtype).view(other.dtype)[()]


def power_of_two(n: Any) -> Any:
    """2**n in the type of `n`, an integral float whose power is a normal number; 0 of the next one.

    Of any other `n` the result is some number, and no error.
    """
    kind, bias = KEYS[n.itemsize], _BIAS[n.itemsize]
    if n == -bias:
        return type(n)(0)
    if not -bias < n <= bias:
        return type(n)(np.nan)
    return np.ldexp(type(n)(1), kind(n))


def mantissa(v: Any) -> Any:
    """m of v = m * 2**e, sqrt(1/2) <= m < sqrt(2), for a normal number v > 0."""
    m, _ = np.frexp(v)
    return m if m >= type(v)(SQRT_HALF) else m * type(v)(2)


def exponent(v: Any) -> Any:
    """e of v = m * 2**e, as a float; see `mantissa`."""
    m, e = np.frexp(v)
    return type(v)(e if m >= type(v)(SQRT_HALF) else e - 1)


def near_reciprocal(v: Any) -> Any:
    """About 1 / v of a float32 whose reciprocal is a normal number: off by two ulp at most."""
    return np.float32(1) / v


def from_one(m: Any) -> Any:
    """(m - 1) / (m + 1) of a mantissa; see `mantissa`."""
    one = type(m)(1)
    return (m - one) / (m + one)


def masked(g: Any, m: Any) -> Any:
    """`g` where `m`, else zero with the sign bit of `g`."""
    if m:
        return g
    return type(g)(0) if isinstance(g, np.integer) else np.copysign(type(g)(0), g)


def converted(v: Any, other: Any) -> Any:
    """`v` in the type of `other`: to integers truncated, then wrapped, and else as `like`.

    What the integer on the way (int64 to uint8, uint32 and int64, else int32) cannot hold becomes
    its least value, as on x86; a NaN becomes 0.
    """
    if not isinstance(other, np.integer):
        return like(v, other)
    v = widen(v)
    beyond = 2.0**63 if isinstance(other, (np.uint8, np.uint32, np.int64)) else 2.0**31
    i = 0 if v != v else int(v) if abs(v) < beyond else -int(beyond)
    return np.int64(i).astype(other.dtype)
