"""How a value is shown in a message."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Collection
from types import FrameType
from typing import Any

import numpy as np


def is_tensor(value: Any) -> bool:
    """Whether `value` is a tensor of PyTorch, which shares memory with what `numpy` makes of it."""
    return hasattr(value, "detach") and hasattr(value, "numpy")


def is_parameter(value: Any) -> bool:
    """Whether `value` is one of ours, which has an array for its value."""
    classes = {(kind.__module__, kind.__name__) for kind in type(value).__mro__}
    ours = ("npquant.autograd.tape", "Parameter") in classes
    return ours and hasattr(getattr(value, "value", None), "dtype")


def in_our_words(value: Any, words: Collection[str]) -> str:
    """Which of `words` to give for a dtype or a scheme of PyTorch, where one is meant."""
    if type(value).__module__ != "torch":
        return ""
    word = re.sub(r"^q(u?int\d+)(x\d)?$", r"\1", str(value).removeprefix("torch."))
    return f": give {word!r}" if word in words else ""


def show(value: Any) -> str:
    """`value` in a few words: an array by shape and dtype, anything else by a short repr."""
    try:
        return _shown(value)
    except Exception:  # of its own repr, or of what it says of itself
        return f"an object of the class {type(value).__name__}"


def _shown(value: Any) -> str:
    if isinstance(value, type):  # of arrays too, whose classes have such attributes
        return f"the class {value.__name__}"
    if is_tensor(value) and getattr(value, "is_cuda", None) is not True:
        return f"{type(value).__name__}, whose .detach().numpy() is an array"
    if hasattr(value, "shape") and hasattr(value, "dtype") and getattr(value, "size", 0) != 1:
        ours = type(value).__module__.partition(".")[0] == "npquant"
        array = ours or isinstance(value, np.ndarray) or _on_gpu(value)
        named = "an array" if array else type(value).__name__  # of a library that has others
        return f"{named} of shape {value.shape} and dtype {value.dtype}"
    if _on_gpu(value):
        return "an array on a GPU"  # whose value one would have to wait for
    if isinstance(value, int) and value.bit_length() > 256:
        return f"an integer of {value.bit_length()} bits"
    if isinstance(value, (int, float, np.generic, np.ndarray, np.dtype)) or value is None:
        text = str(value) if isinstance(value, (np.generic, np.dtype)) else repr(value)
        if type(value).__module__ == "ml_dtypes":  # whose numbers are shown as Python's are
            text += f" ({type(value).__name__})"
    elif is_parameter(value):
        text = repr(value)
    else:
        text = f"{value!r} ({type(value).__name__})"
    text = " ".join(text.splitlines())
    text = text if len(text) <= 80 else text[:77] + "..."
    return f"{text}, whose .value is an array" if is_parameter(value) else text


def _on_gpu(value: Any) -> bool:
    # In this order: a tensor that requires a gradient raises where it is asked for its interface.
    on_gpu = getattr(value, "is_cuda", None) is True
    return on_gpu or hasattr(value, "__cuda_array_interface__")


def _package(frame: FrameType) -> str:
    """The first part of a module's name, which may be anything, or missing."""
    return str(frame.f_globals.get("__name__")).partition(".")[0]


def warn(message: str) -> None:
    """Warn whoever called the package, however deep in it this is found.

    Python shows a warning once for each line that it is said to come from.
    """
    level = 1
    frame: FrameType | None = sys._getframe()
    while frame is not None and _package(frame) == "npquant":
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)
