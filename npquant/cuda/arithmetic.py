"""The little arithmetic on arrays that modules and the tape do beside the ops."""

from __future__ import annotations

from typing import Any

import numpy as np

from npquant.cuda.elements import Formula
from npquant.cuda.loops import Map, mapped, nothing
from npquant.formulas.base import clamp, formula
from npquant.formulas.qparams import larger, smaller
from npquant.layout import PER_TENSOR
from npquant.primitives import item, like, rint, widen


@formula
def _sum(x: Any, y: Any) -> Any:
    return x[0] + x[1]


@formula
def _maximum(x: Any, y: Any) -> Any:
    return larger(x[0], x[1])


@formula
def _minimum(x: Any, y: Any) -> Any:
    return smaller(x[0], x[1])


#: a, b -> y. A NaN of either is the result.
add = mapped(_sum, "add")
maximum = mapped(_maximum, "maximum")
minimum = mapped(_minimum, "minimum")


@formula
def _filled(x: Any, p: Any, constants: Any, y: Any) -> Any:
    return (like(constants[0], item(y[0])),)


@formula
def _at_least(x: Any, p: Any, constants: Any, y: Any) -> Any:
    return (larger(x[0], like(constants[0], x[0])),)


@formula
def _plus(x: Any, p: Any, constants: Any, y: Any) -> Any:
    return (x[0] + like(constants[0], x[0]),)


@formula
def _rounded(x: Any, p: Any, constants: Any, y: Any) -> Any:
    lo, hi = constants
    return (like(clamp(np.float64(widen(rint(x[0]))), lo, hi), item(y[0])),)


def _of_numbers(element: Any, name: str) -> Any:
    """A function of x, numbers and then y, which is written to."""
    kernel = Map(Formula(nothing, element), name)

    def call(x: Any, *numbers_and_y: Any) -> None:
        *numbers, y = numbers_and_y
        names = "int32", "int32", ("float64",) * len(numbers)
        kernel(PER_TENSOR, (x,), 0, 0, tuple(numbers), names, (y,))

    return call


_fill = _of_numbers(_filled, "fill")
add_number = _of_numbers(_plus, "add_number")
maximum_number = _of_numbers(_at_least, "maximum_number")
#: rint(x), clamped to two numbers.
rounded = _of_numbers(_rounded, "rounded")


def fill(y: Any, value: float) -> None:
    """Write one value to all of `y`."""
    _fill(y, value, y)
