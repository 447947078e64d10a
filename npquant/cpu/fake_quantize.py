"""Fake quantize: to codes and back in one pass, with a mask of what was inside the range."""

from __future__ import annotations

from typing import Any

import numpy as np

from npquant.cpu.loops import Elementwise
from npquant.cpu.maps import mapped
from npquant.formulas import fake_quantize as f
from npquant.primitives import masked

fake_quantize_per_tensor = Elementwise(
    f.affine,
    f.fake_quantize_per_tensor,
    wide=Elementwise(f.affine_wide, f.fake_quantize_per_tensor_wide),
).run
per_channel = Elementwise(
    f.affine,
    f.fake_quantize_per_channel,
    wide=Elementwise(f.affine_wide, f.fake_quantize_per_channel_wide),
)
fake_quantize_per_channel = per_channel.run
fake_quantize_float_zero_point = Elementwise(f.affine_wide, f.fake_quantize_float_zero_point).run
fake_quantize_half_zero_point = Elementwise(f.affine_wide, f.fake_quantize_half_zero_point).run
fake_quantize_decomposed = Elementwise(f.affine, f.fake_quantize_decomposed).run
fake_quantize_decomposed_wide = Elementwise(f.affine_in_input, f.fake_quantize_decomposed_wide).run

fake_quantize_per_tensor_by_division = Elementwise(
    f.affine,
    f.fake_quantize_per_tensor_by_division,
    wide=Elementwise(f.affine_wide, f.fake_quantize_per_tensor_wide_by_division),
).run
#: As "wide" also for zero points that are floats.
fake_quantize_per_channel_by_division = Elementwise(
    f.affine,
    f.fake_quantize_per_channel_by_division,
    wide=Elementwise(f.affine_wide, f.fake_quantize_per_channel_wide_by_division),
).run
fake_quantize_decomposed_by_division = Elementwise(
    f.affine, f.fake_quantize_decomposed_by_division
).run
fake_quantize_decomposed_wide_by_division = Elementwise(
    f.affine_in_input, f.fake_quantize_decomposed_wide_by_division
).run


def _masked_gradient(begin: Any, end: Any, grad: Any, mask: Any, grad_input: Any) -> None:
    base = np.uintp(begin)
    for k in range(np.uintp(end - begin)):
        grad_input[base + k] = masked(grad[base + k], mask[base + k])


#: grad, mask -> grad_input.
masked_gradient = mapped(_masked_gradient, "masked_gradient")


def copy(
    x: np.ndarray[Any, Any], y: np.ndarray[Any, Any], mask: np.ndarray[Any, Any] | None
) -> None:
    """What fake quantize does while it is switched off."""
    np.copyto(y, x)
    if mask is not None:
        mask.fill(True)
