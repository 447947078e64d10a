"""Every scalar formula of npquant, once. docs/numerics.md says where each comes from.

A formula is plain Python on scalars; the types of its arguments carry the precision (a product of
two float32 is a float32), so one text serves every dtype. `register_jitable` lets CPU and CUDA
kernels call it. There is no float literal without a type here: Numba would make it a float64.

An *element* takes a value of the input, then what the matching *parameters* function made once for
the channel (which is given the arrays of input and output for their types alone), then the
constants of the call. It returns the result and the mask. Types, by the letters used below:

* T: the compute precision of the input: float32, or float64 for float64 input.
* K: the precision of codes: float32 while every bound fits 2**24, else float64 (exact to 2**53).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.extending import register_jitable

from npquant.primitives import fma, item, like, plus, rint, trunc, widen

#: Kernels alone call formulas, so no C wrapper is compiled for them.
formula = register_jitable(no_cfunc_wrapper=True)


@formula
def clamp(v: Any, lo: Any, hi: Any) -> Any:
    """`v` in [lo, hi]; NaN stays NaN, and so does -0.0 at a bound of 0."""
    v = lo if v < lo else v
    return hi if v > hi else v


@formula
def clamp_number(v: Any, lo: Any, hi: Any) -> Any:
    """`v` in [lo, hi]; NaN becomes lo."""
    v = v if v > lo else lo
    return v if v < hi else hi


@formula
def reciprocal(scale: Any) -> Any:
    """1 / scale, rounded to the type of the scale."""
    return like(np.float32(1) / widen(scale), scale)


# --- quantized_decomposed: quantize -----------------------------------------------------------


@formula
def tensor_inverse(x: Any, inverse: Any, zero_point: Any, lo: Any, hi: Any, y: Any) -> Any:
    """Parameters of `quantize` per tensor: the host has divided, in float64."""
    return inverse, inverse, like(zero_point, inverse)


@formula
def channel_inverse(x: Any, scale: Any, zero_point: Any, lo: Any, hi: Any, y: Any) -> Any:
    """Parameters of the quantize ops per channel, token and group."""
    return reciprocal(scale), scale, zero_point


@formula
def quantize(x: Any, inverse: Any, scale: Any, zero_point: Any, lo: Any, hi: Any, nan: Any) -> Any:
    """rint(x / scale) + zero_point, clamped to [lo, hi]; a NaN becomes `nan`."""
    q = clamp(plus(rint(widen(x) * inverse), zero_point), lo, hi)
    return q if q == q else nan, True


@formula
def quantize_zero_first(
    x: Any, inverse: Any, scale: Any, zero_point: Any, lo: Any, hi: Any, nan: Any
) -> Any:
    """rint(x / scale + zero_point), clamped: per token and per group round after adding.

    A two-byte input with scales of its own dtype is rounded to it at each step.
    """
    q = clamp(widen(rint(plus(x * inverse, zero_point))), lo, hi)
    return q if q == q else nan, True


# --- quantized_decomposed: dequantize ---------------------------------------------------------


@formula
def in_output(q: Any, scale: Any, zero_point: Any, lo: Any, hi: Any, y: Any) -> Any:
    """Parameters of `dequantize`: the zero point rounded to the output's dtype."""
    return scale, scale, like(zero_point, item(y))


@formula
def dequantize(
    q: Any, inverse: Any, scale: Any, zero_point: Any, lo: Any, hi: Any, nan: Any
) -> Any:
    """(q - zero_point) * scale, each step rounded to the output's dtype."""
    return (like(q, zero_point) - zero_point) * scale, True


@formula
def as_given(q: Any, scale: Any, zero_point: Any, lo: Any, hi: Any, y: Any) -> Any:
    """Parameters of `dequantize_promoted`: the host has brought them to one precision."""
    return scale, scale, zero_point


@formula
def dequantize_promoted(
    q: Any, inverse: Any, scale: Any, zero_point: Any, lo: Any, hi: Any, nan: Any
) -> Any:
    """(q - zero_point) * scale in the precision of the scale, rounded once to the output."""
    return like(like(q, zero_point) - zero_point, scale) * scale, True


# --- fake quantize ----------------------------------------------------------------------------


@formula
def affine(x: Any, scale: Any, zero_point: Any, lo: Any, hi: Any, y: Any) -> Any:
    """Parameters of the fake-quantize ops: the scale and its reciprocal in float32."""
    s = np.float32(widen(scale))
    return np.float32(1) / s, s, zero_point


@formula
def fake_quantize_per_tensor(
    x: Any, inverse: Any, scale: Any, zero_point: Any, lo: Any, hi: Any, nan: Any
) -> Any:
    """aten per tensor: rint, then the zero point; the product is a float32 even for float64.

    The mask compares in T, where a bound may be rounded; the code is clamped in K.
    """
    x = widen(x)
    t = like(zero_point, x) + rint(x * inverse)
    q = clamp_number(t, lo, hi)
    mask = (like(lo, x) <= t) & (t <= like(hi, x))
    return np.float32(q - like(zero_point, lo)) * scale, mask


@formula
def fake_quantize_per_channel(
    x: Any, inverse: Any, scale: Any, zero_point: Any, lo: Any, hi: Any, nan: Any
) -> Any:
    """aten per channel, integer zero points: the product in K, rounded once."""
    x = widen(x)
    t = like(zero_point, x) + rint(x * inverse)
    q = clamp_number(t, lo, hi)
    return (q - like(zero_point, lo)) * like(scale, lo), (lo <= t) & (t <= hi)


@formula
def fake_quantize_float_zero_point(
    x: Any, inverse: Any, scale: Any, zero_point: Any, lo: Any, hi: Any, nan: Any
) -> Any:
    """aten per channel, float32 zero points: added before rounding, by one fma."""
    x = widen(x)
    t = rint(np.float32(fma(x, like(inverse, x), like(zero_point, x))))
    q = clamp_number(t, lo, hi)
    return (q - widen(zero_point)) * like(scale, lo), (lo <= t) & (t <= hi)


@formula
def fake_quantize_half_zero_point(
    x: Any, inverse: Any, scale: Any, zero_point: Any, lo: Any, hi: Any, nan: Any
) -> Any:
    """aten per channel, float16 zero points: as float32 ones, but with two roundings."""
    x = widen(x)
    t = rint(np.float32(x * inverse + widen(zero_point)))
    q = clamp_number(t, lo, hi)
    return (q - widen(zero_point)) * like(scale, lo), (lo <= t) & (t <= hi)


@formula
def fake_quantize_decomposed(
    x: Any, inverse: Any, scale: Any, zero_point: Any, lo: Any, hi: Any, nan: Any
) -> Any:
    """quantized_decomposed.fake_quant_per_channel: everything in T, and NaN stays NaN."""
    x = widen(x)
    z = like(zero_point, x)
    t = rint(x * inverse) + z
    return (clamp(t, lo, hi) - z) * like(scale, x), (lo <= t) & (t <= hi)


@formula
def affine_in_input(x: Any, scale: Any, zero_point: Any, lo: Any, hi: Any, y: Any) -> Any:
    """Parameters of `fake_quantize_decomposed`: the scale in T."""
    s = like(scale, widen(item(x)))
    return np.float32(1) / s, s, zero_point


# --- learnable --------------------------------------------------------------------------------


@formula
def learned(x: Any, scale: Any, zero_point: Any, lo: Any, hi: Any, y: Any) -> Any:
    """Parameters of the learnable ops: in float32, the zero point rounded and clamped there."""
    s, z = np.float32(widen(scale)), np.float32(widen(zero_point))
    return np.float32(1) / s, s, clamp(rint(z), np.float32(lo), np.float32(hi))


@formula
def learned_per_tensor(x: Any, scale: Any, zero_point: Any, lo: Any, hi: Any, y: Any) -> Any:
    """Parameters of the per-tensor backward: its zero point is an integer, so in K."""
    inverse, s, z = learned(x, scale, zero_point, lo, hi, y)
    return inverse, s, like(z, lo)


@formula
def learned_truncated(x: Any, scale: Any, zero_point: Any, lo: Any, hi: Any, y: Any) -> Any:
    """What PyTorch's per-tensor backward uses instead: trunc(zero_point + 1/2)."""
    s, z = np.float32(widen(scale)), np.float32(widen(zero_point)) + np.float32(0.5)
    return np.float32(1) / s, s, like(trunc(clamp(z, np.float32(lo), np.float32(hi))), lo)


@formula
def gradients_zero_first(
    g: Any, x: Any, inverse: Any, scale: Any, zero_point: Any, lo: Any, hi: Any, factor: Any
) -> Any:
    """PyTorch's learnable backward: its code is rint of one fma, the zero point inside."""
    x = widen(x)
    t = rint(fma(x, like(inverse, x), like(zero_point, x)))
    return gradients(widen(g), x, t, inverse, like(scale, x), zero_point, lo, hi, factor)


@formula
def gradients_zero_last(
    g: Any, x: Any, inverse: Any, scale: Any, zero_point: Any, lo: Any, hi: Any, factor: Any
) -> Any:
    """The backward with the code of its forward, so that they agree at ties."""
    x = widen(x)
    t = like(zero_point, x) + rint(x * inverse)
    return gradients(widen(g), x, t, inverse, like(scale, x), zero_point, lo, hi, factor)


@formula
def gradients(
    g: Any, x: Any, t: Any, inverse: Any, scale: Any, zero_point: Any, lo: Any, hi: Any, factor: Any
) -> Any:
    """The gradients of one element from its unclamped code `t` (LSQ+, Bhalgat et al. 2020).

    Returns whether it is inside the range, and its terms of grad_scale and grad_zero_point. A NaN
    counts as below. Codes are compared in K; the rest is in T.
    """
    inside = (t >= lo) & (t <= hi)
    residual = fma(like(t - zero_point, x), scale, -x)
    clipped = like(like(hi if t > hi else lo, zero_point) - zero_point, x)
    slope = (g * residual) * inverse if inside else g * clipped
    shift = like(np.float32(0), x) if inside else (-g * scale) * factor
    return inside, slope * factor, shift
