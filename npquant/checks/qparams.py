"""Arrays of qparams: one number for each channel."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from npquant import arrays, dtypes
from npquant.arrays import array, device_array
from npquant.checks.arrays import floats, native, of_one_kind, real
from npquant.checks.numbers import (
    BELOW,
    BEYOND,
    ONE,
    is_number,
    number,
    scale_float32,
    scale_in,
    single_number,
    zero_point_number,
)
from npquant.cpu.checks import Looks, outside
from npquant.dtypes import FLOATS, INTEGERS, REALS, DType
from npquant.errors import show
from npquant.meta import ArraySpec
from npquant.owners import ARRAYS, Array, on_device

#: Integer zero points up to here keep codes of 16 bits within what `rounded_code` rounds.
SMALL_ZERO_POINT = 2**20


def parameters(
    value: Any, name: str, shapes: tuple[tuple[int, ...], ...], x: Array, data: str = "input"
) -> Array:
    """One number a channel of `x`, the argument `data`: of one of `shapes`.

    It comes back flat and contiguous.
    """
    if type(value) is ArraySpec:
        of_one_kind(x, value, name, data)  # but real qparams tell a spec nothing wrong
        p: Any = value
    else:
        p = value if type(value) is np.ndarray else array_of_numbers(value, name)
        if type(p) is not np.ndarray or not isinstance(x, ARRAYS):
            of_one_kind(x, p, name, data)
    if p.dtype not in FLOATS:
        p = native(p, name, REALS)
    if p.shape not in shapes:
        allowed = " or ".join(map(str, dict.fromkeys(shapes)))
        by = getattr(shapes, "by", "")
        raise ValueError(f"{name} must have the shape {allowed}{by}, got {p.shape}")
    return arrays.flat(p)


def array_of_numbers(value: Any, name: str) -> Array:
    """An array, or what NumPy makes an array of numbers of: a list, a scalar."""
    if isinstance(value, (np.ndarray, np.generic)):
        return array(value, name)
    there = device_array(value, name)
    if there is not None:
        return there
    why = ""
    try:
        found = np.asarray(value)
    except RuntimeError as error:  # of a tensor that is more than numbers; it says what to take
        found, why = None, f": {error}"
    except (ValueError, TypeError, OverflowError):
        found = None
    if found is None or found.dtype == object:
        raise TypeError(f"{name} must be an array of numbers, got {show(value)}{why}")
    return found


def in_range(p: Array, name: str, lo: float, hi: float, allowed: str = "") -> None:
    """Every element of `p` between lo and hi, and so no NaN; on a GPU that is not looked at."""
    if type(p) is not np.ndarray:
        return
    i = outside(p, lo, hi)
    if i >= 0:
        allowed = allowed or f"lie within {lo}..{hi}"
        raise ValueError(f"{name} must {allowed}, got {p[i]} at index {i}")


LOOK_AT_CODES, LOOK_AT_LEARNED, LOOK_AT_KEPT = (
    Looks(*pairs) for pairs in (dtypes.CODES, dtypes.LEARNED, dtypes.KEPT)
)


def usual_qparams(
    scale: Any, zero_point: Any, shapes: tuple[tuple[int, ...], ...], looks: Looks, lo: float,
    hi: float, x: Array,
) -> tuple[Array, Array] | None:  # fmt: skip
    """The qparams, flat, if there is nothing to convert and nothing to refuse, else None.

    That is arrays of two dtypes that `looks` knows, of one of `shapes` and contiguous, scales that
    are positive and finite, and zero points within lo..hi. One look finds all of it.
    """
    if type(scale) is type(zero_point) is np.ndarray and type(x) in ARRAYS:
        look = looks[scale.dtype, zero_point.dtype]
        shape = scale.shape
        if (
            look is not None
            and shape in shapes
            and zero_point.shape == shape
            and scale.flags.carray
            and zero_point.flags.carray
        ):
            if len(shape) != 1:
                scale, zero_point = scale.ravel(), zero_point.ravel()
            if look(scale.size, scale, zero_point, lo, hi):
                return scale, zero_point
    return None


def scales_float32(
    value: Any, name: str, shapes: tuple[tuple[int, ...], ...], x: Array, data: str = "input"
) -> Array:
    """Scales that are used in float32."""
    s = parameters(value, name, shapes, x, data)
    in_range(s, name, *_FLOAT32_SCALES, "be positive and finite in float32")
    return arrays.cast(s, dtypes.float32)


def in_precision(s: Array, name: str, precision: DType) -> Array:
    """Scales that were checked, in the precision in which they are used."""
    if s.dtype == precision:
        return s
    in_range(s, name, *_FLOAT32_SCALES, "be positive and finite in float32")
    return arrays.cast(s, precision)


def scales(
    value: Any, name: str, shapes: tuple[tuple[int, ...], ...], x: Array,
    integers: DType = dtypes.float32,
) -> Array:  # fmt: skip
    """Scales that are used in their own precision, but integers."""
    s = parameters(value, name, shapes, x)
    if s.dtype in INTEGERS:
        s = arrays.cast(s, integers)
    in_range(s, name, 5e-324, MOST, "be positive and finite")
    return s


def zero_points(value: Any, name: str, shapes: tuple[tuple[int, ...], ...], x: Array) -> Array:
    """Zero points: floats as they are, integers in int32 or int64."""
    z = parameters(value, name, shapes, x)
    if z.dtype in _NARROW:
        return arrays.cast(z, dtypes.int32)
    if z.dtype == np.uint32:
        return arrays.cast(z, dtypes.int64)
    if z.dtype in FLOATS:
        all_finite(z, name)
    return z


def code_qparams(
    scales_: Any, zero_points_: Any, shapes: tuple[tuple[int, ...], ...], x: Array
) -> tuple[Array, Array]:
    """What to quantize with, rounding before the zero point is added."""
    end = SMALL_ZERO_POINT
    found = usual_qparams(scales_, zero_points_, shapes, LOOK_AT_CODES, -end, end, x)
    if found is not None:
        return found
    s = scales(scales_, "scales", shapes, x)
    z = zero_points(zero_points_, "zero_points", shapes, x)
    return s, large_as_floats(z, s, x)


def kept_qparams(
    scales_: Any, zero_points_: Any, shapes: tuple[tuple[int, ...], ...], x: Array
) -> tuple[Array, Array]:
    """Scales and zero points that are used in their own precision."""
    found = usual_qparams(scales_, zero_points_, shapes, LOOK_AT_KEPT, -MOST, MOST, x)
    if found is not None:
        return found
    s = scales(scales_, "scales", shapes, x)
    return s, zero_points(zero_points_, "zero_points", shapes, x)


def any_on_device(x: Array, scale: Any, zero_point: Any) -> bool:
    """Whether the qparams of one tensor on a GPU are there too, in arrays of one element."""
    if type(x) is np.ndarray or type(x) is ArraySpec:
        return False
    return on_device(scale) or on_device(zero_point)


def device_qparams(
    scale: Any, zero_point: Any, x: Array, precision: DType,
    number: Callable[[Any], Any] = zero_point_number,
) -> tuple[Any, Any]:  # fmt: skip
    """One scale and one zero point on a GPU: arrays, or a number beside an array.

    A zero point that is one is what `number` makes of it, as beside a scale that is one.
    """
    if on_device(scale):  # as a number, which it is on the host
        s = scales(scale, "scale", of_one_element(scale), x, dtypes.float64)
    else:
        s = scale_in(precision, scale)
    if not on_device(zero_point):
        return s, number(zero_point)
    return s, zero_points(zero_point, "zero_point", of_one_element(zero_point), x)


def of_one_element(p: Array) -> tuple[tuple[int, ...], ...]:
    """The shapes that stand for a number, that of an array of one element with more axes too."""
    shape, _ = arrays.kind(p)
    return (*ONE, shape) if math.prod(shape) == 1 else ONE


def large_as_floats(z: Array, s: Array, x: Array) -> Array:
    """Zero points: integers too large for `rounded_code` in the precision of x and scale."""
    end = SMALL_ZERO_POINT
    if type(z) is np.ndarray and z.dtype in INTEGERS and outside(z, -end, end) >= 0:
        wide = dtypes.float64 in (x.dtype, s.dtype)
        return arrays.cast(z, dtypes.float64 if wide else dtypes.float32)
    return z


def learned_qparams(
    scale: Any, zero_point: Any, shapes: tuple[tuple[int, ...], ...], x: Array
) -> tuple[Array, Array]:
    """A float32 scale and a zero point that may be any number."""
    found = usual_qparams(scale, zero_point, shapes, LOOK_AT_LEARNED, -math.inf, math.inf, x)
    if found is not None:
        return found
    if shapes is ONE and not isinstance(x, ARRAYS):  # numbers beside arrays on a GPU
        if not on_device(scale):
            scale = _there(learned_numbers(scale, 0.0, type(x))[0], x)
        if not on_device(zero_point):
            zero_point = _there(learned_numbers(1.0, zero_point, type(x))[1], x)
    z = parameters(zero_point, "zero_point", shapes, x)
    return scales_float32(scale, "scale", shapes, x), no_nan(z, "zero_point")


def _there(number: float, x: Array) -> Array:
    """A number on the GPU that `x` is on: in float32, in which the learned are computed."""
    return arrays.full(x, (1,), dtypes.float32, number)


def learned_numbers(scale: Any, zero_point: Any, kind: type) -> tuple[float, float]:
    """The same of one tensor, as numbers."""
    s = single_number(scale, "scale", kind)
    z = single_number(zero_point, "zero_point", kind)
    if math.isnan(z):
        raise ValueError(f"zero_point must be a number, got {z}")
    if abs(z) > dtypes.EXACT64:
        z = _in_float32(zero_point, z)
    return scale_float32(s), z


def _in_float32(value: Any, z: float) -> float:
    """A large zero point, which may be an integer that no float64 holds: it is rounded once."""
    n = value.item() if isinstance(value, (np.ndarray, np.generic)) else value
    whole = isinstance(n, int) and -(2**63) <= n < 2**63
    return float(np.int64(n).astype(np.float32)) if whole else z


def all_finite(p: Array, name: str) -> None:
    """Fractional zero points."""
    in_range(p, name, -MOST, MOST, "be finite")


def in_float32(p: Array, name: str) -> Array:
    """Fractional zero points that are used in float32."""
    in_range(p, name, -_FLOAT32_SCALES[1], _FLOAT32_SCALES[1], "be finite in float32")
    return arrays.cast(p, dtypes.float32)


def int32s(p: Array, name: str) -> Array:
    """Zero points as int32; floating ones are truncated, as PyTorch does."""
    if p.dtype == dtypes.int32:
        return p
    in_range(p, name, *_TRUNCATE_TO_INT32, "lie within int32")
    return arrays.cast(p, dtypes.int32)


def truncated_inside(p: Array, name: str, lo: int, hi: int) -> Array:
    """Zero points between the bounds once fractions are truncated, as of one number.

    As int32, or where the bounds are wider as int64.
    """
    least = math.nextafter(lo - 1, math.inf) if lo <= 0 else lo
    most = math.nextafter(hi + 1, -math.inf) if hi >= 0 else hi
    in_range(p, name, least, most, f"lie within {lo}..{hi}")
    narrow, wide = dtypes.BOUNDS[dtypes.int32]
    small = p.dtype == dtypes.int32 or (narrow <= lo and hi <= wide)
    return arrays.cast(p, dtypes.int32 if small else dtypes.int64)


def no_nan(p: Array, name: str) -> Array:
    """Learned zero points: any number, infinities clamp."""
    in_range(p, name, -math.inf, math.inf, "be a number")
    return p


def learned(value: Any, name: str) -> Array:
    """A parameter that has a gradient: an array of floats; a number is a float32."""
    if type(value) is np.ndarray and value.dtype in FLOATS:
        return value
    if is_number(value):
        kind = dtypes.float64 if type(value) is np.float64 else dtypes.float32
        if name == "scale":
            scale_float32(value)  # as it was given, not as a float32
        value = arrays.cast(np.array([number(value, name)], dtypes.float64), kind)
    return floats(value if isinstance(value, ARRAYS) else array_of_numbers(value, name), name)


def learned_zero_point(value: Any, x: Array) -> Array:
    """The same of a zero point, which the forward takes in integers too: a float32 of them.

    On a GPU these are made on the stream of `x`.
    """
    if type(value) is int or isinstance(value, np.integer):
        whole = -(2**63) <= value < 2**63
        value = np.array([value], np.int64) if whole else number(value, "zero_point")
    if is_number(value):
        return learned(value, "zero_point")
    z = value if isinstance(value, ARRAYS) else array_of_numbers(value, "zero_point")
    z = real(z, "zero_point")
    if z.dtype not in INTEGERS:
        return z
    if not isinstance(z, ARRAYS) and not isinstance(x, ARRAYS):
        z.follow(x)
    return arrays.cast(z, dtypes.float32)


#: The least number that rounds to a positive float32, and the greatest that does to a finite one.
_FLOAT32_SCALES = (
    math.nextafter(BELOW[dtypes.float32], 1),
    math.nextafter(BEYOND[dtypes.float32], 0),
)
MOST = 1.7976931348623157e308  # of float64
#: Between these, a float64 truncates to an int32.
_TRUNCATE_TO_INT32 = -(2.0**31) - 1 + 2.0**-21, 2.0**31 - 2.0**-22
_NARROW = frozenset(np.dtype(t) for t in ("int8", "uint8", "int16", "uint16"))
