"""The little arithmetic that modules, the tape and the optimizers do on arrays themselves.

On NumPy's by NumPy, on arrays on a GPU by kernels: the result is of the kind of the first argument.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from npquant import checks
from npquant.dtypes import DType
from npquant.errors import show
from npquant.meta import ArraySpec

Array = Any


def is_array(value: Any) -> bool:
    """Whether `value` is an array of NumPy or on a GPU."""
    return isinstance(value, np.ndarray) or checks.on_device(value)


def kind(value: Array) -> tuple[tuple[int, ...], DType]:
    """Shape and dtype."""
    a = checks.array(value, "value")
    return a.shape, a.dtype


def beside(like: Array, a: Array) -> Array:
    """`a` where `like` lies: an array of NumPy is copied to the GPU beside one that is there."""
    if isinstance(like, (np.ndarray, np.generic)) or not isinstance(a, np.ndarray):
        return a
    x = checks.array(like, "like")
    return a if type(x) is ArraySpec else x.library.upload(x, a)


def following(like: Array, a: Array) -> Array:
    """The same, to compute with: on a GPU all that is done to it goes to the stream of `like`."""
    a = beside(like, a)
    if checks.on_device(like) and checks.on_device(a):
        a = checks.array(a, "value")
        a.follow(checks.array(like, "like"))
    return a


def on_host(a: Array) -> np.ndarray[Any, Any]:
    """A copy of `a` in NumPy, which for an array on a GPU waits."""
    if isinstance(a, np.ndarray):
        return a.copy()
    _on_device(a)
    from npquant import cuda

    found: np.ndarray[Any, Any] = cuda.to_host(a)
    return found


def empty(like: Array, shape: tuple[int, ...], dtype: Any) -> Array:
    """An array to write to, where `like` lies."""
    return checks.new(checks.array(like, "like"), shape, np.dtype(dtype))


def flat(a: Array) -> Array:
    """`a` with one axis."""
    if isinstance(a, np.ndarray):
        return a.reshape(-1)
    return reshape(a, (math.prod(kind(a)[0]),))


def full_like(a: Array, value: float) -> Array:
    """An array of the shape and dtype of `a`, lying in memory as it does, that holds one value."""
    x = checks.array(a, "value")
    return checks.filled(checks.output(None, x, x.dtype), value)


def copy(a: Array) -> Array:
    """A copy of its own."""
    if isinstance(a, np.ndarray):
        return a.copy()
    x = _on_device(a)
    from npquant.cuda.walk import copy as copy_strided

    y = x.new_alike(x.dtype)
    copy_strided(x, y)
    return y.owner


def add(a: Array, b: Array) -> Array:
    """a + b, of one shape."""
    if isinstance(a, (np.ndarray, np.generic)):
        return np.asarray(a + b)
    return _by_kernel("add", a, b)


def maximum(a: Array, b: Array) -> Array:
    """The larger of two, element by element; NaN if either is. `b` may be a number."""
    if isinstance(a, np.ndarray):
        return np.asarray(np.maximum(a, b))
    if isinstance(b, (int, float)):
        return _by_kernel("maximum_number", a, number=float(b))
    return _by_kernel("maximum", a, b)


def minimum(a: Array, b: Array) -> Array:
    """The smaller of two, element by element; NaN if either is."""
    return (
        np.asarray(np.minimum(a, b)) if isinstance(a, np.ndarray) else _by_kernel("minimum", a, b)
    )


def without_negative_zero(a: Array) -> Array:
    """a + 0: -0.0 becomes 0.0."""
    if isinstance(a, np.ndarray):
        return a + np.zeros((), a.dtype)
    return _by_kernel("add_number", a, number=0.0)


def rounded(a: Array, lo: int, hi: int, dtype: Any) -> Array:
    """rint(a), clamped, in an integer dtype."""
    if isinstance(a, np.ndarray):
        return np.clip(np.rint(a).astype(np.float64), lo, hi).astype(dtype)
    x = _on_device(a)
    from npquant.cuda.arithmetic import rounded

    y = x.new(x.shape, np.dtype(dtype))
    rounded(x, lo, hi, y)
    return y.owner


def astype(a: Array, dtype: Any) -> Array:
    """`a` in another dtype, a new array unless it has it already."""
    if type(a) is np.ndarray and a.dtype is dtype:
        return a
    found = checks.cast(checks.array(a, "a"), np.dtype(dtype))
    return found if isinstance(found, np.ndarray) else found.owner


def reshape(a: Array, shape: tuple[int, ...]) -> Array:
    """`a` in another shape of as many elements."""
    if isinstance(a, np.ndarray):
        return a.reshape(shape)
    if kind(a)[0] == shape:
        return a
    from npquant.cuda.walk import copy as copy_strided

    x = checks.flat(a)
    y = x.new(shape, x.dtype)
    copy_strided(x, y.viewed(x.shape))
    return y.owner


def _by_kernel(name: str, *arrays: Array, number: float | None = None) -> Array:
    x = [_on_device(a) for a in arrays]
    from npquant.cuda import arithmetic

    y = x[0].new_alike(x[0].dtype)
    getattr(arithmetic, name)(*x, *(() if number is None else (number,)), y)
    return y.owner


def _on_device(a: Array) -> Array:
    """What is no array of NumPy, described for kernels: a `value` may have been set to anything."""
    if not checks.on_device(a):
        raise TypeError(f"value must be an array of NumPy or on a GPU, got {show(a)}")
    return checks.array(a, "value")
