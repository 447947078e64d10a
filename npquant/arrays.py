"""What is done with an array, of NumPy or on a GPU, whichever it is.

It is described, made, filled, viewed, copied and brought to the host. Of an array on a GPU there
are two objects: what its owner holds, of some library, and what `array` makes of it for kernels.
The first is an `a` here, the second an `x`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from npquant import dtypes
from npquant.dtypes import DType
from npquant.errors import show
from npquant.layout import memory_order
from npquant.meta import ArraySpec
from npquant.owners import Array, named, of_numpy, on_device

# --- what it is ---------------------------------------------------------------------------------


def array(value: Any, name: str) -> Array:
    """`value` as an array, a spec or a DeviceArray; of the rest, only NumPy's scalars are."""
    kind = type(value)
    if kind is np.ndarray or kind is ArraySpec:
        return value
    if kind in _tensors and value.is_cuda is True:
        return _describe()(value)
    found = of_numpy(value)
    if found is None:
        found = device_array(value, name)
    if found is None:
        raise TypeError(
            f"{name} must be a NumPy array, an array on a GPU or an ArraySpec, got {named(value)}"
        )
    return found


def device_array(value: Any, name: str) -> Array | None:
    """An array on a GPU, of whatever library, described for kernels; None if it is none."""
    if not on_device(value):
        return None
    try:
        describe = _describe()
    except ImportError as error:
        raise type(error)(f"{name} is an array on a GPU: {error}", name=error.name) from None
    found = describe(value)
    if getattr(value, "is_cuda", None) is True:
        _tensors.add(type(value))
    return found


#: Classes of tensors of which some have been on a GPU.
_tensors: set[type] = set()


@cache
def _describe() -> Callable[[Any], Array]:
    from npquant.cuda.arrays import device

    return device


def array_of(value: Any) -> Any:
    """A scalar of NumPy, as it computes of arrays without axes, as an array; others as they are."""
    return np.asarray(value) if isinstance(value, np.generic) else value


def kind(value: Array, name: str = "value") -> tuple[tuple[int, ...], DType]:
    """Shape and dtype."""
    a = array(value, name)
    return a.shape, a.dtype


def described(a: Array) -> Array:
    """What is no array of NumPy, described for kernels: a `value` may have been set to anything."""
    if not on_device(a):
        raise TypeError(f"value must be an array of NumPy or on a GPU, got {show(a)}")
    return array(a, "value")


# --- made and filled ----------------------------------------------------------------------------


def new(x: Array, shape: tuple[int, ...], dtype: DType) -> Array:
    """A result of its own shape, of the kind of `x`."""
    if type(x) is np.ndarray:
        return np.empty(shape, dtype)
    return ArraySpec(shape, dtype) if type(x) is ArraySpec else x.new(shape, dtype).owner


def alike(x: Array, dtype: DType) -> Array:
    """A result of the shape of `x`, that lies in memory as `x` does if this has no gaps.

    So do results of PyTorch.
    """
    if type(x) is not np.ndarray:
        return ArraySpec(x.shape, dtype) if type(x) is ArraySpec else x.new_alike(dtype).owner
    if x.flags.c_contiguous:
        return np.empty(x.shape, dtype)
    if x.flags.f_contiguous:
        return np.empty(x.shape, dtype, "F")
    return np.empty(x.shape, dtype) if memory_order(x) is None else np.empty_like(x, dtype)


def full(x: Array, shape: tuple[int, ...], dtype: DType, value: float) -> Array:
    """A result of its own shape, of the kind of `x`, that holds one value."""
    return filled(new(x, shape, dtype), value)


def full_like(a: Array, value: float) -> Array:
    """An array of the shape and dtype of `a`, lying in memory as it does, that holds one value."""
    x = array(a, "value")
    return filled(alike(x, x.dtype), value)


def filled(y: Array, value: float) -> Array:
    """`y`, all of which is `value` now."""
    if isinstance(y, np.ndarray):
        y.fill(value)
    elif type(y) is not ArraySpec:
        from npquant.cuda.arithmetic import fill

        fill(y, value)
    return y


def assign(p: Array, elements: Array) -> None:
    """Write the elements of a flat array to one of another shape."""
    if type(p) is np.ndarray:
        p[...] = elements.reshape(p.shape)
    else:
        from npquant.cuda.walk import copy as copy_strided

        copy_strided(elements.viewed(p.shape), p)


def copy(a: Array) -> Array:
    """A copy of its own, that lies as `a` does."""
    if isinstance(a, np.ndarray):
        return a.copy("K")
    x = described(a)
    from npquant.cuda.walk import copy as copy_strided

    y = x.new_alike(x.dtype)
    copy_strided(x, y)
    return y.owner


# --- in another shape or dtype, for a kernel ----------------------------------------------------


def flat(x: Array) -> Array:
    """`x` with one axis, as a kernel takes it; a small array is copied where it must be."""
    if type(x) is np.ndarray and x.flags.carray:
        return x if x.ndim == 1 else x.ravel()
    if type(x) is ArraySpec:
        return x
    if type(x) is not np.ndarray:
        from npquant.cuda.walk import packed

        p: Array = packed(array(x, "input"))
        return p if p.ndim == 1 else p.viewed((p.size,))
    u = np.ascontiguousarray(x).reshape(-1)
    return u if u.flags.aligned else u.copy()


#: What holds the greatest of every dtype but float64.
_HOLDING = (dtypes.float32, dtypes.float64)


def cast(p: Array, dtype: DType) -> Array:
    """An array of qparams in another dtype; a value too large becomes an infinity, in silence."""
    if type(p) is ArraySpec:
        return ArraySpec(p.shape, dtype)
    if p.dtype == dtype:
        return p
    if type(p) is not np.ndarray:
        from npquant.cuda.convert import cast as cast_on_device

        return cast_on_device(p, dtype)
    if p.dtype != dtypes.float64 and dtype in _HOLDING:
        return p.astype(dtype)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):  # of signalling NaNs
        return p.astype(dtype)


# --- the same, for its owner --------------------------------------------------------------------


def ravel(a: Array) -> Array:
    """`a` with one axis."""
    if isinstance(a, np.ndarray):
        return a.reshape(-1)
    return reshape(a, (math.prod(kind(a)[0]),))


def reshape(a: Array, shape: tuple[int, ...]) -> Array:
    """`a` in another shape of as many elements."""
    if isinstance(a, np.ndarray):
        return a.reshape(shape)
    if kind(a)[0] == shape:
        return a
    if type(a) is ArraySpec:
        return ArraySpec(shape, a.dtype)
    from npquant.cuda.walk import copy as copy_strided

    x = flat(a)
    y = x.new(shape, x.dtype)
    copy_strided(x, y.viewed(x.shape))
    return y.owner


def astype(a: Array, dtype: Any) -> Array:
    """`a` in another dtype, a new array unless it has it already."""
    if type(a) is np.ndarray and a.dtype is dtype:
        return a
    found = cast(array(a, "a"), np.dtype(dtype))
    return found if isinstance(found, np.ndarray) else found.owner


def rounded_once(v: Array, dtype: DType) -> Array:
    """Sums in float64, or of the dtype already, as on a GPU, in one rounding."""
    return dtypes.round_once(v, dtype) if type(v) is np.ndarray else v


# --- where it lies ------------------------------------------------------------------------------


def beside(like: Array, a: Array) -> Array:
    """`a` where `like` lies: copied to the GPU beside an array there, or from it to NumPy."""
    host = isinstance(like, (np.ndarray, np.generic))
    if not isinstance(a, np.ndarray):
        return on_host(a) if host and on_device(a) else a
    if host:
        return a
    x = array(like, "like")
    return a if type(x) is ArraySpec else x.library.upload(x, a)


def given(like: Array, a: Array) -> Array:
    """`a`, of which a call on a spec is told no more than that where it lies on a GPU."""
    return ArraySpec(*kind(a)) if isinstance(like, ArraySpec) and on_device(a) else a


def following(like: Array, a: Array) -> Array:
    """The same, to compute with: on a GPU all that is done to it goes to the stream of `like`."""
    a = beside(like, a)
    if on_device(like) and on_device(a):
        a = array(a, "value")
        a.follow(array(like, "like"))
    return a


def on_host(a: Array) -> np.ndarray[Any, Any]:
    """A copy of `a` in NumPy, which for an array on a GPU waits."""
    if isinstance(a, np.ndarray):
        return a.copy()
    described(a)
    from npquant import cuda

    found: np.ndarray[Any, Any] = cuda.to_host(a)
    return found
