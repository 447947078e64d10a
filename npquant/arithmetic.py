"""The little arithmetic that modules, the tape and the optimizers do on arrays themselves.

On NumPy's by NumPy, on arrays on a GPU by kernels: the result is of the kind of the first argument.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from npquant.arrays import described
from npquant.owners import Array


def add(a: Array, b: Array) -> Array:
    """a + b, of one shape."""
    if isinstance(a, np.ndarray):
        return np.asarray(a + b)
    return _by_kernel("add", a, b)


def maximum(a: Array, b: Array) -> Array:
    """The larger of two, element by element; NaN if either is. `b` may be a number."""
    if isinstance(a, np.ndarray):
        return np.asarray(np.maximum(a, b))
    if isinstance(b, (int, float)):
        return _by_kernel("maximum_number", a, number=float(b))
    return _by_kernel("maximum", a, b)


def minimum(a: Array, b: Array) -> Array:
    """The smaller of two, element by element; NaN if either is."""
    return (
        np.asarray(np.minimum(a, b)) if isinstance(a, np.ndarray) else _by_kernel("minimum", a, b)
    )


def without_negative_zero(a: Array) -> Array:
    """a + 0: -0.0 becomes 0.0."""
    if isinstance(a, np.ndarray):
        return a + np.zeros((), a.dtype)
    return _by_kernel("add_number", a, number=0.0)


def rounded(a: Array, lo: int, hi: int, dtype: Any) -> Array:
    """rint(a), clamped, in an integer dtype."""
    if isinstance(a, np.ndarray):
        return np.asarray(np.clip(np.rint(a).astype(np.float64), lo, hi)).astype(dtype)
    x = described(a)
    from npquant.cuda.arithmetic import rounded

    y = x.new(x.shape, np.dtype(dtype))
    rounded(x, lo, hi, y)
    return y.owner


def _by_kernel(name: str, *arrays: Array, number: float | None = None) -> Array:
    x = [described(a) for a in arrays]
    for a in x[1:]:  # a kernel would read past its end
        if (a.shape, a.dtype) != (x[0].shape, x[0].dtype):
            raise ValueError(
                f"arrays must be alike, got {x[0].dtype} of shape {x[0].shape} and {a.dtype} of "
                f"shape {a.shape}"
            )
    from npquant.cuda import arithmetic

    y = x[0].new_alike(x[0].dtype)
    getattr(arithmetic, name)(*x, *(() if number is None else (number,)), y)
    return y.owner
