"""Tables of what belongs to a channel, for loops in which the channel changes at every step.

A table has a column for each member of the tuple that a *parameters* formula makes. All columns lie
in one array of words, PITCH apart: one array, so that the compiler need not ask of each column
whether the output overlaps it, which it gives up at a few.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import register_jitable

from npquant.cpu.lowered import lowered
from npquant.cpu.memory import data_of, new_array
from npquant.cpu.storage import Storage

#: Rows, so many that a table stays in the second cache; PITCH is no power of two, or all columns
#: would compete for the same places of the cache.
ROWS, PITCH = 8192, 8192 + 256


def empty(p: Any) -> Any:
    """A table for tuples like `p`."""
    return np.empty(ROWS, object)


def put(table: Any, k: Any, p: Any) -> None:
    """Write `p` to row k."""
    table[k] = p


def take(table: Any, k: Any, p: Any) -> Any:
    """Row k; `p` tells the types alone."""
    return table[k]


def _bits(t: Any) -> int:
    return int(t.bits if isinstance(t, Storage) else t.bitwidth)


def _word(p: Any) -> types.Type:
    return types.uint64 if any(_bits(t) > 32 for t in p) else types.uint32


@lowered(empty)
def _empty(typing: Any, p: Any) -> Any:
    kind = types.Array(_word(p), 1, "C")

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return new_array(context, builder, kind, ir.IntType(64)(len(p) * PITCH))

    return kind(p), generate


def _places(context: Any, builder: Any, table: Any, array: Any, k: Any, n: int) -> Any:
    """Where the members of row k lie."""
    data = data_of(context, builder, table, array)
    return [builder.gep(data, [builder.add(k, k.type(i * PITCH))]) for i in range(n)]


@lowered(put)
def _put(typing: Any, table: Any, k: Any, p: Any) -> Any:
    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        array, k, row = args
        for i, place in enumerate(_places(context, builder, table, array, k, len(p))):
            value, word = builder.extract_value(row, i), place.type.pointee
            if isinstance(value.type, (ir.FloatType, ir.DoubleType)):
                value = builder.bitcast(value, ir.IntType(_bits(p[i])))
            builder.store(value if value.type == word else builder.zext(value, word), place)
        return context.get_dummy_value()

    return types.void(table, types.uintp, p), generate


@lowered(take)
def _take(typing: Any, table: Any, k: Any, p: Any) -> Any:
    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        array, k, _ = args
        row = []
        for i, place in enumerate(_places(context, builder, table, array, k, len(p))):
            bits, kind = ir.IntType(_bits(p[i])), context.get_value_type(p[i])
            value = builder.load(place)
            value = value if value.type == bits else builder.trunc(value, bits)
            row.append(value if kind == bits else builder.bitcast(value, kind))
        return context.make_tuple(builder, sig.return_type, row)

    return p(table, types.uintp, p), generate


@register_jitable
def fill_in_order(
    table: Any, lowest: Any, n: Any, parameters: Any, x: Any, scale: Any, zero_point: Any,
    constants: Any, y: Any,
) -> None:  # fmt: skip
    """A row for each of `n` channels from the `lowest` on."""
    c = np.uintp(lowest)
    for i in range(np.uintp(n)):
        put(table, i, parameters(x, scale[c + i], zero_point[c + i], constants, y))


@register_jitable
def fill(
    table: Any, row: Any, rows: Any, parameters: Any, x: Any, scale: Any, zero_point: Any,
    lowest: Any, channels: Any, inner: Any, constants: Any, y: Any,
) -> None:  # fmt: skip
    """Rows of the positions [row, row + rows), where each channel takes `inner` positions.

    `lowest` is the first of the channels. What lies beyond them all is the same again.
    """
    period = channels * inner
    made = min(rows, period - row)
    c = lowest + row // inner
    p = parameters(x, scale[c], zero_point[c], constants, y)
    if inner == 1:
        fill_in_order(table, c, made, parameters, x, scale, zero_point, constants, y)
    else:
        skip, k = row % inner, 0
        while k < made:
            m = min(inner - skip, made - k)
            p = parameters(x, scale[c], zero_point[c], constants, y)
            for i in range(k, k + m):
                put(table, np.uintp(i), p)
            skip = 0
            c += 1
            k += m
    while made < rows:  # twice as many at a time, as a loop with a short way back is not vectorised
        first, more = np.uintp(made), min(made, rows - made)
        for i in range(np.uintp(more)):
            put(table, first + i, take(table, i, p))
        made += more
