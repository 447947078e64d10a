"""Rows that are quantized with qparams chosen from them, in one pass.

They are read from memory once: when the qparams of some rows are known, these are still in a cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types

from npquant.cpu.borrowed import keep
from npquant.cpu.checks import usual
from npquant.cpu.extremes import ranges
from npquant.cpu.folded import folds
from npquant.cpu.lines import LONG
from npquant.cpu.loops import NUMBER_TYPES, Elementwise
from npquant.cpu.lowered import called, inlined
from npquant.cpu.qparams import ON_STACK, Choose, choose_per_token, choose_per_token_asymmetric
from npquant.cpu.quantize import per_token
from npquant.cpu.rooms import local
from npquant.cpu.strided import LONG_ROW, VIEWS, lend, room, taken, up_to_row
from npquant.cpu.target import GRAIN, Either, Kernel, Types, array_type
from npquant.formulas.guesses import ASYMMETRIC, SYMMETRIC, Guess
from npquant.primitives import item, like, store

#: Rows of one element at most: more have a faster way. Bytes of a row at most, or no cache of a
#: core holds it, and threads may have none. (Measured.)
MOST_OF_ONE, LONGEST = 256, 1 << 18
#: Rows up to here are folded: of longer ones few are done at a time, in vain. (Measured.)
FOLDED = 512
#: Elements of a vector, at most.
VECTOR = 16
_WHOLE = 2**64 - VECTOR


def one_pass(rows: int, inner: int, itemsize: int) -> bool:
    """Whether rows are best done one by one."""
    if inner == 1:
        return 0 < rows <= MOST_OF_ONE
    return rows > 0 and 0 < inner <= LONGEST // itemsize


class Dynamic:
    """x -> the scale and the zero point of each row, and its codes.

    Parameters
    ----------
    choice : Choose
        What chooses them.
    quantize : Elementwise
        What is done with a row then, by the rule.
    guesses : Guess
        What is done with rows of VECTOR elements or more instead; if a code is in doubt, by the
        rule again.
    """

    def __init__(self, choice: Choose, quantize: Elementwise, *guesses: Guess) -> None:
        foldings = (False, True)
        self._rows = {folding: _by_rule(choice, quantize, folding) for folding in foldings}
        self._guessed = [
            (
                guess.of,
                {folding: _guessed(choice, quantize, guess, folding) for folding in foldings},
            )
            for guess in guesses
        ]

    def of_rows(self, inner: int, apart: bool = False) -> Kernel:
        """The kernel of rows of `inner` elements, or that of data that are not flat."""
        folding = inner <= FOLDED and folds(inner)
        kernel = self._rows[folding][apart]
        for of, guessed in self._guessed if inner >= VECTOR else ():
            first = guessed[folding][apart]
            kernel = Either(lambda x, s, z, code, y, of=of: of(x, s), first, kernel)
        return kernel


def _kernels(some_rows: Callable[..., Any], name: str) -> tuple[Kernel, Kernel]:
    """Of rows, and of data that are not flat, what does some of them."""

    def rows(
        begin: Any, end: Any, look: Any, least: Any, most: Any, channels: Any, inner: Any,
        x: Any, bottom: Any, top: Any, eps: Any, lo: Any, hi: Any, nan: Any, scale: Any,
        zero_point: Any, y: Any,
    ) -> Any:  # fmt: skip
        """Items (row); whether the first `look` qparams are `usual`, when all is done."""
        some = max(1, min(GRAIN // inner, ON_STACK))
        for first in range(begin, end, some):
            stop = min(first + some, end)
            some_rows(first, stop, channels, inner, x, bottom, top, eps, lo, hi, nan, scale,
                      zero_point, y)  # fmt: skip
        return usual(look, scale, zero_point, least, most)

    def rows_apart(
        begin: Any, end: Any, views: Any, look: Any, least: Any, most: Any, channels: Any,
        inner: Any, x: Any, bottom: Any, top: Any, eps: Any, lo: Any, hi: Any, nan: Any,
        scale: Any, zero_point: Any, y: Any,
    ) -> Any:  # fmt: skip
        """The same of data that are not flat."""
        most_rows = max(1, min(GRAIN // inner, ON_STACK))
        made = room(x, most_rows * inner)
        packed = lend(made)
        while begin < end:
            first = begin * inner
            m = up_to_row(views, first, min(most_rows, end - begin) * inner, LONG_ROW)
            u, n = taken(x, views, 0, first, m, packed, None), m // inner
            some_rows(0, n, n, inner, u, bottom, top, eps, lo, hi, nan,
                      scale[begin : begin + n], zero_point[begin : begin + n],
                      y[first : first + m])  # fmt: skip
            begin += n
        keep(made)
        return usual(look, scale, zero_point, least, most)

    return (
        Kernel(rows, name, _signature),
        Kernel(rows_apart, f"{name}_apart", _apart_signature),
    )


def _by_rule(choice: Choose, quantize: Elementwise, folding: bool) -> tuple[Kernel, Kernel]:
    """Codes by the rule, of rows whose extremes are folded or not."""
    choose, rule = choice.some_rows[folding], quantize.rule

    @called
    def some_rows(
        begin: Any, end: Any, channels: Any, inner: Any, x: Any, bottom: Any, top: Any,
        eps: Any, lo: Any, hi: Any, nan: Any, scale: Any, zero_point: Any, y: Any,
    ) -> None:  # fmt: skip
        choose(begin, end, inner, x, bottom, top, eps, 0, scale, zero_point)
        rule(begin * inner, end * inner, 0, 0.0, 0.0, 0, channels, inner, x, scale,
             zero_point, lo, hi, nan, y, None)  # fmt: skip

    return _kernels(some_rows, f"{choice.formula.__name__}_rows_{folding}")


def _guessed(
    choice: Choose, quantize: Elementwise, guess: Guess, folding: bool
) -> tuple[Kernel, Kernel]:
    """Codes that are guessed, and by the rule where one is in doubt."""
    find, choose, rule = ranges[folding], choice.formula, quantize.rule
    split, some_codes = guess.split, _codes_of(guess.code)

    @called
    def some_rows(
        begin: Any, end: Any, channels: Any, inner: Any, x: Any, bottom: Any, top: Any,
        eps: Any, lo: Any, hi: Any, nan: Any, scale: Any, zero_point: Any, y: Any,
    ) -> None:  # fmt: skip
        s, z, number, base = item(scale), item(zero_point), np.float32(0), np.uintp(begin)
        least, greatest = local(ON_STACK, item(x)), local(ON_STACK, item(x))
        p, q, r = local(ON_STACK, number), local(ON_STACK, number), local(ON_STACK, number)
        find(x, begin, end - begin, inner, least, greatest, 0)
        for k in range(np.uintp(end - begin)):
            chosen = choose(least[k], greatest[k], bottom, top, eps, 0, s)
            unit, zero = like(chosen[0], s), like(chosen[1], z)
            scale[base + k], zero_point[base + k] = unit, zero
            p[k], q[k], r[k] = split(unit, zero)
        for row in range(begin, end):
            at, stop, k = row * inner, (row + 1) * inner, row - begin
            while at < stop:
                m = LONG if stop - at >= LONG + VECTOR else stop - at
                if some_codes(x, at, m, (p[k], q[k], r[k]), y):
                    rule(at, at + m, 0, 0.0, 0.0, 0, channels, inner, x, scale,
                         zero_point, lo, hi, nan, y, None)  # fmt: skip
                at += m

    return _kernels(some_rows, f"{choose.__name__}_{guess.code.__name__}_{folding}")


def _codes_of(code_of: Callable[..., Any]) -> Any:
    """What makes codes of `n` elements from `at` on, and tells whether any is in doubt.

    Of VECTOR elements or more: where they are not whole vectors, some are done twice.
    """

    def codes(x: Any, at: Any, n: Any, p: Any, y: Any) -> Any:
        first, m, doubt = np.uintp(at), np.uintp(n), np.int32(0)
        whole = m & np.uintp(_WHOLE)
        for k in range(whole):
            code, one = code_of(x[first + k], p)
            store(y, first + k, code)
            doubt = np.int32(doubt | one)
        # VECTOR or 0, which the compiler does not see, or it would leave no loop to vectorise.
        rest = ((m + np.uintp(VECTOR - 1)) & np.uintp(_WHOLE)) - whole
        last = first + m - np.uintp(VECTOR)
        for k in range(rest):
            code, one = code_of(x[last + k], p)
            store(y, last + k, code)
            doubt = np.int32(doubt | one)
        return doubt != 0

    return inlined(codes)


def _signature(x: Any, scale: Any, zero_point: Any, code: str, y: Any) -> Types:
    number, integer, qparams = NUMBER_TYPES[code], types.int64, map(array_type, (scale, zero_point))
    return (
        types.intp, types.float64, types.float64, types.intp, types.intp, array_type(x), integer,
        integer, types.float64, number, number, number, *qparams, array_type(y),
    )  # fmt: skip


def _apart_signature(*key: Any) -> Types:
    return VIEWS, *_signature(*key)


dynamic_per_token = Dynamic(choose_per_token, per_token, *SYMMETRIC)
dynamic_per_token_asymmetric = Dynamic(choose_per_token_asymmetric, per_token, *ASYMMETRIC)
