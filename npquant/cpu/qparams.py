"""The statistics that qparams are chosen from, and the check of qparams themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from npquant.cpu.reduce import minmax
from npquant.cpu.target import Types, array_type, compiled
from npquant.primitives import widen

__all__ = ["minmax", "outside"]

#: What `widen` takes to float64.
WIDE = frozenset(np.dtype(t) for t in ("float64", "int32", "int64"))


def _any_outside(p: Any, lo: Any, hi: Any) -> Any:
    bad = 0
    for i in range(p.size):  # to the end: a loop that can stop early is not vectorised
        v = widen(p[i])
        bad |= not (v >= lo and v <= hi)
    return bad


def _types(dtype: Any) -> Types:
    number = types.float64 if dtype in WIDE else types.float32
    return array_type(dtype), number, number


_call = compiled(_any_outside, _types)


def outside(p: np.ndarray[Any, Any], lo: float, hi: float) -> int:
    """The index of the first element of `p` that is NaN or not in [lo, hi]; -1 if there is none."""
    if not _call(p.dtype, p, lo, hi):
        return -1
    with np.errstate(invalid="ignore"):
        v = p.astype(np.float64)
        return int(np.argmin((v >= lo) & (v <= hi)))
