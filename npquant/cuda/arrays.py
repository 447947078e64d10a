"""Device arrays of every library, described for kernels; results made by the library of the input.

Nothing here waits for the device but what copies to it.
"""

from __future__ import annotations

import ctypes
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, lru_cache
from math import prod
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np

from npquant.cuda import target
from npquant.cuda.target import SIMULATED
from npquant.cuda.watch import watch
from npquant.dtypes import without_metadata
from npquant.layout import dense_strides, order_of_strides

#: Kinds of arrays that are remembered.
KINDS = 4096


@dataclass(frozen=True, eq=False, slots=True)
class Lying:
    """What shape, strides and dtype say of an array, found once: the same say the same object."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    size: int
    #: Whether the elements follow each other in C order.
    contiguous: bool
    #: The axes from the slowest to the fastest, of an array without gaps; else None.
    order: tuple[int, ...] | None
    #: The index of the first element from the lowest address, and the elements from there on: both
    #: count elements in memory, and are 0 and the size where it has no gaps.
    lowest: tuple[int, int]
    #: Whether the elements lie at multiples of their size, if the first does.
    even: bool


@lru_cache(maxsize=KINDS)
def _lying(dtype: np.dtype[Any], shape: tuple[int, ...], strides: tuple[int, ...] | None) -> Lying:
    # NumPy's would be remembered for equal shapes, too, and have not all of int's methods.
    shape = tuple(map(int, shape))
    strides = None if strides is None else tuple(map(int, strides))
    itemsize, size = dtype.itemsize, prod(shape)
    if not itemsize:
        raise TypeError(f"a device array must have elements of a byte at least, got {dtype}")
    dense = contiguous_strides(shape, itemsize)
    # Nobody steps along an axis of one, and libraries differ in what they say of it.
    ways = zip(shape, strides or dense, dense, strict=True)
    strides = tuple([d if n == 1 else s for n, s, d in ways])
    steps = [(n, s) for n, s in zip(shape, strides, strict=True) if n > 1]
    below = sum(-s * (n - 1) for n, s in steps if s < 0)
    above = sum(s * (n - 1) for n, s in steps if s > 0)
    first, last = below // itemsize, (below + above) // itemsize
    return Lying(
        without_metadata(dtype), shape, strides, size,
        not size or strides == dense,
        order_of_strides(shape, strides, itemsize), (first, last + 1 if size else 0),
        not any(s % itemsize for _, s in steps),
    )  # fmt: skip


class DeviceArray:
    """An array on a GPU as ops and kernels see it: where it lies, and what it is to its owner."""

    __slots__ = (
        "__weakref__", "_leader", "contiguous", "dtype", "library", "lying", "owner", "pointer",
        "shape", "size", "strides", "writeable",
    )  # fmt: skip

    def __init__(
        self, owner: Any, library: Any, pointer: int, shape: Iterable[int], dtype: Any,
        strides: Iterable[int] | None = None, writeable: bool = True,
    ) -> None:  # fmt: skip
        given = None if strides is None else tuple(strides)
        self._is(owner, library, pointer, _lying(np.dtype(dtype), tuple(shape), given))
        self.writeable = writeable

    def _is(self, owner: Any, library: Any, pointer: int, lying: Lying) -> DeviceArray:
        self.owner, self.library, self.pointer, self.lying = owner, library, pointer, lying
        self.dtype, self.shape, self.strides = lying.dtype, lying.shape, lying.strides
        self.size, self.contiguous = lying.size, lying.contiguous
        self._leader: DeviceArray | None = None
        self.writeable = True
        return self

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def viewed(self, shape: tuple[int, ...], strides: tuple[int, ...] | None = None) -> DeviceArray:
        """The same memory in another shape."""
        y = DeviceArray(
            self.owner, self.library, self.pointer, shape, self.dtype, strides, self.writeable
        )
        y._leader = self._leader
        return y

    def with_axes_of_one(self, shape: tuple[int, ...]) -> DeviceArray:
        """The same elements in a longer shape, which has axes of one before others or for them."""
        own = zip(
            (1,) * (len(shape) - self.ndim) + self.shape,
            (0,) * (len(shape) - self.ndim) + self.strides,
            shape,
            strict=True,
        )
        return self.viewed(shape, tuple([s if n == m else 0 for n, s, m in own]))

    def stream(self) -> int:
        """The handle of the stream that its library works on, or that of the array it follows."""
        a = self._leader or self
        return int(a.library.stream(a))

    def follow(self, x: DeviceArray) -> None:
        """Be beside `x` in an op, all of which goes to one stream."""
        self._leader = x._leader or x

    def new(
        self, shape: tuple[int, ...], dtype: Any, strides: tuple[int, ...] | None = None
    ) -> DeviceArray:
        """An array on the same device, made by its library, or by that of the array it follows.

        On the stream of the latter kernels may still use it when it is freed: no other library
        waits for that.
        """
        like, dtype = self._leader or self, np.dtype(dtype)
        strides = strides or contiguous_strides(shape, dtype.itemsize)
        made = device(like.library.empty(like, shape, dtype, strides))
        if watch.recording is not None:
            watch.recording.made(made, like, shape, dtype, strides)
        return made

    def scratch(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> DeviceArray:
        """The same in C order, for elements that its library need not know; nobody else sees it."""
        y = self.new(shape, np.dtype(f"i{dtype.itemsize}"))
        return y._is(y.owner, y.library, y.pointer, _lying(dtype, y.shape, y.strides))

    def new_alike(self, dtype: Any) -> DeviceArray:
        """A new one of the same shape, that lies in memory as this does if this has no gaps."""
        if self.contiguous:
            return self.new(self.shape, dtype)
        order, itemsize = self.lying.order or tuple(range(self.ndim)), np.dtype(dtype).itemsize
        return self.new(self.shape, dtype, dense_strides(self.shape, order, itemsize))

    def overlaps(self, other: DeviceArray) -> bool:
        """Whether the memory from the first to the last element of both has a part in common."""
        (a, b), (c, d) = self.extent(), other.extent()
        return a < d and c < b

    def extent(self) -> tuple[int, int]:
        """The address of the first byte of the memory, and of that behind the last."""
        first, count = self.lying.lowest
        begin = self.pointer - first * self.dtype.itemsize
        return begin, begin + count * self.dtype.itemsize

    def argument(self, start: int = 0) -> Any:
        """What a kernel is given: the address of an element, counted from the lowest in memory.

        In the simulator, the elements from there on.
        """
        first, count = self.lying.lowest
        address = self.pointer + (start - first) * self.dtype.itemsize
        return memory(address, count - start, self.dtype) if SIMULATED else address


@lru_cache(maxsize=1024)
def contiguous_strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """The strides of an array in C order, in bytes."""
    return dense_strides(shape, tuple(range(len(shape))), itemsize)


# --- libraries --------------------------------------------------------------------------------


class Library(ABC):
    """One that makes arrays, whose elements are not set."""

    @abstractmethod
    def empty(self, like: DeviceArray, shape: Any, dtype: Any, strides: Any) -> Any:
        """An array beside `like`."""

    def maker(self, shape: Any, dtype: Any, strides: Any) -> Callable[[DeviceArray], Any]:
        """What makes the same again and again: what its kind says is looked up once."""
        return lambda like: self.empty(like, shape, dtype, strides)


class Torch(Library):
    """PyTorch's CUDA tensors."""

    def __init__(self, torch: ModuleType) -> None:
        self._torch = torch
        names = (
            "float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2",
            "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "bool",
        )  # fmt: skip
        pairs = [(getattr(torch, n), _numpy_dtype(n)) for n in names if hasattr(torch, n)]
        self._to_numpy, self._from_numpy = dict(pairs), {d: t for t, d in pairs}
        self._lying = lru_cache(maxsize=KINDS)(self._lying_so)
        self._elements = lru_cache(maxsize=1024)(self._in_elements)
        self.address: Callable[[Any], int] = torch.Tensor.data_ptr
        # What Triton asks, where it is there: a tenth of the time, with no object for the stream.
        self._raw_stream = getattr(getattr(torch, "_C", None), "_cuda_getCurrentRawStream", None)

    def describe(self, value: Any) -> DeviceArray:
        try:
            strides = value.stride()
        except RuntimeError as error:
            raise TypeError(f"a tensor must be strided, got one that is {value.layout}") from error
        lying = self._lying(value.dtype, value.shape, strides)
        if value.is_neg():
            raise ValueError("a tensor must hold its values, got one that PyTorch negates when it "
                             "is read: take its resolve_neg()")  # fmt: skip
        if target.several():
            target.on_gpu(value.get_device())
        a = DeviceArray.__new__(DeviceArray)
        return a._is(value, self, value.data_ptr(), lying)

    def _lying_so(self, kind: Any, shape: Any, stride: Any) -> Lying:
        dtype = self._to_numpy.get(kind)
        if dtype is None:
            raise TypeError(f"a tensor must have a dtype that npquant knows, got {kind}")
        size = dtype.itemsize
        return _lying(dtype, tuple(shape), tuple([s * size for s in stride]))

    def empty(self, like: DeviceArray, shape: Any, dtype: Any, strides: Any) -> Any:
        return self.maker(shape, dtype, strides)(like)

    def maker(self, shape: Any, dtype: Any, strides: Any) -> Callable[[DeviceArray], Any]:
        kind, steps = self._elements(dtype, strides)
        torch = self._torch
        return lambda like: torch.empty_strided(shape, steps, dtype=kind, device=like.owner.device)

    def _in_elements(self, dtype: Any, strides: tuple[int, ...]) -> tuple[Any, tuple[int, ...]]:
        kind = self._from_numpy.get(dtype)
        if kind is None:
            raise TypeError(f"dtype must be one that PyTorch has on a GPU, got {dtype}")
        return kind, tuple([s // dtype.itemsize for s in strides])

    def upload(self, like: DeviceArray, a: np.ndarray[Any, Any]) -> Any:
        # A copy, as it takes none that is reversed, and warns of one that cannot be written to.
        return self._torch.from_numpy(np.array(a)).to(like.owner.device)

    def stream(self, a: DeviceArray) -> int:
        if self._raw_stream is not None:
            return int(self._raw_stream(a.owner.get_device()))
        return int(self._torch.cuda.current_stream(a.owner.device).cuda_stream)


class CuPy(Library):
    """CuPy's arrays."""

    def __init__(self, cupy: ModuleType) -> None:
        self._cupy = cupy

    def describe(self, value: Any) -> DeviceArray:
        if target.several():
            target.on_gpu(value.device.id)
        return DeviceArray(value, self, value.data.ptr, value.shape, value.dtype, value.strides)

    def address(self, value: Any) -> int:
        return int(value.data.ptr)

    def empty(self, like: DeviceArray, shape: Any, dtype: Any, strides: Any) -> Any:
        with like.owner.device:
            room = self._cupy.cuda.alloc(prod(shape) * dtype.itemsize)
            return self._cupy.ndarray(shape, dtype, room, strides)

    def upload(self, like: DeviceArray, a: np.ndarray[Any, Any]) -> Any:
        with like.owner.device:
            return self._cupy.asarray(a)

    def stream(self, a: DeviceArray) -> int:
        return int(self._cupy.cuda.get_current_stream().ptr)


class Interface(Library):
    """Numba's arrays, and those of others that have `__cuda_array_interface__` or DLPack.

    Results are Numba's arrays.
    """

    def describe(self, value: Any) -> DeviceArray:
        if _is_numbas(value):  # whose interface tells no strides of what is broadcast, too
            return DeviceArray(
                value, self, self.address(value), value.shape, value.dtype, value.strides
            )
        if not hasattr(value, "__cuda_array_interface__"):
            return self._of_dlpack(value)
        found = value.__cuda_array_interface__
        if found.get("mask") is not None:
            raise TypeError("a device array must not be masked, got one with a mask")
        dtype = getattr(value, "dtype", None)
        dtype = dtype if isinstance(dtype, np.dtype) else np.dtype(found["typestr"])
        address, read_only = found["data"]
        strides = found.get("strides")
        return DeviceArray(value, self, int(address or 0), found["shape"], dtype, strides,
                           not read_only)  # fmt: skip

    def _of_dlpack(self, value: Any) -> DeviceArray:
        from cuda.core.utils import StridedMemoryView

        # The default stream, DLPack's 1, shall wait for what is still being written. (-1: none.)
        view = StridedMemoryView.from_dlpack(value, stream_ptr=1)
        strides = None if view.strides is None else [s * view.dtype.itemsize for s in view.strides]
        # The view keeps the memory alive.
        return DeviceArray(view, self, view.ptr, view.shape, view.dtype, strides, not view.readonly)

    def address(self, value: Any) -> int:
        return int(value.device_ctypes_pointer.value or 0)

    def empty(self, like: DeviceArray | None, shape: Any, dtype: Any, strides: Any) -> Any:
        target.make_ready()
        # The array says on which stream it is written, and what reads it asks it for that. One that
        # Numba has made it keeps, too: with the last reference it would be destroyed.
        on: Any = None if like is None else getattr(like.owner, "stream", None)
        if not isinstance(on, target.cuda.cudadrv.driver.Stream) or not int(on.handle):
            given, handle = on, 0 if like is None else like.stream()
            on = target.cuda.external_stream(handle) if handle else 0
            if handle and hasattr(given, "__cuda_stream__"):
                on.given = given  # one of cuda.core would be destroyed, too
        made = target.cuda.cudadrv.devicearray.DeviceNDArray
        return made(shape, strides, dtype, stream=on)

    def upload(self, like: DeviceArray, a: np.ndarray[Any, Any]) -> Any:
        x = np.ascontiguousarray(a).reshape(a.shape)
        y = self.empty(like, x.shape, x.dtype, x.strides)
        if x.size:
            target.drive(target.driver.cuMemcpyHtoD, self.address(y), x.ctypes.data, x.nbytes)
            # Of memory that is not pinned, it may return before all has arrived.
            target.drive(target.driver.cuStreamSynchronize, 0)
        return y

    def stream(self, a: DeviceArray) -> int:
        if not _is_numbas(a.owner):
            return int(getattr(a.owner, "__cuda_array_interface__", {}).get("stream") or 0)
        on = a.owner.stream
        # One of cuda.core is no number.
        return int(on.__cuda_stream__()[1] if hasattr(on, "__cuda_stream__") else on or 0)


def _is_numbas(value: Any) -> bool:
    """Whether `value` is an array of Numba."""
    return getattr(value, "__cuda_ndarray__", False) is True


class Simulator(Library):
    """The arrays of Numba's CUDA simulator, which are NumPy's underneath."""

    def describe(self, value: Any) -> DeviceArray:
        a = value._ary
        return DeviceArray(value, self, a.ctypes.data, a.shape, a.dtype, a.strides,
                           a.flags.writeable)  # fmt: skip

    def address(self, value: Any) -> int:
        return int(value._ary.ctypes.data)

    def empty(self, like: DeviceArray, shape: Any, dtype: Any, strides: Any) -> Any:
        return target.FakeCUDAArray(np.ndarray(shape, dtype, strides=strides))

    def upload(self, like: DeviceArray, a: np.ndarray[Any, Any]) -> Any:
        return target.FakeCUDAArray(a.copy())

    def stream(self, a: DeviceArray) -> int:
        return 0


def memory(address: int, count: int, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """The simulator's memory as a kernel sees it; its owner keeps it alive."""
    held: Any = (ctypes.c_char * (count * dtype.itemsize)).from_address(address)
    found: np.ndarray[Any, Any] = np.ndarray((count,), dtype, held)
    return found


def _numpy_dtype(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name, None) or getattr(np, name, None) or np.bool_)


_torch = cache(Torch)
_cupy = cache(CuPy)
_interface = Interface()
_simulator = Simulator()
#: What makes arrays for those who have no other library: Numba.
OWN: Any = _simulator if SIMULATED else _interface


def _library(value: Any) -> Any:
    """The library of a device array."""
    if getattr(value, "is_cuda", None) is True:
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.Tensor):
            return _torch(torch)
    if type(value).__module__.partition(".")[0] == "cupy":
        return _cupy(sys.modules["cupy"])
    if SIMULATED and type(value).__name__ == "FakeCUDAArray":
        return _simulator
    return _interface


def device(value: Any) -> DeviceArray:
    """An array on a GPU, described."""
    if type(value) is DeviceArray:
        return value
    found: DeviceArray = _library(value).describe(value)
    size = found.dtype.itemsize
    if not found.pointer and found.size:  # a wrapper, or a storage that was freed
        raise ValueError(
            f"a device array must have memory, got one of {found.size} elements at address 0"
        )
    least = size if size in (1, 2, 4, 8) else found.dtype.alignment  # others no kernel reads
    if found.pointer % least or not found.lying.even:
        raise ValueError(
            f"a device array must have elements at multiples of {least} bytes, got one at "
            f"{found.pointer:#x} with strides {found.strides}"
        )
    return found
