"""How kernels are compiled and launched on CUDA: the one module that imports numba.cuda.

A kernel is compiled once for each key, without Numba's dispatcher, and launched by the driver: the
caller knows the types, and a launch costs a few microseconds of Python instead of twenty.
Arrays are raw pointers to kernels; what they need to know of a shape they are told.
"""

from __future__ import annotations

import ctypes
import threading
import types as python_types
import warnings
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import cache, lru_cache
from struct import Struct
from struct import error as StructError
from typing import Any

import numpy as np
from numba import config, types

from npquant.cpu.storage import TYPES
from npquant.cpu.target import no_collection, renamed
from npquant.cuda.watch import watch


@contextmanager
def _numpy_of_old() -> Iterator[None]:
    """NumPy 2.5 has dropped a name that numba-cuda 0.30 asks for while it is imported.

    It also warns of a time without a unit that numba-cuda makes then.
    """
    missing = not hasattr(np, "row_stack")
    if missing:
        setattr(np, "row_stack", np.vstack)  # noqa: B010 (by name, as a checker knows it is gone)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            yield
    finally:
        if missing:
            delattr(np, "row_stack")


#: Whether kernels run as plain Python, a thread at a time (NUMBA_ENABLE_CUDASIM=1).
SIMULATED: bool = config.ENABLE_CUDASIM  # type: ignore[attr-defined]

try:
    with _numpy_of_old():
        from numba import cuda

        if SIMULATED:
            from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray  # noqa: F401 (for arrays.py)
        else:
            import numba.cuda.np.arrayobj  # noqa: F401 (which asks for the name)
            from cuda.bindings import driver
            from numba.cuda import libdevice  # noqa: F401 (for others)
            from numba.cuda.compiler import compile_cuda, kernel_fixup
            from numba.cuda.cudadrv.nvvm import set_launch_bounds
            from numba.cuda.extending import intrinsic, overload, register_model  # noqa: F401 (for others)
except ModuleNotFoundError as error:  # Numba's own numba.cuda, an older one, lacks some of it
    raise ModuleNotFoundError(
        "npquant.cuda needs numba-cuda: pip install '.[cuda13]', or '.[cuda12]', by the driver, in "
        f"a clone of npquant ({error})", name=error.name,
    ) from None  # fmt: skip

#: fma=0: a product and a sum that the contract rounds twice are not fused. Divisions and square
#: roots are rounded correctly and subnormal numbers are kept, as ever without fastmath.
NVVM_OPTIONS = {"fastmath": False, "opt": 3, "fma": 0}

#: Threads of a block. The simulator takes 0.1 ms for each.
THREADS = 32 if SIMULATED else 256
#: Blocks of a launch at most.
MOST_BLOCKS = (1 << 31) - 1
#: Threads of a block that may have 128 registers each, which is plenty.
UNBOUNDED = 512
#: What elements of a launch are counted in. Numba makes 64 bits of a sum of two of 32.
COUNT: Any = np.uint32
#: And places in shared memory: a constant that is added to one is part of the instruction then.
PLACE: Any = np.uint64

Types = tuple[Any, ...]
Key = tuple[Hashable, ...]


class _Thread(threading.local):
    """Of each thread, whether it has a context: a new one has none to launch and copy in."""

    ready = SIMULATED


_thread = _Thread()
_devices: list[int] = []  # the one that the first thread had


def make_ready() -> None:
    """Make a context current in this thread, of the device of the first, unless it has one."""
    if _thread.ready:
        return
    numba = cuda.cudadrv.devices
    with numba.driver.get_active_context() as found:
        missing = not found
    context = numba.get_context(_devices[0] if missing and _devices else None)
    if not _devices:
        _devices.append(context.device.id)
    _thread.ready = True


@cache
def several() -> bool:
    """Whether there are other GPUs than the one of this process."""
    return not SIMULATED and cuda.is_available() and len(cuda.gpus) > 1


def on_gpu(found: int) -> None:
    """Refuse an array on another GPU than that of this process, whose kernels cannot reach it."""
    make_ready()
    ours = _devices[0]
    if found != ours:
        raise ValueError(
            f"a device array must be on GPU {ours}, where this process computes, got one on GPU "
            f"{found}"
        )
    error, current = driver.cuCtxGetDevice()
    if not int(error) and int(current) != ours:  # where kernels would be launched
        raise ValueError(
            f"GPU {ours} must be the current one, where this process computes, got GPU "
            f"{int(current)}, as within torch.cuda.device({int(current)})"
        )


def pointer(dtype: Any) -> types.Type:
    """The type of an array to a kernel; a bool is a byte, as it is in memory."""
    dtype = np.dtype(dtype)
    return types.CPointer(types.uint8 if dtype == np.bool_ else TYPES[dtype])


class Kernel:
    """A function of one thread, compiled once a key.

    Parameters
    ----------
    make : callable
        ``make(*key) -> (function, types)``: what a thread does, and the Numba types of its
        arguments. Arrays are pointers; an argument may be a tuple.
    name : str
        What it is called in profiles.
    block : callable, optional
        ``block(*key)``: the threads of a block. Of more than UNBOUNDED the compiler must know, or
        its registers might not do for them.
    """

    def __init__(
        self, make: Callable[..., tuple[Callable[..., None], Types]], name: str,
        block: Callable[..., int] | None = None,
    ) -> None:  # fmt: skip
        self.name, self._make, self._block = name, make, block
        self._entries: dict[Key, Any] = {}

    def __call__(self, blocks: int, threads: int, args: tuple[Any, ...], key: Key, on: Any) -> None:
        """Launch on a stream; `args` are pointers (in the simulator arrays), numbers and tuples."""
        make_ready()
        entry = self._entries.get(key)
        if entry is None:
            entry = self.ready(key)
        grid, values = (blocks, 1, 1, threads, 1, 1), flattened(args)
        entry.launch(grid, values, on)
        if watch.recording is not None:
            watch.recording.launched(entry, grid, values, on)

    def ready(self, key: Key) -> Any:
        """Compile what is launched for a key, unless it is there, and launch nothing."""
        make_ready()
        entry = self._entries.get(key)
        if entry is None:
            with no_collection():
                entry = self._entries[key] = self._compiled(key)
        return entry

    def _compiled(self, key: Key) -> Any:
        function, signature = self._make(*key)
        if SIMULATED:
            return _Simulated(function, signature)
        cc = cuda.get_current_device().compute_capability
        return _Compiled(self._library(function, signature, key, cc), signature)

    def _library(self, function: Any, signature: Types, key: Key, cc: tuple[int, int]) -> Any:
        block = 0 if self._block is None else self._block(*key)
        bound = block if block > UNBOUNDED else None
        return _library(renamed(function, self.name), signature, cc, bound)


def _library(function: Any, signature: Types, cc: tuple[int, int], bound: int | None) -> Any:
    result = compile_cuda(
        function, types.void, signature, nvvm_options=NVVM_OPTIONS, cc=cc, forceinline=True
    )
    library, name = result.library, result.fndesc.llvm_func_name
    library._entry_name = name
    kernel = library.get_function(name)
    kernel_fixup(kernel, False)
    set_launch_bounds(kernel, bound)
    return library


class _Room:
    """Where the arguments of a launch lie, as the driver is told of them."""

    def __init__(self) -> None:
        self.held, self.size = ctypes.create_string_buffer(4096), ctypes.c_size_t()
        place, size = ctypes.addressof(self.held), ctypes.addressof(self.size)
        # CU_LAUNCH_PARAM_BUFFER_POINTER and _SIZE, each with its value, and _END.
        self._extra = (ctypes.c_void_p * 5)(1, place, 2, size, 0)
        self.extra = ctypes.addressof(self._extra)


#: Those that no launch is using. In the midst of one a finalizer may launch something else.
_rooms: list[_Room] = []


class _Compiled:
    """A kernel in the memory of a device."""

    def __init__(self, library: Any, signature: Types) -> None:
        self._library, self._kernel = library, library.get_cufunc().kernel  # which keep it there
        self._function = driver.CUfunction(int(self._kernel.handle))
        self._arguments = Arguments(signature)

    def launch(self, grid: tuple[int, ...], values: list[Any], on: Any) -> None:
        """Launch a grid, in all its axes, on a stream; `values` are what the kernel receives."""
        try:
            room = _rooms.pop()
        except IndexError:
            room = _Room()
        room.size.value = self._arguments.put(room.held, values)
        drive(driver.cuLaunchKernel, self._function, *grid, 0, _stream(on), None, room.extra)
        _rooms.append(room)  # the driver has copied them

    def pointers(self, values: list[Any]) -> list[tuple[int, int, None]]:
        """Which of `values` are addresses: where they stand, and what they are."""
        kinds = self._arguments.kinds
        return [(i, v, None) for i, v in enumerate(values) if kinds[i] is ctypes.c_void_p]


class Arguments:
    """How the arguments of a signature lie in memory: as the members of a struct of C."""

    def __init__(self, signature: Types) -> None:
        self.kinds = [_ctype(t) for t in _flattened(signature)]
        struct = Struct("".join([t._type_ for t in self.kinds]))
        self._pack, self._size = struct.pack_into, struct.size

    def put(self, room: Any, values: list[Any]) -> int:
        """Write them, and say how many bytes they take."""
        try:
            self._pack(room, 0, *values)
        except StructError:  # a number that its type does not hold is converted as C does
            pairs = zip(self.kinds, values, strict=True)
            values = [v if t is ctypes.c_void_p else t(v).value for t, v in pairs]
            self._pack(room, 0, *values)
        return self._size


#: CUDA_ERROR_INVALID_CONTEXT, of a thread that has none.
_NO_CONTEXT = 201


def drive(call: Callable[..., Any], *args: Any) -> None:
    """Let the driver do something; where a context that was current is no more, in a new one.

    What ``with numba.cuda.gpus[0]:`` has made current it takes away.
    """
    result = call(*args)
    if int(result[0]) == _NO_CONTEXT:
        _thread.ready = False
        make_ready()
        result = call(*args)
    if int(result[0]):
        raise RuntimeError(f"CUDA: {result[0].name}")


def flattened(values: Any) -> list[Any]:
    """What a kernel receives: of tuples their members."""
    found: list[Any] = []
    for v in values:
        if type(v) is tuple:
            found += flattened(v)
        else:
            found.append(v)
    return found


def _flattened(signature: Any) -> list[types.Type]:
    """The same of their types."""
    several = types.BaseTuple
    return [t for v in signature for t in (_flattened(v) if isinstance(v, several) else (v,))]


_CTYPES: dict[types.Type, Any] = {
    types.float32: ctypes.c_float,
    types.float64: ctypes.c_double,
    types.int32: ctypes.c_int32,
    types.uint32: ctypes.c_uint32,
    types.int64: ctypes.c_int64,
    types.uint64: ctypes.c_uint64,
}


def _ctype(kind: types.Type) -> Any:
    """As what an argument is passed."""
    return ctypes.c_void_p if isinstance(kind, types.CPointer) else _CTYPES[kind]


@lru_cache(maxsize=256)
def _stream(handle: int) -> Any:
    return driver.CUstream(handle)


class _Simulated:
    """A kernel as plain Python; numbers are rounded to its types, as a launch would."""

    def __init__(self, function: Any, signature: Types) -> None:
        self._function, self._signature = function, signature

    def launch(self, grid: tuple[int, ...], values: list[Any], on: Any) -> None:
        """As `_Compiled` has it."""
        function, rounded = self._function, _rounded(self._signature, iter(values))
        quietly = np.errstate

        def thread() -> None:
            with quietly(all="ignore"):
                function(*rounded)

        # The simulator replaces `cuda` among the globals of what it runs.
        run = python_types.FunctionType(
            thread.__code__, function.__globals__, "thread", None, thread.__closure__
        )
        cuda.jit(run)[grid[:3], grid[3:]]()

    def pointers(self, values: list[Any]) -> list[tuple[int, int, Any]]:
        """The same, with the elements and the dtype of the memory there."""
        there = [(i, v) for i, v in enumerate(values) if isinstance(v, np.ndarray)]
        return [(i, v.ctypes.data, (v.size, v.dtype)) for i, v in there]


def _rounded(signature: Any, values: Iterator[Any]) -> tuple[Any, ...]:
    """The arguments of a signature, numbers in its types, from what is left of `values`."""
    return tuple([
        _rounded(t, values)
        if isinstance(t, types.BaseTuple)
        else getattr(np, t.name)(next(values))
        if isinstance(t, types.Number)
        else next(values)
        for t in signature
    ])  # fmt: skip
