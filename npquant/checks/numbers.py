"""Numbers: given as such, or as the one element of an array."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from npquant.arrays import array
from npquant.checks.arrays import native
from npquant.dtypes import BOUNDS, FLOATS, INTEGERS, REALS, DType, bool_, float32, float64
from npquant.errors import show
from npquant.meta import ArraySpec
from npquant.owners import ARRAYS, Array

# Between these, a number rounds to a positive finite float32.
_LEAST_FLOAT32, _BEYOND_FLOAT32 = 2.0**-150, (2 - 2.0**-24) * 2.0**127

#: The shapes of an array that may stand for one number of a tensor.
ONE: tuple[tuple[int, ...], ...] = ((1,), ())

#: The greatest number that rounds to 0 in a dtype, and the least that does not to a finite one.
BELOW, BEYOND = (
    {float32: _LEAST_FLOAT32, float64: 0.0},
    {float32: _BEYOND_FLOAT32, float64: math.inf},
)

#: Dtypes of arrays that are on or off as they are.
_SWITCHES = INTEGERS | {bool_}


def integer(value: Any, name: str, kind: type | None = None) -> int:
    """An integer, or the one element of an array, which may be of floats but has no fraction."""
    if type(value) is int:
        return value
    if isinstance(value, ARRAYS):
        n, whole = one(value, name, kind), truncated(value, name, kind)
        if n != whole:
            raise ValueError(f"{name} must be an integer, got {n}")
        return whole
    if isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, got {show(value)}") from None


def truncated(value: Any, name: str, kind: type | None = None) -> int:
    """An integer, or the one element of an array: of floats truncated, as PyTorch does."""
    if type(value) is int or not isinstance(value, ARRAYS):
        return integer(value, name, kind)
    n = one(value, name, kind)
    if not math.isfinite(n):
        raise ValueError(f"{name} must be finite, got {n}")
    return int(n)


def one(value: Array, name: str, kind: type | None = None) -> float | int:
    """The one element of an array, as a Python number; of a spec, a number that passes.

    A spec is one of these only in an op whose data, which are of `kind`, are specs too.
    """
    value = array(value, name)
    if type(value) is ArraySpec and kind is not ArraySpec:
        beside = "" if kind is None else " where input is an array"
        raise TypeError(f"{name} must not be an ArraySpec{beside}, got {value}")
    if value.size != 1:
        raise ValueError(f"{name} must have one element, got {show(value)}")
    value = native(value, name, REALS)
    if value.dtype in FLOATS:
        return 1.0 if type(value) is ArraySpec else float(value.item())
    return 1 if type(value) is ArraySpec else int(value.item())


def is_number(value: Any) -> bool:
    """Whether it is a real number, and no bool."""
    numeric = isinstance(value, (int, float, np.integer, np.floating, ml_dtypes.bfloat16))
    return numeric and not isinstance(value, (bool, np.timedelta64))  # an integer, to NumPy


def number(value: Any, name: str, kind: type | None = None) -> float:
    """A real number, or the one element of an array."""
    if type(value) is float:
        return value
    if type(value) is np.ndarray and value.size == 1 and value.dtype in REALS:
        return float(value.item())
    if isinstance(value, ARRAYS):
        return float(one(value, name, kind))
    if not is_number(value):
        raise TypeError(f"{name} must be a number or an array of one element, got {show(value)}")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{name} must fit a float64, got {show(value)}") from None


def finite_float32(value: Any, name: str) -> float:
    """A number that stays finite in float32, in which it is used."""
    return finite(value, name, None, BEYOND[float32])


def scale_float32(value: Any, name: str = "scale", kind: type | None = None) -> float:
    """A scale that stays positive and finite in float32, in which it is used."""
    scale = number(value, name, kind)
    if _LEAST_FLOAT32 < scale < _BEYOND_FLOAT32:
        return scale
    raise ValueError(f"{name} must be positive and finite in float32, got {scale}")


def scale_in(precision: DType, value: Any, kind: type | None = None) -> float:
    """A scale that stays positive and finite in the precision in which it is used."""
    if precision != float64:
        return scale_float32(value, "scale", kind)
    scale = number(value, "scale", kind)
    if 0.0 < scale < math.inf:
        return scale
    raise ValueError(f"scale must be positive and finite, got {scale}")


def least_scale(value: Any, kind: type | None = None) -> float:
    """The `eps` of qparams that are chosen, which is used in float32."""
    eps = number(value, "eps", kind)
    if 0.0 <= eps < _BEYOND_FLOAT32:
        return eps
    raise ValueError(f"eps must be finite in float32 and not negative, got {eps}")


def bounds(quant_min: Any, quant_max: Any, kind: type | None = None) -> tuple[int, int]:
    """The least and the greatest code, of any width up to int64."""
    lo = quant_min if type(quant_min) is int else _bound(quant_min, "quant_min", -(2**63), kind)
    hi = quant_max if type(quant_max) is int else _bound(quant_max, "quant_max", 2**63 - 1, kind)
    if lo > hi:
        raise ValueError(f"quant_min must not exceed quant_max, got {show(lo)} > {show(hi)}")
    if lo < -(2**63) or hi >= 2**63:
        raise ValueError(f"quant_min and quant_max must fit int64, got {show(lo)} and {show(hi)}")
    return lo, hi


def bounds_with_steps(quant_min: Any, quant_max: Any, kind: type | None) -> tuple[int, int]:
    """The least and the greatest code, and an int64 holds how many steps are between them."""
    lo, hi = bounds(quant_min, quant_max, kind)
    unknown = type(quant_min) is ArraySpec or type(quant_max) is ArraySpec
    if hi - lo >= 2**63 and not unknown:
        raise ValueError(f"quant_max - quant_min must fit int64, got {lo} and {hi}")
    return lo, hi


def _bound(value: Any, name: str, unknown: int, kind: type | None) -> int:
    n = truncated(value, name, kind)
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
    lo, hi = bounds_with_steps(quant_min, quant_max, kind)
    if not lo <= 0 <= hi:
        raise ValueError(f"quant_min <= 0 <= quant_max is required, got {lo} and {hi}")
    return lo, hi


def _unboxed(value: Any) -> Any:
    """One of NumPy's floats as the array without axes that it stands for."""
    floating = isinstance(value, (np.floating, ml_dtypes.bfloat16))
    return np.asarray(value) if floating else value


def zero_point_inside(value: Any, lo: int, hi: int, kind: type | None = None) -> int:
    """An integer zero point between the bounds."""
    z = value if type(value) is int else truncated(_unboxed(value), "zero_point", kind)
    if lo <= z <= hi or type(value) is ArraySpec:
        return z
    raise ValueError(f"zero_point must lie within {lo}..{hi}, got {show(z)}")


def zero_point_number(value: Any, kind: type | None = None) -> int | float:
    """A zero point: an integer, or the one element of an array, which may be fractional."""
    value = _unboxed(value)
    if type(value) is not int and isinstance(value, ARRAYS):
        z = one(value, "zero_point", kind)
        if not math.isfinite(z):
            raise ValueError(f"zero_point must be finite, got {z}")
        return z
    z = integer(value, "zero_point")
    if not -(2**63) <= z < 2**63:
        raise ValueError(f"zero_point must fit int64, got {show(z)}")
    return z


def finite(value: Any, name: str, kind: type | None = None, beyond: float = math.inf) -> float:
    """A number that is finite; with an end of `BEYOND`, in that dtype."""
    v = number(value, name, kind)
    if not abs(v) < beyond:
        raise ValueError(f"{name} must be finite{' in float32' * (beyond < math.inf)}, got {v}")
    return v


def single_number(value: Any, name: str, kind: type | None) -> float:
    """A real number, or an array of shape (1,) or () that holds one."""
    if type(value) is np.ndarray and value.size == 1 >= value.ndim and value.dtype in REALS:
        return float(value.item())
    if isinstance(value, ARRAYS) and value.shape not in ONE:
        raise ValueError(f"{name} must have the shape (1,) or (), got {value.shape}")
    return number(value, name, kind)


def switch(value: Any, name: str, kind: type | None = None) -> bool:
    """On or off: a bool, or a number that is truncated to an integer, as PyTorch does."""
    if type(value) is np.ndarray and value.dtype in _SWITCHES and value.size == 1:
        return bool(value.item())
    if type(value) is int and 0 <= value <= 1:
        return value == 1
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if isinstance(value, np.ndarray) and value.dtype == np.bool_ and value.size == 1:
        return bool(array(value, name).item())
    if type(value) is ArraySpec and value.dtype == np.bool_:
        value = ArraySpec(value.shape, np.int8)  # which is a number
    if not isinstance(value, (*ARRAYS, int, float, np.number, ml_dtypes.bfloat16)):
        raise TypeError(f"{name} must be a bool or a number, got {show(value)}")
    n = number(value, name, kind)
    if not math.isfinite(n):
        raise ValueError(f"{name} must be finite, got {n}")
    return int(n) != 0


def shaping(value: Any, name: str) -> int:
    """An integer that shapes depend on, and so no spec."""
    if type(value) is ArraySpec:
        raise TypeError(f"{name} must be an integer, got {value}")
    return integer(value, name)


def within(value: Any, name: str, least: int, greatest: int) -> int:
    """An integer between two, which count as well."""
    n = shaping(value, name)
    if not least <= n <= greatest:
        raise ValueError(f"{name} must lie within {least}..{greatest}, got {show(n)}")
    return n


def axis_of(axis: Any, x: Array, name: str = "axis", data: str = "input") -> int:
    """An axis of `x`, which is the argument `data`, counted from the front."""
    a = axis if type(axis) is int else shaping(axis, name)
    if not -x.ndim <= a < x.ndim:
        raise ValueError(f"{name} must be an axis of {data}, of shape {x.shape}, got {show(a)}")
    return a if a >= 0 else a + x.ndim


def group_size_of(group_size: Any, x: Array, name: str, ndim: int | None = None) -> int:
    """A group size that divides the last axis of `x`; a greater one means the whole axis."""
    g = shaping(group_size, "group_size")
    if ndim is not None and x.ndim != ndim:
        raise ValueError(f"{name} must have {ndim} axes, got shape {x.shape}")
    if x.ndim == 0:
        raise ValueError(f"{name} must have an axis to be grouped, got shape ()")
    width = x.shape[-1]
    if g <= 1 or (g < width and width % g):
        raise ValueError(
            f"group_size must be at least 2, and divide or exceed the last axis of {name}, "
            f"of shape {x.shape}, got {show(g)}"
        )
    return min(g, width or 2)  # of nothing, groups of any size


def group_size_alone(group_size: Any) -> int | None:
    """A group size, or None, before there is an axis for it to divide."""
    g = None if group_size is None else shaping(group_size, "group_size")
    if g is not None and g < 2:
        raise ValueError(f"group_size must be at least 2, got {g}")
    return g


def at_least(
    value: Any, name: str, least: float, kind: type | None = None, beyond: float = math.inf
) -> float:
    """A number that is not less than another, and `finite`."""
    v = finite(value, name, kind, beyond)
    if v < least:
        raise ValueError(f"{name} must be at least {least}, got {v}")
    return v


def at_least_in_float32(value: Any, name: str, least: float) -> float:
    """The same of a number that is used in float32."""
    return at_least(value, name, least, None, _BEYOND_FLOAT32)


def below_one(value: Any, name: str) -> float:
    """A number from 0 on that is less than 1."""
    v = at_least(value, name, 0.0)
    if v >= 1:
        raise ValueError(f"{name} must be less than 1, got {v}")
    return v


def share(value: Any, name: str) -> float:
    """A part of all: a number within 0..1."""
    v = at_least(value, name, 0.0)
    if v > 1:
        raise ValueError(f"{name} must be at most 1, got {v}")
    return v


def two(value: Any, name: str) -> Sequence[Any]:
    """A tuple or the like of two numbers, which are not looked at yet."""
    text = isinstance(value, (str, bytes, bytearray))
    if text or not isinstance(value, Sequence) or len(value) != 2:
        raise TypeError(f"{name} must be a tuple or list of two numbers, got {show(value)}")
    return value
