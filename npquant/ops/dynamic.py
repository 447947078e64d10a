"""Quantize with qparams that are chosen from what is quantized."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from npquant import arrays, checks, dtypes
from npquant.ops.fast_choice import Dynamic, fast_dynamic
from npquant.ops.qparams import (
    choice_of_tokens,
    choose_qparams_per_token,
    choose_qparams_per_token_asymmetric,
)
from npquant.ops.quantize import quantize_per_token
from npquant.owners import Array


def quantize_per_token_dynamic(
    input: Array, dtype: Any, *, symmetric: bool = False
) -> tuple[Array, Array, Array]:
    """Quantize each row along the last axis with a scale and a zero point chosen from it.

    It gives what `choose_qparams_per_token_asymmetric` and then `quantize_per_token` give with
    codes in -128..127. If `symmetric`, it is `choose_qparams_per_token`, and codes in -127..127.
    Floats are read from memory once, on the CPU in rows of 2 elements to 256 KiB unless they are
    torn apart by the order of a dense array's axes, on a GPU in contiguous rows of up to 32,768
    elements (8,192 of float64).

    Parameters
    ----------
    input : ndarray or ArraySpec
        Values of any shape, its last axis not empty; float16, bfloat16, float32 or float64, or
        integers. Finite: on a GPU values are not looked at, and a row that is not finite
        has what the two ops give.
    dtype : dtype
        Dtype of the codes: int8, the only one that PyTorch chooses qparams per token for.
    symmetric : bool, default False
        Whether the zero points are 0, and the scales those of `choose_qparams_per_token`.

    Returns
    -------
    codes : ndarray or ArraySpec
        Codes of the shape of `input`, int8.
    scales : ndarray or ArraySpec
        Scales of shape (..., 1), float64; if `symmetric` in the dtype of `input`, or float32 for
        float16 and integers.
    zero_points : ndarray or ArraySpec
        Zero points of the same shape, int64; if `symmetric` in the dtype of the scales.

    Raises
    ------
    TypeError
        If an argument is of the wrong kind or of a dtype that is not allowed.
    ValueError
        If the last axis is empty, or a row is not finite or, unless `symmetric`, so wide that the
        dtype of `input` does not hold its width.

    See Also
    --------
    choose_qparams_per_token_asymmetric :
        Choose a scale and a zero point for each row along the last axis, for int8.
    choose_qparams_per_token : Choose a symmetric scale for each row along the last axis, for int8.
    quantize_per_token : Quantize with a scale and a zero point for each row along the last axis.
    dequantize_per_token : Turn codes back into floats, with a scale and a zero point for each row.

    Notes
    -----
    Corresponds to ``torch.ops.quantized_decomposed.choose_qparams_per_token_asymmetric`` (or
    ``choose_qparams_per_token``) of PyTorch 2.13, followed by ``quantize_per_token``. The formulas
    are those of ``torch/ao/quantization/fx/_decomposed.py``.

    Departures from PyTorch: D10, D11, D13, D20; see docs/departures.md.

    Examples
    --------
    >>> import numpy as np
    >>> import npquant as nq
    >>> x = np.array([[0.5, 1.5], [10, -30]], np.float32)
    >>> codes, scales, zero_points = nq.quantize_per_token_dynamic(x, np.int8)
    >>> codes
    array([[ -43,  127],
           [ 127, -128]], dtype=int8)
    >>> nq.dequantize_per_token(codes, scales, zero_points, -128, 127, np.int8)
    array([[  0.5     ,   1.5     ],
           [ 10.039216, -29.960785]], dtype=float32)
    """
    x = checks.real(input)
    dtypes.of_tokens(dtype)
    choose, bounds, at_once = _plan(x.shape, x.dtype, type(x), symmetric)
    done = at_once(x)
    if done is not None:
        return done
    scales, zero_points = choose(x, dtypes.int8)
    if type(x) is np.ndarray and (row := checks.outside(arrays.flat(scales), 0, checks.MOST)) >= 0:
        values = x[np.unravel_index(row, x.shape[:-1])] if x.ndim > 1 else x
        with np.errstate(invalid="ignore"):  # NumPy warns of a NaN that is a bfloat16
            least, greatest = values.min(), values.max()
        raise ValueError(
            f"input must have rows that are finite, and of a width that {x.dtype} holds, got "
            f"{least} to {greatest} in row {row}"
        )
    return quantize_per_token(x, scales, zero_points, *bounds, dtype), scales, zero_points


@checks.remembered
def _plan(
    shape: tuple[int, ...], dtype: dtypes.DType, kind: type, symmetric: Any
) -> tuple[Callable[..., Any], tuple[int, int], Dynamic]:
    """What chooses, the bounds of the codes, and what does it all at once."""
    symmetric = checks.switch(symmetric, "symmetric", kind)
    choice, _ = choice_of_tokens(shape, dtype, kind, symmetric)
    if symmetric:
        choose, kernel = choose_qparams_per_token, "dynamic_per_token"
    else:
        choose, kernel = choose_qparams_per_token_asymmetric, "dynamic_per_token_asymmetric"
    at_once = fast_dynamic(
        kind, choice._replace(kernel=kernel), checks.constants(*choice.bounds, dtypes.int8),
        dtypes.int8, lambda x: quantize_per_token_dynamic(x, dtypes.int8, symmetric=symmetric),
    )  # fmt: skip
    return choose, choice.bounds, at_once
