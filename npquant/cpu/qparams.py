"""The statistics that qparams are chosen from, and the check of qparams themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from npquant.cpu.reduce import minmax
from npquant.cpu.target import array_type, compiled
from npquant.primitives import widen

__all__ = ["minmax", "outside"]


def _first_outside(p: Any, lo: Any, hi: Any) -> Any:
    for i in range(p.size):
        v = widen(p[i])
        if not (lo <= v <= hi):
            return i
    return -1


_call = compiled(_first_outside, lambda dtype: (array_type(dtype), types.float64, types.float64))


def outside(p: np.ndarray[Any, Any], lo: float, hi: float) -> int:
    """The index of the first element of `p` that is NaN or not in [lo, hi]; -1 if there is none."""
    found: int = _call(p.dtype, p, lo, hi)
    return found
