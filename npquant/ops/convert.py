"""Conversion between dtypes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from npquant import backend, checks, dtypes
from npquant.meta import ArraySpec
from npquant.ops.fast_path import repeated
from npquant.owners import Array, on_device

_FLOATING: frozenset[dtypes.DType] = dtypes.FLOATS | dtypes.FLOAT8
_CONVERTIBLE: frozenset[dtypes.DType] = dtypes.REALS | _FLOATING | {dtypes.bool_}
_COMPLEX: frozenset[dtypes.DType] = frozenset({np.dtype(np.complex64), np.dtype(np.complex128)})


def convert_element_type(input: Array, dtype: Any, *, out: Array | None = None) -> Array:
    """Convert to another dtype, with PyTorch's rules for what does not fit.

    Floats become floats by rounding to nearest, ties to even; float64 reaches two-byte floats by
    way of float32. Too large a value becomes infinite, but in float8_e4m3fn the bound 448 of its
    sign, also for an infinity; a NaN stays NaN. Floats become integers by truncation, to uint8,
    uint32 and int64 by way of int64, to others by way of int32, where what does not fit, an
    infinity too, is the least value; then they wrap, as integers do. A NaN becomes 0. To bool,
    everything but zero is True; to all others, the real part of a complex number is taken.

    Parameters
    ----------
    input : ndarray or ArraySpec
        Values of any shape: float16, bfloat16, float32 or float64, float8_e4m3fn, float8_e5m2,
        int8 to int64, uint8 to uint32, bool, complex64 or complex128 (not on a GPU).
    dtype : dtype
        Dtype of the result: float16, bfloat16, float32 or float64, float8_e4m3fn, float8_e5m2,
        int8 to int64, uint8 to uint32, or bool.
    out : ndarray or ArraySpec, optional
        Where to write the result: an array of its shape and dtype, either the very array that is
        read or one that does not overlap it. By default a new array.

    Returns
    -------
    ndarray or ArraySpec
        Values of the shape of `input` and the dtype `dtype`.

    Raises
    ------
    TypeError
        If an argument is of the wrong kind or of a dtype that is not allowed.
    ValueError
        If `out` does not fit.

    See Also
    --------
    quantize_per_tensor : Quantize with one scale and one zero point.

    Notes
    -----
    Corresponds to ``torch.ops.quantized_decomposed.convert_element_type.no_fuse`` of PyTorch 2.13.
    The formula is that of ``torch/ao/quantization/fx/_decomposed.py``.

    Departures from PyTorch: D4, D10, D29, D30; see docs/departures.md.

    Examples
    --------
    >>> import numpy as np
    >>> import npquant as nq
    >>> x = np.array([300, -1.5, np.nan], np.float32)
    >>> nq.convert_element_type(x, np.int8)
    array([44, -1,  0], dtype=int8)
    >>> nq.convert_element_type(x, np.float16)
    array([300. ,  -1.5,   nan], dtype=float16)
    """
    x = checks.array(input, "input")
    there = on_device(x)
    x = checks.native(x, "input", _CONVERTIBLE if there else _CONVERTIBLE | _COMPLEX, out)
    target = dtypes.one_of(dtype, "dtype", _CONVERTIBLE)
    if there and (done := _on_gpu(type(x), target)(x, out)) is not None:
        return done
    y = checks.output(out, x, target)
    if isinstance(x, ArraySpec):
        return checks.returned(out, y)
    if there:
        backend.of(x).convert(x, y)
        return checks.returned(out, y)
    if target == np.bool_:
        with np.errstate(invalid="ignore"):  # of signalling NaNs
            np.not_equal(x, x.dtype.type(0), out=y)
        return checks.returned(out, y)
    if x.dtype in _COMPLEX:
        x = x.real
    if x.dtype == target or not (x.dtype in _FLOATING or target in _FLOATING):
        np.copyto(y, x, casting="unsafe")  # integers wrap in NumPy as they do in PyTorch
    else:
        backend.of(x).convert(x, y, given=out is not None)
    return checks.returned(out, y)


@checks.remembered
def _on_gpu(kind: type, target: dtypes.DType) -> Callable[..., Any]:
    """The op, where equal calls come to the same."""
    return repeated(kind, lambda x, out: convert_element_type(x, target, out=out), 0, (1,))
