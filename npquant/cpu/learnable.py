"""Fake quantize with a scale and a zero point that are learned."""

from __future__ import annotations

from npquant import formulas as f
from npquant.cpu.loops import Elementwise
from npquant.cpu.reduce import Gradients

fake_quantize_learnable = Elementwise(f.learned, f.fake_quantize_per_channel)

#: PyTorch's per-tensor and per-channel backward differ; the nearest ones agree with the forward.
learnable_gradients_per_tensor = Gradients(f.learned_truncated, f.gradients_zero_first)
learnable_gradients_per_channel = Gradients(f.learned, f.gradients_zero_first)
learnable_gradients_per_tensor_nearest = Gradients(f.learned_per_tensor, f.gradients_zero_last)
learnable_gradients_per_channel_nearest = Gradients(f.learned, f.gradients_zero_last)
