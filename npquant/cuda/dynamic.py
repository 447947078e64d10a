"""Rows that are quantized with qparams chosen from them, by one kernel: memory is read once.

A team of threads takes a row, and has it in registers when the qparams are chosen. What codes are
made with, one of them finds for all.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
from numba import types

from npquant.cpu.loops import NUMBER_TYPES
from npquant.cuda.arrays import DeviceArray
from npquant.cuda.extremes import Team, compared, ends, kinds, of_a_team
from npquant.cuda.loops import Elementwise, Map
from npquant.cuda.qparams import Choose, choose_per_token, choose_per_token_asymmetric
from npquant.cuda.quantize import quantize_per_token
from npquant.cuda.target import COUNT, MOST_BLOCKS, PLACE, Kernel, Types, cuda, pointer
from npquant.cuda.vectors import ACCESS, moved, unrolled, vectors
from npquant.formulas.base import INFINITY, extremes_of, formula
from npquant.formulas.guesses import ASYMMETRIC, SYMMETRIC, Guess
from npquant.primitives import at, each, item, key, like, put, store, widen


class Dynamic:
    """x -> the scale and the zero point of each row, and its codes.

    See npquant.cpu.dynamic.Dynamic; here rows of any length are guessed.
    """

    def __init__(self, choose: Choose, quantize: Elementwise, *guesses: Guess) -> None:
        self._choose, self._quantize, self._guesses = choose.formula, quantize.map, guesses
        name = f"dynamic_{choose.formula.__name__}"
        self.kernel = Kernel(self._make, name, lambda *key: Team(*key[-3:]).block)

    def at_once(
        self, shape: tuple[int, ...], dtype: np.dtype[Any], bounds: tuple[int, int], eps: float,
        results: tuple[int, ...], kinds: tuple[Any, Any], constants: tuple[Any, ...], code: str,
        target: np.dtype[Any],
    ) -> Callable[[DeviceArray], tuple[Any, Any, Any] | None] | None:  # fmt: skip
        """A function of rows of this shape and dtype, as `fast_choice.fast_dynamic` makes one.

        None where no team fits.
        """
        n, inner = prod(shape), shape[-1] if shape else 1
        if n == 0 or not Team.fits(inner, dtype.itemsize) or n // inner > MOST_BLOCKS:
            return None

        def call(x: DeviceArray) -> tuple[Any, Any, Any] | None:
            if not x.contiguous:
                return None
            y, scale, zero_point = (
                x.new(shape, target), x.new(results, kinds[0]), x.new(results, kinds[1]),
            )  # fmt: skip
            self(x, bounds, eps, constants, code, scale, zero_point, y)
            return y.owner, scale.owner, zero_point.owner

        return call

    def __call__(
        self, x: DeviceArray, bounds: tuple[int, int], eps: float, constants: tuple[Any, ...],
        code: str, scale: DeviceArray, zero_point: DeviceArray, y: DeviceArray,
    ) -> None:  # fmt: skip
        """Run over rows that lie one behind the other; `code` names the type of `constants`."""
        inner, width = x.shape[-1] if x.shape else 1, min(ACCESS // x.dtype.itemsize, 8)
        if inner % width or x.pointer % ACCESS or y.pointer % ACCESS:
            width = 1
        team, rows = Team.of(inner, width), x.size // inner
        key = (x.dtype, scale.dtype, zero_point.dtype, "float64", code, y.dtype, *team)
        args = (
            rows, inner, x.argument(), *bounds, eps, constants, scale.argument(),
            zero_point.argument(), y.argument(),
        )  # fmt: skip
        self.kernel(-(-rows // team.rows), team.block, args, key, x.stream())

    def _make(
        self, x: Any, scale: Any, zero_point: Any, eps: str, code: str, y: Any, *form: int
    ) -> tuple[Callable[..., None], Types]:
        choose, team = self._choose, Team(*form)
        guess = next((g for g in self._guesses if g.of(x, scale)), _NO_GUESS)
        split, fill = guess.split, _fill(self._quantize, guess, team.width)
        kind, number, shared = kinds(x)
        read, write = of_a_team(key, key, number, team), _write(fill, team)
        highest, lowest = ends(number)
        threads, several = team.threads, team.rows
        room, values_of = threads * several, vectors(team.width, team.held).scratch
        place_in, three, nan = team.places(), 3 * several, np.float32(np.nan)

        def kernel(
            rows: Any, inner: Any, x: Any, bottom: Any, top: Any, eps: Any, constants: Any,
            scale: Any, zero_point: Any, y: Any,
        ) -> None:  # fmt: skip
            lows = cuda.shared.array(room, shared)
            highs = cuda.shared.array(room, shared)
            found = cuda.shared.array(three, types.float32)
            t, first = COUNT(cuda.threadIdx.x), np.int64(cuda.blockIdx.x) * several
            own, part, to = place_in(t)
            c = min(first + own, rows - 1)  # those too many take the last row again
            data, codes, values = moved((x,), c * inner), moved((y,), c * inner), values_of((x,))
            told = part, COUNT(inner), data, values
            lows[to], highs[to] = read((highest, lowest), told)
            left = threads
            while left > 1:
                cuda.syncthreads()
                left = compared(t, lows, highs, left, several)
            if t < several and first + t < rows:
                s, z, place = item(scale), item(zero_point), PLACE(t)
                least, greatest = extremes_of(kind(lows[place]), kind(highs[place]), item(x))
                chosen = choose(least, greatest, bottom, top, eps, np.int64(0), s)
                unit, zero = like(chosen[0], s), like(chosen[1], z)
                scale[first + t], zero_point[first + t] = unit, zero
                p, q, r = split(unit, zero)
                found[place] = p if widen(unit) < INFINITY else nan  # in doubt, as for a NaN
                found[place + PLACE(several)], found[place + PLACE(2 * several)] = q, r
            cuda.syncthreads()
            if first + own < rows:
                place = PLACE(own)
                p = found[place], found[place + PLACE(several)], found[place + PLACE(2 * several)]
                write(p, (*told, (scale, zero_point, c, constants), codes))

        integer, numbers = types.int64, types.UniTuple(NUMBER_TYPES[code], 3)
        return kernel, (
            integer, integer, pointer(x), integer, integer, types.float64, numbers, pointer(scale),
            pointer(zero_point), pointer(y),
        )  # fmt: skip


def _fill(quantize: Map, guess: Guess, width: int) -> Callable[..., None]:
    """What a thread does with a vector: guess its codes, and where one is in doubt go by the rule.

    ``(values, first, p, told, room)``, of `width` values from `first` on; for `p` see `Guess`.
    """
    parameters, element, *_ = quantize.formula
    code_of = guess.code

    @formula
    def fill(values: Any, first: Any, p: Any, told: Any, room: Any) -> None:
        _, _, data, _, (scale, zero_point, c, constants), codes = told
        doubt = np.int32(p[0] != p[0])
        for k in range(width):
            code, one = code_of(values[0][first + k], p)
            store(room[0], k, code)
            doubt = np.int32(doubt | one)
        if doubt != np.int32(0):
            rule = parameters(data, at(scale, c), at(zero_point, c), constants, codes)
            for k in range(width):
                put(room, k, element(each(values, first + k), rule, constants, codes))

    return fill  # type: ignore[no-any-return]


def _write(fill: Callable[..., None], team: Team) -> Callable[..., Any]:
    """What a thread does with its part of a row in registers when the qparams are known."""
    width, held, threads = team
    _, scratch, write = vectors(width, 1)

    @formula
    def write_one(u: Any, p: Any, told: Any) -> Any:
        part, left, _, values, _, codes = told
        e = COUNT(COUNT(u * threads * width) + COUNT(part * COUNT(width)))
        if e < left:
            room = scratch(codes)
            fill(values, u * width, p, told, room)
            write(codes, e, COUNT(0), room)
        return p

    return unrolled(write_one, 0, held)


@formula
def _no_qparams(scale: Any, zero_point: Any) -> Any:
    nan = np.float32(np.nan)
    return nan, nan, nan


@formula
def _no_code(x: Any, p: Any) -> Any:
    return np.int32(0), np.int32(1)


#: For all other dtypes: every code is in doubt.
_NO_GUESS = Guess(lambda x, scale: True, _no_qparams, _no_code)

dynamic_per_token = Dynamic(choose_per_token, quantize_per_token, *SYMMETRIC)
dynamic_per_token_asymmetric = Dynamic(choose_per_token_asymmetric, quantize_per_token, *ASYMMETRIC)
