"""npquant's observers against PyTorch 2.13's: equal bits of statistics, histograms and qparams."""

import itertools
import warnings

import numpy as np
import pytest
import torch
import torch.ao.quantization.observer as pytorch

import npquant.modules as npq
from cases import FLOATS, assert_same
from tensors import to_torch

torch.set_num_threads(1)

DTYPES = {
    np.uint8: torch.quint8,
    np.int8: torch.qint8,
    np.int16: torch.int16,
    np.uint16: torch.uint16,
    np.int32: torch.int32,
}
RANGES = [
    (np.uint8, None), (np.int8, None), (np.int16, None), (np.uint16, None), (np.int32, None),
    (np.int8, (-8, 7)), (np.int8, (-127, 127)), (np.uint8, (0, 15)), (np.uint8, (0, 100)),
]  # fmt: skip
rng = np.random.default_rng


def pair(name, dtype, bounds, qscheme, **options):
    """Return our observer and PyTorch's."""
    if bounds is not None:
        options |= dict(zip(("quant_min", "quant_max"), bounds, strict=True))
    theirs = getattr(pytorch, name)(dtype=DTYPES[dtype], qscheme=getattr(torch, qscheme), **options)
    return getattr(npq, name)(dtype=dtype, qscheme=qscheme, **options), theirs


def check(ours, theirs, note):
    """Statistics, their names, qparams: all the same."""
    state, expected = ours.state_dict(), theirs.state_dict()
    assert list(state) == list(expected)
    for key in state:
        assert_same(state[key], expected[key].numpy(), f"{note} {key}")
    got = ours.calculate_qparams()
    assert_same(got, tuple(v.numpy() for v in theirs.calculate_qparams()), note)


def observe(ours, theirs, arrays):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # both warn of infinities
        for x in arrays:
            assert ours(x) is x
            theirs(to_torch(x))


def arrays(kind, shape, seed, dtype=np.float32):
    """Yield data of a kind; later arrays are often wider."""
    random = rng(seed)
    for i in range(4):
        x = random.normal(0, 1 + i * (i % 2), shape)
        x = {
            "normal": lambda x: x,
            "one side": lambda x: abs(x) + 0.5,
            "other side": lambda x: -abs(x) - 0.5,
            "zeros": lambda x: x * 0 + 0.0,
            "constant": lambda x: x * 0 + 2.5,
            "constants": lambda x: x * 0 + random.normal(),
            "grid": np.rint,
            "tiny": lambda x: x * 1e-42,
            "small": lambda x: x * 1e-30,
            "far off": lambda x: x * 1e-3 + 1e4,
            "large": lambda x: x * 1e15,
            "heavy": lambda x: x**5,
            "half": lambda x: np.maximum(x, 0),
        }[kind](x)  # fmt: skip
        yield np.asarray(x, np.float64).astype(dtype)


KINDS = (
    "normal", "one side", "other side", "zeros", "constant", "constants", "grid", "tiny", "small",
    "far off", "large", "heavy", "half",
)  # fmt: skip
PER_TENSOR = ("per_tensor_affine", "per_tensor_symmetric")
PER_CHANNEL = ("per_channel_affine", "per_channel_symmetric", "per_channel_affine_float_qparams")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["MinMaxObserver", "MovingAverageMinMaxObserver"])
def test_per_tensor(name, kind):
    for (dtype, bounds), qscheme in itertools.product(RANGES, PER_TENSOR):
        if (dtype, bounds) == (np.uint8, (0, 100)) and "symmetric" in qscheme:
            continue
        ours, theirs = pair(name, dtype, bounds, qscheme)
        observe(ours, theirs, arrays(kind, (3, 50), 1))
        check(ours, theirs, f"{name} {kind} {dtype} {bounds} {qscheme}")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "name", ["PerChannelMinMaxObserver", "MovingAveragePerChannelMinMaxObserver"]
)
def test_per_channel(name, kind):
    for (dtype, bounds), qscheme in itertools.product(RANGES, PER_CHANNEL):
        for axis in (0, 1, -1):
            ours, theirs = pair(name, dtype, bounds, qscheme, ch_axis=axis)
            observe(ours, theirs, arrays(kind, (5, 3, 7), 2))
            check(ours, theirs, f"{name} {kind} {dtype} {bounds} {qscheme} {axis}")


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(
    "name",
    ["MinMaxObserver", "MovingAverageMinMaxObserver", "PerChannelMinMaxObserver",
     "MovingAveragePerChannelMinMaxObserver"],
)  # fmt: skip
def test_dtypes_of_the_data(name, dtype):
    """All are rounded to float32 first; float64 overflows to infinity then."""
    qscheme = PER_CHANNEL[0] if "Channel" in name else PER_TENSOR[0]
    ours, theirs = pair(name, np.int8, None, qscheme)
    observe(ours, theirs, arrays("normal", (4, 33), 3, dtype))
    check(ours, theirs, f"{name} {dtype}")
    ours, theirs = pair("MinMaxObserver", np.int8, None, PER_TENSOR[0])
    observe(ours, theirs, [np.array([1e300, -1.0])])
    check(ours, theirs, name)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.int32, np.int64])
def test_integers(dtype):
    ours, theirs = pair("MinMaxObserver", np.int8, None, PER_TENSOR[0])
    observe(ours, theirs, [np.array([3, 100, 7], dtype), np.array([120, 0], dtype)])
    check(ours, theirs, str(dtype))


@pytest.mark.parametrize("name", ["MinMaxObserver", "MovingAverageMinMaxObserver"])
@pytest.mark.parametrize("values", [(np.inf, 1), (-np.inf, 1), (np.nan, 1), (np.inf, -np.inf)])
def test_what_is_not_finite(name, values):
    ours, theirs = pair(name, np.uint8, None, "per_tensor_affine")
    for x in (values, (1, 2), (-3, 4)):
        observe(ours, theirs, [np.array(x, np.float32)])
        check(ours, theirs, f"{name} {values}")


def test_constant_and_eps_and_reduced_range():
    """The other arguments, none of them ignored."""
    for constant, eps, reduced in itertools.product((0.1, 0.5, 1.0), (1e-3, 2.0**-23), (0, 1)):
        options = {"averaging_constant": constant, "eps": eps, "reduce_range": bool(reduced)}
        for bounds in (None, (-100, 51)):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # PyTorch is about to drop reduce_range
                both = pair(
                    "MovingAverageMinMaxObserver", np.int8, bounds, PER_TENSOR[0], **options
                )
            observe(*both, arrays("normal", 20, 4))
            check(*both, str(options))
            assert (both[0].quant_min, both[0].quant_max) == (both[1].quant_min, both[1].quant_max)


@pytest.mark.parametrize("bounds", [(0, 15), (0, 100), (0, 255), (-8, 7)])
@pytest.mark.parametrize("name", ["MinMaxObserver", "MovingAverageMinMaxObserver",
                                  "HistogramObserver"])  # fmt: skip
def test_symmetric_bounds_of_ones_own_are_halved(name, bounds):
    """Without bounds the zero point of uint8 would be outside of them, which is refused."""
    options = {"quant_min": bounds[0], "quant_max": bounds[1], "reduce_range": True}
    dtypes = (np.int8, torch.int8) if bounds[0] else (np.uint8, torch.uint8)  # it refuses quint8
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch is about to drop reduce_range
        theirs = getattr(pytorch, name)(
            dtype=dtypes[1], qscheme=torch.per_tensor_symmetric, **options
        )
    both = getattr(npq, name)(dtype=dtypes[0], qscheme="per_tensor_symmetric", **options), theirs
    observe(*both, arrays("normal", 20, 4))
    check(*both, f"{name} {bounds}")
    assert (both[0].quant_min, both[0].quant_max) == (both[1].quant_min, both[1].quant_max)


def test_before_anything_was_seen():
    for name, qscheme in (
        ("MinMaxObserver", PER_TENSOR[0]),
        ("PerChannelMinMaxObserver", PER_CHANNEL[2]),
        ("HistogramObserver", PER_TENSOR[1]),
    ):
        ours, theirs = pair(name, np.int8, None, qscheme)
        observe(ours, theirs, [np.empty((0, 3), np.float32)])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            check(ours, theirs, name)


# --- the histogram ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("bins", "dtype", "bounds"),
    [(2048, np.int8, None), (100, np.uint8, (0, 15)), (100, np.int32, None), (7, np.int16, None)],
)
def test_histogram(kind, bins, dtype, bounds):
    """PyTorch's search takes long: once it has all arrays, and is not asked in between."""
    qscheme = PER_TENSOR[bins == 7]
    ours, theirs = pair("HistogramObserver", dtype, bounds, qscheme, bins=bins)
    for x in arrays(kind, 999, bins):
        observe(ours, theirs, [x])
        assert_same(ours.histogram, theirs.histogram.numpy(), f"{kind} {bins}")
    check(ours, theirs, f"{kind} {bins} {dtype} {bounds}")


def test_histogram_searches():
    """Where the search goes far: many shapes of outliers."""
    moved = 0
    for seed in range(16):
        random = rng(seed)
        x = random.standard_t(random.uniform(5, 50), 50_000).astype(np.float32)
        ours, theirs = pair("HistogramObserver", np.int8, None, PER_TENSOR[seed % 2])
        observe(ours, theirs, [x[:20_000], x[20_000:], x[::7]])
        check(ours, theirs, str(seed))
        low, high = ours._range()
        moved += low[0] > ours.min_val or high[0] < ours.max_val
    assert moved > 4


def test_histogram_of_a_wide_range_of_sizes():
    for exponent in range(-44, 35, 3):
        x = (rng(exponent + 50).normal(size=500) * 10.0**exponent).astype(np.float32)
        ours, theirs = pair("HistogramObserver", np.uint8, None, PER_TENSOR[0], bins=256)
        observe(ours, theirs, [x[:100], x])
        check(ours, theirs, str(exponent))


@pytest.mark.parametrize("v", [3.0, 2.0**24, 2.0**24 + 2, 2.0**25, 3e7, 1e30, 1e-40])
@pytest.mark.parametrize("sign", [1, -1])
def test_histogram_of_one_value(v, sign):
    """Its bounds are moved by 1, or to the next float if 1 is too little."""
    ours, theirs = pair("HistogramObserver", np.uint8, None, PER_TENSOR[0], bins=64)
    x = np.full(5, sign * v, np.float32)
    observe(ours, theirs, [x, x[:2]])
    check(ours, theirs, f"{v}")
    observe(ours, theirs, [x / 2])
    check(ours, theirs, f"{v}, then half of it")


def test_histogram_leaves_infinities_out():
    ours, theirs = pair("HistogramObserver", np.uint8, None, PER_TENSOR[0])
    nothing = np.array([np.inf, -np.inf], np.float32)
    some = np.array([np.inf, 1, 2, -np.inf, 5], np.float32)
    observe(ours, theirs, [nothing, some, some * 2, nothing])
    check(ours, theirs, "infinities")


def test_histogram_needs_the_fma():
    """With a product rounded first, some of the edges and middles are others."""
    with np.errstate(all="ignore"):
        low, high, n = np.float32(-1.7234567), np.float32(3.9876543), 2048 * 16 + 1
        step, i = (high - low) / np.float32(n - 1), np.arange(n // 2, dtype=np.float32)
        plain = low + step * i
    theirs = torch.linspace(float(low), float(high), n).numpy()[: n // 2]
    assert (plain != theirs).sum() > 1000


# --- departures -------------------------------------------------------------------------------


def test_d25_codes():
    """Bounds of half, or beyond the dtype, and zero points outside: PyTorch lets them be."""
    half = pytorch.MinMaxObserver(dtype=torch.qint8, quant_min=-8)
    assert (half.quant_min, half.quant_max) == (-128, 127)
    assert pytorch.MinMaxObserver(dtype=torch.quint8, quant_min=0, quant_max=999).quant_max == 999
    options = {"dtype": torch.uint16, "qscheme": torch.per_tensor_symmetric}
    theirs = pytorch.MinMaxObserver(**options, quant_min=0, quant_max=100)
    theirs(torch.tensor([1.0]))
    assert theirs.calculate_qparams()[1].item() == 32768
    assert pytorch.MinMaxObserver(dtype=torch.float8_e5m2).quant_max == 15


def test_d25_one_axis():
    with pytest.raises(IndexError):
        pytorch.PerChannelMinMaxObserver()(torch.ones(3))


def test_d25_ends_that_cross():
    """The one of 1.3 and -0.7 is rounded another way than that of 0.95 and -0.7."""
    ours, theirs = npq.MovingAverageMinMaxObserver(1.0), pytorch.MovingAverageMinMaxObserver(1.0)
    for x in (np.array([1.3, 0.95], np.float32), np.array([-0.7], np.float32)):
        ours(x)
        theirs(torch.from_numpy(x))
    assert (ours.min_val, ours.max_val) == (theirs.min_val.item(), theirs.max_val.item())
    assert ours.min_val == np.nextafter(ours.max_val, np.float32(1))
    with pytest.raises(AssertionError, match="should be less than max"):
        theirs.calculate_qparams()
    scale, zero_point = ours.calculate_qparams()
    assert (scale, zero_point) == (np.float32(-ours.min_val) / np.float32(255), 255)


def test_d26_half_precision_stops_counting():
    for dtype, most in ((torch.float16, 2048), (torch.bfloat16, 256)):
        theirs = pytorch.HistogramObserver()
        theirs(torch.full((5000,), 0.5, dtype=dtype))
        assert theirs.histogram.sum() == most


def test_d26_half_precision_counts_in_other_bins():
    """Which are those of float32 data for npquant; eleven values are enough."""
    x = (np.arange(11) / 10).astype(np.float16)
    theirs, single = pytorch.HistogramObserver(bins=10), pytorch.HistogramObserver(bins=10)
    theirs(torch.from_numpy(x))
    single(torch.from_numpy(x.astype(np.float32)))
    ours = npq.HistogramObserver(bins=10)
    ours(x)
    assert_same(ours.histogram, single.histogram.numpy())
    assert (theirs.histogram > 0).all()
    assert (ours.histogram == 0).any()


def test_d26_overflow_goes_to_the_first_bin():
    theirs = pytorch.HistogramObserver(bins=2048)
    theirs(torch.tensor([0.0, 1e35, 2e35, 3e35]))
    assert theirs.histogram[0] == 3
    assert theirs.histogram.sum() == 4


def test_d26_a_nan_is_an_error_too_late():
    theirs = pytorch.HistogramObserver()
    with pytest.raises(RuntimeError):
        theirs(torch.tensor([1.0, np.nan]))
    assert theirs.min_val.isnan()
