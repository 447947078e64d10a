"""The loops of elementwise kernels where runs are short: elements and channels side by side.

So channels-last images and the last axis of a linear layer are vectorised too. As in `segments`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from npquant.cpu import table, together
from npquant.cpu.borrowed import width
from npquant.cpu.checks import usual
from npquant.cpu.every_second import brought, rooms_for
from npquant.cpu.fetching import far, fetch, fetch_to_second, to_line
from npquant.cpu.lines import AHEAD, FETCHED, FETCHED_FAR, LINE, LINES, LONG
from npquant.cpu.lowered import called
from npquant.cpu.past import waiting_for
from npquant.cpu.segments import (
    end_past,
    fetched_past,
    next_past,
    waits_at,
    write_rest,
    written_past,
)
from npquant.cpu.target import Function
from npquant.primitives import each, store

#: A shorter period is repeated up to it.
LEAST_PERIOD = 1024
#: Where a row has more than NEAR elements, so many are done together, so that what belongs to
#: them stays in the first cache; and of AT_ONCE rows, so that memory is read in order nevertheless.
#: Of an array that is `far` whole rows are: to read it in order matters more. A table takes much of
#: the first cache, and the processor brings data too late: of any array they are fetched, those of
#: the next row where parts of rows are done; and to the second cache where the table is there.
NEAR, AT_ONCE = 1024, 64


def periods_of(parameters: Function, element: Function) -> Function:
    """The loop of channels that are repeated `repeats` times; then come as many others."""

    def periods(
        begin: Any, end: Any, look: Any, least: Any, most: Any, first: Any, channels: Any,
        inner: Any, repeats: Any, x: Any, scale: Any, zero_point: Any, lo: Any, hi: Any,
        nan: Any, y: Any, mask: Any,
    ) -> Any:  # fmt: skip
        """Items (element)."""
        if not usual(look, scale, zero_point, least, most):
            return False
        constants, rooms, is_far = (lo, hi, nan), rooms_for(LONG, x), far(x)
        kind = parameters(x, scale[0], zero_point[0], constants, y)
        room = table.empty(kind)
        span = channels * inner * repeats
        period = _repeated(channels * inner, span)
        while begin < end:
            lowest, last, start, low, high = _turn(
                begin, end, first, channels, channels * inner, span, period
            )
            once = last - start <= period == channels * inner
            some = NEAR if once else table.ROWS
            for part in range(low, high, some):
                rows = min(some, high - part)
                near, head = rows if is_far else min(rows, NEAR), 0
                ahead = period if rows > near else AHEAD
                if rows > near and period % LINE == 0:  # all rows lie alike, of any dtype
                    # Where the data come to a line of the cache, so does the table.
                    head = to_line(x, start + part)
                columns = room[-head % LINE :]
                table.fill(columns, part, rows, parameters, x, scale, zero_point,
                           lowest, channels, inner, constants, y)  # fmt: skip
                for top in range(start + part, last, AT_ONCE * period):
                    row, after = 0, head or near
                    while row < rows:
                        stop = min(after, rows) - row
                        for i in range(top + row, min(top + AT_ONCE * period, last), period):
                            above, below = max(begin - i, 0), min(last - i, stop)
                            while above < below:
                                m = min(below - above, LONG)
                                if width(x) > width(y):
                                    m = min(m, FETCHED_FAR // 2 if is_far else FETCHED)
                                    if is_far and rows > NEAR:
                                        fetch_to_second(x, i + above + ahead, m)
                                    else:
                                        fetch(x, i + above + ahead, m)
                                base, at_row = np.uintp(i + above), np.uintp(row + above)
                                u, at_u = brought(x, base, np.uintp(m), rooms)
                                value, _ = element(each(u, at_u), kind, constants, y)
                                held = together.room(LONG, None, value, y)
                                for k in range(np.uintp(m)):
                                    p = table.take(columns, at_row + k, kind)
                                    value, inside = element(each(u, at_u + k), p, constants, y)
                                    together.hold(held, k, y, base + k, value)
                                    store(mask, base + k, inside)
                                together.release(held, m, y, base)
                                above += m
                        row, after = after, after + near
            begin = last
        return True

    return periods


def periods_past_of(parameters: Function, element: Function) -> Function:
    """The same, past the caches."""

    def periods_past(
        begin: Any, end: Any, look: Any, least: Any, most: Any, first: Any, channels: Any,
        inner: Any, repeats: Any, x: Any, scale: Any, zero_point: Any, lo: Any, hi: Any,
        nan: Any, y: Any, mask: Any,
    ) -> Any:  # fmt: skip
        """Items (element)."""
        if not usual(look, scale, zero_point, least, most):
            return False
        constants, rooms = (lo, hi, nan), rooms_for(LONG, x)
        waiting, held = waiting_for(y), 0
        kind = parameters(x, scale[0], zero_point[0], constants, y)
        columns = table.empty(kind)
        span = channels * inner * repeats
        period = _repeated(channels * inner, span)
        while begin < end:
            lowest, last, start, low, high = _turn(
                begin, end, first, channels, channels * inner, span, period
            )
            again = last - start > period
            once = not again and period == channels * inner
            some = NEAR if once else table.ROWS
            for part in range(low, high, some):
                rows = min(some, high - part)
                table.fill(columns, part, rows, parameters, x, scale, zero_point,
                           lowest, channels, inner, constants, y)  # fmt: skip
                for i in range(start + part, last, period):
                    at, stop = max(begin, i), min(last, i + rows)
                    while at < stop:
                        m = next_past(x, at, y, at, stop - at, LINES)
                        if rows > NEAR and not fetched_past(x, y):
                            fetch_to_second(x, at + AHEAD, m)
                        at_row, to = np.uintp(at - i), waits_at(y, at)
                        u, at_u = brought(x, np.uintp(at), np.uintp(m), rooms)
                        for k in range(np.uintp(m)):
                            p = table.take(columns, at_row + k, kind)
                            value, _ = element(each(u, at_u + k), p, constants, y)
                            store(waiting, to + k, value)
                        at += m
                        held = written_past(y, at, waiting, held + m)
                    if again and rows < period:  # what comes next lies elsewhere
                        write_rest(y, at, waiting, held)
                        held = 0
            begin = last
        end_past(y, end, waiting, held)
        return True

    return periods_past


@called
def _repeated(period: Any, span: Any) -> Any:
    """A multiple of `period` that is no shorter than LEAST_PERIOD, but much shorter than `span`."""
    least = min(LEAST_PERIOD, span // 8)
    return (least + period - 1) // period * period if period < least else period


@called
def _turn(
    begin: Any, end: Any, first: Any, channels: Any, run: Any, span: Any, period: Any
) -> Any:  # fmt: skip
    """The first channel of those `begin` is among, where these stop, where its period begins.

    And which elements of a period are there: of less than the `run` of all channels only those, or
    tables would be made of every channel for each piece.
    """
    skip = (first + begin) % span
    lowest = (first + begin) // span * channels
    last = min(end, begin + span - skip)
    if last - begin >= run:
        return lowest, last, begin - skip % period, 0, period
    start = begin - skip % run
    last = min(last, start + run)
    return lowest, last, start, begin - start, last - start
