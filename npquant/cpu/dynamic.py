"""Rows that are quantized with qparams chosen from them, in one pass.

They are read from memory once: when the qparams of some rows are known, these are still in a cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import types

from npquant.cpu.checks import usual
from npquant.cpu.folded import folds
from npquant.cpu.loops import NUMBER_TYPES
from npquant.cpu.qparams import ROWS, Choose, choose_per_token, choose_per_token_asymmetric
from npquant.cpu.quantize import per_token
from npquant.cpu.shortcuts import Guessed, guessable
from npquant.cpu.target import GRAIN, Either, Kernel, Types, array_type

#: Rows of one element at most: more have a faster way. Bytes of a row at most, or no cache of a
#: core holds it, and threads may have none. (Measured.)
MOST_OF_ONE, LONGEST = 256, 1 << 18
#: Lengths of rows that are quantized in blocks, by the rule alone.
BLOCKS = 16, 32, 48, 64
#: Rows up to here are folded: of longer ones few are done at a time, in vain. (Measured.)
FOLDED = 512


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
    quantize : Guessed
        What is done with a row then.
    """

    def __init__(self, choice: Choose, quantize: Guessed) -> None:
        def kernel(
            run: Callable[..., Any], name: str, folding: bool, blocks: bool = False
        ) -> Kernel:
            choose = choice.some_rows[folding]

            def rows(
                begin: Any, end: Any, look: Any, least: Any, most: Any, channels: Any, inner: Any,
                x: Any, bottom: Any, top: Any, eps: Any, lo: Any, hi: Any, nan: Any, scale: Any,
                zero_point: Any, y: Any,
            ) -> Any:  # fmt: skip
                """Items (row); whether the first `look` qparams are `usual`, when all is done."""
                some, items = max(1, min(GRAIN // inner, ROWS)), 1 if blocks else inner
                for first in range(begin, end, some):
                    stop = min(first + some, end)
                    choose(first, stop, inner, x, bottom, top, eps, 0, scale, zero_point)
                    run(first * items, stop * items, 0, 0.0, 0.0, 0, channels, inner, x, scale,
                        zero_point, lo, hi, nan, y, None)  # fmt: skip
                return usual(look, scale, zero_point, least, most)

            return Kernel(rows, f"{choice.formula.__name__}_{name}", _signature)

        self._rows = {
            folding: Either(
                lambda x, scale, zero_point, code, y: guessable(x, y, scale),
                kernel(quantize.guess, f"guessed_{name}", folding),
                kernel(quantize.rule, name, folding),
            )
            for folding, name in ((False, "rows"), (True, "folded_rows"))
        }
        self._blocks = kernel(quantize.rule_of_blocks, "short_rows", folding=True, blocks=True)

    def of_rows(self, inner: int) -> Any:
        """The kernel of rows of `inner` elements."""
        return self._blocks if inner in BLOCKS else self._rows[inner <= FOLDED and folds(inner)]


def _signature(x: Any, scale: Any, zero_point: Any, code: str, y: Any) -> Types:
    number, integer, qparams = NUMBER_TYPES[code], types.int64, map(array_type, (scale, zero_point))
    return (
        types.intp, types.float64, types.float64, types.intp, types.intp, array_type(x), integer,
        integer, types.float64, number, number, number, *qparams, array_type(y),
    )  # fmt: skip


dynamic_per_token = Dynamic(choose_per_token, per_token)
dynamic_per_token_asymmetric = Dynamic(choose_per_token_asymmetric, per_token)
