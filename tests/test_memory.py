"""No op makes a temporary of the size of its input, however the input lies."""

import tracemalloc
from functools import partial

import numba
import numpy as np
import pytest

import npquant as nq
from calls import CALLS, DATA, ONE_AXIS, STATE, WITH_OUT, arguments, axes, results
from memory import BOUND, LAYOUTS, SHAPE, peak
from npquant import cpu
from npquant.cpu import histogram
from npquant.cpu.channels import ROOM, channel_pieces
from npquant.cpu.metrics import total_magnitude
from npquant.cpu.walk import PIECE, pieces
from npquant.layout import per_channel
from npquant.modules import MSEObserver
from npquant.ops import fast_choice, fast_path

# A parallel kernel takes seconds to compile, and allocates nothing that NumPy knows of.
pytestmark = pytest.mark.usefixtures("one_thread")


def a_call(name, axis, lay):
    kwargs = arguments(name, SHAPE, axis)
    if kwargs.get("group_size"):
        qparams = [k for k, v in kwargs.items() if isinstance(v, np.ndarray) and k not in DATA]
        kwargs |= {key: kwargs[key][:, :1] for key in qparams} | {"group_size": SHAPE[1]}
    return {key: lay(value) if key in DATA else value for key, value in kwargs.items()}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", [name for name in CALLS if name not in ONE_AXIS])
def test_no_temporary_of_the_size_of_the_input(name, layout):
    for axis in axes(name, SHAPE):
        kwargs = a_call(name, axis, LAYOUTS[layout])
        results(name, kwargs)  # compiles
        given = sum(kwargs[key].nbytes for key in STATE) if name.startswith("fused") else 0
        assert peak(partial(results, name, kwargs)) + given <= BOUND, axis


#: 2 Mi elements; a row is a channel and a token, and has four groups, so that qparams are many.
MANY_ROWS = (1 << 17, 16)
ROW_LAYOUTS = {
    **LAYOUTS,
    "gaps": lambda x: np.repeat(x, 2, axis=0)[::2],
    "turned": lambda x: x.transpose(1, 0, 2).copy().transpose(1, 0, 2),
    "turned, one batch": lambda x: x.transpose(0, 2, 1, 3).copy().transpose(0, 2, 1, 3),
}
SHAPES = {"turned": (512, 256, 16), "turned, one batch": (1, 8, 1 << 14, 16)}
TWO_AXES = "quantize_per_channel_group", "dequantize_per_channel_group"

#: The goal: a MiB, whatever there is. Qparams of usual dtypes, as others are converted first.
MOST = 1 << 20


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        (name, layout)
        for name in CALLS
        for layout in ROW_LAYOUTS
        if name not in ONE_AXIS and not (name in TWO_AXES and layout in SHAPES)
    ],
)
def test_no_temporary_of_the_size_of_many_qparams(name, layout):
    kwargs = arguments(name, SHAPES.get(layout, MANY_ROWS))
    for key, value in kwargs.items():
        if key in DATA:
            kwargs[key] = ROW_LAYOUTS[layout](value)
        elif isinstance(value, np.ndarray) and "learnable" in name:
            kwargs[key] = value.astype(np.float32)
    results(name, kwargs)  # compiles
    given = sum(kwargs[key].nbytes for key in STATE) if name.startswith("fused") else 0
    assert peak(partial(results, name, kwargs)) + given <= MOST


#: Rows of a tensor: no whole number of groups of 256, neither of what is done at a time nor of all.
ROWS_OF_A_TENSOR = (4095, 17, 256)


def test_no_temporary_for_each_row_of_a_tensor():
    shape = ROWS_OF_A_TENSOR
    rows = np.random.default_rng(3).normal(0, 20, (*shape[:2], 1)).astype(np.float32)
    x = rows + np.arange(shape[2], dtype=np.float32) / 128  # and so no two have the same sums
    row = np.linspace(-1, 2, shape[2], dtype=np.float32)
    parameters = np.ones(1, np.float32), np.zeros(1, np.float32), -30, 30
    op = nq.fake_quantize_learnable_per_tensor_affine_backward
    kwargs = dict(zip(("scale", "zero_point", "quant_min", "quant_max"), parameters, strict=True))
    call = partial(op, np.broadcast_to(row, shape), x, **kwargs)
    found = call()
    for y, expected in zip(found, op(np.tile(row, (*shape[:2], 1)), x, **kwargs), strict=True):
        assert (y == expected).all()
    del y, expected
    assert (found[1] != 0).all()
    del found
    assert peak(call) <= MOST


def test_no_room_for_the_columns_of_many_channels():
    """Extremes of channels of short runs are those of columns, if these are few."""
    x = np.zeros((4, 50_000, 9), np.float32)
    find = partial(cpu.minmax, per_channel(x.shape, 1), x)
    find()  # compiles
    assert peak(find) <= MOST


def test_a_temporary_would_be_seen():
    """Can it fail? One bool an element is too much."""
    x = arguments("quantize_per_tensor", SHAPE)["input"]
    assert peak(lambda: [(x > -1) & (x < 1)]) > BOUND
    assert peak(lambda: [x > -1]) <= BOUND


# --- when there is none -----------------------------------------------------------------------

#: 2**50 elements: no machine has as many addresses for what an op makes of them.
HUGE = (4, 2**48)
NEW = ("empty", "zeros", "ones", "full", "empty_like", "zeros_like", "ones_like", "full_like")


def a_huge_call(name):
    """Data that is one row of four numbers, each repeated along an axis: it needs no memory."""
    axis = 0
    if name in ONE_AXIS:
        kwargs = arguments(name, (4,), axis)
        return {k: np.broadcast_to(v[:1], 2**50) if k in DATA else v for k, v in kwargs.items()}
    kwargs = arguments(name, (4, 4), axis)
    if kwargs.get("group_size"):
        kwargs["group_size"] = HUGE[1]
    return {k: np.broadcast_to(v[:, :1], HUGE) if k in DATA else v for k, v in kwargs.items()}


def held(kwargs):
    return {key: value.tobytes() for key, value in kwargs.items()
            if isinstance(value, np.ndarray) and value.nbytes < 2**20}  # fmt: skip


#: Their results are small, or they look at all of their data before they allocate.
READERS = [
    "choose_qparams", "choose_qparams_symmetric", "choose_qparams_per_token",
    "choose_qparams_per_token_asymmetric", "adaround_regularizer", "determine_qparams",
    "fused_moving_avg_obs_fake_quant", "fused_moving_avg_obs_fake_quant_cachemask",
]  # fmt: skip


@pytest.mark.parametrize("name", [name for name in CALLS if name not in READERS])
def test_a_result_that_no_memory_holds(name):
    """It is asked for before anything is computed: or this would take days."""
    kwargs = a_huge_call(name)
    before = held(kwargs)
    with pytest.raises(MemoryError):
        results(name, kwargs)
    assert held(kwargs) == before


@pytest.mark.parametrize(
    ("name", "with_out"), [*((n, False) for n in CALLS), *((n, True) for n in WITH_OUT)]
)
def test_each_array_that_cannot_be_made(name, with_out, monkeypatch):
    """Whichever of its allocations fails: a MemoryError, and nothing was written to."""
    kwargs = arguments(name, (8,) if name in ONE_AXIS else (4, 8))
    (out, *_) = results(name, kwargs)
    if with_out:
        kwargs["out"] = np.full_like(out, 1)
    before, failing, calls = held(kwargs), 0, 0

    def failed(new):
        def call(*args, **options):
            nonlocal calls
            calls += 1
            if calls == failing:
                raise MemoryError
            return new(*args, **options)

        return call

    for new in NEW:
        monkeypatch.setattr(np, new, failed(getattr(np, new)))
    for module in (fast_path, fast_choice):
        monkeypatch.setattr(module, "_empty", np.empty)
    while calls >= failing:
        calls, failing = 0, failing + 1
        given = {k: v.copy() if isinstance(v, np.ndarray) else v for k, v in kwargs.items()}
        try:
            getattr(nq, name)(**given)
        except MemoryError:
            assert held(given) == before, f"allocation {failing}"
    assert failing > 1 or with_out


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("walk", ["pieces", "channels", "long channels"])
def test_packing_takes_all_its_buffers_first(walk, axis):
    """Later pieces take no memory: were there none, `out` would be partly written."""
    shape = (2, 2**19) if walk == "long channels" else SHAPE
    x, out = (np.repeat(np.full(shape, v, np.float32), 2, axis=1)[:, ::2] for v in (1, 0))
    granularity = per_channel(shape, axis)

    def walked():
        if walk == "pieces":
            return pieces(granularity, (x,), (out,), apart=False)
        return channel_pieces(granularity, (x,), (out,), 4096, True)

    def measured():
        out[:] = 0
        tracemalloc.start()
        try:
            packed = walked()
            next(packed)
            assert not out.any()
            held = tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
            count = 1 + sum(1 for _ in packed)
            return tracemalloc.get_traced_memory()[1] - held, count
        finally:
            tracemalloc.stop()

    assert sum(1 for _ in walked())  # what packs is compiled
    # Who runs the tests has threads that take memory, too, but not each time.
    more, count = min(measured() for _ in range(3))
    assert count >= x.size // (PIECE if walk == "pieces" else ROOM // x.itemsize)
    assert more < PIECE


# --- more than 2**31 elements -----------------------------------------------------------------

#: An int32 does not hold it, and no tile, strip or vector divides it; with one more, rows of 8 do.
N, ROWS = 2**31 + 7, 2**28 + 1
#: Elements differ from those 2**31 before them, and no power of two is a multiple of the period.
PERIOD = 251


def fill(x):
    """Write ((i % 251) - 125) / 4 to every place i, without a temporary."""
    row = ((np.arange(PERIOD) - 125) / 4).astype(x.dtype)
    whole = x.size // PERIOD * PERIOD
    x[:whole].reshape(-1, PERIOD)[:] = row
    x[whole:] = row[: x.size - whole]
    return x


@pytest.mark.parametrize("channels", [1, 7, 63, 255])
def test_counts_of_many_threads(channels, monkeypatch):
    """Tables of parts are no more than the data, however many processors there are."""
    x = np.random.default_rng(0).normal(size=(channels, 70_000 // channels)).astype(np.float32)
    counts = np.zeros((channels, 4096), np.int64)
    ends = np.ones((2, channels), np.float32)
    histogram.count_doubling(per_channel(x.shape, 0), x, *ends, counts)
    once = counts.copy()
    monkeypatch.setattr(histogram, "threads", lambda: 64)

    def count():
        histogram.count_doubling(per_channel(x.shape, 0), x, *ends, counts)
        return ()

    assert peak(count) < x.nbytes + MOST
    assert (counts == 2 * once).all()


def assert_periodic(y, row):
    """Every place i has row[i % 251]."""
    whole = y.size // PERIOD * PERIOD
    rows = y[:whole].reshape(-1, PERIOD)
    for i in range(0, len(rows), 2**20):
        assert (rows[i : i + 2**20] == row).all(), i
    assert (y[whole:] == row[: y.size - whole]).all()


@pytest.fixture
def _many_threads(one_thread):
    numba.set_num_threads(min(2, numba.config.NUMBA_NUM_THREADS))


@pytest.fixture
def halves():
    """The data in float16, and one element more: 4 GiB. These tests need 7 GiB."""
    return fill(np.empty(N + 1, np.float16))


@pytest.mark.soak
@pytest.mark.usefixtures("_many_threads")
def test_codes_of_many_elements(halves):
    args = 0.5, 3, -20, 20, np.int8
    codes = nq.quantize_per_tensor(halves[:N], *args)
    assert_periodic(codes, nq.quantize_per_tensor(halves[:PERIOD], *args))
    few = nq.quantize_per_tensor(halves[:: -(2**20)], *args)  # packed, from far apart
    assert (few[1:] == codes[2**31 + 7 - 2**20 :: -(2**20)]).all()
    # Rows of 8: all is the same again after 251 of them.
    rows = halves.reshape(ROWS, 8)
    scales, zero_points = np.arange(1, 9, dtype=np.float32) / 8, np.arange(8, dtype=np.int32) - 4
    del codes
    out = nq.quantize_per_channel(rows, scales, zero_points, 1, -128, 127, np.int8)
    few = nq.quantize_per_channel(rows[:PERIOD], scales, zero_points, 1, -128, 127, np.int8)
    for i in range(0, ROWS, PERIOD << 12):
        part = out[i : i + (PERIOD << 12)]
        assert (part == np.resize(few, part.shape)).all(), i


@pytest.mark.soak
@pytest.mark.usefixtures("_many_threads")
def test_values_of_many_codes():
    codes = np.empty(N, np.int8)
    row = np.arange(PERIOD).astype(np.int8)
    codes[: N // PERIOD * PERIOD].reshape(-1, PERIOD)[:] = row
    codes[N // PERIOD * PERIOD :] = row[: N % PERIOD]
    args = 0.25, 3, -128, 127, np.int8
    y = nq.dequantize_per_tensor(codes, *args, out_dtype=np.float16)
    assert_periodic(y, nq.dequantize_per_tensor(row, *args, out_dtype=np.float16))


@pytest.mark.soak
@pytest.mark.usefixtures("_many_threads")
def test_ranges_counts_and_sums_of_many_elements(halves):
    x = halves[:N]
    x[-1], x[2**31 + 1] = 100, -90
    observer = MSEObserver()
    observer(x)
    assert (observer.min_val, observer.max_val) == (-90, 100)
    assert observer.histogram.sum() == N
    # Every 251st element is -125 / 4, from the first on; beyond it there is -90.
    below, least = np.flatnonzero(observer.histogram)[:2]
    assert observer.histogram[below] == 1
    assert observer.histogram[least] == len(range(0, N, PERIOD)) - sum(
        place % PERIOD == 0 for place in (N - 1, 2**31 + 1)
    )
    x[:] = 0.5
    assert total_magnitude((x,)) == N / 2
