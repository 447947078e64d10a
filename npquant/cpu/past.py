"""Results that are written past the caches, by whole lines: what is overwritten is not read."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from npquant.cpu.borrowed import data_of
from npquant.cpu.lines import LINE, WAIT
from npquant.cpu.lowered import lowered
from npquant.cpu.rooms import on_stack


def waiting_for(y: Any) -> Any:
    """Room where what is written past the caches to `y` waits until it is WAIT bytes.

    What was left of it waits before these. So vectors are stored within lines of the cache: across
    two it took twice as long. It is no overload of a function, as `local` is none.
    """
    return np.empty((LINE + WAIT) // y.itemsize, y.dtype)


@lowered(waiting_for)
def _waiting_for(context: Any, y: Any) -> Any:
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        size = context.get_abi_sizeof(context.get_data_type(y.dtype))
        return on_stack(context, builder, y.dtype, (LINE + WAIT) // size)

    return types.CPointer(y.dtype)(y), codegen


def write_past(y: Any, stop: Any, room: Any, held: Any) -> int:
    """Write to `y`, past the caches, the `held` values before `stop`, which end a room.

    Those after the last line of the cache wait on, before the places of the next WAIT bytes, and
    how many they are is returned. What is overwritten need not be read before, as it is for what
    goes by a cache. Others see it after `settle`.
    """
    end = (LINE + WAIT) // y.itemsize
    y[stop - held : stop] = room[end - held : end]
    return 0


def _as(builder: Any, place: Any, kind: Any) -> Any:
    return builder.bitcast(place, kind.as_pointer())


@lowered(write_past)
def _write_past(context: Any, y: Any, stop: Any, room: Any, held: Any) -> Any:
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        data = data_of(context, builder, y, args[0])
        stop, held, word = args[1], args[3], args[1].type
        element = context.get_data_type(y.dtype)
        size = context.get_abi_sizeof(element)
        past = builder.module.add_metadata([ir.IntType(32)(1)])
        data = builder.gep(data, [builder.sub(stop, held)])
        first = builder.sub(word((LINE + WAIT) // size), held)
        read = builder.gep(data_of(context, builder, room, args[2]), [first])

        def move(k: Any, some: int) -> None:
            kind = ir.VectorType(element, some) if some > 1 else element
            value = builder.load(_as(builder, builder.gep(read, [k]), kind), align=size)
            to = _as(builder, builder.gep(data, [k]), kind)
            store = builder.store(value, to, align=size * some)
            if some > 1:
                store.set_metadata("nontemporal", past)

        place = builder.udiv(builder.ptrtoint(data, word), word(size))
        head = builder.and_(builder.neg(place), word(LINE // size - 1))
        head = builder.select(builder.icmp_signed("<", head, held), head, held)
        lines = builder.and_(builder.sub(held, head), word(-LINE // size))
        tail = builder.add(head, lines)
        with cgutils.for_range(builder, head) as loop:
            move(loop.index, 1)
        with cgutils.for_range_slice(builder, head, tail, word(LINE // size), word) as (k, _):
            move(k, LINE // size)
        with cgutils.for_range_slice(builder, tail, held, word(1), word) as (k, _):
            value = builder.load(builder.gep(read, [k]))
            builder.store(value, builder.gep(read, [builder.sub(k, word(WAIT // size))]))
        return builder.sub(held, tail)

    return types.intp(y, types.intp, room, types.intp), codegen


def settle() -> None:
    """What was written past the caches comes before whatever other threads are told of it."""


@lowered(settle)
def _settle(context: Any) -> Any:
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), codegen
