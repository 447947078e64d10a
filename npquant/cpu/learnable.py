"""Fake quantize with a scale and a zero point that are learned."""

from __future__ import annotations

from npquant import formulas as f
from npquant.cpu.loops import Elementwise
from npquant.cpu.reduce import Gradients

fake_quantize_learnable = Elementwise(f.learned_in_float32, f.fake_quantize_per_channel)
#: PyTorch's per-tensor and per-channel backward, and the one that agrees with the forward.
fake_quantize_learnable_backward_truncated = Gradients(f.learned_truncated, f.gradients_zero_first)
fake_quantize_learnable_backward = Gradients(f.learned, f.gradients_zero_first)
fake_quantize_learnable_backward_nearest = Gradients(f.learned, f.gradients_zero_last)
