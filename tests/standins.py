"""Stand-ins for PyTorch's and CuPy's arrays on a GPU, and for the driver.

They have what the real ones are asked for, and nothing else; their memory is the host's, and what
would be launched is noted.
"""

import sys
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from npquant.checks.calls import forget
from npquant.cuda import again, target
from twins import Shown

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
def streams(monkeypatch, repeated_at_once):
    """The streams that kernels were to be launched on."""
    found = []
    forget()  # what calls have come to elsewhere
    monkeypatch.setattr(again, "MOST", 64)
    monkeypatch.setattr(target.Kernel, "__call__", lambda *args: found.append(args[-1]))
    yield found
    forget()


def read_only(held):
    return Shown(held, data=(held.ctypes.data, True))


def tensor(x, kind=None):
    """A tensor that lies where memory of a GPU would, at a multiple of 16 bytes."""
    room = np.zeros(x.nbytes + 16, np.uint8)
    held = room[-room.ctypes.data % 16 :][: x.nbytes].view(x.dtype).reshape(x.shape)
    held[...] = x
    return Tensor(held, f"torch.{kind or x.dtype.name}")


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
