"""What all formulas share."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.extending import register_jitable

from npquant.primitives import like, value, widen

#: What int32 and int64 do not hold: it, and all beyond.
INT32_END, INT64_END = np.float32(2.0**31), np.float32(2.0**63)

INFINITY = np.float32(np.inf)

#: Kernels alone call formulas, so no C wrapper is compiled for them; all are inlined, since a loop
#: around a call is not vectorised.
formula = register_jitable(no_cfunc_wrapper=True, forceinline=True)


@formula
def clamp(v: Any, lo: Any, hi: Any) -> Any:
    """`v` in [lo, hi]; NaN stays NaN, and so does -0.0 at a bound of 0."""
    v = lo if v < lo else v
    return hi if v > hi else v


@formula
def plain_nan(v: Any) -> Any:
    """`v`, but of NaNs that which arithmetic makes: others, of users, may round to a bfloat16 0."""
    return v if v == v else like(np.float32(np.nan), v)


@formula
def extremes_of(low: Any, high: Any, kind: Any) -> Any:
    """The least and the greatest value, of the type of `kind`, by the keys of both."""
    u, v = value(low, kind), value(high, kind)
    # A NaN of either sign lies outside the infinities, so it shows; both become NaN then.
    return (u if widen(v) == widen(v) else v), (v if widen(u) == widen(u) else u)


@formula
def clamp_number(v: Any, lo: Any, hi: Any) -> Any:
    """`v` in [lo, hi]; NaN becomes lo."""
    v = v if v > lo else lo
    return v if v < hi else hi


@formula
def reciprocal(scale: Any) -> Any:
    """1 / scale, rounded to the type of the scale."""
    return like(np.float32(1) / widen(scale), scale)
