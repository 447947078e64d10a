"""Arrays: of what dtype and shape, and where to write."""

from __future__ import annotations

from collections.abc import Collection
from itertools import combinations
from typing import Any

import ml_dtypes
import numpy as np

from npquant import dtypes
from npquant.arrays import alike, array
from npquant.dtypes import FLOATS, REALS, SINGLE_AND_DOUBLE, DType, bfloat16, bool_
from npquant.meta import ArraySpec
from npquant.owners import HOST, OTHERWISE, Array, no_array, on_device

#: The qparams, from which `out` must be apart, as an op names them.
QPARAM, QPARAMS = ("scale", "zero_point"), ("scales", "zero_points")


def host_array(value: Any, name: str, allowed: Collection[DType], kinds: Any = np.ndarray) -> Array:
    """`value` as an array of NumPy of one of the `allowed` dtypes, where no kernel takes others."""
    if not isinstance(value, kinds) or isinstance(value, OTHERWISE):
        raise TypeError(f"{name} must be a NumPy array, got {no_array(value)}")
    return native(array(value, name), name, allowed)


def finite_array(x: Array, name: str) -> Array:
    """`x`, an array of NumPy without infinities and NaN."""
    if not np.isfinite(x).all():
        raise ValueError(f"{name} must be finite, got an array with infinities or NaN")
    return x


def of_shape(x: Array, name: str, shape: tuple[int, ...]) -> None:
    """Refuse an array of another shape."""
    if x.shape != shape:
        raise ValueError(f"{name} must have the shape {shape}, got {x.shape}")


def square_matrix(value: Any, name: str, columns: int) -> Array:
    """A finite matrix of so many rows and columns, in float64."""
    x = host_array(value, name, SINGLE_AND_DOUBLE)
    of_shape(x, name, (columns, columns))
    return finite_array(x, name).astype(np.float64)


def gram(value: Any, name: str, columns: int) -> Array:
    """The same of the products of columns with one another, each summed: up to rounding."""
    x = square_matrix(value, name, columns)
    half = x / 2  # of which the differences are finite
    if np.abs(half - half.T).max(initial=0) > 1e-3 * np.abs(half).max(initial=0):
        raise ValueError(f"{name} must be symmetric, got a matrix that is not")
    if (least := np.diag(x).min(initial=0)) < 0:
        raise ValueError(f"{name} must have sums of squares on its diagonal, got {least}")
    mean = x + (x.T - x) / 2  # its symmetric part, as quadratic forms have it
    return np.maximum(mean, mean.T)  # each half of which was rounded


def floats(value: Any, name: str = "input", out: Any = None) -> Array:
    """An array of one of the four floating dtypes."""
    x = value if type(value) is np.ndarray else array(value, name)
    return x if x.dtype in FLOATS else native(x, name, FLOATS, out)


def real(value: Any, name: str = "input", out: Any = None) -> Array:
    """An array of floats or of integers."""
    x = value if type(value) is np.ndarray else array(value, name)
    return x if x.dtype in REALS else native(x, name, REALS, out)


def codes(value: Any, dtype: Any, out: Any = None) -> Array:
    """An array of codes of the dtype that the call names."""
    x, found = value if type(value) is np.ndarray else array(value, "input"), dtypes.target(dtype)
    return x if x.dtype == found else native(x, "input", (found,), out)


def native(x: Array, name: str, allowed: Collection[DType], out: Any = None) -> Array:
    """An array of one of the `allowed` dtypes, copied if its bytes are in another order.

    Of a copy nobody sees what `out` lies over, so that is looked at here.
    """
    if x.dtype in allowed:
        return x
    found = dtypes.native_order(x.dtype)
    if found in allowed and type(x) is np.ndarray:
        if isinstance(out, np.ndarray):
            itself_or_apart(x, name, np.asarray(out), "out")
        return x.astype(found)
    dtypes.refuse_others(x.dtype, name, allowed, _lost(x.dtype, allowed))
    return x


def _lost(dtype: DType, allowed: Collection[DType]) -> str:
    """How to get an array back that np.load gave: it knows no name of ml_dtypes."""
    if dtype == "V2" and bfloat16 in allowed:
        wanted = "bfloat16"
    elif dtype == "V1" and len(allowed) == 1:
        wanted = str(*allowed)
    else:
        return ""
    return f", which .view(ml_dtypes.{wanted}) makes {wanted} again" * hasattr(ml_dtypes, wanted)


def same(
    value: Any, name: str, x: Array, dtype: DType | None = None, *, data: str = "input",
    out: Any = None,
) -> Array:  # fmt: skip
    """An array of the shape of `x`, the argument `data`, and of `dtype` or else of that of `x`."""
    wanted = dtype or x.dtype
    other = value if type(value) is np.ndarray else array(value, name)
    if other.dtype != wanted:
        given, other = other, native(other, name, (wanted,))
        _apart(given, name, out)
    if other.shape != x.shape:
        raise ValueError(f"{name} must have the shape {x.shape}, got {other.shape}")
    of_one_kind(x, other, name, data)
    return other


def of_one_kind(x: Array, other: Array, name: str, data: str = "input") -> None:
    """Refuse a spec among arrays and an array among specs; on a GPU, `other` is on x's stream."""
    if type(other) is not type(x):
        raise TypeError(f"{name} and {data} must be of one kind, got {_kind(other)} and {_kind(x)}")
    if type(x) is not np.ndarray and type(x) is not ArraySpec:
        other.follow(x)


def _kind(x: Array) -> str:
    """What an array is, and so where."""
    if type(x) is np.ndarray:
        return "a NumPy array"
    return "an ArraySpec" if type(x) is ArraySpec else "an array on a GPU"


def output(
    out: Any, x: Array, dtype: DType, names: tuple[str, ...] = (), others: tuple[Any, ...] = (),
    data: str = "input",
) -> Array:  # fmt: skip
    """Where to write: `out` if it fits, else a new array that lies in memory as `x` does.

    `out` may be `x`, the argument `data`, and must not overlap the `others`, which have `names` and
    are as they were given: what they were converted to lies elsewhere.
    """
    if out is None:
        return alike(x, dtypes.without_metadata(dtype))
    if _fits(out, x, dtype, others):
        return out
    y = place(out, "out")
    if y.dtype != dtype:
        raise TypeError(f"out must have the dtype {dtype}, got {y.dtype}")
    if y.shape != x.shape:
        raise ValueError(f"out must have the shape {x.shape}, got {y.shape}")
    of_one_kind(x, y, "out", data)
    if type(y) is not ArraySpec:
        writeable(y, "out")
    itself_or_apart(x, data, y, "out")
    if type(y) is np.ndarray:
        for name, other in zip(names, others, strict=True):
            # What NumPy makes an array of may have memory, too.
            _apart(other if type(other) in HOST else np.asarray(other), name, y)
    elif type(y) is not ArraySpec:
        for name, other in zip(names, others, strict=True):
            if on_device(other) and array(other, name).overlaps(y):
                raise ValueError(f"out must be apart from {name}, got an overlapping array")
    # Of a class of its own a plain view, whose methods and functions are NumPy's: see `returned`.
    return y if type(y) is np.ndarray else out


def returned(out: Any, y: Array) -> Array:
    """What an op returns that has written to `y`: an `out` that was given itself."""
    return y if out is None else out


def _fits(out: Any, x: Array, dtype: DType, others: tuple[Any, ...]) -> bool:
    """Whether an `out` is as it mostly is: contiguous, and far from all else."""
    if not (
        type(out) is type(x) is np.ndarray
        and out.dtype is dtype
        and out.shape == x.shape
        and out.flags.carray
        and (out is x or not np.may_share_memory(out, x))
    ):
        return False
    for other in others:
        kind = type(other)
        if kind is float or kind is int:
            continue
        if kind is not np.ndarray or np.may_share_memory(out, other):
            return False
    return True


def _apart(other: Any, name: str, out: Any) -> None:
    """Refuse an `out` that shares elements with another argument, arrays of NumPy both."""
    if (
        isinstance(other, np.ndarray)
        and isinstance(out, np.ndarray)
        and _share_memory(other, np.asarray(out))
    ):  # fmt: skip
        raise ValueError(f"out must be apart from {name}, got an overlapping array")


def output_and_mask(
    x: Array, masked: bool, out: Any = None, names: tuple[str, ...] = (),
    others: tuple[Any, ...] = (),
) -> tuple[Array, Array | None]:  # fmt: skip
    """Where to write what has the dtype of `x`, see `output`, and bools, if these are asked for."""
    return output(out, x, x.dtype, names, others), output(None, x, bool_) if masked else None


def overlap(a: Array, b: Array) -> bool:
    """Whether two arrays that were checked share memory; on a GPU, whether they may."""
    if type(a) is not type(b) or type(a) is ArraySpec:
        return False
    return _share_memory(a, b) if type(a) is np.ndarray else a.overlaps(b)


def itself_or_apart(x: Array, name: str, y: Array, other: str) -> None:
    """Refuse two arrays that share elements, unless they share them all in the same places."""
    if y is x or type(y) is ArraySpec:
        return
    if type(y) is np.ndarray:
        wrong = _share_memory(x, y) and not _same_elements(x, y)
    else:  # on a GPU, where memory that interleaves counts as overlapping
        alike = (x.pointer, x.strides, x.dtype.itemsize) == (y.pointer, y.strides, y.dtype.itemsize)
        wrong = not alike and x.overlaps(y)
    if wrong:
        raise ValueError(
            f"{other} must be {name} itself or not overlap it, got an overlapping array"
        )


def refuse_overlap(names: tuple[str, ...], arrays: tuple[Array, ...]) -> None:
    """Refuse arrays to write to, all but the first, of which two share an element.

    On a GPU, of those that have gaps only what begins at one place is found. Specs share nothing,
    nor do arrays of two kinds.
    """
    for (i, a), (j, b) in combinations(enumerate(arrays), 2):
        alike = type(a) is type(b) is not ArraySpec
        if alike and a.size and b.size and _overlapping(a, b):
            raise ValueError(f"{names[j]} must be apart from {names[i]}, got an overlapping array")


def _overlapping(a: Array, b: Array) -> bool:
    """Whether two arrays of one kind share an element."""
    if type(a) is np.ndarray:
        return _share_memory(a, b)
    without_gaps = None not in (a.lying.order, b.lying.order)
    return bool(a.overlaps(b) if without_gaps else a.pointer == b.pointer)


def place(value: Any, name: str) -> Array:
    """An array to write to: none of NumPy's scalars, which would stay as they are."""
    if isinstance(value, np.generic):
        raise TypeError(f"{name} must be a NumPy array to write to, got {type(value).__name__}")
    return array(value, name)


def writeable(y: Array, name: str) -> None:
    """Refuse an array that cannot be written to, or whose elements share memory."""
    if type(y) is np.ndarray and y.flags.carray:
        return
    if not (y.flags.writeable if type(y) is np.ndarray else y.writeable):
        raise ValueError(f"{name} must be writeable, got a read-only array")
    if y.size and _repeats(y):
        raise ValueError(
            f"{name} must not repeat its elements or interleave its axes, "
            f"got strides {y.strides} of shape {y.shape}"
        )


def _repeats(y: Array) -> bool:
    """Whether an axis steps less far than those within it reach: broadcast, sliding windows."""
    reach = y.dtype.itemsize
    for step, n in sorted((abs(s), n) for s, n in zip(y.strides, y.shape, strict=True) if n > 1):
        if step < reach:
            return True
        reach += step * (n - 1)
    return False


def _same_elements(x: Any, y: Any) -> bool:
    def steps(a: Any) -> list[tuple[int, int]]:  # none along an axis of one, which a mask may add
        return [(n, step) for n, step in zip(a.shape, a.strides, strict=True) if n != 1]

    return bool(
        steps(x) == steps(y)
        and x.itemsize == y.itemsize
        and x.__array_interface__["data"][0] == y.__array_interface__["data"][0]
    )


def _share_memory(x: Any, y: Any) -> bool:
    """Whether an element of one lies in the memory of the other; yes where that is hard to say.

    It is after some 20 ms: places among those of many axes are as hard to tell as a knapsack is.
    """
    if not np.may_share_memory(x, y):
        return False
    try:
        return np.shares_memory(x, y, max_work=1_000_000)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True
