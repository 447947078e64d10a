"""Quantize and dequantize, as quantized_decomposed does."""

from __future__ import annotations

from npquant import formulas as f
from npquant.cpu.loops import Elementwise

quantize_per_tensor = Elementwise(f.tensor_inverse, f.quantize)
quantize_per_channel = Elementwise(f.channel_inverse, f.quantize)
quantize_per_token = Elementwise(f.channel_inverse, f.quantize_zero_first)
dequantize = Elementwise(f.in_output, f.dequantize)
dequantize_promoted = Elementwise(f.as_given, f.dequantize_promoted)
