"""Minima, maxima and sums on the simulated device: the bits of the CPU's."""

import ml_dtypes
import numpy as np
import pytest
from numba import config

if not config.ENABLE_CUDASIM:
    pytest.skip("needs the simulator: NUMBA_ENABLE_CUDASIM=1", allow_module_level=True)

from npquant import cpu, cuda, layout
from npquant.cpu import metrics as on_cpu
from npquant.cuda import learnable, reduce
from npquant.cuda import sums as on_gpu
from npquant.cuda.target import Kernel
from npquant.formulas import metrics as terms
from npquant.layout import GROUP, TILE
from twins import MEMORY, both, off_vectors

FLOATS = (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)


def data(shape, dtype=np.float32, seed=0):
    """Values of many magnitudes, so that another order of adding shows."""
    r = np.random.default_rng(seed)
    return (r.normal(size=shape) * 2.0 ** r.integers(-6, 6, shape)).astype(dtype)


def per_tensor(shape):
    return layout.whole(int(np.prod(shape)))


def last(shape):
    return layout.per_channel(shape, len(shape) - 1)


def of_axis(axis):
    return lambda shape: layout.per_channel(shape, axis)


#: Shapes and granularities: runs of whole vectors and of others, tiles that are cut by runs,
#: channels side by side, short ones, more channels than a block takes, tiles that are not full,
#: an axis of one channel.
LAYOUTS = {
    "one tile": ((1000,), per_tensor),
    "tiles": ((2 * TILE + 1029,), per_tensor),
    "one": ((1,), per_tensor),
    "rows of a tensor": ((3, 7, 10, 30), per_tensor),
    "short rows of a tensor": ((GROUP + 3, 17, 16), per_tensor),
    "long rows of a tensor": ((3, TILE + 70), per_tensor),
    "rows": ((2, TILE + 64), layout.per_token),
    "odd rows": ((2, TILE + 7), layout.per_token),
    "short rows": ((5, 39), layout.per_token),
    "images": ((3, 2, 96, 16), of_axis(1)),
    "odd images": ((2, 2, 47, 45), of_axis(1)),
    "small images": ((300, 2, 5, 4), of_axis(1)),
    "last": ((TILE + 77, 3), last),
    "last of more": ((33, 9), last),
    "one channel": ((5, 1, 3), of_axis(1)),
    "one last channel": ((7, 1), last),
}


def transposed(x):
    return np.ascontiguousarray(x.T).T


def strided(x):
    room = np.zeros((*x.shape[:-1], 2 * x.shape[-1]), x.dtype)
    room[..., ::2] = x
    return room[..., ::2]


@pytest.fixture
def launched(monkeypatch):
    """The names of the kernels that are launched."""
    names, launch = [], Kernel.__call__
    noted = lambda kernel, *args: names.append(kernel.name) or launch(kernel, *args)
    monkeypatch.setattr(Kernel, "__call__", noted)
    return names


def gradients(name, shape, granularity, dtype=np.float32, lay=np.asarray, code="float32",
              sums=(np.float32, np.float32)):  # fmt: skip
    """Both kernels on gradients of these shapes."""
    g = granularity(shape)
    grad, x = lay(data(shape, dtype)), lay(data(shape, dtype, 1))
    scale = np.abs(data(g.channels, np.float32, 2)) + np.float32(0.01)
    zero_point = data(g.channels, np.float32, 3)
    outputs = [lay(np.zeros(shape, dtype)), *(np.zeros(g.channels, d) for d in sums)]
    kernels = getattr(cpu, name), getattr(learnable, name)
    both(*kernels, g, grad, x, scale, zero_point, (-8, 7, 0.37), code, *outputs)


@pytest.mark.parametrize("where", LAYOUTS)
def test_gradients(where):
    gradients("learnable_gradients_per_channel", *LAYOUTS[where])


@pytest.mark.parametrize(
    "dtype", [pytest.param(d, marks=() if d is np.float32 else pytest.mark.full) for d in FLOATS]
)
@pytest.mark.parametrize("where", ["one tile", "images", "short rows", "last of more"])
def test_gradients_of_dtypes(where, dtype):
    shape, granularity = LAYOUTS[where]
    code = "float64" if dtype == np.float64 else "float32"
    sums = np.float64, np.float32
    gradients("learnable_gradients_per_tensor_nearest", shape, granularity, dtype, code=code,
              sums=sums)  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32])
def test_lanes_ask_for_several_elements(dtype):
    """As many as are asked for at once, twice or less, and some that are left."""
    shape = 150, 9
    size, itemsize = 150 * 9, np.dtype(dtype).itemsize
    asked = reduce.Shape.of(layout.Layout(9, 1), size).batch(itemsize)
    assert asked == (8 if itemsize == 2 else 4)
    assert 150 % (16 * asked) > 0
    gradients("learnable_gradients_per_channel", shape, last, dtype)
    extremes("minmax", data(shape, dtype), last)


@pytest.mark.parametrize("where", ["short rows", "last of more"])
def test_channels_far_apart(where, monkeypatch):
    """One element at once, as where 32 bits do not hold how far several lie."""
    monkeypatch.setattr(reduce, "BATCH", 1)
    shape, granularity = LAYOUTS[where]
    gradients("learnable_gradients_per_channel", shape, granularity)
    extremes("minmax", data(shape), granularity)


#: Channels that are short, of lengths that the lanes of a team divide, and one that is too long.
TEAMS = {
    "groups of 16": ((7, 32), lambda s: layout.per_channel_group(s, 16)),
    "groups of 32": ((5, 96), lambda s: layout.per_channel_group(s, 32)),
    "groups of 128": ((3, 256), lambda s: layout.per_channel_group(s, 128)),
    "rows": ((19, 48), layout.per_token),
    "longest rows": ((2, on_gpu.SHORTEST // 4 - 16), layout.per_token),
}


@pytest.mark.parametrize("where", TEAMS)
def test_gradients_by_teams(where, launched):
    """The last block has more teams than there are channels."""
    shape, granularity = TEAMS[where]
    gradients("learnable_gradients_per_channel", shape, granularity)
    assert launched[0].endswith("_teams")


@pytest.mark.parametrize("dtype", FLOATS)
def test_gradients_of_dtypes_by_teams(dtype, launched):
    shape, granularity = TEAMS["groups of 32"]
    code = "float64" if dtype == np.float64 else "float32"
    sums = np.float64, np.float32
    gradients("learnable_gradients_per_channel_nearest", shape, granularity, dtype, code=code,
              sums=sums)  # fmt: skip
    assert launched[0].endswith("_teams")


def test_rows_that_are_no_teams(launched):
    """Of a length that lanes do not divide, or that begin where no vector does, and longer ones."""
    gradients("learnable_gradients_per_channel", (5, 40), layout.per_token)
    gradients("learnable_gradients_per_channel", (5, 32), layout.per_token, lay=off_vectors)
    gradients("learnable_gradients_per_channel", (2, 256), layout.per_token)
    gradients("learnable_gradients_per_channel", (reduce.MANY, 516), layout.per_token)
    assert [name.endswith("_lanes") for name in launched] == [True] * 4
    gradients("learnable_gradients_per_channel", (reduce.MANY - 1, 516), layout.per_token)
    assert launched[4].endswith("_runs")


@pytest.mark.parametrize("lay", [transposed, strided])
def test_gradients_of_a_tensor_as_it_lies(lay):
    gradients("learnable_gradients_per_tensor", (17, 300), per_tensor, lay=lay)


@pytest.mark.parametrize("lay", [transposed, strided, off_vectors])
@pytest.mark.parametrize("axis", [0, 1])
def test_gradients_as_they_lie(lay, axis):
    gradients("learnable_gradients_per_channel_nearest", (6, 40), of_axis(axis), lay=lay)


def test_gradients_of_wide_codes():
    gradients("learnable_gradients_per_channel", (7, 60), layout.per_token, code="wide")


@pytest.mark.parametrize(
    "tiles", [on_gpu.TILES_OF_A_BLOCK - 1, on_gpu.TILES_OF_A_BLOCK, GROUP, 5 * GROUP + 5]
)
def test_tiles_are_added_in_order(tiles):
    """By a thread and by a block, with groups that are full and one that is not."""
    channels = 2
    terms = data((2, channels, tiles), np.float64)
    by_block = tiles >= on_gpu.TILES_OF_A_BLOCK
    sums = MEMORY.upload(terms if by_block else np.ascontiguousarray(terms.transpose(0, 2, 1)))
    outputs = [MEMORY.upload(np.zeros(channels, d)) for d in (np.float64, np.float32)]
    on_gpu._add_tiles(sums, channels, tiles, outputs)
    for s in range(2):
        groups = [terms[s, :, i : i + GROUP] for i in range(0, tiles, GROUP)]
        expected = sum(np.add.accumulate(group, axis=1)[:, -1] for group in groups)
        assert (MEMORY.download(outputs[s]) == expected.astype(outputs[s].dtype)).all()


@pytest.mark.parametrize("n", [1, 15, 16, 17, TILE, TILE + 1, 2 * TILE + 3 * 1024 + 5])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_totals(n, dtype):
    pair = data(n, dtype), data(n, dtype, 1)
    both(on_cpu.total_squared_difference, on_gpu.Total(terms.squared_difference), pair)
    both(on_cpu.total_magnitude, on_gpu.Total(terms.magnitude), (off_vectors(data(n, dtype)),))


def test_totals_of_arrays_that_lie_differently():
    x = data((9, 70))
    both(on_cpu.dot, on_gpu.Total(terms.product), (transposed(x), x.astype(np.float64)))


def test_total_of_nothing():
    got = on_gpu.Total(terms.value)((MEMORY.upload(np.zeros(0, np.float32)),))
    assert got.shape == ()
    assert MEMORY.download(got) == 0


# --- minima and maxima ------------------------------------------------------------------------


def extremes(name, x, granularity):
    return both(getattr(cpu, name), getattr(cuda, name), granularity(x.shape), x)


@pytest.mark.parametrize("where", LAYOUTS)
@pytest.mark.parametrize("name", ["minmax", "minmax_finite"])
def test_extremes(name, where):
    """The extremes of a channel may be anywhere in it."""
    shape, granularity = LAYOUTS[where]
    extremes(name, data(shape), granularity)
    x = data(shape).reshape(-1)
    for at in (0, x.size // 2, x.size - 1):
        x[at] = 2.0 ** (20 + at % 7)
        x[-1 - at] = -(2.0**30)
    extremes(name, x.reshape(shape), granularity)


@pytest.mark.parametrize(
    "dtype",
    [
        pytest.param(d, marks=() if d in (np.float32, np.int8) else pytest.mark.full)
        for d in (*FLOATS, np.int8, np.uint8, np.int32, np.int64)
    ],
)
@pytest.mark.parametrize("where", ["one tile", "rows", "short rows", "last of more"])
def test_extremes_of_dtypes(where, dtype):
    shape, granularity = LAYOUTS[where]
    if np.dtype(dtype).kind in "iu":
        ends = np.iinfo(dtype)
        x = np.random.default_rng(0).integers(ends.min, ends.max, shape, dtype, endpoint=True)
        extremes("minmax", x, granularity)
        return
    for special in (np.nan, -np.nan, np.inf, -np.inf):
        x = data(shape, dtype)
        x.reshape(-1)[x.size // 3] = special
        for name in ("minmax", "minmax_finite"):
            extremes(name, x, granularity)


@pytest.mark.parametrize("dtype", [*FLOATS, np.int8, np.int32, np.uint8])
@pytest.mark.parametrize("length", [16, 48])
def test_extremes_by_teams(dtype, length, launched):
    """Wherever they are in a row; the last block has more teams than there are rows."""
    x = data((length + 3, length)).astype(dtype)
    places = np.arange(length)
    x[places, places], x[places, (places + 5) % length] = 100, 120 if dtype is np.uint8 else -100
    names = ["minmax"] if np.dtype(dtype).kind in "iu" else ["minmax", "minmax_finite"]
    for name in names:
        extremes(name, x, layout.per_token)
    assert [name.endswith("_teams") for name in launched] == [True] * len(names)


@pytest.mark.parametrize("lay", [transposed, strided, off_vectors])
@pytest.mark.parametrize("axis", [0, 1])
def test_extremes_as_they_lie(lay, axis):
    extremes("minmax", lay(data((6, 40))), of_axis(axis))


def test_extremes_of_one_sign_and_of_zeros():
    for x in (-np.abs(data(70)), np.abs(data(70)), np.array([0.0, -0.0], np.float32)):
        low, high = extremes("minmax", x.astype(np.float32), per_tensor)
        assert low <= high


def test_extremes_of_nothing_finite():
    low, high = extremes("minmax_finite", np.array([np.nan, np.inf], np.float32), per_tensor)
    assert (low[0], high[0]) == (np.inf, -np.inf)


def test_extremes_of_nothing():
    low, high = extremes("minmax", np.zeros((0, 3), np.float32), layout.per_token)
    assert low.size == high.size == 0
