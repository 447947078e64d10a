"""What blocks do for sums in a fixed order: they make the terms of tiles, and add them in lanes.

Terms wait in shared memory until the threads that are the lanes of the tile add them in order.
Where a channel's elements lie far apart, or are few, threads add what they have made themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import types

from npquant.cuda.reduce import divided, walked
from npquant.cuda.target import COUNT, PLACE, SIMULATED, THREADS, cuda
from npquant.cuda.vectors import moved, unrolled, vectors
from npquant.formulas.base import formula
from npquant.layout import LANES, TILE
from npquant.primitives import at, each, masked, store

#: Terms that wait to be added. There is room for twice as many: the next are made meanwhile. Fewer
#: threads wait for each other than of longer strips. (Measured: a tenth, of two-byte data.)
STRIP = 512
#: Warps that take turns at adding, or one part of a multiprocessor would do it for all blocks.
TURNS = 4
#: Terms that a lane reads before it adds them: each waits for the sum of those before it.
AHEAD = 8
#: Threads of a block of teams.
TEAMS = 32 if SIMULATED else 128


# --- terms and lanes ----------------------------------------------------------------------


class Strips(NamedTuple):
    """How the terms of a strip lie in shared memory, and which threads make them.

    A thread makes `vectors` of `width` terms. Term e of the strip is at
    (e % width) * column + e // width: threads that write beside each other, and lanes that read,
    never meet in a bank.
    """

    width: int

    @property
    def threads(self) -> int:
        return min(THREADS, STRIP // self.width)

    @property
    def vectors(self) -> int:
        return STRIP // (self.width * self.threads)

    @property
    def column(self) -> int:
        return (STRIP + LANES) // self.width


def _adder(strips: Strips, sums: int) -> Callable[..., None]:
    """What the threads do that are lanes, once the terms of a strip are there."""
    width, column, part = strips.width, strips.column, STRIP + LANES
    step, turns = LANES // width, min(TURNS, strips.threads // 32)

    @formula
    def add(t: Any, strip: Any, n: Any, terms: Any, lanes: Any) -> None:
        lane = COUNT(t % COUNT(32))
        i = COUNT(lane % COUNT(LANES))
        mine = COUNT(t // COUNT(32)) == COUNT(strip % COUNT(turns))
        if mine and lane < COUNT(sums * LANES) and i < n:
            start = COUNT(
                strip % COUNT(2) * COUNT(sums * part) + lane // COUNT(LANES) * COUNT(part)
            )
            start = COUNT(start + COUNT(i % COUNT(width)) * COUNT(column))
            at_term, place = PLACE(COUNT(start + i // COUNT(width))), PLACE(lane)
            total, count = lanes[place], COUNT(COUNT(n - i + COUNT(LANES - 1)) // COUNT(LANES))
            ahead = cuda.local.array(AHEAD, types.float64)
            for _ in range(count // COUNT(AHEAD)):
                for k in range(AHEAD):
                    ahead[k] = np.float64(terms[at_term + PLACE(k * step)])
                at_term += PLACE(AHEAD * step)
                for k in range(AHEAD):
                    total += ahead[k]
            for _ in range(count % COUNT(AHEAD)):
                total += np.float64(terms[at_term])
                at_term += PLACE(step)
            lanes[place] = total

    return add


@formula
def _fold(t: Any, lanes: Any, sums: Any, width: Any) -> None:
    """Fold the lanes of each sum by halves: row i of `width` takes row i + h."""
    h = LANES // 2
    while h > 0:
        cuda.syncthreads()
        if t < sums * h * width:
            s = t // (h * width)
            k = s * (LANES * width) + t - s * (h * width)
            lanes[k] += lanes[k + h * width]
        h //= 2


# --- learnable gradients ------------------------------------------------------------------


def runs_of(
    parameters: Callable[..., Any], element: Callable[..., Any], term: Any, width: int, single: bool
) -> Callable[..., None]:
    """A block for each (channel, tile), or (tile, channel) where short runs lie side by side."""
    strips = Strips(width)
    threads, count, column, part = strips.threads, strips.vectors, strips.column, STRIP + LANES
    load, scratch, write = vectors(width, 1)
    scratch_of_all = vectors(width, count).scratch
    add, room_of_terms, room_of_lanes = _adder(strips, 2), 4 * part, 2 * LANES
    begin_of, place_of = walked(single)

    @formula
    def read(
        values: Any, first: Any, left: Any, skip: Any, channels: Any, inner: Any, data: Any
    ) -> None:
        """What a thread takes of a strip, from element `first` on; nothing behind the last."""
        for u in range(count):
            e = COUNT(first + COUNT(u * (width * threads)))
            if COUNT(e + COUNT(width)) <= left:
                to = place_of(COUNT(skip + e), channels, inner)
                found = load(moved(data, to), COUNT(0), COUNT(0))
                for k in range(width):
                    values[0][u * width + k] = found[0][k]
                    values[1][u * width + k] = found[1][k]
            elif single and e < left:  # the end of all data
                for k in range(width):
                    i = min(COUNT(e + COUNT(k)), COUNT(left - COUNT(1)))
                    values[0][u * width + k] = data[0][i]
                    values[1][u * width + k] = data[1][i]

    def kernel(
        channels: Any, inner: Any, length: Any, tiles: Any, apart: Any, g: Any, x: Any, scale: Any,
        zero_point: Any, lo: Any, hi: Any, factor: Any, y: Any, first: Any, last: Any,
        by_channel: Any, by_tile: Any,
    ) -> None:  # fmt: skip
        terms = cuda.shared.array(room_of_terms, term)
        lanes = cuda.shared.array(room_of_lanes, types.float64)
        t, task = COUNT(cuda.threadIdx.x), cuda.blockIdx.x
        if single or inner[0] >= TILE:
            c, tile = divided(task, tiles)
        else:
            tile, c = divided(task, channels)
        start = tile * TILE
        left = COUNT(min(length - start, TILE))
        begin, skip = begin_of(c, start, channels, inner)
        data, out = moved((g, x), begin), moved((y,), begin)
        constants = lo, hi, factor
        p = parameters(x, at(scale, c * apart), at(zero_point, c * apart), constants, y)
        if t < 2 * LANES:
            lanes[t] = 0
        values = scratch_of_all((g, x))
        own, strip, done = COUNT(t * COUNT(width)), COUNT(0), COUNT(0)
        read(values, own, left, skip, channels, inner, data)
        while done < left:
            base = PLACE(COUNT(strip % COUNT(2) * COUNT(2 * part) + t))
            for u in range(count):
                e = COUNT(own + COUNT(u * (width * threads)))
                if e < left:
                    room = scratch((y,))
                    for k in range(width):
                        v = values[0][u * width + k]
                        inside, slope, shift = element(v, values[1][u * width + k], p, constants)
                        store(room[0], k, masked(v, inside))
                        terms[base + PLACE(u * threads + k * column)] = slope
                        terms[base + PLACE(u * threads + k * column + part)] = shift
                    if COUNT(e + COUNT(width)) <= left:
                        to = place_of(COUNT(skip + e), channels, inner)
                        write(moved(out, to), COUNT(0), COUNT(0), room)
                    elif single:
                        for k in range(width):
                            i = COUNT(e + COUNT(k))
                            if i < left:
                                out[0][i] = room[0][k]
            # The next strip is on its way while the terms of this one are added.
            own = COUNT(own + COUNT(STRIP))
            read(values, own, left, skip, channels, inner, data)
            cuda.syncthreads()
            add(t, strip, min(COUNT(left - done), COUNT(STRIP)), terms, lanes)
            strip, done = COUNT(strip + COUNT(1)), COUNT(done + COUNT(STRIP))
        _fold(t, lanes, 2, 1)
        if t == 0:
            store(first, c * by_channel + tile * by_tile, lanes[0])
        elif t == 1:
            store(last, c * by_channel + tile * by_tile, lanes[LANES])

    return kernel


def teams_of(
    parameters: Callable[..., Any], element: Callable[..., Any], width: int, count: int
) -> Callable[..., None]:
    """A team of threads for each channel of one short tile: one is `width` lanes side by side.

    It takes `count` vectors at once, and adds in registers: lanes meet in shared memory when all
    terms have been added.
    """
    team = LANES // width
    several = TEAMS // team
    load, scratch, write = vectors(width, count)
    # Of each lane, those of all channels; a lane begins one bank further than that before it, or
    # threads that write would meet in one.
    row = 2 * several + 1
    room_of_lanes, half = LANES * row, LANES // 2

    @formula
    def add_one(i: Any, p: Any, told: Any) -> Any:
        found, room, constants, slopes, shifts = told
        v = found[0][i]
        inside, slope, shift = element(v, found[1][i], p, constants)
        store(room[0], i, masked(v, inside))
        slopes[i % width] += np.float64(slope)
        shifts[i % width] += np.float64(shift)
        return p

    add_all = unrolled(add_one, 0, width * count)

    def kernel(
        channels: Any, length: Any, apart: Any, g: Any, x: Any, scale: Any, zero_point: Any,
        lo: Any, hi: Any, factor: Any, y: Any, first: Any, last: Any,
    ) -> None:  # fmt: skip
        lanes = cuda.shared.array(room_of_lanes, types.float64)
        t, before = cuda.threadIdx.x, np.int64(cuda.blockIdx.x) * several
        own, part = t // team, t % team
        c = before + own
        if c < channels:
            data, out = moved((g, x), c * length), moved((y,), c * length)
            constants = lo, hi, factor
            p = parameters(x, at(scale, c * apart), at(zero_point, c * apart), constants, y)
            slopes = cuda.local.array(width, types.float64)
            shifts = cuda.local.array(width, types.float64)
            for k in range(width):
                slopes[k] = shifts[k] = 0
            for e in range(part * width, length, LANES * count):
                found, room = load(data, COUNT(e), COUNT(LANES)), scratch((y,))
                add_all(p, (found, room, constants, slopes, shifts))
                write(out, COUNT(e), COUNT(LANES), room)
            place = PLACE(part * width * row + own)
            for k in range(width):
                lanes[place + PLACE(k * row)] = slopes[k]
                lanes[place + PLACE(k * row + several)] = shifts[k]
        cuda.syncthreads()
        s = t // several
        c = before + t - s * several
        if s < 2 and c < channels:
            rows, place = cuda.local.array(half, types.float64), PLACE(t)
            for i in range(half):
                rows[i] = lanes[place + PLACE(i * row)] + lanes[place + PLACE((i + half) * row)]
            for i in range(half // 2):
                rows[i] += rows[i + half // 2]
            for i in range(half // 4):
                rows[i] += rows[i + half // 4]
            if s == 0:
                store(first, c, rows[0] + rows[1])
            else:
                store(last, c, rows[0] + rows[1])

    return kernel


def lanes_of(
    parameters: Callable[..., Any], element: Callable[..., Any], wide: int, beside: bool,
    batch: int,
) -> Callable[..., None]:  # fmt: skip
    """A block for each (tile, `wide` channels): a thread is a lane of a channel."""
    load, room_of_lanes = vectors(1, batch).load, 2 * LANES * wide

    def kernel(
        channels: Any, blocks: Any, pitch: Any, jump: Any, length: Any, tiles: Any, apart: Any,
        g: Any, x: Any, scale: Any, zero_point: Any, lo: Any, hi: Any, factor: Any, y: Any,
        first: Any, last: Any, by_channel: Any, by_tile: Any,
    ) -> None:  # fmt: skip
        lanes = cuda.shared.array(room_of_lanes, types.float64)
        t = cuda.threadIdx.x
        tile, block = divided(cuda.blockIdx.x, blocks)
        if beside:
            lane, k = t // wide, t % wide
        else:
            lane, k = t % LANES, t // LANES
        c = block * wide + k
        slopes = shifts = np.float64(0)
        if c < channels:
            left = min(length - tile * TILE, TILE)
            begin = (tile * TILE + lane) * pitch + c * jump
            g, x, y = moved((g, x, y), begin)
            constants = lo, hi, factor
            p = parameters(x, at(scale, c * apart), at(zero_point, c * apart), constants, y)
            step, e = LANES * pitch, lane
            while e < left:
                if e + (batch - 1) * LANES < left:
                    found = load((g, x), COUNT(0), COUNT(step))
                    for u in range(batch):
                        v = found[0][u]
                        inside, slope, shift = element(v, found[1][u], p, constants)
                        store(y, u * step, masked(v, inside))
                        slopes += np.float64(slope)
                        shifts += np.float64(shift)
                    e += batch * LANES
                    g, x, y = moved((g, x, y), batch * step)
                else:
                    inside, slope, shift = element(g[0], x[0], p, constants)
                    store(y, 0, masked(g[0], inside))
                    slopes += np.float64(slope)
                    shifts += np.float64(shift)
                    e += LANES
                    g, x, y = moved((g, x, y), step)
        lanes[lane * wide + k] = slopes
        lanes[(LANES + lane) * wide + k] = shifts
        _fold(t, lanes, 2, wide)
        cuda.syncthreads()
        if lane == 0 and c < channels:
            to = c * by_channel + tile * by_tile
            store(first, to, lanes[k])
            store(last, to, lanes[LANES * wide + k])

    return kernel


# --- sums of everything -------------------------------------------------------------------


def total_of(element: Callable[..., Any], width: int) -> Callable[..., None]:
    """A block for each tile; terms are added as float64, so they wait as that."""
    strips = Strips(width)
    threads, count, column, part = strips.threads, strips.vectors, strips.column, STRIP + LANES
    load, add = vectors(width, count).load, _adder(strips, 1)
    last, room = width * threads * (count - 1) + width, 2 * part

    def kernel(length: Any, x: Any, number: Any, sums: Any) -> None:
        terms = cuda.shared.array(room, types.float64)
        lanes = cuda.shared.array(LANES, types.float64)
        t, tile = COUNT(cuda.threadIdx.x), np.int64(cuda.blockIdx.x)
        left = COUNT(min(length - tile * TILE, TILE))
        data = moved(x, tile * TILE)
        if t < LANES:
            lanes[t] = 0
        e, strip = COUNT(t * COUNT(width)), COUNT(0)
        while COUNT(strip * COUNT(STRIP)) < left:
            base = PLACE(strip % COUNT(2) * COUNT(part) + t)
            if COUNT(e + COUNT(last)) <= left:
                found = load(data, e, COUNT(width * threads))
                for u in range(count):
                    for k in range(width):
                        term = np.float64(element(each(found, u * width + k), number))
                        terms[base + PLACE(u * threads + k * column)] = term
            else:
                for u in range(count):
                    for k in range(width):
                        i = COUNT(e + COUNT(u * (width * threads) + k))
                        if i < left:
                            term = np.float64(element(each(data, i), number))
                            terms[base + PLACE(u * threads + k * column)] = term
            cuda.syncthreads()
            n = min(COUNT(left - COUNT(strip * COUNT(STRIP))), COUNT(STRIP))
            add(t, strip, n, terms, lanes)
            e, strip = COUNT(e + COUNT(STRIP)), COUNT(strip + COUNT(1))
        _fold(t, lanes, 1, 1)
        if t == 0:
            sums[tile] = lanes[0]

    return kernel
