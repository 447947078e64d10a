"""CPU kernels and their CUDA twins, side by side: a backend that calls both on the same arguments.

Where kernels run is where `npquant.cuda` runs them: in the simulator, or on a GPU. What a kernel is
asked to launch can also be noted in place of a launch, and for that neither is needed.
"""

import ast
import importlib
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from cases import assert_same
from npquant import cpu
from npquant.checks import calls
from npquant.cuda import arrays, target
from npquant.cuda.arrays import DeviceArray
from npquant.cuda.target import SIMULATED
from npquant.ops.fast_path import no_fast_path
from npquant.owners import on_device

#: Memory of a GPU comes with every address a multiple of it; so does what stands in for it.
ALIGNED = 256

#: What new memory is full of: no result, and as a float no number that a test uses.
GARBAGE = 0x5A


def files():
    """The file of each kernel: `npquant.cpu` names it where it imports it."""
    source = Path(cpu.__file__).read_text()
    return {
        alias.name: node.module.rsplit(".", 1)[-1]
        for node in ast.parse(source).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def twin(name):
    """The CUDA kernel of a name, from the file that has the name of the CPU kernel's file."""
    return getattr(importlib.import_module(f"npquant.cuda.{files()[name]}"), name)


# --- memory ---------------------------------------------------------------------------------------


class Memory:
    """A library of device arrays for tests: any strides, any dtype, any alignment.

    Parameters
    ----------
    real : bool
        Whether its arrays lie on a GPU; else on the host, where the simulator looks.
    """

    def __init__(self, real):
        self.real = real

    def upload(self, x):
        """A copy on the device that lies as `x` does, and is aligned to 16 bytes as `x` is.

        Where elements of `x` are not aligned, which no GPU can read, those of the copy are.
        """
        low, high = np.lib.array_utils.byte_bounds(x) if x.size else (0, 0)
        start = low % 16
        start = x.itemsize if start % x.itemsize else start
        held = np.full(start + high - low, GARBAGE, np.uint8)
        offset = start + x.ctypes.data - low if x.size else 0
        if x.size:
            np.ndarray(x.shape, x.dtype, held, offset, x.strides)[...] = x
        owner, address = self._held(held)
        return DeviceArray(owner, self, address + offset, x.shape, x.dtype, x.strides)

    def download(self, a):
        """What a device array holds."""
        if isinstance(a.library, Memory):
            if not a.size:
                return np.empty(a.shape, a.dtype)
            raw, base = self.bytes_of(a.owner)
            return np.ndarray(a.shape, a.dtype, raw, a.pointer - base, a.strides).copy()
        return np.asarray(a.owner.copy_to_host())

    def empty(self, like, shape, dtype, strides):
        whole = sum((n - 1) * abs(s) for n, s in zip(shape, strides, strict=True) if n)
        size = whole + dtype.itemsize if 0 not in shape else 0
        owner, address = self._held(np.full(size, GARBAGE, np.uint8))
        return DeviceArray(owner, self, address, shape, dtype, strides)

    def stream(self, a):
        return 0

    def _held(self, data):
        """What keeps a copy of these bytes alive, and its address."""
        if self.real:
            owner = target.cuda.to_device(data if data.size else np.zeros(1, np.uint8))
            return owner, owner.__cuda_array_interface__["data"][0]
        room = np.empty(data.size + ALIGNED, np.uint8)
        start = -room.ctypes.data % ALIGNED
        owner = room[start : start + data.size]
        owner[...] = data
        return owner, room.ctypes.data + start

    def bytes_of(self, owner):
        """The bytes of what `_held` has made, and their address."""
        if self.real:
            return owner.copy_to_host(), owner.__cuda_array_interface__["data"][0]
        return owner, owner.ctypes.data


MEMORY = Memory(real=not SIMULATED and target.cuda.is_available())


def off_vectors(x):
    """`x` one element beyond where a vector begins."""
    part = np.empty(x.nbytes + 32, np.uint8)
    first = -part.ctypes.data % 16 + x.itemsize
    part = part[first : first + x.nbytes].view(x.dtype).reshape(x.shape)
    part[...] = x
    return part


# --- both -----------------------------------------------------------------------------------------


def both(ours, theirs, *args, compared=True, **kwargs):
    """What a kernel of the CPU returns; its twin must return the same, and write the same.

    The twin is given copies on the device of all arrays, as they are before the call.
    """
    pairs = {}
    mirrored = [_mirrored(v, pairs) for v in args]
    named = {key: _mirrored(v, pairs) for key, v in kwargs.items()}
    expected = ours(*args, **kwargs)
    got = theirs(*mirrored, **named)
    if compared:
        for host, copy in pairs.values():
            assert_same(MEMORY.download(copy), host)
        _compare(got, expected)
    return expected


class Both:
    """A backend whose kernels are those of the CPU, each followed by its twin and a comparison.

    Attributes
    ----------
    called : set
        The names of the kernels that were called.
    compared : bool
        Whether to compare. Where no kernel is launched there is nothing to compare.
    """

    def __init__(self, compared=True):
        self.called, self.compared = set(), compared

    def __getattr__(self, name):
        kernel = getattr(cpu, name)

        def call(*args, **kwargs):
            self.called.add(name)
            return both(kernel, twin(name), *args, compared=self.compared, **kwargs)

        call.ready = lambda *args: (call, args)  # as optimizers ask for it
        return call


def _mirrored(value, pairs):
    """`value` with a device array for each array in it; an array given twice is one again."""
    if type(value) is tuple:
        return tuple(_mirrored(v, pairs) for v in value)
    if not isinstance(value, np.ndarray):
        return value
    place = value.ctypes.data, value.shape, value.strides, value.dtype
    if place not in pairs:
        pairs[place] = value, MEMORY.upload(value)
    return pairs[place][1]


def _compare(got, expected):
    if isinstance(expected, tuple):
        assert len(got) == len(expected)
        for one, other in zip(got, expected, strict=True):
            _compare(one, other)
        return
    if on_device(got):
        got = MEMORY.download(arrays.device(got))
    if got is not expected:
        assert_same(np.asarray(got), np.asarray(expected))


@contextmanager
def installed(both):
    """The ops and the optimizers call `both` in place of the CPU's kernels.

    Small arrays too, which otherwise come to kernels without a backend.
    """
    from npquant import backend, ops

    of = backend.of
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend, "of", lambda x: both if of(x) is cpu else of(x))
        for module in vars(ops).values():
            for name in vars(module) if isinstance(module, ModuleType) else ():
                if name.startswith("fast_"):
                    patch.setattr(module, name, lambda *args, **kwargs: no_fast_path)
        calls.forget()
        yield
    calls.forget()


# --- what is compiled -----------------------------------------------------------------------------


class Noted:
    """The kernels that were asked for, in place of launches.

    Attributes
    ----------
    launches : dict
        For each (kernel, key) the names of the public kernels that came to it.
    """

    def __init__(self, monkeypatch):
        self.launches, self.name, self.both = {}, None, Both(compared=False)
        noted = self

        def note(kernel, blocks, threads, args, key, on):
            noted.launches.setdefault((kernel, key), set()).add(noted.name)

        monkeypatch.setattr(target.Kernel, "__call__", note)
        monkeypatch.setattr(target.Kernel, "ready", lambda kernel, key: None)

    def __getattr__(self, name):
        call = getattr(self.both, name)

        def named(*args, **kwargs):
            self.name = name
            return call(*args, **kwargs)

        named.ready = lambda *args: (named, args)
        return named


_libraries = {}


def ptx(kernel, key, cc):
    """The PTX of one key of a kernel for a compute capability; no device is needed.

    What Numba makes is the same for all, and is made once.
    """
    from numba.cuda import dispatcher

    if (kernel, key) not in _libraries:
        device = SimpleNamespace(compute_capability=cc)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(dispatcher, "get_current_device", lambda: device)
            made = kernel._library(*kernel._make(*key), key, cc)
        _libraries[kernel, key] = made
    return _libraries[kernel, key].get_asm_str(cc=cc)


# --- arrays as a library gives them ---------------------------------------------------------------


class _Given:
    """An array on a GPU as any library shows it."""

    def __init__(self, a):
        self.held, self.dtype = a.owner, a.dtype
        self.__cuda_array_interface__ = {
            "shape": a.shape, "strides": a.strides, "data": (a.pointer, False), "version": 3,
            "typestr": a.dtype.str,
        }  # fmt: skip


def given(x):
    """A copy of an array on the device that lies as `x` does, of a type that ops take."""
    a = MEMORY.upload(x)
    if not SIMULATED:
        return _Given(a)
    from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray

    if not a.size:
        return FakeCUDAArray(np.empty(a.shape, a.dtype))
    raw, base = MEMORY.bytes_of(a.owner)
    return FakeCUDAArray(np.ndarray(a.shape, a.dtype, raw, a.pointer - base, a.strides))


class Shown:
    """An array of a library that has only the protocol, on a stream; its memory is the host's."""

    def __init__(self, held, stream=None, **more):
        self.held, self.dtype = held, held.dtype
        self.__cuda_array_interface__ = {
            "shape": held.shape, "strides": held.strides, "typestr": held.dtype.str, "version": 3,
            "data": (held.ctypes.data, False), "stream": stream, **more,
        }  # fmt: skip


def elsewhere(kwargs, put):
    """A call whose arrays are `put(key, array)`; switches are the host's."""
    return {
        key: put(key, v)
        if isinstance(v, np.ndarray) and not key.endswith(("_on", "_enabled"))
        else v
        for key, v in kwargs.items()
    }
