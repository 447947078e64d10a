"""Quantize and dequantize, as quantized_decomposed does."""

from __future__ import annotations

from npquant.cuda.loops import Elementwise
from npquant.formulas import quantize as f

quantize_per_tensor = Elementwise(f.tensor_inverse, f.quantize)
quantize_per_channel = Elementwise(f.channel_inverse, f.quantize)
quantize_per_token = Elementwise(f.channel_inverse, f.quantize_zero_first)
quantize_by_division = Elementwise(f.as_given, f.quantize_by_division)
quantize_by_division_to_float8 = Elementwise(f.as_given, f.quantize_by_division_to_float8)
dequantize = Elementwise(f.in_output, f.dequantize)
dequantize_in_integers = Elementwise(f.in_integers, f.dequantize_promoted)
#: Nobody looks how large zero points are.
dequantize_promoted = dequantize_in_integers
