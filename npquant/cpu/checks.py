"""What looks at qparams and ranges: in kernels, before they write, and by itself.

Every element is looked at: a loop that can stop early is not vectorised.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numba import types

from npquant.cpu.lowered import called
from npquant.cpu.target import Compiled, Types, array_type, array_types, compiled
from npquant.primitives import at, widen

Array = np.ndarray[Any, Any]


@called
def usual(n: Any, scale: Any, zero_point: Any, least: Any, most: Any) -> Any:
    """Whether `n` scales are positive and finite, and as many zero points within least..most."""
    good = True
    for i in range(np.uintp(n)):
        v, w = widen(at(scale, i)), widen(at(zero_point, i))
        good &= (v > type(v)(0)) & (v < type(v)(np.inf)) & (w >= least) & (w <= most)
    return good


@called
def one_reversed(least: Any, greatest: Any) -> Any:
    """Whether a least value exceeds its greatest."""
    bad = 0
    for i in range(least.size):
        bad |= widen(least[i]) > widen(greatest[i])
    return bad


#: The same by itself: ``any_reversed[dtype](least, greatest)``.
any_reversed = compiled(one_reversed, lambda dtype: array_types(dtype, dtype))

#: What `widen` takes to float64.
_WIDE = frozenset(np.dtype(t) for t in ("float64", "int32", "uint32", "int64"))


def _any_outside(p: Any, lo: Any, hi: Any) -> Any:
    bad = 0
    for i in range(p.size):
        v = widen(p[i])
        bad |= not (v >= lo and v <= hi)
    return bad


def _types(dtype: Any) -> Types:
    number = types.float64 if dtype in _WIDE else types.float32
    return array_type(dtype), number, number


_call = compiled(_any_outside, _types)


def _look(n: Any, scale: Any, zero_point: Any, least: Any, most: Any) -> Any:
    """So that what a kernel calls is compiled once."""
    return usual(n, scale, zero_point, least, most)


_inside = compiled(
    _look, lambda kinds: (types.intp, *array_types(*kinds), types.float64, types.float64)
)


class Looks(Compiled):
    """What looks at scales and zero points of some pairs of dtypes; None for all others.

    ``Looks(...)[s.dtype, z.dtype](n, s, z, lo, hi)`` tells whether all `n` scales are positive and
    finite, and all zero points within lo..hi.
    """

    def __init__(self, *kinds: tuple[Any, Any]) -> None:
        super().__init__(_inside.__getitem__)
        self._kinds = frozenset(kinds)

    def __missing__(self, key: Any) -> Any:
        return super().__missing__(key) if key in self._kinds else None


@lru_cache(maxsize=256)
def _inward(lo: float, hi: float) -> tuple[float, float]:
    """The bounds as float32, rounded so that nothing outside is let in."""
    with np.errstate(all="ignore"):
        a, b = np.float32(lo), np.float32(hi)
        a = a if float(a) >= lo else np.nextafter(a, np.float32(np.inf))
        b = b if float(b) <= hi else np.nextafter(b, np.float32(-np.inf))
    return float(a), float(b)


def outside(p: Array, lo: float, hi: float) -> int:
    """The index of the first element of `p` that is NaN or not in [lo, hi]; -1 if there is none."""
    bounds = (lo, hi) if p.dtype in _WIDE else _inward(lo, hi)
    if not _call[p.dtype](p, *bounds):
        return -1
    with np.errstate(invalid="ignore"):
        v = p.astype(np.float64)
        return int(np.argmin((v >= lo) & (v <= hi)))
