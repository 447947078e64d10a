"""What the CUDA compiler is taught: the formats and primitives of the CPU's.

All but a few are taught as they are. Those that follow are other instructions on a GPU, or other
code: an array is a pointer here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from npquant import primitives as p
from npquant.cpu.primitives import TAUGHT
from npquant.cpu.storage import BFLOAT16, Storage, StorageModel
from npquant.cuda.target import libdevice, overload, register_model

register_model(Storage)(StorageModel)

_REPLACED = {p.rint, p.trunc, p.floor, p.sqrt, p.at, p.masked, p.narrowed, p.rounded_code, p.store}

for _primitive, _implementation in TAUGHT:
    if _primitive not in _REPLACED:
        overload(_primitive, strict=False)(_implementation)


def _by_type(single: Any, double: Any) -> Any:
    """An overload that calls one function for float32 and the other for float64."""

    def implementation(x):
        function = double if x == types.float64 else single
        return lambda x: function(x)

    return implementation


_rint = _by_type(libdevice.rintf, libdevice.rint)


@overload(p.rint)
def _round(x):
    if isinstance(x, Storage):
        return lambda x: p.like(libdevice.rintf(p.widen(x)), x)
    return _rint(x)


overload(p.trunc)(_by_type(libdevice.truncf, libdevice.trunc))
overload(p.floor)(_by_type(libdevice.floorf, libdevice.floor))
overload(p.sqrt)(_by_type(libdevice.fsqrt_rn, libdevice.dsqrt_rn))

_masked_bits, _stored = (dict(TAUGHT)[primitive] for primitive in (p.masked, p.store))


@overload(p.masked)
def _masked(g, m):
    if not isinstance(g, types.Float):
        return _masked_bits(g, m)
    copysign = libdevice.copysign if g == types.float64 else libdevice.copysignf
    zero = np.float64(0) if g == types.float64 else np.float32(0)
    return lambda g, m: g if m else copysign(zero, g)


@overload(p.store, strict=False)
def _store(y, i, v):
    """A NaN that a GPU makes has all bits but the sign: rounded as a number, it would be -0.0."""
    if not isinstance(y, types.NoneType) and y.dtype == BFLOAT16 != v:
        return lambda y, i, v: p.store(y, i, p.like(v, p.item(y)))
    return _stored(y, i, v)


@overload(p.at)
def _at(p, c):
    if isinstance(p, types.CPointer):
        return lambda p, c: p[c]
    return lambda p, c: p


@overload(p.narrowed)
def _narrowed(zero_point, t, other):
    """As it is: nobody has looked whether it is small, and per token it need not be."""
    return lambda zero_point, t, other: zero_point


@overload(p.rounded_code)
def _rounded_code(t, zero_point, lo, hi, nan, other):
    """By the instruction that rounds: nobody has looked whether a zero point is small."""
    if isinstance(t, Storage):
        return lambda t, zero_point, lo, hi, nan, other: p.rounded_code(
            p.widen(t), zero_point, lo, hi, nan, other
        )
    if isinstance(zero_point, types.NoneType):
        return lambda t, zero_point, lo, hi, nan, other: p.code_of(p.rint(t), lo, hi, nan)
    return lambda t, zero_point, lo, hi, nan, other: p.code_of(
        p.plus(p.rint(t), zero_point), lo, hi, nan
    )
