"""What the CUDA compiler is taught: the formats and primitives of the CPU's.

All but a few are taught as they are. Those that follow are other instructions on a GPU, or other
code: an array is a pointer here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from npquant import primitives as p
from npquant.cpu.primitives import TAUGHT
from npquant.cpu.storage import BFLOAT16, Storage, StorageModel
from npquant.cuda.target import intrinsic, libdevice, overload, register_model
from npquant.formulas.base import formula

register_model(Storage)(StorageModel)

_REPLACED = {
    p.rint, p.trunc, p.floor, p.sqrt, p.near_reciprocal, p.larger_number, p.smaller_number,
    p.from_one, p.masked, p.narrowed, p.rounded_code, p.shifted, p.store,
}  # fmt: skip

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


def _of_two(single: Any, double: Any) -> Any:
    """An overload for two floats of one type."""

    def implementation(a, b):
        function = double if a == types.float64 else single
        return lambda a, b: function(a, b)

    return implementation


overload(p.larger_number)(_of_two(libdevice.fmaxf, libdevice.fmax))
overload(p.smaller_number)(_of_two(libdevice.fminf, libdevice.fmin))

_masked_bits, _stored, _divided = (
    dict(TAUGHT)[primitive] for primitive in (p.masked, p.store, p.from_one)
)


@intrinsic
def _near_reciprocal(context: Any, v: Any) -> Any:
    """1 / v; for 1 <= v <= 2 NVIDIA says that it is off by 2**-23 at most, which is two ulp.

    Powers of two make no difference, where no number is subnormal.
    """

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.FloatType(), [ir.FloatType()])
        near = ir.InlineAsm(kind, "rcp.approx.ftz.f32 $0, $1;", "=f,f")
        # Said to depend on nothing else, it is found but once for the same `v`.
        return builder.call(near, args, attrs=("readnone", "nounwind"))

    return types.float32(types.float32), codegen


@overload(p.near_reciprocal)
def _near(v):
    return lambda v: _near_reciprocal(v)


@formula
def corrected(a: Any, b: Any, near: Any) -> Any:
    """a / b, correctly rounded, of a = m - 1 and b = m + 1 of a mantissa m; `near` is about 1 / b.

    A test has found so of every m, and of every `near` that is off by two ulp at most. An
    instruction that divides takes as many steps, and asks besides whether they will do, or else
    calls a function: times suggest that it does of a = 0, where all is that has been decided. The
    reciprocal is corrected by 9/16 of its error, as 1 / b is between 0.41 and 0.59: by itself or a
    half of it, one m would be off.
    """
    q = a * near
    better = p.fma(np.float32(0.5625), p.fma(-b, near, np.float32(1)), near)
    return p.fma(better, p.fma(-b, q, a), q)


@overload(p.from_one)
def _from_one(m):
    if m == types.float64:
        return _divided(m)

    def from_one(m):
        a, b = m - np.float32(1), m + np.float32(1)
        return corrected(a, b, _near_reciprocal(b))

    return from_one


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


@overload(p.shifted)
def _shifted(t, z, other):
    return lambda t, z, other: p.plus(t, z)


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
