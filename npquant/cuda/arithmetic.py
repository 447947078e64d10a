"""The little arithmetic on arrays that modules and the tape do beside the ops."""

from __future__ import annotations

from typing import Any

from npquant.cuda.loops import Map, flat_map, nothing
from npquant.formulas.base import formula
from npquant.formulas.qparams import larger, smaller
from npquant.layout import PER_TENSOR
from npquant.primitives import item, like


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
add = flat_map(_sum, "add")
maximum = flat_map(_maximum, "maximum")
minimum = flat_map(_minimum, "minimum")


@formula
def _filled(x: Any, p: Any, constants: Any, y: Any) -> Any:
    return (like(constants[0], item(y[0])),)


@formula
def _at_least(x: Any, p: Any, constants: Any, y: Any) -> Any:
    return (larger(x[0], like(constants[0], x[0])),)


@formula
def _plus(x: Any, p: Any, constants: Any, y: Any) -> Any:
    return (x[0] + like(constants[0], x[0]),)


def _of_number(element: Any, name: str) -> Any:
    """x, number -> y."""
    kernel = Map(nothing, element, name)

    def call(x: Any, number: float, y: Any) -> None:
        kernel(PER_TENSOR, (x,), 0, 0, (number,), ("int32", "int32", ("float64",)), (y,))

    return call


_fill = _of_number(_filled, "fill")
add_number = _of_number(_plus, "add_number")
maximum_number = _of_number(_at_least, "maximum_number")


def fill(y: Any, value: float) -> None:
    """Write one value to all of `y`."""
    _fill(y, value, y)
