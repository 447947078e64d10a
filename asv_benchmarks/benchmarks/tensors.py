"""PyTorch, imported when first needed, and what it is given."""

from __future__ import annotations

import importlib
import warnings
from functools import cache
from typing import Any

import numpy as np


@cache
def load_torch() -> Any:
    torch = importlib.import_module("torch")
    importlib.import_module("torch.ao.quantization.fx._decomposed")
    torch.set_grad_enabled(False)
    # Quantized tensors are deprecated, but still a peer.
    warnings.filterwarnings("ignore", r"torch\.quantize_per_tensor", UserWarning)
    return torch


def as_torch(value: Any) -> Any:
    """An argument as PyTorch takes it; arrays share their memory, a sub-byte dtype is an int8."""
    torch = load_torch()
    if isinstance(value, np.dtype):
        return getattr(torch, "int8" if value.name == "int4" else value.name)
    if isinstance(value, str):
        return getattr(torch, value)
    if not isinstance(value, np.ndarray):
        return value
    if value.dtype.name == "int4":
        return torch.from_numpy(value.astype(np.int8))
    if value.dtype.name in ("bfloat16", "float8_e4m3fn"):
        bits = value.view(f"int{8 * value.itemsize}")
        return torch.from_numpy(bits).view(as_torch(value.dtype))
    return torch.from_numpy(value)
