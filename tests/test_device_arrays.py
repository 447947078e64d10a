"""Arrays on a GPU without what they need: an error that says so, and only when one is met."""

import sys

import numpy as np
import pytest

import npquant as nq


class OnGPU:
    """What any library's array on a GPU shows."""

    __cuda_array_interface__ = {  # noqa: RUF012 (an attribute, as libraries have it)
        "shape": (3,), "typestr": "<f4", "data": (4096, False), "version": 3, "strides": None,
    }  # fmt: skip


def test_numba_cuda_is_missing(monkeypatch):
    for name in [n for n in sys.modules if n.startswith("npquant.cuda")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(nq, "cuda", raising=False)
    monkeypatch.setitem(sys.modules, "npquant.cuda.target", None)
    with pytest.raises(ImportError, match=r"input is an array on a GPU.*numba-cuda.*cuda13"):
        nq.quantize_per_tensor(OnGPU(), 0.1, 0, -128, 127, np.int8)


def test_an_array_of_the_host_is_none():
    """A tensor of PyTorch on the CPU, and any other object, are refused as ever."""

    class Tensor:
        is_cuda = False
        __dlpack_device__ = staticmethod(lambda: (1, 0))

    for value in (Tensor(), object(), "text"):
        with pytest.raises(TypeError, match="input must be"):
            nq.quantize_per_tensor(value, 0.1, 0, -128, 127, np.int8)
