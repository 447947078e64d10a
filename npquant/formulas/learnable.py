"""Fake quantize with a scale and a zero point that are learned, and their gradients."""

from __future__ import annotations

from typing import Any

import numpy as np

from npquant.formulas.base import clamp, formula
from npquant.formulas.fake_quantize import affine, affine_wide
from npquant.primitives import (
    floating,
    fma,
    item,
    larger_number,
    like,
    rint,
    smaller_number,
    trunc,
    widen,
)

#: ``fma(z, NEXT, z)`` is the float32 next to `z`, away from zero: it adds half a step to one.
NEXT = np.float32(2.0**-24 * (1 + 2.0**-23))


@formula
def back_inside(z: Any, lo: Any, hi: Any) -> Any:
    """`z`, clamped in float32: where a bound is rounded to one beyond it, the one next to that."""
    back = fma(z, NEXT if (z > hi) == (z < np.float32(0)) else -NEXT, z)
    return back if z > hi or z < lo else z


@formula
def nearest(zero_point: Any, lo: Any, hi: Any) -> Any:
    """A learned zero point in float32: rounded to the nearest, clamped to the bounds."""
    z = rint(np.float32(widen(floating(zero_point))))
    return back_inside(clamp(z, np.float32(lo), np.float32(hi)), lo, hi)


@formula
def learned(x: Any, scale: Any, zero_point: Any, constants: Any, y: Any) -> Any:
    """Parameters of the learnable forward, and of the backward per tensor."""
    lo, hi, _ = constants
    return affine(x, scale, nearest(zero_point, lo, hi), constants, y)


@formula
def learned_wide(x: Any, scale: Any, zero_point: Any, constants: Any, y: Any) -> Any:
    """Parameters of the learnable forward with wide codes."""
    lo, hi, _ = constants
    return affine_wide(x, scale, nearest(zero_point, lo, hi), constants, y)


@formula
def slopes_per_channel(x: Any, scale: Any, zero_point: Any, constants: Any, y: Any) -> Any:
    """Parameters of the learnable backward per channel: the zero point, a float32, is used in T."""
    lo, hi, _ = constants
    s = np.float32(widen(scale))
    return np.float32(1) / s, s, like(nearest(zero_point, lo, hi), widen(item(x)))


@formula
def slopes_truncated(x: Any, scale: Any, zero_point: Any, constants: Any, y: Any) -> Any:
    """What PyTorch's per-tensor backward uses instead: trunc(zero_point + 1/2)."""
    lo, hi, _ = constants
    s, z = np.float32(widen(scale)), np.float32(widen(zero_point)) + np.float32(0.5)
    z = back_inside(trunc(clamp(z, np.float32(lo), np.float32(hi))), lo, hi)
    return np.float32(1) / s, s, like(z, lo)


@formula
def gradients_zero_first(g: Any, x: Any, p: Any, constants: Any) -> Any:
    """PyTorch's learnable backward: its code is rint of one fma, the zero point inside."""
    inverse, _, zero_point = p
    x = widen(x)
    return gradients(widen(g), x, rint(fma(x, inverse, zero_point)), p, constants)


@formula
def gradients_zero_last(g: Any, x: Any, p: Any, constants: Any) -> Any:
    """The backward with the code of its forward, so that they agree at ties."""
    inverse, _, zero_point = p
    x = widen(x)
    return gradients(widen(g), x, zero_point + rint(x * inverse), p, constants)


@formula
def gradients(g: Any, x: Any, t: Any, p: Any, constants: Any) -> Any:
    """The gradients of one element from its unclamped code `t` (LSQ+, Bhalgat et al. 2020).

    Returns whether it is inside the range, and its terms of grad_scale and grad_zero_point. A NaN
    counts as below. Everything is a float32, which holds every code.
    """
    inverse, scale, zero_point = p
    lo, hi, factor = constants
    # A zero of either sign does: terms are added to a sum that began with +0.
    q = smaller_number(larger_number(t, lo), hi)
    inside = q == t
    steps = q - zero_point
    slope = g * (fma(steps, scale, -x) if inside else steps)
    slope = slope * inverse if inside else slope
    shift = np.float32(0) if inside else (g * scale) * -factor
    return inside, slope * factor, shift


@formula
def gradients_zero_first_wide(g: Any, x: Any, p: Any, constants: Any) -> Any:
    """`gradients_zero_first` where T is float64, or codes are too large for float32."""
    inverse, _, zero_point = p
    x = widen(x)
    t = rint(fma(x, like(inverse, x), like(zero_point, x)))
    return gradients_wide(widen(g), x, t, p, constants)


@formula
def gradients_zero_last_wide(g: Any, x: Any, p: Any, constants: Any) -> Any:
    """`gradients_zero_last` where T is float64, or codes are too large for float32."""
    inverse, _, zero_point = p
    x = widen(x)
    t = like(zero_point, x) + rint(x * inverse)
    return gradients_wide(widen(g), x, t, p, constants)


@formula
def gradients_wide(g: Any, x: Any, t: Any, p: Any, constants: Any) -> Any:
    """As `gradients`; codes are compared in K, the rest is in T."""
    inverse, scale, zero_point = p
    lo, hi, factor = constants
    s = like(scale, x)
    inside = (t >= lo) & (t <= hi)
    residual = fma(like(t - zero_point, x), s, -x)
    clipped = like(like(hi if t > hi else lo, zero_point) - zero_point, x)
    slope = g * (residual if inside else clipped)
    slope = slope * like(inverse, x) if inside else slope
    shift = like(np.float32(0), x) if inside else (g * -s) * factor
    return inside, slope * factor, shift
