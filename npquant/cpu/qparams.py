"""Statistics, the qparams that are chosen from them, and the check of qparams themselves."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numba import types

from npquant.cpu.reduce import minmax, minmax_finite
from npquant.cpu.storage import TYPES
from npquant.cpu.target import Kernel, Types, array_type, compiled
from npquant.formulas import qparams as f
from npquant.primitives import item, like, widen

Array = np.ndarray[Any, Any]


class Choose:
    """The range of each channel -> its scale and zero point."""

    def __init__(self, formula: Callable[..., Any]) -> None:
        def channels(
            begin: Any, end: Any, least: Any, greatest: Any, lo: Any, hi: Any, eps: Any,
            middle: Any, scale: Any, zero_point: Any,
        ) -> None:  # fmt: skip
            s, z = item(scale), item(zero_point)
            for c in range(begin, end):
                chosen = formula(least[c], greatest[c], lo, hi, eps, middle, s)
                scale[c] = like(chosen[0], s)
                zero_point[c] = like(chosen[1], z)

        self._kernel = Kernel(channels, formula.__name__, _signature)

    def __call__(
        self, least: Array, greatest: Array, bounds: tuple[int, int], eps: float, middle: int,
        precision: str, scale: Array, zero_point: Array,
    ) -> None:  # fmt: skip
        """Write to `scale` and `zero_point`; `precision` names the type of `eps`."""
        n = least.size
        args = (least, greatest, *bounds, eps, middle, scale, zero_point)
        self._kernel(n, n, args, (least.dtype, precision, scale.dtype, zero_point.dtype))


def _signature(least: Any, precision: str, scale: Any, zero_point: Any) -> Types:
    bounds, eps = array_type(least), TYPES[np.dtype(precision)]
    integer = types.int64
    return (bounds, bounds, integer, integer, eps, integer,
            array_type(scale), array_type(zero_point))  # fmt: skip


choose_affine = Choose(f.affine_qparams)
choose_symmetric = Choose(f.symmetric_qparams)
choose_float = Choose(f.float_qparams)
choose_kept_float = Choose(f.kept_float_qparams)
choose_per_token = Choose(f.token_qparams)
choose_per_token_asymmetric = Choose(f.token_asymmetric_qparams)
choose_fbgemm = Choose(f.fbgemm_qparams)
choose_fbgemm_symmetric = Choose(f.fbgemm_symmetric_qparams)


class Move:
    """Bounds that were seen -> running bounds, in place.

    Parameters
    ----------
    formula : callable
        ``formula(running, seen, constant) -> running``.
    """

    def __init__(self, formula: Callable[..., Any]) -> None:
        def channels(
            begin: Any, end: Any, least: Any, greatest: Any, constant: Any, low: Any, high: Any
        ) -> None:
            for c in range(begin, end):
                low[c] = formula(low[c], least[c], constant)
                high[c] = formula(high[c], greatest[c], constant)

        def signature(dtype: Any) -> Types:
            bound = array_type(dtype)
            return bound, bound, types.float32, bound, bound

        self._kernel = Kernel(channels, formula.__name__, signature)

    def __call__(
        self, least: Array, greatest: Array, constant: float, low: Array, high: Array
    ) -> None:
        """Move the running range `low`, `high` towards the one that was seen."""
        args = (least, greatest, constant, low, high)
        self._kernel(least.size, least.size, args, (least.dtype,))


move = Move(f.moving_average)
step_towards = Move(f.step_towards)


# --- checks -----------------------------------------------------------------------------------

#: What `widen` takes to float64.
_WIDE = frozenset(np.dtype(t) for t in ("float64", "int32", "uint32", "int64"))


def _any_outside(p: Any, lo: Any, hi: Any) -> Any:
    bad = 0
    for i in range(p.size):  # to the end: a loop that can stop early is not vectorised
        v = widen(p[i])
        bad |= not (v >= lo and v <= hi)
    return bad


def _types(dtype: Any) -> Types:
    number = types.float64 if dtype in _WIDE else types.float32
    return array_type(dtype), number, number


_call = compiled(_any_outside, _types)


def _both_inside(s: Any, z: Any, scale_lo: Any, scale_hi: Any, lo: Any, hi: Any) -> Any:
    bad = 0
    for i in range(s.size):
        v, w = widen(s[i]), widen(z[i])
        bad |= not (v >= scale_lo and v <= scale_hi and w >= lo and w <= hi)
    return not bad


def _both_types(key: Any) -> Types:
    scale, zero_point = key
    bounds = types.float32, types.float32, types.float64, types.float64
    return array_type(scale), array_type(zero_point), *bounds


_both = compiled(_both_inside, _both_types)


def inside(
    scale: Array, zero_point: Array, scale_lo: float, scale_hi: float, lo: float, hi: float
) -> bool:
    """Whether all of the float32 scales and all of the zero points lie between their bounds."""
    key = scale.dtype, zero_point.dtype
    return bool(_both(key, scale, zero_point, scale_lo, scale_hi, lo, hi))


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
    if not _call(p.dtype, p, *bounds):
        return -1
    with np.errstate(invalid="ignore"):
        v = p.astype(np.float64)
        return int(np.argmin((v >= lo) & (v <= hi)))


__all__ = [
    "choose_affine",
    "choose_fbgemm",
    "choose_fbgemm_symmetric",
    "choose_float",
    "choose_kept_float",
    "choose_per_token",
    "choose_per_token_asymmetric",
    "choose_symmetric",
    "minmax",
    "minmax_finite",
    "move",
    "outside",
    "step_towards",
]
