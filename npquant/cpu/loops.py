"""The loops of every elementwise kernel: a formula goes in, a kernel comes out.

The data is flat, in C order of (outer, channels, inner), with one scale and zero point a channel.
Where `inner` is long, what belongs to a channel is made once and its run of `inner` elements
follows (`runs`); of groups and the like, where it is some multiple of 16, what is asked before a
vectorised loop is asked once for all runs (`blocks`). Where it is short, elements and channels go
side by side (`periods`), so that channels-last images and the last axis of a linear layer are
vectorised too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types

from npquant.cpu import float8, strided, table
from npquant.cpu.checks import usual
from npquant.cpu.lowered import called, inlined
from npquant.cpu.memory import (
    AHEAD,
    FAR,
    FETCHED,
    FETCHED_FAR,
    LINE,
    fetch,
    fetch_to_second,
    local,
    near,
    settle,
    to_line,
    width,
    write_past,
)
from npquant.cpu.steps import STRIP, brought, in_steps
from npquant.cpu.target import GRAIN, PARALLEL_FROM, Either, Kernel, Types, array_type, array_types
from npquant.cpu.walk import PIECE, Piece, contiguous, never, pieces, plain, turned_to_memory
from npquant.dtypes import bool_
from npquant.layout import Granularity
from npquant.primitives import at, each, item, store

Array = np.ndarray[Any, Any]

#: Runs shorter than this are done side by side.
SHORT = table.RUN
#: Runs up to LONG of a multiple of BLOCK elements have a loop without a rest; longer ones begin at
#: a line of the cache, and are done LONG elements at a time, which takes a little less time where
#: no cache holds the array.
BLOCK, LONG = 16, 512
#: Bits of the length of such runs: all there may be, or the one of two short lengths. Of these a
#: compiler that knows it leaves nothing of the loop; groups of 32 take half as long.
_OF_BLOCKS, _LENGTHS = 2**64 - BLOCK, (16, 32)
#: Runs whose parameters are made together, in a vectorised loop.
RUNS = 256
#: So few elements are not worth a table. A shorter period than LEAST_PERIOD is repeated up to it.
FEW, LEAST_PERIOD = 256, 1024
#: Where a row has more than MANY elements, NEAR of them are done together, so that what belongs to
#: them stays in the first cache; and of AT_ONCE rows, so that memory is read in order nevertheless.
#: Of an array that is `FAR` whole rows are: to read it in order matters more. A table takes much of
#: the first cache, and the processor brings data too late: of any array they are fetched, those of
#: the next row where parts of rows are done; and to the second cache where the table is there.
MANY, NEAR, AT_ONCE = 1024, 1024, 64

#: Results of PAST bytes, which no cache keeps, are written past them all where arrays are given for
#: them. They wait on the stack until they are LONG or more, MADE at most.
PAST, MADE = 1 << 25, 2 * LONG

#: How many qparams `runs` looks at, and the bounds of zero points, where all is checked before.
_NO_LOOK = 0, 0.0, 0.0

#: The types of numbers among the qparams and of constants.
NUMBER_TYPES: dict[str, Any] = {
    "int32": types.int32,
    "float32": types.float32,
    "float64": types.float64,
    "wide": types.float64,
}


class Elementwise:
    """x, qparams -> y and perhaps a mask, one element at a time: the kernel is `run`.

    A method is called with less ado than an object.

    Parameters
    ----------
    parameters : callable
        ``parameters(x, scale, zero_point, constants, y) -> p``, once a channel.
    element : callable
        ``element(x, p, constants, y) -> (value, inside)``.
    wide : Elementwise, optional
        The same op for codes that its precision does not hold.
    work : int
        What an element costs, as a `Kernel` has it.
    steps : tuple of callable, optional
        The same as `element`, as of `in_steps`, where each waits for the one before: long runs go
        through them strip by strip. What all share are the parameters and the constants; what is
        between has the type of these.
    """

    def __init__(
        self,
        parameters: Callable[..., Any],
        element: Callable[..., Any],
        wide: Elementwise | None = None,
        work: int = 1,
        steps: tuple[Callable[..., Any], ...] = (),
    ) -> None:
        stretch_past = stretch_of(element)

        def runs_to(past: bool) -> Callable[..., Any]:
            """The loop of long runs, and whether it writes `past` the caches."""

            def runs(
                begin: Any, end: Any, look: Any, least: Any, most: Any, first: Any, channels: Any,
                inner: Any, x: Any, scale: Any, zero_point: Any, lo: Any, hi: Any, nan: Any, y: Any,
                mask: Any,
            ) -> Any:  # fmt: skip
                """Whether the first `look` qparams are `usual`; only then anything is written."""
                if not usual(look, scale, zero_point, least, most):
                    return False
                if begin == end:  # of nothing there may be no channels to divide by
                    return True
                constants = lo, hi, nan
                made, held = local(MADE, item(y)), 0
                far = y.size >= FAR and not past and width(x) > width(y)
                row = (first + begin) // inner
                skip = (first + begin) - row * inner
                c = row % channels
                while begin < end:
                    stop = min(begin + inner - skip, end)
                    p = parameters(x, at(scale, c), at(zero_point, c), constants, y)
                    while begin < stop:
                        m = stop - begin
                        if m > LONG:
                            m = to_line(y if past else x, begin) or LONG
                        if far:
                            m = min(m, FETCHED_FAR)
                            fetch(x, begin + AHEAD, m)
                        # An unsigned index is not checked for wrap-around: the loop is vectorised.
                        base = np.uintp(begin)
                        if past:
                            held = stretch_past(x, begin, m, p, constants, y, made, held)
                        else:
                            value, _ = element(each(x, base), p, constants, y)  # for its type alone
                            room = float8.room(LONG, value)
                            for k in range(np.uintp(m)):
                                value, inside = element(each(x, base + k), p, constants, y)
                                float8.hold(room, k, y, base + k, value)
                                store(mask, base + k, inside)
                            float8.release(room, m, y, base)
                        begin += m
                    skip = 0
                    c = c + 1 if c + 1 < channels else 0
                if past:
                    end_past(y, end, made, held)
                return True

            return runs

        def strips_to(past: bool) -> Callable[..., Any]:
            def strips(
                begin: Any, end: Any, look: Any, least: Any, most: Any, first: Any, channels: Any,
                inner: Any, x: Any, scale: Any, zero_point: Any, lo: Any, hi: Any, nan: Any, y: Any,
                mask: Any,
            ) -> Any:  # fmt: skip
                """As `runs`, in steps."""
                if not usual(look, scale, zero_point, least, most):
                    return False
                if begin == end:
                    return True
                constants, rooms = (lo, hi, nan), near(STRIP, x)
                made, held = local(MADE, item(y)), 0
                row = (first + begin) // inner
                c, skip = row % channels, (first + begin) - row * inner
                while begin < end:
                    m = min(inner - skip, end - begin)
                    if m > STRIP:
                        m = to_line(y if past else x, begin) or STRIP
                    base = np.uintp(begin)
                    p = parameters(x, at(scale, c), at(zero_point, c), constants, y)
                    u, at_u = brought(x, base, m, rooms)
                    if past:
                        strip(u, at_u, m, (), (p, constants), lo, made, np.uintp(held))
                        held += m
                        if held >= LONG:
                            held = write_past(y, begin + m - held, made, held)
                    else:
                        strip(u, at_u, m, (), (p, constants), lo, y, base)
                    begin += m
                    skip += m
                    if skip == inner:
                        skip = 0
                        c = c + 1 if c + 1 < channels else 0
                if past:
                    end_past(y, end, made, held)
                return True

            return strips

        def whole(bits: int) -> Callable[..., Any]:
            """`runs` of whole runs, whose length has no other bits, which the compiler sees."""

            def blocks(
                begin: Any, end: Any, look: Any, least: Any, most: Any, first: Any, channels: Any,
                inner: Any, x: Any, scale: Any, zero_point: Any, lo: Any, hi: Any, nan: Any, y: Any,
                mask: Any,
            ) -> Any:  # fmt: skip
                """Items (row)."""
                if not usual(look, scale, zero_point, least, most):
                    return False
                constants, far = (lo, hi, nan), y.size >= FAR and width(x) > width(y)
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
                        table.fill_in_order(columns, lowest, some, parameters, x, scale, zero_point,
                                            constants, y)  # fmt: skip
                        made = again
                    to = np.uintp(c if again else 0)
                    for r in range(np.uintp(rows)):
                        p = table.take(columns, to + r, kind)
                        base = (np.uintp(begin) + r) * length
                        if far:
                            fetch(x, base + np.uintp(AHEAD), length)
                        for k in range(length):
                            value, inside = element(each(x, base + k), p, constants, y)
                            store(y, base + k, value)
                            store(mask, base + k, inside)
                    begin += rows
                    c = c + rows if c + rows < channels else 0
                return True

            return blocks

        def periods(
            begin: Any, end: Any, look: Any, least: Any, most: Any, first: Any, channels: Any,
            inner: Any, repeats: Any, x: Any, scale: Any, zero_point: Any, lo: Any, hi: Any,
            nan: Any, y: Any, mask: Any,
        ) -> Any:  # fmt: skip
            """As `runs`; the channels are repeated so often, then come as many others."""
            if not usual(look, scale, zero_point, least, most):
                return False
            constants, far = (lo, hi, nan), y.size >= FAR
            kind = parameters(x, scale[0], zero_point[0], constants, y)
            room = table.empty(kind)
            span = channels * inner * repeats
            period = _repeated(channels * inner, span)
            while begin < end:
                lowest, last, start = _turn(begin, end, first, channels, span, period)
                for part in range(0, period, table.ROWS):
                    rows = min(table.ROWS, period - part)
                    if start + part + rows <= begin and start + part + period >= last:
                        continue  # there is less than a period, and none of this
                    near, head = NEAR if rows > MANY and not far else rows, 0
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
                                    m = below - above
                                    if width(x) > width(y):
                                        m = min(m, FETCHED_FAR // 2 if far else FETCHED)
                                        if far and rows > MANY:
                                            fetch_to_second(x, i + above + ahead, m)
                                        else:
                                            fetch(x, i + above + ahead, m)
                                    base, at_row = np.uintp(i + above), np.uintp(row + above)
                                    for k in range(np.uintp(m)):
                                        p = table.take(columns, at_row + k, kind)
                                        value, inside = element(each(x, base + k), p, constants, y)
                                        store(y, base + k, value)
                                        store(mask, base + k, inside)
                                    above += m
                            row, after = after, after + near
                begin = last
            return True

        def periods_past(
            begin: Any, end: Any, look: Any, least: Any, most: Any, first: Any, channels: Any,
            inner: Any, repeats: Any, x: Any, scale: Any, zero_point: Any, lo: Any, hi: Any,
            nan: Any, y: Any, mask: Any,
        ) -> Any:  # fmt: skip
            """As `periods`, past the caches."""
            if not usual(look, scale, zero_point, least, most):
                return False
            constants = lo, hi, nan
            made, held = local(MADE, item(y)), 0
            kind = parameters(x, scale[0], zero_point[0], constants, y)
            columns = table.empty(kind)
            span = channels * inner * repeats
            period = _repeated(channels * inner, span)
            while begin < end:
                lowest, last, start = _turn(begin, end, first, channels, span, period)
                for part in range(0, period, table.ROWS):
                    rows = min(table.ROWS, period - part)
                    table.fill(columns, part, rows, parameters, x, scale, zero_point,
                               lowest, channels, inner, constants, y)  # fmt: skip
                    for i in range(start + part, last, period):
                        at, stop = max(begin, i), min(last, i + rows)
                        while at < stop:
                            m = min(stop - at, LONG)
                            if rows > MANY:
                                fetch_to_second(x, at + AHEAD, m)
                            base, at_row, to = np.uintp(at), np.uintp(at - i), np.uintp(held)
                            for k in range(np.uintp(m)):
                                p = table.take(columns, at_row + k, kind)
                                value, _ = element(each(x, base + k), p, constants, y)
                                store(made, to + k, value)
                            at += m
                            held += m
                            if held >= LONG:
                                held = write_past(y, at - held, made, held)
                        if rows < period:  # what comes next lies elsewhere
                            _write_rest(y, at, made, held)
                            held = 0
                begin = last
            end_past(y, end, made, held)
            return True

        if steps:
            strip, runs_to = in_steps(*steps), strips_to
        runs = runs_to(False)
        # For kernels that do more than this.
        self.rule = run = called(runs)
        self.rule_of_blocks = called(whole(_OF_BLOCKS))
        repeat = called(periods)

        def runs_apart(
            begin: Any, end: Any, views: Any, channels: Any, inner: Any, x: Any,
            scale: Any, zero_point: Any, lo: Any, hi: Any, nan: Any, y: Any, mask: Any,
        ) -> None:  # fmt: skip
            """`runs` of inputs that are not flat."""
            size = strided.piece(views)
            room = strided.room(x, size)
            for first in range(begin, end, size):
                m = min(size, end - first)
                u = strided.taken(x, views, 0, first, m, room)
                v, w = strided.part(y, first, m), strided.part(mask, first, m)
                run(0, m, 0, 0.0, 0.0, first, channels, inner, u, scale, zero_point, lo, hi, nan, v,
                    w)  # fmt: skip

        def periods_apart(
            begin: Any, end: Any, views: Any, channels: Any, inner: Any, repeats: Any, x: Any,
            scale: Any, zero_point: Any, lo: Any, hi: Any, nan: Any, y: Any, mask: Any,
        ) -> None:  # fmt: skip
            """`periods` of inputs that are not flat."""
            size = strided.piece(views)
            room = strided.room(x, size)
            for first in range(begin, end, size):
                m = min(size, end - first)
                u = strided.taken(x, views, 0, first, m, room)
                v, w = strided.part(y, first, m), strided.part(mask, first, m)
                repeat(0, m, 0, 0.0, 0.0, first, channels, inner, repeats, u, scale, zero_point, lo,
                       hi, nan, v, w)  # fmt: skip

        name = f"{parameters.__name__}_{element.__name__}"
        self._wide, self._work = wide, work
        self._runs = Kernel(runs, f"{name}_runs", _looking(_signature), work)
        self._blocks = {
            bits: Kernel(whole(bits), f"{name}_blocks_{bits}", _looking(_signature), work)
            for bits in (_OF_BLOCKS, *_LENGTHS)
        }
        self._periods = Kernel(periods, f"{name}_periods", _looking(_periods_signature), work)
        self._runs_past = Kernel(
            runs_to(True), f"{name}_runs_past", _looking(_signature), work, full_width=bool(steps)
        )
        self._periods_past = Kernel(
            periods_past, f"{name}_periods_past", _looking(_periods_signature), work,
            full_width=False,
        )  # fmt: skip
        self._runs_apart = Kernel(runs_apart, f"{name}_runs_apart", _apart(_signature), work)
        self._periods_apart = Kernel(
            periods_apart, f"{name}_periods_apart", _apart(_periods_signature), work
        )

    def shortcut(
        self, which: Callable[..., bool], name: str, runs: Callable[..., Any],
        blocks: Callable[..., Any] | None = None, past: Callable[..., Any] | None = None,
    ) -> None:  # fmt: skip
        """Let other segments do what ``which(*key)`` says: runs, whole ones, and past the caches.

        Whole runs of a length that has a loop of its own stay what they were.
        """

        def first(segment: Callable[..., Any], of: str, other: Kernel, wide: bool = True) -> Kernel:
            kernel = Kernel(
                segment, f"{name}_{of}", _looking(_signature), self._work, full_width=wide
            )
            return Either(which, kernel, other)

        self._runs = first(runs, "runs", self._runs)
        if blocks is not None:
            self._blocks[_OF_BLOCKS] = first(blocks, "blocks", self._blocks[_OF_BLOCKS])
        if past is not None:
            self._runs_past = first(past, "runs_past", self._runs_past, wide=False)

    def run(
        self,
        granularity: Granularity,
        x: Array,
        scale: Any,
        zero_point: Any,
        constants: tuple[Any, Any, Any],
        precision: tuple[str, str, str],
        y: Array,
        mask: Array | None = None,
        given: bool = False,
    ) -> None:
        """Run over `x`.

        `scale` and `zero_point` are numbers, or arrays of one a channel. `constants` are lo, hi
        and what a NaN becomes. `precision` names the types of a scale and of a zero point that
        are numbers, and of the constants; "wide" of the latter is for codes too large for it. Where
        `y` was `given`, large results are written past the caches.
        """
        n = x.size
        past = given and mask is None and y.nbytes >= PAST and y.itemsize >= x.itemsize
        # A loop that writes to what it reads is not vectorised: it is given a copy of each piece.
        within = x is y and n > strided.PIECE
        if not x.flags.c_contiguous:
            granularity, (x, y, mask) = turned_to_memory(granularity, (x, y, mask))
            if n <= PIECE and y.flags.carray:
                x = contiguous(x)
        if n * self._work < PARALLEL_FROM and x.flags.carray and y.flags.carray and not within:
            # A small array leaves little to decide, and no time for it.
            if type(scale) is float:
                types_, channels, inner = precision, 1, n
            else:
                types_ = scale.dtype, zero_point.dtype, precision[2]
                channels, inner, _ = granularity
            if inner == n or ((inner >= SHORT or n <= FEW) and not self._whole(inner, n)):
                entry = self._runs.serial.get((x.dtype, y.dtype, types_, mask is None))
                if entry is not None:
                    lo, hi, nan = constants
                    entry(0, n, 0, 0.0, 0.0, 0, channels, inner, x, scale, zero_point, lo, hi, nan,
                          y, mask)  # fmt: skip
                    return
        if precision[2] == "wide" and self._wide is not None:
            self._wide.run(granularity, x, scale, zero_point, constants, precision, y, mask, given)
            return
        if plain(x) and plain(y) and (mask is None or plain(mask)):
            channels, inner, _ = granularity
            views = strided.views((x,), never) if within else None
            piece = Piece(channels, inner or n, views=views)
            self._flat(piece, x, scale, zero_point, constants, precision, y, mask, past)
            return
        for piece, (u, v, w), (s, z) in pieces(granularity, (x,), (y, mask), (scale, zero_point)):
            # Where `v` is no longer than a room, it may be one, which is read again.
            self._flat(piece, u, s, z, constants, precision, v, w, past and v.size > PIECE)

    def in_one_call(
        self, granularity: Granularity, n: int, code: str, past: bool = False
    ) -> tuple[Kernel, int, int, int]:
        """What does contiguous arrays of `n` elements in one call: its items, repeats, and grain.

        Its serial form looks at the qparams first. With `past`, it writes past the caches where
        runs are long.
        """
        if code == "wide" and self._wide is not None:
            return self._wide.in_one_call(granularity, n, code, past)
        channels, inner, _ = granularity
        inner = inner or n
        if not past and (blocks := self._whole(inner, n)):
            return blocks, n // inner, 0, GRAIN // inner
        if inner < SHORT and n > FEW and _periodic(channels, inner, n):
            period = channels * inner
            return self._periods_past if past else self._periods, n, -(-n // period), _grain(period)
        return self._runs_past if past else self._runs, n, 0, GRAIN

    def _whole(self, inner: int, n: int) -> Kernel | None:
        """What does `n` elements in whole runs of `inner`, if they are several, and of blocks."""
        if not 0 < inner < n or inner > LONG or inner % BLOCK or n % inner:
            return None
        return self._blocks[inner if inner in _LENGTHS else _OF_BLOCKS]

    def _flat(
        self, piece: Piece, x: Any, scale: Any, zero_point: Any,
        constants: tuple[Any, Any, Any], precision: tuple[str, str, str], y: Array,
        mask: Array | None = None, past: bool = False,
    ) -> None:  # fmt: skip
        channels, inner, repeats, first, views = piece
        n = y.size
        if n == 0:
            return
        apart = views is not None
        runs, periods = self._runs, self._periods
        if apart:
            runs, periods = self._runs_apart, self._periods_apart
        elif past:
            runs, periods = self._runs_past, self._periods_past
        kernel, items, grain = runs, n, GRAIN
        types_: tuple[Any, ...] = precision
        cut: tuple[Any, ...] = views if apart else first, channels, inner
        if type(scale) is np.ndarray:
            types_ = (scale.dtype, zero_point.dtype, precision[2])
            if repeats or (inner < SHORT and n > FEW and _periodic(channels, inner, n)):
                kernel, grain = periods, _grain(channels * inner)
                cut = *cut, repeats or -(-(first + n) // (channels * inner))
            elif not (apart or past or first % inner) and (blocks := self._whole(inner, n)):
                kernel, items, grain = blocks, n // inner, GRAIN // inner
        if views is not None:
            grain = max(grain, strided.piece(views))
        look = () if apart else _NO_LOOK
        args = (*look, *cut, x, scale, zero_point, *constants, y, mask)
        dtypes = strided.key(x) if type(x) is np.ndarray else tuple(map(strided.key, x))
        kernel(items, n, args, (dtypes, y.dtype, types_, mask is None), grain)


class ElementwiseOfSeveral(Elementwise):
    """The same for several arrays of one shape: x is a tuple of them, and one of their elements."""

    def run(  # type: ignore[override]
        self, granularity: Granularity, inputs: tuple[Array, ...], scale: Any, zero_point: Any,
        constants: tuple[Any, Any, Any], precision: tuple[str, str, str], y: Array,
    ) -> None:  # fmt: skip
        """Run over `inputs`."""
        for piece, (*x, v), (s, z) in pieces(granularity, inputs, (y,), (scale, zero_point)):
            self._flat(piece, tuple(x), s, z, constants, precision, v)


def _signature(x: Any, y: Any, qparams: tuple[Any, Any, Any], unmasked: bool) -> Types:
    """The types of a kernel: `qparams` are those of the scale, the zero point, the constants."""
    scale, zero_point, code = (
        NUMBER_TYPES[kind] if isinstance(kind, str) else array_type(kind) for kind in qparams
    )
    mask = types.none if unmasked else array_type(bool_)
    data = types.Tuple(array_types(*x)) if isinstance(x, tuple) else array_type(x)
    return (
        types.intp, types.intp, types.intp, data, scale, zero_point,
        code, code, code, array_type(y), mask,
    )  # fmt: skip


def _looking(signature: Callable[..., Types]) -> Callable[..., Types]:
    """The types of a kernel that looks at qparams first."""
    look = types.intp, types.float64, types.float64
    return lambda *key: look + signature(*key)


def _periods_signature(*key: Any) -> Types:
    return types.intp, *_signature(*key)


def _apart(signature: Callable[..., Types]) -> Callable[..., Types]:
    """The types of a kernel that takes views where others take where a piece begins."""

    def with_views(*key: Any) -> Types:
        return strided.VIEWS, *signature(*key)[1:]

    return with_views


def _periodic(channels: int, inner: int, size: int) -> bool:
    """Whether a period comes around often enough to be worth a table."""
    return inner == 1 or 4 * channels * inner <= size


def _grain(period: int) -> int:
    """Elements of a parallel segment of `periods`: each makes a table of its own."""
    return max(GRAIN, min(16 * period, 1 << 20))


@called
def _repeated(period: Any, span: Any) -> Any:
    """A multiple of `period` that is no shorter than LEAST_PERIOD, but much shorter than `span`."""
    least = min(LEAST_PERIOD, span // 8)
    return (least + period - 1) // period * period if period < least else period


@called
def _turn(begin: Any, end: Any, first: Any, channels: Any, span: Any, period: Any) -> Any:
    """The first channel of those `begin` is among, where these stop, where its period begins."""
    skip = (first + begin) % span
    lowest = (first + begin) // span * channels
    return lowest, min(end, begin + span - skip), begin - skip % period


@called
def _write_rest(y: Any, stop: Any, made: Any, held: Any) -> None:
    """Write up to `stop` what `write_past` has left."""
    base = np.uintp(stop - held)
    for k in range(np.uintp(held)):
        y[base + k] = made[k]


@called
def end_past(y: Any, end: Any, made: Any, held: Any) -> None:
    """The same; then others may be told of all that was written."""
    _write_rest(y, end, made, held)
    settle()


def stretch_of(element: Callable[..., Any]) -> Callable[..., Any]:
    """What makes `m` elements, LONG at most, behind `held` of `made`: so many of them then wait."""

    def stretch(
        x: Any, begin: Any, m: Any, p: Any, constants: Any, y: Any, made: Any, held: Any
    ) -> Any:
        to, base = np.uintp(held), np.uintp(begin)
        for k in range(np.uintp(m)):
            value, _ = element(each(x, base + k), p, constants, y)
            store(made, to + k, value)
        held += m
        return write_past(y, begin + m - held, made, held) if held >= LONG else held

    return inlined(stretch)  # type: ignore[no-any-return]
