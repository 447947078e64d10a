"""Plain conversion between dtypes, with PyTorch's rules for what does not fit."""

from __future__ import annotations

from typing import Any

import numpy as np

from npquant.cpu import together
from npquant.cpu.borrowed import width
from npquant.cpu.fetching import beyond_second, fetch
from npquant.cpu.lines import AHEAD, FETCHED, LONG
from npquant.cpu.maps import mapped
from npquant.primitives import converted, item


def _convert(begin: Any, end: Any, x: Any, y: Any) -> None:
    if begin == end:
        return
    base, zero = np.uintp(begin), item(y)
    room = together.room(LONG, None, converted(x[base], zero), y)  # for its type alone
    # Without a room pieces take longer, unless what comes next is fetched; with one, fetching does.
    step = end - begin if room is None else LONG
    fetched = room is None and width(x) > width(y) and beyond_second(x)
    if fetched:
        step = FETCHED
    for start in range(begin, end, step):
        base, m = np.uintp(start), np.uintp(min(step, end - start))
        if fetched:
            fetch(x, base + np.uintp(AHEAD), m)
        for k in range(m):
            together.hold(room, k, y, base + k, converted(x[base + k], zero))
        together.release(room, m, y, base)


#: x -> y, of floating dtypes or from one to integers.
convert = mapped(_convert, "convert")
