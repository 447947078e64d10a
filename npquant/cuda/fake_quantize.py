"""Fake quantize: to codes and back in one pass, with a mask of what was inside the range."""

from __future__ import annotations

from typing import Any

from npquant.cuda.arrays import device
from npquant.cuda.loops import Elementwise, mapped
from npquant.cuda.walk import copy as copy_strided
from npquant.formulas import fake_quantize as f
from npquant.formulas.base import formula
from npquant.primitives import masked

fake_quantize_per_tensor = Elementwise(
    f.affine,
    f.fake_quantize_per_tensor,
    wide=Elementwise(f.affine_wide, f.fake_quantize_per_tensor_wide),
)
fake_quantize_per_channel = Elementwise(
    f.affine,
    f.fake_quantize_per_channel,
    wide=Elementwise(f.affine_wide, f.fake_quantize_per_channel_wide),
)
fake_quantize_float_zero_point = Elementwise(f.affine_wide, f.fake_quantize_float_zero_point)
fake_quantize_half_zero_point = Elementwise(f.affine_wide, f.fake_quantize_half_zero_point)
#: Nobody looks at how large zero points are there, so these go for all.
fake_quantize_decomposed_wide = Elementwise(f.affine_in_input, f.fake_quantize_decomposed_wide)
fake_quantize_decomposed = fake_quantize_decomposed_wide

fake_quantize_per_tensor_by_division = Elementwise(
    f.affine,
    f.fake_quantize_per_tensor_by_division,
    wide=Elementwise(f.affine_wide, f.fake_quantize_per_tensor_wide_by_division),
)
#: As "wide" also for zero points that are floats.
fake_quantize_per_channel_by_division = Elementwise(
    f.affine,
    f.fake_quantize_per_channel_by_division,
    wide=Elementwise(f.affine_wide, f.fake_quantize_per_channel_wide_by_division),
)
fake_quantize_decomposed_wide_by_division = Elementwise(
    f.affine_in_input, f.fake_quantize_decomposed_wide_by_division
)
fake_quantize_decomposed_by_division = fake_quantize_decomposed_wide_by_division


@formula
def _masked(x: Any, y: Any) -> Any:
    grad, mask = x
    return masked(grad, mask)


_masked_gradient = mapped(_masked, "masked_gradient")


def masked_gradient(grad: Any, mask: Any, y: Any, *, given: bool = False) -> None:
    """The gradients of values that were inside; whether `y` was `given` makes no difference."""
    _masked_gradient(grad, mask, y)


def copy(x: Any, y: Any, mask: Any) -> None:
    """What fake quantize does while it is switched off."""
    copy_strided(device(x), device(y))
    if mask is not None:
        _true(x, mask)


@formula
def _inside(x: Any, y: Any) -> Any:
    return True


_true = mapped(_inside, "all_inside")
