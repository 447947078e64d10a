"""Libraries of device arrays: theirs are the results, the streams, and the names of dtypes.

Stand-ins have what the real ones are asked for, and nothing else; their memory is the host's, and
what would be launched is noted.
"""

import ctypes
import gc
import struct
import sys
import threading
import weakref
from contextlib import contextmanager, nullcontext
from types import ModuleType, SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from numba import types

import npquant as nq
from npquant.arrays import beside
from npquant.checks.calls import forget
from npquant.cuda import (
    again,
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
from npquant.cuda.watch import watch
from npquant.layout import Layout, per_channel
from npquant.modules import FakeQuantize, MinMaxObserver
from npquant.optim import SGD
from twins import Shown, at_once

#: What the libraries say that they work on.
STREAM = 0x5EED


class Tensor:
    """A tensor of PyTorch."""

    is_cuda, negated, shift = True, False, 0

    def __init__(self, held, dtype):
        self.held, self.dtype, self.device = held, dtype, "cuda:1"
        self.shape = held.shape

    def stride(self):
        return tuple(s // self.held.itemsize for s in self.held.strides)

    def data_ptr(self):
        return self.held.ctypes.data + self.shift

    def is_neg(self):
        return self.negated


#: PyTorch's names, and how the memory of each looks.
TORCH = {
    "float16": "f2", "bfloat16": "u2", "float32": "f4", "float64": "f8", "float8_e4m3fn": "u1",
    "int8": "i1", "uint8": "u1", "int16": "i2", "int32": "i4", "int64": "i8", "bool": "?",
}  # fmt: skip


@pytest.fixture
def torch(monkeypatch):
    module = ModuleType("torch")
    kinds = {name: f"torch.{name}" for name in TORCH}
    for name, kind in kinds.items():
        setattr(module, name, kind)

    def empty_strided(shape, stride, dtype, device):
        assert device == "cuda:1"
        kind = np.dtype(TORCH[dtype.removeprefix("torch.")])
        held = np.ndarray(shape, kind, strides=[s * kind.itemsize for s in stride])
        return Tensor(held, dtype)

    def current_stream(device):
        assert device == "cuda:1"
        return SimpleNamespace(cuda_stream=STREAM)

    module.empty_strided, module.Tensor = empty_strided, Tensor
    module.cuda = SimpleNamespace(current_stream=current_stream)
    monkeypatch.setitem(sys.modules, "torch", module)
    return module


class CuPyArray:
    """An array of CuPy."""

    __cuda_array_interface__ = NotImplemented  # only asked whether it is there

    def __init__(self, shape, dtype, memptr=None, strides=None):
        if strides is not None and memptr is None:
            raise ValueError("memptr is required if strides is given.")
        held = np.ndarray(shape, dtype, memptr, strides=strides)
        self.held, self.shape, self.dtype, self.strides = held, held.shape, held.dtype, held.strides
        self.data, self.device = SimpleNamespace(ptr=held.ctypes.data), nullcontext()


CuPyArray.__module__ = "cupy"


@pytest.fixture
def cupy(monkeypatch):
    module = ModuleType("cupy")
    module.ndarray = CuPyArray
    module.cuda = SimpleNamespace(
        get_current_stream=lambda: SimpleNamespace(ptr=STREAM),
        alloc=lambda size: np.empty(size, np.uint8),
    )
    monkeypatch.setitem(sys.modules, "cupy", module)
    return module


#: What a test may put back, where launches are to go as far as to what the driver is given, and
#: where calls are to be done again as they are for users.
LAUNCH, FIRST, ALIKE = target.Kernel.__call__, again.FIRST, again.ALIKE


@pytest.fixture(autouse=True)
def streams(monkeypatch):
    """The streams that kernels were to be launched on."""
    found = []
    forget()  # what calls have come to elsewhere
    at_once(monkeypatch)
    monkeypatch.setattr(again, "MOST", 64)
    monkeypatch.setattr(target.Kernel, "__call__", lambda *args: found.append(args[-1]))
    yield found
    forget()


def channels_last(kind):
    return np.zeros((2, 4, 5, 3), kind).transpose(0, 3, 1, 2)


def test_negated_tensors(torch):
    """PyTorch negates them when it reads them; what lies in memory has the other sign."""
    x = Tensor(np.ones(3, np.float32), torch.float32)
    x.negated = True
    with pytest.raises(ValueError, match=r"take its resolve_neg\(\)"):
        nq.quantize_per_tensor(x, 0.1, 0, -128, 127, np.int8)


@pytest.mark.parametrize("where", ["field", "offset"])
def test_elements_that_no_gpu_can_read(cupy, where):
    """A field of packed records, and an array that begins within an element."""
    record = np.zeros(6, np.dtype([("a", np.int16), ("x", np.float32)]))["x"]
    offset = np.zeros(17, np.uint8)[1:].view(np.float32)
    held = record if where == "field" else offset
    x = CuPyArray(held.shape, held.dtype)
    x.strides, x.data = held.strides, SimpleNamespace(ptr=held.ctypes.data - 2 * (where == "field"))
    with pytest.raises(ValueError, match="a device array must have elements at multiples of"):
        nq.quantize_per_tensor(x, 0.1, 0, -128, 127, np.int8)


def test_torch(torch, streams):
    x = Tensor(channels_last(np.float32), torch.float32)
    q = nq.quantize_per_tensor(x, 0.1, 0, -128, 127, np.int8)
    assert (type(q), q.dtype, q.shape) == (Tensor, torch.int8, x.shape)
    assert q.stride() == x.stride()
    y, mask = nq.fake_quantize_per_tensor_affine_cachemask(x, 0.1, 0, -128, 127)
    assert (y.dtype, mask.dtype) == (torch.float32, torch.bool)
    assert y.stride() == mask.stride() == x.stride()
    assert streams == [STREAM] * 2


def test_the_raw_stream_of_torch(torch, streams, monkeypatch):
    """Where there is one, that of the tensor's device."""
    raw = SimpleNamespace(_cuda_getCurrentRawStream=lambda index: STREAM + index)
    monkeypatch.setattr(torch, "_C", raw, raising=False)
    monkeypatch.setattr(Tensor, "get_device", lambda self: 1, raising=False)
    nq.convert_element_type(Tensor(np.zeros(8, np.float32), torch.float32), np.int8)
    assert streams == [STREAM + 1]


def test_the_address_of_what_is_made(torch, cupy):
    """Of a repeated call's results it is all that is asked for."""
    for value in (Tensor(np.zeros(3, np.float32), torch.float32), CuPyArray(3, np.float32)):
        x = arrays.device(value)
        y = x.library.empty(x, (5,), np.dtype(np.int8), (1,))
        assert x.library.address(y) == arrays.device(y).pointer != 0


def test_cupy(cupy, streams):
    held = channels_last(np.float16)
    x = CuPyArray((2, 3, 4, 5), np.float16, np.zeros(held.size, np.float16).data, held.strides)
    q = nq.quantize_per_tensor(x, 0.1, 0, -8, 7, ml_dtypes.int4)
    assert (type(q), q.dtype, q.shape) == (CuPyArray, ml_dtypes.int4, x.shape)
    assert q.strides == tuple(s // 2 for s in x.strides)
    assert streams == [STREAM]


@pytest.mark.parametrize("name", TORCH)
def test_dtypes_of_torch(torch, name):
    kind = getattr(torch, name)
    a = arrays.device(Tensor(np.zeros((2, 3), TORCH[name])[:, ::2], kind))
    assert a.dtype == np.dtype(name)
    assert a.strides == (3 * a.dtype.itemsize, 2 * a.dtype.itemsize)
    assert a.new((4,), a.dtype).owner.dtype == kind


def test_memory_that_is_not_there(torch):
    """Of a wrapper, or a storage that was freed; an array of nothing needs none."""
    for shape in ((0, 3), (2, 3)):
        freed = Tensor(np.zeros(shape, np.float32), torch.float32)
        freed.data_ptr = lambda: 0
        shown = Shown(np.zeros(shape, np.float32), data=(0, False))
        for x in (freed, shown):
            if shape[0]:
                with pytest.raises(ValueError, match="must have memory, got one of 6 elements"):
                    arrays.device(x)
            else:
                assert arrays.device(x).size == 0


@pytest.mark.parametrize("there", [False, True])
def test_what_is_on_a_gpu_is_not_pytorchs_for_that(there, request, streams):
    if there:
        request.getfixturevalue("torch")
    x = Shown(np.zeros(3, np.float32))
    x.is_cuda = True
    assert arrays.device(x).dtype == np.float32


def test_an_unknown_dtype(torch):
    x = Tensor(np.zeros(3, np.complex64), "torch.complex64")
    with pytest.raises(TypeError, match=r"dtype that npquant knows, got torch\.complex64"):
        nq.quantize_per_tensor(x, 0.1, 0, -128, 127, np.int8)


def test_a_result_that_torch_has_no_dtype_for(torch):
    x = Tensor(np.zeros(3, np.float32), torch.float32)
    with pytest.raises(TypeError, match="one that PyTorch has on a GPU, got int4"):
        nq.quantize_per_tensor(x, 0.1, 0, -8, 7, ml_dtypes.int4)


def test_an_array_of_the_host_beside_a_tensor(torch):
    def from_numpy(a):
        return SimpleNamespace(to=lambda device: (a.tolist(), device))

    torch.from_numpy = from_numpy
    x = Tensor(np.zeros(3, np.float32), torch.float32)
    assert beside(x, np.ones(2, np.float32)) == ([1, 1], "cuda:1")


def test_an_array_of_the_host_beside_one_of_cupy(cupy):
    cupy.asarray = lambda a: ("on the GPU", a.tolist())
    assert beside(CuPyArray((3,), np.float32), np.ones(2)) == ("on the GPU", [1, 1])


def test_the_interface(streams):
    held = np.zeros((4, 6), np.float32)[::-1, ::2]
    a = arrays.device(Shown(held, stream=STREAM))
    assert (a.shape, a.strides, a.dtype) == (held.shape, held.strides, held.dtype)
    assert (a.pointer, a.stream()) == (held.ctypes.data, STREAM)
    assert arrays.device(Shown(held)).stream() == 0
    alone = Shown(held)
    del alone.dtype, alone.__cuda_array_interface__["stream"]
    a = arrays.device(alone)
    assert (a.dtype, a.stream()) == (held.dtype, 0)


@pytest.mark.parametrize("dtype", ["S5", "V12", [("a", "f4"), ("b", "f8")]], ids=str)
def test_elements_whose_size_is_no_power_of_two(dtype):
    """They begin wherever NumPy lets them."""
    dtype = np.dtype(dtype)
    for offset in range(dtype.itemsize):
        held = np.ndarray((2, 3), dtype, np.zeros(100, np.uint8), offset)
        a = arrays.device(Shown(held))
        assert (a.pointer, a.dtype, a.contiguous) == (held.ctypes.data, dtype, True)


def test_elements_of_no_bytes():
    with pytest.raises(TypeError, match=r"must have elements of a byte at least, got \|S0"):
        to_host(Shown(np.ndarray(3, "S0")))


@pytest.mark.parametrize("row", [np.ones(6, np.float32), np.ones((4, 1), np.float32)])
def test_what_numba_broadcasts(row, streams):
    """There is less memory than elements, and its interface tells no strides."""
    held = np.broadcast_to(row, (4, 6))
    memory = SimpleNamespace(device_ctypes_pointer=ctypes.c_void_p(held.ctypes.data))
    made = target.cuda.cudadrv.devicearray.DeviceNDArray
    x = made(held.shape, held.strides, held.dtype, gpu_data=memory)
    assert x.__cuda_array_interface__["strides"] is None
    a = arrays.device(x)
    assert (a.shape, a.strides, a.contiguous) == (held.shape, held.strides, False)
    with pytest.raises(ValueError, match="out must not repeat its elements"):
        nq.fake_quantize_per_tensor_affine(Shown(np.ones_like(held)), 0.1, 0, -8, 7, out=x)


class DLDevice(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int32), ("number", ctypes.c_int32))


class DLDataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class DLTensor(ctypes.Structure):
    """What DLPack 1.0 hands over, as dlpack.h has it."""

    _fields_ = (
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("data", ctypes.c_void_p),
        ("device", DLDevice), ("ndim", ctypes.c_int32), ("dtype", DLDataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("offset", ctypes.c_uint64),
    )  # fmt: skip


#: Nothing is to be deleted: the memory is NumPy's.
DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda tensor: None)

NEW = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)


class Packed:
    """An array of float32 on a GPU, of a library that has DLPack."""

    def __init__(self, held, read_only=False):
        shape, steps = held.shape, [s // 4 for s in held.strides]
        self._sizes = [(ctypes.c_int64 * held.ndim)(*values) for values in (shape, steps)]
        self.held, self.asked = held, []
        self._tensor = DLTensor(
            1, 0, None, ctypes.cast(DELETER, ctypes.c_void_p), read_only, held.ctypes.data,
            DLDevice(2, 0), held.ndim, DLDataType(2, 32, 1), *self._sizes, 0,
        )  # fmt: skip

    def __dlpack_device__(self):
        return 2, 0

    def __dlpack__(self, **options):
        self.asked.append(options)
        return NEW(ctypes.addressof(self._tensor), b"dltensor_versioned", None)


def test_dlpack(streams):
    """Its library is asked to order what it does before the default stream, where the op goes."""
    x = Packed(np.zeros((4, 6), np.float32)[::-1, ::2])
    a = arrays.device(x)
    assert [options["stream"] for options in x.asked] == [1]
    assert (a.shape, a.strides, a.dtype) == (x.held.shape, x.held.strides, x.held.dtype)
    assert (a.pointer, a.stream(), a.writeable) == (x.held.ctypes.data, 0, True)


def read_only(held):
    return Shown(held, data=(held.ctypes.data, True))


def test_read_only_arrays_are_not_written_to(streams):
    """As those of NumPy: an out, a running range and a parameter; they may be read."""
    x, one = (np.ones(n, np.float32) for n in (8, 1))
    message = "must be writeable, got a read-only array"
    fake = nq.fake_quantize_per_tensor_affine
    for out in (read_only(x), Packed(x, read_only=True)):
        with pytest.raises(ValueError, match=f"out {message}"):
            fake(Shown(np.ones_like(x)), 0.1, 0, -8, 7, out=out)
    low, high, scale = (Shown(one.copy()) for _ in range(3))
    state = [low, high, scale, Shown(np.zeros(1, np.int32))]
    for i, name in enumerate(("running_min", "running_max", "scale")):
        some = [*state]
        some[i] = read_only(one)
        with pytest.raises(ValueError, match=f"{name} {message}"):
            nq.fused_moving_avg_obs_fake_quant(Shown(x), 1, 1, *some, 0.01, -8, 7, 0)
    with pytest.raises(ValueError, match=rf"params\[0\] {message}"):
        SGD([read_only(x)], 0.1).step([Shown(x)])
    assert streams == []
    fake(read_only(x), read_only(one), 0, -8, 7, out=Shown(np.ones_like(x)))
    assert len(streams) == 1


def test_a_masked_array():
    with pytest.raises(TypeError, match="must not be masked"):
        nq.quantize_per_tensor(
            Shown(np.zeros(3, np.float32), mask=object()), 0.1, 0, -128, 127, np.int8
        )


def test_where_it_lies():
    """Order in memory, and the element at the lowest address, as NumPy has them."""
    x = np.zeros((4, 6, 5), np.float32)
    for y in (x, x.T, x[::-1], x[:, ::-2, 1:], x.transpose(1, 0, 2), x[:0], x[..., :1]):
        a = arrays.device(Shown(y))
        first, count = a.lying.lowest
        low, high = np.lib.array_utils.byte_bounds(y) if y.size else (y.ctypes.data,) * 2
        assert (a.pointer - 4 * first, 4 * count) == (low, high - low)
        assert a.contiguous == y.flags.c_contiguous


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


def tensor(x, kind=None):
    """A tensor that lies where memory of a GPU would, at a multiple of 16 bytes."""
    room = np.zeros(x.nbytes + 16, np.uint8)
    held = room[-room.ctypes.data % 16 :][: x.nbytes].view(x.dtype).reshape(x.shape)
    held[...] = x
    return Tensor(held, f"torch.{kind or x.dtype.name}")


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


class Entry:
    """A kernel that would be on a GPU; what it is given is noted in place of a launch."""

    pointers = target._Compiled.pointers

    def __init__(self, kernel, key, noted):
        self.name, self.noted = kernel.name, noted
        self._arguments = target.Arguments(kernel._make(*key)[1])

    def launch(self, grid, values, on):
        places = [v for _, v, _ in self.pointers(values)]
        kept = [v for v in values if v not in places]
        self.noted.append(SimpleNamespace(what=(self.name, grid, kept), places=places, on=on))


@pytest.fixture
def driven(torch, monkeypatch):
    """What the driver was to launch, the `launches`, and how many of them the `long` way.

    Tensors lie as on a GPU.
    """
    entries, found = {}, SimpleNamespace(launches=[], long=0)

    def launch(*args):
        found.long += 1
        LAUNCH(*args)

    def entry(kernel, key):
        return Entry(kernel, key, found.launches)

    def empty_strided(shape, stride, dtype, device):
        name = dtype.removeprefix("torch.")
        made = tensor(np.zeros(shape, TORCH[name]), name)
        made.stride = lambda: tuple(stride)
        return made

    of_each = property(lambda kernel: entries.setdefault(kernel, {}), lambda kernel, value: None)
    monkeypatch.setattr(target.Kernel, "_entries", of_each, raising=False)
    monkeypatch.setattr(target.Kernel, "__call__", launch)
    monkeypatch.setattr(target.Kernel, "_compiled", entry)
    monkeypatch.setattr(target, "make_ready", lambda: None)
    monkeypatch.setattr(torch, "empty_strided", empty_strided)
    return found


def gradients(n=6):
    """The arrays of a call, and its results."""
    x, g, s, z = (tensor(np.zeros(shape, "f4")) for shape in ((n, 4100), (n, 4100), n, n))
    op = nq.fake_quantize_learnable_per_channel_affine_backward
    return (g, x, s, z), op(g, x, s, z, 0, -8, 7)


def test_a_call_is_launched_again(driven):
    """With the addresses of its own arrays, and all else as it was."""
    calls = []
    for _ in range(3):
        given, results = gradients()
        calls.append([*given, *results])
    per_call = driven.long
    assert len(driven.launches) == 3 * per_call >= 6
    for k, arrays_of_call in enumerate(calls):
        mine = driven.launches[k * per_call : (k + 1) * per_call]
        for launch, first in zip(mine, driven.launches, strict=False):
            assert launch.what == first.what
            assert launch.on == STREAM
            for place, there in zip(launch.places, first.places, strict=True):
                which = [i for i, a in enumerate(calls[0]) if a.data_ptr() == there]
                assert which == [i for i, a in enumerate(arrays_of_call) if a.data_ptr() == place]
    own = {a.data_ptr() for a in calls[1]}
    scratch = {p for launch in driven.launches[per_call:-per_call] for p in launch.places} - own
    assert scratch


def test_scratch_says_its_dtype(torch):
    """Which is part of what tells a call from others, and not that of the memory."""
    x = arrays.device(Tensor(np.zeros(4, np.float32), "torch.float32"))
    one, other = (x.scratch((3,), np.dtype(d)) for d in (np.float16, ml_dtypes.bfloat16))
    assert (one.dtype, other.dtype) == (np.float16, ml_dtypes.bfloat16)
    assert again._key([one]) != again._key([other])
    assert again._key([one]) == again._key([x.scratch((3,), np.dtype(np.float16))])


def test_scratch_is_apart(driven, torch, monkeypatch):
    """All that is made on the way is one array, whose parts share no memory and lie as on a GPU."""
    made, empty = [], torch.empty_strided
    note = lambda *args, **kwargs: made.append(empty(*args, **kwargs)) or made[-1]
    monkeypatch.setattr(torch, "empty_strided", note)
    state = [tensor(np.zeros(1, t)) for t in ("f4", "f4", "f4", "i8")]
    for _ in range(2):
        made.clear()
        driven.launches.clear()
        x = tensor(np.zeros(1 << 16, "f4"))
        nq.fused_moving_avg_obs_fake_quant(x, 1, 1, *state, 0.1, -8, 7, 0)
        one = made[-1]
    assert (len(made), one.dtype) == (2, "torch.uint8")
    inside = {p - one.data_ptr() for launch in driven.launches for p in launch.places}
    parts = sorted(p for p in inside if 0 <= p < one.held.nbytes)
    assert len(parts) > 2
    assert {p % again.APART for p in parts} == {0}


def test_results_have_the_strides_of_the_first(driven):
    """Those along axes of one, too, of which kernels know nothing."""
    strides = set()
    for _ in range(2):
        x = tensor(np.zeros((2, 1, 4, 3), "f4"))
        x.held = x.held.transpose(0, 3, 1, 2)
        x.shape = x.held.shape
        strides.add(nq.fake_quantize_per_tensor_affine(x, 0.5, 0, -8, 7).stride())
    assert strides == {x.stride()}
    assert driven.long == 1


def test_parts_of_an_array_are_launched_again(driven, monkeypatch):
    """Where in it each begins is part of what is remembered."""
    monkeypatch.setattr(loops, "LONGEST", 32)
    found = []
    for _ in range(2):
        x = tensor(np.zeros(96, "f4"))
        y = nq.convert_element_type(x, np.int8)
        starts = [
            (a.places[0] - x.data_ptr(), a.places[-1] - y.data_ptr()) for a in driven.launches
        ]
        found.append(starts[-3:])
    assert found == [[(0, 0), (128, 32), (256, 64)]] * 2
    assert driven.long == 3


def test_a_call_goes_to_the_stream_of_its_input_again(driven, torch):
    gradients()
    torch.cuda.current_stream = lambda device: SimpleNamespace(cuda_stream=STREAM + 1)
    driven.launches.clear()
    gradients()
    assert {launch.on for launch in driven.launches} == {STREAM + 1}


def test_qparams_of_another_library_are_another_call(driven, cupy):
    """What is made for it is of the library of the input, also when it comes again."""
    x, z = tensor(np.zeros((6, 8), "f4")), tensor(np.zeros(6, "i4"))
    for s in (tensor(np.ones(6, "f4")), CuPyArray(6, np.float32)):
        for long in (1, 0):
            before = driven.long
            y = nq.quantize_per_channel(x, s, z, 0, -128, 127, np.int8)
            assert (type(y), driven.long - before) == (Tensor, long)
            place = s.data.ptr if type(s) is CuPyArray else s.data_ptr()
            assert place in driven.launches[-1].places


def test_a_call_that_fails_leaves_nothing(driven, torch, monkeypatch):
    """Neither on the long way nor later; the next one is as if it had not been."""
    empty, count = torch.empty_strided, []

    def no_memory(*args, **kwargs):
        count.append(1)
        if len(count) == 2:
            raise MemoryError
        return empty(*args, **kwargs)

    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(torch, "empty_strided", no_memory)
            count.clear()
            before = len(driven.launches)
            with pytest.raises(MemoryError):
                gradients()
        assert watch.recording is None
        gradients()
        assert len(driven.launches) == before + driven.long
    assert driven.long == 2  # all others are what the first came to


def test_threads_note_what_they_launch_themselves(driven, monkeypatch):
    """One waits within its first call until another has had its own."""
    launch, entered, left = target.Kernel.__call__, threading.Event(), threading.Event()

    def late(*args):
        if threading.current_thread() is first:
            entered.set()
            left.wait(10)
        launch(*args)

    def call():
        nq.convert_element_type(tensor(np.zeros(8, "f4")), np.int8)

    monkeypatch.setattr(target.Kernel, "__call__", late)
    first = threading.Thread(target=call)
    first.start()
    assert entered.wait(10)
    assert watch.recording is None
    for _ in range(2):
        gradients()
    left.set()
    first.join()
    call()
    assert len(driven.launches) == 2 * 2 + 2
    assert driven.long == 3


def convert(x, y):
    loops.mapped(lambda x, y: x[0], "copy")(x, y)


ELSEWHERE = []


def to_an_array_of_its_own(x):
    ELSEWHERE.append(tensor(np.zeros(8, "f4")))
    convert(x, arrays.device(ELSEWHERE[-1]))
    return x.new_alike(x.dtype).owner


def on_another_stream(x):
    y = x.new_alike(x.dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrays.DeviceArray, "stream", lambda a: STREAM + 1)
        convert(x, y)
    return y.owner


def by_another_library(x):
    y = arrays.device(CuPyArray(8, np.float32)).new((8,), x.dtype)
    convert(x, y)
    return x.new_alike(x.dtype).owner


def what_it_has_not_made(x):
    convert(x, x.new_alike(x.dtype))
    return ELSEWHERE


def nothing_launched(x):
    return x.new_alike(x.dtype).owner


UNFIT = (
    to_an_array_of_its_own, on_another_stream, by_another_library, what_it_has_not_made,
    nothing_launched,
)  # fmt: skip


@pytest.mark.parametrize("op", UNFIT)
def test_what_cannot_be_repeated(driven, cupy, op):
    """It is called once, and the caller goes the long way from then on."""
    call = again.repeated(op)
    x = arrays.device(tensor(np.zeros(8, "f4")))
    assert call(x) is not None
    assert call(x) is None


def test_memory_that_is_not_aligned(driven, torch, monkeypatch):
    """Kernels that read whole vectors are not given it."""
    gradients()
    before = driven.long
    empty = torch.empty_strided

    def shifted(*args, **kwargs):
        y = empty(*args, **kwargs)
        y.shift = 8
        return y

    monkeypatch.setattr(torch, "empty_strided", shifted)
    gradients()
    assert driven.long == 2 * before


def test_zeros_have_signs(driven):
    x = tensor(np.zeros(8, "f4"))
    for weight in (0.0, -0.0, 0.0, -0.0):
        nq.adaround_regularizer_backward(x, 2.0, weight)
        (weight_of_it,) = [v for v in driven.launches[-1].what[2] if v == 0 and type(v) is float]
        assert str(weight_of_it) == str(weight)
    assert (driven.long, len(driven.launches)) == (2, 4)


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


def test_sparse_tensors(torch):
    """What PyTorch raises of their strides says nothing of the argument."""
    x = Tensor(np.ones(3, np.float32), torch.float32)
    x.layout = "torch.sparse_coo"

    def stride():
        raise RuntimeError("sparse tensors do not have strides")

    x.stride = stride
    with pytest.raises(TypeError, match=r"must be strided, got one that is torch\.sparse_coo"):
        nq.quantize_per_tensor(x, 0.1, 0, -128, 127, np.int8)


@pytest.mark.parametrize(("gpus", "there"), [(1, True), (2, True), (2, False)])
def test_other_gpus(monkeypatch, gpus, there):
    numba = SimpleNamespace(is_available=lambda: there, gpus=range(gpus))
    monkeypatch.setattr(target, "cuda", numba)
    assert target.several.__wrapped__() == (gpus > 1 and there)


def test_arrays_of_another_gpu(driven, cupy, monkeypatch):
    """A kernel could not reach them, and the context would be lost; none is launched."""
    monkeypatch.setattr(target, "several", lambda: True)
    monkeypatch.setattr(target, "_devices", [1])
    current = SimpleNamespace(cuCtxGetDevice=lambda: (0, 1))
    monkeypatch.setattr(target, "driver", current)
    x, y = tensor(np.zeros(8, "f4")), CuPyArray((8,), np.dtype("f4"))
    for ordinal in (0, 1):
        x.get_device, y.device = (lambda n=ordinal: n), SimpleNamespace(id=ordinal)
        for a in (x, y):
            if ordinal:
                assert arrays.device(a).owner is a
                continue
            with pytest.raises(ValueError, match=r"must be on GPU 1, .*, got one on GPU 0"):
                nq.quantize_per_tensor(a, 0.5, 0, -8, 7, np.int8)
    current.cuCtxGetDevice = lambda: (0, 0)
    for a in (x, y):
        with pytest.raises(ValueError, match=r"GPU 1 must be the current one, .*, got GPU 0"):
            nq.quantize_per_tensor(a, 0.5, 0, -8, 7, np.int8)
    current.cuCtxGetDevice = lambda: (201, 0)  # none is
    assert arrays.device(x).owner is x
    assert not driven.launches


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


def test_state_that_shares_memory(driven):
    """Of arrays without gaps, wherever one begins in the other."""
    held = tensor(np.zeros(9, "f4")).held
    rows, scale, zero_point = (tensor(np.zeros(*v)) for v in (((3, 8), "f4"), (3, "f4"), (3, "i4")))

    def observe(low, high):
        low, high = (Tensor(a, "torch.float32") for a in (low, high))
        nq.fused_moving_avg_obs_fake_quant(
            rows, 1, 1, low, high, scale, zero_point, 0.1, -8, 7, 0, per_row_fake_quant=True
        )

    for low, high in ((held[:3], held[2:5]), (held[:3], held[:3]), (held[3:6], held[1:4])):
        with pytest.raises(ValueError, match="running_max must be apart from running_min"):
            observe(low, high)
    assert not driven.launches
    observe(held[:3], held[3:6])
    assert driven.launches


def test_read_only_arrays_are_not_written_to_again(driven, monkeypatch):
    fake, out = nq.fake_quantize_per_tensor_affine, np.ones(8, np.float32)
    x = tensor(np.zeros(8, "f4"))
    for _ in range(2):
        fake(x, 0.1, 0, -8, 7, out=Shown(out))
    with pytest.raises(ValueError, match="out must be writeable, got a read-only array"):
        fake(x, 0.1, 0, -8, 7, out=read_only(out))
    assert (len(driven.launches), driven.long) == (2, 1)


def test_what_is_given_twice_is_not_noted(driven):
    """Of its address nobody could tell which of the two a kernel was given."""
    x, s, z = (tensor(np.zeros(shape, "f4")) for shape in ((6, 8), 6, 6))
    op = nq.fake_quantize_learnable_per_channel_affine_backward
    op(x, x, s, z, 0, -8, 5)
    g = tensor(np.zeros((6, 8), "f4"))
    for long in (True, False, False):
        before = driven.long
        op(g, x, s, z, 0, -8, 5)
        assert (driven.long > before) == long
        assert {g.data_ptr(), x.data_ptr()} <= set(driven.launches[-2].places)
    before = driven.long
    op(x, x, s, z, 0, -8, 5)  # and then it is repeated: a kernel reads where it is told to
    assert driven.long == before


@pytest.mark.parametrize("how", ["packed first", "refused", "launched", "again"])
def test_a_call_keeps_no_array_alive(driven, how):
    """Memory of a GPU is dear: when the call is over, nobody holds its input or what it made."""
    for _ in range(2 if how == "again" else 1):
        x = tensor(np.zeros((6, 24), "f4"))
        if how == "packed first":
            x.held = x.held[:, ::2]
            x.shape = x.held.shape
        out = tensor(np.zeros(x.shape, "i1")) if how == "refused" else None
        with nullcontext() if how != "refused" else pytest.raises(TypeError):
            out = nq.fake_quantize_per_tensor_affine(x, 0.5, 1, -9, 3, out=out)
        held = weakref.ref(x), weakref.ref(out)
        del x, out
        gc.collect()
        assert [a() for a in held] == [None, None]


def test_numbers_are_not_taken_for_others(driven):
    """Numbers are part of what is remembered."""
    for scale, zero_point in ((0.5, 1), (0.25, 1), (0.5, 2), (0.5, 1)):
        nq.dequantize_per_tensor(tensor(np.zeros(32, "i1")), scale, zero_point, -8, 8, np.int8)
        assert driven.launches[-1].what[2][9:11] == [scale, zero_point]
    assert driven.long == 3


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
    """In any order, of tuples in tuples, where None takes no room; numbers become theirs."""
    rng = np.random.default_rng(0)
    values = {"f": 0.1, "d": 0.1, "i": -5, "I": 2**32 - 1, "l": -(2**40), "L": 2**63, "P": 2**47}
    for _ in range(50):
        kinds = [ALL_KINDS[i] for i in rng.integers(0, len(ALL_KINDS), 9)]
        ctypes_of = [target._ctype(kind) for kind in kinds]
        given = [values[kind._type_] for kind in ctypes_of]
        fields = [(f"m{i}", kind) for i, kind in enumerate(ctypes_of)]
        expected = type("Expected", (ctypes.Structure,), {"_fields_": fields})(*given)
        signature = (*kinds[:2], types.Tuple([*kinds[2:5], types.none]), types.Tuple(kinds[5:]))
        room = ctypes.create_string_buffer(b"\x00" * 128)
        nested = (*given[:2], (*given[2:5], None), tuple(given[5:]))
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


def test_a_state_beside_tensors(torch):
    """Whose dtypes are PyTorch's own: what is loaded is held against the bounds all the same."""
    module = FakeQuantize(MinMaxObserver, -8, 7, dtype=np.int8)
    right = module.state_dict()
    module.scale = Tensor(np.ones(1, np.float32), torch.float32)
    module.zero_point = Tensor(np.zeros(1, np.int32), torch.int32)
    for wrong in (8, -9):
        with pytest.raises(ValueError, match=r"zero_point'\] must lie within -8\.\.7"):
            module.load_state_dict(right | {"zero_point": np.array([wrong], np.int32)})
    module.load_state_dict(right)
    assert module.zero_point == 0


def test_too_many_axes_apart():
    """Of 18 axes of two, each second of them taken, no two are one; and no memory is so large."""
    x = np.broadcast_to(np.zeros((), np.float32), (2,) * 18)
    x = arrays.device(Shown(x))
    x.strides = tuple(4 * 3**i for i in range(18))
    y = arrays.device(Shown(np.zeros((2,) * 18, np.float32)))
    with pytest.raises(ValueError, match="axes that are not side by side, got shape"):
        walk.copy(x, y)


def test_qparams_beside_the_data(torch, streams):
    """Their values stay there: one launch, after another for a reciprocal; nothing is looked at."""
    x, s = (Tensor(np.ones(shape, np.float32), torch.float32) for shape in ((4, 6), (1,)))
    z = Tensor(np.zeros(1, np.int32), torch.int32)
    for rounding, launches in (("reciprocal", 2), ("divide", 1)):
        q = nq.quantize_per_tensor(x, s, z, -128, 127, np.int8, rounding=rounding)
        assert (q.dtype, q.shape, streams) == (torch.int8, (4, 6), [STREAM] * launches)
        streams.clear()
    y = nq.dequantize_per_tensor(q, s, z, -128, 127, np.int8)
    assert (y.dtype, y.shape, streams) == (torch.float32, (4, 6), [STREAM])


def test_what_is_made_beside_an_array_is_of_its_library(torch, cupy, monkeypatch, streams):
    """Other libraries would give the memory of a converted scale away while kernels use it."""
    monkeypatch.setattr(torch, "empty_strided", None)
    x = CuPyArray((4, 6), np.float32)
    s, z = Tensor(np.ones(1), torch.float64), Tensor(np.zeros(1, np.int32), torch.int32)
    assert type(nq.fake_quantize_per_tensor_affine(x, s, z, -128, 127)) is CuPyArray
    s = Tensor(np.ones((6, 2), np.float32)[:, 0], torch.float32)
    z = Tensor(np.zeros(6, np.int32), torch.int32)
    assert type(nq.quantize_per_channel(x, s, z, 1, -128, 127, np.int8)) is CuPyArray


def test_what_is_written_elsewhere_first(torch, cupy, monkeypatch):
    """What becomes an `out` with gaps waits in memory of the input's library, of any dtype."""
    monkeypatch.setattr(cupy.cuda, "alloc", None)
    x = Tensor(np.ones((4, 6), np.float32), torch.float32)
    out = CuPyArray((4, 12), ml_dtypes.int4)
    out.shape, out.strides = (4, 6), (12, 2)
    assert nq.quantize_per_tensor(x, 0.5, 0, -8, 7, ml_dtypes.int4, out=out) is out


def test_an_out_that_is_the_input_seen_otherwise(torch, streams):
    """Strides of an axis of one say nothing, and libraries differ in them."""
    held = np.zeros((1, 8), np.float32)
    x = Tensor(held, torch.float32)
    out = Tensor(np.lib.stride_tricks.as_strided(held, (1, 8), (4, 4)), torch.float32)
    for _ in range(3):
        assert nq.fake_quantize_per_tensor_affine(x, 0.5, 0, -8, 7, out=out) is out
    assert len(streams) == 3


def test_calls_that_fail_push_no_others_out(driven):
    x = tensor(np.zeros(48, "f4"))
    scales = [0.5 + k for k in range(again.MOST)]
    for scale in scales:
        nq.fake_quantize_per_tensor_affine(x, scale, 0, -9, 3)
    with pytest.raises(ValueError, match="zero_point"):
        nq.fake_quantize_per_tensor_affine(x, 0.5, 4, -9, 3)
    for scale in scales:
        nq.fake_quantize_per_tensor_affine(x, scale, 0, -9, 3)
    assert (len(driven.launches), driven.long) == (2 * again.MOST, again.MOST)
    nq.fake_quantize_per_tensor_affine(x, 0.25, 0, -9, 3)  # one more than are remembered
    nq.fake_quantize_per_tensor_affine(x, 0.5, 0, -9, 3)
    assert driven.long == again.MOST + 2


def test_numbers_that_differ_each_time(driven, monkeypatch):
    """Calls are recorded when they come again, and done again when two recordings are alike."""
    recorded, record = [], again._Recording
    monkeypatch.setattr(again, "_Recording", lambda *args: recorded.append(1) or record(*args))
    monkeypatch.setattr(again, "FIRST", FIRST)
    monkeypatch.setattr(again, "ALIKE", ALIKE)
    x = tensor(np.zeros(48, "f4"))
    for k in range(3 * again.MOST):
        nq.fake_quantize_per_tensor_affine(x, 0.5 + k, 0, -9, 2)
    assert recorded == []
    for long, recordings in ((1, 0), (1, 1), (1, 2), (0, 2), (0, 2)):
        before = driven.long
        nq.fake_quantize_per_tensor_affine(x, 0.25, 0, -9, 2)
        assert (driven.long - before, len(recorded)) == (long, recordings)
    assert len(driven.launches) == 3 * again.MOST + 5


def test_what_another_launches_meanwhile(driven, monkeypatch):
    """A finalizer, say: it is recorded, too, but not done again, as it is not there each time."""
    monkeypatch.setattr(again, "ALIKE", ALIKE)
    others, copying = [True, False, False], loops.mapped(lambda x, y: x[0], "copy")

    def op(x, out):
        y = x.new_alike(x.dtype)
        copying(x, y)
        if others.pop(0):
            copying(x, arrays.device(out))
        return y.owner

    call = again.repeated(op, 0, (1,))
    x, out = arrays.device(tensor(np.zeros(8, "f4"))), tensor(np.zeros(8, "f4"))
    for launches in (2, 1, 1, 1, 1):
        before = len(driven.launches)
        assert call(x, out) is not None
        assert len(driven.launches) - before == launches
    assert others == []


def test_rows_that_cannot_be_repeated_are_one_kernel(torch, streams):
    """As here, where what is launched is not seen."""
    for _ in range(3):
        nq.quantize_per_token_dynamic(tensor(np.zeros((4, 8), "f4")), np.int8)
    assert streams == [STREAM] * 3


def test_an_op_of_others_is_repeated_as_a_whole(driven):
    for _ in range(3):
        nq.quantize_per_token_dynamic(tensor(np.zeros((4, 8), "i1")), np.int8)
    assert len(driven.launches) == 3 * driven.long > 6


def test_a_step_whose_state_shares_memory(driven):
    """It is refused, whether an equal one was done before or not."""
    x = tensor(np.zeros((4, 8), "f4"))
    for rows in (1, 4):
        low, high, scale = (tensor(np.zeros(rows, "f4")) for _ in range(3))
        z = tensor(np.zeros(rows, "i4"))

        def step(*state):
            nq.fused_moving_avg_obs_fake_quant(
                x, 1, 1, *state, 0.1, -8, 7, 0, state[0].shape[0] > 1
            )

        for _ in range(2):
            with pytest.raises(ValueError, match="running_max must be apart from running_min"):
                step(low, low, scale, z)
            step(low, high, scale, z)
    assert len(driven.launches) == 2 * driven.long


def test_rows_that_are_more_than_blocks():
    """Such are chosen for by one kernel and quantized by another, which count rows otherwise."""
    args = (np.dtype(np.float16), (-128, 127), 1e-5, (), (), (-128, 127, 0), "float32", np.int8)
    for rows, taken in ((2**31 - 1, True), (2**31, False)):
        found = dynamic.dynamic_per_token.at_once((rows, 4), *args)
        assert (found is not None) == taken


def test_an_out_that_overlaps(driven, torch):
    held = np.zeros(12, np.float32)
    x, later = (Tensor(held[i : i + 8], torch.float32) for i in (0, 4))  # aligned alike
    apart = Tensor(np.zeros(8, np.float32), torch.float32)
    one = Tensor(np.broadcast_to(np.zeros(1, np.float32), 8), torch.float32)
    scale, other = (Tensor(a[:1], torch.float32) for a in (apart.held, np.ones(1, np.float32)))
    for once_more in (False, True):  # what is remembered is held against them, too
        for out, s, message in (
            (later, 0.1, "not overlap it"),
            (one, 0.1, "must not repeat its elements"),
            (apart, scale, "apart from scale"),
        ):
            with pytest.raises(ValueError, match=message):
                nq.fake_quantize_per_tensor_affine(x, s, 0, -8, 7, out=out)
        assert len(driven.launches) == 2 * once_more
        for s in (0.1, other):
            nq.fake_quantize_per_tensor_affine(x, s, 0, -8, 7, out=apart)
    assert driven.long == 2


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


def test_metadata_are_not_remembered():
    """A dtype with them equals one without, of which results would have them."""
    described = np.dtype(np.float32, metadata={"unit": "V"})
    for dtype in (described, np.dtype(np.float32)):
        assert arrays._lying(dtype, (3, 11, 13), None).dtype.metadata is None
