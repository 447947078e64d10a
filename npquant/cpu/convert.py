"""Plain conversion between dtypes, with PyTorch's rules for what does not fit."""

from __future__ import annotations

from typing import Any

import numpy as np

from npquant.cpu import together
from npquant.cpu.maps import mapped
from npquant.cpu.memory import LONG
from npquant.primitives import converted, item


def _convert(begin: Any, end: Any, x: Any, y: Any) -> None:
    if begin == end:
        return
    base, zero = np.uintp(begin), item(y)
    room = together.room(LONG, None, converted(x[base], zero), y)  # for its type alone
    if room is None:  # in pieces, float8 takes a quarter longer
        for k in range(np.uintp(end - begin)):
            y[base + k] = converted(x[base + k], zero)
        return
    for start in range(begin, end, LONG):
        base, m = np.uintp(start), np.uintp(min(LONG, end - start))
        for k in range(m):
            together.hold(room, k, y, base + k, converted(x[base + k], zero))
        together.release(room, m, y, base)


#: x -> y, of floating dtypes or from one to integers.
convert = mapped(_convert, "convert")
