"""Quantize and dequantize, as quantized_decomposed does."""

from __future__ import annotations

from typing import Any

from npquant.cuda.elements import Shortcut
from npquant.cuda.loops import Elementwise
from npquant.dtypes import FLOATS, float32, float64
from npquant.formulas import guesses
from npquant.formulas import quantize as f

quantize_per_tensor = Elementwise(f.tensor_inverse, f.quantize)


def _guessed(element: Any) -> tuple[Shortcut, ...]:
    """Of float64 scales, and by `element` of float32 ones, where float32 holds the data."""
    return (
        Shortcut(
            lambda x, scale: x in FLOATS - {float64} and scale == float64,
            guesses.split_inverse_by_bits, guesses.guess_or_doubt,
        ),
        Shortcut(
            lambda x, scale: x in FLOATS - {float64} and scale == float32,
            guesses.inverse_in_float32, element,
        ),
    )  # fmt: skip


quantize_per_channel = Elementwise(
    f.channel_inverse, f.quantize, shortcuts=_guessed(guesses.zero_last)
)
quantize_per_token = Elementwise(
    f.channel_inverse, f.quantize_zero_first, shortcuts=_guessed(guesses.zero_first)
)
quantize_by_division = Elementwise(f.as_given, f.quantize_by_division)
quantize_by_division_to_float8 = Elementwise(f.as_given, f.quantize_by_division_to_float8)
dequantize = Elementwise(f.in_output, f.dequantize)
dequantize_in_integers = Elementwise(f.in_integers, f.dequantize_promoted)
#: Nobody looks how large zero points are.
dequantize_promoted = dequantize_in_integers
