"""Minima and maxima of rows that are not long, many of them together.

A loop over a row alone would end before it is in its stride. So a row becomes LANES keys, as whole
vectors, and of many rows four neighbours at a time are compared, until one is left of each. Rows
of fewer elements are two vectors of 8, 4 or 2, the first ones and the last ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from npquant.cpu.fetching import beyond_second
from npquant.cpu.lowered import called
from npquant.cpu.rooms import local
from npquant.cpu.vectors import lanes_of_row, lanes_of_row_fetched, range_of_short_row
from npquant.formulas.base import extremes_of
from npquant.layout import LANES
from npquant.primitives import item, key

#: Rows up to LONGEST elements are folded. (Measured.)
LONGEST = 1024
#: MANY rows at a time at most, and AT_ONCE elements, or memory would wait for too long; of rows of
#: LANES, where less is done, MOST. (Measured.)
MANY, AT_ONCE, MOST = 32, 4096, 128
_LANES_OF_ALL, _FEWER = LANES * MANY, 4 * MOST


def folds(inner: int) -> bool:
    """Whether rows of `inner` elements are folded together."""
    return 0 < inner <= LONGEST


@called
def _short(x: Any, row: Any, rows: Any, inner: Any, least: Any, greatest: Any, to: Any) -> None:
    """Those of rows of less than LANES elements."""
    kind = key(x[0])
    lo, hi = local(_FEWER, kind), local(_FEWER, kind)
    for begin in range(0, rows, _FEWER):
        n, first = min(_FEWER, rows - begin), (row + begin) * inner
        if inner > 8:
            for k in range(n):
                range_of_short_row(x, first + k * inner, inner, lo, hi, k, 8)
        elif inner > 4:
            for k in range(n):
                range_of_short_row(x, first + k * inner, inner, lo, hi, k, 4)
        elif inner > 2:
            for k in range(n):
                range_of_short_row(x, first + k * inner, inner, lo, hi, k, 2)
        elif inner == 2:
            for k in range(np.uintp(n)):
                i = np.uintp(first) + k + k
                a, b = key(x[i]), key(x[i + np.uintp(1)])
                lo[k], hi[k] = min(a, b), max(a, b)
        else:
            for k in range(np.uintp(n)):
                lo[k] = hi[k] = key(x[np.uintp(first) + k])
        base = np.uintp(to + begin)
        for k in range(np.uintp(n)):
            least[base + k], greatest[base + k] = extremes_of(lo[k], hi[k], item(x))


def ranges_by_folding(fetched: bool) -> Callable[..., Any]:
    """How ranges of rows are found; of arrays beyond the caches what comes next may be fetched."""

    def folded_ranges(
        x: Any, row: Any, rows: Any, inner: Any, least: Any, greatest: Any, to: Any
    ) -> None:
        """The least and the greatest of `rows` rows from `row` on, to the places from `to` on."""
        if inner < LANES:
            _short(x, row, rows, inner, least, greatest, to)
            return
        kind = key(x[0])
        u, v = local(_LANES_OF_ALL, kind), local(_LANES_OF_ALL, kind)
        lo, hi = local(_FEWER, kind), local(_FEWER, kind)
        one, two, three, four = np.uintp(1), np.uintp(2), np.uintp(3), np.uintp(4)
        ahead = fetched and beyond_second(x)
        some = MOST if inner == LANES else min(MANY, AT_ONCE // inner)
        for begin in range(0, rows, some):
            n = min(some, rows - begin)
            if inner == LANES:  # which are the lanes already
                base = np.uintp((row + begin) * inner)
                for k in range(np.uintp(4 * n)):
                    i = base + four * k
                    p, q, r, s = x[i], x[i + one], x[i + two], x[i + three]
                    lo[k] = min(min(key(p), key(q)), min(key(r), key(s)))
                    hi[k] = max(max(key(p), key(q)), max(key(r), key(s)))
            else:
                for m in range(n):
                    at = (row + begin + m) * inner
                    if ahead:
                        lanes_of_row_fetched(x, at, inner, u, v, m * LANES)
                    else:
                        lanes_of_row(x, at, inner, u, v, m * LANES)
                for k in range(np.uintp(4 * n)):
                    i = four * k
                    lo[k] = min(min(u[i], u[i + one]), min(u[i + two], u[i + three]))
                    hi[k] = max(max(v[i], v[i + one]), max(v[i + two], v[i + three]))
            base = np.uintp(to + begin)
            for k in range(np.uintp(n)):
                i = four * k
                a = min(min(lo[i], lo[i + one]), min(lo[i + two], lo[i + three]))
                b = max(max(hi[i], hi[i + one]), max(hi[i + two], hi[i + three]))
                least[base + k], greatest[base + k] = extremes_of(a, b, item(x))

    return called(folded_ranges)  # type: ignore[no-any-return]
