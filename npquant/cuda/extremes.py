"""Minima and maxima of channels, which depend on no order: a block finds those of a part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import types

from npquant.cuda.arrays import DeviceArray, device
from npquant.cuda.reduce import RUNS, Shape, divided, parts_of, walked
from npquant.cuda.target import COUNT, PLACE, SIMULATED, THREADS, Kernel, Types, cuda, pointer
from npquant.cuda.vectors import moved, unrolled, vectors
from npquant.cuda.walk import pieces
from npquant.formulas.base import extremes_of, formula
from npquant.formulas.histogram import finite_key_above, finite_key_below
from npquant.layout import LANES, TILE, Granularity
from npquant.primitives import KEYS, item, key

#: Elements of a row that a team has in registers, at most; the same of float64; and its threads.
MOST, MOST_DOUBLE, WIDEST = 1 << 15, 1 << 13, 1024
#: Vectors of a thread, at most, and elements where they are vectors of one: registers must do.
HELD, HELD_ALONE = 8, 16
#: Extremes that a thread compares at once, when all threads have found some: each time they wait.
AT_ONCE = 8
#: Threads of a block whose teams are small.
BLOCK = 32 if SIMULATED else 128


def kinds(dtype: np.dtype[Any]) -> tuple[Any, Any, Any]:
    """The integers that keys are, those that are compared, and these as the compiler has them.

    Registers are of 32 bits.
    """
    kind: Any = dtype.type if dtype.kind in "iu" else KEYS[dtype.itemsize]
    number: Any = kind if np.dtype(kind).itemsize >= 4 else np.int32
    return kind, number, getattr(types, np.dtype(number).name)


def ends(number: Any) -> tuple[Any, Any]:
    """The greatest and the least of these integers: what is found among no elements."""
    of = np.iinfo(number)
    return number(of.max), number(of.min)


@formula
def _write_extremes(c: Any, a: Any, b: Any, least: Any, greatest: Any) -> None:
    least[c], greatest[c] = extremes_of(a, b, item(least))


@formula
def compared(t: Any, lows: Any, highs: Any, rows: Any, width: Any) -> Any:
    """What thread `t` does of making fewer rows of `rows` of `width`, and how many those are.

    All threads must have written before; nothing that one reads is written by another.
    """
    fewer = (rows + AT_ONCE - 1) // AT_ONCE
    step, even = fewer * width, rows % AT_ONCE == 0
    if t < COUNT(step):
        place = PLACE(t)
        lo, hi = lows[place], highs[place]
        for k in range(1, AT_ONCE):
            if even or COUNT(t + COUNT(k * step)) < COUNT(rows * width):
                lo = min(lo, lows[place + PLACE(k * step)])
                hi = max(hi, highs[place + PLACE(k * step)])
        lows[place], highs[place] = lo, hi
    return fewer


@formula
def _fold_extremes(t: Any, lows: Any, highs: Any, rows: Any, width: Any) -> None:
    """All rows of `width` to the first, which the first threads see, each its own place."""
    while rows > 1:
        cuda.syncthreads()
        rows = compared(t, lows, highs, rows, width)


def of_a_run(
    low: Callable[..., Any], high: Callable[..., Any], number: Any, width: int, threads: int,
    single: bool,
) -> Callable[..., Any]:  # fmt: skip
    """What thread `t` of a block finds among `left` elements, of which it takes two vectors a time.

    ``(t, left, skip, data, channels, inner) -> (key, key)``, for `skip` see `reduce.run`.
    """
    load, step, (_, place) = vectors(width, 1).load, width * threads, walked(single)

    @formula
    def extremes(t: Any, left: Any, skip: Any, data: Any, channels: Any, inner: Any) -> Any:
        first = data[np.int64(skip)]
        lo, hi = number(low(first)), number(high(first))
        for e in range(t * width, left, 2 * step):
            if e + step + width <= left:  # both are asked for before one is looked at
                to = place(COUNT(skip + COUNT(e)), channels, inner)
                then = place(COUNT(skip + COUNT(e + step)), channels, inner)
                found = load((moved(data, to),), COUNT(0), COUNT(0))
                others = load((moved(data, then),), COUNT(0), COUNT(0))
                for k in range(width):
                    for v in (found[0][k], others[0][k]):
                        lo, hi = min(lo, number(low(v))), max(hi, number(high(v)))
            else:
                for u in range(2):
                    for i in range(e + u * step, min(e + u * step + width, left)):
                        v = data[place(COUNT(skip + COUNT(i)), channels, inner)]
                        lo, hi = min(lo, number(low(v))), max(hi, number(high(v)))
        return lo, hi

    return extremes  # type: ignore[no-any-return]


class Team(NamedTuple):
    """The threads of a row, each of which has `held` vectors of `width` elements, or fewer."""

    width: int
    held: int
    threads: int

    @property
    def rows(self) -> int:
        """Those of a block."""
        return max(1, BLOCK // self.threads)

    @property
    def block(self) -> int:
        """The threads of a block."""
        return self.threads * self.rows

    @staticmethod
    def fits(length: int, itemsize: int) -> bool:
        """Whether the registers of a block do for a row."""
        return 0 < length <= (MOST if itemsize <= 4 else MOST_DOUBLE)

    @staticmethod
    def of(length: int, width: int) -> Team:
        """One for rows of so many elements."""
        # About as many threads as vectors of each. (Measured.)
        there = -(-length // width)
        root = 1 << (there.bit_length() - 1) // 2
        held = max(min(root, HELD if width > 1 else HELD_ALONE), -(-there // WIDEST))
        threads = -(-there // held)
        rounded = 1 << (threads - 1).bit_length()
        return Team(width, held, rounded if rounded <= BLOCK else -(-threads // 32) * 32)

    def places(self) -> Callable[..., Any]:
        """Of thread `t` of a block, the row, its place in the team, and where its extremes lie."""
        threads, several = self.threads, self.rows

        @formula
        def places(t: Any) -> Any:
            row = COUNT(t // COUNT(threads))
            part = COUNT(t - COUNT(row * COUNT(threads)))
            return row, part, PLACE(part * COUNT(several) + row)

        return places  # type: ignore[no-any-return]


def of_a_team(
    low: Callable[..., Any], high: Callable[..., Any], number: Any, team: Team
) -> Callable[..., Any]:
    """What thread `part` of a team finds among `left` elements, which it leaves in `values`.

    ``((highest, lowest), (part, left, data, values)) -> (key, key)``. Behind the last it takes
    the first ones again: a thread that asks where it is waits for one vector after the other.
    """
    width, held, threads = team
    load = vectors(width, 1).load

    @formula
    def read(u: Any, nothing: Any, told: Any) -> Any:
        part, left, data, values = told
        e = COUNT(COUNT(u * threads * width) + COUNT(part * COUNT(width)))
        vector = load(data, e if e < left else COUNT(0), COUNT(0))
        for k in range(width):
            values[0][u * width + k] = vector[0][k]
        return nothing

    @formula
    def compare_one(i: Any, found: Any, values: Any) -> Any:
        lo, hi = found
        v = values[0][i]
        return min(lo, number(low(v))), max(hi, number(high(v)))

    read_all, compare_all = unrolled(read, 0, held), unrolled(compare_one, 0, held * width)

    @formula
    def extremes(found: Any, told: Any) -> Any:
        read_all(0, told)
        return compare_all(found, told[3])

    return extremes  # type: ignore[no-any-return]


class Extremes:
    """x -> the least and the greatest element of each channel, in one pass.

    Parameters
    ----------
    low, high : callable
        ``low(x) -> key`` to find the least, and ``high(x) -> key`` to find the greatest of.
    """

    def __init__(self, low: Callable[..., Any], high: Callable[..., Any]) -> None:
        self._low, self._high = low, high
        self.runs = Kernel(self._make_runs, f"extremes_{low.__name__}_runs")
        self.lanes = Kernel(self._make_lanes, f"extremes_{low.__name__}_lanes")
        name = f"extremes_{low.__name__}_teams"
        self.teams = Kernel(self._make_teams, name, lambda x, *form: Team(*form).block)

    def __call__(self, granularity: Granularity, x: Any) -> tuple[DeviceArray, DeviceArray]:
        x = device(x)
        channels = granularity.channels if x.size else 0
        found = x.new((channels,), x.dtype), x.new((channels,), x.dtype)
        if not x.size:
            return found
        for layout, (flat,) in pieces(granularity, (x,), ()):
            shape = Shape.of(layout, x.size)
            # Longer loops over the elements of a vector would not be unrolled.
            width = min(shape.width(flat), 8)
            if shape.short(MOST + 1) and Team.fits(shape.length, x.dtype.itemsize):
                team = Team.of(shape.length, width)
                data = [a.argument() for a in (flat, *found)]
                args: Any = (channels, shape.length, *data)
                blocks = -(-channels // team.rows)
                self.teams(blocks, team.block, args, (x.dtype, *team), x.stream())
                continue
            beside = shape.beside
            wide, blocks, pitch, _ = shape.across() if beside else (1, channels, 1, 1)
            parts, span = parts_of(shape.length, blocks, LANES * LANES if beside else TILE)
            whole = parts == 1
            kind = x.dtype if whole else np.dtype(kinds(x.dtype)[0])
            to = found if whole else [x.new((channels * parts,), kind) for _ in range(2)]
            rest = (parts, span, flat.argument(), to[0].argument(), to[1].argument())
            if beside:
                args = (channels, blocks, pitch, shape.length, *rest)
                form: tuple[Any, ...] = (x.dtype, wide, shape.batch(x.dtype.itemsize), whole)
                self.lanes(blocks * parts, wide * LANES, args, form, x.stream())
            else:
                form = (x.dtype, width, shape.single, whole)
                self.runs(channels * parts, THREADS, (*shape.told, *rest), form, x.stream())
            if not whole:
                args = (parts, *(a.argument() for a in (*to, *found)))
                _all_parts(channels, THREADS, args, (x.dtype,), x.stream())
        return found

    def _make_runs(
        self, x: Any, width: int, single: bool, whole: bool
    ) -> tuple[Callable[..., None], Types]:
        kind, number, shared = kinds(x)
        begin_of = walked(single)[0]
        extremes = of_a_run(self._low, self._high, number, width, THREADS, single)

        def kernel(
            channels: Any, inner: Any, length: Any, parts: Any, span: Any, x: Any, least: Any,
            greatest: Any,
        ) -> None:  # fmt: skip
            """A block for each (channel, part)."""
            lows = cuda.shared.array(THREADS, shared)
            highs = cuda.shared.array(THREADS, shared)
            t, (c, part) = cuda.threadIdx.x, divided(cuda.blockIdx.x, parts)
            start = part * span
            left = min(length - start, span)
            begin, skip = begin_of(c, start, channels, inner)
            lows[t], highs[t] = extremes(t, left, skip, moved(x, begin), channels, inner)
            _fold_extremes(t, lows, highs, THREADS, 1)
            if t == 0:
                if whole:
                    _write_extremes(c, kind(lows[0]), kind(highs[0]), least, greatest)
                else:
                    least[c * parts + part], greatest[c * parts + part] = lows[0], highs[0]

        to = pointer(x if whole else kind)
        integer = types.int64
        return kernel, (integer, RUNS, *[integer] * 3, pointer(x), to, to)

    def _make_teams(self, x: Any, *form: int) -> tuple[Callable[..., None], Types]:
        team, (kind, number, shared) = Team(*form), kinds(x)
        highest, lowest = ends(number)
        threads, several = team.threads, team.rows
        room, values_of = threads * several, vectors(team.width, team.held).scratch
        place_in = team.places()
        extremes = of_a_team(self._low, self._high, number, team)  # what it leaves nobody reads

        def kernel(channels: Any, length: Any, x: Any, least: Any, greatest: Any) -> None:
            """A team for each channel."""
            lows = cuda.shared.array(room, shared)
            highs = cuda.shared.array(room, shared)
            t, first = COUNT(cuda.threadIdx.x), np.int64(cuda.blockIdx.x) * several
            own, part, to = place_in(t)
            data = moved((x,), min(first + own, channels - 1) * length)
            told = part, COUNT(length), data, values_of(data)
            lows[to], highs[to] = extremes((highest, lowest), told)
            _fold_extremes(t, lows, highs, threads, several)
            if t < several and first + t < channels:
                _write_extremes(first + t, kind(lows[t]), kind(highs[t]), least, greatest)

        return kernel, (types.int64, types.int64, *[pointer(x)] * 3)

    def _make_lanes(
        self, x: Any, wide: int, batch: int, whole: bool
    ) -> tuple[Callable[..., None], Types]:
        low, high, load = self._low, self._high, vectors(1, batch).load
        kind, number, shared = kinds(x)
        room = LANES * wide

        def kernel(
            channels: Any, blocks: Any, pitch: Any, length: Any, parts: Any, span: Any, x: Any,
            least: Any, greatest: Any,
        ) -> None:  # fmt: skip
            """A block for each (part, `wide` channels side by side), of LANES threads for each."""
            lows = cuda.shared.array(room, shared)
            highs = cuda.shared.array(room, shared)
            t, (part, block) = cuda.threadIdx.x, divided(cuda.blockIdx.x, blocks)
            lane, k = t // wide, t % wide
            c = min(block * wide + k, channels - 1)
            start = part * span
            left, begin = min(length - start, span), start * pitch + c
            first = x[begin]
            lo, hi = number(low(first)), number(high(first))
            x = moved(x, begin + lane * pitch)
            step, e = LANES * pitch, lane
            while e < left:
                if e + (batch - 1) * LANES < left:
                    found = load((x,), COUNT(0), COUNT(step))
                    for u in range(batch):
                        lo = min(lo, number(low(found[0][u])))
                        hi = max(hi, number(high(found[0][u])))
                    e += batch * LANES
                    x = moved(x, batch * step)
                else:
                    lo, hi = min(lo, number(low(x[0]))), max(hi, number(high(x[0])))
                    e += LANES
                    x = moved(x, step)
            lows[lane * wide + k], highs[lane * wide + k] = lo, hi
            _fold_extremes(t, lows, highs, LANES, wide)
            if lane == 0 and block * wide + k < channels:
                if whole:
                    _write_extremes(c, kind(lows[k]), kind(highs[k]), least, greatest)
                else:
                    least[c * parts + part], greatest[c * parts + part] = lows[k], highs[k]

        to = pointer(x if whole else kind)
        return kernel, (*[types.int64] * 6, pointer(x), to, to)


def _make_all_parts(x: Any) -> tuple[Callable[..., None], Types]:
    kind, number, shared = kinds(x)

    def kernel(parts: Any, lows_of: Any, highs_of: Any, least: Any, greatest: Any) -> None:
        """A block for each channel."""
        lows = cuda.shared.array(THREADS, shared)
        highs = cuda.shared.array(THREADS, shared)
        t, c = cuda.threadIdx.x, np.int64(cuda.blockIdx.x)
        lo, hi = number(lows_of[c * parts]), number(highs_of[c * parts])
        for i in range(c * parts + t, (c + 1) * parts, THREADS):
            lo, hi = min(lo, number(lows_of[i])), max(hi, number(highs_of[i]))
        lows[t], highs[t] = lo, hi
        _fold_extremes(t, lows, highs, THREADS, 1)
        if t == 0:
            _write_extremes(c, kind(lows[0]), kind(highs[0]), least, greatest)

    keys, data = pointer(kind), pointer(x)
    return kernel, (types.int64, keys, keys, data, data)


_all_parts = Kernel(_make_all_parts, "extremes_of_parts")

#: NaN where there is one.
minmax = Extremes(key, key)

#: Of what is finite in float32; +inf and -inf where nothing is.
minmax_finite = Extremes(finite_key_above, finite_key_below)
