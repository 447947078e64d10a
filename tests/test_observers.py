"""Observers: statistics, ranges and qparams against the oracle; state, merging, errors, layouts."""

import copy
import pickle
import warnings
from fractions import Fraction

import ml_dtypes
import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import memory
import npquant as nq
import npquant.autograd as ag
import npquant.modules as npq
import oracle_observers as oracle
from cases import FLOATS, assert_same, same_state
from npquant import cpu
from npquant.cpu import walk
from npquant.formulas.histogram import clip_widths, floor_divided, next_above
from npquant.layout import Granularity, per_channel, whole
from npquant.modules import (
    EntropyObserver,
    HistogramObserver,
    MinMaxObserver,
    Module,
    MovingAverageMinMaxObserver,
    MovingAveragePerChannelMinMaxObserver,
    MSEObserver,
    PercentileObserver,
    PerChannelMinMaxObserver,
)

PER_TENSOR = (MinMaxObserver, MovingAverageMinMaxObserver, HistogramObserver)
PER_CHANNEL = (PerChannelMinMaxObserver, MovingAveragePerChannelMinMaxObserver)
COUNTING = (PercentileObserver, MSEObserver, EntropyObserver)
OBSERVERS = (*PER_TENSOR, *PER_CHANNEL, *COUNTING)
RANGES = (
    (np.uint8, None, 128), (np.int8, None, 0), (np.uint16, None, 2**15), (np.int8, (-8, 7), 0),
    (np.uint8, (0, 15), 7), (ml_dtypes.int4, None, 0), (ml_dtypes.uint4, None, 8),
)  # fmt: skip
by_class = pytest.mark.parametrize("kind", OBSERVERS, ids=lambda kind: kind.__name__)
by_counting = pytest.mark.parametrize("kind", COUNTING, ids=lambda kind: kind.__name__)
rng = np.random.default_rng


def data(shape, seed=0):
    """Return float32 data with some outliers."""
    return (rng(seed).normal(0, 1, shape) ** 3).astype(np.float32)


def bounds_of(bounds):
    return {} if bounds is None else {"quant_min": bounds[0], "quant_max": bounds[1]}


# --- ranges -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_extremes(dtype, axis):
    arrays = [data((3, 5, 7), seed).astype(dtype) for seed in range(3)]
    seen = [oracle.extremes(x, axis) for x in arrays]
    options = {} if axis is None else {"ch_axis": axis}
    ours = (MinMaxObserver if axis is None else PerChannelMinMaxObserver)(**options)
    for x in arrays:
        assert ours(x) is x
    assert_same(ours.min_val, np.min([low for low, _ in seen], axis=0))
    assert_same(ours.max_val, np.max([high for _, high in seen], axis=0))

    moving = (PER_TENSOR if axis is None else PER_CHANNEL)[1](averaging_constant=0.3, **options)
    low, high = seen[0]
    moving(arrays[0])
    for x, (least, greatest) in zip(arrays[1:], seen[1:], strict=True):
        moving(x)
        low, high = oracle.move(low, least, 0.3), oracle.move(high, greatest, 0.3)
    assert_same(moving.min_val, np.asarray(low))
    assert_same(moving.max_val, np.asarray(high))


@pytest.mark.interpreted
@pytest.mark.parametrize("qscheme", PerChannelMinMaxObserver._schemes)
@pytest.mark.parametrize(("dtype", "bounds", "middle"), RANGES)
def test_qparams(qscheme, dtype, bounds, middle):
    """One range a channel: on both sides, on one, empty, huge, tiny, infinite, NaN, of eps."""
    lo, hi = bounds or nq.dtypes.BOUNDS[np.dtype(dtype)]
    least = (hi - lo) * oracle.EPS  # with the scale eps
    low = np.array([-1.3, 1, -3, 0, -1e30, -1e-40, -np.inf, np.nan, 0.1, 0], np.float32)
    high = np.array([2.7, 2, -1, 0, 3e30, 1e-39, 1, np.nan, 0.1, least], np.float32)
    observer = PerChannelMinMaxObserver(1, dtype, qscheme, **bounds_of(bounds))
    observer(np.stack([low, high]))
    assert (observer.quant_min, observer.quant_max) == (lo, hi)
    assert_same(observer.calculate_qparams(), oracle.qparams(low, high, lo, hi, qscheme, middle))


def test_reduced_range():
    for dtype, bounds in ((np.int8, (-64, 63)), (np.uint8, (0, 127))):
        observer = MinMaxObserver(dtype, reduce_range=True)
        assert (observer.quant_min, observer.quant_max) == bounds
    observer = MinMaxObserver(np.int8, reduce_range=True, quant_min=-7, quant_max=7)
    assert (observer.quant_min, observer.quant_max) == (-4, 3)


def test_eps_is_the_least_scale():
    observer = MinMaxObserver(eps=0.01)
    observer(np.zeros(3, np.float32))
    assert_same(observer.calculate_qparams()[0], np.array([0.01], np.float32))


@by_class
def test_nothing_seen(kind):
    observer = kind()
    observer(np.empty((0, 3), np.float32))
    observer(nq.ArraySpec((2, 3), np.float32))
    with pytest.warns(UserWarning, match="nothing was observed"):
        got = observer.calculate_qparams()
    assert_same(got, (np.ones(1, np.float32), np.zeros(1, np.int64)))


@by_class
def test_reset(kind):
    observer, new = kind(), kind()
    observer(data((4, 50)))
    observer.reset_min_max_vals()
    same_state(observer, new)


def test_dynamic():
    assert MovingAverageMinMaxObserver(1, is_dynamic=True).is_dynamic
    assert MinMaxObserver(is_dynamic=True).is_dynamic


# --- PyTorch's histogram ----------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("bins", [256, 100])
def test_histogram(dtype, bins):
    ours, theirs = HistogramObserver(bins, np.int8), oracle.Histogram(bins)
    for seed in range(4):
        x = (data(3000, seed) * (seed + 1)).astype(dtype)
        ours(x)
        theirs.observe(x)
        assert_same(ours.histogram, theirs.counts)
    assert_same((ours.min_val, ours.max_val), (theirs.low, theirs.high))
    low, high = oracle.clip_linear(theirs.counts, theirs.low, theirs.high, 256)
    assert (low, high) != (theirs.low, theirs.high)
    expected = oracle.qparams(low, high, -128, 127, "per_tensor_affine", 0)
    assert_same(ours.calculate_qparams(), expected)


def test_histogram_of_edges():
    """Values on the edges of bins and beside them, where the order of the steps shows."""
    edges = np.linspace(-1.7234567, 3.9876543, 1001).astype(np.float32)
    inner = edges[1:-1]
    x = np.concatenate([edges, np.nextafter(inner, np.float32(9)), np.nextafter(inner, -inner)])
    ours, theirs = HistogramObserver(1000), oracle.Histogram(1000)
    ours(x)
    theirs.observe(x)
    assert_same(ours.histogram, theirs.counts)


@pytest.mark.interpreted
def test_clipping_error():
    """Each of its roundings, not only the range that it leads to."""
    counts = oracle.histc(data(2000), 100, -9, 9)
    for start, end in ((0, 99), (3, 90), (40, 60)):
        ends = np.float32(-9), np.float32(9)
        widths = clip_widths(*ends, 100, end - start + 1, 16)
        got = cpu.searches.clipping_error(counts, 100, widths, start, 16, np.empty(100, np.float32))
        assert_same(got, oracle.clipping_error(counts, *ends, start, end, 16))


def test_quantiles_are_rounded_once():
    """Among more than 2**23 values, where a rounded quantile times the total is another count."""
    digits = "45116659222272176537665447016" + "0" + "20068935658385025698813743819"
    counts = np.array(list(digits), np.float32)
    counts[29] = 14_233_224
    ends, found = (np.float32(-1), np.float32(1)), np.empty(2, np.float32)
    cpu.histogram.clip_linear(counts, *ends, 16, found)
    assert_same(tuple(found), oracle.clip_linear(counts, *ends, 16))


@pytest.mark.parametrize("v", [0.0, 3.0, -(2.0**24), 2.0**25, 1e30])
def test_histogram_of_one_value(v):
    ours, theirs = HistogramObserver(64), oracle.Histogram(64)
    for x in ([v, v], [v], [v, v + 1e30, 2 * v]):
        ours(np.array(x, np.float32))
        theirs.observe(np.array(x, np.float32))
        assert_same(ours.histogram, theirs.counts)


@pytest.mark.parametrize("parts", [1, 3])
def test_upsample_rate(parts):
    ours, theirs = HistogramObserver(50, upsample_rate=parts), oracle.Histogram(50, parts)
    for seed in range(3):
        ours(data(500, seed) * seed)
        theirs.observe(data(500, seed) * seed)
    assert_same(ours.histogram, theirs.counts)


@pytest.mark.parametrize("n", [0, 1, 5, 7, 8, 100, 1000, 2048, 5001])
def test_the_order_of_torch_sum(n):
    """From the contract's golden sum, and cascades long enough for each level."""
    if n == 100:
        assert_same(oracle.torch_sum(1 / np.arange(1, 101, dtype=np.float32)),
                    np.uint32(0x40A5FF00).view(np.float32))  # fmt: skip
    x = data(n) * 100
    assert_same(cpu.searches.torch_sum(x, n), oracle.torch_sum(x))


def test_floor_division_has_the_bits_of_fmod():
    random = rng(0)
    a = (random.normal(size=4000) * 10.0 ** random.uniform(-3, 8, 4000)).astype(np.float32)
    b = (10.0 ** random.uniform(-6, 2, 4000)).astype(np.float32)
    a[:1000] = np.rint(a[:1000]) * b[:1000]
    with np.errstate(all="ignore"):
        expected = np.floor_divide(a, b)
    got = [floor_divided(u, v) for u, v in zip(a, b, strict=True)]
    assert_same(np.array(got, np.float32) + np.float32(0), expected + np.float32(0))


def test_counts_are_exact_where_the_type_of_the_data_is_not():
    """PyTorch counts float16 in float16, which ends at 2048 (D26)."""
    for dtype in (np.float16, ml_dtypes.bfloat16):
        observer = HistogramObserver()
        observer(np.full(5000, 0.5, dtype))
        assert observer.histogram.sum() == 5000


@pytest.mark.interpreted
def test_values_whose_place_overflows_have_their_own_bins():
    """PyTorch puts them into the first bin (D26)."""
    observer = HistogramObserver(4)
    observer(np.array([0, 1e38, 2e38, 3e38], np.float32))
    assert observer.histogram.tolist() == [1, 1, 1, 1]


# --- doubling histograms ----------------------------------------------------------------------


@pytest.mark.interpreted
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("axis", [None, 0, 1])
def test_doubling_histogram(dtype, axis):
    x = (data((4, 6, 50)) * 10.0 ** np.arange(-3, 3)[:, None]).astype(dtype)
    observer = PercentileObserver(bins=64, ch_axis=axis)
    for part in x[:, :, :20], x[:, :, 20:]:
        observer(part)
    rows = [x] if axis is None else np.moveaxis(x, axis, 0)
    counts, exponents = zip(*[oracle.doubling(row, 64) for row in rows], strict=True)
    assert_same(observer.histogram.reshape(-1, 64), np.array(counts))
    assert_same(observer.exponent.reshape(-1), np.array(exponents, np.int32))
    low, high = oracle.extremes(x, axis)
    assert_same((observer.min_val, observer.max_val), (np.asarray(low), np.asarray(high)))


@pytest.mark.interpreted
@pytest.mark.parametrize("times", [1, 2, 4, 8, 100])
def test_doubling(times):
    x = data(500)
    observer = PercentileObserver(bins=256)
    observer(x)
    observer(x * times)
    assert_same(observer.histogram, oracle.doubling(np.concatenate([x, x * times]), 256)[0])


SIZES = st.floats(-(2.0**127), 2.0**127, width=32) | st.sampled_from(
    [0.0, -0.0, 1e-45, -1e-45, 1.0, -1.0]
)


@given(st.lists(SIZES, min_size=1, max_size=40), st.data())
def test_neither_cuts_nor_merging_change_a_bit(values, draw):
    x = np.array(values, np.float32)
    cuts = sorted(draw.draw(st.lists(st.integers(0, x.size), max_size=4)))
    whole, one_by_one = MSEObserver(bins=64), MSEObserver(bins=64)
    whole(x)
    merged = []
    for part in np.split(draw.draw(st.permutations(values)) and x, cuts):
        one_by_one(part)
        merged.append(MSEObserver(bins=64))
        merged[-1](part)
    total = MSEObserver(bins=64)
    for observer in draw.draw(st.permutations(merged)):
        total.merge(observer)
    counts, exponent = oracle.doubling(x, 64)
    assert_same(whole.histogram, counts)
    assert whole.exponent == exponent
    same_state(whole, one_by_one)
    same_state(whole, total)


@pytest.mark.parametrize("percentile", [100, 99, 75, 50.1])
@pytest.mark.parametrize("one_sided", [False, True])
def test_percentile(percentile, one_sided):
    x = abs(data(1000)) if one_sided else data(1000)  # 75 % are a whole number of them
    counts, exponent = oracle.doubling(x, 256)
    edge = oracle.edges(256, exponent)
    for qscheme in PercentileObserver._schemes[:2]:
        observer = PercentileObserver(percentile, 256, qscheme=qscheme)
        observer(x)
        low, high = observer._range()
        if qscheme.endswith("symmetric"):
            sizes = counts[128:] + counts[:128][::-1]
            v = oracle.value_of_rank(sizes, edge[128:], x.size * percentile / 100)
            expected = -v, v
        else:
            rank = x.size * percentile / 100
            ranks = x.size - rank, rank
            expected = [oracle.value_of_rank(counts, edge, rank) for rank in ranks]
        expected = np.clip(np.array(expected, np.float32), x.min(), x.max())
        assert_same(np.concatenate([low, high]), expected)
        if percentile == 100 and qscheme.endswith("affine"):
            assert (low[0], high[0]) == (x.min(), x.max())


@pytest.mark.parametrize("percentile", ["55", "99", "99.5", "99.8", "99.9", "99.95", "99.99"])
@pytest.mark.parametrize("qscheme", PercentileObserver._schemes[:2])
def test_a_rank_that_is_whole_is_not_rounded_up(percentile, qscheme):
    """As 100 * (55 / 100) would be, or 41000 * 99.9 / 100: what follows lies far away."""
    share = Fraction(percentile) / 100
    for count in range(0, 120_001, max(1000, share.denominator))[1:]:
        below = int(count * share)
        observer = PercentileObserver(float(percentile), 256, dtype=np.int8, qscheme=qscheme)
        observer(np.repeat(np.float32([0.01, 1.0]), [below, count - below]))
        assert observer._range()[1][0] < 0.02, count
        if qscheme.endswith("affine"):
            # So is that of the least, which is what is left of them.
            observer = PercentileObserver(float(percentile), 256, dtype=np.int8, qscheme=qscheme)
            above = count - below
            observer(np.repeat(np.float32([-1.0, -0.01]), [above, below]))
            assert observer._range()[0][0] < -0.98, count


def test_percentiles_are_those_of_inverted_cdf():
    """Of a hundred values the least one is that of rank 1, and the greatest lies beyond rank 99."""
    x = np.linspace(-1, 1, 100, dtype=np.float32)
    x[[0, -1]] = -50, 50
    observer = PercentileObserver(99)
    observer(x)
    low, high = observer._range()
    exact = np.percentile(x, [1, 99], method="inverted_cdf")
    width = np.ldexp(2.0 / observer.bins, int(observer.exponent))
    np.testing.assert_allclose([low[0], high[0]], exact, rtol=0, atol=width)
    assert (exact[0], exact[1] <= 1) == (-50, True)


def test_percentile_is_that_of_the_data_within_a_bin():
    x = data(20000)
    observer = PercentileObserver(99.0, 4096)
    observer(x)
    width = np.ldexp(2.0 / 4096, int(observer.exponent))
    low, high = observer._range()
    for got, q in ((low, 1), (high, 99)):
        # The exact value of that rank lies in the bin in which the estimate lies too.
        exact = np.percentile(x.astype(np.float64), q, method="inverted_cdf")
        assert abs(got[0] - exact) <= width


@pytest.mark.parametrize("make", [HistogramObserver, PercentileObserver,
                                  lambda: npq.FakeQuantize(HistogramObserver, 0, 255)])  # fmt: skip
@pytest.mark.parametrize("traced", [False, True])
def test_a_warning_is_of_the_line_that_called(make, traced):
    """Python shows one for each line, so that another model's infinities would be silent."""
    x = np.array([1, np.inf], np.float32)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        if traced:
            with ag.Tape() as tape:
                tape.apply(make(), x)
        else:
            make()(x)
        make().calculate_qparams()
    assert [w.filename for w in found] == [__file__] * 2
    assert [str(w.message).partition(",")[0] for w in found] == [
        "x has infinities", "nothing was observed: the scale is 1",
    ]  # fmt: skip


@pytest.mark.parametrize("module", [{}, {"__name__": None}, {"__name__": 3}])
def test_a_warning_where_no_module_has_a_name(module):
    """Python itself may be silent there."""
    names = {"observer": MinMaxObserver()} | module
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec("found = observer.calculate_qparams()", names)
    assert_same(names["found"], (np.ones(1, np.float32), np.zeros(1, np.int64)))


def _error_of(observer, x, low, high):
    counts, exponent = oracle.doubling(x, observer.bins)
    lo, hi = observer.quant_min, observer.quant_max
    scale, z = oracle.qparams(
        np.float32(low), np.float32(high), lo, hi, observer.qscheme, observer._middle
    )
    edge = oracle.edges(observer.bins, exponent)
    return oracle.squared_error(
        counts, edge, float(x.min()), float(x.max()), scale[0], lo, hi, z[0]
    )


@pytest.mark.parametrize("kind", ["two sides", "one side", "grid", "constant"])
@pytest.mark.parametrize("qscheme", MSEObserver._schemes[:2])
def test_mse(qscheme, kind):
    x = {"two sides": data(500), "one side": abs(data(500)), "grid": np.rint(data(500)),
         "constant": np.full(9, 0.3, np.float32)}[kind]  # fmt: skip
    observer = MSEObserver(64, qscheme=qscheme, dtype=ml_dtypes.int4)
    observer(x)
    low, high = (float(v[0]) for v in observer._range())
    least, greatest = float(x.min()), float(x.max())
    found = _error_of(observer, x, low, high)
    # Both sums add some thousand terms of float64, each within a few ulp of the whole.
    slack = 1 + 1e-9
    if qscheme.endswith("symmetric"):
        reach = max(-least, greatest)
        tried = [(-reach * n / 100, reach * n / 100) for n in range(1, 101)]
    else:
        tried = [(least * n / 100, greatest * n / 100) for n in range(1, 101)]
        tried += [(low, greatest * n / 100) for n in range(1, 101)]
        tried += [(least * n / 100, high) for n in range(1, 101)]
    assert found <= min(_error_of(observer, x, a, b) for a, b in tried) * slack + 1e-12
    if kind == "two sides":
        assert high < greatest or low > least


@pytest.mark.parametrize("qscheme", MSEObserver._schemes[:2])
def test_mse_of_the_least_scale(qscheme):
    """With a least scale beyond all that is tried, each has one error, and the widest wins."""
    x = data(500)
    observer = MSEObserver(64, dtype=ml_dtypes.int4, qscheme=qscheme, eps=1e3)
    observer(x)
    low, high = observer._range()
    assert (low[0], high[0]) == (x.min(), x.max())


def test_mse_of_more_codes_than_bins():
    """The error of a bin is its integral: with codes far narrower than bins nothing is clipped."""
    observer = MSEObserver(64, dtype=np.int16)
    x = rng(0).uniform(-1, 1, 5000).astype(np.float32)
    observer(x)
    low, high = observer._range()
    assert (low[0], high[0]) == (x.min(), x.max())


def test_mse_is_that_of_the_qparams_that_are_given():
    """Also where float32 does not hold the width: whether low / scale is a tie decides it."""
    ends = np.float32([-1.9996754e38, 1.9996754e38])
    between = np.float32([-3.161032, -6.715025, 4.2783527, -9.9940487, 2.4912349, -10.607257,
                          -17.765546, 12.288741, 8.393901])  # fmt: skip
    x = np.concatenate([ends, between * np.float32(1e37)])
    observer = MSEObserver(16, dtype=ml_dtypes.int4)
    observer(x)
    low, high = (float(v[0]) for v in observer._range())
    assert high - low > float(np.finfo(np.float32).max)
    counts, exponent = oracle.doubling(x, 16)
    edge, least, greatest = oracle.edges(16, exponent), *map(float, ends)

    def error(scale, z):
        return oracle.squared_error(counts, edge, least, greatest, scale[0], -8, 7, z[0])

    found = error(*observer.calculate_qparams())
    for n in range(1, 101):
        for a, b in ((least * n / 100, high), (low, greatest * n / 100)):
            range_ = (np.array([np.float32(v)], np.float64) for v in (a, b))
            s, z = nq.determine_qparams(*range_, -8, 7, ml_dtypes.int4, 2.0**-23, False)
            assert found <= error(s.astype(np.float32), z) * (1 + 1e-9)  # as above


@pytest.mark.parametrize("one_sided", [False, True])
@pytest.mark.parametrize("qscheme", EntropyObserver._schemes[:2])
def test_entropy(qscheme, one_sided):
    x = rng(3).normal(size=4000).astype(np.float32)
    x = np.concatenate([abs(x) if one_sided else x, np.float32([9, 14])])
    observer = EntropyObserver(256, qscheme=qscheme, dtype=ml_dtypes.int4)
    observer(x)
    counts, exponent = oracle.doubling(x, 256)
    levels = 16 if one_sided and qscheme.endswith("affine") else 8
    found = oracle.divergences(counts[128:] + counts[:128][::-1], levels)
    low, high = observer._range()
    kept = round(float(high[0]) / np.ldexp(1 / 128, exponent))
    # Sums of at most 128 terms below 10, in float64: 1e-12 is far beyond their rounding.
    assert found[kept] <= min(found.values()) + 1e-12
    assert kept < max(found)
    assert low[0] == max(x.min(), -high[0])


@pytest.mark.parametrize("kind", [HistogramObserver, MSEObserver, PercentileObserver])
def test_as_many_bins_as_counts(kind):
    """Kernels would be told of more than there are."""
    observer, x = kind(bins=64), rng(0).normal(size=100)
    other = kind(bins=64)
    for seen in (False, True):
        if seen:
            observer(x)
        for wrong in (16, 128):
            observer.bins = wrong
            with pytest.raises(
                ValueError, match=r"bins must be 64, as many as histogram has.* got"
            ):
                observer(x)
            with pytest.raises(ValueError, match="bins must be 64"):
                observer.calculate_qparams()
            if kind is not HistogramObserver:
                other.bins = wrong
                with pytest.raises(ValueError, match="bins must be 64"):
                    observer.merge(other)
        observer.bins = 64
    observer.bins = 128
    observer.reset_min_max_vals()
    fresh = kind(bins=128)
    for some in (observer, fresh):
        some(x)
    assert_same(observer.histogram, fresh.histogram)


@pytest.mark.parametrize(
    ("kind", "name", "wrong"),
    [
        (HistogramObserver, "bins", (0, -1, 2**25, 2.5, "64", None)),
        (HistogramObserver, "upsample_rate", (0, 2**31, "a")),
        (MinMaxObserver, "dtype", ("a", np.float32)),
        (MSEObserver, "bins", (1, 3, 17, 48, 2.5)),
        (PercentileObserver, "percentile", (150, 50, np.nan, "a")),
        (MovingAverageMinMaxObserver, "averaging_constant", (2, np.nan)),
        (MinMaxObserver, "quant_max", (2.5, "a")),
        (MinMaxObserver, "reduce_range", ("a", None)),
        (MinMaxObserver, "has_customized_qrange", ("a", None)),
    ],
)
def test_options_are_looked_at_when_they_are_assigned(kind, name, wrong):
    """As by a constructor; and what was assigned becomes what a constructor makes of it."""
    observer = kind()
    held = getattr(observer, name)
    for value in wrong:
        with pytest.raises((TypeError, ValueError), match=f"{name} must"):
            setattr(observer, name, value)
        assert getattr(observer, name) is held
    setattr(observer, name, np.int64(held) if type(held) is int else held)
    assert type(getattr(observer, name)) is type(held)


@pytest.mark.parametrize(
    ("make", "name", "wrong", "match"),
    [
        (HistogramObserver, "dtype", ml_dtypes.float8_e4m3fn, "dtype must be one of evenly spaced"),
        (EntropyObserver, "bins", 512, "bins must be at least four times the 256 codes"),
        (
            lambda: MovingAverageMinMaxObserver(1, is_dynamic=True), "averaging_constant", 0.5,
            "averaging_constant must be 1 if is_dynamic",
        ),
        (MinMaxObserver, "quant_max", 0, "quant_max"),
        (MinMaxObserver, "quant_max", 256, "quant_max"),
        (MinMaxObserver, "qscheme", 3, "qscheme must"),
        (MinMaxObserver, "qscheme", "per_channel_affine", "qscheme must"),
        (MSEObserver, "qscheme", "per_channel_affine", "with ch_axis None qscheme must be one"),
        (
            lambda: MinMaxObserver(qscheme="per_tensor_symmetric"), "quant_max", 127,
            "quant_min and quant_max must have the zero point 128 between, got 0 and 127",
        ),
        (PerChannelMinMaxObserver, "is_dynamic", True, "is_dynamic must be False"),
    ],
)  # fmt: skip
def test_options_are_looked_at_together_when_they_are_used(make, name, wrong, match):
    """Each time, until they go together."""
    observer = make()
    observer(np.array([[-1.0, 2.0]], np.float32))
    wanted, held = observer.calculate_qparams(), getattr(observer, name)
    setattr(observer, name, wrong)
    for _ in range(2):
        with pytest.raises((TypeError, ValueError), match=match):
            observer.calculate_qparams()
    setattr(observer, name, held)
    assert_same(observer.calculate_qparams(), wanted)


def test_several_options_are_changed_in_any_order():
    """As they go together in the end, and not before."""
    x = np.array([[-1.0, 2.0], [3.0, -5.0]], np.float32)
    changes = {"dtype": np.int8, "quant_min": -8, "quant_max": 7, "ch_axis": 0}
    changes |= {"qscheme": "per_channel_affine"}
    made = MSEObserver(ch_axis=0, dtype=np.int8, quant_min=-8, quant_max=7)
    made(x)
    for order in (list(changes), list(changes)[::-1]):
        observer = MSEObserver()
        for name in order:
            setattr(observer, name, changes[name])
        observer.reset_min_max_vals()
        observer(x)
        assert_same(observer.calculate_qparams(), made.calculate_qparams())


@pytest.mark.interpreted
@pytest.mark.parametrize(("count", "clips"), [(20_000, False), (100_000, True)])
def test_entropy_of_a_value_far_out(count, clips):
    """It comes to a code that has nothing else, which costs much, but not infinitely much."""
    x = rng(0).normal(size=count).astype(np.float32)
    x[0] = 99.9
    observer = EntropyObserver(1024, dtype=np.int8, qscheme="per_tensor_symmetric")
    observer(x)
    counts, exponent = oracle.doubling(x, 1024)
    found = oracle.divergences(counts[512:] + counts[:512][::-1], 128)
    kept = round(float(observer._range()[1][0]) / np.ldexp(1 / 512, exponent))
    assert found[kept] <= min(found.values()) + 1e-12  # as above
    assert (kept < max(found) / 2) == clips


FAR_FROM_ZERO = {
    "uniform": lambda r, n: r.uniform(1, 2, n),
    "two heaps": lambda r, n: r.choice([-1, 1], n) + r.normal(0, 0.1, n),
    "a heap": lambda r, n: r.normal(3, 0.3, n),
    "a wide heap": lambda r, n: r.normal(6, 1, n),
    "exponential": lambda r, n: 1 + r.exponential(size=n),
    "a spike first": lambda r, n: np.where(r.random(n) < 0.6, 1.0, r.uniform(1, 5, n)),
}


@pytest.mark.parametrize("count", [5000, 200_000])
@pytest.mark.parametrize("kind", FAR_FROM_ZERO)
@pytest.mark.parametrize("qscheme", EntropyObserver._schemes[:2])
def test_entropy_far_from_zero(qscheme, kind, count):
    """Of the first bin that holds anything nothing is lost, but to keep it alone keeps nothing."""
    x = FAR_FROM_ZERO[kind](rng(0), count).astype(np.float32)
    observer = EntropyObserver(dtype=np.int8, qscheme=qscheme)
    observer(x)
    low, high = observer._range()
    assert np.mean((x < low) | (x > high)) < 0.5
    assert np.ptp(np.clip(x, low, high)) > np.ptp(x) / 4


@pytest.mark.interpreted
@pytest.mark.parametrize("qscheme", EntropyObserver._schemes[:2])
@pytest.mark.parametrize(("threshold", "count"), [(0, 100_000), (1.3, 1_000_000)])
def test_entropy_of_zeros(threshold, count, qscheme):
    """Exact zeros, as of a ReLU, lose nothing in any range, so they shrink none."""
    x = np.maximum(rng(0).normal(size=count) - threshold, 0).astype(np.float32)
    found = {}
    for kind in (EntropyObserver, MSEObserver):
        observer = kind(qscheme=qscheme)
        observer(x)
        scale, z = observer.calculate_qparams()
        found[kind] = nq.metrics.sqnr(x, nq.fake_quantize_per_tensor_affine(x, scale, z, 0, 255))
        assert np.mean(x[x > 0] > (255 - z) * scale) < 0.01
    assert found[EntropyObserver] > found[MSEObserver] - 3
    observer = EntropyObserver(1024, dtype=ml_dtypes.int4, qscheme=qscheme)
    observer(x)
    assert observer.histogram[512] >= np.sum(x == 0)


#: Counts of magnitudes, of which the first bin is what is in question.
FIRST_BINS = {
    "zeros": [9000, 300, 290, 270, 250, 240, 200, 190, 170, 150, 120, 90, 60, 30, 9, 3],
    "few in the first": [3, 900, 290, 270, 250, 240, 200, 190, 170, 150, 120, 90, 60, 30, 9, 3],
    "an empty neighbour": [9000, 0, 0, 270, 250, 240, 200, 190, 170, 150, 120, 90, 60, 30, 9, 3],
    "one beside zeros": [9000, *[0] * 14, 1],
}


@pytest.mark.interpreted
@pytest.mark.parametrize("side", [-1, 0, 1])
@pytest.mark.parametrize("counts", FIRST_BINS.values(), ids=FIRST_BINS)
def test_entropy_of_the_first_bin(counts, side):
    """It counts as its neighbour does where that is less, and is never made larger."""
    magnitudes = np.repeat((np.arange(16) + 0.5) / 16, counts).astype(np.float32)
    x = magnitudes * np.resize([1, -1], magnitudes.size) if side == 0 else magnitudes * side
    x = x.astype(np.float32)
    observer = EntropyObserver(32, dtype=ml_dtypes.int2, qscheme="per_tensor_affine")
    observer(x)
    found = oracle.divergences(np.array(counts), 4 if side else 2)
    low, high = observer._range()
    kept = 16 * max(-low[0], high[0])
    kept = max(found) if kept > 15 else round(kept)
    assert found[kept] <= min(found.values()) + 1e-12  # as above


@pytest.mark.parametrize("qscheme", EntropyObserver._schemes[:2])
@pytest.mark.parametrize("bounds", [(0, 255), (0, 1)])
@pytest.mark.parametrize("x", [[0, 0, 0], [0, 1e-38, 3e-38]], ids=str)
def test_entropy_where_only_the_first_bin_holds_anything(qscheme, bounds, x):
    x = np.array(x, np.float32)
    observer = EntropyObserver(qscheme=qscheme, **bounds_of(bounds))
    observer(x)
    assert observer._range()[1][0] == x.max()


@pytest.mark.interpreted
def test_entropy_of_bins_as_they_are():
    """Nothing is lost by clipping nothing when each bin has a code."""
    observer = EntropyObserver(64, dtype=ml_dtypes.int4, qscheme="per_tensor_symmetric")
    x = np.array([-1, 1, 1, 0.5], np.float32)
    observer(x)
    assert observer._range()[1][0] == 1


@by_counting
def test_channels_are_independent(kind):
    x = data((5, 300))
    x[3] = 0
    scales, zero_points = [], []
    for row in x:
        observer = kind(512, dtype=ml_dtypes.int4) if kind is not PercentileObserver else kind(99)
        observer(row)
        scale, z = observer.calculate_qparams()
        scales.append(scale[0])
        zero_points.append(z[0])
    together = (
        kind(512, 1, dtype=ml_dtypes.int4)
        if kind is not PercentileObserver
        else kind(99, ch_axis=1)
    )
    together(np.ascontiguousarray(x.T))
    if kind is not PercentileObserver:
        together.ch_axis = -1
    expected = np.array(scales, np.float32), np.array(zero_points, np.int32)
    assert_same(together.calculate_qparams(), expected)


# --- what is not finite -----------------------------------------------------------------------


def test_long_integers_are_rounded_once():
    """To float32, as their extremes are: by way of float64 they would lie beyond these."""
    v = 2**61 - 2**36 - 1
    observer = MSEObserver(16)
    observer(np.array([v]))
    assert (observer.histogram.sum(), observer.exponent) == (1, 61)
    observer.load_state_dict(observer.state_dict())
    observer = HistogramObserver(16)
    observer(np.array([0, 2**60 + 3 * 2**36 - 1]))
    assert_same(observer.histogram[[0, -1]], np.ones(2, np.float32))


@pytest.mark.parametrize("size", [1, 300_000])
def test_signalling_nans_warn_of_nothing(size):
    """NumPy warns where it converts one; kernels do not."""
    x = np.full(size, 0x7FF0000000000001, np.uint64).view(np.float64)
    observer = MinMaxObserver()
    observer(x)
    assert np.isnan(observer.min_val)
    low, high, scale = (np.zeros(1, np.float32) for _ in range(3))
    step = low, high, scale, np.zeros(1, np.int32)
    y = nq.fused_moving_avg_obs_fake_quant(x, 1, 1, *step, 0.1, -8, 7, 0)
    assert np.isnan(y).all()
    assert np.isnan(low)


@pytest.mark.parametrize("kind", [HistogramObserver, *COUNTING])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_nan_is_refused_and_nothing_changes(kind, dtype):
    observer = kind()
    observer(data(50).astype(dtype))
    before = copy.deepcopy(observer)
    x = np.array([1e3, np.nan, -1e3]).astype(dtype)
    for bad in (x, -x, np.array([np.inf, np.nan]).astype(dtype)):
        with pytest.raises(ValueError, match="x must not have a NaN"):
            observer(bad)
    same_state(observer, before)


@pytest.mark.parametrize("kind", [HistogramObserver, *COUNTING])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("axis", [None, 1])
def test_infinities_are_left_out(kind, dtype, axis):
    if axis is not None and kind is HistogramObserver:
        return
    options = {} if axis is None else {"ch_axis": axis}
    observer, finite = kind(**options), kind(**options)
    x = data((40, 3)).astype(dtype)
    finite(x)
    y = np.concatenate([x, np.full((1, 3), np.inf).astype(dtype), -np.full((1, 3), np.inf, dtype)])
    with pytest.warns(UserWarning, match="infinities"):
        observer(y)
    with pytest.warns(UserWarning, match="infinities"):
        observer(y[-2:])
    same_state(observer, finite)


def test_what_overflows_float32_is_infinite():
    observer, finite = HistogramObserver(), HistogramObserver()
    finite(np.array([1.0, 2.0]))
    with pytest.warns(UserWarning, match="infinities"):
        observer(np.array([1.0, 1e300, 2.0]))
    same_state(observer, finite)


def test_a_range_that_is_no_float32():
    observer = HistogramObserver()
    with pytest.raises(ValueError, match="x must have a range that is a float32"):
        observer(np.array([-3e38, 3e38], np.float32))
    same_state(observer, HistogramObserver())


def test_a_channel_without_finite_values():
    observer = PercentileObserver(ch_axis=0)
    with pytest.warns(UserWarning, match="infinities"):
        observer(np.array([[np.inf, np.inf], [1, 2]], np.float32))
    scale, _ = observer.calculate_qparams()
    assert_same(scale, np.array([2.0**-23, 2 / np.float32(255)], np.float32))


# --- layouts, threads -------------------------------------------------------------------------

LAYOUTS = {
    "fortran": np.asfortranarray,
    "strided": lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
    "reversed": lambda x: np.ascontiguousarray(x[::-1, ::-1])[::-1, ::-1],
    "channels last": lambda x: np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2),
    "unaligned": lambda x: np.frombuffer(b"0" + x.tobytes(), x.dtype, offset=1).reshape(x.shape),
    "swapped": lambda x: x.astype(x.dtype.newbyteorder()),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@by_class
def test_layout(kind, layout):
    x = data((5, 4, 30, 60))
    axes = range(4) if kind in (*PER_CHANNEL, PercentileObserver) else [None]
    for axis in axes:
        options = {} if axis is None else {"ch_axis": axis}
        one, other = kind(**options), kind(**options)
        one(x)
        other(LAYOUTS[layout](x))
        same_state(one, other)


@pytest.mark.parametrize("axis", [None, 1])
def test_threads(axis):
    """Large enough for parallel kernels."""
    before = numba.get_num_threads()
    x = data((1 << 12, 40))
    observers = []
    for threads in (1, max(2, before)):
        numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))
        try:
            observers.append(PercentileObserver(bins=256, ch_axis=axis))
            observers[-1](x)
        finally:
            numba.set_num_threads(before)
    same_state(*observers)
    rows = [x] if axis is None else x.T
    counts = np.array([oracle.doubling(row, 256)[0] for row in rows])
    assert_same(observers[1].histogram.reshape(-1, 256), counts)


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_counts_do_not_depend_on_the_parts(parts, monkeypatch):
    """A part of a channel more or less: the longest is cut down."""
    x = data((3, 1000))
    monkeypatch.setattr(cpu.histogram, "LONGEST", -(-1000 // parts))
    counts = np.zeros((3, 64), np.int64)
    exponents = [oracle.doubling(row, 64)[1] for row in x]
    bound = np.ldexp(np.float32(1), exponents)
    cpu.count_doubling(Granularity(3, 1000, 0), x, 32 / bound, bound, counts)
    assert_same(counts, np.array([oracle.doubling(row, 64)[0] for row in x]))


#: Data of more than a piece that are not flat: rows that are pieces, or are packed, backwards,
#: every second and every third element, and channels that cross memory.
APART = {
    "long rows with gaps": lambda: data((5, 7, 1600))[..., :1300],
    "rows with gaps": lambda: data((3, 60, 340))[..., 20:320],
    "rows longer than a tile": lambda: data((2, 3, 5300))[..., 1:5201],
    "backwards": lambda: data((3, 60, 300))[..., ::-1],
    "every second": lambda: data((3, 60, 601))[..., :600:2],
    "every third": lambda: data((3, 60, 900))[:, ::-1, ::3],
    "crossed": lambda: data((40, 70, 11)).transpose(2, 1, 0)[:, 3:],
}


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("layout", APART)
def test_counts_of_data_that_are_not_flat(layout, axis, parts, monkeypatch):
    x = APART[layout]()
    assert x.size > walk.PIECE
    granularity = whole(x.size) if axis is None else per_channel(x.shape, axis)
    rows = np.moveaxis(x, axis or 0, 0).reshape(granularity.channels, -1)
    monkeypatch.setattr(cpu.histogram, "LONGEST", -(-rows.shape[1] // parts))
    found = [oracle.doubling(row, 64) for row in rows]
    bound = np.ldexp(np.float32(1), [exponent for _, exponent in found])
    counts = np.full((len(rows), 64), 5, np.int64)
    cpu.count_doubling(granularity, x, 32 / bound, bound, counts)
    assert_same(counts, np.array([5 + counted for counted, _ in found]))
    low, high = np.float32([-1]), np.float32([2])
    counts = np.zeros((1, 16), np.int64)
    if axis is None:
        cpu.count_linear(granularity, x, low, high, counts)
        inside = x[(x >= -1) & (x <= 2)].astype(np.float64)
        assert counts.sum() == inside.size
        assert_same(counts[0, :8].sum(), np.sum(inside < 0.5))


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("layout", ["contiguous", "permuted", "strided"])
@by_class
def test_no_temporary_of_the_size_of_the_input(kind, layout):
    """Beside the bound of ops: the counts of both arrays, and a copy of each."""
    observer, before = kind(), kind()
    x = memory.LAYOUTS[layout](data(memory.SHAPE))
    before(before(x) * 3)  # compiles, what a wider range needs too
    observer(observer(x))
    allowed = memory.BOUND + 4 * sum(v.nbytes for v in observer.state_dict().values())
    assert allowed < x.nbytes / 2
    for v in (x, x * 3):
        assert memory.peak(lambda v=v: observer(v)[:0]) <= allowed


# --- merging and state ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [MinMaxObserver, PerChannelMinMaxObserver, *COUNTING])
def test_merge(kind):
    x = data((4, 60))
    whole, one, other, none = kind(), kind(), kind(), kind()
    whole(x)
    one(x[:, :10])
    other(x[:, 10:])
    before = copy.deepcopy(other)
    one.merge(none)
    one.merge(other)
    none.merge(one)
    for merged in (one, none):
        same_state(merged, whole)
    same_state(other, before)
    one(x * 9)
    same_state(none, whole)


@pytest.mark.parametrize(
    "kind", [HistogramObserver, MovingAverageMinMaxObserver, MovingAveragePerChannelMinMaxObserver]
)
def test_what_cannot_merge_says_why(kind):
    with pytest.raises(TypeError, match=r"cannot be merged: .* order in which arrays came"):
        kind().merge(kind())


@by_class
def test_state(kind):
    observer = kind()
    observer(data((4, 60)))
    state = observer.state_dict()
    for new in (kind(), pickle.loads(pickle.dumps(observer)), copy.copy(observer)):
        if new.min_val.size == 0 or (new.min_val.ndim == 0 and new.min_val == np.inf):
            new.load_state_dict(state)
        same_state(new, observer)
        assert_same(new.calculate_qparams(), observer.calculate_qparams())
        new(data((4, 60)) * 2)
    for key, array in observer.state_dict().items():
        assert_same(array, state[key], "shared state")
        array += 1
    same_state(observer, pickle.loads(pickle.dumps(observer)))
    assert not np.array_equal(observer.state_dict()["eps"], array)


STATE_FAULTS = [
    (lambda s: [1], ValueError, "state_dict must be a mapping"),
    (lambda s: {k: v for k, v in s.items() if k != "eps"}, ValueError, "must have the key 'eps'"),
    (lambda s: s | {"foreign": s["eps"]}, ValueError, "got 'foreign' too"),
    (lambda s: s | {"eps": 1.0}, ValueError, r"\['eps'\] must be a NumPy array"),
    (lambda s: s | {"eps": s["eps"].astype(float)}, ValueError, "must have the dtype float32"),
    (lambda s: s | {"eps": s["eps"][:0]}, ValueError, r"must have the shape \(1,\)"),
    (lambda s: s | {"eps": -s["eps"]}, ValueError, "must be positive"),
    (lambda s: s | {"eps": s["eps"] * np.float32(np.inf)}, ValueError, "must be positive and fini"),
    (lambda s: s | {"max_val": np.zeros((7, 7), np.float32)}, ValueError, "must have the shape"),
]


@by_class
@pytest.mark.parametrize(("spoil", "error", "message"), STATE_FAULTS)
def test_wrong_state(kind, spoil, error, message):
    observer = kind()
    observer(data((4, 60)))
    before = copy.deepcopy(observer)
    other = kind()
    other(data((4, 60), 1))
    with pytest.raises(error, match=message):
        observer.load_state_dict(spoil(other.state_dict()))
    same_state(observer, before)


@by_class
def test_ends_that_have_crossed(kind):
    """Averages move each end by itself, and so may come to that."""
    observer = kind()
    observer(data((4, 60)))
    state = observer.state_dict()
    state["min_val"] = np.asarray(state["max_val"] + 1)
    if "MovingAverage" in kind.__name__:
        observer.load_state_dict(state)
        assert (observer.min_val > observer.max_val).all()
    else:
        with pytest.raises(ValueError, match="must not exceed max_val"):
            observer.load_state_dict(state)


@pytest.mark.parametrize("qscheme", EntropyObserver._schemes[:2])
@pytest.mark.parametrize("kind", COUNTING)
def test_a_range_that_float32_does_not_hold(kind, qscheme):
    """Its ends are float32, and so is a step of it."""
    observer = kind(qscheme=qscheme)
    observer(np.array([-3e38, 1, 2, 3e38], np.float32))
    scale, _ = observer.calculate_qparams()
    assert 1e35 < scale[0] < 3e36
    low, high = observer._range()
    if kind is PercentileObserver and qscheme == "per_tensor_affine":
        assert scale == np.float32((np.float64(high) - low) / 255)
    if kind is MSEObserver:  # nothing that is cut off pays for finer steps
        assert -low == high == np.float32(3e38)


@pytest.mark.parametrize("kind", COUNTING)
def test_a_channel_of_such_a_range_leaves_others_alone(kind):
    rows = data((6, 60)).astype(np.float32)
    far = np.resize(np.array([-3.4e38, 3.4e38], np.float32), (1, 60))
    alone, beside = (kind(bins=4096, ch_axis=0) for _ in range(2))
    alone(rows)
    beside(np.concatenate([rows, far]))
    pairs = zip(alone.calculate_qparams(), beside.calculate_qparams(), strict=True)
    assert all((a == b[:-1]).all() for a, b in pairs)
    assert np.isfinite(beside.calculate_qparams()[0]).all()


@pytest.mark.parametrize("kind", [HistogramObserver, *COUNTING])
def test_wrong_counts(kind):
    observer = kind()
    observer(data(60))
    for histogram in (-observer.histogram, observer.histogram[1:]):
        with pytest.raises(ValueError, match=r"\['histogram'\] must have"):
            observer.load_state_dict(observer.state_dict() | {"histogram": histogram})
    if kind is not HistogramObserver:
        for exponent in (-90, 129, 900):
            state = observer.state_dict() | {"exponent": np.array(exponent, np.int32)}
            with pytest.raises(ValueError, match=r"\['exponent'\] must be .* at most 128, got"):
                observer.load_state_dict(state)


# --- errors -----------------------------------------------------------------------------------

ERRORS = [
    (lambda: MinMaxObserver(quant_min=0), ValueError, "both or neither"),
    (lambda: MinMaxObserver(quant_max=0), ValueError, "both or neither"),
    (lambda: MinMaxObserver(quant_min=0, quant_max=256), ValueError, "must lie within 0..255"),
    (lambda: MinMaxObserver(quant_min=3, quant_max=9), ValueError, "quant_min <= 0"),
    (lambda: MinMaxObserver(quant_min=0, quant_max=0), ValueError, "quant_min < quant_max"),
    (lambda: MinMaxObserver(quant_min=0.5, quant_max=9), TypeError, "quant_min must be an integer"),
    (lambda: MinMaxObserver(np.float32), TypeError, "dtype must be one of"),
    (lambda: MinMaxObserver(qscheme="per_channel_affine"), ValueError, "qscheme must be one of"),
    (lambda: MinMaxObserver(qscheme=3), TypeError, "qscheme must be a string"),
    (lambda: MinMaxObserver(eps=0), ValueError, "eps must be positive"),
    (lambda: MinMaxObserver(eps=None), TypeError, "eps must be a number"),
    (lambda: MinMaxObserver(np.int16, reduce_range=True), ValueError, "reduce_range must be off"),
    (lambda: MinMaxObserver(reduce_range=True, quant_min=0, quant_max=1), ValueError, "of 0 and 1"),
    (
        lambda: MinMaxObserver(np.uint8, "per_tensor_symmetric", True),
        ValueError,
        "reduce_range must be off, or bounds given, for symmetric uint8",
    ),
    (lambda: MovingAverageMinMaxObserver(np.nan), ValueError, "averaging_constant must be finite"),
    (lambda: MovingAverageMinMaxObserver(is_dynamic=True), ValueError, "averaging_constant must"),
    (lambda: MovingAverageMinMaxObserver(-0.1), ValueError, "averaging_constant must be at least"),
    (lambda: MovingAverageMinMaxObserver(1.2), ValueError, "averaging_constant must be at most"),
    (lambda: MovingAveragePerChannelMinMaxObserver(1.2), ValueError, "averaging_constant must be"),
    (lambda: PerChannelMinMaxObserver(is_dynamic=True), ValueError, "is_dynamic must be False"),
    (lambda: HistogramObserver(is_dynamic=True), ValueError, "is_dynamic must be False"),
    (lambda: PerChannelMinMaxObserver(0.5), TypeError, "ch_axis must be an integer"),
    (lambda: HistogramObserver(0), ValueError, "bins must lie within"),
    (lambda: HistogramObserver(2**24 + 1), ValueError, "bins must lie within"),
    (lambda: HistogramObserver(upsample_rate=0), ValueError, "upsample_rate must lie within"),
    (lambda: HistogramObserver(upsample_rate=4097), ValueError, "upsample_rate must lie within"),
    (lambda: HistogramObserver(dtype=ml_dtypes.float8_e5m2), TypeError, "evenly spaced"),
    (lambda: MSEObserver(100), ValueError, "bins must be a power of two"),
    (lambda: MSEObserver(8), ValueError, "bins must lie within"),
    (lambda: MSEObserver(2**25), ValueError, "bins must lie within"),
    (lambda: MSEObserver(qscheme="per_channel_affine"), ValueError, "qscheme must be one of"),
    (lambda: MSEObserver(ch_axis=0, qscheme="per_tensor_affine"), ValueError, "qscheme must be"),
    (lambda: PercentileObserver(50), ValueError, "percentile must be more than 50"),
    (lambda: PercentileObserver(100.1), ValueError, "percentile must be more than 50"),
    (lambda: EntropyObserver(dtype=np.int16), ValueError, "bins must be at least four times"),
    (lambda: EntropyObserver(512), ValueError, "bins must be at least four times the 256 codes"),
    (lambda: MinMaxObserver()([1.0]), TypeError, "x must be a NumPy array"),
    (lambda: MinMaxObserver()(np.array([True])), TypeError, "x must have a dtype among"),
    (lambda: PerChannelMinMaxObserver(1)(data(3)), ValueError, "ch_axis must be an axis of x, of"),
    (lambda: MSEObserver(ch_axis=0)(np.float32(1)), ValueError, "ch_axis must be an axis of x,"),
    (
        lambda: MinMaxObserver().merge(HistogramObserver()),
        TypeError,
        "other must be of the class MinMax",
    ),
]


@pytest.mark.parametrize(("call", "error", "message"), ERRORS)
def test_wrong_argument(call, error, message):
    with pytest.raises(error, match=message):
        call()


INT8, SYMMETRIC = {"dtype": np.int8}, {"qscheme": "per_tensor_symmetric"}
ALL_OF_UINT8 = {"quant_min": 0, "quant_max": 255}


@pytest.mark.parametrize(
    ("kind", "name", "ours", "theirs"),
    [
        (MinMaxObserver, "dtype", {}, INT8),
        (MinMaxObserver, "qscheme", {}, {"qscheme": "per_tensor_symmetric"}),
        (MinMaxObserver, "quant_min", INT8, {**INT8, "quant_min": -127, "quant_max": 127}),
        (MinMaxObserver, "quant_max", {}, {"quant_min": 0, "quant_max": 15}),
        (MinMaxObserver, "reduce_range", {"quant_min": 0, "quant_max": 127},
         {"reduce_range": True}),
        (MinMaxObserver, "eps", {}, {"eps": 1e-3}),
        (PerChannelMinMaxObserver, "ch_axis", {}, {"ch_axis": 1}),
        (MSEObserver, "bins", {"bins": 64}, {}),
        (MSEObserver, "ch_axis", {"ch_axis": 0}, {"ch_axis": 1}),
        (PercentileObserver, "percentile", {}, {"percentile": 99.9}),
        (MSEObserver, "zero point 128,", SYMMETRIC, SYMMETRIC | ALL_OF_UINT8),
        (MinMaxObserver, "zero point 127,", SYMMETRIC | ALL_OF_UINT8, SYMMETRIC),
    ],
)  # fmt: skip
def test_other_settings_do_not_merge(kind, name, ours, theirs):
    """Nor bounds that are those of the dtype, but were given, and make another zero point."""
    with pytest.raises(ValueError, match=f"other must have the {name} ") as raised:
        kind(**ours).merge(kind(**theirs))
    assert name != "dtype" or str(raised.value) == "other must have the dtype uint8, got int8"
    kind(**theirs).merge(kind(**theirs))


@pytest.mark.parametrize("kind", [*PER_CHANNEL, *COUNTING])
def test_other_channels_than_before(kind):
    observer = kind(ch_axis=0)
    observer(data((4, 30)))
    before = copy.deepcopy(observer)
    for n in (1, 5):
        with pytest.raises(ValueError, match=f"x must have 4 channels .* got {n}"):
            observer(data((n, 30)))
    same_state(observer, before)
    if kind not in PER_CHANNEL[1:]:
        other = kind(ch_axis=0)
        other(data((5, 30)))
        with pytest.raises(ValueError, match="other must have 4 channels, got 5"):
            observer.merge(other)


@pytest.mark.parametrize("kind", [*PER_CHANNEL, *COUNTING])
def test_an_end_of_no_channels_beside_one_of_some(kind):
    """It is not that nothing was observed."""
    observer = kind(ch_axis=0)
    observer(data((4, 30)))
    observer.min_val = observer.min_val[:0]
    with pytest.raises(ValueError, match="max_val must have 0 channels, as min_val has, got 4"):
        observer.calculate_qparams()


@pytest.mark.parametrize("kept", [3, 0])
@pytest.mark.parametrize("kind", [*PER_CHANNEL, *COUNTING])
def test_arrays_of_different_channels(kind, kept):
    """Each may be assigned, and is right by itself; a kernel would read and write past an end."""
    for name in kind._buffers:
        if name in ("eps", "min_val"):
            continue
        observer, other = kind(ch_axis=0), kind(ch_axis=0)
        observer(data((4, 30)))
        other(data((4, 30)))
        setattr(observer, name, getattr(observer, name)[:kept])
        before = {key: getattr(observer, key).copy() for key in kind._buffers}
        uses = [lambda x=observer: x(data((4, 30))), observer.calculate_qparams]
        if kind not in PER_CHANNEL[1:]:
            uses += [lambda x=observer, y=other: x.merge(y), lambda x=observer, y=other: y.merge(x)]
        for use in uses:
            with pytest.raises(ValueError, match=f"{name} must have 4 channels, .* got {kept}"):
                use()
        for key, value in before.items():
            assert_same(getattr(observer, key), value, key)
        for key in kind._buffers:  # another state, one after the other
            setattr(observer, key, getattr(other, key))
        same_state(observer, other)
        assert_same(observer.calculate_qparams(), other.calculate_qparams())


def test_vectors_have_channels_too():
    """PyTorch fails (D25)."""
    observer = PerChannelMinMaxObserver()
    observer(np.array([1, -2, 3], np.float32))
    assert observer.max_val.tolist() == [1, -2, 3]


# --- modules ----------------------------------------------------------------------------------


class Held:
    def __init__(self, value):
        self.value = value


class Pair(Module):
    _parameters = ("scale",)
    _buffers = ("count",)
    _modules = ("observer",)

    def __init__(self):
        self.scale, self.count = Held(np.ones(1)), np.zeros((), np.int64)
        self.observer = MinMaxObserver()

    def forward(self, call, x):
        return call(ag.add, self.observer.forward(call, x), 1)

    def extra_repr(self):
        return f"count={self.count}"


def test_module():
    pair, steps = Pair(), []
    x = np.array([1, 2], np.float32)
    assert_same(pair(x), x + 1)
    pair.forward(lambda f, *args: steps.append((f, args[1])), x)
    assert steps == [(ag.add, 1)]
    assert list(pair.state_dict()) == [
        "scale", "count", "observer.eps", "observer.min_val", "observer.max_val",
    ]  # fmt: skip
    assert repr(pair) == (
        "Pair(\n  count=0\n  (observer): MinMaxObserver(min_val=1.0, max_val=2.0)\n)"
    )
    state = pair.state_dict() | {"scale": np.full(1, 5.0)}
    other, held = Pair(), None
    held = other.scale
    other.load_state_dict(state)
    assert other.scale is held
    same_state(other, Pair.__copy__(other))
    assert other.scale.value[0] == 5
    bad = state | {"scale": np.full(1, 7.0), "observer.eps": np.ones(2, np.float32)}
    with pytest.raises(ValueError, match=r"state_dict\['observer.eps'\] must have the shape"):
        other.load_state_dict(bad)
    assert other.scale.value[0] == 5
    with pytest.raises(NotImplementedError, match="Module has no forward"):
        Module()(x)


def test_repr():
    observer = PerChannelMinMaxObserver()
    assert repr(observer) == "PerChannelMinMaxObserver(min_val=[], max_val=[])"
    assert repr(MinMaxObserver()) == "MinMaxObserver(min_val=inf, max_val=-inf)"


def test_next_above():
    """Against NumPy's, in both types."""
    for kind in (np.float32, np.float64):
        ends = np.finfo(kind)
        for v in (1, 2**24, 0.1, ends.max, ends.tiny, ends.smallest_subnormal):
            for u in (kind(v), -kind(v)):
                with np.errstate(over="ignore"):
                    assert next_above(u) == np.nextafter(u, kind(np.inf))


def test_public_names():
    assert npq.__all__ == sorted(npq.__all__)
    for name in ("Observer", "Module", *(kind.__name__ for kind in OBSERVERS)):
        assert name in npq.__all__


@by_class
def test_ends_that_were_assigned_in_the_wrong_order(kind):
    """A moving average's may come to be so."""
    observer = kind()
    observer(data((4, 60)))
    observer.min_val = np.asarray(observer.max_val + 1)
    if "MovingAverage" in kind.__name__:
        assert observer.calculate_qparams()[0].min() > 0
        return
    for _ in range(2):  # until it is right
        with pytest.raises(ValueError, match=r"^min_val must not exceed max_val, got "):
            observer.calculate_qparams()
    observer.min_val = np.asarray(observer.max_val - 1)
    observer.calculate_qparams()
    observer = kind()
    observer.min_val = np.full((4,) if observer.min_val.ndim else (), -2, np.float32)
    with pytest.raises(ValueError, match=r"^(min_val must not|max_val must)"):
        observer.calculate_qparams()
