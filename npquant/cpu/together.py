"""Rooms on the stack, where values wait until many of them become elements together.

A loop makes values of 32 bits, and fewer bits of them, which takes fewer instructions where several
vectors are brought together first.
"""

from __future__ import annotations

from typing import Any

from numba import types
from numba.core import cgutils, errors

from npquant.cpu import bfloat16, float8, packs
from npquant.cpu.borrowed import data_of
from npquant.cpu.lowered import lowered
from npquant.cpu.pairs import in_pairs
from npquant.cpu.rooms import on_stack
from npquant.cpu.storage import BFLOAT16, FLOAT8_NUMBER
from npquant.primitives import store


def _together(value: Any, kind: Any) -> Any:
    """What makes elements of a type of many values, by `AT_A_TIME` and `codes`; else None."""
    if value == FLOAT8_NUMBER:
        return float8
    if kind == BFLOAT16:
        return bfloat16 if value == types.float32 and bfloat16.pays() else None
    return packs if value == types.int32 and packs.pay_for(kind) else None


def room(n: Any, x: Any, value: Any, y: Any) -> Any:
    """Room for `n` values of the type of `value`, if elements of `y` are made of many; else None.

    `n` is a constant. There is none for what is made of `x` in pairs; without pairs, `x` is None.
    """


@lowered(room)
def _room(context: Any, n: Any, x: Any, value: Any, y: Any) -> Any:
    if not isinstance(n, types.IntegerLiteral):
        raise errors.RequireLiteralValue("n")
    made, size = _together(value, y.dtype), n.literal_value
    wait = made is not None and not (made is bfloat16 and in_pairs(x, y))

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return on_stack(context, builder, value, size) if wait else context.get_dummy_value()

    return (types.CPointer(value) if wait else types.none)(n, x, value, y), generate


def hold(held: Any, k: Any, y: Any, i: Any, value: Any) -> None:
    """Keep `value` as the k-th of the room `held`; where there is none, it goes to y[i]."""
    store(y, i, value)


def release(held: Any, n: Any, y: Any, first: Any) -> None:
    """The first `n` values of the room become elements of `y`, from `first` on."""


@lowered(hold)
def _hold(typing: Any, held: Any, k: Any, y: Any, i: Any, value: Any) -> Any:
    function = typing.resolve_value_type(store)
    stored = function.get_call_type(typing, (y, i, value), {})

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        room, k, *what = args
        if held == types.none:
            context.get_function(function, stored)(builder, what)
        else:
            builder.store(what[-1], builder.gep(room, [k]))
        return context.get_dummy_value()

    return types.void(held, types.uintp, y, types.uintp, value), generate


@lowered(release)
def _release(typing: Any, held: Any, n: Any, y: Any, first: Any) -> Any:
    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        if held == types.none:
            return context.get_dummy_value()
        room, n, array, first = args
        made = _together(held.dtype, y.dtype)
        many = n.type(made.AT_A_TIME)
        to = builder.gep(data_of(context, builder, y, array), [first])

        def codes(k: Any, few: bool = False) -> Any:
            return made.codes(builder, builder.gep(room, [k]), y.dtype, few)

        def give(k: Any) -> None:
            some = codes(k)
            place = builder.bitcast(builder.gep(to, [k]), some.type.as_pointer())
            builder.store(some, place, align=1)

        rest = builder.urem(n, many)
        end = builder.sub(n, rest)
        with cgutils.for_range_slice(builder, n.type(0), end, many, n.type) as (k, _):
            give(k)
        with (
            builder.if_then(cgutils.is_not_null(builder, rest)),
            builder.if_else(cgutils.is_not_null(builder, end)) as (more, few),
        ):
            with more:  # of which some are given once again
                give(builder.sub(n, many))
            with few:
                last = cgutils.alloca_once_value(builder, codes(end, few=True))
                size = context.get_abi_sizeof(to.type.pointee)
                cgutils.raw_memcpy(builder, to, last, n, size, align=1)
        return context.get_dummy_value()

    return types.void(held, types.uintp, y, types.uintp), generate
