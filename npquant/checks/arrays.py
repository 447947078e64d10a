"""Arrays: of what dtype and shape, and where to write."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from npquant import dtypes
from npquant.dtypes import FLOATS, REALS, DType
from npquant.errors import show
from npquant.layout import memory_order
from npquant.meta import ArraySpec

Array = Any  # np.ndarray, or ArraySpec where only shapes are asked for

ARRAYS = (np.ndarray, ArraySpec)


def array(value: Any, name: str) -> Array:
    """`value` as an array (or a spec); nothing is converted but NumPy's own scalars."""
    if type(value) is np.ndarray or type(value) is ArraySpec:
        return value
    if isinstance(value, np.memmap):
        return value.view(np.ndarray)
    if isinstance(value, (np.generic, np.ndarray)) and not isinstance(
        value, (np.ma.MaskedArray, np.matrix)
    ):
        return np.asarray(value)
    raise TypeError(f"{name} must be a NumPy array or an ArraySpec, got {type(value).__name__}")


def floats(value: Any, name: str = "input") -> Array:
    """An array of one of the four floating dtypes."""
    x = value if type(value) is np.ndarray else array(value, name)
    return x if x.dtype in FLOATS else native(x, name, FLOATS)


def real(value: Any, name: str = "input") -> Array:
    """An array of floats or of integers."""
    return native(array(value, name), name, REALS)


def codes(value: Any, dtype: Any, name: str = "input") -> Array:
    """An array of codes of the dtype that the call names."""
    return native(array(value, name), name, (dtypes.target(dtype),))


def native(x: Array, name: str, allowed: Collection[DType]) -> Array:
    """An array of one of the `allowed` dtypes, copied if its bytes are in another order."""
    if x.dtype in allowed:
        return x
    found = dtypes.native_order(x.dtype)
    if found in allowed:
        return x.astype(found)
    several = "a dtype among" if len(allowed) > 1 else "the dtype"
    raise TypeError(f"{name} must have {several} {dtypes.names(allowed)}, got {x.dtype}")


def same(value: Any, name: str, x: Array, dtype: DType | None = None) -> Array:
    """An array of the shape of `x`, and of `dtype` or else of the dtype of `x`."""
    other = native(array(value, name), name, (dtype or x.dtype,))
    if other.shape != x.shape:
        raise ValueError(f"{name} must have the shape {x.shape}, got {other.shape}")
    together(x, other, name)
    return other


def together(x: Array, other: Array, name: str) -> None:
    """Refuse a spec among arrays and an array among specs."""
    if type(other) is not type(x):
        raise TypeError(
            f"{name} and input must be of one kind, got {type(other).__name__} "
            f"and {type(x).__name__}"
        )


def output(out: Any, x: Array, dtype: DType, **others: Array) -> Array:
    """Where to write: `out` if it fits, else a new array that lies in memory as `x` does.

    `out` may be the input itself, and must not overlap the `others`.
    """
    if out is None and type(x) is np.ndarray:
        # As x lies in memory, if it has no gaps: so does PyTorch.
        dense = x.flags.forc or memory_order(x) is not None
        return np.empty_like(x, dtype) if dense else np.empty(x.shape, dtype)
    if out is None:
        return ArraySpec(x.shape, dtype)
    shape = x.shape
    y = place(out, "out")
    if y.dtype != dtype:
        raise TypeError(f"out must have the dtype {dtype}, got {y.dtype}")
    if y.shape != shape:
        raise ValueError(f"out must have the shape {shape}, got {y.shape}")
    together(x, y, "out")
    if type(y) is np.ndarray:
        writeable(y, "out")
        if not _same_elements(x, y):
            _apart(x, y, "input itself or not overlap it")
        for name, other in others.items():
            _apart(other, y, f"apart from {name}")
    return out  # itself, though it be a memory map


def place(value: Any, name: str) -> Array:
    """An array to write to: none of NumPy's scalars, which would stay as they are."""
    if isinstance(value, np.generic):
        raise TypeError(f"{name} must be a NumPy array to write to, got {type(value).__name__}")
    return array(value, name)


def writeable(y: np.ndarray[Any, Any], name: str) -> None:
    """Refuse an array that cannot be written to, or whose elements share memory."""
    if y.flags.carray:
        return
    if not y.flags.writeable:
        raise ValueError(f"{name} must be writeable, got a read-only array")
    if y.size and _repeats(y):
        raise ValueError(f"{name} must not repeat its elements, got an array that overlaps itself")


def _repeats(y: np.ndarray[Any, Any]) -> bool:
    """Whether an axis steps less far than those within it reach: broadcast, sliding windows."""
    reach = y.itemsize
    for step, n in sorted((abs(s), n) for s, n in zip(y.strides, y.shape, strict=True) if n > 1):
        if step < reach:
            return True
        reach += step * (n - 1)
    return False


def new(x: Array, shape: tuple[int, ...], dtype: DType) -> Array:
    """A result of its own shape, of the kind of `x`."""
    return np.empty(shape, dtype) if type(x) is np.ndarray else ArraySpec(shape, dtype)


def option(value: Any, name: str, allowed: tuple[str, ...]) -> str:
    """One of some words."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a string, got {show(value)}")
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")
    return value


def flat(x: Array) -> Array:
    """`x` with one axis, as a kernel takes it; a small array is copied where it must be."""
    if type(x) is ArraySpec or (x.ndim == 1 and x.flags.carray):
        return x
    u = np.ascontiguousarray(x).reshape(-1)
    return u if u.flags.aligned else u.copy()


def _same_elements(x: Any, y: Any) -> bool:
    return (
        isinstance(x, np.ndarray)
        and x.strides == y.strides
        and x.itemsize == y.itemsize
        and x.__array_interface__["data"][0] == y.__array_interface__["data"][0]
    )


def _apart(x: Any, y: Any, wanted: str) -> None:
    """Refuse an output that shares memory with an input."""
    if not isinstance(x, np.ndarray) or not np.may_share_memory(x, y):
        return
    try:
        overlap = np.shares_memory(x, y, max_work=10_000)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        overlap = True
    if overlap:
        raise ValueError(f"out must be {wanted}, got an overlapping array")
