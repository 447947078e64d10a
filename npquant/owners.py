"""Whose an array is: NumPy's, or that of a library of GPUs, none of which is asked for here."""

from __future__ import annotations

from typing import Any

import numpy as np

from npquant.errors import is_parameter, is_tensor, show
from npquant.meta import ArraySpec

Array = Any  # np.ndarray, ArraySpec where only shapes are asked for, or DeviceArray

#: Numbers, or arrays of one element.
IntLike = int | np.integer[Any] | np.ndarray[Any, Any]
FloatLike = float | np.number[Any] | np.ndarray[Any, Any]

ARRAYS = (np.ndarray, ArraySpec)

#: Arrays that compute otherwise than arrays.
OTHERWISE = np.ma.MaskedArray, np.matrix


def of_numpy(value: Any) -> np.ndarray[Any, Any] | None:
    """NumPy's arrays as plain ones, and its scalars as arrays; None if `value` is neither."""
    if isinstance(value, np.memmap):
        return value.view(np.ndarray)
    if isinstance(value, (np.generic, np.ndarray)) and not isinstance(value, OTHERWISE):
        return np.asarray(value)
    return None


def on_device(value: Any) -> bool:
    """Whether `value` is an array on a GPU."""
    kind = type(value)
    if kind in HOST or isinstance(value, np.ndarray) or issubclass(kind, type):
        return False  # Numba's managed and mapped arrays are NumPy's, too
    if kind.__name__ in ("DeviceArray", "FakeCUDAArray"):
        return True
    found = getattr(value, "is_cuda", None)
    return found is True or (found is None and _has_device_memory(value))


#: Types of which nothing is on a GPU.
HOST = (np.ndarray, ArraySpec, float, int, list, tuple, bool, np.memmap, type(None))
_CUDA = 2, 13  # what DLPack calls memory of CUDA devices, and managed memory


def _has_device_memory(value: Any) -> bool:
    # Numba's have no interface where their stream is one of cuda.core, of which it makes no number.
    if getattr(value, "__cuda_ndarray__", False) is True:
        return True
    if hasattr(value, "__cuda_array_interface__"):
        return True
    kind = getattr(value, "__dlpack_device__", None)
    return kind is not None and not isinstance(value, np.generic) and kind()[0] in _CUDA


def is_array(value: Any) -> bool:
    """Whether `value` is an array of NumPy or on a GPU."""
    return isinstance(value, np.ndarray) or on_device(value)


# --- what was given where an array should be, for a message -------------------------------------


def named(value: Any) -> str:
    """What is no array, by its type, and what makes an array of it."""
    shown = isinstance(value, type) or is_tensor(value)
    return (show(value) if shown else type(value).__name__) + instead(value)


def no_array(value: Any) -> str:
    """What is no array of NumPy, where no other will do: classes of arrays by their names."""
    if isinstance(value, ARRAYS):
        return type(value).__name__ + instead(value)
    return show(value)


def instead(value: Any) -> str:
    """What makes an array of one that computes otherwise."""
    if isinstance(value, np.ma.MaskedArray):
        return ", whose .filled(...) is one"
    if is_parameter(value):
        return ", whose .value is one"
    return ", of which np.asarray(...) makes one" if isinstance(value, np.matrix) else ""
