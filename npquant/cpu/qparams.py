"""The statistics that qparams are chosen from, and the check of qparams themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from npquant.cpu.reduce import minmax
from npquant.cpu.storage import TYPES
from npquant.cpu.target import compiled
from npquant.primitives import widen

__all__ = ["minmax", "outside"]


def _first_outside(p: Any, lo: Any, hi: Any, found: Any) -> None:
    """The index of the first element that is not between lo and hi."""
    found[0] = -1
    for i in range(p.size):
        v = widen(p[i])
        if not (lo <= v <= hi):
            found[0] = i
            return


def outside(p: np.ndarray[Any, Any], lo: float, hi: float) -> int:
    """The index of the first element of `p` that is NaN or not in [lo, hi]; -1 if there is none."""
    found = np.empty(1, np.int64)
    compiled(_first_outside, p.dtype, lambda: (
        types.Array(TYPES[p.dtype], 1, "C"), types.float64, types.float64,
        types.Array(types.int64, 1, "C"),
    ))(p, lo, hi, found)  # fmt: skip
    return int(found[0])
