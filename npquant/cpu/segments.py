"""The loops of elementwise kernels where runs are long: segments that are made of a formula.

The data is flat, in C order of (outer, channels, inner), with one scale and zero point a channel.
What belongs to a channel is made once, and its run of `inner` elements follows (`runs`), or strips
of it go through one step after another (`strips`). Of groups and the like, where `inner` is some
multiple of 16, what is asked before a vectorised loop is asked once for all runs (`blocks`). Each
tells whether the first `look` qparams are `usual`; only then anything is written.

A function here takes the formulas of an `Elementwise`, and gives a segment for a `Kernel`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from npquant.cpu import strided, table, together
from npquant.cpu.borrowed import keep, width
from npquant.cpu.checks import usual
from npquant.cpu.codes import codes_of
from npquant.cpu.every_second import brought, rooms_for
from npquant.cpu.fetching import beyond_second, fetch, to_line
from npquant.cpu.lines import (
    AHEAD,
    FETCHED_FAR,
    FETCHED_PAST,
    FEW_LINES,
    LINE,
    LINES_OF_STEPS,
    LONG,
    PAST_AHEAD,
    WAIT,
)
from npquant.cpu.lowered import called, inlined
from npquant.cpu.pairs import pairs_of
from npquant.cpu.past import settle, waiting_for, write_past
from npquant.cpu.steps import STRIP, STRIP_PAST, in_steps
from npquant.cpu.target import Function
from npquant.primitives import at, each, store

#: Runs up to LONG of a multiple of BLOCK elements have a loop without a rest; longer ones begin at
#: a line of the cache, and are done LONG elements at a time, which takes a little less time where
#: no cache holds the array.
BLOCK = 16
#: Bits of the length of such runs: all there may be.
OF_BLOCKS = 2**64 - BLOCK
#: Runs whose parameters are made together, in a vectorised loop.
RUNS = 256


def runs_of(parameters: Function, element: Function, past: bool) -> Function:
    """The loop of long runs, and whether it writes `past` the caches."""
    stretch_past, pairs, codes = stretch_of(element), pairs_of(element), codes_of(element)

    def runs(
        begin: Any, end: Any, look: Any, least: Any, most: Any, first: Any, channels: Any,
        inner: Any, x: Any, scale: Any, zero_point: Any, lo: Any, hi: Any, nan: Any, y: Any,
        mask: Any,
    ) -> Any:  # fmt: skip
        """Items (element)."""
        if not usual(look, scale, zero_point, least, most):
            return False
        if begin == end:  # of nothing there may be no channels to divide by
            return True
        constants, rooms = (lo, hi, nan), rooms_for(LONG, x)
        waiting, held = waiting_for(y), 0
        fetched = width(x) > width(y) and beyond_second(x)
        row = (first + begin) // inner
        skip = (first + begin) - row * inner
        c = row % channels
        while begin < end:
            stop = min(begin + inner - skip, end)
            p = parameters(x, at(scale, c), at(zero_point, c), constants, y)
            if not past and codes(x, np.uintp(begin), stop - begin, p, constants, y,
                                  np.uintp(begin), mask, fetched):  # fmt: skip
                begin = stop
            while begin < stop:
                m = stop - begin
                if past:
                    m = next_past(x, begin, y, begin, m, FEW_LINES)
                elif m > LONG:
                    m = to_line(x, begin) or LONG
                if fetched:
                    m = min(m, FETCHED_FAR)
                    fetch(x, begin + AHEAD, m)
                # An unsigned index is not checked for wrap-around: the loop is vectorised.
                base = np.uintp(begin)
                u, at_u = brought(x, base, np.uintp(m), rooms)
                if past:
                    held = stretch_past(u, at_u, begin, m, p, constants, y, waiting, held)
                else:
                    value, _ = element(each(u, at_u), p, constants, y)  # for its type alone
                    room = together.room(LONG, x, value, y)
                    if not pairs(x, base, m, p, constants, y, mask):
                        for k in range(np.uintp(m)):
                            value, inside = element(each(u, at_u + k), p, constants, y)
                            together.hold(room, k, y, base + k, value)
                            store(mask, base + k, inside)
                    together.release(room, m, y, base)
                begin += m
            skip = 0
            c = c + 1 if c + 1 < channels else 0
        if past:
            end_past(y, end, waiting, held)
        return True

    return runs


def strips_of(parameters: Function, steps: tuple[Function, ...], past: bool) -> Function:
    """As `runs_of`, in steps."""
    strip = in_steps(*steps, most=STRIP_PAST if past else STRIP)

    def strips(
        begin: Any, end: Any, look: Any, least: Any, most: Any, first: Any, channels: Any,
        inner: Any, x: Any, scale: Any, zero_point: Any, lo: Any, hi: Any, nan: Any, y: Any,
        mask: Any,
    ) -> Any:  # fmt: skip
        """Items (element)."""
        if not usual(look, scale, zero_point, least, most):
            return False
        if begin == end:
            return True
        constants, rooms = (lo, hi, nan), rooms_for(STRIP, x)
        waiting, held = waiting_for(y), 0
        row = (first + begin) // inner
        c, skip = row % channels, (first + begin) - row * inner
        while begin < end:
            m = min(inner - skip, end - begin)
            if past:
                m = next_past(x, begin, y, begin, min(m, STRIP_PAST), LINES_OF_STEPS)
            elif m > STRIP:
                m = to_line(x, begin) or STRIP
            base = np.uintp(begin)
            p = parameters(x, at(scale, c), at(zero_point, c), constants, y)
            u, at_u = brought(x, base, np.uintp(m), rooms)
            if past:
                strip(u, at_u, m, (), (p, constants), lo, waiting, waits_at(y, begin))
                held = written_past(y, begin + m, waiting, held + m)
            else:
                strip(u, at_u, m, (), (p, constants), lo, y, base)
            begin += m
            skip += m
            if skip == inner:
                skip = 0
                c = c + 1 if c + 1 < channels else 0
        if past:
            end_past(y, end, waiting, held)
        return True

    return strips


def blocks_of(parameters: Function, element: Function, bits: int, past: bool = False) -> Function:
    """The loop of whole runs, whose length has no other `bits`, which the compiler sees.

    It writes `past` the caches where asked to, if the length divides what waits.
    """
    stretch_past, pairs, codes = stretch_of(element), pairs_of(element), codes_of(element)

    def blocks(
        begin: Any, end: Any, look: Any, least: Any, most: Any, first: Any, channels: Any,
        inner: Any, x: Any, scale: Any, zero_point: Any, lo: Any, hi: Any, nan: Any, y: Any,
        mask: Any,
    ) -> Any:  # fmt: skip
        """Items (row)."""
        if not usual(look, scale, zero_point, least, most):
            return False
        constants, rooms = (lo, hi, nan), rooms_for(LONG, x)
        fetched = width(x) > width(y) and beyond_second(x)
        waiting, held = waiting_for(y), 0
        kind = parameters(x, scale[0], zero_point[0], constants, y)
        columns = table.empty(kind)
        length = np.uintp(inner) & np.uintp(bits)
        c = (first // inner + begin) % channels
        # Where channels come again, what was made of all of them is kept.
        again, made = channels < end - begin and channels <= table.ROWS, False
        while begin < end:
            rows = min(end - begin, channels - c, channels if again else RUNS)
            if not made:
                lowest, some = (0, channels) if again else (c, rows)
                table.fill_in_order(columns, 0, lowest, some, parameters, x, scale, zero_point,
                                    constants, y)  # fmt: skip
                made = again
            at_row, to = np.uintp(c if again else 0), np.uintp(0)
            for r in range(np.uintp(rows)):
                p = table.take(columns, at_row + r, kind)
                base = (np.uintp(begin) + r) * length
                if fetched:
                    fetch(x, base + np.uintp(AHEAD), length)
                u, at_u = brought(x, base, length, rooms)
                if past:
                    fetch_past(x, y, base, length)
                    held = stretch_past(u, at_u, base, length, p, constants, y, waiting, held)
                    continue
                if codes(u, at_u, length, p, constants, y, base, mask, False):
                    continue
                value, _ = element(each(u, at_u), p, constants, y)  # for its type alone
                room = together.room(LONG, x, value, y)
                if not pairs(x, base, length, p, constants, y, mask):
                    for k in range(length):
                        value, inside = element(each(u, at_u + k), p, constants, y)
                        together.hold(room, to + k, y, base + k, value)
                        store(mask, base + k, inside)
                to += length
                if to + length > LONG or r + np.uintp(1) == rows:
                    together.release(room, to, y, base + length - to)
                    to = np.uintp(0)
            begin += rows
            c = c + rows if c + rows < channels else 0
        if past:
            end_past(y, end * inner, waiting, held)
        return True

    return blocks


def apart_of(loop: Function, of_rows: bool = False) -> Function:
    """The loop `loop`, of rows or of elements, of arrays that are not flat: piece by piece."""

    def apart(
        begin: Any, end: Any, views: Any, cut: Any, x: Any,
        scale: Any, zero_point: Any, lo: Any, hi: Any, nan: Any, y: Any, mask: Any,
    ) -> None:  # fmt: skip
        """Items (element), or (row)."""
        length = cut[1] if of_rows else 1
        some = strided.piece(views) // length
        size = some * length
        long = strided.long_row(x, mask)
        made = strided.room(y, size), strided.room(mask, size), strided.room(x, size)
        y_room, mask_room, x_room = strided.lend(made)
        while begin < end:
            first, most = begin * length, min(some, end - begin) * length
            n = max(1, strided.up_to_row(views, first, most, long) // length)
            m = n * length
            v = strided.placed(y, views, 0, first, m, y_room)
            w = strided.placed(mask, views, 1, first, m, mask_room)
            u = strided.taken(x, views, 2, first, m, x_room, v)
            loop(0, n, 0, 0.0, 0.0, first, *cut, u, scale, zero_point, lo, hi, nan, v, w)
            strided.given(y, views, 0, first, m, y_room)
            strided.given(mask, views, 1, first, m, mask_room)
            begin += n
        keep(made)

    return apart


def runs_apart_past_of(parameters: Function, element: Function) -> Function:
    """The same of elements where results are flat, which are written past the caches.

    What waits is kept from piece to piece: a line that one ended in would be read before the next
    one continues it, and all that is written would wait for that.
    """
    stretch_past = stretch_of(element)

    def runs_apart_past(
        begin: Any, end: Any, views: Any, cut: Any, x: Any,
        scale: Any, zero_point: Any, lo: Any, hi: Any, nan: Any, y: Any, mask: Any,
    ) -> None:  # fmt: skip
        """Items (element)."""
        size, constants, (channels, inner) = strided.piece(views), (lo, hi, nan), cut
        made = strided.room(x, size)
        room = strided.lend(made)
        waiting, held = waiting_for(y), 0
        row = begin // inner
        c, skip = row % channels, begin - row * inner
        while begin < end:
            n = strided.up_to_row(views, begin, min(size, end - begin), strided.LONGER_ROW)
            u, done = strided.taken(x, views, 2, begin, n, room, None), 0
            while done < n:
                m = min(n - done, inner - skip)
                if n == size:  # of a row that goes on, as a rule
                    m = next_past(u, done, y, begin, m, FEW_LINES)
                else:
                    m = min(m, up_to_past(y, begin))
                p = parameters(x, at(scale, c), at(zero_point, c), constants, y)
                held = stretch_past(u, np.uintp(done), begin, m, p, constants, y, waiting, held)
                begin, done, skip = begin + m, done + m, skip + m
                if skip == inner:
                    skip = 0
                    c = c + 1 if c + 1 < channels else 0
        end_past(y, end, waiting, held)
        keep(made)

    return runs_apart_past


@called
def next_past(x: Any, at: Any, y: Any, begin: Any, m: Any, lines: Any) -> Any:
    """How many of the `m` elements of `y` from `begin` on are made before some are written.

    Where it pays, that is some `lines` of `x`, from `at` on, and as many more are fetched.
    """
    step = WAIT // width(y)
    if fetched_past(x, y):
        step = lines * LINE // width(x)
    m = min(m, step - (begin & (step - 1)))
    fetch_past(x, y, at, m)
    return m


@called
def up_to_past(y: Any, begin: Any) -> Any:
    """How many elements of `y` from `begin` on are made until all that wait are written."""
    step = WAIT // width(y)
    return step - (begin & (step - 1))


@called
def fetched_past(x: Any, y: Any) -> Any:
    """Whether to fetch `x`, which the compiler knows: codes that are widened are read slowly."""
    return FETCHED_PAST and width(x) >= width(y)


@called
def fetch_past(x: Any, y: Any, begin: Any, m: Any) -> None:
    """Fetch what comes PAST_AHEAD of the `m` elements from `begin` on, where it pays."""
    if fetched_past(x, y):
        fetch(x, np.intp(begin) + PAST_AHEAD // width(x), m)


@called
def waits_at(y: Any, i: Any) -> Any:
    """Where what is to be element `i` of `y` waits."""
    return np.uintp(LINE // width(y) + (i & (WAIT // width(y) - 1)))


@called
def written_past(y: Any, stop: Any, waiting: Any, held: Any) -> Any:
    """How many values still wait of the `held` before `stop`: most are written if they are WAIT."""
    return held if stop & (WAIT // width(y) - 1) else write_past(y, stop, waiting, held)


@called
def write_rest(y: Any, stop: Any, waiting: Any, held: Any) -> None:
    """Write what still waits."""
    base, first = np.uintp(stop - held), waits_at(y, stop) - np.uintp(held)
    for k in range(np.uintp(held)):
        y[base + k] = waiting[first + k]


@called
def end_past(y: Any, end: Any, waiting: Any, held: Any) -> None:
    """The same; then others may be told of all that was written."""
    write_rest(y, end, waiting, held)
    settle()


def stretch_of(element: Function) -> Function:
    """What makes `m` elements of those of `x` from `at` on, `up_to_past` at most.

    It tells how many of these wait then, of which `held` did.
    """

    def stretch(
        x: Any, at: Any, begin: Any, m: Any, p: Any, constants: Any, y: Any, waiting: Any, held: Any
    ) -> Any:
        to = waits_at(y, begin)
        for k in range(np.uintp(m)):
            value, _ = element(each(x, at + k), p, constants, y)
            store(waiting, to + k, value)
        return written_past(y, begin + m, waiting, held + m)

    return inlined(stretch)  # type: ignore[no-any-return]
