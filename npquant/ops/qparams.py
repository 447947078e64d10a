"""Choose scales and zero points from the range of the data."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from npquant import backend, checks, dtypes, layout
from npquant.checks import Array
from npquant.errors import show
from npquant.meta import ArraySpec

_FLOAT64, _INT64 = np.dtype(np.float64), np.dtype(np.int64)

QSCHEMES = (
    "per_tensor_affine",
    "per_tensor_symmetric",
    "per_channel_affine",
    "per_channel_symmetric",
    "per_channel_affine_float_qparams",
)


def choose_qparams(
    input: Array, quant_min: int, quant_max: int, eps: float, dtype: Any
) -> tuple[Array, Array]:
    """Choose one scale and zero point that cover the range of the data."""
    return _choose(input, quant_min, quant_max, eps, dtype, "per_tensor_affine")


def choose_qparams_symmetric(
    input: Array, quant_min: int, quant_max: int, eps: float, dtype: Any
) -> tuple[Array, Array]:
    """Choose one scale that covers the range of the data, the zero point in the middle."""
    return _choose(input, quant_min, quant_max, eps, dtype, "per_tensor_symmetric")


def _choose(
    input: Any, quant_min: Any, quant_max: Any, eps: Any, dtype: Any, qscheme: str
) -> tuple[Array, Array]:
    x = checks.floats(input)
    target = dtypes.target(dtype)
    lo, hi = _proper(quant_min, quant_max)
    least = checks.finite(eps, "eps")
    if x.size == 0:
        raise ValueError(f"input must have elements, got shape {x.shape}")
    if isinstance(x, ArraySpec):
        return ArraySpec((1,), _FLOAT64), ArraySpec((1,), _INT64)
    mn, mx = backend.of(x).minmax(layout.Granularity(1, x.size, None), x)
    return _determine(mn, mx, lo, hi, target, least, qscheme, False, False)


def choose_qparams_per_token(input: Array, dtype: Any) -> tuple[Array, Array]:
    """Choose a symmetric scale for each row along the last axis, for int8."""
    x = checks.real(input)
    if dtypes.target(dtype) != np.int8:
        raise ValueError(f"dtype must be int8, the only one PyTorch has here, got {dtype}")
    kind = dtypes.float32 if x.dtype in (*dtypes.INTEGERS, dtypes.float16) else x.dtype
    shape = _token_shape(x)
    if isinstance(x, ArraySpec):
        return ArraySpec(shape, kind), ArraySpec(shape, kind)
    mn, mx = backend.of(x).minmax(layout.per_token(x.shape), x)
    with np.errstate(all="ignore"):
        # In float64 first: the magnitude of the least integer is no integer of its dtype.
        wide = np.float64 if x.dtype in dtypes.INTEGERS else kind
        largest = np.maximum(np.abs(mn.astype(wide)), np.abs(mx.astype(wide))).astype(kind)
        scale = np.maximum(largest, kind.type(1e-5))
        if kind == dtypes.bfloat16:
            scale = (scale.astype(np.float32) / np.float32(127)).astype(kind)
        else:
            scale = scale / kind.type(127)
    return scale.reshape(shape), np.zeros(shape, kind)


def choose_qparams_per_token_asymmetric(input: Array, dtype: Any) -> tuple[Array, Array]:
    """Choose a scale and a zero point for each row along the last axis, for int8."""
    x = checks.real(input)
    dtypes.target(dtype)
    shape = _token_shape(x)
    if isinstance(x, ArraySpec):
        return ArraySpec(shape, _FLOAT64), ArraySpec(shape, _INT64)
    mn, mx = backend.of(x).minmax(layout.per_token(x.shape), x)
    if x.dtype in dtypes.INTEGERS:
        mn, mx = mn.astype(np.float32), mx.astype(np.float32)
    kind, lo, hi = mn.dtype.type, -128, 127
    with np.errstate(all="ignore"):
        mn, mx = np.minimum(mn, kind(0)), np.maximum(mx, kind(0))
        scale = np.maximum(_divide(mx - mn, hi - lo), kind(np.finfo(np.float32).eps))
        a, b = mn / scale, mx / scale
        below = (kind(lo) + a) + (kind(hi) + b) > 0
        z = np.rint(np.clip(np.where(below, kind(lo) - a, kind(hi) - b), kind(lo), kind(hi)))
    return scale.astype(np.float64).reshape(shape), _int64(z).reshape(shape)


def determine_qparams(
    min_val: Array,
    max_val: Array,
    quant_min: int,
    quant_max: int,
    dtype: Any,
    eps: Any,
    has_customized_qrange: bool,
    qscheme: str = "per_tensor_affine",
) -> tuple[Array, Array]:
    """Choose scales and zero points from minima and maxima."""
    mn, mx = checks.floats(min_val, "min_val"), checks.floats(max_val, "max_val")
    checks.same(mx, "max_val", mn)
    if mn.ndim > 1:
        raise ValueError(f"min_val must have at most one axis, got shape {mn.shape}")
    lo, hi = checks.bounds(quant_min, quant_max)
    target = dtypes.target(dtype)
    least = checks.finite(eps, "eps")
    custom = checks.switch(has_customized_qrange, "has_customized_qrange")
    if qscheme not in QSCHEMES:
        raise ValueError(f"qscheme must be one of {', '.join(QSCHEMES)}, got {show(qscheme)}")
    if mn.size == 0:
        return _unset(mn)
    if isinstance(mn, ArraySpec):
        shape = mn.shape or (1,)
        return ArraySpec(shape, _FLOAT64), ArraySpec(shape, _INT64)
    if mn.ndim == 0 and mn == math.inf and mx == -math.inf:
        return _unset(mn)
    if (mn > mx).any():
        raise ValueError(f"min_val must not exceed max_val, got {show(mn)} and {show(mx)}")
    flat = mn.reshape(-1), mx.reshape(-1)
    return _determine(*flat, lo, hi, target, least, qscheme, custom, mn.ndim == 1)


def _unset(mn: Array) -> tuple[Array, Array]:
    """What observers give before they have seen anything."""
    if isinstance(mn, ArraySpec):
        return ArraySpec((1,), _FLOAT64), ArraySpec((1,), _INT64)
    return np.ones(1), np.zeros(1, np.int64)


# --- what they share --------------------------------------------------------------------------


def _determine(
    mn: np.ndarray[Any, Any], mx: np.ndarray[Any, Any], lo: int, hi: int,
    target: dtypes.DType, eps: float, qscheme: str, custom: bool, vector: bool,
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:  # fmt: skip
    """The arithmetic of PyTorch's determine_qparams, step by step in its dtypes.

    A range without axes does not promote the float32 `eps` that it meets; a vector does.
    """
    kind = mn.dtype.type
    meets = np.float64 if vector and mn.dtype == np.float64 else np.float32
    least = meets(np.float32(eps))
    with np.errstate(all="ignore"):
        low, high = np.minimum(mn, kind(0)), np.maximum(mx, kind(0))
        if qscheme.endswith("symmetric"):
            scale = np.maximum(_divide(np.maximum(-low, high), (hi - lo) / 2).astype(meets), least)
            z = np.full(mn.shape, _middle(target, lo, hi, custom), np.int64)
        elif qscheme.endswith("float_qparams"):
            scale = _divide(mx - mn, hi - lo)
            scale = np.where(scale.astype(meets) > least, scale, kind(1))
            z = _int64((-mn) / scale)
        else:
            scale = np.maximum(_divide(high - low, hi - lo).astype(meets), least)
            z = np.clip(_wrapped(lo - _int32(np.rint(low.astype(meets) / scale))), lo, hi)
    return scale.astype(np.float64), z.astype(np.int64)


def _divide(x: np.ndarray[Any, Any], by: float) -> np.ndarray[Any, Any]:
    """x / by as PyTorch divides by a number: in float32 at least, rounded to the dtype of `x`."""
    wide = dtypes.compute(x.dtype)
    quotient: np.ndarray[Any, Any] = np.divide(x.astype(wide), wide.type(by)).astype(x.dtype)
    return quotient


def _int64(v: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """To int64; NaN and what does not fit become its least value, as on x86."""
    return _truncated(v.astype(np.float64), 63)


def _int32(v: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """To int32, held in int64; NaN and what does not fit become its least value."""
    return _truncated(v.astype(np.float64), 31)


def _truncated(v: np.ndarray[Any, Any], bits: int) -> np.ndarray[Any, Any]:
    fits = np.abs(v) < 2.0**bits
    return np.where(fits, np.where(fits, v, 0).astype(np.int64), -(2**bits))


def _wrapped(v: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Into the range of int32, modulo 2**32."""
    return v.astype(np.int32).astype(np.int64)


def _middle(target: dtypes.DType, lo: int, hi: int, custom: bool) -> int:
    """The zero point of a symmetric scheme: the middle of an unsigned range of up to 8 bits."""
    least, greatest = dtypes.BOUNDS[target]
    if least != 0 or greatest > 255:
        return 0
    return (lo + hi) // 2 if custom else (greatest + 1) // 2


def _proper(quant_min: Any, quant_max: Any) -> tuple[int, int]:
    """Bounds with zero between and more than one code."""
    lo, hi = checks.bounds_around_zero(quant_min, quant_max)
    if lo == hi:
        raise ValueError(f"quant_min must be less than quant_max, got {lo} and {hi}")
    return lo, hi


def _token_shape(x: Array) -> tuple[int, ...]:
    if x.ndim and x.shape[-1] == 0:
        raise ValueError(f"input must have elements along its last axis, got shape {x.shape}")
    return (*x.shape[:-1], 1) if x.ndim else ()
