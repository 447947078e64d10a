"""The metrics against exact arithmetic, on every layout."""

import math
import tracemalloc
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from cases import FLOATS
from npquant.metrics import cosine, max_code_difference, mse, sqnr

F32 = np.float32
N = 4_999


def pair(dtype, shape=(N,)):
    rng = np.random.default_rng(0)
    a = rng.normal(0, 1, shape)
    return a.astype(dtype), (a + rng.normal(0, 0.1, shape)).astype(dtype)


def exact(a, b):
    """Sums of products, correctly rounded."""
    a, b = (np.asarray(v).astype(np.float64).reshape(-1) for v in (a, b))
    return float(sum((Fraction(u) * Fraction(v) for u, v in zip(a, b, strict=True)), Fraction(0)))


# A sum of n positive terms in float64, added in tiles of 4,096 in 64 lanes, is off by at most one
# rounding of 2**-53 for each level a term passes: 64 in its lane, 6 folds, n / 4096 tiles, and one
# each for the difference (twice in the square) and the square.
RTOL = (64 + 6 + N // 4096 + 1 + 3) * 2.0**-53


@pytest.mark.parametrize("v", [0.0, 1.0, 1e-160, 1e160])
def test_one_number(v):
    """An array without axes, of which NumPy makes scalars; and squares that leave float64."""
    one, two = np.array(v), np.float64(2 * v)
    assert mse(one, two) == v**2 if v < 1e150 else mse(one, two) == math.inf
    assert sqnr(one, two) == 0 if v else math.isnan(sqnr(one, two))
    assert sqnr(one, one) == math.inf if v else math.isnan(sqnr(one, one))
    assert cosine(one, two) == 1 if v else math.isnan(cosine(one, two))


@pytest.mark.interpreted
@pytest.mark.parametrize(
    "dtype",
    [pytest.param(d, marks=[pytest.mark.full] * (d.itemsize == 2), id=d.name) for d in FLOATS],
)
def test_values(dtype):
    a, b = pair(dtype)
    d = a.astype(np.float64) - b.astype(np.float64)
    signal, noise, inner = exact(a, a), exact(d, d), exact(a, b)
    assert mse(a, b) == pytest.approx(noise / N, rel=2 * RTOL, abs=0)
    # 10 / ln 10 times the relative errors of both, and a rounding.
    assert sqnr(a, b) == pytest.approx(10 * math.log10(signal / noise), rel=1e-15, abs=20 * RTOL)
    # The terms of the inner product have both signs: relative to the sum of their sizes.
    length = math.sqrt(signal * exact(b, b))
    size = exact(abs(a), abs(b)) / length
    assert cosine(a, b) == pytest.approx(inner / length, rel=0, abs=RTOL * (2 + size))


def test_float64_inside():
    """In float32 these squares overflow, and these sums lose everything small."""
    huge = np.array([3e38, 0], F32)
    assert mse(huge, -huge) == pytest.approx((2 * float(F32(3e38))) ** 2 / 2, rel=1e-15)
    large = np.concatenate([[F32(4096)], np.full(1000, 2.0**-12, F32)])
    assert mse(large, np.zeros_like(large)) == (2.0**24 + 1000 * 2.0**-24) / 1001


def test_dtypes_may_differ():
    a, b = np.array([1.5, 2], np.float16), np.array([1, 2], np.float64)
    assert mse(a, b) == 0.125


@pytest.mark.parametrize("metric", [sqnr, mse, cosine])
def test_layouts(metric):
    """Equal bits however the arrays lie; more than one tile, and no multiple of one."""
    a, b = pair(F32, (131, 132))
    expected = metric(a, b)
    lay = (
        np.asfortranarray,
        lambda x: np.repeat(x, 2, axis=1)[:, ::2],
        lambda x: x[::-1].copy()[::-1],
    )
    for f in lay:
        assert metric(f(a), b) == metric(a, f(b)) == metric(f(a), f(b)) == expected


def test_limits():
    zero, one = np.zeros(2), np.array([1.0, 0])
    assert sqnr(one, one) == math.inf
    assert sqnr(zero, one) == -math.inf
    assert math.isnan(sqnr(zero, zero))
    assert math.isnan(sqnr(one, np.array([np.nan, 0])))
    assert math.isnan(cosine(zero, one))
    assert math.isnan(cosine(one, np.array([np.nan, 0])))
    assert cosine(one, -one) == -1
    assert cosine(one, 1e-3 * one) == 1
    steep = np.array([1.0, 5])  # 26 is more than the square of its root in float64
    assert cosine(steep, steep) == 1
    assert cosine(steep, -steep) == -1
    assert mse(one, np.array([np.inf, 0])) == math.inf


@pytest.mark.parametrize("size", [1e200, 1e-200, 2.0**1023, 5e-324])
def test_squares_that_leave_float64(size):
    """Four roundings of half an ulp each; of a sum of logarithms near 600, those of its terms."""
    u, v = np.array([size, size, 0]), np.array([size, 0, 0])
    assert sqnr(u, v) == pytest.approx(10 * math.log10(2), rel=2**-40)
    for other in (v, np.array([1, 0, 0], F32)):
        assert cosine(u, other) == pytest.approx(math.sqrt(0.5), rel=2**-51)
    assert math.isnan(sqnr(0 * u, 0 * v))
    # Of ten differences of 2**511 the squares have a mean that is a float64, and no sum.
    assert mse(np.full(10, 2.0**511), np.zeros(10)) == 2.0**1022
    assert mse(np.full(10, 2.0**511), np.full(10, -(2.0**511))) == math.inf
    if size < 1:  # beside which the noise is 1
        one = np.array([1.0, 0, 0])
        assert sqnr(v, one) == pytest.approx(20 * math.log10(size), rel=2**-40)


@pytest.mark.parametrize("size", [1.0, 1e100, 1e300])
def test_differences_whose_squares_are_nothing(size):
    """Beside a signal whose square may leave float64 too."""
    a, b = np.array([size, 1e-170]), np.array([size, 2e-170])
    decibels = 20 * (math.log10(size) + 170)
    assert sqnr(a, b) == pytest.approx(decibels, rel=2**-40)


def test_what_is_next_to_nothing_is_no_error():
    """Where NumPy raises what it ignores otherwise."""
    a, b = np.array([1.7e308, -1.7e308, 1e-308]), np.array([1.6e308, -1.7e308, 0])
    with np.errstate(all="raise"):
        assert sqnr(a, b) == pytest.approx(10 * math.log10(2 * 17**2), rel=2**-40)
        assert cosine(a, a) == 1


def test_sums_of_tiles_that_leave_float64():
    """What NumPy adds of them warns no more than what a kernel adds."""
    a, zeros = np.zeros(8192), np.zeros(8192)
    a[0] = a[4096] = 1.3e154
    expected = Fraction(1.3e154) ** 2 / 4096
    assert abs(Fraction(mse(a, zeros)) / expected - 1) < Fraction(1, 2**50)
    a[0], a[4096] = np.inf, -np.inf
    assert math.isnan(cosine(a, zeros + 1))


def test_codes():
    assert max_code_difference(np.array([-128], np.int8), np.array([127], np.int8)) == 255
    assert max_code_difference(np.array([0], np.uint8), np.array([255], np.uint8)) == 255
    far = np.array([2**63 - 1, 0]), np.array([-(2**63), 0])
    for a, b in (far, far[::-1]):
        assert max_code_difference(a, b) == 2**64 - 1
    wide, narrow = far[0], np.array([-1, 0], np.int8)
    assert max_code_difference(wide, narrow) == max_code_difference(narrow, wide) == 2**63
    assert max_code_difference(np.array([2**32 - 1], np.uint32), np.array([-1], np.int8)) == 2**32
    four = np.array([-8, 7], ml_dtypes.int4)
    assert max_code_difference(four, four[::-1]) == 15
    assert max_code_difference(np.array(3, np.int16), np.array(-4, np.int8)) == 7


@pytest.mark.parametrize("place", [0, 8191, 8192, 40_000, 99_999])
def test_codes_that_differ_anywhere(place):
    """In arrays of several parts, that lie in memory in different orders."""
    a = np.zeros((1000, 100), np.int8)
    b = np.zeros((100, 1000), np.uint32).T
    b[np.unravel_index(place, b.shape)] = 2**32 - 1
    assert max_code_difference(a, b) == max_code_difference(b, a) == 2**32 - 1


def test_codes_take_no_memory_of_their_size():
    a, b = np.zeros((2, 1 << 22), np.int64)
    tracemalloc.start()
    try:
        max_code_difference(a, b)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 1 << 20


@pytest.mark.parametrize("metric", [sqnr, mse, cosine, max_code_difference])
def test_wrong_arguments(metric):
    right = np.ones(3, np.int8 if metric is max_code_difference else F32)
    other = right.astype(F32 if metric is max_code_difference else np.int8)
    for wrong in (None, [1.0], "x", other, right.astype(complex), np.ma.asarray(right)):
        for name, args in (("reference", (wrong, right)), ("actual", (right, wrong))):
            with pytest.raises(TypeError, match=name):
                metric(*args)
    with pytest.raises(ValueError, match="actual"):
        metric(right, right[:2])
    with pytest.raises(ValueError, match="reference"):
        metric(right[:0], right[:0])
