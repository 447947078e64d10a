"""What kernels are told: in how many launches, by which threads, in which context, and as what."""

import ctypes
import struct
import threading
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
from numba import types

import npquant as nq
from npquant.cuda import (
    arrays,
    dynamic,
    elements,
    extremes,
    lanes,
    learnable,
    loops,
    reduce,
    target,
    to_host,
    walk,
)  # fmt: skip
from npquant.layout import Layout, per_channel
from standins import TORCH, Tensor, driven, streams, tensor, torch
from twins import Shown


def test_more_channels_than_32_bits_count():
    """A launch counts on from its first channel, over as many as it has elements."""
    most = 2**32 - 2**30
    assert next(loops._launches(Layout(most, 1), most, loops.LONGEST))[1] == 2**30
    with pytest.raises(ValueError, match=f"input must have at most {most} channels, got"):
        next(loops._launches(Layout(most + 1, 1), most + 1, loops.LONGEST))


@pytest.mark.parametrize("longest", [5, 12, 13, 1000])
@pytest.mark.parametrize(("channels", "inner"), [(3, 12), (1, None), (4, 1)])
def test_long_arrays_take_several_launches(longest, channels, inner):
    """Every element once, with its channel; 2**30 of them are a launch."""
    size, layout = 2 * channels * (inner or 36), Layout(channels, inner)
    found = []
    for start, n, (skip, first, count, run) in loops._launches(layout, size, longest):
        assert n <= longest
        found += [(e, (first + (skip + e - start) // run) % count) for e in range(start, start + n)]
    assert found == [(e, e // (inner or size) % channels) for e in range(size)]


@pytest.mark.parametrize("longest", [600, 604, 1 << 30])
@pytest.mark.parametrize(("rows", "channels"), [(64, 8), (67, 8), (65, 4), (150, 8), (3, 12)])
@pytest.mark.parametrize(("sizes", "many"), [((4, 4), 4), ((4, 1), 8), ((2, 1), 8)])
def test_threads_of_channels_side_by_side(rows, channels, sizes, many, longest):
    """Every element is one thread's, and has its channel, however many launches there are."""
    size, found = rows * channels, []
    form, launches = loops._shape_of_launches(
        Layout(channels, 1), size, sizes, True, True, longest, 0
    )
    assert form == (4, many if rows >= 64 else 1, elements.BESIDE)
    begin, _, channel = elements.rows(*form[:2])
    for start, blocks, n, *place in launches:
        for v in range(blocks * elements.BLOCK):
            i, step = begin(np.uint32(0), np.uint32(v), *place[2:])
            for u in range(form[1]):
                e = int(i) + u * int(step)
                if e < n:
                    assert channel(np.uint32(e), *place)[0] == (start + e) % channels
                    found += range(start + e, start + e + 4)
    assert sorted(found) == [*range(size)]


@pytest.mark.parametrize(
    ("rows", "inner", "width"), [(3, 70, 1), (3, 72, 8), (3, 76, 4), (1, 70, 4), (9, 30, 4)]
)
def test_long_runs_are_launched_where_vectors_begin(monkeypatch, rows, inner, width):
    """Of runs that are launched in parts, the second begins anywhere."""
    noted = []
    monkeypatch.setattr(target.Kernel, "__call__", lambda *args: noted.append(args))
    monkeypatch.setattr(loops, "LONGEST", 32)
    held = np.zeros(rows * inner + 4, np.float32)
    held = held[-held.ctypes.data % 16 // 4 :][: rows * inner].reshape(rows, inner)
    out = np.zeros(held.nbytes + 16, np.int8)
    out = out[-out.ctypes.data % 16 :][: held.size].reshape(held.shape)
    s, z = Shown(np.ones(rows, np.float32)), Shown(np.zeros(rows, np.int32))
    nq.quantize_per_channel(Shown(held), s, z, 0, -128, 127, np.int8, out=Shown(out))
    assert len(noted) > 1
    for _, _, _, args, key, _ in noted:
        assert key[4] == width
        (x,), (y,) = args[5], args[-1]
        assert (x % min(4 * width, 16), y % width) == (0, 0)


@pytest.fixture
def launched(torch, monkeypatch):
    """(kernel, key, arguments) of all that was to be launched; tensors lie as on a GPU."""
    found = []

    def note(kernel, blocks, threads, args, key, on):
        found.append((kernel.name, key, args))

    def empty_strided(shape, stride, dtype, device):
        kind = np.dtype(TORCH[dtype.removeprefix("torch.")])
        return tensor(np.zeros(shape, kind), dtype.removeprefix("torch."))

    monkeypatch.setattr(target.Kernel, "__call__", note)
    monkeypatch.setattr(torch, "empty_strided", empty_strided)
    return found


def test_a_launch_in_the_midst_of_another(monkeypatch):
    """As of a finalizer, between where the arguments are laid and where the driver copies them."""
    seen, kernel = [], object.__new__(target._Compiled)
    kernel._arguments, kernel._function = target.Arguments((types.int64,)), None
    monkeypatch.setattr(target, "_rooms", [])

    def launch(*args):
        if depth := len(inner):
            kernel.launch((1,) * 6, [inner.pop()], 0)
        extra = (ctypes.c_void_p * 5).from_address(args[-1])
        seen.append((depth, ctypes.c_int64.from_address(extra[1]).value))
        return (0,)

    driver = SimpleNamespace(cuLaunchKernel=launch, CUstream=int)
    monkeypatch.setattr(target, "driver", driver)
    for _ in range(3):
        inner = [3, 2]
        kernel.launch((1,) * 6, [1], 0)
        assert seen == [(0, 3), (1, 2), (2, 1)]
        seen.clear()
    assert len(target._rooms) == 3


def test_a_context_that_was_taken_away(monkeypatch):
    """As by the end of ``with numba.cuda.gpus[0]:``: there is a new one, and all is as ever."""
    contexts, made, done = [], [], []

    def call(*args):
        if not contexts:
            return (201,)
        done.append(args)
        return (0,)

    def get_context(device):
        contexts.append(device)
        made.append(device)
        return SimpleNamespace(device=SimpleNamespace(id=0))

    @contextmanager
    def active():
        yield bool(contexts)

    devices = SimpleNamespace(
        driver=SimpleNamespace(get_active_context=active), get_context=get_context
    )
    numba = SimpleNamespace(cudadrv=SimpleNamespace(devices=devices))
    monkeypatch.setattr(target, "cuda", numba)
    monkeypatch.setattr(target, "_thread", SimpleNamespace(ready=False))
    monkeypatch.setattr(target, "_devices", [])
    target.make_ready()
    target.drive(call, 1)
    contexts.clear()
    target.drive(call, 2)
    assert (done, made) == ([(1,), (2,)], [None, 0])
    with pytest.raises(RuntimeError, match="CUDA: CUDA_ERROR_X"):
        target.drive(lambda: (CudaError(7),))


class CudaError(int):
    """An error as the driver gives it."""

    name = "CUDA_ERROR_X"


def test_copies_are_written_side_by_side(driven):
    """Whatever the order of the axes: what lies alike without gaps is copied as it lies."""
    y = np.zeros((5, 3, 7), "f4").transpose(2, 0, 1)
    for x, lengths, read, written in (
        (y.copy("K"), (105,), (1,), (1,)), (np.zeros((7, 5, 3), "f4"), (7, 15), (15, 1), (1, 7)),
    ):  # fmt: skip
        walk.copy(*[arrays.device(Tensor(a, "torch.float32")) for a in (x, y)])
        _, _, (n, *told) = driven.launches.pop().what
        axes = len(lengths)
        assert (n, *told[:axes]) == (105, *lengths)
        assert tuple(told[9 : 9 + axes]) == read
        assert tuple(told[18 : 18 + axes]) == written


@pytest.mark.parametrize(
    ("shape", "axis", "start", "runs"),
    [
        ((5, 8), 1, 0, elements.BESIDE), ((5, 6), 1, 0, elements.ANY), ((5, 8), 1, 1, elements.ANY),
        ((64, 8), 1, 0, elements.BESIDE),
        ((8, 8), 0, 0, elements.WHOLE), ((8, 6), 0, 0, elements.ANY),
        ((1, 6), 0, 0, elements.WHOLE), ((2, 3, 4), 1, 0, elements.WHOLE),
        ((2, 4, 2), 1, 0, elements.ANY), ((3, 1024), 0, 0, elements.WHOLE),
    ],
)  # fmt: skip
def test_how_vectors_share_qparams(launched, shape, axis, start, runs):
    """What `start` elements from an aligned address on lies is not read in vectors."""
    n = shape[axis]
    s, z = (tensor(np.zeros(n + start, t)) for t in ("f4", "i4"))
    for a in (s, z):
        a.held = a.held[start:]
        a.shape = a.held.shape
    x = tensor(np.zeros(shape, "f4"))
    nq.fake_quantize_per_channel_affine(x, s, z, axis, -7, 7)
    rows = runs == elements.BESIDE and shape[0] >= 64
    assert launched[-1][1][-3:] == (4, 4 if rows else 1, runs)
    nq.quantize_per_channel(x, s, z, axis, -7, 7, np.int8)
    inner = np.prod(shape[axis + 1 :])
    wide = inner % 8 == 0 and inner < x.held.size
    few = 1 if runs == elements.BESIDE else 2
    width, many = (8, 1) if wide else (4, 8 if rows else few)
    assert launched[-1][1][-3:] == (width, many, runs)
    if not start:  # codes that are not guessed
        z = tensor(np.zeros(n, "f4"))
        nq.quantize_per_channel(x, s, z, axis, -7, 7, np.int8)
        short = runs == elements.WHOLE and inner < 1024 and inner < x.held.size
        assert launched[-1][1][-3:] == (width, many, elements.ANY if short else runs)


ALL_KINDS = (
    types.CPointer(types.float32), types.float32, types.float64, types.int32, types.uint32,
    types.int64, types.uint64,
)  # fmt: skip


def test_arguments_lie_as_a_struct_of_c():
    """In any order, of tuples in tuples; numbers become theirs."""
    rng = np.random.default_rng(0)
    values = {"f": 0.1, "d": 0.1, "i": -5, "I": 2**32 - 1, "l": -(2**40), "L": 2**63, "P": 2**47}
    for _ in range(50):
        kinds = [ALL_KINDS[i] for i in rng.integers(0, len(ALL_KINDS), 9)]
        ctypes_of = [target._ctype(kind) for kind in kinds]
        given = [values[kind._type_] for kind in ctypes_of]
        fields = [(f"m{i}", kind) for i, kind in enumerate(ctypes_of)]
        expected = type("Expected", (ctypes.Structure,), {"_fields_": fields})(*given)
        inner = types.Tuple([*kinds[2:5], types.Tuple(kinds[5:7])])
        signature = (*kinds[:2], inner, types.Tuple(kinds[7:]))
        room = ctypes.create_string_buffer(b"\x00" * 128)
        nested = (*given[:2], (*given[2:5], tuple(given[5:7])), tuple(given[7:]))
        size = target.Arguments(signature).put(room, target.flattened(nested))
        last = getattr(type(expected), fields[-1][0])
        assert size == last.offset + last.size  # a struct may be longer, for those behind it
        assert room.raw[:size] == bytes(expected)[:size]


def test_numbers_that_are_converted_as_c_does():
    """Too large for a float32 they become infinite, and of an integer the low bits are left."""
    room = ctypes.create_string_buffer(8)
    target.Arguments((types.float32, types.int32)).put(room, [-1e39, 2**32 + 7])
    assert struct.unpack("fi", room.raw) == (-np.inf, 7)


class Devices:
    """What Numba knows of contexts: a thread has one after it has asked for it."""

    def __init__(self, thirds):
        self.asked, self.thirds = [], thirds
        self.driver = SimpleNamespace(get_active_context=self.active)

    def active(self):
        thread = threading.current_thread().name
        made = thread in self.thirds or thread in [name for name, _ in self.asked]
        return nullcontext(made)

    def get_context(self, number=None):
        self.asked.append((threading.current_thread().name, number))
        return SimpleNamespace(device=SimpleNamespace(id=3))


def test_a_context_in_every_thread(monkeypatch):
    """Each asks once, before its first launch, allocation or copy, for the device of the first.

    One that has a context already, by another library, keeps it.
    """
    devices, launched = Devices(thirds=("third",)), []
    monkeypatch.undo()  # launches are not noted here, but made
    monkeypatch.setattr(target.cuda.cudadrv, "devices", devices)
    monkeypatch.setattr(target, "_thread", target._Thread())
    monkeypatch.setattr(target, "_devices", [])
    kernel = target.Kernel(None, "nothing")
    entry = SimpleNamespace(launch=lambda *args: launched.append(list(devices.asked)))
    kernel._entries[()] = entry

    def launch():
        for _ in range(2):
            kernel(1, 1, (), (), 0)

    asked = [("first", None), ("second", 3), ("third", None)]
    for count, (name, _) in enumerate(asked, 1):
        thread = threading.Thread(target=launch, name=name)
        thread.start()
        thread.join()
        assert launched == [asked[:count]] * 2
        launched.clear()


@pytest.mark.parametrize("what", ["to_host", "empty"])
def test_a_context_before_copies_and_allocations(monkeypatch, what):
    calls = []
    monkeypatch.setattr(target, "make_ready", lambda: calls.append("context"))
    x = Shown(np.zeros(3, np.float32))
    if what == "to_host":
        done = lambda *args: calls.append("copy") or (0,)
        names = ("cuMemcpyDtoHAsync", "cuStreamSynchronize")
        monkeypatch.setattr(target, "driver", SimpleNamespace(**dict.fromkeys(names, done)))
        to_host(x)
    else:
        of = lambda *args, **kwargs: calls.append("array")
        monkeypatch.setattr(target.cuda.cudadrv.devicearray, "DeviceNDArray", of)
        a = arrays.device(x)
        a.library.empty(a, (3,), np.float32, (4,))
    assert calls[0] == "context"
    assert len(calls) > 1


def test_what_a_kernel_cannot_count():
    with pytest.raises(
        ValueError, match=r"fewer than 2\*\*32 elements, got 4294967296 in runs of 2"
    ):
        reduce.Shape.of(Layout(2, 2), 1 << 33)
    with pytest.raises(ValueError, match="at most 2147483647, got 2147483648"):
        reduce.Shape.of(Layout(1 << 31, 2), 1 << 33)
    assert reduce.Shape.of(Layout((1 << 31) - 1, 2), (1 << 33) - 4).length == 4


class Nowhere:
    """A library of arrays of any size, without memory."""

    def stream(self, a):
        return 0

    def empty(self, like, shape, dtype, strides):
        return arrays.DeviceArray(None, self, 0, shape, dtype, strides)


@pytest.mark.parametrize(("channels", "batch"), [(2**32 // 48, 4), (2**32 // 48 + 1, 1)])
def test_channels_too_many_to_ask_for_several_rows(monkeypatch, channels, batch):
    """A thread asks for four elements at once, 16 rows apart, if 32 bits hold that distance."""
    noted, asked = [], []
    monkeypatch.setattr(target.Kernel, "__call__", lambda *args: noted.append(args))
    x, y = (Nowhere().empty(None, (64, channels), np.dtype(np.float32), None) for _ in range(2))
    one = Nowhere().empty(None, (channels,), np.dtype(np.float32), None)
    by_channel = per_channel(x.shape, 1)
    extremes.minmax(by_channel, x)
    learnable.learnable_gradients_per_channel(
        by_channel, x, x, one, one, (-8, 7, 1.0), "float32", y, one, one
    )
    of = lanes.vectors
    for module in (extremes, lanes):
        monkeypatch.setattr(module, "vectors", lambda *sizes: asked.append(sizes) or of(*sizes))
    for kernel, *_, key, _ in noted:
        if kernel.name.endswith("_lanes"):
            kernel._make(*key)
    assert asked == [(1, batch)] * 2


def test_too_many_axes_apart():
    """Of 18 axes of two, each second of them taken, no two are one; and no memory is so large."""
    x = np.broadcast_to(np.zeros((), np.float32), (2,) * 18)
    x = arrays.device(Shown(x))
    x.strides = tuple(4 * 3**i for i in range(18))
    y = arrays.device(Shown(np.zeros((2,) * 18, np.float32)))
    with pytest.raises(ValueError, match="axes that are not side by side, got shape"):
        walk.copy(x, y)


def test_rows_that_are_more_than_blocks():
    """Such are chosen for by one kernel and quantized by another, which count rows otherwise."""
    args = (np.dtype(np.float16), (-128, 127), 1e-5, (), (), (-128, 127, 0), "float32", np.int8)
    for rows, taken in ((2**31 - 1, True), (2**31, False)):
        found = dynamic.dynamic_per_token.at_once((rows, 4), *args)
        assert (found is not None) == taken


@pytest.mark.parametrize(
    ("channels", "length", "longest", "short"),
    [(2, 511, 2048, True), (2, 512, 2048, False), (reduce.MANY, 2047, 2048, True),
     (reduce.MANY, 2048, 2048, False), (2, 255, 256, True), (2, 256, 256, False),
     (reduce.MANY, 256, 256, False), (1, 3, 2048, False)],
)  # fmt: skip
def test_what_channels_are_short(channels, length, longest, short):
    """Longer ones only where there are many, and none beyond what a kernel says."""
    assert reduce.Shape(channels, length, length).short(longest) is short
    assert not reduce.Shape(channels, length, 2 * length).short(longest)  # in several runs


@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_teams_hold_their_rows(width):
    """All of a row, with few registers and whole warps, or several rows in a few of them."""
    itemsize = 16 // width if width > 1 else 4
    most = 2**13 if itemsize == 8 else 2**15
    assert extremes.Team.fits(most, itemsize)
    assert not extremes.Team.fits(most + 1, itemsize)
    for length in (*range(width, 2049, width), *range(4096, most + 1, 1024)):
        team = extremes.Team.of(length, width)
        assert team.width == width
        assert team.rows == 1 or team.threads & (team.threads - 1) == 0
        assert team.block % 32 == 0 or team.block < 32
        assert team.block <= (128 if team.rows > 1 else 1024)
        assert length <= team.held * team.threads * width
        assert team.held <= (32 if width == 1 else 8)
        # Threads that find nothing of their own are fewer than a warp, or half of a short team.
        assert (team.threads - 1) * team.held * width < 2 * length
