"""Observe and fake quantize in one call: the training step of quantization-aware training."""

from __future__ import annotations

from typing import Any

import numpy as np

from npquant import backend, checks, dtypes, layout
from npquant.checks import Array
from npquant.layout import Granularity
from npquant.meta import ArraySpec
from npquant.ops.fake_quantize import run_per_tensor

_BOOL = np.dtype(np.bool_)
#: The least scale, as a float32.
_SMALL_SCALE = np.float32(6.1e-5)
_INT32 = (-(2**31), 2**31 - 1)


def fused_moving_avg_obs_fake_quant(
    input: Array,
    observer_on: Any,
    fake_quant_on: Any,
    running_min: Array,
    running_max: Array,
    scale: Array,
    zero_point: Array,
    averaging_const: float,
    quant_min: int,
    quant_max: int,
    ch_axis: int,
    per_row_fake_quant: bool = False,
    symmetric_quant: bool = False,
) -> Array:
    """Update a moving range, choose qparams from it, and fake quantize with them."""
    return fused_moving_avg_obs_fake_quant_cachemask(
        input, observer_on, fake_quant_on, running_min, running_max, scale, zero_point,
        averaging_const, quant_min, quant_max, ch_axis, per_row_fake_quant, symmetric_quant,
    )[0]  # fmt: skip


def fused_moving_avg_obs_fake_quant_cachemask(
    input: Array,
    observer_on: Any,
    fake_quant_on: Any,
    running_min: Array,
    running_max: Array,
    scale: Array,
    zero_point: Array,
    averaging_const: float,
    quant_min: int,
    quant_max: int,
    ch_axis: int,
    per_row_fake_quant: bool = False,
    symmetric_quant: bool = False,
) -> tuple[Array, Array]:
    """As `fused_moving_avg_obs_fake_quant`, with a mask of what was inside the range."""
    x = checks.floats(input)
    observe = checks.switch(observer_on, "observer_on")
    enabled = checks.switch(fake_quant_on, "fake_quant_on")
    per_row = checks.switch(per_row_fake_quant, "per_row_fake_quant")
    symmetric = checks.switch(symmetric_quant, "symmetric_quant")
    c = checks.finite(averaging_const, "averaging_const")
    lo, hi = _int32_bounds(quant_min, quant_max)
    axis = checks.axis_of(ch_axis, x, "ch_axis") if per_row else 0
    shapes = ((x.shape[axis],),) if per_row else ((1,), ())
    low = _state(running_min, "running_min", shapes, x, _FLOAT)
    high = _state(running_max, "running_max", shapes, x, _FLOAT)
    s = _state(scale, "scale", shapes, x, _FLOAT)
    z = _state(zero_point, "zero_point", shapes, x, _INTEGER if not per_row else _INTEGER[:1])
    y, mask = checks.output(None, x, x.dtype), checks.output(None, x, _BOOL)
    if isinstance(x, ArraySpec):
        return y, mask
    lib = backend.of(x)
    if x.size == 0:
        return y, mask
    granularity = layout.per_channel(x.shape, axis) if per_row else Granularity(1, x.size, None)
    if observe:
        for running, seen in zip((low, high), lib.minmax(granularity, x), strict=True):
            _move(running, seen.reshape(running.shape), c)
    if not enabled:
        lib.copy(x, y, mask)
        return y, mask
    chosen = _choose(low, high, lo, hi, symmetric)
    s[...], z[...] = (p.reshape(s.shape) for p in chosen)
    if per_row:
        code = checks.precision(x.dtype, lo, hi)
        lib.fake_quantize_per_channel(granularity, x, s, z, (lo, hi, 0), ("float32", code), y, mask)
    else:
        run_per_tensor(x, float(s.item()), int(z.item()), lo, hi, y, mask)
    return y, mask


# --- what they share --------------------------------------------------------------------------

_FLOAT = (dtypes.float32,)
_INTEGER = (np.dtype(np.int32), np.dtype(np.int64), dtypes.float32)


def _int32_bounds(quant_min: Any, quant_max: Any) -> tuple[int, int]:
    lo, hi = checks.bounds(quant_min, quant_max)
    if lo == hi or lo < _INT32[0] or hi > _INT32[1]:
        raise ValueError(f"quant_min < quant_max is required, both int32, got {lo} and {hi}")
    return lo, hi


def _state(
    value: Any, name: str, shapes: tuple[tuple[int, ...], ...], x: Array, allowed: tuple[Any, ...]
) -> Array:
    """An array that is updated in place."""
    p = checks.array(value, name)
    checks.together(x, p, name)
    if p.dtype not in allowed:
        raise TypeError(f"{name} must have a dtype among {dtypes.names(allowed)}, got {p.dtype}")
    if p.shape not in shapes:
        raise ValueError(f"{name} must have the shape {' or '.join(map(str, shapes))}, "
                         f"got {p.shape}")  # fmt: skip
    if isinstance(p, np.ndarray) and not p.flags.writeable:
        raise ValueError(f"{name} must be writeable, got a read-only array")
    return p


def _move(running: np.ndarray[Any, Any], seen: np.ndarray[Any, Any], c: float) -> None:
    """The moving average, each step rounded to float32; an infinite one starts from `seen`."""
    with np.errstate(all="ignore"):
        moved = running + np.float32(c) * (seen - running)
    running[...] = np.where(np.isinf(running), seen, moved)


def _choose(
    running_min: np.ndarray[Any, Any], running_max: np.ndarray[Any, Any],
    lo: int, hi: int, symmetric: bool,
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:  # fmt: skip
    """Scales and zero points as FBGEMM's ChooseQuantizationParams gives them, step by step.

    Ranges are float32, quotients float64; zero points follow from the rounded scale.
    """
    mn, mx, span = running_min.reshape(-1), running_max.reshape(-1), hi - lo
    with np.errstate(all="ignore"):
        centred = (mn < 0) & (mx > 0) & symmetric
        qn, qp = np.float32(-(span // 2 + 1)), np.float32(span // 2)
        unit = np.maximum(np.abs(mn / qn), np.abs(mx / qp))
        mn = np.minimum(np.where(centred, unit * qn, mn), np.float32(0))
        mx = np.maximum(np.where(centred, unit * qp, mx), np.float32(0))

        scale = ((mx.astype(np.float64) - mn) / span).astype(np.float32)
        scale[(scale == 0) | np.isinf(np.float32(1) / scale)] = 0.1
        small = scale < _SMALL_SCALE
        grown = _SMALL_SCALE / scale
        mn, mx = (
            np.where(small, np.where(mx == 0, -_SMALL_SCALE * np.float32(span), mn * grown), mn),
            np.where(small, np.where(mn == 0, _SMALL_SCALE * np.float32(span), mx * grown), mx),
        )
        scale[small] = _SMALL_SCALE

        below, above = mn / scale.astype(np.float64), mx / scale.astype(np.float64)
        nearer = abs(lo) + np.abs(below) < abs(hi) + np.abs(above)
        z = np.where(nearer, lo - below, hi - above)
        z = np.where(centred, (lo + hi) / 2, z)
        z = np.where(z < lo, lo, np.where(z > hi, hi, np.rint(z)))
        return scale, np.where(np.isnan(z), _INT32[0], z)
