"""The CPU backend: every kernel, compiled by Numba."""

from npquant.cpu.convert import convert
from npquant.cpu.fake_quantize import (
    copy,
    fake_quantize_decomposed,
    fake_quantize_float_zero_point,
    fake_quantize_half_zero_point,
    fake_quantize_per_channel,
    fake_quantize_per_tensor,
    masked_gradient,
)
from npquant.cpu.learnable import (
    fake_quantize_learnable,
    fake_quantize_learnable_backward,
    fake_quantize_learnable_backward_nearest,
    fake_quantize_learnable_backward_truncated,
)
from npquant.cpu.qparams import minmax
from npquant.cpu.quantize import (
    dequantize,
    dequantize_promoted,
    quantize_per_channel,
    quantize_per_tensor,
    quantize_per_token,
)

__all__ = [
    "convert",
    "copy",
    "dequantize",
    "dequantize_promoted",
    "fake_quantize_decomposed",
    "fake_quantize_float_zero_point",
    "fake_quantize_half_zero_point",
    "fake_quantize_learnable",
    "fake_quantize_learnable_backward",
    "fake_quantize_learnable_backward_nearest",
    "fake_quantize_learnable_backward_truncated",
    "fake_quantize_per_channel",
    "fake_quantize_per_tensor",
    "masked_gradient",
    "minmax",
    "quantize_per_channel",
    "quantize_per_tensor",
    "quantize_per_token",
]
