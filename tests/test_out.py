"""`out`: the result is `out` itself, with the bits of the call without, wherever `out` lies."""

import ml_dtypes
import numpy as np
import pytest

import npquant as nq
import oracle
from calls import DATA, PARAMETERS, WITH_OUT, arguments, axes, every_call, fits, in_order, results
from cases import BOUNDS, FLOAT8, assert_same
from layouts import DENSE, every_second, relaid, unaligned
from npquant import backend
from npquant.checks.calls import forget
from npquant.cpu import loops, maps, segments, walk
from npquant.cpu.lines import LINE
from npquant.cpu.loops import Elementwise
from npquant.cpu.strided import GATHERED
from npquant.cpu.target import PARALLEL_FROM, Kernel
from npquant.cpu.walk import pieces
from npquant.layout import PER_TENSOR
from npquant.ops import fast_path

SHAPES = ((4, 8), (2, 3, 4, 8))

#: Functions of an array: one like it, whatever it is full of, that lies so.
PLACES = {
    "C": np.empty_like,
    "Fortran": lambda y: np.asfortranarray(np.empty_like(y)),
    "channels last": DENSE["channels last"],
    "reversed": lambda y: np.empty_like(y)[::-1, ::-1],
    "strided": every_second,
    "unaligned": unaligned,
}

#: The ops whose result has the dtype of their data, and so can take its place.
IN_PLACE = [name for name in WITH_OUT if "quantize_per" not in name or name.startswith("fake")]
IN_PLACE.remove("adaround_codes")


def in_place(name, shape=SHAPES[0], axis=0):
    """A call whose result has the dtype of its data, and the name of the data."""
    kwargs = arguments(name, shape, axis)
    if name == "convert_element_type":
        kwargs["dtype"] = np.float32
    return kwargs, next(key for key in DATA if key in kwargs)


def refused_or_right(name, kwargs, key, value, out):
    """Call with argument `key` sharing memory with `out`."""
    expected = results(name, {**kwargs, key: value.copy()})
    before = value.tobytes()
    try:
        got = results(name, {**kwargs, key: value, "out": out})
    except ValueError as error:
        got = str(error)
    if isinstance(got, str):
        assert "out" in got
        assert value.tobytes() == before
        return "refused"
    assert_same(got, expected, key)
    return "right"


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", WITH_OUT)
def test_out_is_the_result(name, place):
    for shape, axis in every_call(name, SHAPES):
        (expected,) = results(name, arguments(name, shape, axis))
        out = PLACES[place](np.full_like(expected, 1))
        assert results(name, arguments(name, shape, axis) | {"out": out})[0] is out
        assert_same(out, expected, (shape, axis))


@pytest.mark.parametrize("name", WITH_OUT)
def test_data_and_out_that_lie_alike(name):
    """Both in one memory order: the walk in place must not confuse the axes."""
    for shape, axis in every_call(name, SHAPES):
        (expected,) = results(name, arguments(name, shape, axis))
        kwargs = arguments(name, shape, axis)
        kwargs = relaid(kwargs, DENSE["channels last"], DATA)
        out = DENSE["channels last"](np.empty_like(expected))
        assert_same(results(name, kwargs | {"out": out})[0], expected, (shape, axis))


@pytest.mark.parametrize("name", WITH_OUT)
def test_the_rest_of_the_memory_is_untouched(name):
    (expected,) = results(name, arguments(name, SHAPES[0]))
    memory = np.full(expected.nbytes * 5 + 64, 0x5A, np.uint8)
    wide = memory[: expected.nbytes * 5].view(expected.dtype)[: 5 * expected.size]
    out = wide.reshape(len(expected), -1)[:, 3 : 3 + 2 * expected.shape[1] : 2]
    results(name, arguments(name, SHAPES[0]) | {"out": out})
    assert_same(out, expected)
    out[...] = np.frombuffer(b"\x5a" * expected.itemsize, expected.dtype)[0]
    assert (memory == 0x5A).all()


@pytest.mark.parametrize("shape", [(5, 4096), (520, 48)], ids=str)
@pytest.mark.parametrize("name", WITH_OUT)
def test_rows_with_gaps(name, shape):
    """Long rows that are written as they lie, and short ones that are not; also in place."""
    for axis in axes(name, shape):
        (expected,) = results(name, arguments(name, shape, axis))
        memory = np.zeros((shape[0], shape[1] + 8), expected.dtype)
        out = memory[:, 3:-5]
        assert results(name, arguments(name, shape, axis) | {"out": out})[0] is out
        assert_same(out, expected, axis)
        out[...] = memory[0, 0]
        assert not memory.view(np.uint8).any(), axis
        if name in IN_PLACE:
            kwargs, key = in_place(name, shape, axis)
            (expected,) = results(name, kwargs)
            x = np.zeros(memory.shape, kwargs[key].dtype)[:, 3:-5]
            x[...] = kwargs[key]
            assert results(name, kwargs | {key: x, "out": x})[0] is x
            assert_same(x, expected, axis)


@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place(name):
    for shape, axis in every_call(name, SHAPES):
        (expected,) = results(name, in_place(name, shape, axis)[0])
        for place in PLACES.values():
            kwargs, key = in_place(name, shape, axis)
            x = place(kwargs[key])
            x[...] = kwargs[key]
            assert results(name, kwargs | {key: x, "out": x})[0] is x
            assert_same(x, expected, (shape, axis))


@pytest.mark.parametrize("how", ["itself", "another view", "Fortran"])
@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place_piece_by_piece(name, how):
    """More than a piece, which ends within a channel: runs, whole runs, and channels last."""
    for shape, axis in (((5, 2, 1732), 0), ((300, 32), 0), ((2, 2600, 4), 2)):
        kwargs, key = in_place(name, shape, axis)
        x = kwargs[key] if how != "Fortran" else np.asfortranarray(kwargs[key])
        assert x.size > GATHERED
        (expected,) = results(name, kwargs)
        out = x[:] if how == "another view" else x
        assert results(name, kwargs | {key: x, "out": out})[0] is out
        assert_same(x, expected, (shape, axis))


def test_data_that_results_go_over_are_copied():
    """Piece by piece: a loop that writes to what it reads is not vectorised."""
    for order in "CF":
        x, other = (np.zeros((300, 32), np.float32, order) for _ in range(2))
        for inputs, out, copied in (
            ((x,), x, True), ((x,), x[:], True), ((x,), x.view(np.int32), True),
            ((other, x), x, True), ((x,), other, False), ((x, other), np.zeros_like(x), False),
        ):  # fmt: skip
            ((piece, _, _),) = pieces(PER_TENSOR, inputs, (out, None))
            assert (piece.views is not None) == copied
    small = np.zeros((4, 8), np.float32)
    ((piece, _, _),) = pieces(PER_TENSOR, (small,), (small,))
    assert piece.views is None


@pytest.mark.parametrize("n", [8, 200, 20_000])
@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize(
    ("dtype", "target"),
    [
        (np.float16, np.int16),
        (ml_dtypes.bfloat16, np.uint16),
        pytest.param(np.float16, np.uint16, marks=pytest.mark.full),
        pytest.param(ml_dtypes.bfloat16, np.int16, marks=pytest.mark.full),
    ],
)
def test_codes_that_take_the_place_of_data(dtype, target, wide, n):
    """Every quantize op, through a view of the same width: data are not looked at twice."""
    x = np.random.default_rng(0).normal(0, 30, (2, n)).astype(dtype)
    kinds = (np.float64, np.int64) if wide else (np.float32, np.int32)
    bounds = np.iinfo(target).min, np.iinfo(target).max, target
    s, z = (np.array(v, k) for v, k in zip(([0.1, 0.3], [0, 1]), kinds, strict=True))
    groups = np.repeat(s, 2), np.repeat(z, 2)
    for op, args in (
        (nq.quantize_per_tensor, (0.1, 0, *bounds)),
        (nq.quantize_per_channel, (s, z, 0, *bounds)),
        (nq.quantize_per_token, (s, z, *bounds)),
        (nq.quantize_per_channel_group, (*groups, *bounds, n // 2)),
    ):
        for rounding in ("reciprocal", "divide"):
            expected, there = op(x, *args, rounding=rounding), x.copy()
            got = op(there, *args, rounding=rounding, out=there.view(target))
            assert_same(got, expected, (op.__name__, rounding))


def test_in_place_of_another_dtype():
    """The same elements, read as float32 and written as int32."""
    x = arguments("convert_element_type", (3, 37))["input"] * 100
    expected = x.astype(np.int32)
    kwargs = {"input": x, "dtype": np.int32, "out": x.view(np.int32)}
    assert_same(results("convert_element_type", kwargs), (expected,))


@pytest.mark.parametrize("name", IN_PLACE)
def test_partial_overlap_is_refused(name):
    kwargs, key = in_place(name, (8, 8))
    size = kwargs[key].size
    memory = np.empty(2 * size, np.float32)
    x = memory[:size].reshape(8, 8)
    x[...] = kwargs[key]
    overlapping = {
        "shifted": memory[1 : size + 1].reshape(8, 8),
        "a row further": memory[8 : size + 8].reshape(8, 8),
        "transposed": x.T,
        "reversed": x[::-1],
    }
    for how, out in overlapping.items():
        assert refused_or_right(name, kwargs, key, x, out) == "refused", how


@pytest.mark.parametrize("name", IN_PLACE)
def test_interleaved_memory_is_no_overlap(name):
    kwargs, key = in_place(name)
    memory = np.empty((2, *SHAPES[0]), np.float32)
    memory = np.moveaxis(memory.reshape(*SHAPES[0], 2), -1, 0)
    x, out = memory
    x[...] = kwargs[key]
    assert refused_or_right(name, kwargs, key, x, out) == "right"
    assert_same(x, kwargs[key])


@pytest.mark.parametrize("name", [n for n in WITH_OUT if n != "convert_element_type"])
def test_out_over_other_arguments(name):
    """`out` may lie over a mask or over qparams: what is read must be what was given."""
    kwargs = arguments(name, SHAPES[0])
    (expected,) = results(name, kwargs)
    others = [key for key, value in kwargs.items() if isinstance(value, np.ndarray)]
    for key in others:
        given = kwargs[key]
        if key not in ("input", "grad", "V"):
            memory = np.zeros(expected.nbytes + given.nbytes, np.uint8)
            for start in (0, given.itemsize):
                value = memory[start : start + given.nbytes].view(given.dtype).reshape(given.shape)
                value[...] = given
                out = memory[: expected.nbytes].view(expected.dtype).reshape(expected.shape)
                refused_or_right(name, kwargs, key, value, out)


def in_memory(given, kind, step, out):
    """The same values as another dtype, some elements apart, and an `out` over the first."""
    size = max(out.nbytes, kind.itemsize * (1 + step * given.size))
    memory = np.zeros(-(-size // 8), np.uint64).view(np.uint8)
    value = memory[: kind.itemsize * step * given.size].view(kind)[::step].reshape(given.shape)
    value[...] = given
    return value, memory[: out.nbytes].view(out.dtype).reshape(out.shape)


OTHERS = {
    (name, key)
    for name in WITH_OUT
    for key, value in arguments(name, SHAPES[0]).items()
    if isinstance(value, np.ndarray)
    and key not in ("mask", next(k for k in DATA if k in PARAMETERS[name]))
}


@pytest.mark.parametrize(("name", "key"), sorted(OTHERS))
def test_out_over_what_is_converted(name, key):
    """Qparams and data that a kernel reads as a copy: what was given would be written over."""
    kwargs = arguments(name, SHAPES[0])
    (expected,) = results(name, kwargs)
    given = kwargs[key]
    wide = np.dtype(np.float64 if given.dtype.kind == "f" else np.int64)
    kinds = [given.dtype.newbyteorder(), given.dtype]
    for kind in kinds if key in DATA else (*kinds, wide, wide.newbyteorder()):
        for step in (1, 2):
            value, out = in_memory(given, kind, step, expected)
            assert refused_or_right(name, kwargs, key, value, out) == "refused", (kind, step)


@pytest.mark.parametrize("name", IN_PLACE)
def test_data_in_the_other_order_of_bytes(name):
    """In place of all of them is right; over a part is refused, though they are copied."""
    kwargs, key = in_place(name)
    (expected,) = results(name, kwargs)
    x, out = in_memory(kwargs[key], kwargs[key].dtype.newbyteorder(), 1, expected)
    assert refused_or_right(name, kwargs, key, x, out) == "right"
    memory = np.zeros(x.size + 1, x.dtype)
    y = memory[1:].reshape(x.shape)
    y[...] = kwargs[key]
    over = memory[:-1].view(expected.dtype).reshape(x.shape)
    assert refused_or_right(name, kwargs, key, y, over) == "refused"


def test_out_over_what_numpy_makes_an_array_of():
    """A view of memory is no array, but has the memory of one."""
    x, z = arguments("quantize_per_channel", SHAPES[0])["input"], np.zeros(4, np.int32)
    memory = np.ones(x.size, np.float32)
    for dtype in (np.int8, np.int32):
        out = memory.view(np.int8)[: x.size * np.dtype(dtype).itemsize].view(dtype).reshape(x.shape)
        with pytest.raises(ValueError, match="out must be apart from scales"):
            nq.quantize_per_channel(x, memory[:4].data, z, 0, -128, 127, dtype, out=out)
    assert (memory == 1).all()


def test_out_between_the_elements_of_another_array():
    """NumPy searches for an element of both for a third of a millisecond before it knows."""
    room = np.ones((4, 3, 60_000), np.float32)
    V = room[:, :, :10_000:2]
    x = np.linspace(-20, 20, V.size, dtype=np.float32).reshape(V.shape)
    out = np.ndarray(V.shape, np.int8, room.data, 1_530_471)
    expected = nq.adaround_codes(x, V.copy(), 0.5, 0, -8, 7, np.int8)
    assert nq.adaround_codes(x, V, 0.5, 0, -8, 7, np.int8, out=out) is out
    assert_same(out, expected)
    assert (V == 1).all()


def test_every_op_of_one_array_takes_out():
    """The exceptions return several arrays, or one and a changed state, or a number."""
    for name in PARAMETERS:
        kwargs = arguments(name, (8,) if name == "determine_qparams" else SHAPES[0])
        got = results(name, kwargs)
        one = len(got) == 1 and got[0].shape != ()
        assert one == (name in WITH_OUT), name


def test_a_memory_mapped_out_is_returned_as_it_is(tmp_path):
    name = "fake_quantize_per_tensor_affine"
    out = np.memmap(tmp_path / "out", np.float32, "w+", shape=SHAPES[0])
    kwargs = arguments(name, SHAPES[0])
    (expected,) = results(name, kwargs)
    assert results(name, kwargs | {"out": out})[0] is out
    assert_same(np.fromfile(tmp_path / "out", np.float32).reshape(out.shape), expected)


def test_a_scalar_is_no_place_to_write():
    """NumPy makes an array of it, which nobody would ever see."""
    for out in (np.int8(5), np.float32(5)):
        with pytest.raises(TypeError, match="out must be a NumPy array to write to"):
            nq.quantize_per_tensor(np.array(1.0, np.float32), 0.1, 0, -128, 127, np.int8, out=out)
    state = [np.zeros((), np.float32), np.zeros((), np.float32), np.ones((), np.float32)]
    for i, name in enumerate(("running_min", "running_max", "scale", "zero_point")):
        held = [*state, np.zeros((), np.int32)]
        held[i] = held[i][()]
        with pytest.raises(TypeError, match=f"{name} must be a NumPy array to write to"):
            nq.fused_moving_avg_obs_fake_quant(np.ones(3, np.float32), 1, 1, *held, 0.1, -8, 7, 0)


def test_a_read_only_view_of_out_is_out_itself():
    out = np.linspace(-9, 9, 7, dtype=np.float32)
    x = out.view()
    x.flags.writeable = False
    expected = nq.fake_quantize_per_tensor_affine(x.copy(), 0.3, 2, -8, 7)
    assert_same(nq.fake_quantize_per_tensor_affine(x, 0.3, 2, -8, 7, out=out), expected)


#: Ops with qparams whose results are not narrower than their data: of quantize, codes of int32.
NOT_NARROWER = [
    name
    for name in WITH_OUT
    if name.startswith(("fake_quant", "dequantize", "quantize")) and not name.endswith("_backward")
]
ADAROUND = ["adaround_soft", "adaround_soft_backward", "adaround_hard"]


def not_narrower(name, shape, axis):
    """The arguments of a call with qparams as they mostly are."""
    kwargs = arguments(name, shape, axis)
    if "learnable" in name:
        kwargs["scale"] = kwargs["scale"].astype(np.float32)
    if name.startswith("quantize"):
        kwargs["dtype"] = np.int32
    return kwargs


@pytest.fixture
def past_caches(monkeypatch):
    """Results of any size are written past the caches; a list of the granularities of which."""
    asked, in_one_call = [], Elementwise.in_one_call

    def spied(self, granularity, n, code, past=False, *repeats):
        if past:
            asked.append(granularity)
        return in_one_call(self, granularity, n, code, past, *repeats)

    monkeypatch.setattr(Elementwise, "in_one_call", spied)
    monkeypatch.setattr(fast_path, "PAST", 1)
    forget()
    yield asked
    forget()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", NOT_NARROWER + ADAROUND)
def test_past_the_caches(name, threads, past_caches, monkeypatch):
    """Runs of every length, wherever in a line of the cache the result begins."""
    monkeypatch.setattr(fast_path, "threads", lambda: threads)
    small = (
        (1,),
        (5000,),
        (3, 1700),
        (130, 32),
        (90, 3, 16),
        (9, 3, 50),
        (40, 512),
        (2, 1031),
        (5, 17_000),
    )
    for shape in small if threads == 1 else ((4, 70_001), (1 << 13, 48)):
        if not fits(name, shape):
            continue
        for axis in axes(name, shape):
            kwargs = not_narrower(name, shape, axis)
            before = len(past_caches)
            (expected,) = results(name, kwargs)
            assert len(past_caches) > before
            for place in (0, 1, 13) if threads == 1 else (3,):
                room = np.zeros(expected.size + 32, expected.dtype)
                out = room[place : place + expected.size].reshape(shape)
                with monkeypatch.context() as patch:
                    patch.setattr(backend, "of", None)  # which the long way calls
                    assert results(name, kwargs | {"out": out})[0] is out
                assert_same(out, expected, (shape, axis, place))
                assert not room[:place].any()
                assert not room[place + expected.size :].any()


@pytest.mark.parametrize("name", [name for name in NOT_NARROWER if "group" not in name])
def test_past_the_caches_in_another_order(name, past_caches, monkeypatch):
    """Data and result that lie alike go the short way, too, and so does a result in their place."""
    shape, order = ((6, 800), (1, 0)) if "token" in name else ((3, 40, 70), (2, 0, 1))
    for axis in axes(name, shape):
        kwargs = not_narrower(name, shape, axis)
        (expected,) = results(name, kwargs)
        data = next(key for key in DATA if key in kwargs)
        kwargs[data] = in_order(kwargs[data], order)
        out = in_order(np.empty_like(expected), order)
        with monkeypatch.context() as patch:
            patch.setattr(backend, "of", None)  # which the long way calls
            assert results(name, kwargs | {"out": out})[0] is out
            assert_same(out, expected, axis)
            if out.dtype == kwargs[data].dtype:
                assert_same(results(name, kwargs | {"out": kwargs[data]})[0], expected, axis)


@pytest.fixture
def kernels(monkeypatch):
    """The names of kernels that are called."""
    used, call = [], Kernel.__call__

    def spied(self, *args):
        used.append(self.name)
        call(self, *args)

    monkeypatch.setattr(Kernel, "__call__", spied)
    return used


@pytest.mark.parametrize("name", [name for name in IN_PLACE if name != "convert_element_type"])
def test_loops_over_their_data(name, kernels, monkeypatch):
    """They are given copies of pieces, but past the caches, where results wait in a room."""
    kwargs, key = in_place(name, (300, 32))
    x = kwargs[key]
    # To compute that one takes so long that it never goes past the caches.
    for past in (False,) if name == "adaround_regularizer_backward" else (False, True):
        if past:
            for module in (loops, maps, fast_path):
                monkeypatch.setattr(module, "PAST", 1)
            forget()
        for out, over in ((np.empty_like(x), False), (x, True), (x[:], True)):
            kernels.clear()
            results(name, kwargs | {"out": out})
            apart = [kernel.endswith("apart") for kernel in kernels]
            assert any(apart) == (over and not past), kernels


@pytest.mark.parametrize("name", [*NOT_NARROWER, "adaround_init"])
def test_past_the_caches_the_long_way(name, kernels, monkeypatch):
    """Of data that are every second element, and of tokens and groups that lie side by side."""
    monkeypatch.setattr(loops, "PAST", 1)
    shape, turned = ((40, 8, 144), (1, 0, 2)) if fits(name, (40, 8, 144)) else ((320, 144), (1, 0))
    in_c_order = tuple(range(len(shape)))
    for axis in axes(name, shape):
        kwargs = not_narrower(name, shape, axis)
        (expected,) = results(name, kwargs)
        data = next(key for key in DATA if key in kwargs)
        repeated = np.repeat(kwargs[data], 2, axis=-1)[..., ::2]
        for x, order in ((repeated, in_c_order), (in_order(kwargs[data], turned), turned)):
            room = in_order(np.zeros(shape, expected.dtype), order)
            kernels.clear()
            assert results(name, kwargs | {data: x, "out": room})[0] is room
            assert_same(room, expected, (axis, order))
            if order == in_c_order:
                assert any(kernel.endswith("_past") for kernel in kernels)


GROUPS = "dequantize_per_channel_group", "fake_quantize_learnable_per_channel_group_affine"


@pytest.mark.parametrize("name", GROUPS)
def test_past_the_caches_in_parts(name, kernels, monkeypatch):
    """The whole result is large, of which some scales at a time are put into its order."""
    kwargs = not_narrower(name, (600, 512), 0)
    (expected,) = results(name, kwargs)
    data = next(key for key in DATA if key in kwargs)
    scales = next(a for key, a in kwargs.items() if key.startswith("scale"))
    found_anew = walk.seen_at_once.__wrapped__  # which remembers SCALES
    monkeypatch.setattr(walk, "seen_at_once", found_anew)
    monkeypatch.setattr(walk, "SCALES", scales.size // 3)
    monkeypatch.setattr(loops, "PAST", expected.nbytes)
    out = np.zeros_like(expected, order="F")
    kernels.clear()
    results(name, kwargs | {data: np.asfortranarray(kwargs[data]), "out": out})
    *most, _ = [kernel for kernel in kernels if kernel != "gather"]  # of scales
    assert len(most) == 3
    assert all(kernel.endswith("_past") for kernel in most)
    assert_same(out, expected)


@pytest.mark.parametrize(
    ("inner", "read", "written", "past"),
    [
        (32, np.int8, np.float32, True),
        (48, np.int8, np.float32, True),
        (48, np.int8, np.float16, False),
        (20, np.int8, np.float16, True),
        (64, np.int8, np.float32, True),
        (64, np.int8, np.float16, True),
        (64, np.int16, np.float16, False),
        (64, np.int32, np.float16, False),
        (64, np.int32, np.float32, True),
        (20, np.int8, np.float32, True),
        (64, np.int8, ml_dtypes.bfloat16, True),
        (64, FLOAT8[0], ml_dtypes.bfloat16, False),
        (64, FLOAT8[0], np.float16, True),
    ],
)
def test_what_is_written_past_the_caches(
    inner, read, written, past, past_caches, kernels, monkeypatch
):
    """Nothing that is narrower than the data, no two bytes of two, nor in short groups."""
    monkeypatch.setattr(loops, "PAST", 1)
    monkeypatch.setattr(fast_path, "threads", lambda: 2)
    rows = PARALLEL_FROM // inner + 1
    q = np.random.default_rng(9).integers(-100, 100, (rows, inner)).astype(read)
    scales, bounds = np.linspace(0.3, 3, rows, dtype=np.float32), (-128, 127, read)
    for kind in (np.int32, np.int64, np.float64):  # the short way, as int32, the long way
        zeros = np.zeros(rows, kind)
        args = q, scales, zeros, 0, *bounds
        expected = oracle.dequantize_per_channel(*args, out_dtype=written)
        out = np.empty(q.shape, written)
        kernels.clear()
        assert nq.dequantize_per_channel(*args, out_dtype=written, out=out) is out
        assert_same(out, expected)
        assert [kernel.endswith("_past") for kernel in kernels] == [past], kernels


@pytest.mark.parametrize("inner", [16, 32])
def test_short_groups_past_the_caches(inner, past_caches, kernels, monkeypatch):
    """Whole groups have a loop of their own; the last of them end where no room does."""
    monkeypatch.setattr(loops, "PAST", 1)
    monkeypatch.setattr(fast_path, "threads", lambda: 2)
    rows = PARALLEL_FROM // inner + 3
    q = np.random.default_rng(10).integers(-128, 128, (rows, inner)).astype(np.int8)
    scales = np.linspace(0.3, 3, rows, dtype=np.float32)
    for kind in (np.int32, np.int64, np.float64):  # the short way, as int32, the long way
        zeros = np.zeros(rows, kind)
        args = q, scales, zeros, 0, -128, 127, np.int8
        out = np.empty(q.shape, np.float32)
        kernels.clear()
        nq.dequantize_per_channel(*args, out=out)
        assert_same(out, oracle.dequantize_per_channel(*args))
        (kernel,) = kernels
        assert kernel.endswith(f"blocks_{inner}_past")


@pytest.mark.parametrize("group", [16, 32, 128])
def test_groups_with_gaps(group, kernels, monkeypatch):
    """They have a loop of their own, but for a large result that a place is given for."""
    monkeypatch.setattr(loops, "PAST", 1)
    q = np.random.default_rng(11).integers(-128, 128, (150, 6144)).astype(np.int8)[:, 2048:4096]
    n = q.size // group
    scales, zeros = np.linspace(0.3, 3, n, dtype=np.float32), np.arange(n, dtype=np.int32) % 9
    args = q, scales.reshape(150, -1), zeros.reshape(150, -1), -128, 127, np.int8
    expected = oracle.dequantize_per_channel_group(*args, group)
    out = np.empty(q.shape, np.float32)
    for given, loop in ({}, "blocks_apart"), ({"out": out}, "runs_apart_past"):
        kernels.clear()
        assert_same(nq.dequantize_per_channel_group(*args, group, **given), expected)
        (kernel,) = kernels
        assert kernel.endswith(loop)


@pytest.mark.parametrize(
    "name",
    [
        "dequantize_per_tensor",
        "dequantize_per_channel_group",
        "fake_quantize_per_channel_affine",
        "fake_quantize_learnable_per_token_affine",
        "quantize_per_channel",
    ],
)
def test_gaps_past_the_caches(name, kernels, monkeypatch):
    """In short rows, which are gathered, and in long ones, which are read as they lie."""
    monkeypatch.setattr(loops, "PAST", 1)
    long = (50, 3, 2448) if fits(name, (50, 3, 2448)) else (150, 2448)
    for shape in ((1300, 144), long):
        for axis in axes(name, shape):
            kwargs = not_narrower(name, shape, axis)
            (expected,) = results(name, kwargs)
            data = next(key for key in DATA if key in kwargs)
            with_gaps = np.concatenate([kwargs[data]] * 2, axis=-1)[..., : shape[-1]]
            for place in (0, 13):
                room = np.zeros(expected.size + 32, expected.dtype)
                out = room[place : place + expected.size].reshape(shape)
                kernels.clear()
                assert results(name, kwargs | {data: with_gaps, "out": out})[0] is out
                assert_same(out, expected, (shape, axis, place))
                assert not room[:place].any()
                assert not room[place + expected.size :].any()
                (kernel,) = kernels
                assert kernel.endswith(("runs_apart_past", "periods_apart"))
                short = "group" in name or ("channel" in name and axis == len(shape) - 1)
                assert kernel.endswith("_past") == (not short), axis


def test_no_room_is_written_past_the_caches(kernels, monkeypatch):
    """What is put elsewhere afterwards is read again."""
    monkeypatch.setattr(loops, "PAST", 1)
    q = np.random.default_rng(8).integers(-128, 128, (700, 999)).astype(np.int8)
    kwargs = {"scale": 0.1, "zero_point": 3, "quant_min": -128, "quant_max": 127, "dtype": np.int8}
    expected = nq.dequantize_per_tensor(q, **kwargs)
    for x in (q, np.concatenate([q, q], axis=1)[:, :999]):
        for part, rest in (np.s_[:, ::2], np.s_[:, 1::2]), (np.s_[:, :999], np.s_[:, 999:]):
            room = np.zeros((700, 1998), np.float32)
            kernels.clear()
            nq.dequantize_per_tensor(x, **kwargs, out=room[part])
            assert_same(room[part], expected)
            assert not room[rest].any()
            assert kernels
            assert not any(kernel.endswith("_past") for kernel in kernels)
        out = unaligned(np.zeros_like(expected))
        kernels.clear()
        nq.dequantize_per_tensor(x, **kwargs, out=out)
        assert_same(out, expected)
        assert len(kernels) > 1
        assert not any(kernel.endswith("_past") for kernel in kernels)


@pytest.mark.parametrize("name", ADAROUND)
def test_past_the_caches_in_the_place_of_data(name, past_caches):
    """What waits is not yet written when more of the data are read."""
    for axis in (0, 1):
        kwargs = arguments(name, (40, 1111), axis)
        (expected,) = results(name, kwargs)
        asked = len(past_caches)
        x = kwargs["input"]
        assert results(name, kwargs | {"out": x})[0] is x
        assert len(past_caches) == asked > 0
        assert_same(x, expected, axis)


@pytest.mark.parametrize("target", FLOAT8, ids=str)
def test_float8_of_integers_past_the_caches(target, kernels, monkeypatch):
    """Data as narrow as their codes, which are made one by one there, of both signs."""
    monkeypatch.setattr(loops, "PAST", 1)
    inner = 700
    rows = PARALLEL_FROM // inner + 1
    x = np.random.default_rng(7).integers(-128, 128, (rows, inner)).astype(np.int8)
    scales, zeros = np.linspace(0.3, 3, rows, dtype=np.float32), np.zeros(rows, np.float64)
    lo, hi = (int(v) for v in BOUNDS[target])
    expected = oracle.quantize_per_token(x, scales, zeros, lo, hi, target)
    for place in (0, 13):
        room = np.zeros(x.size + 32, target)
        out = room[place : place + x.size].reshape(x.shape)
        kernels.clear()
        assert nq.quantize_per_token(x, scales, zeros, lo, hi, target, out=out) is out
        assert any(kernel.endswith("_past") for kernel in kernels)
        assert_same(out, expected, place)


@pytest.mark.parametrize("op", [nq.dequantize_per_token, nq.dequantize_per_channel_group])
def test_past_the_caches_with_float64_scales(op, past_caches):
    """Some of which float32 gets wrong, in runs that are tried and in shorter ones."""
    rng, group = np.random.default_rng(6), op is nq.dequantize_per_channel_group
    for inner in (80, 700, 1536):
        rows = PARALLEL_FROM // inner + 1
        q = rng.integers(-128, 128, (rows, inner)).astype(np.int8)
        # An odd number of 26 bits is a multiple of each: between two of float32.
        odd = 2.0 * rng.integers(1 << 24, 1 << 25, (rows, 1)) + 1
        scales = odd / (2 * rng.integers(1, 64, (rows, 1)) + 1)
        args = scales, np.full((rows, 1), 3, np.int64), -128, 127, np.int8, *[inner] * group
        expected = op(q, *args)
        for place in (0, 13):
            room = np.zeros(q.size + 32, np.float32)
            out = room[place : place + q.size].reshape(q.shape)
            assert op(q, *args, out=out) is out
            assert_same(out, expected, (inner, place))
            assert not room[:place].any()
            assert not room[place + q.size :].any()
        assert [granularity.inner for granularity in past_caches] == [inner]
        past_caches.clear()


@pytest.mark.parametrize("n", [PARALLEL_FROM, PARALLEL_FROM + 777])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_past_the_caches_without_qparams(dtype, n, kernels, monkeypatch):
    """A gradient with its mask and a conversion, wherever in a line of the cache the result is."""
    monkeypatch.setattr(maps, "PAST", 1)
    x = np.random.default_rng(5).normal(size=n).astype(dtype)
    mask = x.view(np.uint8)[:n] % 3 == 0
    for op, other, name in (
        (nq.fake_quantize_per_tensor_affine_cachemask_backward, mask, "masked_gradient"),
        (nq.convert_element_type, np.float32 if dtype == np.float16 else np.float64, "convert"),
    ):
        expected = op(x, other)
        assert kernels.pop() == name
        for place in (0, 1, 13):
            room = np.zeros(n + 32, expected.dtype)
            out = room[place : place + n]
            assert op(x, other, out=out) is out
            assert kernels.pop() == f"{name}_past"
            assert_same(out, expected, place)
            assert not room[:place].any()
            assert not room[place + n :].any()


@pytest.mark.parametrize("fetched", [True, False])
@pytest.mark.parametrize(
    ("read", "written", "lines"),
    [(np.float32, np.float32, 2), (np.float64, np.float64, 4), (np.int8, np.float32, 2)],
)
def test_what_is_made_at_once_past_the_caches(read, written, lines, fetched, monkeypatch):
    """So many lines where they are fetched, and 512 bytes that wait, whether they are or not.

    A line of the cache that is fetched is half a page ahead, on most processors.
    """
    monkeypatch.setattr(segments, "FETCHED_PAST", fetched)
    monkeypatch.setattr(segments, "PAST_AHEAD", 2048)
    asked = []
    monkeypatch.setattr(segments, "fetch", lambda x, first, m: asked.append((first, m)))
    x, y = np.zeros(4000, read), np.zeros(4000, written)
    step, ahead, made = lines * LINE // x.itemsize, 2048 // x.itemsize, []
    wait = 512 // y.itemsize
    fetched = fetched and read != np.int8
    begin = 77
    while begin < 2000:
        m = segments.next_past(x, begin + 9, y, begin, 2000 - begin, lines)
        made.append((begin, m))
        assert 0 < m <= (step if fetched else wait)
        assert begin // wait == (begin + m - 1) // wait
        begin += m
    assert begin == 2000
    assert asked == ([(begin + 9 + ahead, m) for begin, m in made] if fetched else [])
    each = step if fetched else wait
    assert len(made) == -(-2000 // each) - 77 // each


@pytest.mark.parametrize(
    ("read", "written", "past"),
    [
        (np.float32, np.float16, True),
        (np.float32, ml_dtypes.bfloat16, True),
        (np.float16, np.int8, True),
        (np.float32, np.int8, False),
        (np.float64, np.float16, False),
    ],
)
def test_what_is_converted_past_the_caches(read, written, past, kernels, monkeypatch):
    """What has at least half the bytes of the data."""
    monkeypatch.setattr(maps, "PAST", 1)
    x = np.random.default_rng(6).normal(0, 9, PARALLEL_FROM + 99).astype(read)
    expected = nq.convert_element_type(x, written)
    assert_same(expected, oracle.convert_element_type(x, written))
    out = np.empty_like(expected)
    kernels.clear()
    nq.convert_element_type(x, written, out=out)
    assert kernels == ["convert_past" if past else "convert"]
    assert_same(out, expected)


@pytest.mark.parametrize(
    "op",
    [
        nq.fake_quantize_per_tensor_affine_cachemask_backward,
        nq.fake_quantize_per_channel_affine_cachemask_backward,
        nq.fake_quant_per_channel_backward,
    ],
)
def test_a_gradient_is_its_own_out_beside_a_mask_of_fewer_axes(op):
    """Of an array with axes of one the elements are the same whatever the steps along these."""
    grad = np.arange(1.0, 4, dtype=np.float32).reshape(1, 3)
    assert op(grad, np.array([True, False, True]), out=grad) is grad
    assert_same(grad, np.array([[1, 0, 3]], np.float32))
    with pytest.raises(ValueError, match="out must be grad itself or not overlap it"):
        op(grad, np.zeros(3, bool), out=grad[:, ::-1])
    swapped = np.arange(1.0, 4, dtype=np.dtype(np.float32).newbyteorder())
    out = swapped.view(np.float32).reshape(1, 3)  # of the axes of a mask that has more
    assert op(swapped, np.array([[True, False, True]]), out=out) is out
    assert_same(out, np.array([[1, 0, 3]], np.float32))


class Foreign(np.ndarray):
    """An array whose functions and methods are not NumPy's."""

    def __array_function__(self, function, types, args, kwargs):
        raise TypeError(f"no {function.__name__} of these")

    def __array_ufunc__(self, *args, **kwargs):
        raise TypeError("no arithmetic of these")

    def reshape(self, *args, **kwargs):
        raise TypeError("no other shape of these")

    transpose = __getitem__ = reshape


def in_gaps(x):
    return np.zeros((*x.shape, 3), x.dtype)[..., 0]


@pytest.mark.parametrize("lay", [np.zeros_like, lambda x: np.zeros_like(x, order="F"), in_gaps])
@pytest.mark.parametrize("name", WITH_OUT)
@pytest.mark.parametrize("shape", [(4, 8), (64, 512)])
def test_out_of_a_class_of_its_own(name, lay, shape):
    """It is written to as the plain array that it is, and comes back itself."""
    kwargs = arguments(name, shape)
    wanted = results(name, kwargs)[0]
    out = lay(wanted).view(Foreign)
    assert results(name, {**kwargs, "out": out})[0] is out
    assert out.view(np.ndarray).tobytes() == wanted.tobytes()


@pytest.mark.parametrize("name", [name for name in WITH_OUT if "V" in PARAMETERS[name]])
def test_out_of_a_class_of_its_own_beside_swapped_bytes(name):
    """Of which a copy is made: so it is asked whether `out` is apart from what was given."""
    kwargs = arguments(name, (4, 8))
    wanted = results(name, kwargs)[0]
    kwargs["V"] = kwargs["V"].astype(kwargs["V"].dtype.newbyteorder())
    out = np.zeros_like(wanted).view(Foreign)
    assert results(name, {**kwargs, "out": out})[0] is out
    assert out.view(np.ndarray).tobytes() == wanted.tobytes()
