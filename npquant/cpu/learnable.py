"""Fake quantize with a scale and a zero point that are learned."""

from __future__ import annotations

from npquant.cpu.loops import Elementwise
from npquant.cpu.sums import Gradients
from npquant.formulas import learnable as f
from npquant.formulas.fake_quantize import (
    fake_quantize_per_channel,
    fake_quantize_per_channel_wide,
    fake_quantize_per_tensor,
    fake_quantize_per_tensor_wide,
)

fake_quantize_learnable_per_tensor = Elementwise(
    f.learned,
    fake_quantize_per_tensor,
    wide=Elementwise(f.learned_wide, fake_quantize_per_tensor_wide),
).run
fake_quantize_learnable = Elementwise(
    f.learned,
    fake_quantize_per_channel,
    wide=Elementwise(f.learned_wide, fake_quantize_per_channel_wide),
).run

_FIRST = f.gradients_zero_first, f.gradients_zero_first_wide
_LAST = f.gradients_zero_last, f.gradients_zero_last_wide

#: PyTorch's per-tensor and per-channel backward differ; the nearest ones agree with the forward.
learnable_gradients_per_tensor = Gradients(f.slopes_truncated, *_FIRST)
learnable_gradients_per_channel = Gradients(f.slopes_per_channel, *_FIRST)
learnable_gradients_per_tensor_nearest = Gradients(f.learned, *_LAST)
learnable_gradients_per_channel_nearest = Gradients(f.slopes_per_channel, *_LAST)
