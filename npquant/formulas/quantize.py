"""Quantize and dequantize, as quantized_decomposed does."""

from __future__ import annotations

from typing import Any

import numpy as np

from npquant.formulas.base import formula, reciprocal
from npquant.primitives import (
    code_of,
    floating,
    fma,
    item,
    like,
    narrowed,
    over,
    plus,
    rounded_code,
    shifted,
    times,
    whole,
    widen,
)

# --- quantized_decomposed: quantize -------------------------------------------------------------


@formula
def tensor_inverse(x: Any, inverse: Any, zero_point: Any, constants: Any, y: Any) -> Any:
    """Parameters of `quantize` per tensor: the host has divided, in float64."""
    return inverse, zero_point


@formula
def channel_inverse(x: Any, scale: Any, zero_point: Any, constants: Any, y: Any) -> Any:
    """Parameters of `quantize` per channel; on a GPU also of `quantize_zero_first`."""
    inverse = reciprocal(scale)
    return inverse, narrowed(zero_point, widen(item(x)) * inverse, item(y))


@formula
def quantize(x: Any, p: Any, constants: Any, y: Any) -> Any:
    """rint(x / scale) + zero_point, clamped to [lo, hi]; a NaN becomes `nan`."""
    inverse, zero_point = p
    lo, hi, nan = constants
    return rounded_code(times(widen(x), inverse), zero_point, lo, hi, nan, item(y)), True


#: Whatever is added to it stays what it is.
_NOTHING = np.float32(-0.0)


@formula
def token_inverse(x: Any, scale: Any, zero_point: Any, constants: Any, y: Any) -> Any:
    """Parameters of `quantize_zero_first`: the zero point in the type of what it is added to."""
    inverse = reciprocal(scale)
    return inverse, plus(like(_NOTHING, times(item(x), inverse)), zero_point)


@formula
def quantize_zero_first(x: Any, p: Any, constants: Any, y: Any) -> Any:
    """rint(x / scale + zero_point), clamped: per token and per group round after adding.

    A two-byte input with scales of its own dtype is rounded to it at each step. An integer takes
    the dtype of the scales.
    """
    inverse, zero_point = p
    lo, hi, nan = constants
    t = shifted(times(x, inverse), zero_point, item(y))
    return rounded_code(t, None, lo, hi, nan, item(y)), True


# --- ONNX: quantize -----------------------------------------------------------------------------


@formula
def quantize_by_division(x: Any, p: Any, constants: Any, y: Any) -> Any:
    """ONNX's rule for all granularities: the quotient is rounded to the type x and scale share."""
    scale, zero_point = p
    lo, hi, nan = constants
    return rounded_code(over(x, scale), zero_point, lo, hi, nan, item(y)), True


@formula
def quantize_by_division_to_float8(x: Any, p: Any, constants: Any, y: Any) -> Any:
    """ONNX's float8 codes: x / scale + zero_point, rounded to the grid of float8 alone."""
    scale, zero_point = p
    lo, hi, nan = constants
    t = widen(over(x, scale))
    # Where nothing is added, a zero keeps its sign.
    t = plus(t, zero_point) if widen(zero_point) != np.float32(0) else t
    return code_of(t, lo, hi, nan), True


# --- quantized_decomposed: dequantize -----------------------------------------------------------


@formula
def in_output(q: Any, scale: Any, zero_point: Any, constants: Any, y: Any) -> Any:
    """Parameters of `dequantize`: the zero point rounded to the output's dtype."""
    return scale, like(zero_point, item(y))


@formula
def dequantize(q: Any, p: Any, constants: Any, y: Any) -> Any:
    """(q - zero_point) * scale, each step rounded to the output's dtype."""
    scale, zero_point = p
    return (like(q, zero_point) - zero_point) * scale, True


@formula
def as_given(q: Any, scale: Any, zero_point: Any, constants: Any, y: Any) -> Any:
    """Parameters as they are: to divide by."""
    return scale, zero_point


@formula
def in_integers(q: Any, scale: Any, zero_point: Any, constants: Any, y: Any) -> Any:
    """Parameters of `dequantize_promoted` where zero points may be of any size."""
    return scale, whole(zero_point)


@formula
def in_floats(q: Any, scale: Any, zero_point: Any, constants: Any, y: Any) -> Any:
    """Parameters of `dequantize_promoted`, integer zero points as the floats that hold them."""
    return scale, floating(zero_point)


@formula
def dequantize_promoted(q: Any, p: Any, constants: Any, y: Any) -> Any:
    """(q - zero_point) * scale in the precision of the scale, rounded once to the output."""
    scale, zero_point = p
    return like(like(q, zero_point) - zero_point, scale) * scale, True


@formula
def split_scale(q: Any, scale: Any, zero_point: Any, constants: Any, y: Any) -> Any:
    """Parameters of `dequantize_in_float32`: a float64 scale as the sum of two float32."""
    high = np.float32(scale)
    return high, np.float32(scale - np.float64(high)), floating(zero_point)


@formula
def dequantize_in_float32(q: Any, p: Any, constants: Any, y: Any) -> Any:
    """What `dequantize_promoted` mostly gives of a float64 scale for float32."""
    high, low, zero_point = p
    d = like(q, zero_point) - zero_point
    return fma(d, high, d * low), True
