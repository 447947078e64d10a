"""How far apart two arrays are: what quantization has cost.

Sums are taken in float64, in an order that depends on the shape alone, without a temporary of the
size of the arrays, but for float64 whose squares, or those of their differences, leave float64 or
are 0.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import numpy as np

from npquant import checks, dtypes
from npquant.cpu.metrics import dot, total_squared_difference
from npquant.dtypes import INTEGERS

__all__ = ["cosine", "max_code_difference", "mse", "sqnr"]

Array = np.ndarray[Any, Any]

_KINDS = np.ndarray, np.generic


def sqnr(reference: Array, actual: Array) -> float:
    """Signal-to-quantization-noise ratio in decibels.

    ``10 * (log10(sum(reference**2)) - log10(sum((reference - actual)**2)))``.

    Parameters
    ----------
    reference, actual : ndarray
        What should be and what is, of one shape; float16, bfloat16, float32 or float64 each.

    Returns
    -------
    float
        Decibels: infinite where both are equal; minus infinite where the reference alone is 0
        throughout, or `actual` alone has an infinity; NaN where both are 0, one has a NaN, or the
        reference an infinity.

    Raises
    ------
    TypeError
        If one is no array of floats.
    ValueError
        If shapes differ, or there are no elements.

    Examples
    --------
    >>> import numpy as np
    >>> from npquant.metrics import sqnr
    >>> sqnr(np.array([10.0, 0.0]), np.array([9.0, 0.0]))
    20.0
    """
    a, b = _two(reference, actual)
    (signal, x), (noise, y) = _square(a), _squared_difference(a, b)
    if signal != signal or noise != noise or signal == noise == 0:
        return math.nan
    return 10 * (_log10(signal) - _log10(noise) + 2 * (x - y) * _log10(2))


def mse(reference: Array, actual: Array) -> float:
    """Mean squared difference.

    Parameters
    ----------
    reference, actual : ndarray
        What should be and what is, of one shape; float16, bfloat16, float32 or float64 each.

    Returns
    -------
    float
        The mean of ``(reference - actual)**2``.

    Raises
    ------
    TypeError
        If one is no array of floats.
    ValueError
        If shapes differ, or there are no elements.

    Examples
    --------
    >>> import numpy as np
    >>> from npquant.metrics import mse
    >>> mse(np.array([1.0, 2.0]), np.array([1.0, 4.0]))
    2.0
    """
    a, b = _two(reference, actual)
    found, e = total_squared_difference((a, b)), 0
    if found == math.inf:  # which the mean need not be
        found, e = _squared_difference(a, b)
    with np.errstate(over="ignore"):
        return float(np.ldexp(found / a.size, 2 * e))


def cosine(reference: Array, actual: Array) -> float:
    """Cosine of the angle between two arrays, each taken as one vector.

    Parameters
    ----------
    reference, actual : ndarray
        What should be and what is, of one shape; float16, bfloat16, float32 or float64 each.

    Returns
    -------
    float
        Between -1 and 1; NaN where one is 0 throughout, or has a NaN or an infinity.

    Raises
    ------
    TypeError
        If one is no array of floats.
    ValueError
        If shapes differ, or there are no elements.

    Examples
    --------
    >>> import numpy as np
    >>> from npquant.metrics import cosine
    >>> cosine(np.array([3.0, 4.0]), np.array([4.0, 3.0]))
    0.96
    """
    a, b = _two(reference, actual)
    (u, x), (v, y) = _square(a), _square(b)
    lengths = math.sqrt(u) * math.sqrt(v)
    if lengths == 0:
        return math.nan
    ratio = dot((_divided(a, x), _divided(b, y))) / lengths
    return max(-1.0, min(1.0, ratio)) if ratio == ratio else ratio


def max_code_difference(reference: Array, actual: Array) -> int:
    """The greatest distance between two codes of one element.

    Parameters
    ----------
    reference, actual : ndarray
        Integer codes of one shape, of any integer dtype but uint64, also int4, uint4, int2, uint2.

    Returns
    -------
    int
        The greatest ``|reference - actual|``, which no narrow dtype wraps around.

    Raises
    ------
    TypeError
        If one is no array of integers.
    ValueError
        If shapes differ, or there are no elements.

    Examples
    --------
    >>> import numpy as np
    >>> from npquant.metrics import max_code_difference
    >>> max_code_difference(np.array([-128, 5], np.int8), np.array([127, 4], np.int8))
    255
    """
    allowed = INTEGERS | {d for d in dtypes.BOUNDS if d not in dtypes.FLOAT8}
    a, b = _two(reference, actual, allowed)
    parts = np.nditer(
        (a, b), ["external_loop", "buffered"], op_dtypes=[np.int64] * 2, casting="unsafe"
    )
    most = 0
    for x, y in parts:
        apart = np.maximum(x, y) - np.minimum(x, y)  # modulo 2**64, and so right without a sign
        most = max(most, int(apart.view(np.uint64).max()))
    return most


def _square(a: Array) -> tuple[float, int]:
    """The sum of squares divided by 4**e, and e: 0 unless they leave float64."""
    found = dot((a, a))
    if a.dtype != dtypes.float64 or 2.0**-900 <= found < math.inf:
        return found, 0
    reach = max(abs(float(a.min())), abs(float(a.max())))
    e = math.frexp(reach)[1] if 0 < reach < math.inf else 0
    return dot((_divided(a, e),) * 2), e


def _squared_difference(a: Array, b: Array) -> tuple[float, int]:
    """The same of the difference."""
    found = total_squared_difference((a, b))
    if dtypes.float64 not in (a.dtype, b.dtype) or 2.0**-900 <= found < math.inf:
        return found, 0
    with np.errstate(over="ignore", invalid="ignore"):
        d, half = np.subtract(a, b, dtype=np.float64), 0
        if np.isinf(d).any():
            d, half = _divided(a, 1) - _divided(b, 1), 1
    found, e = _square(d)
    return found, e + half


def _divided(a: Array, e: int) -> Array:
    """``a / 2**e``."""
    with np.errstate(under="ignore"):
        return np.ldexp(a.astype(np.float64), -e) if e else a


def _log10(v: float) -> float:
    return math.log10(v) if v > 0 else -math.inf


def _two(
    reference: Any, actual: Any, allowed: Collection[dtypes.DType] = dtypes.FLOATS
) -> tuple[Array, Array]:
    a, b = (
        checks.host_array(v, n, allowed, _KINDS)
        for v, n in ((reference, "reference"), (actual, "actual"))
    )
    checks.of_shape(b, "actual", a.shape)
    if a.size == 0:
        raise ValueError(f"reference must have elements, got shape {a.shape}")
    return (a, b) if a.ndim else (a.reshape(1), b.reshape(1))  # NumPy makes scalars of the others
