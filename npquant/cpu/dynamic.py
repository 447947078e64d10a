"""Rows that are quantized with qparams chosen from them, in one pass.

They are read from memory once: when the qparams of some rows are known, these are still in a cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import types

from npquant.cpu.checks import usual
from npquant.cpu.extremes import range_of_run
from npquant.cpu.loops import NUMBER_TYPES
from npquant.cpu.memory import local
from npquant.cpu.quantize import per_token
from npquant.cpu.shortcuts import Guessed, guessable
from npquant.cpu.target import GRAIN, Either, Kernel, Types, array_type
from npquant.formulas.qparams import token_asymmetric_qparams, token_qparams
from npquant.primitives import item, like

#: Rows of one element at most: more have a faster way. Bytes of a row at most, or no cache of a
#: core holds it, and threads may have none. (Measured.)
MOST_OF_ONE, LONGEST = 256, 1 << 18
#: Rows at most whose ranges wait on the stack.
ROWS = 512


def one_pass(rows: int, inner: int, itemsize: int) -> bool:
    """Whether rows are best done one by one."""
    if inner == 1:
        return 0 < rows <= MOST_OF_ONE
    return rows > 0 and 0 < inner <= LONGEST // itemsize


class Dynamic:
    """x -> the scale and the zero point of each row, and its codes: the kernel is `rows`.

    Parameters
    ----------
    formula : callable
        As of `Choose`.
    quantize : Guessed
        What is done with a row then.
    """

    def __init__(self, formula: Callable[..., Any], quantize: Guessed) -> None:
        def rows_by(run: Callable[..., Any]) -> Callable[..., Any]:
            def rows(
                begin: Any, end: Any, look: Any, least: Any, most: Any, channels: Any, inner: Any,
                x: Any, bottom: Any, top: Any, eps: Any, lo: Any, hi: Any, nan: Any, scale: Any,
                zero_point: Any, y: Any,
            ) -> Any:  # fmt: skip
                """Items (row); whether the first `look` qparams are `usual`, when all is done."""
                s, z = item(scale), item(zero_point)
                low, high = local(ROWS, item(x)), local(ROWS, item(x))
                some = max(1, min(GRAIN // inner, ROWS))
                for first in range(begin, end, some):
                    stop = min(first + some, end)
                    for c in range(first, stop):
                        low[c - first], high[c - first] = range_of_run(x, c * inner, inner)
                    for c in range(first, stop):
                        k = c - first
                        chosen = formula(low[k], high[k], bottom, top, eps, 0, s)
                        scale[c], zero_point[c] = like(chosen[0], s), like(chosen[1], z)
                    run(first * inner, stop * inner, 0, 0.0, 0.0, 0, channels, inner, x, scale,
                        zero_point, lo, hi, nan, y, None)  # fmt: skip
                return usual(look, scale, zero_point, least, most)

            return rows

        name = formula.__name__
        self.rows = Either(
            lambda x, scale, zero_point, code, y: guessable(x, y, scale),
            Kernel(rows_by(quantize.guess), f"{name}_guessed_rows", _signature),
            Kernel(rows_by(quantize.rule), f"{name}_rows", _signature),
        )


def _signature(x: Any, scale: Any, zero_point: Any, code: str, y: Any) -> Types:
    number, integer, qparams = NUMBER_TYPES[code], types.int64, map(array_type, (scale, zero_point))
    return (
        types.intp, types.float64, types.float64, types.intp, types.intp, array_type(x), integer,
        integer, types.float64, number, number, number, *qparams, array_type(y),
    )  # fmt: skip


dynamic_per_token = Dynamic(token_qparams, per_token).rows
dynamic_per_token_asymmetric = Dynamic(token_asymmetric_qparams, per_token).rows
