"""Quantize and dequantize, as quantized_decomposed does."""

from __future__ import annotations

from npquant.cpu.loops import Elementwise
from npquant.cpu.shortcuts import Guessed, Tried
from npquant.formulas import quantize as f

quantize_per_tensor = Elementwise(f.tensor_inverse, f.quantize).run
quantize_per_channel = Guessed(f.channel_inverse, f.quantize).run
per_token = Guessed(f.token_inverse, f.quantize_zero_first)
quantize_per_token = per_token.run
quantize_by_division = Elementwise(f.as_given, f.quantize_by_division).run
quantize_by_division_to_float8 = Elementwise(f.as_given, f.quantize_by_division_to_float8).run
dequantize = Elementwise(f.in_output, f.dequantize).run
dequantize_promoted = Tried(
    f.in_floats, f.dequantize_promoted, f.split_scale, f.dequantize_in_float32
).run
#: The same where no float64 holds a difference.
dequantize_in_integers = Elementwise(f.in_integers, f.dequantize_promoted).run
