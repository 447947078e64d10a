"""Divisions by what a launch is told: a product and a shift, where a GPU takes twenty instructions.

The host finds the factor. (Granlund and Montgomery, "Division by invariant integers using
multiplication", 1994.)
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numba import types

from npquant.cuda.target import COUNT
from npquant.formulas.base import formula

#: A divisor as a kernel is told of it.
DIVISOR = types.UniTuple(types.uint32, 3)

_WORD = np.uint64(32)


@lru_cache(maxsize=1024)
def divisor(by: int) -> tuple[int, int, int]:
    """(by, factor, shift) of a divisor of 32 bits, for `quotient`."""
    shift = (by - 1).bit_length()
    return by, (((1 << shift) - by) << 32) // by + 1, shift


@formula
def quotient(n: Any, by: Any) -> Any:
    """n // by, of any `n` of 32 bits."""
    _, factor, shift = by
    n = np.uint64(n)
    return COUNT((((n * np.uint64(factor)) >> _WORD) + n) >> np.uint64(shift))
