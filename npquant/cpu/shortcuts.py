"""Ops whose rule is float64, and which float32 does alike for most of what they are given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from npquant.cpu.checks import usual
from npquant.cpu.every_second import brought, rooms_for
from npquant.cpu.fetching import beyond_second, fetch, to_line
from npquant.cpu.lines import AHEAD, FETCHED_FAR, LONG
from npquant.cpu.loops import Elementwise
from npquant.cpu.lowered import called
from npquant.cpu.past import waiting_for
from npquant.cpu.segments import end_past, stretch_of, up_to_past
from npquant.dtypes import FLOAT8, FLOATS, NARROW, float32, float64
from npquant.formulas.guesses import SURE, guess, split_inverse
from npquant.primitives import bits, item, like, of_bits, store

#: Of blocks up to so many elements nothing is guessed.
LONG_GUESSED = 96

#: Codes of one byte.
CODES = 256

_IN_FLOAT32 = FLOATS - {float64}
#: Of zero points: float64, and those that differences are rounded to two bytes for.
_NOT_IN_FLOAT32 = FLOATS - {float32}


class Guessed(Elementwise):
    """An op whose codes float32 knows where PyTorch's rule is float64, but for a few near ties.

    Parameters
    ----------
    parameters, element : callable
        As of `Elementwise`. Both ways to quantize share a guess, which is sure where the rest that
        comes with a code is below `SURE`.
    """

    def __init__(self, parameters: Callable[..., Any], element: Callable[..., Any]) -> None:
        super().__init__(parameters, element)

        def guesses(
            begin: Any, end: Any, look: Any, least: Any, most: Any, first: Any, channels: Any,
            inner: Any, x: Any, scale: Any, zero_point: Any, lo: Any, hi: Any, nan: Any, y: Any,
            mask: Any,
        ) -> Any:  # fmt: skip
            """As `runs`, in pieces; one with a code that is not sure is done again, by the rule."""
            if not usual(look, scale, zero_point, least, most):
                return False
            constants, rooms, fetched = (lo, hi, nan), rooms_for(LONG, x), beyond_second(x)
            while begin < end:
                row = (first + begin) // inner
                c, stop = row % channels, min((row + 1) * inner - first, end)
                p = split_inverse(x, scale[c], zero_point[c], constants, y)
                while begin < stop:
                    m = stop - begin
                    if m > LONG:
                        m = to_line(x, begin) or LONG
                    if fetched:
                        m = min(m, FETCHED_FAR)
                        fetch(x, begin + AHEAD, m)
                    base, farthest = np.uintp(begin), np.int32(0)
                    u, at_u = brought(x, base, np.uintp(m), rooms)
                    for k in range(np.uintp(m)):
                        code, rest = guess(u[at_u + k], p, constants, y)
                        store(y, base + k, code)
                        farthest = max(farthest, rest)
                    if farthest >= SURE:
                        rule = parameters(x, scale[c], zero_point[c], constants, y)
                        for k in range(np.uintp(m)):
                            code, _ = element(u[at_u + k], rule, constants, y)
                            store(y, base + k, code)
                    begin += m
            return True

        by_rule, by_guess = self.rule_of_blocks, called(guesses)

        def blocks(
            begin: Any, end: Any, look: Any, least: Any, most: Any, first: Any, channels: Any,
            inner: Any, x: Any, scale: Any, zero_point: Any, lo: Any, hi: Any, nan: Any, y: Any,
            mask: Any,
        ) -> Any:  # fmt: skip
            """Items (row)."""
            if inner > LONG_GUESSED:
                return by_guess(begin * inner, end * inner, look, least, most, first, channels,
                                inner, x, scale, zero_point, lo, hi, nan, y, mask)  # fmt: skip
            return by_rule(begin, end, look, least, most, first, channels, inner, x, scale,
                           zero_point, lo, hi, nan, y, mask)  # fmt: skip

        name = f"{parameters.__name__}_{element.__name__}_guessed"
        self.shortcut(_guesses, name, guesses, blocks)


def _guesses(x: Any, y: Any, qparams: tuple[Any, Any, Any], unmasked: bool) -> bool:
    """Of data that float32 holds, float64 scales, and integers it holds in its last bits.

    Not of codes as wide as the data: they may lie where these do, which a second look would miss.
    """
    apart, scale = x.base.itemsize != y.itemsize, qparams[0]
    return apart and x.base in _IN_FLOAT32 and scale == float64 and y in NARROW


class Tried(Elementwise):
    """An op of one-byte codes that float32 does for most scales, where PyTorch's rule is float64.

    Every code is tried with a scale before a long run of them is done so.

    Parameters
    ----------
    parameters, element : callable
        As of `Elementwise`.
    split, quick : callable
        The same in float32.
    """

    def __init__(
        self, parameters: Callable[..., Any], element: Callable[..., Any],
        split: Callable[..., Any], quick: Callable[..., Any],
    ) -> None:  # fmt: skip
        super().__init__(parameters, element)

        def tried_to(past: bool) -> Callable[..., Any]:
            def tried(
                begin: Any, end: Any, look: Any, least: Any, most: Any, first: Any, channels: Any,
                inner: Any, x: Any, scale: Any, zero_point: Any, lo: Any, hi: Any, nan: Any, y: Any,
                mask: Any,
            ) -> Any:  # fmt: skip
                """As `runs`; one of which float32 gets a code wrong is done by the rule."""
                if not usual(look, scale, zero_point, least, most):
                    return False
                constants, rooms = (lo, hi, nan), rooms_for(LONG, x)
                waiting, held = waiting_for(y), 0
                while begin < end:
                    row = (first + begin) // inner
                    stop = min((row + 1) * inner - first, end)
                    c = row % channels
                    rule = parameters(x, scale[c], zero_point[c], constants, y)
                    p = split(x, scale[c], zero_point[c], constants, y)
                    wrong = np.int32(stop - begin < LONG)
                    for k in range(np.uintp(0 if wrong else CODES)):
                        q = of_bits(np.int32(k), item(x))
                        value, _ = element(q, rule, constants, y)
                        tried, _ = quick(q, p, constants, y)
                        wrong |= bits(like(value, tried)) ^ bits(tried)
                    while begin < stop:
                        m, base = min(stop - begin, LONG), np.uintp(begin)
                        if past:
                            m = min(m, up_to_past(y, begin))
                        u, at_u = brought(x, base, np.uintp(m), rooms)
                        if past and wrong:
                            held = by_rule(u, at_u, begin, m, rule, constants, y, waiting, held)
                        elif past:
                            held = quickly(u, at_u, begin, m, p, constants, y, waiting, held)
                        elif wrong:
                            for k in range(np.uintp(m)):
                                value, _ = element(u[at_u + k], rule, constants, y)
                                store(y, base + k, value)
                        else:
                            for k in range(np.uintp(m)):
                                value, _ = quick(u[at_u + k], p, constants, y)
                                store(y, base + k, value)
                        begin += m
                if past:
                    end_past(y, end, waiting, held)
                return True

            return tried

        name = f"{split.__name__}_{quick.__name__}"
        by_rule, quickly = stretch_of(element), stretch_of(quick)
        self.shortcut(_triable, name, tried_to(False), past=tried_to(True))


def _triable(x: Any, y: Any, qparams: tuple[Any, Any, Any], unmasked: bool) -> bool:
    """Of integers of a byte, float64 scales, and differences and results in float32."""
    scale, zero_point, _ = qparams
    few, wide = x.base.itemsize == 1 and x.base not in FLOAT8, scale == np.float64
    return few and wide and zero_point not in _NOT_IN_FLOAT32 and y == np.float32
