"""Bfloat16 two at a time, as the halves of a word.

The compiler widens a vector of them to two, and in the end puts halves of two vectors together,
which takes about as long as what is computed between. A word is left as it is here: its upper half
is a float32 but for what stands below it, and the lower one is shifted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from npquant.cpu.borrowed import Flat, data_of
from npquant.cpu.instructions import as_functions, as_instructions
from npquant.cpu.lowered import lowered, overload
from npquant.cpu.rooms import local
from npquant.cpu.storage import BFLOAT16
from npquant.primitives import item, store

#: Elements of a vector of words. A loop over what is left would be no vector.
MANY = 32


def pair(x: Any, i: Any) -> Any:
    """x[i] and x[i + 1]"""
    return x[i], x[i + 1]


def put_pair(y: Any, i: Any, both: Any) -> None:
    """y[i] and y[i + 1] become the two of `both`, a room or a tuple; nothing of None."""
    if y is not None:
        y[i], y[i + 1] = both[0], both[1]


def _word(context: Any, builder: Any, kind: Any, array: Any, i: Any) -> tuple[Any, Any, Any]:
    """The place of two elements, the type of one, and how many bits that has."""
    half = context.get_data_type(kind.dtype)
    bits = 8 * context.get_abi_sizeof(half)
    place = builder.gep(data_of(context, builder, kind, array), [i])
    return builder.bitcast(place, ir.IntType(2 * bits).as_pointer()), ir.IntType(bits), bits


@lowered(pair)
def _pair(context: Any, x: Any, i: Any) -> Any:
    result = types.UniTuple(x.dtype, 2)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        place, half, bits = _word(context, builder, x, *args)
        word = builder.load(place, align=bits // 8)
        upper = builder.lshr(word, word.type(bits))
        found = [builder.trunc(v, half) for v in (word, upper)]
        return context.make_tuple(builder, result, found)

    return result(x, types.uintp), codegen


@lowered(put_pair)
def _put_pair(context: Any, y: Any, i: Any, both: Any) -> Any:
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        if y == types.none:
            return context.get_dummy_value()
        place, half, bits = _word(context, builder, y, *args[:2])
        word = place.type.pointee
        if isinstance(both, types.CPointer):
            halves = builder.bitcast(args[2], half.as_pointer())
            found = [builder.load(builder.gep(halves, [ir.IntType(64)(k)])) for k in range(2)]
        else:
            found = [
                context.cast(builder, v, kind, y.dtype)
                for v, kind in zip(cgutils.unpack_tuple(builder, args[2]), both, strict=True)
            ]
        lower, upper = (builder.zext(v, word) for v in found)
        builder.store(builder.or_(lower, builder.shl(upper, word(bits))), place, align=bits // 8)
        return context.get_dummy_value()

    return types.void(y, types.uintp, both), codegen


def in_pairs(x: Any, y: Any) -> bool:
    """Whether what is made of `x`, a type, goes to `y` two at a time."""
    return isinstance(x, Flat) and x.dtype == y.dtype == BFLOAT16


def pairs_of(element: Callable[..., Any]) -> Callable[..., Any]:
    """What does `m` elements, if bfloat16 and whole vectors of words, and tells if it has."""

    def pairs(x: Any, base: Any, m: Any, p: Any, constants: Any, y: Any, mask: Any) -> Any:
        return False

    def two_at_a_time(x: Any, base: Any, m: Any, p: Any, constants: Any, y: Any, mask: Any) -> Any:
        if m % MANY != 0:
            return False
        values = local(2, item(y))
        for k in range(np.uintp(m) >> np.uintp(1)):
            i = base + np.uintp(2) * k
            u, v = pair(x, i)
            value, lower = element(u, p, constants, y)
            store(values, np.uintp(0), value)
            value, upper = element(v, p, constants, y)
            store(values, np.uintp(1), value)
            put_pair(y, i, values)
            put_pair(mask, i, (lower, upper))
        return True

    def implementation(x: Any, base: Any, m: Any, p: Any, constants: Any, y: Any, mask: Any) -> Any:
        if in_pairs(x, y):
            return two_at_a_time
        signature = types.boolean(x, base, m, p, constants, y, mask)
        return signature, lambda context, builder, sig, args: cgutils.false_bit

    lowered(pairs)(as_instructions(implementation))
    overload(pairs, forceinline=True)(as_functions(implementation))
    return pairs
