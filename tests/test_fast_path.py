"""Small arrays that are as they mostly are: one kernel, and the bits of those that are not."""

from contextlib import nullcontext
from functools import cache
from math import prod

import ml_dtypes
import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

import npquant as nq
import oracle
from calls import (
    CALLS,
    DATA,
    STATE,
    WITH_OUT,
    arguments,
    everywhere,
    in_order,
    long_way,
    results,
    results_the_long_way,
)
from cases import assert_same
from layouts import unaligned
from npquant import backend, dtypes
from npquant.checks.calls import forget
from npquant.cpu import loops, maps, strided, sums, target
from npquant.cpu.metrics import total
from npquant.cpu.target import PARALLEL_FROM, Kernel
from npquant.ops import fast_choice, fast_path

#: Ops without qparams, which ask for a backend in every call.
OTHERS = {
    "adaround_init",
    "adaround_regularizer",
    "adaround_regularizer_backward",
    "convert_element_type",
    "fake_quant_per_channel_backward",
    "fake_quantize_per_channel_affine_cachemask_backward",
    "fake_quantize_per_tensor_affine_cachemask_backward",
}
OPS = [name for name in CALLS if name not in OTHERS]


def usual(name, shape=(4, 8), axis=0):
    """Return the arguments of a call with qparams as they mostly are: some are not in CALLS."""
    kwargs = arguments(name, shape[:1] if name == "determine_qparams" else shape, axis)
    if "learnable" in name:
        kwargs["scale"] = kwargs["scale"].astype(np.float32)
    if name.endswith("tensor_qparams"):
        kwargs["zero_point"] = np.array([2], np.int32)
    if name.startswith("fused"):
        kwargs.update({key: kwargs[key][:1].copy() for key in STATE}, per_row_fake_quant=False)
    return kwargs


@pytest.mark.parametrize("writeable", [True, False])
@pytest.mark.parametrize("name", OPS)
def test_one_kernel(name, writeable, monkeypatch):
    """What is usual comes to no backend: all was found when the plan was made."""

    def of(x):
        raise AssertionError("the op goes the long way")

    monkeypatch.setattr(backend, "of", of)
    kwargs = usual(name)
    for key, value in kwargs.items():
        if isinstance(value, np.ndarray) and not (name.startswith("fused") and key in STATE):
            value.flags.writeable = writeable
    results(name, kwargs)


@pytest.mark.parametrize(
    "shape", [(4, 8), (600, 8), (3, 700), (2, 3, 20), (36, 32), (5, 48)], ids=str
)
@pytest.mark.parametrize("name", OPS)
def test_bits_of_the_long_way(name, shape):
    if len(shape) > 2 and name.endswith("quantize_per_channel_group"):
        shape = shape[1:]  # which are matrices
    for axis in range(len(shape)):
        kwargs, same = (usual(name, shape, axis) for _ in range(2))
        assert_same(results(name, same), results_the_long_way(name, kwargs))


#: Rows in one block, in several, and in several threads; of an axis that is not the first, too.
ROWS = [
    ((4, 8), 0),
    ((40, 1), 0),
    ((1, 4, 8), 1),
    ((40, 20_000), 0),
    ((20, 3, 1000), 0),
    ((4, 1 << 16), 0),
]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("shape", "axis"), ROWS, ids=str)
@pytest.mark.parametrize("name", [name for name in OPS if name.startswith("fused")])
def test_fused_rows(name, shape, axis, threads, monkeypatch):
    """One kernel sees their ranges and quantizes them; to the bits of one after the other."""
    monkeypatch.setattr(fast_choice, "threads", lambda: threads)
    for options in ({}, {"symmetric_quant": True}, {"observer_on": 0}):
        kwargs, same = (arguments(name, shape, axis) | options for _ in range(2))
        for x in kwargs["input"], same["input"]:
            x.reshape(shape[axis], -1)[-2:, -1] = np.nan, np.inf
        with monkeypatch.context() as patch:
            patch.setattr(backend, "of", None)
            got = results(name, kwargs)
        assert_same(got, results_the_long_way(name, same), options)


@pytest.mark.parametrize("name", [name for name in OPS if name.startswith("fused")])
def test_a_range_that_is_no_number_makes_none(name):
    """Of whatever bits: those of memory full of ones would round to the bfloat16 -0.0."""
    for bits in (0x7FFFFFFF, 0xFFFFFFFF, 0x7FC00000):
        for kwargs in (usual(name), arguments(name, (4, 8), 0)):
            kwargs |= {"observer_on": 0, "input": np.ones((4, 8), dtypes.bfloat16)}
            kwargs["running_min"].view(np.uint32)[...] = bits
            found = getattr(nq, name)(**kwargs)
            y = found[0] if isinstance(found, tuple) else found
            assert np.isnan(y).all(), (bits, kwargs["per_row_fake_quant"])


#: Ops that a layout in memory does not change, but for runs of a row.
ELEMENTWISE = [
    name
    for name in OPS
    if name.startswith(("quantize", "dequantize", "fake_quant", "adaround"))
    and not (name.startswith("fake_quantize_learnable") and name.endswith("_backward"))
    and "group" not in name
    and "dynamic" not in name
]


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_axes_in_another_order(name, monkeypatch):
    """They go the same short way, to results that lie as the data do."""
    shape, order = ((6, 8), (1, 0)) if "token" in name else ((3, 4, 8), (2, 0, 1))
    for axis in range(len(shape)):
        kwargs = usual(name, shape, axis)
        expected = results(name, kwargs)
        for key in DATA:
            if key in kwargs:
                kwargs[key] = in_order(kwargs[key], order)
        with monkeypatch.context() as patch:
            patch.setattr(backend, "of", None)  # which the long way calls
            got = results(name, kwargs)
        assert_same(got, expected, axis)
        assert all(a.transpose(order).flags.c_contiguous for a in got)


#: Ops with a scale for each row, or for each group of one, be it chosen from it.
OF_ROWS = [
    name
    for name in OPS
    if ("token" in name or "group" in name) and not name.endswith(("backward", "dynamic"))
]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("order", [(1, 0, 2), (0, 2, 1), (2, 1, 0), (2, 0, 1)], ids=str)
@pytest.mark.parametrize("name", OF_ROWS)
def test_rows_in_another_order(name, order, threads, monkeypatch):
    """Too many to be packed: their qparams are put into the order of memory, or from there."""
    with everywhere(threads=lambda: threads, PARALLEL_FROM=0):
        shape = (9, 64, 64)
        if name.endswith("quantize_per_channel_group"):  # which are matrices
            shape, order = (300, 64), tuple(i for i in order if i)
            order = tuple(i - 1 for i in order)
        kwargs = usual(name, shape)
        for key in ("scale", "scales"):
            if key in kwargs:
                kwargs[key] = np.linspace(0.1, 0.3, kwargs[key].size, dtype=np.float32).reshape(
                    kwargs[key].shape
                )
        wanted = results(name, kwargs)
        kwargs = laid(kwargs, lambda x: in_order(x, order))
        with monkeypatch.context() as patch:
            # What is torn is searched as it lies.
            if not name.startswith("choose") or order[-1] == 2:
                patch.setattr(backend, "of", None)
            got = results(name, kwargs)
        assert_same(got, wanted)
        if not name.startswith("choose"):
            assert all(a.transpose(order).flags.c_contiguous for a in got)
            for key in ("scale", "scales"):
                if key in kwargs:
                    kwargs[key].reshape(-1)[-1] = np.nan
                    with pytest.raises(ValueError, match="positive and finite"):
                        results(name, kwargs)


#: Ways to lie in memory, but for C order: dense ones, and those whose results lie in C order.
DENSE = {
    "Fortran": np.asfortranarray,
    "turned": lambda x: in_order(x, np.roll(range(x.ndim), 1)),
    "unaligned and turned": lambda x: in_order(unaligned(x), range(x.ndim)[::-1]),
}
LYING = DENSE | {
    "steps": lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
    "rows": lambda x: np.repeat(x, 2, axis=0)[::2],
    "backward": lambda x: x[..., ::-1].copy()[..., ::-1],
    "broadcast": lambda x: np.broadcast_to(x[:1].copy(), x.shape),
    "unaligned": lambda x: unaligned(x),
}


def laid(kwargs, lay, keys=DATA):
    """The same with some of the data lying so; of one byte nothing is unaligned."""
    return kwargs | {key: lay(kwargs[key]) for key in keys if key in kwargs}


def assert_same_and_alike(got, wanted, note=""):
    assert_same(got, wanted, note)
    assert [a.strides for a in got] == [a.strides for a in wanted], note


@pytest.mark.parametrize("how", LYING)
@pytest.mark.parametrize("name", OPS)
def test_small_arrays_of_any_layout(name, how, monkeypatch):
    """They come to no backend, to the bits and strides of the long way."""
    shapes = [(4, 8), (1, 8), (40, 24), (3, 4, 8), (3, 1, 8), (2, 1, 3, 8)]
    for shape in shapes:
        if len(shape) > 2 and name.endswith("quantize_per_channel_group"):
            continue
        kwargs, same = (laid(usual(name, shape), LYING[how]) for _ in range(2))
        with monkeypatch.context() as patch:
            patch.setattr(backend, "of", None)  # which the long way calls
            got = results(name, kwargs)
        assert_same_and_alike(got, results_the_long_way(name, same), shape)


@pytest.mark.parametrize("name", [name for name in OPS if name.startswith("fused")])
@pytest.mark.parametrize("how", LYING)
def test_small_rows_of_any_layout(name, how, monkeypatch):
    kwargs, same = (laid(arguments(name, (6, 3, 8)), LYING[how]) for _ in range(2))
    with monkeypatch.context() as patch:
        patch.setattr(backend, "of", None)
        got = results(name, kwargs)
    assert_same_and_alike(got, results_the_long_way(name, same))


@pytest.mark.parametrize(
    "name", [name for name in OPS if sum(key in usual(name) for key in DATA) > 1]
)
def test_small_arrays_that_lie_differently(name, monkeypatch):
    """Results lie as the input does, whatever is beside it."""
    for shape in ((8,),) if name == "determine_qparams" else ((4, 8), (3, 4, 8)):
        for lay in LYING.values():
            for key in [k for k in DATA if k in usual(name, shape)]:
                kwargs, same = (laid(usual(name, shape), lay, [key]) for _ in range(2))
                with monkeypatch.context() as patch:
                    patch.setattr(backend, "of", None)
                    got = results(name, kwargs)
                assert_same_and_alike(got, results_the_long_way(name, same), key)


@pytest.mark.parametrize("name", sorted(OTHERS))
def test_small_arrays_of_ops_that_ask_for_a_backend(name, monkeypatch):
    """Their kernels pack them at once too, in C order."""
    for shape in ((4, 8), (40, 24), (3, 4, 8)):
        for how, lay in LYING.items():
            kwargs = laid(arguments(name, shape), lay)
            wanted = results(name, laid(kwargs, np.ascontiguousarray))
            if how in DENSE and name != "adaround_regularizer":
                wanted = tuple(in_order(a, np.argsort(kwargs[key_of(name)].strides)[::-1])
                               for a in wanted)  # fmt: skip
            if how not in ("unaligned", "unaligned and turned"):
                monkeypatch.setattr(loops, "pieces", None)
                monkeypatch.setattr(maps, "pieces", None)
            monkeypatch.setattr(sums, "channel_pieces", None)
            assert_same_and_alike(results(name, kwargs), wanted, (shape, how))
            monkeypatch.undo()


@pytest.mark.parametrize("how", LYING)
def test_small_sums_are_in_c_order(how):
    """Of numbers whose sum in another order has other bits."""
    x = LYING[how](np.random.default_rng(0).normal(size=(40, 24)))
    assert total((x,)) == total((np.ascontiguousarray(x),))
    assert how not in DENSE or total((x,)) != total((x.ravel("K"),))


def key_of(name):
    return next(key for key in ("input", "grad", "V") if key in CALLS[name](np.ones((4, 4)), 0))


@pytest.mark.parametrize("name", ["choose_qparams"])
def test_most_that_is_packed(name, monkeypatch):
    """What is larger goes the long way, which makes no copy of it."""
    asked, of = [], backend.of
    monkeypatch.setattr(backend, "of", lambda x: asked.append(x) or of(x))
    for rows in (fast_path.PIECE // 16, fast_path.PIECE // 16 + 1):
        results(name, laid(usual(name, (rows, 16)), LYING["steps"]))
        assert bool(asked) == (rows * 16 > fast_path.PIECE)


ELEMENTWISE = [
    name
    for name in OPS
    if name.startswith("adaround")
    or ("quant" in name and "fused" not in name and not name.endswith(("backward", "dynamic")))
]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("how", ["steps", "rows", "backward", "broadcast"])
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_large_data_with_gaps(name, how, threads, monkeypatch):
    """More than is packed: one kernel reads them as they lie, to the bits of a copy."""
    monkeypatch.setattr(target, "threads", lambda: threads)
    kwargs = laid(usual(name, (300, 520)), LYING[how])
    wanted = results(name, laid(kwargs, np.ascontiguousarray))
    monkeypatch.setattr(backend, "of", None)
    assert_same_and_alike(results(name, kwargs), wanted)
    if "V" in kwargs:  # which may lie otherwise beside the input
        for lay in (np.ascontiguousarray, np.asfortranarray):
            assert_same_and_alike(results(name, laid(kwargs, lay, ["V"])), wanted)


def test_wrong_qparams_of_large_data_with_gaps():
    """They are looked at, as those of other data."""
    x, wrong = np.ones((130, 272), np.float32)[:, ::-2], (0.0, -1.0, np.inf, np.nan)
    scale, zero_point = np.ones(130, np.float32), np.zeros(130, np.int32)
    for s in wrong:
        with pytest.raises(ValueError, match="scale must be positive and finite"):
            nq.quantize_per_tensor(x, s, 0, -8, 7, np.int8)
        scale[-1] = s
        with pytest.raises(ValueError, match="scale must be positive and finite"):
            nq.fake_quantize_per_channel_affine(x, scale, zero_point, 0, -8, 7)
    for s in (*wrong, 1e-46, 1e39):
        with pytest.raises(ValueError, match="scale must be positive and finite"):
            nq.fake_quantize_per_tensor_affine(x, s, 0, -8, 7)
    scale[-1], zero_point[-1] = 1, 8
    with pytest.raises(ValueError, match=r"zero_point must lie within -8\.\.7, got 8"):
        nq.fake_quantize_per_channel_affine(x, scale, zero_point, 0, -8, 7)
    with pytest.raises(ValueError, match="zero_point"):
        nq.fake_quantize_per_tensor_affine(x, 1.0, 8, -8, 7)


@pytest.mark.parametrize("lay", [np.copy, lambda x: np.repeat(x, 2, axis=1)[:, ::2]])
@pytest.mark.parametrize("length", [8, 512, 600])
def test_numbers_are_no_scales_of_rows(length, lay):
    """Though the classes float and int equal the dtypes of scales that are arrays."""
    x = lay(np.ones((17_000 // length * 2, length), np.float32))
    for op, *rest in (
        (nq.quantize_per_token,), (nq.quantize_per_channel_group, 8),
        (nq.dequantize_per_channel,),
    ):  # fmt: skip
        args: tuple = (x, 0.1, 0, -128, 127, np.int8, *rest)
        kwargs = {}
        if op is nq.dequantize_per_channel:
            args, kwargs = (lay(x.astype(np.int8)), 0.1, 0, 0, *args[3:]), {"out_dtype": np.float64}
        with pytest.raises(ValueError, match=r"scales must have the shape .* got \(\)"):
            op(*args, **kwargs)


@pytest.mark.parametrize("how", LYING)
@pytest.mark.parametrize("name", [n for n in WITH_OUT if n in OPS])
def test_out_of_small_arrays_of_any_layout(name, how, monkeypatch):
    kwargs = laid(usual(name), LYING[how])
    (wanted,) = results(name, kwargs)
    out = np.empty(wanted.shape, wanted.dtype)
    with monkeypatch.context() as patch:
        patch.setattr(backend, "of", None)
        assert getattr(nq, name)(**kwargs, out=out) is out
    assert_same(out, wanted)


def test_out_within_the_memory_of_small_arrays():
    """What is packed is not what `out` must be apart from."""
    room = np.ones(17, np.float32)
    for x, out in ((room[::2], room[:9]), (room[1::2], room[8:16]), (room[7::-1], room[:8])):
        with pytest.raises(ValueError, match="out must be input itself or not overlap it"):
            nq.fake_quantize_per_tensor_affine(x, 2.0, 0, -8, 7, out=out)
        assert (room == 1).all()
    x = np.ones(8, np.float32)
    with pytest.raises(ValueError, match="out must be apart from V"):
        nq.adaround_hard(x, room[:16:2], 0.5, 0, -8, 7, out=room[:8])
    assert (room == 1).all()


def test_state_within_the_memory_of_small_arrays():
    """No kernel sees of a copy what memory it was of."""
    for rows in (False, True):
        n = 4 if rows else 1
        for place, key in enumerate(STATE):
            room = np.ones((4, 16), np.int32 if key == "zero_point" else np.float32)
            kwargs = arguments("fused_moving_avg_obs_fake_quant", (4, 8))
            kwargs |= {k: kwargs[k][:n].copy() for k in STATE}
            kwargs |= {"input": room.view(np.float32)[:, ::2], "per_row_fake_quant": rows}
            kwargs[key] = room[0, 8 : 8 + n]
            before = room.copy()
            with pytest.raises(ValueError, match=f"{key} must be apart from input"):
                nq.fused_moving_avg_obs_fake_quant(**kwargs)
            assert (room == before).all(), place


def test_what_is_found_once_is_not_kept_for_ever():
    """Strides may be many: those of slices of arrays of many lengths."""
    found = fast_path.Entries(lambda n: -n)
    assert [found[n] for n in range(1000)] == [-n for n in range(1000)]
    assert len(found) <= 64


PER_CHANNEL = (
    "quantize_per_channel",
    "dequantize_per_channel",
    "fake_quantize_per_channel_affine",
    "fake_quantize_per_channel_affine_cachemask",
    "fake_quantize_learnable_per_channel_affine",
    "adaround_hard",
)
OF_ONE_SCALE = (
    "quantize_per_tensor",
    "dequantize_per_tensor",
    "fake_quantize_per_tensor_affine",
    "fake_quantize_per_tensor_affine_cachemask",
)
#: Long runs, whole runs, and channels side by side, of more than one thread's work.
LARGE = [((70, 4096), 0), ((300, 28, 32), 1), ((4400, 65), 1)]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("shape", "axis"), LARGE, ids=str)
def test_large_arrays(shape, axis, threads, monkeypatch):
    """They go the same short way, where there are several threads to these."""
    asked, of, to_several, run = [], backend.of, [], Kernel.__call__
    monkeypatch.setattr(backend, "of", lambda x: asked.append(x) or of(x))
    monkeypatch.setattr(fast_path, "threads", lambda: threads)
    monkeypatch.setattr(
        Kernel, "__call__", lambda self, *args: to_several.append(args[0]) or run(self, *args)
    )
    assert prod(shape) >= PARALLEL_FROM
    for name in (*PER_CHANNEL, *OF_ONE_SCALE):
        kwargs, same = (usual(name, shape, axis) for _ in range(2))
        got = results(name, kwargs)
        assert not asked, name
        assert len(to_several) == threads - 1, name
        assert_same(got, results_the_long_way(name, same), name)
        assert asked, name
        asked.clear()
        to_several.clear()


@pytest.mark.parametrize("threads", [1, 2])
def test_large_gradients(threads, monkeypatch):
    """They go the same short way, from 64 Ki elements on in several threads, if there are these."""
    asked, of, to_several, run = [], backend.of, [], Kernel.__call__
    monkeypatch.setattr(backend, "of", lambda x: asked.append(x.size) or of(x))
    monkeypatch.setattr(sums, "threads", lambda: threads)
    monkeypatch.setattr(
        Kernel, "__call__", lambda self, *args: to_several.append(self.name) or run(self, *args)
    )
    least = PARALLEL_FROM // 4
    shapes = (least // 256, 256), (least // 256 - 1, 256), (120, 70, 32), (4000, 65), (9, 9000)
    for shape, axis in zip(shapes, (0, 0, 1, 1, 0), strict=True):
        for kind in ("tensor", "channel"):
            if kind == "tensor" and shape == (9, 9000):  # rows of several tiles
                continue
            name = f"fake_quantize_learnable_per_{kind}_affine_backward"
            kwargs, same = (usual(name, shape, axis) for _ in range(2))
            got = results(name, kwargs)
            assert not asked, shape
            to_all = [kernel for kernel in to_several if kernel != "sums_of_tiles"]
            assert len(to_all) == (threads > 1 and prod(shape) >= least), shape
            assert_same(got, results_the_long_way(name, same), shape)
            asked.clear()
            to_several.clear()


def whose_terms_cancel(shape, axis, dtype=np.float32):
    """A learnable backward: what is left of its sums is what rounding left, in the order it had."""
    rng = np.random.default_rng(16)
    channels = 1 if axis is None else shape[axis]
    x = rng.normal(size=(channels, prod(shape) // channels)).astype(np.float32)
    g = np.ldexp(rng.normal(size=x.shape).astype(np.float32), rng.integers(-30, 30, x.shape))
    half = x.shape[1] // 2
    order = rng.permutation(half)
    x[:, half : 2 * half], g[:, half : 2 * half] = x[:, order], -g[:, order]
    if x.shape[1] % 2:
        g[:, -1] = 0
    if axis is not None:  # each channel to its place
        there = (shape[axis], *shape[:axis], *shape[axis + 1 :])
        x, g = (np.moveaxis(a.reshape(there), 0, axis).copy() for a in (x, g))
    most = float(ml_dtypes.finfo(dtype).max)
    x, g = (a.reshape(shape).astype(float).clip(-most, most).astype(dtype) for a in (x, g))
    scale, zero_point = (np.linspace(v, v + 0.1, channels, dtype=np.float32) for v in (0.3, 1.2))
    kind, last = ("tensor", (-8, 7)) if axis is None else ("channel", (axis, -8, 7))
    name = f"fake_quantize_learnable_per_{kind}_affine_backward"
    return name, (g, x, scale, zero_point, *last)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("shape", "axis"), [
    ((4096,), None), ((4097,), None), ((9000,), None), ((257 * 4096 + 9000,), None),
    ((5000, 1), None), ((256, 256), None), ((700, 8, 40), None), ((300, 4096), None),
    ((1, 9000), 0), ((5, 9000), 0), ((9000, 3), 1), ((4100, 70), 1), ((3, 6000, 3), 2),
    ((200, 4, 32), 1), ((300, 7, 9), 1),
])  # fmt: skip
def test_gradients_of_several_tiles(shape, axis, threads, monkeypatch):
    monkeypatch.setattr(sums, "threads", lambda: threads)
    monkeypatch.setattr(target, "PARALLEL_FROM", 0)
    monkeypatch.setattr(sums, "PARALLEL_FROM", 0)
    forget()
    name, args = whose_terms_cancel(shape, axis)
    with monkeypatch.context() as patch:
        patch.setattr(backend, "of", None)  # which the long way calls
        got = getattr(nq, name)(*args)
    assert_same(got, getattr(oracle, name)(*args))
    assert np.count_nonzero(got[1]) > got[1].size // 2  # or every order would do
    _, _, scale, zero_point, *_ = args
    for qparam in (scale, zero_point):
        right, qparam[-1] = qparam[-1], np.nan
        with pytest.raises(ValueError, match=r"(scale|zero_point) must be"):
            getattr(nq, name)(*args)
        qparam[-1] = right
    forget()


@pytest.mark.parametrize("dtype", [np.float16, dtypes.bfloat16, np.float64], ids=str)
@pytest.mark.parametrize(("shape", "axis"), [((9000,), None), ((300, 260), None), ((5, 9000), 0)])
def test_gradients_of_several_tiles_of_a_dtype(shape, axis, dtype, monkeypatch):
    """And of codes beyond float32, and with the zero point of the forward."""
    name, args = whose_terms_cancel(shape, axis, dtype)
    *most, _, _ = args
    monkeypatch.setattr(backend, "of", None)
    for bounds in ((-8, 7), (-(2**30), 2**30)):
        for rounding in ("pytorch", "nearest"):
            got = getattr(nq, name)(*most, *bounds, zero_point_rounding=rounding)
            expected = getattr(oracle, name)(*most, *bounds, zero_point_rounding=rounding)
            assert_same(got, expected, (bounds, rounding))


@pytest.mark.parametrize("shape", [(7, 9000), (8192, 257), (8200, 257)], ids=str)
def test_gradients_of_longer_rows_and_of_more(shape):
    """Of several tiles each, and of more than are done at a time: all but one go the long way."""
    name, args = whose_terms_cancel(shape, None)
    got = getattr(nq, name)(*args)
    assert_same(got, getattr(oracle, name)(*args))
    assert np.count_nonzero(got[1])


@pytest.mark.parametrize("step", [1, 3, -7, 2**40])
@pytest.mark.parametrize("shape", [(1, 2, 5000), (2, 1, 5000), (1, 3, 20_000)])
def test_gradients_of_data_with_any_step_along_an_axis_of_one(shape, step):
    """As those of a field of one record have: for NumPy the array is contiguous."""
    name, (grad, x, *rest) = whose_terms_cancel(shape, None)
    strides = [step if n == 1 else s for n, s in zip(shape, x.strides, strict=True)]
    stepping = as_strided(x, strides=strides)
    assert stepping.flags.c_contiguous
    assert strided.aligned(stepping)  # and is taken as it lies
    op = getattr(nq, name)
    assert_same(op(grad, stepping, *rest), op(grad, x, *rest))


def of_rows(kind, *shape, inner):
    """The same per token or per group of so many elements."""
    _, (g, x, scale, zero_point, *_) = whose_terms_cancel((prod(shape) // inner, inner), 0)
    g, x = (a.reshape(shape) for a in (g, x))
    scale, zero_point = (a.reshape(*shape[:-1], -1) for a in (scale, zero_point))
    last = (-8, 7) if kind == "token" else (-8, 7, inner)
    return f"fake_quantize_learnable_per_{kind}_affine_backward", (g, x, scale, zero_point, *last)


#: Learnable backwards of 20 Ki elements and more, in which sums are made of every kind of lines.
BACKWARDS = {
    "rows": whose_terms_cancel((70, 300), None),
    "rows of several axes": whose_terms_cancel((40, 6, 90), None),
    "rows of several tiles": whose_terms_cancel((5, 9000), None),
    "one row": whose_terms_cancel((1, 20_000), None),
    "first axis": whose_terms_cancel((70, 300), 0),
    "middle axis": whose_terms_cancel((20, 30, 40), 1),
    "last axis": whose_terms_cancel((4100, 5), 1),
    "many on the last axis": whose_terms_cancel((70, 300), 1),
    "tokens": of_rows("token", 10, 7, 300, inner=300),
    "tokens of several tiles": of_rows("token", 3, 2, 9000, inner=9000),
    "groups": of_rows("channel_group", 70, 320, inner=64),
}


@cache
def gradients(which, *broadcast):
    """What the oracle has of one of these. How data lie is nothing to it, but what is broadcast."""
    name, (grad, x, *rest) = BACKWARDS[which]
    some = LYING["broadcast"]
    data = [some(a) if it else a for a, it in zip((grad, x), broadcast, strict=True)]
    return getattr(oracle, name)(*data, *rest)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("how", LYING)
@pytest.mark.parametrize("which", BACKWARDS)
def test_gradients_of_any_layout(which, how, threads, monkeypatch):
    """One call of a kernel, which takes them as they lie, and what adds its tiles."""
    monkeypatch.setattr(target, "threads", lambda: threads)
    monkeypatch.setattr(sums, "threads", lambda: threads)
    monkeypatch.setattr(target, "PARALLEL_FROM", 0)
    monkeypatch.setattr(sums, "PARALLEL_FROM", 0)
    forget()
    name, (grad, x, *rest) = BACKWARDS[which]
    lay, flat = LYING[how], np.ascontiguousarray
    for laid in ((True, False), (False, True), (True, True)):
        data = [lay(a) if it else flat(a) for a, it in zip((grad, x), laid, strict=True)]
        expected = gradients(which, *(it and how == "broadcast" for it in laid))
        with long_way():
            in_pieces = getattr(nq, name)(*data, *rest)
        with monkeypatch.context() as patch:
            if "unaligned" not in how and not ("tiles" in which and how in DENSE):
                patch.setattr(backend, "of", None)  # which the long way calls
            got = getattr(nq, name)(*data, *rest)
        assert_same(got, expected)
        assert_same_and_alike(got, in_pieces)
    forget()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("rows", [3, 8])
def test_gradients_of_groups_of_long_rows_that_cross_memory(rows, threads, monkeypatch):
    """Such rows are cut into tiles, but not where a tile is of several groups."""
    monkeypatch.setattr(target, "threads", lambda: threads)
    monkeypatch.setattr(sums, "threads", lambda: threads)
    name, (grad, x, *rest) = of_rows("channel_group", rows, 8192, inner=64)
    expected = getattr(nq, name)(grad, x, *rest)
    turned = [np.asfortranarray(a) for a in (grad, x)]
    apart = [np.repeat(a, 2, axis=0)[::2] for a in turned]  # with gaps
    for data in (turned, apart, (apart[0], turned[1]), (turned[0], apart[1])):
        assert_same(getattr(nq, name)(*data, *rest), expected)


@pytest.mark.parametrize("which", ["rows", "middle axis", "tokens"])
def test_wrong_qparams_of_gradients_of_any_layout(which):
    name, (grad, x, scale, zero_point, *rest) = BACKWARDS[which]
    data = [LYING["rows"](a) for a in (grad, x)]
    getattr(nq, name)(*data, scale, zero_point, *rest)
    for place, wrongs in ((0, (0.0, -1.0, np.inf, np.nan)), (1, (np.nan,))):
        for wrong in wrongs:
            qparams = [scale.copy(), zero_point.copy()]
            qparams[place][-1] = wrong
            with pytest.raises(ValueError, match=("scale", "zero_point")[place]):
                getattr(nq, name)(*data, *qparams, *rest)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("shape", "axis"), LARGE, ids=str)
def test_wrong_qparams_of_large_arrays(shape, axis, threads, monkeypatch):
    """They are looked at before anything is written."""
    monkeypatch.setattr(fast_path, "threads", lambda: threads)
    n = shape[axis]
    x, out = np.ones(shape, np.float32), np.zeros(shape, np.float32)
    scale, zero_point = np.ones(n, np.float32), np.zeros(n, np.int32)
    scale[-1] = np.nan
    with pytest.raises(ValueError, match="scale must be positive and finite"):
        nq.fake_quantize_per_channel_affine(x, scale, zero_point, axis, -8, 7, out=out)
    assert not out.any()
    scale[-1], zero_point[-1] = 1, 8
    with pytest.raises(ValueError, match=r"zero_point must lie within -8\.\.7, got 8"):
        nq.fake_quantize_per_channel_affine(x, scale, zero_point, axis, -8, 7, out=out)
    assert not out.any()


@pytest.mark.parametrize("name", [name for name in OPS if name.startswith("fused")])
def test_state_without_axes(name):
    """It may be of two shapes, and of both in one call."""
    wanted = results(name, usual(name))
    for several in (STATE, STATE[2:], STATE[:1], STATE[3:]):
        kwargs = usual(name)
        kwargs.update({key: kwargs[key].reshape(()) for key in several})
        got = results(name, kwargs)
        assert_same(tuple(a.reshape(b.shape) for a, b in zip(got, wanted, strict=True)), wanted)


@pytest.mark.parametrize("way", [nullcontext, long_way])
@pytest.mark.parametrize("shape", [(3, 4), (300, 3), (20, 32), (20, 48)], ids=str)
def test_qparams_that_become_wrong(shape, way):
    """Both ways look at every value in every call, also of channels side by side."""
    x = np.ones(shape, np.float32)
    x.flags.writeable = False
    with way():
        all_are_looked_at(x)


def all_are_looked_at(x):
    shape = x.shape
    for axis in range(2):
        n = shape[axis]
        scale, zero_point, out = np.ones(n, np.float32), np.zeros(n, np.int32), np.zeros_like(x)
        args = x, scale, zero_point, axis, -8, 7
        nq.fake_quantize_per_channel_affine(*args)
        for wrong in (-9, 8):
            zero_point[n - 1] = wrong
            with pytest.raises(ValueError, match=f"zero_point must lie within -8..7, got {wrong}"):
                nq.fake_quantize_per_channel_affine(*args, out=out)
        zero_point[n - 1] = 7
        for wrong in (np.nan, np.inf, 0, -1):
            scale[n - 1] = wrong
            with pytest.raises(ValueError, match="scale must be positive and finite"):
                nq.fake_quantize_per_channel_affine(*args, out=out)
        assert not out.any()


def test_numbers_beyond_floats():
    x = np.ones(4, np.float32)
    for wrong in (10**400, -(10**400), 8):
        with pytest.raises(ValueError, match="zero_point must lie within"):
            nq.adaround_soft(x, x, 0.5, wrong, -8, 7)
    for where in ({"axis": 0}, {"group_size": 2}):
        with pytest.raises(ValueError, match="must have the shape"):
            nq.adaround_soft(x, x, 0.5, 0, -8, 7, **where)
    for scale in (0.0, -1.0, 1e-60, 1e60, float("nan")):
        with pytest.raises(ValueError, match="scale must be positive and finite in float32"):
            nq.adaround_soft(x, x, scale, 0, -8, 7)


#: Ops whose qparams come in arrays, and kinds that they have a short way for.
IN_ARRAYS = [name for name in PER_CHANNEL if name != "adaround_hard"] + [
    "quantize_per_token",
    "dequantize_per_token",
    "quantize_per_channel_group",
    "dequantize_per_channel_group",
]


@pytest.mark.parametrize("shape", [(8, 16), (4, 4), (64, 4096)], ids=str)
@pytest.mark.parametrize("name", IN_ARRAYS)
def test_numbers_where_arrays_belong(name, shape):
    """`float` equals float64's dtype, and `int` int64's: but these qparams have no shape."""
    kwargs = usual(name, shape)
    scale, zero_point = (key for key in kwargs if key.startswith(("scale", "zero_point")))
    wide = {scale: np.float64, zero_point: np.int64}
    kwargs |= {key: kwargs[key].astype(kind) for key, kind in wide.items()}
    if "fake" not in name:
        results(name, kwargs)  # and the short way for these is there
    for wrong in (0.5, -1.0, float("nan")):
        with pytest.raises(ValueError, match=f"({scale}|{zero_point}) must have the shape"):
            results(name, kwargs | {scale: wrong, zero_point: 0})


#: Of those, what takes the integers of codes.
OF_CODES = [name for name in IN_ARRAYS if "learnable" not in name]


@pytest.mark.parametrize("kind", ["int8", "uint8", "int16", "uint16", "uint32", "int64"])
@pytest.mark.parametrize("name", OF_CODES)
def test_integers_of_any_width(name, kind, monkeypatch):
    """A few zero points are taken as int32 at once, if it holds them."""
    kwargs = usual(name, (8, 16))
    (key,) = (key for key in kwargs if key.startswith("zero_point"))
    kwargs[key] = kwargs[key].clip(0, 100).astype(kind)
    wanted = results_the_long_way(name, kwargs)
    with monkeypatch.context() as patch:
        patch.setattr(backend, "of", lambda x: pytest.fail("the op goes the long way"))
        assert_same(results(name, kwargs), wanted)
    if kind not in ("uint32", "int64"):
        return
    for wrong in (2**31, 2**32 - 1) if kind == "uint32" else (2**32, -(2**31) - 1, 2**63 - 1):
        kwargs[key][-1] = wrong
        with long_way():
            wanted = outcome(results, name, kwargs)
        got = outcome(results, name, kwargs)
        if isinstance(wanted, str):
            assert got == wanted
        else:
            assert_same(got, wanted)


#: Ops of channels that use scales in float32.
IN_FLOAT32 = [name for name in PER_CHANNEL if name != "quantize_per_channel"] + [
    "fake_quant_per_channel",
    "adaround_soft",
]


@pytest.mark.parametrize("kind", ["float64", "float16", "bfloat16"])
@pytest.mark.parametrize("name", IN_FLOAT32)
def test_scales_of_any_precision(name, kind, monkeypatch):
    """A few scales are taken as float32 at once; what that makes 0 or infinite is refused."""
    kwargs = usual(name, (8, 16))
    (key,) = (key for key in kwargs if key.startswith("scale"))
    kwargs[key] = np.array([0.1, 0.3, 1 / 7, 5, 0.01, 1, 2, 3]).astype(np.dtype(kind))
    wanted = results_the_long_way(name, kwargs)
    with monkeypatch.context() as patch:
        patch.setattr(backend, "of", lambda x: pytest.fail("the op goes the long way"))
        assert_same(results(name, kwargs), wanted)
    for wrong in (7e-46, 8e-46, 3.4028235e38, 3.5e38, np.inf, np.nan, 0.0, -1.0):
        with np.errstate(over="ignore", under="ignore"):
            kwargs[key][-1] = wrong
        with long_way():
            wanted = outcome(results, name, kwargs)
        got = outcome(results, name, kwargs)
        assert isinstance(got, str) or wrong in (8e-46, 3.4028235e38)
        if isinstance(wanted, str):
            assert got == wanted
        else:
            assert_same(got, wanted)


GRADIENTS = [name for name in CALLS if "learnable" in name and name.endswith("backward")]


@pytest.mark.parametrize("kinds", [("float64", "float64"), ("bfloat16", "float16")], ids=str)
@pytest.mark.parametrize("shape", [(4, 8), (2, 5000), (64, 1024)], ids=str)
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_of_learned_qparams_of_any_precision(name, shape, kinds, monkeypatch):
    """Each is rounded once, to the dtype of its parameter; of one tile, of several, in threads."""
    kwargs = usual(name, shape)
    for key, kind in zip(("scale", "zero_point"), kinds, strict=True):
        kwargs[key] = (kwargs[key] * 1.1).astype(np.dtype(kind))
    wanted = results_the_long_way(name, kwargs)
    assert [y.dtype for y in wanted[1:]] == [np.dtype(kind) for kind in kinds]
    with monkeypatch.context() as patch:
        patch.setattr(backend, "of", lambda x: pytest.fail("the op goes the long way"))
        assert_same(results(name, kwargs), wanted)
    for key, wrong in (("scale", 0.0), ("scale", np.nan), ("zero_point", np.nan)):
        kept = kwargs[key].copy()
        kwargs[key].reshape(-1)[-1] = wrong
        with pytest.raises(ValueError, match=f"{key} must be"):
            results(name, kwargs)
        kwargs[key] = kept
    if kinds[0] == "float64":
        kwargs["scale"].reshape(-1)[-1] = 7e-46  # which rounds to 0
        with pytest.raises(ValueError, match="scale must be positive and finite in float32"):
            results(name, kwargs)


@pytest.mark.parametrize("zeros", ["int64", "int32", "uint8"])
def test_scales_of_float64_are_kept(zeros, monkeypatch):
    """To quantize: their reciprocals make other codes than those of float32."""
    scale, zero_point = np.arange(1, 9) / 700, np.arange(8).astype(zeros)
    x = ((np.arange(-50, 50) + 0.5) * scale[:, None]).astype(np.float32)  # as near to ties
    kwargs = {"input": x, "scales": scale, "zero_points": zero_point, "axis": 0}
    kwargs |= {"quant_min": -128, "quant_max": 127, "dtype": np.int8}
    wanted = results_the_long_way("quantize_per_channel", kwargs)
    assert_same(wanted[0], oracle.quantize_per_channel(**kwargs))
    rounded = kwargs | {"scales": scale.astype(np.float32)}
    assert (wanted[0] != oracle.quantize_per_channel(**rounded)).any()
    with monkeypatch.context() as patch:
        patch.setattr(backend, "of", lambda x: pytest.fail("the op goes the long way"))
        assert_same(results("quantize_per_channel", kwargs), wanted)


#: Dtypes of scales and zero points that are kept, and of the floats that they are used with.
KEPT = [
    ("bfloat16", "int32", "bfloat16"),
    ("bfloat16", "int64", "float32"),
    ("bfloat16", "bfloat16", "bfloat16"),
    ("float16", "int32", "bfloat16"),
    ("float16", "float16", "float32"),
    ("float64", "float64", "float32"),
    ("float64", "float64", "float64"),
    ("float32", "int32", "float64"),
]


@pytest.mark.parametrize("kinds", KEPT, ids="-".join)
@pytest.mark.parametrize("name", [n for n in IN_ARRAYS if n.startswith(("quantize", "dequantize"))])
def test_qparams_that_are_kept(name, kinds, monkeypatch):
    """Of ties, and of zero points between codes, to the bits of the long way and the oracle."""
    rng = np.random.default_rng(7)
    scale_dtype, zero_dtype, dtype = (dtypes.canonical(kind, "kind") for kind in kinds)
    kwargs = usual(name, (8, 16))
    shape = kwargs["scales"].shape
    s = kwargs["scales"] = np.exp(rng.uniform(-4, 2, shape)).astype(scale_dtype)
    z = rng.integers(-100, 100, shape) + rng.choice([0, 0.3], shape) * (zero_dtype.kind != "i")
    kwargs["zero_points"] = z.astype(zero_dtype)
    if name.startswith("dequantize"):
        kwargs["input"] = rng.integers(-128, 127, (8, 16), dtype=np.int8, endpoint=True)
        kwargs["out_dtype" if name == "dequantize_per_channel" else "output_dtype"] = dtype
    else:
        steps = np.repeat(s.reshape(8, -1).astype(np.float64), 16 * 8 // s.size, axis=1)
        kwargs["input"] = ((rng.integers(-150, 150, (8, 16)) + 0.5) * steps).astype(dtype)
    wanted = results_the_long_way(name, kwargs)
    assert_same(wanted[0], getattr(oracle, name)(**kwargs))
    # Differences of fractions with codes, in two bytes, are another kernel's than those of codes.
    if name == "dequantize_per_channel" and kinds[1:] == ("bfloat16", "bfloat16"):
        return
    with monkeypatch.context() as patch:
        patch.setattr(backend, "of", lambda x: pytest.fail("the op goes the long way"))
        assert_same(results(name, kwargs), wanted)
    for key, wrong in (("scales", 0), ("scales", np.inf), ("zero_points", np.nan)):
        if kwargs[key].dtype.kind == "i":
            continue
        kept = kwargs[key].copy()
        kwargs[key].reshape(-1)[-1] = wrong
        with pytest.raises(ValueError, match=f"{key} must be"):
            results(name, kwargs)
        kwargs[key] = kept


@pytest.mark.parametrize("masked", ["", "_cachemask"])
@pytest.mark.parametrize("rounding", ["reciprocal", "divide"])
@pytest.mark.parametrize("zeros", ["float32", "float16"])
def test_zero_points_that_are_not_rounded(zeros, rounding, masked, monkeypatch):
    """Those of fake quantize that are floats, beside scales of any."""
    name = "fake_quantize_per_channel_affine" + masked
    kwargs = usual(name, (8, 16)) | {"rounding": rounding}
    scale = (np.arange(1, 9) / 7).astype(np.float32)
    # Of each row one sum is half way between integers, if the product is rounded before.
    product = kwargs["input"][:, 0] * (np.float32(1) / scale)
    kwargs["zero_point"] = (np.float32(3.5) - product).astype(zeros)
    for kind in (np.float32, np.float64):
        kwargs["scale"] = scale.astype(kind)
        wanted = results_the_long_way(name, kwargs)
        found = getattr(oracle, name)(**kwargs)
        assert_same(wanted, found if masked else (found,))
        with monkeypatch.context() as patch:
            patch.setattr(backend, "of", lambda x: pytest.fail("the op goes the long way"))
            assert_same(results(name, kwargs), wanted)
    for wrong in (np.nan, np.inf):
        kwargs["zero_point"][-1] = wrong
        with pytest.raises(ValueError, match="zero_point must be finite"):
            results(name, kwargs)


def test_arrays_where_numbers_belong():
    """The other way round: one scale and one zero point, wider than those of codes."""
    x = np.ones((8, 16), np.float32)
    for scale in (1e300, 1e-50, -1.0, np.nan):
        with pytest.raises(ValueError, match="scale must be positive and finite in float32"):
            nq.adaround_hard(x, x, np.array([scale]), np.array([0]), -8, 7)


def outcome(op, *args):
    """Return what a call returns, or its error."""
    try:
        return op(*args)
    except ValueError as error:
        return str(error)


#: What may hold a number.
FORMS = [
    lambda v: v,
    lambda v: np.array(v)[()],
    lambda v: np.array([v]),
    lambda v: np.array(v),
    lambda v: np.array([[v]]),
]
#: Scales whose float32 or whose reciprocal is subnormal, zero or infinite, and some that are wrong.
NUMBERS = [0.1, 3.0, 1e-40, 1e-46, 3e38, 1e39, 1e300, 5e-324, 0.0, -0.1, np.inf, np.nan]
ONE_SCALE = [
    lambda x, s, z: nq.quantize_per_tensor(x, s, z, -128, 127, np.int8),
    lambda x, s, z: nq.quantize_per_tensor(x, s, z, -(2**31), 2**31 - 1, np.int32),
    lambda x, s, z: nq.quantize_per_tensor(x, s, z, -448, 448, "float8_e4m3fn"),
    lambda x, s, z: nq.quantize_per_tensor(x, s, z, -128, 127, np.int8, rounding="divide"),
    lambda x, s, z: nq.dequantize_per_tensor(
        x.view(np.uint8), s, z, 0, 255, np.uint8, out_dtype=x.dtype
    ),
    lambda x, s, z: nq.dequantize_per_tensor(
        x.view(np.int16), s, z, -9, 9, np.int16, out_dtype=x.dtype
    ),
    lambda x, s, z: nq.fake_quantize_per_tensor_affine(x, s, z, -128, 127),
    lambda x, s, z: nq.fake_quantize_per_tensor_affine(x, s, z, -(2**40), 2**40),
    lambda x, s, z: nq.fake_quantize_per_tensor_affine(x, s, z, -(2**63), 2**63 - 1),
    lambda x, s, z: nq.fake_quantize_per_tensor_affine(x, s, z, -9, 2**53 + 3),
    lambda x, s, z: nq.fake_quantize_per_tensor_affine_cachemask(x, s, z, -7, 1, rounding="divide"),
]


@pytest.mark.parametrize(
    "zero_point", [0, -7, 2**20, 2**20 + 1, 2**32 + 9, 2**53 + 4, 2**63], ids=str
)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("op", range(len(ONE_SCALE)))
def test_one_number_of_any_form(op, dtype, zero_point):
    """A number of Python, a scalar, an array of one element: the bits, or the words, are the same.

    Those are the bits of the long way.
    """
    x = np.linspace(-40, 40, 64).astype(dtypes.canonical(dtype, "dtype"))
    fixed = x.copy()
    fixed.flags.writeable = False
    for scale in NUMBERS:
        with long_way():
            wanted = outcome(ONE_SCALE[op], fixed, scale, zero_point)
        for form in FORMS if zero_point < 2**63 else FORMS[:1]:  # what an int64 holds
            got = outcome(ONE_SCALE[op], x, form(scale), form(zero_point))
            if isinstance(wanted, str):
                assert got == wanted
            else:
                assert_same(got, wanted, scale)


@pytest.mark.parametrize("order", ["C", "F"])
def test_out_over_the_one_scale(order):
    """It is refused, though the number is read before anything is written."""
    x = np.ones((2, 3), np.float32, order)
    room = np.full(6, 0.5, np.float32)
    out, scale = room.reshape(x.shape, order=order), room[:1]
    with pytest.raises(ValueError, match="out must be apart from scale"):
        nq.fake_quantize_per_tensor_affine(x, scale, 0, -8, 7, out=out)
    codes = x.astype(np.int8)
    with pytest.raises(ValueError, match="out must be apart from scale"):
        nq.dequantize_per_tensor(codes, scale, 0, -8, 7, np.int8, out=out)
    codes, zero_point = np.zeros(x.shape, np.int8, order), np.zeros(6, np.int8)
    out = zero_point.reshape(x.shape, order=order)
    with pytest.raises(ValueError, match="out must be apart from zero_point"):
        nq.quantize_per_tensor(x, 0.5, zero_point[:1], -8, 7, np.int8, out=out)
    assert (room == 0.5).all()
    room[:] = 1
    for name in ("beta", "weight"):
        numbers = {"beta": 2.0, name: room[:1]}
        with pytest.raises(ValueError, match=f"out must be apart from {name}"):
            nq.adaround_regularizer_backward(x, **numbers, out=room.reshape(x.shape, order=order))
    assert (room == 1).all()


def test_one_number_of_no_form():
    """What holds no number, or several, is refused as it is the long way."""
    x = np.ones(4, np.float32)
    for wrong in (True, np.True_, "1", None, np.array([True]), np.array([1], object), 1j):
        with pytest.raises(TypeError, match="scale must"):
            nq.quantize_per_tensor(x, wrong, 0, -8, 7, np.int8)
        with pytest.raises(TypeError, match="zero_point must"):
            nq.fake_quantize_per_tensor_affine(x, 0.5, wrong, -8, 7)
    with pytest.raises(ValueError, match="scale must have one element"):
        nq.quantize_per_tensor(x, np.ones(2), 0, -8, 7, np.int8)
    half = np.array([0.5], np.float32)
    assert nq.quantize_per_tensor(x, 1.0, half, -8, 7, np.int8).tolist() == [1] * 4
