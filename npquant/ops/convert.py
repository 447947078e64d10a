"""Conversion between dtypes."""

from __future__ import annotations

from typing import Any

import numpy as np

from npquant import backend, checks, dtypes
from npquant.checks import Array
from npquant.meta import ArraySpec

_CONVERTIBLE = dtypes.FLOATS | dtypes.INTEGERS | dtypes.FLOAT8 | {np.dtype(np.bool_)}
_COMPLEX = frozenset({np.dtype(np.complex64), np.dtype(np.complex128)})


def convert_element_type(input: Array, dtype: Any, *, out: Array | None = None) -> Array:
    """Convert to another dtype, with PyTorch's rules for what does not fit."""
    x = checks.array(input, "input")
    if x.dtype not in _CONVERTIBLE | _COMPLEX:
        raise TypeError(
            f"input must have a dtype among {dtypes.names(_CONVERTIBLE | _COMPLEX)}, got {x.dtype}"
        )
    target = dtypes.canonical(dtype, "dtype")
    if target not in _CONVERTIBLE:
        raise TypeError(f"dtype must be one of {dtypes.names(_CONVERTIBLE)}, got {target}")
    y = checks.output(out, x, target)
    if isinstance(x, ArraySpec):
        return y
    if x.dtype in _COMPLEX:
        x = x.real
    if target == np.bool_:
        np.not_equal(x, x.dtype.type(0), out=y)
    elif x.dtype == target or not (_floating(x.dtype) or _floating(target)):
        np.copyto(y, x, casting="unsafe")  # integers wrap in NumPy as they do in PyTorch
    else:
        backend.of(x).convert(x, y)
    return y


def _floating(dtype: dtypes.DType) -> bool:
    return dtype in dtypes.FLOATS or dtype in dtypes.FLOAT8
