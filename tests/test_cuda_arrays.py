"""Libraries of device arrays: theirs are the results, the streams, and the names of dtypes."""

import ctypes
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

import npquant as nq
from npquant.arrays import beside
from npquant.cuda import arrays, target, to_host
from npquant.modules import FakeQuantize, MinMaxObserver
from npquant.optim import SGD
from standins import (
    STREAM,
    TORCH,
    CuPyArray,
    Tensor,
    cupy,
    driven,
    read_only,
    streams,
    tensor,
    torch,
)
from twins import Shown


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


@pytest.mark.parametrize("gaps", [False, True])
def test_an_interface_in_integers_of_numpy(gaps, streams):
    """They are not those of an equal shape ever after."""
    held = np.zeros((2, 3, 41), np.float32)
    held = held[:, ::-1] if gaps else held
    x, again = Shown(held), Shown(held)
    told = x.__cuda_array_interface__
    for what in ("shape", "strides"):
        told[what] = tuple(map(np.int64, told[what]))
    told["data"] = np.uint64(held.ctypes.data), False
    scale, zero_point = Shown(np.ones(3, np.float32)), Shown(np.zeros(3, np.int32))
    for there in (x, again):
        a = arrays.device(there)
        numbers = a.pointer, a.size, *a.shape, *a.strides, *a.lying.lowest, *a.extent()
        assert {type(n) for n in numbers} == {int}
        if not gaps:
            out = Shown(np.zeros(held.shape, np.int8))
            nq.quantize_per_channel(there, scale, zero_point, 1, -8, 7, np.int8, out=out)
    assert len(streams) == (0 if gaps else 2)


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


def test_metadata_are_not_remembered():
    """A dtype with them equals one without, of which results would have them."""
    described = np.dtype(np.float32, metadata={"unit": "V"})
    for dtype in (described, np.dtype(np.float32)):
        assert arrays._lying(dtype, (3, 11, 13), None).dtype.metadata is None
