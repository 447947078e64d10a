"""Fake quantize with a scale and a zero point that are learned."""

from __future__ import annotations

from npquant.cpu.loops import Elementwise
from npquant.cpu.reduce import Gradients
from npquant.formulas import learnable as f
from npquant.formulas.fake_quantize import fake_quantize_per_channel, fake_quantize_per_channel_wide

fake_quantize_learnable = Elementwise(
    f.learned,
    fake_quantize_per_channel,
    wide=Elementwise(f.learned_wide, fake_quantize_per_channel_wide),
)

#: PyTorch's per-tensor and per-channel backward differ; the nearest ones agree with the forward.
learnable_gradients_per_tensor = Gradients(f.slopes_truncated, f.gradients_zero_first)
learnable_gradients_per_channel = Gradients(f.slopes_per_channel, f.gradients_zero_first)
learnable_gradients_per_tensor_nearest = Gradients(f.slopes_per_tensor, f.gradients_zero_last)
learnable_gradients_per_channel_nearest = Gradients(f.slopes_per_channel, f.gradients_zero_last)
