"""No bit depends on layout, alignment, byte order, length, threads or how the work is cut."""

import copy
import functools
import os
import subprocess
import sys
from itertools import permutations
from pathlib import Path

import numba
import numpy as np
import pytest

import cases
import npquant
import oracle
from calls import (
    CALLS,
    DATA,
    NEAR,
    STATE,
    WITH_OUT,
    arguments,
    axes,
    axis_name,
    every_call,
    everywhere,
    fits,
    in_order,
    results,
    results_the_long_way,
)
from cases import assert_same
from layouts import (
    DENSE,
    LAYOUTS,
    apart_in_order,
    byte_swapped,
    every_second,
    in_pairs,
    relaid,
    reversed_axes,
    unaligned,
    window,
)
from npquant import dtypes
from npquant.checks.calls import forget
from npquant.cpu import (
    borrowed,
    channels,
    lines,
    loops,
    maps,
    periods,
    qparams,
    strided,
    sums,
    table,
    target,
    walk,
)
from npquant.ops import fast_choice, fast_path

#: A matrix, for groups and rows; an image, for every axis in every place; channels alone.
SHAPES = ((6, 8), (3, 5, 2, 4), (37,))


@functools.cache
def expected(name, shape, axis=0):
    """What the oracle gives for a call, and the arrays that it updates in place.

    Where the oracle is but near, it is what the op gives for arrays in C order.
    """
    kwargs = arguments(name, shape, axis)
    if name in NEAR:
        return results(name, kwargs)
    fused = name.startswith("fused")
    if fused:  # PyTorch observes the first axis alone
        kwargs |= {"input": np.moveaxis(kwargs["input"], axis, 0), "ch_axis": 0}
    got = getattr(oracle, name)(**kwargs)
    got = got if isinstance(got, tuple) else (got,)
    if fused:
        got = *(np.moveaxis(y, 0, axis) for y in got), *(kwargs[key] for key in STATE)
    return got


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", CALLS)
def test_layout_of_the_data(name, layout):
    for shape, axis in every_call(name, SHAPES):
        kwargs = relaid(arguments(name, shape, axis), LAYOUTS[layout], DATA)
        assert_same(results(name, kwargs), expected(name, shape, axis), f"{shape}, axis {axis}")


def data_of(name):
    return [
        key
        for key in arguments(name, (6, 8) if name != "determine_qparams" else (8,))
        if key in DATA
    ]


SEVERAL = [name for name in CALLS if len(data_of(name)) > 1]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", SEVERAL)
def test_several_arrays_may_lie_differently(name, layout):
    for shape, axis in every_call(name, SHAPES):
        for key in data_of(name):
            kwargs = relaid(arguments(name, shape, axis), LAYOUTS[layout], (key,))
            assert_same(results(name, kwargs), expected(name, shape, axis), (key, shape, axis))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", CALLS)
def test_layout_of_the_qparams(name, layout):
    for shape, axis in every_call(name, SHAPES):
        kwargs = arguments(name, shape, axis)
        arrays = [k for k, v in kwargs.items() if isinstance(v, np.ndarray) and k not in DATA]
        if name.startswith("fused") and layout in ("byte-swapped", "read-only"):
            arrays = [k for k in arrays if k not in STATE]  # they are written to
        kwargs = relaid(kwargs, LAYOUTS[layout], arrays)
        assert_same(results(name, kwargs), expected(name, shape, axis), (shape, axis))


@pytest.mark.parametrize("name", CALLS)
def test_broadcast_data(name):
    for shape, axis in every_call(name, SHAPES):
        for repeated in range(len(shape)):
            kwargs, copies = arguments(name, shape, axis), arguments(name, shape, axis)
            for key in DATA:
                if key in kwargs:
                    row = kwargs[key].take([0], repeated)
                    kwargs[key] = np.broadcast_to(row, shape)
                    copies[key] = kwargs[key].copy()
            assert_same(results(name, kwargs), results(name, copies), (shape, axis, repeated))


@pytest.mark.parametrize("name", CALLS)
def test_memory_mapped_data(name, tmp_path):
    def mapped(x):
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.npy"
        np.save(path, x)
        return np.load(path, mmap_mode="r")

    shape, axis = every_call(name, SHAPES)[0]
    kwargs = relaid(arguments(name, shape, axis), mapped, DATA)
    got = results(name, kwargs)
    assert_same(got, expected(name, shape, axis))
    assert not any(isinstance(result, np.memmap) for result in got)


@pytest.mark.parametrize("name", [n for n in CALLS if not n.startswith(("choose", "determine"))])
def test_results_lie_as_pytorchs_do(name):
    """Dense data keeps its strides, permuted or not; all other data gives C order."""
    for shape, axis in every_call(name, SHAPES):
        for layout, lay in LAYOUTS.items():
            kwargs = relaid(arguments(name, shape, axis), lay, DATA)
            x = next(value for key, value in kwargs.items() if key in DATA)
            like = x if layout in DENSE or x.flags.c_contiguous else np.empty(shape, x.dtype)
            wanted = [s // like.itemsize for s in like.strides]
            for y in results(name, kwargs):
                if y.shape == shape and not any(y is kwargs.get(key) for key in STATE):
                    assert [s // y.itemsize for s in y.strides] == wanted, (layout, shape, axis)


#: Ops whose arithmetic is chosen by the dtype of the data: float64 must be seen as what it is.
BY_DTYPE = ("fake_quant_per_channel", "fake_quantize_learnable_per_channel_affine_backward")


@pytest.mark.parametrize("name", BY_DTYPE)
def test_byte_swapped_float64(name):
    kwargs = arguments(name, (6, 8))
    kwargs = relaid(kwargs, lambda x: x.astype(np.float64) / 3, DATA)
    swapped = relaid(kwargs, byte_swapped, DATA)
    assert_same(results(name, swapped), results(name, kwargs))


# --- lengths --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CALLS)
def test_every_length(name):
    """Vector bodies and their tails: nothing depends on where an element stands."""
    for n in range(1, 68):
        shapes = ((2, 4 * n),) if "group" in name else ((n,), (2, n))
        for shape in shapes:
            if fits(name, shape):
                axis = axes(name, shape)[-1]
                got = results(name, arguments(name, shape, axis))
                assert_same(got, expected(name, shape, axis), shape)


@pytest.mark.parametrize("name", CALLS)
def test_no_axes_and_axes_of_one(name):
    for shape, axis in every_call(name, ((), (1,), (1, 4), (1, 1, 1), (3, 1, 4))):
        got = results(name, arguments(name, shape, axis))
        assert_same(got, expected(name, shape, axis), (shape, axis))


@pytest.mark.parametrize("name", CALLS)
def test_no_elements(name):
    """Nothing gives nothing, and gradients of zero; but there is nothing to choose qparams from."""
    for shape, axis in every_call(name, ((0,), (0, 4), (4, 0), (2, 0, 4))):
        kwargs = arguments(name, shape, axis)
        nothing = shape[-1] == 0 if "token" in name else 0 in shape
        chosen = name.startswith("choose") or "dynamic" in name
        if chosen and nothing:
            with pytest.raises(ValueError, match="input must have elements"):
                results(name, kwargs)
            continue
        got = results(name, kwargs)
        if name.startswith("choose"):
            assert [y.shape for y in got] == [(*shape[:-1], 1)] * 2
        elif chosen:
            assert [y.shape for y in got] == [shape, *[(*shape[:-1], 1)] * 2]
        elif name == "adaround_regularizer":
            assert_same(got, (np.array(0.0),))
        elif name != "determine_qparams":
            assert got[0].shape == shape
        if "learnable" in name and "backward" in name:
            scale, zero_point = kwargs["scale"], kwargs["zero_point"]
            assert_same(got[1:], (np.zeros_like(scale), np.zeros_like(zero_point)))


@pytest.mark.parametrize("target", ["float8_e4m3fn", "float8_e5m2", "int4", "uint2"])
def test_codes_that_numpy_does_not_know(target):
    """More than a PIECE of them, with gaps, backwards, and written so."""
    lo, hi = cases.BOUNDS[np.dtype(target)]
    x = np.random.default_rng(0).normal(0, 3, 3 * (walk.PIECE + 1)).astype(np.float32)
    q = npquant.quantize_per_tensor(x, 1.0, 0, lo, hi, target)
    for lay in (lambda a: a[::3], lambda a: a[::-1], lambda a: a.reshape(3, -1).T):
        codes = lay(q)
        expected = npquant.dequantize_per_tensor(codes.copy(), 1.0, 0, lo, hi, target)
        assert_same(npquant.dequantize_per_tensor(codes, 1.0, 0, lo, hi, target), expected)
        if target.startswith("float8"):
            assert_same(npquant.convert_element_type(codes, np.float32), expected)
        out = lay(np.zeros_like(q))
        npquant.quantize_per_tensor(expected, 1.0, 0, lo, hi, target, out=out)
        assert_same(np.ascontiguousarray(out), np.ascontiguousarray(codes))


@pytest.mark.parametrize("dtype", ["float32", "float8_e5m2", "int4"])
def test_memory_of_what_is_not_contiguous(dtype):
    """What a kernel sees of it, beside a view, where nothing is compiled."""
    room = np.arange(12).reshape(3, 4).astype(np.dtype(dtype))
    seen = borrowed.flat(room[:, 1:3])
    assert_same(seen, room.reshape(-1)[1:11])
    assert np.shares_memory(seen, room)


#: Sizes on both sides of every constant by which work is cut: (shape, axis).
SIZES = (
    *(((n,), 0) for n in (255, 256, 257)),  # FEW
    *(((9, 40, n), 1) for n in (15, 16, 17)),  # SHORT: a run
    *(((20, n), 1) for n in (85, 511, 1023, 1024, 1025)),  # LEAST_PERIOD, NEAR: channels
    ((3, 300, 5), 1),  # too few periods to be worth their buffers
    ((5, 1092, 15), 1),  # PERIOD
    ((5, 1093, 15), 1),
    *(((2, n), 0) for n in (1023, 1024, 1025, 4095, 4096, 4097, 8193)),  # STRIP and TILE: a run
    ((1400, 2, 3), 1),  # TILE: many runs
    ((2733, 2, 3), 1),
    ((4097, 3), 1),  # TILE: side by side
    *(((70, n), 1) for n in (63, 64, 65, 129)),  # BLOCK
    *(((3, 5, n), 1) for n in (31, 32, 33, 48, 511, 512, 513, 544)),  # BLOCK and LONG: a run
    *(((n, 2060), 1) for n in (63, 64, 65)),  # NEAR, AT_ONCE: a row, and rows
    *(((2, n), 1) for n in (16383, 16384, 16385)),  # ROWS: channels
    *(((n,), 0) for n in (16383, 16384, 16385)),  # PIECE and GRAIN
    ((33, 500), 0),  # PIECE: whole channels, and a rest of them
    ((33, 500), 1),
    ((2, 20500), 0),  # PIECE: less than a channel
    ((20500, 2), 1),
    ((2, 70_000), 1),  # tiles of what lies side by side
    ((16, 8192), 1),  # whole tiles of rows that cross memory
    *(((n,), 0) for n in (2**16, 2**18 - 1, 2**18)),  # PARALLEL_FROM
)

#: One op for each loop: with and without a mask or qparams, minima, sums.
LOOPS = (
    "quantize_per_tensor",
    "quantize_per_channel",
    "fake_quantize_per_channel_affine_cachemask",
    "fake_quant_per_channel_backward",
    "choose_qparams_per_token",
    "fake_quantize_learnable_per_tensor_affine_backward",
    "fake_quantize_learnable_per_channel_affine_backward",
    "fake_quantize_learnable_per_token_affine_backward",
    "adaround_soft_backward",
    "adaround_regularizer",
)
CUT = {
    "C": np.ascontiguousarray,
    "Fortran": DENSE["Fortran"],
    "every second": every_second,
    "in pairs": in_pairs,
}


def agree_however_it_lies(name, shape, axis):
    axis = axis if axis_name(name) else 0
    for layout, lay in CUT.items():
        kwargs = relaid(arguments(name, shape, axis), lay, DATA)
        assert_same(results(name, kwargs), expected(name, shape, axis), layout)
    got = results_the_long_way(name, arguments(name, shape, axis))
    assert_same(got, expected(name, shape, axis), "the long way")


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(("shape", "axis"), SIZES, ids=str)
@pytest.mark.parametrize("name", LOOPS)
def test_sizes(name, shape, axis):
    agree_however_it_lies(name, shape, axis)


@pytest.mark.parametrize("rows", [2, 3, 4, 5])
def test_a_few_rows_of_one_tile_that_cross_memory(rows):
    """Of float64 they are too long to be packed together, and may be too few to be cut."""
    x = np.random.default_rng(0).standard_normal((rows, sums.TILE))
    across = np.asfortranarray(x)
    wide = np.zeros((sums.TILE + 2, rows + 2))
    grad = wide[1:-1, 1:-1].T  # crosses memory too, with gaps
    grad[...] = x + 1
    assert npquant.adaround_regularizer(across, 2.0) == npquant.adaround_regularizer(x, 2.0)
    scale, zero_point = np.linspace(0.1, 1, rows, dtype=np.float32), np.zeros(rows, np.float32)
    for name, given, where in (
        ("tensor", (scale[:1], zero_point[:1]), ()),
        ("channel", (scale, zero_point), (0,)),
        ("token", (scale, zero_point), ()),
    ):
        op = getattr(npquant, f"fake_quantize_learnable_per_{name}_affine_backward")
        for got, wanted in zip(
            op(grad, across, *given, *where, -8, 7),
            op(x + 1, x, *given, *where, -8, 7),
            strict=True,
        ):
            assert_same(np.ascontiguousarray(got), wanted, name)


def codes_are_those_of_parts(x, rows):
    """Of channels along axis 1, so many `rows` at a time."""
    ends = (0.01, 0.1), (-9, 9)
    scale, zero_point = (np.linspace(*between, x.shape[1]) for between in ends)
    qparams = scale.astype(np.float32), zero_point.astype(np.int32)

    def codes(x):
        return npquant.quantize_per_channel(x, *qparams, 1, -128, 127, np.int8)

    parts = [codes(x[i : i + rows]) for i in range(0, len(x), rows)]
    assert_same((codes(x),), (np.concatenate(parts),))


@pytest.mark.usefixtures("one_thread")
def test_long_rows_of_a_large_array():
    """FAR: nothing depends on how many rows there are."""
    rows, channels = 2050, 2060
    assert rows * channels > lines.FAR > 1000 * channels
    rng = np.random.default_rng(0)
    x = rng.standard_normal((rows, channels), np.float32)
    codes_are_those_of_parts(x, 1000)


@pytest.mark.usefixtures("one_thread")
def test_more_channels_than_a_table_has():
    """Channels that come again need not be made again, but where they are too many to be kept."""
    channels = 17_000
    assert channels > table.ROWS
    x = np.random.default_rng(0).standard_normal((2, channels, 16), np.float32)
    codes_are_those_of_parts(x, 1)


@pytest.mark.parametrize(
    "name", [name for name in CALLS if "learnable" in name and name.endswith("backward")]
)
def test_many_channels_are_summed_some_at_a_time(name, monkeypatch):
    """The last ones are fewer; two tiles each."""
    monkeypatch.setattr(sums, "CHANNELS_AT_A_TIME", 3)
    for shape in ((8, 72), (5, 4100)):
        agree_however_it_lies(name, shape, 0)


@pytest.mark.parametrize("most", [1, 3, 8])
@pytest.mark.parametrize(
    "name", [name for name in CALLS if name.startswith(("choose", "fused")) or "dynamic" in name]
)
def test_qparams_of_many_rows_are_chosen_some_at_a_time(name, most, monkeypatch):
    """An axis is cut, or several are, whichever is the slowest in memory."""
    for module in (qparams, fast_choice):
        monkeypatch.setattr(module, "RANGES_KEPT", most)
    forget()  # plans that are made with other limits
    for shape in ((8, 72), (3, 5, 20), (2, 3, 4, 10), (1, 17, 6)):
        for axis in axes(name, shape):
            agree_however_it_lies(name, shape, axis)
            for order in permutations(range(len(shape))):
                kwargs = arguments(name, shape, axis)
                kwargs = relaid(kwargs, lambda x, o=order: in_order(x, o), DATA)
                for call in (results, results_the_long_way):
                    got = call(name, copy.deepcopy(kwargs))
                    assert_same(got, expected(name, shape, axis), (shape, axis, order))
    forget()


@pytest.mark.parametrize("most", [3, 1000, None])
@pytest.mark.parametrize("name", [name for name in CALLS if "_affine_backward" in name])
def test_gradients_of_many_channels_in_any_order(name, most, monkeypatch):
    """The sums of a tensor are those of its rows, of which there are as many as there are."""
    usual = sums.CHANNELS_AT_A_TIME
    shapes = ((8, 72), (3, 5, 20), (2, 3, 4, 12), (1, 17, 8), (5, 2, 4100))
    for shape in shapes if most == 3 else ((300, 17, 12), (9000, 2, 4)):
        for axis in axes(name, shape):
            for dtype in (np.float32, np.float64):  # which are written at once, and kept
                kwargs = arguments(name, shape, axis)
                kwargs = {
                    k: v.astype(dtype) if k in ("scale", "zero_point") else v
                    for k, v in kwargs.items()
                }  # fmt: skip
                monkeypatch.setattr(sums, "CHANNELS_AT_A_TIME", usual)
                forget()  # what was found with other limits
                whole = results(name, kwargs)
                monkeypatch.setattr(sums, "CHANNELS_AT_A_TIME", most or usual)
                forget()
                for order in permutations(range(len(shape))):
                    dense = relaid(kwargs, lambda x, o=order: in_order(x, o), DATA)
                    gaps = relaid(kwargs, lambda x, o=order: apart_in_order(x, o), DATA)
                    for given in (dense, gaps):
                        assert_same(results(name, given), whole, (shape, axis, order, dtype))


#: More than a table has rows, fewer than a piece has elements, and periods in between.
@pytest.mark.parametrize(
    ("shape", "axis"),
    [((3, 40_000), 1), ((40_000,), 0), ((5, 9001), 1), ((7, 3000), 1), ((2, 9000, 3), 1)],
    ids=str,
)
@pytest.mark.parametrize("threads", [1, 2])
def test_pieces_of_less_than_a_period(shape, axis, threads):
    """What belongs to channels is found for those of a piece, also where it goes round an end."""
    before = numba.get_num_threads()
    numba.set_num_threads(threads)
    try:
        for name in ("quantize_per_channel", "fake_quantize_per_channel_affine_cachemask"):
            kwargs = arguments(name, shape, axis)
            whole = results(name, kwargs)
            rows = np.moveaxis(kwargs["input"], axis, -1)
            for x, y in zip(rows, np.moveaxis(whole[0], axis, -1), strict=True):
                if x.ndim == 1:  # by themselves they are runs
                    alone = kwargs | {"input": x[:, None].copy(), "axis": 0}
                    assert_same(results(name, alone)[0][:, 0], y)
            for lay in (window, unaligned, every_second, in_pairs, reversed_axes):
                assert_same(results(name, relaid(kwargs, lay, DATA)), whole, (name, lay))
    finally:
        numba.set_num_threads(before)


@pytest.mark.parametrize("run", [7, 50])
def test_as_many_rows_of_a_table_are_filled_as_a_piece_has_elements(run):
    """Or it would take the square of the channels. The table of few channels repeats them."""
    channels, span, period = run, 24 * run, 3 * run
    for piece in (1, run - 1, run, run + 1, 2 * span + 1):
        for first in range(0, 3 * span, piece):
            begin, end = 0, min(piece, 3 * span - first)
            while begin < end:
                at = first + begin
                lowest, last, start, low, high = periods._turn(
                    begin, end, first, channels, run, span, period
                )
                assert lowest == at // span * channels
                assert begin < last <= min(end, begin + span - at % span)
                assert start <= begin
                if last - begin < run:
                    assert (start + low, start + high) == (begin, last)
                    assert 0 <= low < high <= run
                    assert (first + start) % span % run == 0
                else:
                    assert (low, high) == (0, period)
                    assert (first + start) % span % period == 0
                begin = last


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", CALLS)
def test_several_tiles_and_pieces(name):
    shape = (16388,) if name == "determine_qparams" else (4, 4100)
    for axis in axes(name, shape):
        agree_however_it_lies(name, shape, axis)


# --- permuted axes --------------------------------------------------------------------------------

#: Ops with runs along the last axis, and others whose elements must keep their order.
PERMUTED = (
    "quantize_per_token",
    "quantize_per_channel_group",
    "dequantize_per_token",
    "fake_quantize_learnable_per_token_affine",
    "choose_qparams_per_token",
    "quantize_per_token_dynamic",
    "fake_quantize_per_channel_affine_cachemask",
    "fake_quantize_learnable_per_tensor_affine_backward",
    "fake_quantize_learnable_per_channel_affine_backward",
    "fake_quantize_learnable_per_token_affine_backward",
    "adaround_soft",
)
#: What lies side by side is few and many, shorter and longer than what is made of it: SHORT,
#: LEAST_PERIOD, NEAR, ROWS; and blocks and pieces of what is packed.
CROSSED = (
    *((3, n, 20) for n in (3, 15, 16, 17, 31, 33, 65, 512, 2049)),
    (2, 5, 4096),
    (3, 65, 260),
    (2, 3, 4100),
    (2, 16_400, 4),
    (17, 16, 64),
    (9, 16_384),
    (3, 1, 2, 36),
    (2, 3, 17, 4, 12),
)


@pytest.fixture
def small_pieces(monkeypatch):
    """What NumPy packs otherwise, kernels do."""
    for module in (walk, channels, loops, maps, fast_path, fast_choice):
        monkeypatch.setattr(module, "PIECE", 100)


@pytest.mark.usefixtures("one_thread", "small_pieces")
@pytest.mark.parametrize("shape", CROSSED, ids=str)
@pytest.mark.parametrize("name", PERMUTED)
def test_permuted_axes(name, shape):
    """Axes in every order in memory, or in some of them; read forward, backward and in steps."""
    if "group" in name:
        shape = (shape[0], np.prod(shape[1:]).item())
    rng = np.random.default_rng(len(shape))
    orders = list(permutations(range(len(shape))))
    some = rng.choice(len(orders), min(6, len(orders)), replace=False)
    for axis in axes(name, shape):
        kwargs = arguments(name, shape, axis)
        whole = results(name, kwargs)
        for order in (orders[i] for i in some):
            for lay in (lambda x: x, reversed_axes, every_second):

                def permuted(x, order=order, lay=lay):
                    return lay(x.transpose(order)).transpose(np.argsort(order))

                def dense(x, order=order, lay=lay):
                    return lay(in_order(x, order))

                for how in (dense, permuted):
                    got = results(name, relaid(kwargs, how, DATA))
                    assert_same(got, whole, (axis, order, lay.__name__, how.__name__))


@pytest.mark.usefixtures("one_thread", "small_pieces")
@pytest.mark.parametrize("name", [n for n in SEVERAL if n != "determine_qparams"])
def test_large_arrays_that_lie_differently(name):
    """One of them, or all but one: the result lies as one of them does, in memory's order."""
    for shape, axis in every_call(name, ((19, 36), (40, 500), (5, 6, 4, 7))):
        kwargs = arguments(name, shape, axis)
        whole, keys = results(name, kwargs), data_of(name)
        for lay in (*DENSE.values(), reversed_axes, every_second, unaligned):
            for key in keys:
                for some in ((key,), tuple(k for k in keys if k != key)):
                    got = results(name, relaid(arguments(name, shape, axis), lay, some))
                    assert_same(got, whole, (shape, axis, lay, some))


@pytest.mark.usefixtures("one_thread", "small_pieces")
@pytest.mark.parametrize("name", [n for n in CALLS if n != "determine_qparams"])
def test_rows_with_gaps(name):
    """Rows that follow one another, with gaps between: short ones are packed, long ones are not."""
    data = data_of(name)
    long = strided.LONG_ROW
    of_long_rows = (3, 4, long), (2, 5, 2 * long + 40)
    shapes = *of_long_rows, (40, 72), (400, 48), (6, 3, 16), (5, 4, 4), (3, 5, 2, 8)
    for shape, axis in every_call(name, shapes):
        whole = results(name, arguments(name, shape, axis))
        for lay in (window, lambda x: window(x[::-1])[::-1]):
            for keys in (data, data[:1], data[1:]):
                kwargs = relaid(arguments(name, shape, axis), lay, keys)
                assert_same(results(name, kwargs), whole, (shape, axis, keys))


@pytest.mark.usefixtures("one_thread", "small_pieces")
@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("name", CALLS)
def test_every_second_element(name, place):
    """Of all arrays or of one of them, where pairs begin with an element or end with it."""
    data = data_of(name)
    for shape, axis in every_call(name, ((3, 5, 4, 8), (2, 1100), (301,))):
        whole = results(name, arguments(name, shape, axis))
        for keys in (data, data[:1]):
            kwargs = relaid(arguments(name, shape, axis), lambda x: in_pairs(x, place), keys)
            assert_same(results(name, kwargs), whole, (shape, axis, keys))


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize(
    "dtype", sorted(dtypes.FLOATS | frozenset(dtypes.BOUNDS), key=str), ids=str
)
def test_every_second_element_of_a_dtype(dtype, place):
    lo, hi = dtypes.BOUNDS.get(dtype, (-150, 150))
    x = np.arange(-150, 150).clip(lo, hi).astype(np.float32).astype(dtype)
    op, args = npquant.dequantize_per_tensor, (0.5, 1, lo, hi, dtype)
    if dtype in dtypes.FLOATS:
        op, args = npquant.convert_element_type, (np.float64,)
    for n in (1, 30, 63, 64, 65, 299, 300):
        assert_same((op(in_pairs(x[:n], place), *args),), (op(x[:n], *args),), (dtype, n))


AT_THE_END_OF_A_PAGE = """
import ctypes, mmap
import numpy as np
import npquant
from npquant import cpu, layout
from npquant.cpu import channels, loops, maps, walk
from npquant.modules import PerChannelMinMaxObserver
from npquant.ops import fast_choice, fast_path

for module in (walk, channels, loops, maps, fast_path, fast_choice):
    module.PIECE = 10
pages = mmap.mmap(-1, 3 * mmap.PAGESIZE)
memory = np.frombuffer(pages, np.float32)
protect = ctypes.CDLL(None, use_errno=True).mprotect
for place in (0, 2):
    at = ctypes.c_void_p(memory.ctypes.data + place * mmap.PAGESIZE)
    assert protect(at, ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
page = memory[mmap.PAGESIZE // 4 : mmap.PAGESIZE // 2]
for x in (page[::2], page[1::2], page[:-1:2], page[2::2]):
    for part in (x, *(some for n in (15, 16, 17, 33) for some in (x[:n], x[-n:]))):
        assert npquant.convert_element_type(part, np.float64).sum() == 0
        assert npquant.fake_quantize_per_tensor_affine(part, 1.0, 0, 0, 255).sum() == 0
        assert npquant.choose_qparams_symmetric(part, -128, 127, 1.0, np.int8) == (1.0, 0)
    for inner in range(2, 17):  # and rows
        for some in (x[: 6 * inner], x[-6 * inner :]):
            found = cpu.minmax(layout.per_token((6, inner)), some.reshape(6, inner))
            assert not found[0].any() and not found[1].any()
    for inner in (16, 17, 31, 32, 33, 64):  # runs that are no rows
        for some in (x[: 6 * inner], x[-6 * inner :]):
            observer = PerChannelMinMaxObserver(ch_axis=1)
            observer(some.reshape(2, 3, inner))
            assert not observer.min_val.any() and not observer.max_val.any()
for inner in (64, 128):  # as many bytes, of two and of one
    kind = np.dtype(f"u{128 // inner}")
    for start in (0, 1):
        x = page.view(kind)[start : start + 12 * inner : 2].reshape(2, 3, inner)
        y = page.view(kind)[len(page.view(kind)) - 12 * inner + start :: 2].reshape(2, 3, inner)
        for some in (x, y):
            some = some.view(np.float16) if inner == 64 else some
            found = cpu.minmax(layout.per_channel(some.shape, 1), some)
            assert not found[0].any() and not found[1].any()
print("right")
"""


def test_other_pages_are_not_read():
    """The other half of a pair lies in the same page."""
    run = subprocess.run(
        [sys.executable, "-c", AT_THE_END_OF_A_PAGE], capture_output=True, text=True, check=False
    )
    assert run.stdout == "right\n", f"{run.returncode} {run.stderr}"


@pytest.mark.parametrize("name", ["quantize_per_token", "quantize_per_channel_group"])
def test_scales_are_put_into_order_part_by_part(name, monkeypatch):
    shape = (40, 24) if "group" in name else (4, 16, 2, 24)
    kwargs = arguments(name, shape)
    whole = results(name, kwargs)
    found_anew = walk.seen_at_once.__wrapped__  # which remembers SCALES
    monkeypatch.setattr(walk, "seen_at_once", found_anew)
    parts, seen = walk._parts, []

    def counted(*args):
        count = 0
        for part in parts(*args):
            count += 1
            yield part
        seen.append(count)

    monkeypatch.setattr(walk, "_parts", counted)
    for most in (1, 16, 40, 80, 2**15):
        monkeypatch.setattr(walk, "SCALES", most)
        for order in permutations(range(len(shape))):
            laid = relaid(kwargs, lambda x, order=order: in_order(x, order), DATA)
            assert_same(results_the_long_way(name, laid), whole, (most, order))
    assert min(seen) == 1 < max(seen)


@pytest.mark.parametrize("length", [3, 1000])
def test_rows_in_reverse(length):
    """What is read, and what is written, of an array too large to be copied at once."""
    x = np.random.default_rng(5).normal(0, 9, (60_000 // length, length)).astype(np.float32)
    args = 0.1, 3, -128, 127, np.int8
    backward = npquant.quantize_per_tensor(x[:, ::-1].copy(), *args)
    assert_same(npquant.quantize_per_tensor(x[:, ::-1], *args), backward)
    out = np.empty(x.shape, np.int8)
    npquant.quantize_per_tensor(x, *args, out=out[:, ::-1])
    assert_same(out, backward)


@pytest.mark.usefixtures("one_thread", "small_pieces")
@pytest.mark.parametrize("name", WITH_OUT)
def test_results_that_are_not_flat(name):
    """Data and results that lie in any two ways, of several pieces."""
    shape = (19, 36)
    for axis in axes(name, shape):
        kwargs = arguments(name, shape, axis)
        whole = results(name, kwargs)[0]
        for lay in (DENSE["Fortran"], every_second, reversed_axes, unaligned):
            for lay_out in (DENSE["Fortran"], every_second, unaligned):
                out = lay_out(np.full_like(whole, 1))
                given = relaid(kwargs, lay, DATA) | {"out": out}
                assert results(name, given)[0] is out
                assert_same((out,), (whole,), (axis, lay, lay_out))


# --- segments and threads -------------------------------------------------------------------------


#: Ops that make one item of a tensor as small as these.
OF_ONE_ITEM = (
    "choose_qparams",
    "choose_qparams_symmetric",
    "fake_quantize_learnable_per_tensor_affine_backward",
    "adaround_regularizer",
)


@pytest.mark.parametrize("grain", [1, 3, 64])
@pytest.mark.parametrize("name", CALLS)
def test_segments_in_any_order(name, grain, monkeypatch, in_segments):
    """No bit depends on where they are cut, and on which is done first."""
    calls = every_call(name, (*SHAPES, (5, 32)))
    uncut = [expected(name, *call) for call in calls]
    # No array is small, or it would go past the kernel's call.
    for module, limit in ((loops, "FEW"), (maps, "PIECE"), (qparams, "GRAIN")):
        monkeypatch.setattr(module, limit, 0)
    begins = in_segments(grain)
    with everywhere(PARALLEL_FROM=1):
        for call, wanted in zip(calls, uncut, strict=True):
            # The other way would go past the kernel's call.
            assert_same(results_the_long_way(name, arguments(name, *call)), wanted, call)
    cut = {kernel for kernel, begin in begins if begin}
    assert cut or grain > 1 or name in OF_ONE_ITEM
    if grain < 64 and axis_name(name) and any("quantize_per_channel" in kernel for kernel in cut):
        for kind in ("_runs", "_blocks", "_periods"):
            assert any(kind in kernel for kernel in cut), (kind, cut)


#: One op for each way of cutting work, as every parallel kernel takes seconds to compile.
THREADED = (
    "quantize_per_channel",
    "fake_quant_per_channel_backward",
    "choose_qparams_per_token",
    "quantize_per_token_dynamic",
    "fused_moving_avg_obs_fake_quant",
    "fake_quantize_learnable_per_channel_affine_backward",
    "adaround_soft",
    "adaround_regularizer",
)


@pytest.mark.skipif(numba.config.NUMBA_NUM_THREADS < 2, reason="Numba has one thread here")
@pytest.mark.parametrize("name", THREADED)
def test_two_threads(name, monkeypatch):
    monkeypatch.setattr(target, "GRAIN", 256)
    before = numba.get_num_threads()
    shapes = [(8, 70), (3, 5, 2, 4)], [(2**16 - 1,), (2**16,), (2**18 - 1,), (2**18,), (16385, 16)]
    try:
        numba.set_num_threads(2)
        for least, some in zip((1, target.PARALLEL_FROM), shapes, strict=True):
            with everywhere(PARALLEL_FROM=least):
                for shape in some:
                    for axis in axes(name, shape):
                        agree_however_it_lies(name, shape, axis)
    finally:
        numba.set_num_threads(before)


FORK = """
import os
import warnings
import numpy as np
import npquant as nq

x = np.random.default_rng(0).normal(size=(2, 1 << 17)).astype(np.float32)
args = np.array([0.1, 0.2], np.float32), np.array([3, -4], np.int32), 0, -128, 127, np.int8
q = nq.quantize_per_channel(x, *args)  # opens a parallel region
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Python 3.12 warns of every fork beside threads
    child = os.fork()
if child == 0:
    same = np.array_equal(nq.quantize_per_channel(x, *args), q)
    os._exit(0 if same else 1)
assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_forked_child():
    root = Path(npquant.__file__).parents[1]
    subprocess.run([sys.executable, "-c", FORK], check=True, timeout=120, cwd=root)
