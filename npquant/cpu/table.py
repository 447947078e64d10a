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

from npquant.cpu.borrowed import data_of
from npquant.cpu.lowered import called, lowered
from npquant.cpu.rooms import new_array

#: Rows, so many that a table stays in the second cache; PITCH is no power of two, or all columns
#: would compete for the same places of the cache.
ROWS, PITCH = 16384, 16384 + 256

#: Of a channel that takes RUN rows at most, HALF are written at a time: in all more than it takes,
#: which those of the next overwrite. Behind ROWS there is room for them, and then for a row of each
#: of SOME channels, which are made together.
RUN, HALF, SOME = 16, 8, 128
_ALONE = ROWS + RUN


def empty(p: Any) -> Any:
    """A table for tuples like `p`."""
    return np.empty(PITCH, object)


def put(table: Any, k: Any, p: Any) -> None:
    """Write `p` to row k."""
    table[k] = p


def put_half(table: Any, k: Any, p: Any) -> None:
    """Write `p` to the HALF rows from k on."""
    for i in range(HALF):
        table[k + i] = p


def take(table: Any, k: Any, p: Any) -> Any:
    """Row k; `p` tells the types alone."""
    return table[k]


def _word(p: Any) -> types.Type:
    return types.uint64 if any(t.bitwidth > 32 for t in p) else types.uint32


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


def _as_word(builder: Any, value: Any, bits: int, word: Any) -> Any:
    if isinstance(value.type, (ir.FloatType, ir.DoubleType)):
        value = builder.bitcast(value, ir.IntType(bits))
    return value if value.type == word else builder.zext(value, word)


@lowered(put)
def _put(typing: Any, table: Any, k: Any, p: Any) -> Any:
    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        array, k, row = args
        for i, place in enumerate(_places(context, builder, table, array, k, len(p))):
            value = builder.extract_value(row, i)
            builder.store(_as_word(builder, value, p[i].bitwidth, place.type.pointee), place)
        return context.get_dummy_value()

    return types.void(table, types.uintp, p), generate


@lowered(put_half)
def _put_half(typing: Any, table: Any, k: Any, p: Any) -> Any:
    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        array, k, row = args
        number = ir.IntType(32)
        for i, place in enumerate(_places(context, builder, table, array, k, len(p))):
            word = place.type.pointee
            kind = ir.VectorType(word, HALF)
            none, all_ = ir.Constant(kind, ir.Undefined), ir.VectorType(number, HALF)
            value = _as_word(builder, builder.extract_value(row, i), p[i].bitwidth, word)
            values = builder.insert_element(none, value, number(0))
            values = builder.shuffle_vector(values, none, ir.Constant(all_, [0] * HALF))
            to = builder.bitcast(place, kind.as_pointer())
            builder.store(values, to, align=word.width // 8)
        return context.get_dummy_value()

    return types.void(table, types.uintp, p), generate


@lowered(take)
def _take(typing: Any, table: Any, k: Any, p: Any) -> Any:
    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        array, k, _ = args
        row = []
        for i, place in enumerate(_places(context, builder, table, array, k, len(p))):
            bits, kind = ir.IntType(p[i].bitwidth), context.get_value_type(p[i])
            value = builder.load(place)
            value = value if value.type == bits else builder.trunc(value, bits)
            row.append(value if kind == bits else builder.bitcast(value, kind))
        return context.make_tuple(builder, sig.return_type, row)

    return p(table, types.uintp, p), generate


@called
def fill_in_order(
    table: Any, row: Any, lowest: Any, n: Any, parameters: Any, x: Any, scale: Any,
    zero_point: Any, constants: Any, y: Any,
) -> None:  # fmt: skip
    """A row for each of `n` channels from the `lowest` on, from `row` on."""
    k, c = np.uintp(row), np.uintp(lowest)
    for i in range(np.uintp(n)):
        put(table, k + i, parameters(x, scale[c + i], zero_point[c + i], constants, y))


@called
def fill(
    table: Any, row: Any, rows: Any, parameters: Any, x: Any, scale: Any, zero_point: Any,
    lowest: Any, channels: Any, inner: Any, constants: Any, y: Any,
) -> None:  # fmt: skip
    """Rows of the positions [row, row + rows), where each channel takes `inner` positions.

    `lowest` is the first of the channels, and `inner` is no more than RUN. What lies beyond them
    all is the same again.
    """
    period = channels * inner
    made = min(rows, period - row)
    c = lowest + row // inner
    p = parameters(x, scale[c], zero_point[c], constants, y)
    if inner == 1:
        fill_in_order(table, 0, c, made, parameters, x, scale, zero_point, constants, y)
    else:
        k, after = 0, inner - row % inner
        while k < made:
            some = min(SOME, 1 + (made - after + inner - 1) // inner)
            fill_in_order(table, _ALONE, c, some, parameters, x, scale, zero_point, constants, y)
            for i in range(np.uintp(_ALONE), np.uintp(_ALONE + some)):
                channel = take(table, i, p)
                put_half(table, np.uintp(k), channel)
                if inner > HALF:
                    put_half(table, np.uintp(k + HALF), channel)
                k, after = after, after + inner
            c += some
    while made < rows:  # twice as many at a time, as a loop with a short way back is not vectorised
        first, more = np.uintp(made), min(made, rows - made)
        for i in range(np.uintp(more)):
            put(table, first + i, take(table, i, p))
        made += more
