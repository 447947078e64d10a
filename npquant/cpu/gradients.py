"""The loops of the learnable backward: segments that are made of its two formulas.

Each does grad, x, qparams -> grad_input and sums for scale and zero point, in the order that
`sums.py` tells of: of tiles, unless there is room for the gradients themselves. It says whether
the first `look` qparams are `usual`; only then anything is written. Terms, and lanes that are not
many, lie on the stack: of any other array that a loop writes to, the compiler would have to ask
whether the output overlaps it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from npquant.cpu import table
from npquant.cpu.borrowed import keep
from npquant.cpu.checks import usual
from npquant.cpu.every_second import brought, rooms_for
from npquant.cpu.fetching import to_line
from npquant.cpu.lanes import TOGETHER, add_columns, add_terms, folded, sums_together
from npquant.cpu.lowered import called
from npquant.cpu.rooms import from_line, local
from npquant.cpu.strided import given, lend, placed, room, taken
from npquant.cpu.target import GRAIN, Function
from npquant.layout import LANES, TILE
from npquant.primitives import each, item, masked, store

#: Terms that wait to be added: enough to run long loops, few enough to stay in cache. Of a longer
#: run CHUNK, in loops whose length the compiler knows: it leaves nothing of them but vectors.
STRIP, CHUNK = 256, 128
#: Channels of a block at most: their lanes, 64 KiB, are on the stack and stay near.
BLOCK = 256
#: Where channels lie side by side: so many at most are done all at once, in rows of so many
#: elements.
MOST_BESIDE, BLOCK_ROW = 128, 1024
#: Of more channels: elements of a row of a block at most, of a part of it, and rows whose terms of
#: one lane are added together.
LONG_ROW, PART, TURNS = 4096, 256, 4
#: Elements of a channel at most that is summed together with others, in registers; and of one of
#: data that are not flat. (Measured.)
SHORT, SHORT_APART = 512, 64
#: More than there are before a line of the cache.
SPARE = 32
# Both with room for the zeros after the last.
_BLOCK_OF_LANES = 2 * (BLOCK * LANES + SPARE) + LANES
# All lanes of rows of so many elements; of LONG_ROW those that wait, one more than log2(LANES).
_ROWS_OF_A_SUM = LANES * 1536
_ROWS_OF_LANES = 2 * _ROWS_OF_A_SUM
_ROW_OF_TERMS, _PARTS_OF_TERMS = BLOCK_ROW + LANES, TURNS * PART + LANES
_SUMS_TOGETHER, _TERMS_TOGETHER = 2 * TOGETHER, TOGETHER * SHORT
_OF_LANES = np.uintp(2**64 - LANES)


def runs_of(parameters: Function, element: Function) -> Function:
    """The loop that goes run after run, in the order of memory."""

    def runs(
        begin: Any, end: Any, look: Any, block: Any, channels: Any, inner: Any, count: Any,
        g: Any, x: Any, scale: Any, zero_point: Any, lo: Any, hi: Any, factor: Any, y: Any,
        sums: Any, grad_scale: Any, grad_zero_point: Any,
    ) -> Any:  # fmt: skip
        """Tasks (block of channels, tile)."""
        if not usual(look, scale, zero_point, -np.inf, np.inf):
            return False
        constants = lo, hi, factor
        kind = parameters(x, scale[0], zero_point[0], constants, y)
        columns = table.empty(kind)
        lanes = local(_BLOCK_OF_LANES, 0.0)
        terms, rooms = (local(STRIP, factor), local(STRIP, factor)), rooms_for(STRIP, (g, x))
        made = local(CHUNK, item(y))
        tiles = sums.shape[2]
        for task in range(begin, end):
            c, tile = task // tiles * block, task % tiles
            width = min(block, channels - c)
            table.fill_in_order(columns, 0, c, width, parameters, x, scale, zero_point,
                                constants, y)  # fmt: skip
            clear(lanes, 0, width * 2 * LANES)
            e = tile * TILE
            stop = min(count, e + TILE)
            row = e // inner
            i = e - row * inner
            while e < stop:
                m = min(inner - i, stop - e)
                if m >= CHUNK and e % LANES == 0:
                    m -= m % CHUNK
                    for q in range(width):
                        p = table.take(columns, np.uintp(q), kind)
                        first = (row * channels + c + q) * inner + i
                        for start in range(first, first + m, CHUNK):
                            base = np.uintp(start)
                            both, at = brought((g, x), base, np.uintp(CHUNK), rooms)
                            for k in range(np.uintp(CHUNK)):
                                u, v = each(both, at + k)
                                inside, slope, shift = element(u, v, p, constants)
                                made[k] = masked(u, inside)
                                terms[0][k], terms[1][k] = slope, shift
                            for k in range(np.uintp(CHUNK)):
                                y[base + k] = made[k]
                            add_terms(lanes, q * 2 * LANES, terms, 0, 0, CHUNK)
                else:
                    m = min(m, STRIP)
                    some = STRIP // m  # runs whose terms wait together
                    for q in range(0, width, some):
                        for r in range(min(some, width - q)):
                            p = table.take(columns, np.uintp(q + r), kind)
                            base = np.uintp((row * channels + c + q + r) * inner + i)
                            term = np.uintp(r * m)
                            both, at = brought((g, x), base, np.uintp(m), rooms)
                            for k in range(np.uintp(m)):
                                u, v = each(both, at + k)
                                inside, slope, shift = element(u, v, p, constants)
                                store(y, base + k, masked(u, inside))
                                terms[0][term + k], terms[1][term + k] = slope, shift
                        for r in range(min(some, width - q)):
                            add_terms(lanes, (q + r) * 2 * LANES, terms, r * m, e % LANES, m)
                e += m
                i += m
                if i == inner:
                    row += 1
                    i = 0
            for q in range(width):
                found = folded(lanes, q * 2 * LANES, terms)
                _give(found, c + q, tile, sums, grad_scale, grad_zero_point)
        return True

    return runs


def beside_of(parameters: Function, element: Function) -> Function:
    """The loop of channels that lie side by side, all at once: row after row."""

    def beside(
        begin: Any, end: Any, look: Any, block: Any, channels: Any, inner: Any, count: Any,
        g: Any, x: Any, scale: Any, zero_point: Any, lo: Any, hi: Any, factor: Any, y: Any,
        sums: Any, grad_scale: Any, grad_zero_point: Any,
    ) -> Any:  # fmt: skip
        """Tasks (outer, tile), where `inner` divides LANES.

        So a term's place in LANES // inner rows is its lane of its channel. Strips and lanes
        begin where lines of the cache do: the terms and lanes before that come last.
        """
        if not usual(look, scale, zero_point, -np.inf, np.inf):
            return False
        constants = lo, hi, factor
        kind = parameters(x, scale[0], zero_point[0], constants, y)
        columns = table.empty(kind)
        lanes = local(_BLOCK_OF_LANES, 0.0)
        terms = local(_ROW_OF_TERMS, factor), local(_ROW_OF_TERMS, factor)
        period, run = LANES * channels, channels * inner
        while run < STRIP:
            run *= 2
        apart, tiles = SPARE + period, sums.shape[2]
        for task in range(begin, end):
            c, tile = task // tiles * channels, task % tiles
            table.fill(columns, 0, run + SPARE, parameters, x, scale, zero_point,
                       c, channels, inner, constants, y)  # fmt: skip
            clear(lanes, 0, 2 * apart)
            at = c * count + tile * TILE * channels
            stop = c * count + min(count, (tile + 1) * TILE) * channels
            head = min(to_line(y, at), stop - at)
            m, place = (head, apart - head) if head else (min(run, stop - at), SPARE)
            first = at + head
            while at < stop:
                base = np.uintp(at)
                for k in range(np.uintp(m)):
                    v, p = g[base + k], table.take(columns, k, kind)
                    inside, slope, shift = element(v, x[base + k], p, constants)
                    store(y, base + k, masked(v, inside))
                    terms[0][k], terms[1][k] = slope, shift
                for k in range(np.uintp(LANES)):  # a zero changes no sum
                    terms[0][np.uintp(m) + k] = terms[1][np.uintp(m) + k] = 0
                n = (m + LANES - 1) // LANES * LANES
                add_columns(lanes, place, apart, min(n, period), terms, n)
                at += m
                place = place + m if place + m < apart else SPARE
                m = min(run, stop - at)
                if at == first:
                    for k in range(np.uintp(run)):
                        table.put(columns, k, table.take(columns, k + np.uintp(head), kind))
            for s in range(2):
                start = s * apart + SPARE - head
                for k in range(start, start + head):
                    lanes[k] = lanes[k + period]
                _fold_rows(lanes, start, LANES // inner, channels * inner)
                _fold_within(lanes, start, channels, inner)
            for k in range(channels):
                at = SPARE - head + k * inner
                found = lanes[at], lanes[at + apart]
                _give(found, c + k, tile, sums, grad_scale, grad_zero_point)
        return True

    return beside


def parts_of(parameters: Function, element: Function) -> Function:
    """The same of more channels, a block at a time: the rows of one lane after those of another."""

    def parts(
        begin: Any, end: Any, look: Any, block: Any, channels: Any, inner: Any, count: Any,
        g: Any, x: Any, scale: Any, zero_point: Any, lo: Any, hi: Any, factor: Any, y: Any,
        sums: Any, grad_scale: Any, grad_zero_point: Any,
    ) -> Any:  # fmt: skip
        """Tasks (outer, block of channels, tile).

        Where lanes of whole rows have no room, those of `turn` rows are done one after another. As
        lane i is folded with lane i + h, they come in the order of their numbers with the digits
        reversed: then what was folded waits in log2(turn) + 1 places.
        """
        if not usual(look, scale, zero_point, -np.inf, np.inf):
            return False
        constants = lo, hi, factor
        kind = parameters(x, scale[0], zero_point[0], constants, y)
        columns = table.empty(kind)
        lanes = from_line(_ROWS_OF_LANES, sums)
        terms = local(_PARTS_OF_TERMS, factor), local(_PARTS_OF_TERMS, factor)
        tiles, turn, blocks = sums.shape[2], LANES // inner, (channels + block - 1) // block
        for task in range(begin, end):
            some, tile = task // tiles, task % tiles
            lowest, c = some // blocks * channels, some % blocks * block
            width = min(block, channels - c)
            line, origin = width * inner, lowest * count + c * inner
            table.fill(columns, c * inner, line, parameters, x, scale, zero_point,
                       lowest, channels, inner, constants, y)  # fmt: skip
            apart = (line + LANES - 1) // LANES * LANES
            top, stop = tile * TILE // inner, min(count, (tile + 1) * TILE) // inner
            together = turn * apart <= _ROWS_OF_A_SUM
            band = turn * TURNS if together else stop - top
            for low in range(top, stop, band):
                for turned in range(turn):
                    lane, at = turned, turned * apart
                    if not together:
                        lane, at = _in_order_of_folding(turned, turn, apart)
                    if low == top:
                        clear(lanes, at, apart)
                        clear(lanes, at + _ROWS_OF_A_SUM, apart)
                    for first in range(low + lane, min(stop, low + band), turn * TURNS):
                        last = min(stop, first + turn * TURNS)
                        for part in range(0, line, PART):
                            m, length = 0, min(PART, line - part)
                            n = (length + LANES - 1) // LANES * LANES
                            for row in range(first, last, turn):
                                base = np.uintp(origin + row * channels * inner + part)
                                to, column = np.uintp(m), np.uintp(part)
                                for k in range(np.uintp(length)):
                                    v, p = g[base + k], table.take(columns, column + k, kind)
                                    inside, slope, shift = element(v, x[base + k], p, constants)
                                    store(y, base + k, masked(v, inside))
                                    terms[0][to + k], terms[1][to + k] = slope, shift
                                to += np.uintp(length)
                                for k in range(np.uintp(LANES)):  # a zero changes no sum
                                    terms[0][to + k] = terms[1][to + k] = 0
                                m += n
                            add_columns(lanes, at + part, _ROWS_OF_A_SUM, n, terms, m)
                    if not together:
                        _fold_waiting(lanes, at, turned, apart)
            for start in (0, _ROWS_OF_A_SUM):
                if together:
                    _fold_rows(lanes, start, turn, apart)
                _fold_within(lanes, start, width, inner)
            for k in range(width):
                found = lanes[k * inner], lanes[_ROWS_OF_A_SUM + k * inner]
                _give(found, lowest + c + k, tile, sums, grad_scale, grad_zero_point)
        return True

    return parts


def short_of(parameters: Function, element: Function) -> Function:
    """The loop of short runs that are channels of their own, summed together."""

    def short(
        begin: Any, end: Any, look: Any, block: Any, channels: Any, inner: Any, count: Any,
        g: Any, x: Any, scale: Any, zero_point: Any, lo: Any, hi: Any, factor: Any, y: Any,
        sums: Any, grad_scale: Any, grad_zero_point: Any,
    ) -> Any:  # fmt: skip
        """Tasks (TOGETHER channels) of one run each, of some LANES, whose terms all wait."""
        if not usual(look, scale, zero_point, -np.inf, np.inf):
            return False
        constants = lo, hi, factor
        kind = parameters(x, scale[0], zero_point[0], constants, y)
        columns = table.empty(kind)
        found = local(_SUMS_TOGETHER, 0.0)
        terms = local(_TERMS_TOGETHER, factor), local(_TERMS_TOGETHER, factor)
        length = np.uintp(inner) & _OF_LANES  # so the compiler knows
        for task in range(begin, end):
            c, row = task * TOGETHER, (task - begin) * TOGETHER % BLOCK
            if row == 0:
                table.fill_in_order(columns, 0, c, min(BLOCK, channels - c), parameters, x, scale,
                                    zero_point, constants, y)  # fmt: skip
            width = min(TOGETHER, channels - c)
            for r in range(np.uintp(width)):
                p = table.take(columns, np.uintp(row) + r, kind)
                base, term = (np.uintp(c) + r) * length, r * length
                for k in range(length):
                    v = g[base + k]
                    inside, slope, shift = element(v, x[base + k], p, constants)
                    store(y, base + k, masked(v, inside))
                    terms[0][term + k], terms[1][term + k] = slope, shift
            sums_together(found, terms, inner)
            for r in range(width):
                both = found[r], found[TOGETHER + r]
                _give(both, c + r, 0, sums, grad_scale, grad_zero_point)
        return True

    return short


def apart_of(run: Function, together: int = 0) -> Function:
    """The loop `run` of data that are not flat: called piece by piece.

    It is that of `runs_of`, or that of short runs, of which so many are summed `together`.
    """

    def apart(
        begin: Any, end: Any, views: Any, some: Any, length: Any, channels: Any, count: Any,
        g: Any, x: Any, scale: Any, zero_point: Any, lo: Any, hi: Any, factor: Any,
        y: Any, sums: Any, grad_scale: Any, grad_zero_point: Any,
    ) -> None:  # fmt: skip
        """Tasks (some channels, some tiles)."""
        made = room((g, x, y), some * length)
        g_room, x_room, y_room = lend(made)
        parts = (count + length - 1) // length
        for task in range(begin, end):
            c, e = task // parts * some, task % parts * length
            rows, m = min(some, channels - c), min(length, count - e)
            first, n, stop = c * count + e * rows, rows * m, c + rows
            w = placed(y, views, 2, first, n, y_room)
            u, v = taken((g, x), views, 0, first, n, (g_room, x_room), w)
            block = min(BLOCK, rows, max(1, GRAIN // m)) if m < TILE else 1
            if together:
                block = together
            tiles = (m + TILE - 1) // TILE
            run(0, (rows + block - 1) // block * tiles, 0, block, rows, m, m, u, v,
                scale[c:stop], zero_point[c:stop], lo, hi, factor, w,
                sums[:, c:stop, e // TILE : e // TILE + tiles],
                grad_scale[c:stop], grad_zero_point[c:stop])  # fmt: skip
            given(y, views, 2, first, n, y_room)
        keep(made)

    return apart


@called
def clear(lanes: Any, at: Any, n: Any) -> None:
    """A loop, as slices of arrays take the compiler seconds."""
    first = np.uintp(at)
    for k in range(np.uintp(n)):
        lanes[first + k] = 0


@called
def _in_order_of_folding(turned: Any, turn: Any, apart: Any) -> Any:
    """The lane that is the next one, and its place: behind what waits, one for each digit set."""
    lane, at = 0, 0
    while turn > 1:
        turn //= 2
        lane += turned % 2 * turn
        at += turned % 2 * apart
        turned //= 2
    return lane, at


@called
def _fold_waiting(lanes: Any, at: Any, turned: Any, apart: Any) -> None:
    """Add the lane at `at` to what waits before it, and so on, as many times as were two."""
    while turned % 2:
        at, turned = at - apart, turned // 2
        for start in (at, at + _ROWS_OF_A_SUM):
            first, second = np.uintp(start), np.uintp(start + apart)
            for k in range(np.uintp(apart)):
                lanes[first + k] += lanes[second + k]


@called
def _fold_rows(lanes: Any, at: Any, rows: Any, apart: Any) -> None:
    """As `folded`, of rows of lanes: row i takes row i + h."""
    first, h = np.uintp(at), rows // 2 * apart
    while h >= apart:
        half = np.uintp(h)
        for k in range(half):
            lanes[first + k] += lanes[first + half + k]
        h //= 2


@called
def _fold_within(lanes: Any, at: Any, width: Any, inner: Any) -> None:
    """The same of `inner` lanes of each channel, side by side."""
    h = inner // 2
    while h:
        for k in range(0, width * inner, inner):
            for i in range(k, k + h):
                lanes[at + i] += lanes[at + i + h]
        h //= 2


@called
def _give(found: Any, c: Any, tile: Any, sums: Any, grad_scale: Any, grad_zero_point: Any) -> None:
    """Write what was found for a channel: to the gradients, if there is room, or to its tile."""
    if grad_scale.size:
        store(grad_scale, c, found[0])
        store(grad_zero_point, c, found[1])
    else:
        at_c, at_tile = np.uintp(c), np.uintp(tile)
        sums[0, at_c, at_tile], sums[1, at_c, at_tile] = found
