"""Fake quantize: to the grid of the codes and back to floats, as aten does it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from npquant import backend, checks, dtypes, layout
from npquant.checks import Array
from npquant.meta import ArraySpec

_BOOL = np.dtype(np.bool_)


def fake_quantize_per_tensor_affine(
    input: Array,
    scale: Any,
    zero_point: Any,
    quant_min: int,
    quant_max: int,
    *,
    out: Array | None = None,
) -> Array:
    """Round to the grid of one scale and zero point, and clamp to its range."""
    return _per_tensor(input, scale, zero_point, quant_min, quant_max, out)


def fake_quantize_per_tensor_affine_cachemask(
    input: Array, scale: Any, zero_point: Any, quant_min: int, quant_max: int
) -> tuple[Array, Array]:
    """As `fake_quantize_per_tensor_affine`, with a mask of what was inside the range."""
    mask = checks.output(None, checks.floats(input), _BOOL)
    return _per_tensor(input, scale, zero_point, quant_min, quant_max, None, mask), mask


def fake_quantize_per_tensor_affine_cachemask_tensor_qparams(
    input: Array,
    scale: Array,
    zero_point: Array,
    fake_quant_enabled: Array,
    quant_min: int,
    quant_max: int,
) -> tuple[Array, Array]:
    """As `fake_quantize_per_tensor_affine_cachemask`, with qparams in arrays, and a switch."""
    x = checks.floats(input)
    lo, hi = checks.bounds(quant_min, quant_max)
    s = checks.scale_float32(scale)
    z = checks.truncated_int32(zero_point, "zero_point")
    enabled = checks.switch(fake_quant_enabled, "fake_quant_enabled")
    y, mask = checks.output(None, x, x.dtype), checks.output(None, x, _BOOL)
    if enabled:
        run_per_tensor(x, s, z, lo, hi, y, mask)
    else:
        backend.of(x).copy(x, y, mask)
    return y, mask


def fake_quantize_per_tensor_affine_cachemask_backward(
    grad: Array, mask: Array, *, out: Array | None = None
) -> Array:
    """The gradient of the input: that of the output where the mask is true."""
    return _masked(grad, mask, out)


def fake_quantize_per_channel_affine(
    input: Array,
    scale: Array,
    zero_point: Array,
    axis: int,
    quant_min: int,
    quant_max: int,
    *,
    out: Array | None = None,
) -> Array:
    """Round to the grid of a scale and a zero point for each index of one axis."""
    return _per_channel(input, scale, zero_point, axis, quant_min, quant_max, out)


def fake_quantize_per_channel_affine_cachemask(
    input: Array, scale: Array, zero_point: Array, axis: int, quant_min: int, quant_max: int
) -> tuple[Array, Array]:
    """As `fake_quantize_per_channel_affine`, with a mask of what was inside the range."""
    mask = checks.output(None, checks.floats(input), _BOOL)
    return _per_channel(input, scale, zero_point, axis, quant_min, quant_max, None, mask), mask


def fake_quantize_per_channel_affine_cachemask_backward(
    grad: Array, mask: Array, *, out: Array | None = None
) -> Array:
    """The gradient of the input: that of the output where the mask is true."""
    return _masked(grad, mask, out)


def fake_quant_per_channel(
    input: Array,
    scales: Array,
    zero_points: Array,
    axis: int,
    quant_min: int,
    quant_max: int,
    *,
    out: Array | None = None,
) -> Array:
    """quantized_decomposed's fake quantize per channel: a NaN stays NaN."""
    return _decomposed(input, scales, zero_points, axis, quant_min, quant_max, out)


def fake_quant_per_channel_cachemask(
    input: Array, scales: Array, zero_points: Array, axis: int, quant_min: int, quant_max: int
) -> tuple[Array, Array]:
    """As `fake_quant_per_channel`, with a mask of what was inside the range."""
    mask = checks.output(None, checks.floats(input), _BOOL)
    return _decomposed(input, scales, zero_points, axis, quant_min, quant_max, None, mask), mask


def fake_quant_per_channel_backward(grad: Array, mask: Array, *, out: Array | None = None) -> Array:
    """The gradient of the input: that of the output where the mask is true."""
    return _masked(grad, mask, out)


# --- what they share --------------------------------------------------------------------------


def _per_tensor(
    input: Any, scale: Any, zero_point: Any, quant_min: Any, quant_max: Any,
    out: Any, mask: Array | None = None,
) -> Array:  # fmt: skip
    x = checks.floats(input)
    numbers = checks.affine(scale, zero_point, quant_min, quant_max, x.dtype)
    y = checks.output(out, x, x.dtype)
    backend.of(x).fake_quantize_per_tensor(layout.PER_TENSOR, x, *numbers, y, mask)
    return y


def run_per_tensor(
    x: Array, s: float, z: int, lo: int, hi: int, y: Array, mask: Array | None
) -> Array:
    """The kernel of one scale, on checked arguments."""
    code = checks.precision(x.dtype, lo, hi, z)
    backend.of(x).fake_quantize_per_tensor(
        layout.PER_TENSOR, x, s, z, (lo, hi, 0), ("float32", code), y, mask
    )
    return y


def _per_channel(
    input: Any, scale: Any, zero_point: Any, axis: Any, quant_min: Any, quant_max: Any,
    out: Any, mask: Array | None = None,
) -> Array:  # fmt: skip
    x = checks.floats(input)
    a = checks.axis_of(axis, x)
    shapes = ((x.shape[a],),)
    s = checks.scales_float32(scale, "scale", shapes, x)
    z = checks.parameters(zero_point, "zero_point", shapes, x)
    lo, hi = checks.bounds(quant_min, quant_max)
    lib, code = backend.of(x), "float64"
    if z.dtype == dtypes.float16:
        kernel = lib.fake_quantize_half_zero_point
    elif z.dtype in dtypes.FLOATS:
        kernel, z = lib.fake_quantize_float_zero_point, checks.cast(z, dtypes.float32)
    if z.dtype in dtypes.FLOATS:
        checks.all_finite(z, "zero_point")
    else:
        kernel, code = lib.fake_quantize_per_channel, checks.precision(x.dtype, lo, hi)
        checks.in_range(z, "zero_point", lo, hi, f"within {lo}..{hi}")
        z = checks.int32s(z, "zero_point")
    y = checks.output(out, x, x.dtype)
    kernel(layout.per_channel(x.shape, a), x, s, z, (lo, hi, 0), ("float32", code), y, mask)
    return y


def _decomposed(
    input: Any, scales: Any, zero_points: Any, axis: Any, quant_min: Any, quant_max: Any,
    out: Any, mask: Array | None = None,
) -> Array:  # fmt: skip
    x = checks.floats(input)
    a = checks.axis_of(axis, x)
    shapes = ((x.shape[a],),)
    s = checks.scales_float32(scales, "scales", shapes, x)
    if x.dtype == dtypes.float64:
        s = checks.cast(checks.parameters(scales, "scales", shapes, x), x.dtype)
    z = checks.int32s(
        checks.parameters(zero_points, "zero_points", shapes, x), "zero_points", truncate=True
    )
    lo, hi = checks.bounds(quant_min, quant_max)
    y = checks.output(out, x, x.dtype)
    code = dtypes.compute(x.dtype).name
    backend.of(x).fake_quantize_decomposed(
        layout.per_channel(x.shape, a), x, s, z, (lo, hi, 0), ("float32", code), y, mask
    )
    return y


def _masked(grad: Any, mask: Any, out: Any) -> Array:
    g, m = checks.real(grad, "grad"), checks.array(mask, "mask")
    checks.together(g, m, "mask")
    if m.dtype != _BOOL:
        raise TypeError(f"mask must have the dtype bool, got {m.dtype}")
    if g.shape != m.shape:
        g, m = _with_axes_of_one(g, m)
    y = checks.output(out, g, g.dtype)
    backend.of(g).masked_gradient(g, m, y)
    return y


def _with_axes_of_one(g: Array, m: Array) -> tuple[Array, Array]:
    """Both in the longer shape, where they differ by leading or inner axes of one alone."""
    try:
        shape = np.broadcast_shapes(g.shape, m.shape)
    except ValueError:
        shape = ()
    if not math.prod(shape) == g.size == m.size:
        raise ValueError(f"mask must have the shape of grad, {g.shape}, got {m.shape}")
    if isinstance(g, ArraySpec):
        return ArraySpec(shape, g.dtype), ArraySpec(shape, m.dtype)
    return np.broadcast_to(g, shape), np.broadcast_to(m, shape)
