"""Tables of what belongs to a channel, for loops in which the channel changes at every step.

A table has a column for each member of the tuple that a *parameters* formula makes. All columns lie
in one array of words, PITCH apart: one array, so that the compiler need not ask of each column
whether the output overlaps it, which it gives up at a few.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.extending import register_jitable

from npquant.cpu.memory import LINE, to_line
from npquant.cpu.storage import Storage, overload, reinterpreted

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


@overload(empty)
def _empty(p):
    word = np.uint64 if any(_bits(t) > 32 for t in p) else np.uint32
    size, least = len(p) * PITCH, LINE // 4

    def empty_(p):
        room = np.empty(size + least, word)
        return room[to_line(room, 0) :]

    return empty_


@overload(put)
def _put(table, k, p):
    word = reinterpreted[table.dtype]
    if len(p) == 1:

        def put_(table, k, p):
            table[k] = word(p[0])

    else:

        def put_(table, k, p):
            table[k] = word(p[0])
            put(table, k + np.uintp(PITCH), p[1:])

    return put_


@overload(take)
def _take(table, k, p):
    member = reinterpreted[p[0]]
    if len(p) == 1:
        return lambda table, k, p: (member(table[k]),)
    return lambda table, k, p: (member(table[k]), *take(table, k + np.uintp(PITCH), p[1:]))


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
        channel = np.uintp(c)
        for i in range(np.uintp(made)):
            q = parameters(x, scale[channel + i], zero_point[channel + i], constants, y)
            put(table, i, q)
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
    for k in range(made, rows):
        put(table, np.uintp(k), take(table, np.uintp(k - period), p))
