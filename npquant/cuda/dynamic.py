"""Rows that are quantized with qparams chosen from them, by one kernel: memory is read once.

A team of threads takes a row, and has it in registers when the qparams are chosen. A longer one is
a block's, which reads it again, from a cache.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
from numba import types

from npquant.cpu.loops import NUMBER_TYPES
from npquant.cuda.arrays import DeviceArray
from npquant.cuda.extremes import Team, ends, kinds, of_a_run, of_a_team
from npquant.cuda.loops import Elementwise, Map, unrolled
from npquant.cuda.qparams import Choose, choose_per_token, choose_per_token_asymmetric
from npquant.cuda.quantize import quantize_per_token
from npquant.cuda.target import COUNT, THREADS, Kernel, Types, cuda, pointer
from npquant.cuda.vectors import ACCESS, moved, vectors
from npquant.formulas.base import extremes_of, formula
from npquant.primitives import at, each, item, key, like, put

#: Bytes of a row at most: of longer ones several blocks had better find the extremes.
LONGEST = 1 << 17
#: Blocks of a launch at most.
MOST = (1 << 31) - 1
#: Elements of a row from which on it is read again: few such rows fit a multiprocessor at once, and
#: while qparams are chosen too few loads are on their way. (Measured at 1,024 and at 4,096.)
HELD = 2048


def _team(inner: int, width: int) -> Team:
    """Who takes a row of so many elements: some eight of them each, or none if it is read again."""
    return Team.of(inner, width, max(2, 8 // width)) if inner < HELD else Team(width, 0, THREADS)


class Dynamic:
    """x -> the scale and the zero point of each row, and its codes."""

    def __init__(self, choose: Choose, quantize: Elementwise) -> None:
        self._choose, self._quantize = choose.formula, quantize.map
        self.kernel = Kernel(self._make, f"dynamic_{choose.formula.__name__}")

    def __call__(
        self, x: DeviceArray, bounds: tuple[int, int], eps: float, constants: tuple[Any, ...],
        code: str, scale: DeviceArray, zero_point: DeviceArray, y: DeviceArray,
    ) -> None:  # fmt: skip
        """Run over rows that lie one behind the other; `code` names the type of `constants`."""
        inner, width = x.shape[-1] if x.shape else 1, min(ACCESS // x.dtype.itemsize, 8)
        if inner % width or x.pointer % ACCESS or y.pointer % ACCESS:
            width = 1
        team, rows = _team(inner, width), x.size // inner
        key = (x.dtype, scale.dtype, zero_point.dtype, "float64", code, y.dtype, *team)
        args = (
            rows, inner, x.argument(), *bounds, eps, constants, scale.argument(),
            zero_point.argument(), y.argument(),
        )  # fmt: skip
        self.kernel(-(-rows // team.rows), team.threads * team.rows, args, key, x.stream())

    def _make(
        self, x: Any, scale: Any, zero_point: Any, eps: str, code: str, y: Any, *form: int
    ) -> tuple[Callable[..., None], Types]:
        choose, team = self._choose, Team(*form)
        read, write = (_held if team.held else _read_again)(self._quantize, x, team)
        kind, number = kinds(x)
        shared, (highest, lowest) = getattr(types, np.dtype(number).name), ends(number)
        threads, several = team.threads, team.rows
        room, values_of = threads * several, vectors(team.width, max(1, team.held)).scratch
        half = 1 << (threads - 1).bit_length() >> 1

        def kernel(
            rows: Any, inner: Any, x: Any, bottom: Any, top: Any, eps: Any, constants: Any,
            scale: Any, zero_point: Any, y: Any,
        ) -> None:  # fmt: skip
            lows = cuda.shared.array(room, shared)
            highs = cuda.shared.array(room, shared)
            t, first = cuda.threadIdx.x, np.int64(cuda.blockIdx.x) * several
            own, part = t // threads, t % threads
            c = first + own
            # Of a row behind the last, nothing is read and nothing written.
            left = COUNT(inner) if c < rows else COUNT(0)
            data, codes, values = moved((x,), c * inner), moved((y,), c * inner), values_of((x,))
            at_t = part * several + own
            lows[at_t], highs[at_t] = read((highest, lowest), (part, left, data, values))
            h = half
            while h > 0:  # by halves, to the first
                cuda.syncthreads()
                if part < h and part + h < threads:
                    other = at_t + h * several
                    lows[at_t] = min(lows[at_t], lows[other])
                    highs[at_t] = max(highs[at_t], highs[other])
                h //= 2
            cuda.syncthreads()
            if t < several and first + t < rows:
                s, z = item(scale), item(zero_point)
                least, greatest = extremes_of(kind(lows[t]), kind(highs[t]), item(x))
                chosen = choose(least, greatest, bottom, top, eps, np.int64(0), s)
                scale[first + t] = like(chosen[0], s)
                zero_point[first + t] = like(chosen[1], z)
            cuda.syncthreads()
            if c < rows:
                write((scale, zero_point, c), (part, left, data, values, constants, codes))

        integer, numbers = types.int64, types.UniTuple(NUMBER_TYPES[code], 3)
        return kernel, (
            integer, integer, pointer(x), integer, integer, types.float64, numbers, pointer(scale),
            pointer(zero_point), pointer(y),
        )  # fmt: skip


def _held(quantize: Map, dtype: Any, team: Team) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """What a thread does with a row in registers: find its extremes, and quantize it."""
    (parameters, element), (width, held, threads) = quantize.formula, team
    _, scratch, store = vectors(width, 1)

    @formula
    def write_one(u: Any, p: Any, told: Any) -> Any:
        part, left, _, values, constants, codes = told
        e = COUNT(COUNT(u * threads * width) + COUNT(part) * COUNT(width))
        if e < left:
            room = scratch(codes)
            for k in range(width):
                put(room, k, element(each(values, u * width + k), p, constants, codes))
            store(codes, e, COUNT(0), room)
        return p

    write_all = unrolled(write_one, 0, held)

    @formula
    def write(qparams: Any, told: Any) -> None:
        scale, zero_point, c = qparams
        _, _, data, _, constants, codes = told
        write_all(parameters(data, at(scale, c), at(zero_point, c), constants, codes), told)

    return of_a_team(key, key, kinds(dtype)[1], team), write


def _read_again(
    quantize: Map, dtype: Any, team: Team
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The same of a row that is in a cache."""
    (parameters, element), (width, _, threads) = quantize.formula, team
    load, scratch, store = vectors(width, 1)
    extremes = of_a_run(key, key, kinds(dtype)[1], width, threads, True)

    @formula
    def read(found: Any, told: Any) -> Any:
        part, left, data, _ = told
        return extremes(part, np.int64(left), COUNT(0), data[0], 1, np.int64(left))

    @formula
    def write(qparams: Any, told: Any) -> None:
        scale, zero_point, c = qparams
        part, left, data, _, constants, codes = told
        p = parameters(data, at(scale, c), at(zero_point, c), constants, codes)
        for e in range(part * width, np.int64(left), width * threads):
            values, room = load(data, COUNT(e), COUNT(0)), scratch(codes)
            for k in range(width):
                put(room, k, element(each(values, k), p, constants, codes))
            store(codes, COUNT(e), COUNT(0), room)

    return read, write


dynamic_per_token = Dynamic(choose_per_token, quantize_per_token)
dynamic_per_token_asymmetric = Dynamic(choose_per_token_asymmetric, quantize_per_token)


def fast_path(
    kernel: str, shape: tuple[int, ...], dtype: np.dtype[Any], bounds: tuple[int, int], eps: float,
    results: tuple[int, ...], kinds: tuple[Any, Any], constants: tuple[Any, ...], code: str,
    target: np.dtype[Any],
) -> Callable[[DeviceArray], tuple[Any, Any, Any] | None] | None:  # fmt: skip
    """A function of rows of this shape and dtype, as `fast_dynamic` of ops/fast_path.py makes."""
    n, inner = prod(shape), shape[-1] if shape else 1
    if n == 0 or inner * dtype.itemsize > LONGEST or n // inner > MOST:
        return None
    run = {
        "dynamic_per_token": dynamic_per_token,
        "dynamic_per_token_asymmetric": dynamic_per_token_asymmetric,
    }[kernel]

    def call(x: DeviceArray) -> tuple[Any, Any, Any] | None:
        if not x.contiguous:
            return None
        y, scale, zero_point = (
            x.new(shape, target), x.new(results, kinds[0]), x.new(results, kinds[1]),
        )  # fmt: skip
        run(x, bounds, eps, constants, code, scale, zero_point, y)
        return y.owner, scale.owner, zero_point.owner

    return call
