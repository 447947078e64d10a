"""The primitives as plain Python: what kernels do without the compiler, and it is taught."""

import math

import ml_dtypes
import numpy as np
import pytest
from numba import njit

import oracle
from npquant import dtypes
from npquant import primitives as p

F16, BF16, F32, F64 = np.float16, ml_dtypes.bfloat16, np.float32, np.float64
E4M3, E5M2 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
SPECIAL = (0.0, -0.0, math.inf, -math.inf, math.nan, 1e-45, -3e38, 2.5, -0.5, 8388609.0)


def same(a, b):
    """Equal in type, in value and in the sign of a zero; NaNs are one."""
    if type(a) is not type(b):
        return False
    if a != a or b != b:
        return a != a and b != b
    return a == b and math.copysign(1, float(a)) == math.copysign(1, float(b))


@pytest.mark.parametrize("kind", [F32, F64])
def test_rounding(kind):
    values = [-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 0.49999997, -0.0, math.inf, -math.inf, math.nan]
    wanted = {
        p.rint: [-2, -2, -0.0, 0, 2, 2, 0],
        p.trunc: [-2, -1, -0.0, 0, 1, 2, 0],
        p.floor: [-3, -2, -1, 0, 1, 2, 0],
    }
    for op, results in wanted.items():
        for v, w in zip(values, [*results, *values[7:]], strict=True):
            assert same(op(kind(v)), kind(w)), (op, v)
    assert same(p.sqrt(kind(2)), np.sqrt(kind(2)))


@pytest.mark.parametrize("kind", [F32, F64])
def test_fma_rounds_once(kind):
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=4000).astype(kind) for _ in range(2))
    c = np.where(rng.random(4000) < 0.5, -(a * b), rng.normal(size=4000)).astype(kind)
    tiny = np.ldexp(kind(1), rng.integers(-80, 1, 4000)).astype(kind)
    for x, y, z in ((a, b, c), (a * tiny, b * tiny, c), (a, b, c * tiny)):
        expected = oracle.fma(x, y, z)
        got = np.array([p.fma(*v) for v in zip(x, y, z, strict=True)])
        assert got.dtype == kind
        np.testing.assert_array_equal(got, expected)
    one = kind(1)
    if kind == F32:
        # 1 + 2**-23 + 2**-24 - 2**-60: in float64 a tie, which goes to the wrong side.
        a, b = (F32(2.0**-12 * (1 + sign * 2.0**-18)) for sign in (1, -1))
        assert p.fma(a, b, np.nextafter(one, F32(2))) == np.nextafter(one, F32(2))
    with np.errstate(all="ignore"):
        for v in SPECIAL:
            for w in SPECIAL:
                x, y = kind(v), kind(w)
                assert same(p.fma(x, y, one), oracle.fma(x, y, one)[()]), (v, w)
        great = np.finfo(kind).max  # whose square no float64 holds
        for x, y in ((great, great), (-great, great)):
            assert same(p.fma(x, y, one), oracle.fma(x, y, one)[()]), (x, y)


def test_widen():
    for kind in (F16, BF16, F32, np.int8, np.uint16, E4M3):
        assert type(p.widen(kind(3))) is F32
    for kind in (F64, np.int32, np.uint32, np.int64, int):
        assert type(p.widen(kind(3))) is F64
    assert p.widen(np.uint32(2**32 - 1)) == 2**32 - 1


def test_like():
    """float64 reaches two bytes by way of float32, with two roundings."""
    v = F64(1 + 2.0**-8 + 2.0**-40)
    assert same(p.like(v, BF16(0)), BF16(1))
    assert same(p.like(F64(0.1), F32(0)), F32(0.1))
    assert same(p.like(np.int8(-3), F64(0)), F64(-3))
    assert same(p.like(F32(2.0**-11 + 1), F16(0)), F16(1))


@pytest.mark.parametrize(("kind", "greatest"), [(E4M3, 448), (E5M2, math.inf)])
def test_float8(kind, greatest):
    assert float(p.like(F32(1e9), kind(0))) == greatest
    assert float(p.like(F32(-math.inf), kind(0))) == -greatest
    for nan, bits in ((math.nan, 0x7F), (-math.nan, 0xFF)):
        assert p.like(F32(nan), kind(0)).view(np.uint8) == bits
    assert same(p.like(F32(-0.0), kind(0)), kind(-0.0))


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_power_of_two(kind):
    """From the least normal number on; what is half of it is 0."""
    least = np.finfo(kind).minexp
    n = np.array([least - 1, least, -1, 0, 1, np.finfo(kind).maxexp - 1], kind)
    expected = np.ldexp(kind(1), n.astype(np.int32))
    expected[0] = 0
    compiled = njit(lambda v: p.power_of_two(v))
    for each in (p.power_of_two, compiled):
        assert [each(v) for v in n] == expected.tolist()


@pytest.mark.parametrize("kind", [F32, F64])
def test_parts_of_a_number(kind):
    """Mantissas from the square root of a half on, exponents, and how far mantissas are from 1."""
    least = kind(p.SQRT_HALF)
    compiled = (
        njit(lambda v: p.mantissa(v)), njit(lambda v: p.exponent(v)), njit(lambda v: p.from_one(v)),
    )  # fmt: skip
    for m in (least, np.nextafter(2 * least, kind(0)), kind(1), kind(0.75), kind(1.25)):
        for mantissa, exponent, from_one in ((p.mantissa, p.exponent, p.from_one), compiled):
            for e in (-120, -1, 0, 1, 120):
                v = np.ldexp(m, e)
                assert (mantissa(v), exponent(v)) == (m, e)
            assert from_one(m) == (m - kind(1)) / (m + kind(1))


def test_items():
    x = np.array([1, 2], np.int8)
    assert p.at(x, 1) == 2
    assert p.at(7, 1) == 7
    assert p.each(x, 0) == 1
    assert p.each((x, x + 1), 0) == (1, 2)
    assert same(p.item(x), np.int8(0))
    assert p.by_precision(F32(1), lambda v: "single", lambda v: "double") == "single"
    assert p.by_precision(F64(1), lambda v: "single", lambda v: "double") == "double"
    assert same(p.of_bits(np.int32(200), np.int8(0)), np.int8(-56))
    assert same(p.of_bits(np.int32(0x3C), E4M3(0)), E4M3(1.5))
    assert same(p.whole(np.int32(2**31 - 1)), np.int64(2**31 - 1))
    assert same(p.whole(BF16(0.1)), BF16(0.1))
    assert same(p.floating(np.int8(3)), F32(3))
    assert same(p.floating(BF16(0.1)), BF16(0.1))


def test_an_integer_takes_the_type_of_the_other():
    assert same(p.times(np.int8(3), F16(0.5)), F16(1.5))
    assert same(p.times(F16(3), F32(0.5)), F32(1.5))
    assert same(p.over(np.int64(3), BF16(2)), BF16(1.5))
    assert same(p.plus(F16(0.5), np.int32(3)), F16(3.5))
    assert same(p.plus(F16(0.5), F32(3)), F32(3.5))


def test_codes():
    lo, hi, nan = F32(-128), F32(127), F32(0)
    codes = {-1e9: -128, 1e9: 127, math.inf: 127, -math.inf: -128, math.nan: 0, 3.0: 3}
    for v, code in codes.items():
        assert p.code_of(F32(v), lo, hi, nan) == code
    assert p.code_of(F32(3.7), np.int32(-8), np.int32(7), np.int32(0)) == 3
    assert same(p.code_of(F32(-0.0), F32(0), F32(7), F32(0)), F32(-0.0))
    assert p.rounded_code(F32(2.5), None, lo, hi, nan, np.int8(0)) == 2
    assert p.rounded_code(F32(2.5), np.int32(1), lo, hi, nan, np.int8(0)) == 3
    assert p.rounded_code(F32(2.5), F32(0.5), lo, hi, nan, np.int8(0)) == 2.5


def test_store():
    for kind, v, stored in (
        (np.int8, F32(-3.9), -3), (ml_dtypes.int4, F32(-8), -8), (ml_dtypes.uint2, F32(3), 3),
        (np.bool_, True, True), (F32, F64(0.1), F32(0.1)), (F64, F32(0.5), 0.5),
        (F16, F64(1e9), math.inf), (BF16, F32(1 / 3), BF16(F32(1 / 3))), (E4M3, F32(1e9), 448),
    ):  # fmt: skip
        y = np.zeros(2, kind)
        with np.errstate(over="ignore"):
            p.store(y, 1, v)
        assert (y[0], y[1]) == (0, stored), kind
    assert p.store(None, 0, F32(1)) is None


def test_float64_to_two_bytes_in_one_rounding():
    """ml_dtypes goes by way of float32, in which these are ties."""
    x = np.array([1 + 2.0**-8 + 2.0**-40, 1 + 3 * 2.0**-8 - 2.0**-40, -1 - 2.0**-8 - 2.0**-40])
    rounded = dtypes.round_once(x, np.dtype(BF16))
    assert rounded.astype(F64).tolist() == [1 + 2.0**-7, 1 + 2.0**-7, -1 - 2.0**-7]
    assert rounded.dtype == BF16
