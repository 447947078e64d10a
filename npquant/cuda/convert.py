"""Plain conversion between dtypes, with PyTorch's rules for what does not fit."""

from __future__ import annotations

from typing import Any

import numpy as np

from npquant.cuda.loops import Map, flat_map, nothing
from npquant.formulas.base import formula
from npquant.layout import PER_TENSOR
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


@formula
def _filled(x: Any, p: Any, constants: Any, y: Any) -> Any:
    return (like(constants[0], item(y[0])),)


_fill = Map(nothing, _filled, "fill")


def fill(y: Any, value: float) -> None:
    """Write one value to all of `y`."""
    _fill(PER_TENSOR, (y,), 0, 0, (value,), ("int32", "int32", ("float64",)), (y,))
