"""Fake quantize: to codes and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from npquant.formulas.base import clamp, clamp_number, formula
from npquant.primitives import fma, item, like, rint, widen

# PyTorch's steps are t = zero_point + rint(x / scale), q = clamp(t, lo, hi), (q - zero_point) *
# scale. Where every step is exact, the zero point cancels: rint(x / scale) clamped to
# [lo - zero_point, hi - zero_point] has the same bits but one, the sign of a zero, which t does not
# keep; a fused product with + 0 drops it too. That is five instructions instead of seven where the
# channel, and so the bounds, are the same for many elements.


@formula
def affine(x: Any, scale: Any, zero_point: Any, constants: Any, y: Any) -> Any:
    """Parameters where K is T: the scale in float32, the zero point in K.

    The bounds less the zero point are none: of each channel one number more would be loaded.
    """
    lo, _, _ = constants
    s = np.float32(widen(scale))
    return np.float32(1) / s, s, like(zero_point, lo)


@formula
def fake_quantize_per_tensor(x: Any, p: Any, constants: Any, y: Any) -> Any:
    """aten per tensor: the product is a float32 even for float64 input."""
    inverse, scale, zero_point = p
    lo, hi, _ = constants
    r = rint(widen(x) * inverse)
    q = clamp_number(r, lo - zero_point, hi - zero_point)
    return fma(np.float32(q), scale, np.float32(0)), q == r


@formula
def fake_quantize_per_channel(x: Any, p: Any, constants: Any, y: Any) -> Any:
    """aten per channel, integer zero points: the product in T, rounded once."""
    inverse, scale, zero_point = p
    lo, hi, _ = constants
    r = rint(widen(x) * inverse)
    q = clamp_number(r, lo - zero_point, hi - zero_point)
    return fma(q, like(scale, q), like(np.float32(0), q)), q == r


@formula
def affine_wide(x: Any, scale: Any, zero_point: Any, constants: Any, y: Any) -> Any:
    """Parameters where codes are too large for T, or their differences are; K is float64."""
    s = np.float32(widen(scale))
    return np.float32(1) / s, s, zero_point


@formula
def fake_quantize_per_tensor_wide(x: Any, p: Any, constants: Any, y: Any) -> Any:
    """aten per tensor step by step; the mask compares in T, where a bound may be rounded."""
    inverse, scale, zero_point = p
    lo, hi, _ = constants
    x = widen(x)
    t = like(zero_point, x) + rint(x * inverse)
    q = clamp_number(t, lo, hi)
    return np.float32(q - zero_point) * scale, (like(lo, x) <= t) & (t <= like(hi, x))


@formula
def fake_quantize_per_channel_wide(x: Any, p: Any, constants: Any, y: Any) -> Any:
    """aten per channel step by step; the product is a float64, rounded once."""
    inverse, scale, zero_point = p
    lo, hi, _ = constants
    x = widen(x)
    t = like(zero_point, x) + rint(x * inverse)
    q = clamp_number(t, lo, hi)
    return (q - like(zero_point, lo)) * like(scale, lo), (lo <= t) & (t <= hi)


@formula
def fake_quantize_float_zero_point(x: Any, p: Any, constants: Any, y: Any) -> Any:
    """aten per channel, float32 zero points: added before rounding, by one fma."""
    inverse, scale, zero_point = p
    lo, hi, _ = constants
    x = widen(x)
    # + 0 makes -0.0, which a code is not, 0.0
    t = rint(np.float32(fma(x, like(inverse, x), like(zero_point, x)))) + np.float32(0)
    q = clamp_number(like(t, lo), lo, hi)
    return (q - widen(zero_point)) * like(scale, lo), (lo <= t) & (t <= hi)


@formula
def fake_quantize_half_zero_point(x: Any, p: Any, constants: Any, y: Any) -> Any:
    """aten per channel, float16 zero points: as float32 ones, but with two roundings."""
    inverse, scale, zero_point = p
    lo, hi, _ = constants
    x = widen(x)
    t = rint(np.float32(x * inverse + widen(zero_point))) + np.float32(0)
    q = clamp_number(like(t, lo), lo, hi)
    return (q - widen(zero_point)) * like(scale, lo), (lo <= t) & (t <= hi)


@formula
def fake_quantize_decomposed(x: Any, p: Any, constants: Any, y: Any) -> Any:
    """quantized_decomposed.fake_quant_per_channel: a NaN stays NaN."""
    inverse, scale, zero_point = p
    lo, hi, _ = constants
    r = rint(widen(x) * inverse)
    q = clamp(r, lo - zero_point, hi - zero_point)
    return fma(q, scale, np.float32(0)), q == r


@formula
def affine_in_input(x: Any, scale: Any, zero_point: Any, constants: Any, y: Any) -> Any:
    """Parameters of `fake_quantize_decomposed_wide`: everything in T."""
    s = like(scale, widen(item(x)))
    return np.float32(1) / s, s, like(zero_point, s)


@formula
def fake_quantize_decomposed_wide(x: Any, p: Any, constants: Any, y: Any) -> Any:
    """The same step by step: of float64, and of codes and zero points that float32 rounds."""
    inverse, scale, zero_point = p
    lo, hi, _ = constants
    t = rint(widen(x) * inverse) + zero_point
    q = clamp(t, lo, hi)
    return (q - zero_point) * scale, q == t


def _by_division(rule: Callable[..., Any]) -> Callable[..., Any]:
    """The same with x / scale in place of x and 1 in place of 1 / scale."""

    def divided(x: Any, p: Any, constants: Any, y: Any) -> Any:
        _, scale, zero_point = p
        return rule(widen(x) / scale, (np.float32(1), scale, zero_point), constants, y)

    divided.__name__ = divided.__qualname__ = f"{rule.__name__}_by_division"
    return formula(divided)  # type: ignore[no-any-return]


fake_quantize_per_tensor_by_division = _by_division(fake_quantize_per_tensor)
fake_quantize_per_channel_by_division = _by_division(fake_quantize_per_channel)
fake_quantize_per_tensor_wide_by_division = _by_division(fake_quantize_per_tensor_wide)
#: Also of zero points that are floats.
fake_quantize_per_channel_wide_by_division = _by_division(fake_quantize_per_channel_wide)
fake_quantize_decomposed_by_division = _by_division(fake_quantize_decomposed)
fake_quantize_decomposed_wide_by_division = _by_division(fake_quantize_decomposed_wide)
