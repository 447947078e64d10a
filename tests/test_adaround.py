"""AdaRound's ops: bits where the contract has bits, a derived bound where there is an exponential.

Layouts, `out`, errors, shapes and memory are tested with the other ops, from tests/calls.py.
"""

import functools
import hashlib
import math

import ml_dtypes
import numpy as np
import pytest
from numba import njit

import cases
import npquant as nq
import oracle
from cases import FLOATS, assert_same
from npquant.adaround import AdaroundLoss
from npquant.cpu.walk import PIECE
from npquant.formulas import elementary

F32, F64 = np.float32, np.float64
LONG = np.longdouble
BITS4 = (-8, 7)
#: name -> shape of the qparams and the arguments that say so, for weights of shape (6, 8).
GRANULARITIES = {
    "per tensor": ((), {}),
    "axis 0": ((6,), {"axis": 0}),
    "axis 1": ((8,), {"axis": -1}),
    "groups": ((6, 2), {"group_size": 4}),
}
#: Every granularity in float32, every dtype along an axis; the other pairs run under `full`, as
#: every dtype compiles kernels of its own.
by_granularity_and_dtype = pytest.mark.parametrize(
    ("granularity", "dtype"),
    [
        pytest.param(granularity, dtype, id=f"{granularity}-{dtype}",
                     marks=() if dtype == F32 or granularity == "axis 1" else pytest.mark.full)
        for granularity in GRANULARITIES
        for dtype in FLOATS
    ],
)  # fmt: skip
by_granularity = pytest.mark.parametrize("granularity", GRANULARITIES)
by_precision = pytest.mark.parametrize("precision", [F32, F64])

#: Where |2.4 sigmoid(V) - 1.2| is 1: a few ulp decide whether h is cut off.
EDGE = math.log(11)


def weights(dtype, granularity="per tensor", seed=0):
    """Return x, V, scale, zero_point and the arguments that say what they belong to."""
    rng = np.random.default_rng(seed)
    shape, where = GRANULARITIES[granularity]
    scale = rng.uniform(0.3, 0.5, shape).astype(oracle.compute_dtype(dtype))
    zero_point = rng.integers(-3, 4, shape).astype(np.int32)
    x = rng.normal(0, 2, (6, 8)).astype(dtype)
    v = rng.normal(0, 2, (6, 8)).astype(oracle.compute_dtype(dtype))
    qparams = (scale, zero_point) if shape else (float(scale), int(zero_point))
    return x, v, *qparams, where


# --- exponential and logarithm ------------------------------------------------------------------


@functools.cache
def compiled(formula):
    @njit(error_model="numpy")
    def run(x, y):
        for i in range(x.size):
            y[i] = formula(x[i])

    def call(x):
        y = np.empty_like(x)
        run(x, y)
        return y

    return call


@njit(error_model="numpy")
def powers(x, exponent, y):
    for i in range(x.size):
        y[i] = elementary.raised(x[i], exponent * elementary.log2(x[i]))


def ulps(actual, exact):
    """The greatest distance from `exact`, in units of the last place of the rounded result."""
    with np.errstate(over="ignore"):
        near = exact.astype(actual.dtype)
    finite = np.isfinite(near)
    np.testing.assert_array_equal(actual[~finite], near[~finite])
    unit = np.spacing(np.abs(near[finite])).astype(LONG)
    return float((np.abs(actual[finite].astype(LONG) - exact[finite]) / unit).max())


def samples(dtype, low, high, n=200_000):
    rng = np.random.default_rng(0)
    near_zero = rng.normal(0, 1, n)
    tiny = np.ldexp(1.0, rng.integers(-40, 0, n)) * rng.choice([-1, 1], n)
    return np.concatenate([rng.uniform(low, high, n), near_zero, tiny]).astype(dtype)


# The bounds are those of the docstrings. Of the sigmoid, in eps: 1/4 for the last rounding, to a
# number between 1/2 and 1; of the polynomial, which is multiplied by |v| <= 2.4, twice 1/16, and
# 1/10 of the interpolation; and a tenth for what coefficients and higher powers were rounded by.
# Of the logarithms, relatively and in half units: one of m + 1, of the quotient, of the polynomial
# and of the product, a half of the constant and of the sum, which weigh up to twice in ulp.
@by_precision
def test_sigmoid(precision):
    x = np.random.default_rng(0).uniform(-2.4, 2.4, 500_000).astype(precision)
    exact = 1 / (1 + np.exp(-x.astype(LONG)))
    assert np.abs(compiled(elementary.sigmoid)(x) - exact).max() <= np.finfo(precision).eps


@by_precision
def test_ends_of_the_sigmoid(precision):
    """Beyond 2.4, where h is cut off, it stays what it is there; at 0 it is 1/2 and as steep."""
    x = np.array([np.inf, 1e4, 2.5, -2.5, -1e4, -np.inf, np.nan, 0, -0.0], precision)
    y = compiled(elementary.sigmoid)(x)
    end, start = compiled(elementary.sigmoid)(np.array([2.4, -2.4], F32).astype(precision))
    half = precision(0.5)
    assert_same(y, np.array([end, end, end, start, start, start, np.nan, half, half], precision))
    span, gamma = precision(oracle.ZETA - oracle.GAMMA), precision(oracle.GAMMA)
    assert end * span + gamma > 1
    assert start * span + gamma < 0
    step = precision(2.0**-10)
    up, down = compiled(elementary.sigmoid)(np.array([step, -step], precision))
    assert abs((up - down) / (2 * step) - 0.25) <= np.finfo(precision).eps / step + step**2


@by_precision
@pytest.mark.parametrize(("name", "bound"), [("log", 5), ("log2", 6)])
def test_logarithms(name, bound, precision):
    ends = (-110, 90) if precision == F32 else (-750, 712)
    x = np.concatenate([np.abs(samples(precision, *ends)), 1 + samples(precision, -1, 1) / 1000])
    x = x[x >= np.finfo(precision).tiny]
    exact = getattr(np, name)(x.astype(LONG))
    assert ulps(compiled(getattr(elementary, name))(x), exact) <= bound
    assert_same(compiled(getattr(elementary, name))(np.ones(1, precision)), np.zeros(1, precision))


def test_logarithm_keeps_nan():
    assert np.isnan(compiled(elementary.log)(np.array([np.nan], F32))).all()


@by_precision
@pytest.mark.parametrize("name", ["sigmoid", "log", "log2"])
def test_plain_python_gives_the_same_bits(name, precision):
    x = samples(precision, -110, 90, 100)
    x = np.abs(x) + np.finfo(precision).tiny if name.startswith("log") else x
    formula = getattr(elementary, name)
    with np.errstate(all="ignore"):
        plain = np.array([formula(v) for v in x], precision)
    assert_same(compiled(formula)(x), plain)


@by_precision
@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 2.0, 19.3, 1e4])
def test_power(exponent, precision):
    """Within 2 ulp of 1: |y| 2**-y of the logarithm's error is at most 4 * 0.54, and 1 ulp."""
    u = np.random.default_rng(0).uniform(0, 1, 10_000).astype(precision)
    u[:3] = 0, 1, np.nan
    u[3:5] = np.finfo(precision).tiny, 2 * np.finfo(precision).tiny  # whose powers underflow
    e, y = precision(exponent), np.empty_like(u)
    powers(u, e, y)
    np.testing.assert_array_equal(y[:3], [0, 1, np.nan])
    exact = u[3:].astype(LONG) ** LONG(e)
    assert np.abs(y[3:] - exact).max() <= 4 * np.finfo(precision).eps


# --- the ops ------------------------------------------------------------------------------------


def spread(precision, least, greatest, step):
    """A hundred thousand numbers between two, in disorder: the same ones everywhere."""
    count = 100_003  # a prime
    places = np.arange(count) * step % count
    return (least + (greatest - least) * (places / count)).astype(precision)


#: How the sha256 of the results begins: of a change, numerics.md and the changelog must tell.
RECORDED = {
    "adaround_init": {F32: "bbab732d08dce6a4", F64: "6dcce19ca2368a75"},
    "adaround_soft": {F32: "2a4dbbee026146fd", F64: "df08e7be5a31276a"},
    "adaround_soft_backward": {F32: "8e3950c906387552", F64: "6c0b57cf9cf2b0fc"},
    "adaround_regularizer": {F32: "224896c76d2f71b1", F64: "bcdcdb12cdc89358"},
    "adaround_regularizer_backward": {F32: "8e3faece4fb328ad", F64: "8f45a16f54b936a1"},
}


@by_precision
@pytest.mark.parametrize("name", RECORDED)
def test_bits_of_exponentials(name, precision):
    """Those of numerics.md, coefficients and order of operations included, whatever the machine."""
    x, v, g = (spread(precision, -5, 5, step) for step in (48_271, 69_621, 16_807))
    args = {
        "adaround_init": (x, 0.3),
        "adaround_soft": (x, v, 0.3, 1, *BITS4),
        "adaround_soft_backward": (g, x, v, 0.3, 1, *BITS4),
        "adaround_regularizer": (v, 3.3),
        "adaround_regularizer_backward": (v, 3.3, 0.7),
    }[name]
    result = np.asarray(getattr(nq, name)(*args))
    little_endian = result.astype(result.dtype.newbyteorder("<"))
    assert hashlib.sha256(little_endian.tobytes()).hexdigest()[:16] == RECORDED[name][precision]


def given(dtype, granularity="per tensor", seed=0):
    x, v, scale, zero_point, where = weights(dtype, granularity, seed)
    return (x, v, scale, zero_point, *BITS4), where


@by_granularity_and_dtype
def test_hard_and_codes(dtype, granularity):
    args, where = given(dtype, granularity)
    hard = nq.adaround_hard(*args, **where)
    codes = nq.adaround_codes(*args, np.int8, **where)
    assert_same(hard, oracle.adaround_hard(*args, **where))
    assert_same(codes, oracle.adaround_codes(*args, np.int8, **where))
    assert 0 < (args[1] >= 0).mean() < 1


@pytest.mark.parametrize("dtype", [F32, F64])
def test_quotients_are_true_ones(dtype):
    """Next to the codes, where a product with the reciprocal falls on the other side."""
    scale = np.random.default_rng(0).uniform(0.3, 0.5, (300, 1)).astype(dtype)
    x = np.arange(-8, 8).astype(dtype) * scale
    x = np.concatenate([x, np.nextafter(x, dtype(np.inf)), np.nextafter(x, dtype(-np.inf))], axis=1)
    assert (np.floor(x / scale) != np.floor(x * (1 / scale))).any()
    args = x, np.full_like(x, -1), scale[:, 0], np.zeros(300, np.int32), *BITS4
    assert_same(
        nq.adaround_codes(*args, np.int8, axis=0), oracle.adaround_codes(*args, np.int8, axis=0)
    )


@by_granularity
def test_hard_is_on_the_grid(granularity):
    """The values are those that the codes stand for."""
    dtype = F32
    (x, v, scale, zero_point, *bounds), where = given(dtype, granularity)
    hard = nq.adaround_hard(x, v, scale, zero_point, *bounds, **where)
    codes = nq.adaround_codes(x, v, scale, zero_point, *bounds, np.int8, **where)
    s, z = (oracle._spread(p, x, where.get("axis"), where.get("group_size"), F64)
            for p in (scale, zero_point))  # fmt: skip
    assert_same(hard, ((codes - z) * s).astype(dtype))
    assert codes.min() >= -8
    assert codes.max() <= 7


@pytest.mark.parametrize(
    "target",
    [
        pytest.param(t, id=t.name,
                     marks=() if t.name in ("int8", "uint8", "int4") else pytest.mark.full)
        for t in cases.BOUNDS
        if t not in cases.FLOAT8
    ],
)  # fmt: skip
def test_targets(target):
    lo, hi = (max(-128, cases.BOUNDS[target][0]), min(127, cases.BOUNDS[target][1]))
    x = np.array([[-1000, -1.5, -0.2, 0.7, 1.0, 1000, np.nan, np.inf]], F32)
    v = np.array([[0, -1, 1, -0.0, 0, -1, 1, 1]], F32)
    for least in (lo, 1):  # above zero a NaN becomes the least code
        args = x, v, 0.5, max(0, least), least, hi, target
        assert_same(nq.adaround_codes(*args), oracle.adaround_codes(*args))


@by_granularity_and_dtype
def test_soft(dtype, granularity):
    args, where = given(dtype, granularity)
    actual = nq.adaround_soft(*args, **where).astype(F64)
    exact = oracle.adaround_soft(*args, **where).astype(F64)
    scale = args[2]
    # h: an eps of the sigmoid times 1.2, and a rounding here and there, at most 3 eps; the sum with
    # the floor (below 16) and the differences after it are rounded to 8 eps each, here and there;
    # then the product, and that of a two-byte result.
    eps = np.finfo(oracle.compute_dtype(dtype)).eps
    bound = np.max(scale) * (3 + 4 * 8) * eps + 2 * np.abs(exact) * eps
    if dtype in oracle.TWO_BYTE:
        bound = bound + np.abs(exact) * float(ml_dtypes.finfo(dtype).eps)
    assert (np.abs(actual - exact) <= bound).all()
    assert nq.adaround_soft(*args, **where).dtype == dtype


@by_granularity_and_dtype
def test_soft_backward(dtype, granularity):
    args, where = given(dtype, granularity)
    grad = np.random.default_rng(3).normal(size=args[0].shape).astype(dtype)
    actual = nq.adaround_soft_backward(grad, *args, **where)
    exact = oracle.adaround_soft_backward(grad, *args, **where)
    assert (np.abs(np.abs(args[1]) - EDGE) > 1e-3).all(), "choose another seed"
    assert actual.dtype == exact.dtype == oracle.compute_dtype(dtype)
    np.testing.assert_array_equal(actual == 0, exact == 0)
    assert 0 < (actual == 0).mean() < 1
    # The sigmoid and 1 - it are an eps off, and half of one rounded: where h is not cut off both
    # are at least 1/12. Five products round, twice.
    eps = np.finfo(actual.dtype).eps
    np.testing.assert_allclose(actual, exact, rtol=(2 * 12 * 1.5 + 10) * eps, atol=0)


@by_granularity_and_dtype
def test_init(dtype, granularity):
    x, _, scale, _, where = weights(dtype, granularity)
    actual = nq.adaround_init(x, scale, **where)
    exact = oracle.adaround_init(x, scale, **where)
    assert actual.dtype == oracle.compute_dtype(dtype)
    # Float64: 5 ulp of a logarithm below 2.4 in size, where an ulp is at most 2 eps.
    bound = 10 if dtype == F64 else 8
    assert np.abs(actual.astype(LONG) - exact).max() <= bound * np.finfo(actual.dtype).eps


def test_start_of_every_fraction():
    """Within 8 * 2**-23, and on the right side of 0, of all fractions that tell something new.

    In eps: 1 of the interpolation and 1 of the last product, which is below 2.4; 1.4 of 1/2 - r,
    an eighth where V is 10.9 times as steep; and of the polynomial, below 4.8 and multiplied by at
    most 1/2: 1 of its last step, 1/2 of its first coefficient, and what its argument is off by, a
    sixteenth where it is as steep as 28, less than 1; a half for what else is rounded.
    """
    near_half = np.float32(0.5) + np.arange(-1000, 1001, dtype=F32) * np.float32(2.0**-25)
    small = np.geomspace(1e-40, 1, 100_000, dtype=F32)
    r = np.concatenate([np.linspace(0, 1, 2_000_001, dtype=F32), small, 1 - small, near_half])
    r = r[r < 1]
    v = nq.adaround_init(r, 1.0)
    exact = np.log((10 * r.astype(F64) + 1) / (11 - 10 * r.astype(F64)))
    assert np.abs(v - exact).max() <= 8 * np.finfo(F32).eps
    np.testing.assert_array_equal(v < 0, r < 0.5)
    assert_same(v[r == 0.5], np.full((r == 0.5).sum(), -0.0, F32))
    # x / s - floor(x / s) is 1 where x is small and negative.
    assert_same(nq.adaround_init(F32([-1e-12]), 1.0), -nq.adaround_init(F32([0]), 1.0))


def test_init_gives_the_weights_back():
    dtype = F32
    x, _, scale, zero_point, _ = weights(dtype)
    x = np.clip(x, -1, 1)
    v = nq.adaround_init(x, scale)
    soft = nq.adaround_soft(x, v, scale, zero_point, -128, 127)
    # h differs from the fraction by at most 8 eps (V's 10 eps times the slope of 0.3, and what
    # `test_soft` says of h), and codes are below 8.
    np.testing.assert_allclose(soft, x, rtol=0, atol=scale * 24 * np.finfo(dtype).eps)
    nearest = np.floor(x / dtype(scale) + dtype(0.5)) * dtype(scale)
    assert_same(nq.adaround_hard(x, v, scale, zero_point, -128, 127), nearest)


def test_ties_go_up():
    x = np.array([-1.5, -0.5, 0.5, 1.5, -0.0], F32)
    v = nq.adaround_init(x, 1.0)
    assert_same(v[:4], np.full(4, -0.0, F32))
    codes = nq.adaround_codes(x, v, 1.0, 0, *BITS4, np.int8)
    assert codes.tolist() == [-1, 0, 1, 2, 0]


def test_what_is_cut_off():
    """V far out, codes beyond the bounds, NaN: zero gradient whatever `grad` was."""
    x = np.array([0.3, 0.3, 99, -99, np.nan, 0.3], F32)
    v = np.array([20, -20, 0, 0, 0, np.nan], F32)
    for g in (1, np.inf, np.nan):
        grad = np.full(6, g, F32)
        gradient = nq.adaround_soft_backward(grad, x, v, 1.0, 0, *BITS4)
        assert_same(gradient, np.array([0, 0, 0, 0, 0, np.nan], F32))
    soft = nq.adaround_soft(x, v, 1.0, 0, *BITS4)
    assert_same(soft, np.array([1, 0, 7, -8, np.nan, np.nan], F32))
    hard = nq.adaround_hard(x, v, 1.0, 0, *BITS4)
    assert_same(hard, np.array([1, 0, 7, -8, np.nan, 0], F32))


def test_a_code_at_the_bound_has_a_gradient():
    """2**23 - 1 + 0.8 rounds to the bound itself, which is inside."""
    x, v = np.array([2.0**23 - 1, 2.0**23], F32), np.array([1.1, 1.1], F32)
    gradient = nq.adaround_soft_backward(np.ones(2, F32), x, v, 1.0, 0, -(2**23), 2**23)
    assert gradient[0] > 0
    assert gradient[1] == 0


@pytest.mark.parametrize("n", [1, 5, 17, 33, 1300])
def test_an_element_does_not_know_where_it_stands(n):
    """Vector bodies, tails and strips have the same bits as an element alone."""
    rng = np.random.default_rng(n)
    x, v, g = (rng.normal(0, 2, n).astype(F32) for _ in range(3))
    calls = {
        "soft": lambda i: nq.adaround_soft(x[i], v[i], 0.3, 0, *BITS4),
        "soft_backward": lambda i: nq.adaround_soft_backward(g[i], x[i], v[i], 0.3, 0, *BITS4),
        "init": lambda i: nq.adaround_init(x[i], 0.3),
        "regularizer_backward": lambda i: nq.adaround_regularizer_backward(v[i], 3.0),
    }
    for name, call in calls.items():
        alone = np.concatenate([call(slice(i, i + 1)) for i in range(n)])
        assert_same(call(slice(None)), alone, name)


# --- the regularizer ----------------------------------------------------------------------------


@by_precision
@pytest.mark.parametrize("beta", [1, 2.0, 3.7, 20])
def test_regularizer(beta, precision):
    v = np.random.default_rng(0).normal(0, 2, 5000).astype(precision)
    actual, exact = nq.adaround_regularizer(v, beta), oracle.adaround_regularizer(v, beta)
    assert (actual.shape, actual.dtype) == ((), F64)
    # A term: 4 eps of the power (see `test_power`), half an eps of 1 - it, and beta times the
    # error of |2h - 1|: twice the 3 eps of h. Errors have both signs, so their mean is smaller.
    eps = np.finfo(precision).eps
    assert abs(actual - exact) <= v.size * (4.5 + 6 * beta) * eps
    assert abs(actual - exact) <= 1e-6 * exact


@by_precision
@pytest.mark.parametrize("beta", [1, 2.0, 3.7, 20])
def test_regularizer_backward(beta, precision):
    v = np.random.default_rng(0).normal(0, 2, 5000).astype(precision)
    v[:5] = 0, 30, -30, 1e30, -np.inf
    v = v[np.abs(np.abs(v) - EDGE) > 1e-5]
    actual = nq.adaround_regularizer_backward(v, beta, 0.25)
    exact = oracle.adaround_regularizer_backward(v, beta, 0.25)
    assert (actual[exact == 0] == 0).all()
    # Of 2.4 beta |d|**(beta - 1) sigma (1 - sigma) <= 0.6 beta: the power's 4 eps, beta - 1 times
    # the 6 eps of d, 46 eps of the sigmoids (see `test_soft_backward`), and of the products.
    eps = np.finfo(precision).eps
    assert np.abs(actual - exact).max() <= 0.25 * 0.6 * beta * (4 + 6 * beta + 46) * eps


@by_precision
@pytest.mark.parametrize("weight", [0.25, -0.25])
@pytest.mark.parametrize("beta", [1, 2.0, 3.7, 20])
def test_the_regularizers_gradient_has_a_sign_where_it_is_zero(beta, weight, precision):
    """At h = 1/2 the sign of d is 0, and the zero has that of -weight; where h is cut off, none."""
    middle = np.zeros(2, precision)
    if precision == F64:  # there h(0) is not 1/2; some sigmoid next to it is
        sigma = (0.5 - F64(oracle.GAMMA)) / F64(F32(oracle.ZETA - oracle.GAMMA))
        middle = np.log(sigma / (1 - sigma)) + np.arange(-50, 50) * 1e-16
    middle = middle[nq.adaround_soft(np.zeros_like(middle), middle, 1.0, 0, -8, 7) == 0.5]
    assert middle.size
    v = np.concatenate([middle, np.array([30, -30, 1e30, -np.inf], precision)])
    gradient = nq.adaround_regularizer_backward(v, beta, weight)
    expected = np.where(np.arange(v.size) < middle.size, -np.sign(weight) * 0.0, 0.0)
    assert_same(gradient, expected.astype(precision))
    if precision == F32:  # the oracle's sigmoid is the same number there
        assert_same(oracle.adaround_regularizer_backward(v, beta, weight), gradient)


def test_the_gradient_is_the_slope_of_the_sum():
    """By central differences in float64, where nothing is cut off."""
    v = np.random.default_rng(0).uniform(-2, 2, 20)
    gradient = nq.adaround_regularizer_backward(v, 2.5, 3.0)
    # The difference is off by step**2 / 6 of a third derivative below 20, and by the rounding of a
    # sum of 20 over the step.
    step = 1e-5
    for i in range(v.size):
        up, down = v.copy(), v.copy()
        up[i] += step
        down[i] -= step
        slope = nq.adaround_regularizer(up, 2.5) - nq.adaround_regularizer(down, 2.5)
        assert abs(3 * slope / (2 * step) - gradient[i]) <= 3 * (step**2 * 20 / 6 + 1e-14 / step)


def test_the_soft_gradient_is_the_slope_of_the_soft_weights():
    x, v, scale, zero_point, _ = weights(F64)
    v = np.clip(v, -2.2, 2.2)
    args = scale, zero_point, -128, 127
    gradient = nq.adaround_soft_backward(np.ones_like(x), x, v, *args)
    step = 1e-5
    slope = nq.adaround_soft(x, v + step, *args) - nq.adaround_soft(x, v - step, *args)
    # The third derivative of h is below 0.2; values are below 16.
    np.testing.assert_allclose(slope / (2 * step), gradient, rtol=0, atol=step**2 + 16e-16 / step)


def test_the_sum_follows_the_promised_tree():
    """Bits of the sum: terms that are exact, and terms added by tiles and lanes."""
    rng = np.random.default_rng(0)
    v = rng.choice(np.array([0, 30, -30], F32), 9000)
    assert float(nq.adaround_regularizer(v, 20.0)) == (v == 0).sum()
    differ = np.zeros(2, int)
    for seed in range(6):
        v = np.random.default_rng(seed).normal(0, 2, 10_000)
        alone = np.array([float(nq.adaround_regularizer(v[i : i + 1], 5.0)) for i in range(v.size)])
        total = float(oracle.tree_sum(alone[None])[0])
        differ += total != sum(alone.tolist()), total != alone.sum()
        assert float(nq.adaround_regularizer(v, 5.0)) == total
        laid = np.asfortranarray(v.reshape(100, 100))
        assert float(nq.adaround_regularizer(laid, 5.0)) == total
    assert differ.all(), "no other order is told from this one"


# --- the loss -----------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [3, 700])
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_a_nan_of_any_bits_stays_one(dtype, n):
    """Those of memory that is full of ones, rounded to a bfloat16 as numbers are, give -0.0."""
    bits = np.array([0x7FFFFFFF, 0xFFFFFFFF, 0x7FFF8000, 0x7FC00000], np.uint32)
    V = np.resize(bits.view(np.float32), n)
    for order in (slice(None), slice(None, None, -1)):
        assert np.isnan(nq.adaround_soft(np.ones(n, dtype)[order], V[order], 1.0, 0, -8, 7)).all()


@pytest.mark.parametrize("name", ["beta", "weight"])
def test_numbers_that_no_float32_holds(name):
    """Of an infinite beta, what is decided would count as undecided; of a weight, be no number."""
    V, numbers = np.array([9, 0.5], np.float32), {"beta": 2.0, name: 3.5e38}
    with pytest.raises(ValueError, match=f"^{name} must be finite in float32, got 3.5e"):
        nq.adaround_regularizer_backward(V, **numbers)
    assert np.isfinite(nq.adaround_regularizer_backward(V.astype(np.float64), **numbers)).all()
    assert nq.adaround_regularizer(np.array([9.0, -9, 0.5, 0]), 3.5e38) == 2
    if name == "beta":
        with pytest.raises(ValueError, match=r"^beta must be finite in float32, got 3.5e"):
            nq.adaround_regularizer(V, 3.5e38)


def test_beta():
    loss = AdaroundLoss(10_000)
    assert loss.beta(1999) is None
    assert loss.beta(2000) == 20
    assert loss.beta(5000) == pytest.approx(14.444150891, abs=1e-9)  # of PyTorch's source
    assert 2 < loss.beta(9999) < 2.001
    betas = [loss.beta(i) for i in range(2000, 10_000, 100)]
    assert betas == sorted(betas, reverse=True)
    assert AdaroundLoss(10, warm_start=0).beta(0) == 20


def test_loss():
    loss = AdaroundLoss(1000, reg_param=0.01)
    v = np.random.default_rng(0).normal(0, 2, 100).astype(F32)
    assert loss.regularizer(199, v) == 0
    assert_same(loss.regularizer_backward(199, v), np.zeros_like(v))
    out = np.ones_like(v).view(type("Own", (np.ndarray,), {}))
    assert loss.regularizer_backward(199, v, out=out) is out
    assert_same(out.view(np.ndarray), np.zeros_like(v))
    beta = loss.beta(600)
    assert loss.regularizer(600, v) == 0.01 * float(nq.adaround_regularizer(v, beta))
    gradient = nq.adaround_regularizer_backward(v, beta, 0.01)
    assert_same(loss.regularizer_backward(600, v), gradient)
    out = np.empty_like(v)
    assert loss.regularizer_backward(600, v, out=out) is out
    assert_same(out, gradient)
    output, target = np.array([[1, 2]], F32), np.array([[3, 2]], F32)
    assert loss.reconstruction(output, target) == 2
    assert_same(loss.reconstruction_backward(output, target), np.array([[-2, 0]], F32))
    assert loss.reconstruction(np.float32(1.5), np.float32(1)) == 0.25
    for lay in (np.asfortranarray, np.ascontiguousarray):
        got = loss.reconstruction_backward(lay(np.ones((3, 4), F32)), lay(np.zeros((3, 4), F32)))
        assert got.strides == lay(np.ones((3, 4), F32)).strides
    alone = loss.reconstruction_backward(output[0, 0:1].reshape(()), target[0, 0:1].reshape(()))
    assert_same(alone, np.array(-4, F32))
    far = np.array([3e38], F32)  # and NumPy says nothing of it
    assert_same(loss.reconstruction_backward(far, -far), np.array([np.inf], F32))


@pytest.mark.parametrize(
    ("n", "output", "target", "gradient"),
    [(2**26 + 1, 1, -1000, 2 * 1001 / (2**26 + 1)), (4, 40000, -40000, 40000)],
)
def test_reconstruction_of_two_bytes_is_rounded_once(n, output, target, gradient):
    """Both the share of an element and the difference leave float16."""
    a, b = (np.broadcast_to(np.float16(v), n) for v in (output, target))
    got = AdaroundLoss(10).reconstruction_backward(a, b)
    assert_same(got[:3], np.full(3, gradient, np.float16))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"max_iter": 0}, ValueError),
        ({"max_iter": 10**400}, ValueError),
        ({"max_iter": 1.5}, TypeError),
        ({"warm_start": 1.0}, ValueError),
        ({"warm_start": -0.1}, ValueError),
        ({"beta_range": 20}, TypeError),
        ({"beta_range": "ab"}, TypeError),
        ({"beta_range": b"ab"}, TypeError),
        ({"beta_range": (20, 0.5)}, ValueError),
        ({"reg_param": -1}, ValueError),
        ({"reg_param": "1"}, TypeError),
    ],
)
def test_wrong_loss(options, error):
    with pytest.raises(error, match=next(iter(options))):
        AdaroundLoss(**{"max_iter": 10, **options})


def test_wrong_steps_and_arrays():
    loss, v = AdaroundLoss(10), np.zeros(3, F32)
    for step in (0, 5):  # while there is no regularizer, and then
        with pytest.raises(ValueError, match="out must be V itself or not overlap it"):
            loss.regularizer_backward(step, v, out=v[::-1])
    for step, error in ((-1, ValueError), (10, ValueError), (1.0, TypeError)):
        with pytest.raises(error, match="step"):
            loss.regularizer(step, v)
    for call in (loss.regularizer, loss.regularizer_backward):
        with pytest.raises(TypeError, match="V"):
            call(0, v.astype(np.float16))
    with pytest.raises(ValueError, match="target"):
        loss.reconstruction(v, v[:2])
    for call in (loss.reconstruction, loss.reconstruction_backward):
        with pytest.raises(TypeError, match="output must be a NumPy array, got"):
            call(nq.ArraySpec((3,), F32), v)
    with pytest.raises(TypeError, match="V must be"):
        loss.regularizer(5, nq.ArraySpec((3,), F32))
    with pytest.raises(TypeError, match="target"):
        loss.reconstruction_backward(v, v.astype(F64))
    with pytest.raises(ValueError, match="output"):
        loss.reconstruction(v[:0], v[:0])


def test_qparams_need_an_axis_or_groups():
    x = v = np.zeros((6, 8), F32)
    many, one = np.ones(6, F32), np.ones(1, F32)
    with pytest.raises(ValueError, match="scale"):
        nq.adaround_soft(x, v, many, 0, *BITS4)
    nq.adaround_soft(x, v, one, np.zeros(1, np.int32), *BITS4)
    with pytest.raises(ValueError, match="zero_point"):
        nq.adaround_soft(x, v, one, 8, *BITS4)
    with pytest.raises(ValueError, match="scale"):
        nq.adaround_soft(x, v, np.ones((6, 3), F32), np.zeros((6, 3), int), *BITS4, group_size=4)
    with pytest.raises(ValueError, match="group_size"):
        nq.adaround_soft(x, v, many, many, *BITS4, group_size=3)


@by_granularity
def test_fractional_zero_points_are_truncated_first(granularity):
    """And then held against the bounds: 7.9 is 7, whatever shares it, and -8.9 is -8."""
    shape, where = GRANULARITIES[granularity]
    x = np.random.default_rng(3).normal(0, 2, (6, 8)).astype(F32)
    scale = np.ones(shape, F32)

    def codes(zero_point):
        z = np.full(shape, zero_point)
        return nq.adaround_codes(x, x, scale, z, *BITS4, np.int8, **where)

    for fractional, whole, beyond in ((7.9, 7, 8.9), (-8.9, -8, -9.0)):
        assert_same(codes(fractional), codes(whole))
        shown = beyond if shape else int(beyond)
        with pytest.raises(ValueError, match=rf"zero_point must lie within -8\.\.7, got {shown}"):
            codes(beyond)
    if shape:
        with pytest.raises(ValueError, match=r"zero_point must lie within -8\.\.7, got nan"):
            codes(np.nan)


def test_wide_bounds():
    """Codes that float32 does not hold are refused; float64 holds them."""
    x, v = np.full(2, 2.0**30, F64), np.zeros(2, F64)
    args = 1.0, 0, -(2**31), 2**31 - 1
    with pytest.raises(ValueError, match="quant_min and quant_max"):
        nq.adaround_hard(x.astype(F32), v.astype(F32), *args)
    assert nq.adaround_codes(x, v, *args, np.int32).tolist() == [2**30 + 1] * 2


@pytest.mark.parametrize("z", [2**40, 2**31, -(2**31) - 1, 2**52])
@pytest.mark.parametrize("name", ["adaround_hard", "adaround_soft"])
def test_zero_points_that_no_int32_holds(name, z):
    """Of channels as of one tensor; float64 computes with them."""
    x = np.random.default_rng(2).normal(0, 100, (2, 9))
    for bounds in ((min(z, 0), max(z, 0)), (z, z), (-(2**52), 2**52)):
        one = getattr(nq, name)(x, x, 0.5, z, *bounds)
        for zero_point in (np.full(2, z), np.full(2, float(z))):
            got = getattr(nq, name)(x, x, np.full(2, 0.5), zero_point, *bounds, axis=0)
            assert_same(got, one, bounds)
        grad = nq.adaround_soft_backward(x, x, x, np.full(2, 0.5), np.full(2, z), *bounds, axis=0)
        assert_same(grad, nq.adaround_soft_backward(x, x, x, 0.5, z, *bounds), bounds)
        assert_same(one, getattr(oracle, name)(x, x, 0.5, z, *bounds), bounds)


def test_integer_scales_are_those_of_float64():
    """Which holds more of them than float32 does."""
    x, n = np.array([[1e9, 3.3e8]] * 2), 2**24 + 1
    args = 0, -(2**52), 2**52
    one = nq.adaround_hard(x, x, n, *args)
    for scale in (np.full(2, n), np.full(2, float(n))):
        assert_same(nq.adaround_hard(x, x, scale, *([0, 0], *args[1:]), axis=0), one)
    assert_same(nq.adaround_init(x, np.full(2, n), axis=0), nq.adaround_init(x, n))
    assert not (one == nq.adaround_hard(x, x, F32(n), *args)).all()


@pytest.mark.parametrize("lay", [np.ascontiguousarray, np.asfortranarray])
@by_granularity
def test_large_weights_and_scales_of_integers(granularity, lay):
    """Such scales go the long way, where what lies in C order needs no order of axes."""
    shape, where = GRANULARITIES[granularity]
    x = lay(np.random.default_rng(1).normal(0, 2, (6, 8000)).astype(F32))
    shape = (6, 2000) if granularity == "groups" else tuple({8: 8000}.get(n, n) for n in shape)
    scale, zero_point = np.full(shape, 2), np.full(shape, 1)
    got = nq.adaround_soft(x, x, scale, zero_point, *BITS4, **where)
    expected = nq.adaround_soft(x, x, scale.astype(F32), zero_point, *BITS4, **where)
    assert_same(got, expected)
    assert x.size > PIECE


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_a_reconstruction_backward_that_underflows(dtype):
    x = np.full(3, np.finfo(dtype).smallest_subnormal, dtype)
    with np.errstate(all="raise"):
        grad = AdaroundLoss(10).reconstruction_backward(x, np.zeros_like(x))
    assert_same(grad, x)  # two thirds of it are nearer to it than to nothing
