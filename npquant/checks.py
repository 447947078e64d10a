"""Arguments: what is allowed, in one place, and the words of every error.

Wrong kinds and dtypes are TypeErrors, wrong values and shapes are ValueErrors. Each names the
argument, what it was and what is allowed. Everything here runs before anything is written.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection
from functools import lru_cache, wraps
from typing import Any, TypeVar

import ml_dtypes
import numpy as np

from npquant import dtypes
from npquant.cpu.qparams import inside
from npquant.cpu.qparams import outside as outside
from npquant.dtypes import BOUNDS, FLOATS, INTEGERS, REALS, DType
from npquant.errors import show
from npquant.formulas import STEP_BACK
from npquant.layout import memory_order
from npquant.meta import ArraySpec

Array = Any  # np.ndarray, or ArraySpec where only shapes are asked for

#: A scale, a zero point, three constants, and the names of their precisions: see `Elementwise`.
Affine = tuple[float, float, tuple[float, float, float], tuple[str, str, str]]
T = TypeVar("T")

#: Integers up to here, and their differences, are exact in float32 and in float64.
EXACT32, EXACT64 = 2**23, 2**52

#: Integer zero points up to here keep codes of 16 bits within what `rounded_code` rounds.
SMALL_ZERO_POINT = 2**20

_ARRAYS = (np.ndarray, ArraySpec)

# Between these, a number rounds to a positive finite float32.
_LEAST_FLOAT32, _BEYOND_FLOAT32 = 2.0**-150, (2 - 2.0**-24) * 2.0**127


# --- arrays -----------------------------------------------------------------------------------


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
    found = x.dtype.newbyteorder("=")
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
    y = array(out, "out")
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


def writeable(y: np.ndarray[Any, Any], name: str) -> None:
    """Refuse an array that cannot be written to, or whose elements are one and the same."""
    if y.flags.carray:
        return
    if not y.flags.writeable:
        raise ValueError(f"{name} must be writeable, got a read-only array")
    if y.size and any(s == 0 and n > 1 for s, n in zip(y.strides, y.shape, strict=True)):
        raise ValueError(f"{name} must not repeat its elements, got a broadcast array")


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
        and x.__array_interface__["data"] == y.__array_interface__["data"]
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


# --- numbers ----------------------------------------------------------------------------------


def integer(value: Any, name: str, kind: type | None = None) -> int:
    """An integer, or the one element of an array (of floats: truncated, as PyTorch does)."""
    if type(value) is int:
        return value
    if isinstance(value, _ARRAYS):
        n = one(value, name, kind)
        if isinstance(n, float) and not math.isfinite(n):
            raise ValueError(f"{name} must be finite, got {n}")
        return int(n)
    if isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, got {show(value)}") from None


def one(value: Array, name: str, kind: type | None = None) -> float | int:
    """The one element of an array, as a Python number; of a spec, a number that passes."""
    value = array(value, name)
    if type(value) is ArraySpec and kind is np.ndarray:
        raise TypeError(f"{name} must not be an ArraySpec where input is an array, got {value}")
    if value.size != 1:
        raise ValueError(f"{name} must have one element, got {show(value)}")
    value = native(value, name, REALS)
    if value.dtype in FLOATS:
        return 1.0 if type(value) is ArraySpec else float(value.item())
    return 1 if type(value) is ArraySpec else int(value.item())


def number(value: Any, name: str, kind: type | None = None) -> float:
    """A real number, or the one element of an array."""
    if type(value) is float:
        return value
    if type(value) is np.ndarray and value.size == 1 and value.dtype.kind in "fiu":
        return float(value.item())
    if isinstance(value, _ARRAYS):
        return float(one(value, name, kind))
    numeric = isinstance(value, (int, float, np.integer, np.floating, ml_dtypes.bfloat16))
    if not numeric or isinstance(value, bool):
        raise TypeError(f"{name} must be a number, got {show(value)}")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{name} must fit a float64, got {show(value)}") from None


def scale_number(value: Any, name: str = "scale", kind: type | None = None) -> float:
    """A scale: positive and finite."""
    scale = number(value, name, kind)
    if 0.0 < scale < math.inf:
        return scale
    raise ValueError(f"{name} must be positive and finite, got {scale}")


def scale_float32(value: Any, name: str = "scale", kind: type | None = None) -> float:
    """A scale that stays positive and finite in float32, in which it is used."""
    scale = number(value, name, kind)
    if _LEAST_FLOAT32 < scale < _BEYOND_FLOAT32:
        return scale
    raise ValueError(f"{name} must be positive and finite in float32, got {scale}")


def bounds(quant_min: Any, quant_max: Any, kind: type | None = None) -> tuple[int, int]:
    """The least and the greatest code, of any width up to int64."""
    lo = quant_min if type(quant_min) is int else _bound(quant_min, "quant_min", -(2**63), kind)
    hi = quant_max if type(quant_max) is int else _bound(quant_max, "quant_max", 2**63 - 1, kind)
    if lo > hi:
        raise ValueError(f"quant_min must not exceed quant_max, got {show(lo)} > {show(hi)}")
    if lo < -(2**63) or hi >= 2**63:
        raise ValueError(f"quant_min and quant_max must fit int64, got {show(lo)} and {show(hi)}")
    return lo, hi


def _bound(value: Any, name: str, unknown: int, kind: type | None) -> int:
    n = integer(value, name, kind)
    return unknown if type(value) is ArraySpec else n


def bounds_of(
    quant_min: Any, quant_max: Any, dtype: DType, kind: type | None = None
) -> tuple[int, int]:
    """The least and the greatest code, within those of a dtype."""
    lo, hi = bounds(quant_min, quant_max, kind)
    least, greatest = BOUNDS[dtype]
    lo = least if type(quant_min) is ArraySpec else lo
    hi = greatest if type(quant_max) is ArraySpec else hi
    if lo < least or hi > greatest:
        raise ValueError(
            f"quant_min and quant_max must lie within {least}..{greatest} for {dtype}, "
            f"got {lo}..{hi}"
        )
    return lo, hi


def bounds_around_zero(quant_min: Any, quant_max: Any, kind: type | None = None) -> tuple[int, int]:
    """The least and the greatest code, with zero between."""
    lo, hi = bounds(quant_min, quant_max, kind)
    if not lo <= 0 <= hi:
        raise ValueError(f"quant_min <= 0 <= quant_max is required, got {lo} and {hi}")
    return lo, hi


def zero_point_inside(
    value: Any, lo: int, hi: int, name: str = "zero_point", kind: type | None = None
) -> int:
    """An integer zero point between the bounds."""
    z = value if type(value) is int else integer(value, name, kind)
    if lo <= z <= hi or type(value) is ArraySpec:
        return z
    raise ValueError(f"{name} must lie within {lo}..{hi}, got {show(z)}")


def zero_point_number(
    value: Any, name: str = "zero_point", kind: type | None = None
) -> int | float:
    """A zero point: an integer, or the one element of an array, which may be fractional."""
    if isinstance(value, _ARRAYS):
        z = one(value, name, kind)
        if not math.isfinite(z):
            raise ValueError(f"{name} must be finite, got {z}")
        return z
    z = integer(value, name)
    if not -(2**63) <= z < 2**63:
        raise ValueError(f"{name} must fit int64, got {show(z)}")
    return z


def truncated_int32(value: Any, name: str = "zero_point", kind: type | None = None) -> int:
    """A zero point as PyTorch reads one from a tensor: truncated, and an int32."""
    z = number(value, name, kind)
    if not -(2.0**31) - 1 < z < 2.0**31:  # and so no NaN
        raise ValueError(f"{name} must fit int32, got {z}")
    return int(z)


def finite(value: Any, name: str, kind: type | None = None) -> float:
    """A finite number."""
    v = number(value, name, kind)
    if not math.isfinite(v):
        raise ValueError(f"{name} must be finite, got {v}")
    return v


def single(value: Any, name: str) -> Any:
    """A number, or an array of shape (1,) or ()."""
    if isinstance(value, _ARRAYS) and value.shape not in ((1,), ()):
        raise ValueError(f"{name} must have the shape (1,) or (), got {value.shape}")
    return value


def switch(value: Any, name: str, kind: type | None = None) -> bool:
    """On or off: a bool, or a number that is truncated to an integer, as PyTorch does."""
    if type(value) is int and 0 <= value <= 1:
        return value == 1
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if isinstance(value, np.ndarray) and value.dtype == np.bool_ and value.size == 1:
        return bool(value.reshape(-1)[0])
    n = number(value, name, kind)
    if not math.isfinite(n):
        raise ValueError(f"{name} must be finite, got {n}")
    return int(n) != 0


def shaping(value: Any, name: str) -> int:
    """An integer that shapes depend on, and so no spec."""
    if type(value) is ArraySpec:
        raise TypeError(f"{name} must be an integer, got {value}")
    return integer(value, name)


def axis_of(axis: Any, x: Array, name: str = "axis") -> int:
    """An axis of `x`, counted from the front."""
    a = axis if type(axis) is int else shaping(axis, name)
    if not -x.ndim <= a < x.ndim:
        raise ValueError(f"{name} must be an axis of input, of shape {x.shape}, got {show(a)}")
    return a if a >= 0 else a + x.ndim


def group_size_of(group_size: Any, x: Array, ndim: int | None = None, name: str = "input") -> int:
    """A group size that divides the last axis of `x`; a greater one means the whole axis."""
    g = shaping(group_size, "group_size")
    if ndim is not None and x.ndim != ndim:
        raise ValueError(f"{name} must have {ndim} axes, got shape {x.shape}")
    if x.ndim == 0:
        raise ValueError("input must have an axis to be grouped, got shape ()")
    width = x.shape[-1]
    if g <= 1 or (g < width and width % g):
        raise ValueError(
            f"group_size must be at least 2 and divide the last axis of {name}, of shape "
            f"{x.shape}, got {show(g)}"
        )
    return min(g, width) if width else g


# --- arrays of qparams ------------------------------------------------------------------------


def parameters(value: Any, name: str, shapes: tuple[tuple[int, ...], ...], x: Array) -> Array:
    """One number a channel: an array of one of `shapes`; it comes back flat and contiguous."""
    if type(value) is ArraySpec:
        together(x, value, name)  # but real qparams tell a spec nothing wrong
        p: Any = value
    else:
        p = value if type(value) is np.ndarray else numbers(value, name)
    if p.dtype not in FLOATS:
        p = native(p, name, REALS)
    if p.shape not in shapes:
        allowed = " or ".join(map(str, dict.fromkeys(shapes)))
        raise ValueError(f"{name} must have the shape {allowed}, got {p.shape}")
    if type(p) is ArraySpec:
        return p
    if p.ndim == 1 and p.flags.c_contiguous and p.flags.aligned:
        return p
    return flat(p)


def numbers(value: Any, name: str) -> np.ndarray[Any, Any]:
    """An array, or what NumPy makes an array of numbers of: a list, a scalar."""
    if isinstance(value, (np.ndarray, np.generic)):
        p: np.ndarray[Any, Any] = array(value, name)
        return p
    try:
        return np.asarray(value)
    except (ValueError, TypeError, OverflowError):
        raise TypeError(f"{name} must be an array of numbers, got {show(value)}") from None


def in_range(p: Array, name: str, lo: float, hi: float, allowed: str = "") -> None:
    """Every element of `p` between lo and hi, and so no NaN."""
    if type(p) is ArraySpec:
        return
    i = outside(p, lo, hi)
    if i >= 0:
        allowed = allowed or f"within {lo}..{hi}"
        raise ValueError(f"{name} must be {allowed}, got {p[i]} at index {i}")


def sound(
    scale: Any, zero_point: Any, shape: tuple[int, ...], kind: DType, lo: float, hi: float
) -> bool:
    """Whether the qparams are as they mostly are: nothing to convert and nothing to refuse.

    That is float32 scales, and zero points of the dtype `kind` within lo..hi, both of `shape`, of
    one axis and contiguous.
    """
    return (
        len(shape) == 1
        and type(scale) is np.ndarray
        and type(zero_point) is np.ndarray
        and scale.dtype == dtypes.float32
        and zero_point.dtype == kind
        and scale.shape == shape
        and zero_point.shape == shape
        and scale.flags.carray
        and zero_point.flags.carray
        and inside(scale, zero_point, *_FLOAT32_SCALES, lo, hi)
    )


def scales_float32(value: Any, name: str, shapes: tuple[tuple[int, ...], ...], x: Array) -> Array:
    """Scales that are used in float32."""
    s = parameters(value, name, shapes, x)
    if s.dtype != dtypes.float32:
        s = cast(s, dtypes.float32)
    in_range(s, name, *_FLOAT32_SCALES, "positive and finite in float32")
    return s


def scales(value: Any, name: str, shapes: tuple[tuple[int, ...], ...], x: Array) -> Array:
    """Scales that are used in their own precision; integers in float32."""
    s = parameters(value, name, shapes, x)
    if s.dtype in INTEGERS:
        s = cast(s, dtypes.float32)
    in_range(s, name, 5e-324, 1.7976931348623157e308, "positive and finite")
    return s


def zero_points(value: Any, name: str, shapes: tuple[tuple[int, ...], ...], x: Array) -> Array:
    """Zero points: floats as they are, integers in int32 or int64."""
    z = parameters(value, name, shapes, x)
    if z.dtype in _NARROW:
        return cast(z, _INT32)
    if z.dtype == np.uint32:
        return cast(z, np.dtype(np.int64))
    if z.dtype in FLOATS:
        all_finite(z, name)
    return z


def code_qparams(
    scales_: Any, zero_points_: Any, shape: tuple[int], x: Array
) -> tuple[Array, Array]:
    """What to quantize with; large integer zero points go as floats: see `rounded_code`."""
    end = SMALL_ZERO_POINT
    if sound(scales_, zero_points_, shape, dtypes.int32, -end, end):
        return scales_, zero_points_
    s = scales(scales_, "scales", (shape,), x)
    z = zero_points(zero_points_, "zero_points", (shape,), x)
    if type(z) is not ArraySpec and z.dtype in INTEGERS and outside(z, -end, end) >= 0:
        z = cast(z, dtypes.compute(x.dtype))
    return s, z


def learned_qparams(
    scale: Any, zero_point: Any, shapes: tuple[tuple[int, ...], ...], x: Array
) -> tuple[Array, Array]:
    """A float32 scale and a zero point that may be any number."""
    if sound(scale, zero_point, shapes[0], dtypes.float32, -math.inf, math.inf):
        return scale, zero_point
    z = parameters(zero_point, "zero_point", shapes, x)
    return scales_float32(scale, "scale", shapes, x), no_nan(z, "zero_point")


def all_finite(p: Array, name: str) -> None:
    """Fractional zero points."""
    in_range(p, name, -1.7976931348623157e308, 1.7976931348623157e308, "finite")


def int32s(p: Array, name: str) -> Array:
    """Zero points as int32; floating ones are truncated, as PyTorch does."""
    if p.dtype == _INT32:
        return p
    in_range(p, name, *_TRUNCATE_TO_INT32, "within int32")
    return cast(p, _INT32)


def no_nan(p: Array, name: str) -> Array:
    """Learned zero points: any number, infinities clamp."""
    in_range(p, name, -math.inf, math.inf, "a number")
    return p


def learned(value: Any, name: str) -> Array:
    """A parameter that has a gradient: an array of floats; a number is a float32."""
    if isinstance(value, (float, np.float32, np.float64)):
        value = np.array([value], np.float64 if type(value) is np.float64 else np.float32)
    return floats(value if isinstance(value, _ARRAYS) else numbers(value, name), name)


_INT32 = np.dtype(np.int32)
_FLOAT32_SCALES = 1e-45, 3.4028235e38  # the least and the greatest
#: Between these, a float64 truncates to an int32.
_TRUNCATE_TO_INT32 = -(2.0**31) - 1 + 2.0**-21, 2.0**31 - 2.0**-21
_NARROW = frozenset(np.dtype(t) for t in ("int8", "uint8", "int16", "uint16"))


def cast(p: Array, dtype: DType) -> Array:
    """An array of qparams in another dtype; a value too large becomes an infinity, in silence."""
    if type(p) is ArraySpec:
        return ArraySpec(p.shape, dtype)
    if p.dtype == dtype:
        return p
    with np.errstate(over="ignore"):
        return p.astype(dtype)


def precision(dtype: DType, lo: int, hi: int, z: int | float = 0) -> str:
    """The precision of codes: that of the input, while it holds them and their differences."""
    exact = EXACT64 if dtype == dtypes.float64 else EXACT32
    if lo < -exact or hi > exact or not -exact <= z <= exact:
        return "wide"
    return "float64" if dtype == dtypes.float64 else "float32"


# --- what a call per tensor needs, remembered ---------------------------------------------------


def _remembered(check: Callable[..., T]) -> Callable[..., T]:
    """`check`, run once for the same numbers: the same qparams come again and again."""
    fast = lru_cache(maxsize=1024, typed=True)(check)

    @wraps(check)
    def call(*args: Any) -> T:
        try:
            return fast(*args)
        except TypeError:  # an array cannot be looked up, or something is wrong: check it anew
            pass
        return check(*args)

    return call


@_remembered
def affine(
    scale: Any, zero_point: Any, quant_min: Any, quant_max: Any, dtype: DType, kind: type
) -> Affine:
    """The arguments of aten's per-tensor ops: a float32 scale, a zero point between the bounds."""
    s = scale_float32(scale, kind=kind)
    lo, hi = bounds(quant_min, quant_max, kind)
    z = zero_point_inside(zero_point, lo, hi, kind=kind)
    return s, z, (lo, hi, 0), _names(precision(dtype, lo, hi, z))


@_remembered
def learned_affine(
    scale: float,
    zero_point: float,
    quant_min: Any,
    quant_max: Any,
    grad_factor: Any,
    dtype: DType,
    kind: type,
) -> Affine:
    """As `affine`, with a learned zero point: rounded to nearest even in float32, then clamped."""
    s = scale_float32(scale, kind=kind)
    lo, hi = bounds(quant_min, quant_max, kind)
    finite(grad_factor, "grad_factor", kind)
    if math.isnan(zero_point):
        raise ValueError(f"zero_point must be a number, got {zero_point}")
    with np.errstate(over="ignore"):
        z32 = np.clip(np.rint(np.float32(zero_point)), np.float32(lo), np.float32(hi))
    z = int(z32)
    if not lo <= z <= hi:  # a bound that is no float32 was rounded to one outside
        z = int(z32 * STEP_BACK)
    return s, z, (lo, hi, 0), _names(precision(dtype, lo, hi, z))


def _names(code_: str) -> tuple[str, str, str]:
    """The precision of a float32 scale, and of a zero point that is a code."""
    return "float32", code_, code_


@_remembered
def quantizing(
    scale: Any,
    zero_point: Any,
    quant_min: Any,
    quant_max: Any,
    dtype: DType,
    target: DType,
    kind: type,
) -> Affine:
    """The arguments of quantize_per_tensor: the reciprocal of the scale, from float64."""
    s, z = scale_number(scale, kind=kind), zero_point_number(zero_point, kind=kind)
    bounds_ = bounds_of(quant_min, quant_max, target, kind)
    number = dtypes.compute(dtype).name
    z_kind = "int32" if isinstance(z, int) and abs(z) <= SMALL_ZERO_POINT else number
    return 1.0 / s, z, constants(*bounds_, target), (number, z_kind, code(dtype, target))


@_remembered
def dequantizing(
    scale: Any,
    zero_point: Any,
    quant_min: Any,
    quant_max: Any,
    dtype: DType,
    out_dtype: DType,
    kind: type,
) -> Affine:
    """The arguments of dequantize_per_tensor."""
    s, z = scale_number(scale, kind=kind), zero_point_number(zero_point, kind=kind)
    bounds_of(quant_min, quant_max, dtype, kind)
    return s, z, (0, 0, 0), (dtypes.compute(out_dtype).name, "float64", "float32")


def constants(lo: int, hi: int, target: DType) -> tuple[float, float, float]:
    """lo, hi, and what a NaN becomes: the integer code nearest zero, or float8's NaN."""
    return lo, hi, math.nan if target in dtypes.FLOAT8 else min(max(0, lo), hi)


def code(dtype: DType, target: DType) -> str:
    """The precision in which codes are clamped: the greatest int32 is no float32."""
    return "int32" if target == np.int32 else dtypes.compute(dtype).name


# --- AdaRound ---------------------------------------------------------------------------------


def rounded_bounds(lo: int, hi: int, dtype: DType) -> str:
    """The precision of AdaRound's codes, which is that of the input and must hold them."""
    name = precision(dtype, lo, hi)
    if name == "wide":
        exact = EXACT64 if dtype == dtypes.float64 else EXACT32
        raise ValueError(
            f"quant_min and quant_max must lie within {-exact}..{exact} for {dtype}, got {lo}..{hi}"
        )
    return name


def integer_target(dtype: Any, name: str = "dtype") -> DType:
    """A dtype of codes that are integers."""
    found = dtypes.target(dtype, name)
    if found in dtypes.FLOAT8:
        raise TypeError(f"{name} must be a dtype of integers, got {found}")
    return found


def at_least(value: Any, name: str, least: float, kind: type | None = None) -> float:
    """A finite number that is not less than another."""
    v = finite(value, name, kind)
    if v < least:
        raise ValueError(f"{name} must be at least {least}, got {v}")
    return v
