"""The terms of metrics, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np

from npquant.formulas.base import formula
from npquant.primitives import widen


@formula
def product(values: Any, number: Any) -> Any:
    """A term of the inner product, in float64."""
    a, b = values
    return np.float64(widen(a)) * np.float64(widen(b))


@formula
def squared_difference(values: Any, number: Any) -> Any:
    """A term of the squared distance, in float64."""
    a, b = values
    d = np.float64(widen(a)) - np.float64(widen(b))
    return d * d


@formula
def value(values: Any, number: Any) -> Any:
    """A term of the sum, in float64."""
    (a,) = values
    return np.float64(widen(a))


@formula
def magnitude(values: Any, number: Any) -> Any:
    """A term of the sum of magnitudes, in float64."""
    (a,) = values
    return abs(np.float64(widen(a)))
