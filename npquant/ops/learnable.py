"""Fake quantize with a scale and a zero point that are learned, and its gradients.

The gradient of the scale is that of LSQ (Esser et al., Learned Step Size Quantization, 2020), that
of the zero point that of LSQ+ (Bhalgat et al., 2020); both pass through rounding straight.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from npquant import backend, checks, dtypes, layout
from npquant.checks import Array
from npquant.layout import Granularity
from npquant.meta import ArraySpec
from npquant.ops.fake_quantize import run_per_tensor
from npquant.ops.quantize import group_shapes, token_shapes

Shapes = tuple[tuple[int, ...], ...]


def fake_quantize_learnable_per_tensor_affine(
    input: Array,
    scale: Array,
    zero_point: Array,
    quant_min: int,
    quant_max: int,
    grad_factor: float = 1.0,
    *,
    out: Array | None = None,
) -> Array:
    """Fake quantize with one learned scale and zero point."""
    x = checks.floats(input)
    s = checks.scale_float32(checks.single(scale, "scale"))
    lo, hi = checks.bounds(quant_min, quant_max)
    z = _nearest(checks.number(checks.single(zero_point, "zero_point"), "zero_point"), lo, hi)
    checks.finite(grad_factor, "grad_factor")
    return run_per_tensor(x, s, z, lo, hi, checks.output(out, x, x.dtype), None)


def fake_quantize_learnable_per_tensor_affine_backward(
    grad: Array,
    input: Array,
    scale: Array,
    zero_point: Array,
    quant_min: int,
    quant_max: int,
    grad_factor: float = 1.0,
    *,
    zero_point_rounding: str = "pytorch",
) -> tuple[Array, Array, Array]:
    """The gradients of `fake_quantize_learnable_per_tensor_affine`."""
    x = checks.floats(input)
    one = Granularity(1, x.size, None)
    shapes: Shapes = ((1,), ())
    return _backward(grad, x, scale, zero_point, one, shapes, quant_min, quant_max, grad_factor,
                     zero_point_rounding, "learnable_gradients_per_tensor")  # fmt: skip


def fake_quantize_learnable_per_channel_affine(
    input: Array,
    scale: Array,
    zero_point: Array,
    axis: int,
    quant_min: int,
    quant_max: int,
    grad_factor: float = 1.0,
    *,
    out: Array | None = None,
) -> Array:
    """Fake quantize with a learned scale and zero point for each index of one axis."""
    x = checks.floats(input)
    a = checks.axis_of(axis, x)
    return _forward(x, scale, zero_point, layout.per_channel(x.shape, a), ((x.shape[a],),),
                    quant_min, quant_max, grad_factor, out)  # fmt: skip


def fake_quantize_learnable_per_channel_affine_backward(
    grad: Array,
    input: Array,
    scale: Array,
    zero_point: Array,
    axis: int,
    quant_min: int,
    quant_max: int,
    grad_factor: float = 1.0,
    *,
    zero_point_rounding: str = "pytorch",
) -> tuple[Array, Array, Array]:
    """The gradients of `fake_quantize_learnable_per_channel_affine`."""
    x = checks.floats(input)
    a = checks.axis_of(axis, x)
    return _backward(grad, x, scale, zero_point, layout.per_channel(x.shape, a), ((x.shape[a],),),
                     quant_min, quant_max, grad_factor, zero_point_rounding)  # fmt: skip


def fake_quantize_learnable_per_token_affine(
    input: Array,
    scale: Array,
    zero_point: Array,
    quant_min: int,
    quant_max: int,
    grad_factor: float = 1.0,
    *,
    out: Array | None = None,
) -> Array:
    """Fake quantize with a learned scale and zero point for each row along the last axis."""
    x = checks.floats(input)
    return _forward(x, scale, zero_point, layout.per_token(x.shape), token_shapes(x),
                    quant_min, quant_max, grad_factor, out)  # fmt: skip


def fake_quantize_learnable_per_token_affine_backward(
    grad: Array,
    input: Array,
    scale: Array,
    zero_point: Array,
    quant_min: int,
    quant_max: int,
    grad_factor: float = 1.0,
    *,
    zero_point_rounding: str = "pytorch",
) -> tuple[Array, Array, Array]:
    """The gradients of `fake_quantize_learnable_per_token_affine`."""
    x = checks.floats(input)
    return _backward(grad, x, scale, zero_point, layout.per_token(x.shape), token_shapes(x),
                     quant_min, quant_max, grad_factor, zero_point_rounding)  # fmt: skip


def fake_quantize_learnable_per_channel_group_affine(
    input: Array,
    scale: Array,
    zero_point: Array,
    quant_min: int,
    quant_max: int,
    group_size: int = 128,
    grad_factor: float = 1.0,
    *,
    out: Array | None = None,
) -> Array:
    """Fake quantize with a learned scale and zero point for each group along the last axis."""
    x = checks.floats(input)
    g = checks.group_size_of(group_size, x)
    return _forward(x, scale, zero_point, layout.per_channel_group(x.shape, g), group_shapes(x, g),
                    quant_min, quant_max, grad_factor, out)  # fmt: skip


def fake_quantize_learnable_per_channel_group_affine_backward(
    grad: Array,
    input: Array,
    scale: Array,
    zero_point: Array,
    quant_min: int,
    quant_max: int,
    group_size: int = 128,
    grad_factor: float = 1.0,
    *,
    zero_point_rounding: str = "pytorch",
) -> tuple[Array, Array, Array]:
    """The gradients of `fake_quantize_learnable_per_channel_group_affine`."""
    x = checks.floats(input)
    g = checks.group_size_of(group_size, x)
    return _backward(grad, x, scale, zero_point, layout.per_channel_group(x.shape, g),
                     group_shapes(x, g), quant_min, quant_max, grad_factor,
                     zero_point_rounding)  # fmt: skip


# --- what they share --------------------------------------------------------------------------


def _forward(
    x: Array, scale: Any, zero_point: Any, granularity: Granularity, shapes: Shapes,
    quant_min: Any, quant_max: Any, grad_factor: Any, out: Any,
) -> Array:  # fmt: skip
    s = checks.scales_float32(scale, "scale", shapes, x)
    z = checks.no_nan(checks.parameters(zero_point, "zero_point", shapes, x), "zero_point")
    lo, hi = checks.bounds(quant_min, quant_max)
    checks.finite(grad_factor, "grad_factor")
    y = checks.output(out, x, x.dtype)
    code = checks.precision(x.dtype, lo, hi)
    backend.of(x).fake_quantize_learnable(granularity, x, s, z, (lo, hi, 0), ("float32", code), y)
    return y


def _backward(
    grad: Any, x: Array, scale: Any, zero_point: Any, granularity: Granularity, shapes: Shapes,
    quant_min: Any, quant_max: Any, grad_factor: Any, zero_point_rounding: Any,
    kernel: str = "learnable_gradients_per_channel",
) -> tuple[Array, Array, Array]:  # fmt: skip
    if zero_point_rounding not in ("pytorch", "nearest"):
        raise ValueError(
            f'zero_point_rounding must be "pytorch" or "nearest", got {zero_point_rounding!r}'
        )
    if zero_point_rounding == "nearest":
        kernel += "_nearest"
    g = checks.same(grad, "grad", x)
    given = [checks.learned(p, n) for p, n in ((scale, "scale"), (zero_point, "zero_point"))]
    s = checks.scales_float32(given[0], "scale", shapes, x)
    z = checks.no_nan(checks.parameters(given[1], "zero_point", shapes, x), "zero_point")
    lo, hi = checks.bounds_around_zero(quant_min, quant_max)
    factor = checks.finite(grad_factor, "grad_factor")
    y = checks.output(None, x, x.dtype)
    if isinstance(x, ArraySpec):
        return y, *(ArraySpec(p.shape, p.dtype) for p in given)
    if x.size == 0:
        return y, *(np.zeros(p.shape, p.dtype) for p in given)
    code = checks.precision(x.dtype, lo, hi)
    sums = getattr(backend.of(x), kernel)(granularity, g, x, s, z, (lo, hi, factor), code, y)
    with np.errstate(over="ignore", invalid="ignore"):
        slope, shift = (
            dtypes.round_once(total, p.dtype).reshape(p.shape)
            for total, p in zip(sums, given, strict=True)
        )
    return y, slope, shift


def _nearest(z: float, lo: int, hi: int) -> int:
    """The zero point that a learned one stands for: rounded to nearest even, then clamped."""
    if math.isnan(z):
        raise ValueError(f"zero_point must be a number, got {z}")
    if not lo <= z <= hi:
        return hi if z > 0 else lo
    return min(max(int(np.rint(np.float32(z))), lo), hi)
