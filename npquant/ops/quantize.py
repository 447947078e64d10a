"""Quantize to codes and dequantize, as PyTorch's quantized_decomposed ops do."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from npquant import backend, checks, dtypes, layout
from npquant.checks import Array


def quantize_per_tensor(
    input: Array,
    scale: Any,
    zero_point: Any,
    quant_min: int,
    quant_max: int,
    dtype: Any,
    *,
    out: Array | None = None,
) -> Array:
    """Quantize with one scale and one zero point."""
    x = checks.floats(input)
    target = dtypes.target(dtype)
    numbers = checks.quantizing(scale, zero_point, quant_min, quant_max, x.dtype, target)
    y = checks.output(out, x, target)
    backend.of(x).quantize_per_tensor(layout.PER_TENSOR, x, *numbers, y)
    return y


def dequantize_per_tensor(
    input: Array,
    scale: Any,
    zero_point: Any,
    quant_min: int,
    quant_max: int,
    dtype: Any,
    *,
    out_dtype: Any = None,
    out: Array | None = None,
) -> Array:
    """Turn codes back into floats, with one scale and one zero point."""
    q = checks.codes(input, dtype)
    result = _output_dtype(out_dtype, "out_dtype")
    numbers = checks.dequantizing(scale, zero_point, quant_min, quant_max, q.dtype, result)
    y = checks.output(out, q, result)
    backend.of(q).dequantize(layout.PER_TENSOR, q, *numbers, y)
    return y


def quantize_per_channel(
    input: Array,
    scales: Array,
    zero_points: Array,
    axis: int,
    quant_min: int,
    quant_max: int,
    dtype: Any,
    *,
    out: Array | None = None,
) -> Array:
    """Quantize with a scale and a zero point for each index of one axis."""
    x = checks.floats(input)
    target = dtypes.target(dtype)
    a = checks.axis_of(axis, x)
    shapes = ((x.shape[a],),)
    s = checks.scales(scales, "scales", shapes, x)
    z = checks.zero_points(zero_points, "zero_points", shapes, x)
    lo, hi = checks.bounds_of(quant_min, quant_max, target)
    y = checks.output(out, x, target)
    backend.of(x).quantize_per_channel(
        layout.per_channel(x.shape, a), x, _at_least(s, x), z, checks.constants(lo, hi, target),
        ("float32", checks.code(x.dtype, target)), y,
    )  # fmt: skip
    return y


def dequantize_per_channel(
    input: Array,
    scales: Array,
    zero_points: Array | None,
    axis: int,
    quant_min: int,
    quant_max: int,
    dtype: Any,
    *,
    out_dtype: Any = None,
    out: Array | None = None,
) -> Array:
    """Turn codes back into floats, with a scale and a zero point for each index of one axis."""
    q = checks.codes(input, dtype)
    a = checks.axis_of(axis, q)
    shapes = ((q.shape[a],),)
    s = checks.scales(scales, "scales", shapes, q)
    z = _zero_points_or_none(zero_points, shapes, q)
    checks.bounds_of(quant_min, quant_max, q.dtype)
    result = _output_dtype(out_dtype, "out_dtype")
    y = checks.output(out, q, result)
    s = checks.cast(s, dtypes.compute(result))
    backend.of(q).dequantize(
        layout.per_channel(q.shape, a), q, s, z, (0, 0, 0), ("float32", "float32"), y
    )
    return y


def quantize_per_token(
    input: Array,
    scales: Array,
    zero_points: Array,
    quant_min: int,
    quant_max: int,
    dtype: Any,
    *,
    out: Array | None = None,
) -> Array:
    """Quantize with a scale and a zero point for each row along the last axis."""
    x = checks.real(input)
    target = dtypes.target(dtype)
    shapes = token_shapes(x)
    s = checks.scales(scales, "scales", shapes, x)
    z = checks.zero_points(zero_points, "zero_points", shapes, x)
    lo, hi = checks.bounds_of(quant_min, quant_max, target)
    y = checks.output(out, x, target)
    _zero_first(layout.per_token(x.shape), x, s, z, lo, hi, target, y)
    return y


def dequantize_per_token(
    input: Array,
    scales: Array,
    zero_points: Array,
    quant_min: int,
    quant_max: int,
    dtype: Any,
    output_dtype: Any = np.float32,
    *,
    out: Array | None = None,
) -> Array:
    """Turn codes back into floats, with a scale and a zero point for each row."""
    q = checks.codes(input, dtype)
    shapes = token_shapes(q)
    s = checks.scales(scales, "scales", shapes, q)
    z = checks.zero_points(zero_points, "zero_points", shapes, q)
    checks.bounds_of(quant_min, quant_max, q.dtype)
    y = checks.output(out, q, _output_dtype(output_dtype, "output_dtype"))
    _dequantize_promoted(layout.per_token(q.shape), q, s, z, y)
    return y


def quantize_per_channel_group(
    input: Array,
    scales: Array,
    zero_points: Array,
    quant_min: int,
    quant_max: int,
    dtype: Any,
    group_size: int = 128,
    *,
    out: Array | None = None,
) -> Array:
    """Quantize a matrix with a scale and a zero point for each group of a row."""
    x = checks.real(input)
    target = dtypes.target(dtype)
    g = checks.group_size_of(group_size, x, ndim=2)
    shapes = group_shapes(x, g)
    s = checks.scales(scales, "scales", shapes, x)
    z = checks.zero_points(zero_points, "zero_points", shapes, x)
    lo, hi = checks.bounds_of(quant_min, quant_max, target)
    y = checks.output(out, x, target)
    _zero_first(layout.per_channel_group(x.shape, g), x, s, z, lo, hi, target, y)
    return y


def dequantize_per_channel_group(
    w_int8: Array,
    scales: Array,
    zero_points: Array | None,
    quant_min: int,
    quant_max: int,
    dtype: Any,
    group_size: int = 128,
    output_dtype: Any = np.float32,
    *,
    out: Array | None = None,
) -> Array:
    """Turn the codes of a matrix back into floats, with a scale for each group of a row."""
    q = checks.codes(w_int8, dtype, "w_int8")
    g = checks.group_size_of(group_size, q, ndim=2)
    shapes = group_shapes(q, g)
    s = checks.scales(scales, "scales", shapes, q)
    z = _zero_points_or_none(zero_points, shapes, q)
    checks.bounds_of(quant_min, quant_max, q.dtype)
    y = checks.output(out, q, _output_dtype(output_dtype, "output_dtype"))
    _dequantize_promoted(layout.per_channel_group(q.shape, g), q, s, z, y)
    return y


# --- what they share --------------------------------------------------------------------------


def token_shapes(x: Array) -> tuple[tuple[int, ...], ...]:
    """The shapes that qparams per token may have: (..., 1), or flat."""
    rows = x.shape[:-1]
    return (*rows, 1) if x.ndim else (), (prod(rows),)


def group_shapes(x: Array, group_size: int) -> tuple[tuple[int, ...], ...]:
    """The shapes that qparams per group may have: (..., groups of a row), or flat."""
    grouped = (*x.shape[:-1], x.shape[-1] // group_size)
    return grouped, (prod(grouped),)


def _output_dtype(dtype: Any, name: str) -> dtypes.DType:
    return dtypes.float32 if dtype is None else dtypes.floating(dtype, name)


def _at_least(s: Array, x: Array) -> Array:
    """Scales in float64 for float64 input, whose every step is in float64."""
    return checks.cast(s, x.dtype) if x.dtype == np.float64 else s


def _zero_points_or_none(zero_points: Any, shapes: tuple[tuple[int, ...], ...], q: Array) -> Array:
    if zero_points is None:
        return np.zeros(prod(shapes[-1]), np.int32)
    return checks.zero_points(zero_points, "zero_points", shapes, q)


def _zero_first(
    granularity: layout.Granularity, x: Array, s: Array, z: Array, lo: int, hi: int,
    target: dtypes.DType, y: Array,
) -> None:  # fmt: skip
    backend.of(x).quantize_per_token(
        granularity,
        x,
        s,
        z,
        checks.constants(lo, hi, target),
        ("float32", checks.code(x.dtype, target)),
        y,
    )


def _dequantize_promoted(
    granularity: layout.Granularity, q: Array, s: Array, z: Array, y: Array
) -> None:
    """Bring scales and zero points to the precision that PyTorch's promotion gives."""
    if type(z) is np.ndarray:
        fractional = z.dtype.kind != "i" or q.dtype in dtypes.FLOAT8
        if z.dtype.kind == "i":
            # float32 holds the difference exactly, unless a zero point or a code is too large.
            small = q.dtype != np.int32 and checks.outside(z, -checks.EXACT, checks.EXACT) < 0
            z = z.astype(np.float32 if small else np.float64)
        if fractional and type(s) is np.ndarray:
            s = s.astype(dtypes.promote(s.dtype, z.dtype), copy=False)
    backend.of(q).dequantize_promoted(granularity, q, s, z, (0, 0, 0), ("float32", "float32"), y)
