"""Plain conversion between dtypes, with PyTorch's rules for what does not fit."""

from __future__ import annotations

from typing import Any

import numpy as np

from npquant.cuda.loops import flat_map
from npquant.formulas.base import formula
from npquant.primitives import converted, item, like, widen


@formula
def _converted(x: Any, y: Any) -> Any:
    return converted(x[0], item(y))


#: x -> y, of floating dtypes or from one to integers.
convert = flat_map(_converted, "convert")


@formula
def _inverse(x: Any, y: Any) -> Any:
    return like(np.float64(1) / np.float64(widen(x[0])), item(y))


#: scale -> its reciprocal, divided in float64: what the host does to one that is a number.
inverse = flat_map(_inverse, "inverse")
