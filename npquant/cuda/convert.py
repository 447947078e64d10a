"""Plain conversion between dtypes, with PyTorch's rules for what does not fit."""

from __future__ import annotations

from typing import Any

import numpy as np

from npquant.cuda.arrays import DeviceArray, device
from npquant.cuda.loops import mapped
from npquant.cuda.walk import copy
from npquant.formulas.base import formula
from npquant.primitives import converted, item, like, widen


@formula
def _converted(x: Any, y: Any) -> Any:
    return converted(x[0], item(y))


@formula
def _wrapped(x: Any, y: Any) -> Any:
    return like(x[0], item(y))


@formula
def _nonzero(x: Any, y: Any) -> Any:
    return x[0] != like(np.float32(0), x[0])


@formula
def _nonzero_float(x: Any, y: Any) -> Any:
    return widen(x[0]) != np.float32(0)  # a format that the compiler was taught has no !=


_convert = mapped(_converted, "convert")
_wrap = mapped(_wrapped, "wrap")
_to_bool = mapped(_nonzero, "nonzero")
_float_to_bool = mapped(_nonzero_float, "nonzero_float")


def convert(x: Any, y: Any, *, given: bool = False) -> None:
    """x -> y, of any two dtypes: what NumPy does for the CPU, this does too."""
    x, y = device(x), device(y)
    if x.dtype == y.dtype:
        copy(x, y)
    elif y.dtype == np.bool_:
        (_to_bool if x.dtype.kind in "iu" else _float_to_bool)(x, y)
    elif x.dtype.kind in "iub" and y.dtype.kind in "iu":
        _wrap(x, y)
    else:
        _convert(x, y)


def cast(x: DeviceArray, dtype: np.dtype[Any]) -> DeviceArray:
    """`x` in another dtype."""
    if x.dtype == dtype:
        return x
    y = x.new(x.shape, dtype)
    convert(x, y)
    return y


@formula
def _inverse(x: Any, y: Any) -> Any:
    return like(np.float64(1) / np.float64(widen(x[0])), item(y))


#: scale -> its reciprocal, divided in float64: what the host does to one that is a number.
inverse = mapped(_inverse, "inverse")
