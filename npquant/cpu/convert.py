"""Plain conversion between dtypes, with PyTorch's rules for what does not fit."""

from __future__ import annotations

from typing import Any

import numpy as np

from npquant.cpu.maps import mapped
from npquant.primitives import converted, item


def _convert(begin: Any, end: Any, x: Any, y: Any) -> None:
    base, zero = np.uintp(begin), item(y)
    for k in range(np.uintp(end - begin)):
        y[base + k] = converted(x[base + k], zero)


#: x -> y, of floating dtypes or from one to integers.
convert = mapped(_convert, "convert")
