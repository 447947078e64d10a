"""Choose scales and zero points from the range of the data."""

from __future__ import annotations

import math
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from npquant import arrays, backend, checks, dtypes, layout
from npquant.ops.fast_choice import Choice, fast_choice, fast_choice_of_range
from npquant.ops.fast_path import FastPath, no_fast_path
from npquant.owners import Array, FloatLike, IntLike

#: The dtypes of scales and zero points, where they are not those of the input.
_RESULTS = dtypes.float64, dtypes.int64
#: The dtypes that scales per token keep; those of other inputs are float32.
_KEPT = (dtypes.float32, dtypes.float64, dtypes.bfloat16)
#: Bounds, least scale and zero point per token; of an asymmetric choice float32's machine epsilon.
_OF_TOKENS, _OF_TOKENS_ASYMMETRIC = ((-127, 127), 1e-5, 0), ((-128, 127), 2.0**-23, 0)

QSCHEMES = (
    "per_tensor_affine",
    "per_tensor_symmetric",
    "per_channel_affine",
    "per_channel_symmetric",
    "per_channel_affine_float_qparams",
)


def choose_qparams(
    input: Array, quant_min: IntLike, quant_max: IntLike, eps: FloatLike, dtype: Any
) -> tuple[Array, Array]:
    """Choose one scale and zero point that cover the range of the data.

    With ``low = min(min(input), 0)`` and ``high = max(max(input), 0)``::

        scale = max((high - low) / (quant_max - quant_min), eps)
        zero_point = clamp(quant_min - rint(low / scale), quant_min, quant_max)

    The range is found in one pass. Its width and the quotient are each rounded to the dtype of
    `input`, then to float32. A NaN in the data makes the scale NaN, and an infinity infinite.

    Parameters
    ----------
    input : ndarray or ArraySpec
        Values of any shape, at least one; float16, bfloat16, float32 or float64.
    quant_min, quant_max : int or array of one element
        Least and greatest code, both included, with ``quant_min <= 0 <= quant_max`` and
        ``quant_min < quant_max``. They may lie beyond the bounds of `dtype`, within int32.
    eps : float or array of one element
        Least scale, not negative; rounded to float32.
    dtype : dtype
        Dtype of the codes: uint8, int8, uint16, int16, int32, or from ml_dtypes int4, uint4, int2,
        uint2, float8_e4m3fn, float8_e5m2.

    Returns
    -------
    scale : ndarray or ArraySpec
        Scale, float64 of shape (1,).
    zero_point : ndarray or ArraySpec
        Zero point, int64 of shape (1,).

    Raises
    ------
    TypeError
        If an argument is of the wrong kind or of a dtype that is not allowed.
    ValueError
        If `input` is empty, 0 is not between the bounds, the bounds are equal or 2**63 or more
        apart, or `eps` is negative or not finite in float32.

    See Also
    --------
    choose_qparams_symmetric :
        Choose one scale that covers the range of the data, the zero point in the middle.
    determine_qparams : Choose scales and zero points from minima and maxima.
    quantize_per_tensor : Quantize with one scale and one zero point.

    Notes
    -----
    Corresponds to ``torch.ops.quantized_decomposed.choose_qparams.tensor`` of PyTorch 2.13. The
    formula is that of ``torch/ao/quantization/utils.py``.

    `dtype` is checked but does not change the result. PyTorch refuses float64 input.

    Departures from PyTorch: D10, D11, D13, D18; see docs/departures.md.

    Examples
    --------
    >>> import numpy as np
    >>> import npquant as nq
    >>> x = np.array([-1, 0.5, 3], np.float32)
    >>> scale, zero_point = nq.choose_qparams(x, -128, 127, 1e-5, np.int8)
    >>> scale, zero_point
    (array([0.01568628]), array([-64]))
    >>> nq.quantize_per_tensor(x, scale, zero_point, -128, 127, np.int8)
    array([-128,  -32,  127], dtype=int8)
    """
    return _choose(input, quant_min, quant_max, eps, dtype, "per_tensor_affine")


def choose_qparams_symmetric(
    input: Array, quant_min: IntLike, quant_max: IntLike, eps: FloatLike, dtype: Any
) -> tuple[Array, Array]:
    """Choose one scale that covers the range of the data, the zero point in the middle.

    With ``low = min(min(input), 0)`` and ``high = max(max(input), 0)``::

        scale = max(max(-low, high) / ((quant_max - quant_min) / 2), eps)

    The zero point is 0, but 128 for uint8, 8 for uint4 and 2 for uint2, whatever the bounds. The
    range is found in one pass. The quotient is rounded to the dtype of `input`, then to float32. A
    NaN in the data makes the scale NaN, and an infinity infinite.

    Parameters
    ----------
    input : ndarray or ArraySpec
        Values of any shape, at least one; float16, bfloat16, float32 or float64.
    quant_min, quant_max : int or array of one element
        Least and greatest code, both included, with ``quant_min <= 0 <= quant_max`` and
        ``quant_min < quant_max``. They may lie beyond the bounds of `dtype`.
    eps : float or array of one element
        Least scale, not negative; rounded to float32.
    dtype : dtype
        Dtype of the codes: uint8, int8, uint16, int16, int32, or from ml_dtypes int4, uint4, int2,
        uint2, float8_e4m3fn, float8_e5m2.

    Returns
    -------
    scale : ndarray or ArraySpec
        Scale, float64 of shape (1,).
    zero_point : ndarray or ArraySpec
        Zero point, int64 of shape (1,).

    Raises
    ------
    TypeError
        If an argument is of the wrong kind or of a dtype that is not allowed.
    ValueError
        If `input` is empty, 0 is not between the bounds, the bounds are equal or 2**63 or more
        apart, or `eps` is negative or not finite in float32.

    See Also
    --------
    choose_qparams : Choose one scale and zero point that cover the range of the data.
    determine_qparams : Choose scales and zero points from minima and maxima.
    quantize_per_tensor : Quantize with one scale and one zero point.

    Notes
    -----
    Corresponds to ``torch.ops.quantized_decomposed.choose_qparams_symmetric.tensor`` of PyTorch
    2.13. The formula is that of ``torch/ao/quantization/utils.py``.

    PyTorch refuses float64 input.

    Departures from PyTorch: D10, D11, D13, D18, D21; see docs/departures.md.

    Examples
    --------
    >>> import numpy as np
    >>> import npquant as nq
    >>> x = np.array([-1, 0.5, 3], np.float32)
    >>> nq.choose_qparams_symmetric(x, -127, 127, 1e-5, np.int8)
    (array([0.02362205]), array([0]))
    """
    return _choose(input, quant_min, quant_max, eps, dtype, "per_tensor_symmetric")


def _choose(
    input: Any, quant_min: Any, quant_max: Any, eps: Any, dtype: Any, qscheme: str
) -> tuple[Array, Array]:
    x = checks.floats(input)
    least = checks.least_scale(eps, type(x))
    choice, at_once = _proper(
        x.shape, x.dtype, type(x), quant_min, quant_max, least, dtypes.target(dtype), qscheme
    )
    done = at_once(x)
    if done is not None:
        return done
    if x.size == 0:
        raise ValueError(f"input must have elements, got shape {x.shape}")
    mn, mx = backend.of(x).minmax(layout.whole(x.size), x)
    return _chosen(mn, mx, choice, x)


def choose_qparams_per_token(input: Array, dtype: Any) -> tuple[Array, Array]:
    """Choose a symmetric scale for each row along the last axis, for int8.

    Of each row::

        scale = max(max(abs(row)), 1e-5) / 127
        zero_point = 0

    It is computed in the dtype of the result: float32 for float16 and integer input, else that of
    `input`. A NaN or an infinity in a row becomes its scale.

    Parameters
    ----------
    input : ndarray or ArraySpec
        Values of any shape, its last axis not empty; float16, bfloat16, float32 or float64, or
        integers.
    dtype : dtype
        Dtype of the codes: int8, the only one that PyTorch has here.

    Returns
    -------
    scales : ndarray or ArraySpec
        Scales of shape (..., 1), in the dtype of `input`, or float32 for float16 and integers.
    zero_points : ndarray or ArraySpec
        Zeros of the shape and the dtype of the scales.

    Raises
    ------
    TypeError
        If an argument is of the wrong kind or of a dtype that is not allowed.
    ValueError
        If the last axis is empty.

    See Also
    --------
    choose_qparams_per_token_asymmetric :
        Choose a scale and a zero point for each row along the last axis, for int8.
    quantize_per_token : Quantize with a scale and a zero point for each row along the last axis.

    Notes
    -----
    Corresponds to ``torch.ops.quantized_decomposed.choose_qparams_per_token`` of PyTorch 2.13. The
    formula is that of ``torch/ao/quantization/fx/_decomposed.py``.

    Departures from PyTorch: D10, D11, D20; see docs/departures.md.

    Examples
    --------
    >>> import numpy as np
    >>> import npquant as nq
    >>> x = np.array([[0.5, 1.5], [10, -30]], np.float32)
    >>> scales, zero_points = nq.choose_qparams_per_token(x, np.int8)
    >>> scales
    array([[0.01181102],
           [0.23622048]], dtype=float32)
    >>> nq.quantize_per_token(x, scales, zero_points, -127, 127, np.int8)
    array([[  42,  127],
           [  42, -127]], dtype=int8)
    """
    x = checks.real(input)
    dtypes.of_tokens(dtype)
    choice, at_once = choice_of_tokens(x.shape, x.dtype, type(x), True)
    done = at_once(x)
    return _choose_per_token(x, choice, True) if done is None else done


def choose_qparams_per_token_asymmetric(input: Array, dtype: Any) -> tuple[Array, Array]:
    """Choose a scale and a zero point for each row along the last axis, for int8.

    With ``low = min(min(row), 0)`` and ``high = max(max(row), 0)`` of each row::

        scale = max((high - low) / 255, 2**-23)
        zero_point = rint(clamp(-128 - low / scale, -128, 127))

    or ``127 - high / scale`` in the clamp, where the two quotients sum to 1 or less. Each step is
    rounded to the dtype of `input`, float32 for integers. A NaN or a positive infinity in a row
    gives the least int64 for a zero point.

    Parameters
    ----------
    input : ndarray or ArraySpec
        Values of any shape, its last axis not empty; float16, bfloat16, float32 or float64, or
        integers.
    dtype : dtype
        Dtype of the codes. Any that can be quantized to is taken, and the result is always for
        int8, as in PyTorch.

    Returns
    -------
    scales : ndarray or ArraySpec
        Scales, float64 of shape (..., 1).
    zero_points : ndarray or ArraySpec
        Zero points, int64 of shape (..., 1).

    Raises
    ------
    TypeError
        If an argument is of the wrong kind or of a dtype that is not allowed.
    ValueError
        If the last axis is empty.

    See Also
    --------
    choose_qparams_per_token : Choose a symmetric scale for each row along the last axis, for int8.
    quantize_per_token : Quantize with a scale and a zero point for each row along the last axis.

    Notes
    -----
    Corresponds to ``torch.ops.quantized_decomposed.choose_qparams_per_token_asymmetric`` of PyTorch
    2.13. The formula is that of ``torch/ao/quantization/fx/_decomposed.py``.

    Departures from PyTorch: D10, D20; see docs/departures.md.

    Examples
    --------
    >>> import numpy as np
    >>> import npquant as nq
    >>> x = np.array([[0.5, 1.5], [10, -30]], np.float32)
    >>> scales, zero_points = nq.choose_qparams_per_token_asymmetric(x, np.int8)
    >>> zero_points
    array([[-128],
           [  63]])
    >>> nq.quantize_per_token(x, scales, zero_points, -128, 127, np.int8)
    array([[ -43,  127],
           [ 127, -128]], dtype=int8)
    """
    x = checks.real(input)
    dtypes.target(dtype)
    choice, at_once = choice_of_tokens(x.shape, x.dtype, type(x), False)
    done = at_once(x)
    return _choose_per_token(x, choice, False) if done is None else done


def determine_qparams(
    min_val: Array,
    max_val: Array,
    quant_min: IntLike,
    quant_max: IntLike,
    dtype: Any,
    eps: Any,
    has_customized_qrange: bool,
    qscheme: str = "per_tensor_affine",
) -> tuple[Array, Array]:
    """Choose scales and zero points from minima and maxima.

    With ``low = min(min_val, 0)`` and ``high = max(max_val, 0)``, an affine scheme gives::

        scale = max((high - low) / (quant_max - quant_min), eps)
        zero_point = clamp(quant_min - rint(low / scale), quant_min, quant_max)

    and a symmetric one ``max(-low, high) / ((quant_max - quant_min) / 2)``, at least `eps`, with
    the zero point 0, or the middle of an unsigned range of up to 8 bits. The scheme with float
    qparams does without `low` and `high`: it gives
    ``(max_val - min_val) / (quant_max - quant_min)``, or 1 where that is not above `eps`, and the
    zero point ``-min_val / scale``, truncated. Scales are rounded to the dtype of `min_val`, and,
    but for those of float qparams and of float64 of shape (C,), then to float32. A NaN stays NaN,
    but with float qparams the scale is 1 then, and the zero point of a NaN in `min_val` the least
    int64. An empty range, or +inf and -inf of shape (), gives the scale 1 and the zero point 0.

    Parameters
    ----------
    min_val : ndarray or ArraySpec
        Least values, of shape () for one range or (C,) for one of each channel; float16, bfloat16,
        float32 or float64.
    max_val : ndarray or ArraySpec
        Greatest values, of the shape and the dtype of `min_val`, nowhere less.
    quant_min, quant_max : int or array of one element
        Least and greatest code, both included, within int64, and in an affine scheme within int32,
        which its zero points are. Where they are equal, the scale is a quotient by 0.
    dtype : dtype
        Dtype of the codes: uint8, int8, uint16, int16, int32, or from ml_dtypes int4, uint4, int2,
        uint2, float8_e4m3fn, float8_e5m2.
    eps : float or array of one element
        Least scale, not negative; rounded to float32.
    has_customized_qrange : bool or number
        Whether the bounds are not those of `dtype`. It moves the middle of an unsigned range, of up
        to 8 bits, of a symmetric scheme, and nothing else.
    qscheme : str, default "per_tensor_affine"
        "per_tensor_affine", "per_tensor_symmetric", "per_channel_affine", "per_channel_symmetric"
        or "per_channel_affine_float_qparams".

    Returns
    -------
    scale : ndarray or ArraySpec
        Scales, float64 of the shape (C,), or (1,).
    zero_point : ndarray or ArraySpec
        Zero points, int64 of the same shape.

    Raises
    ------
    TypeError
        If an argument is of the wrong kind or of a dtype that is not allowed.
    ValueError
        If `min_val` exceeds `max_val` somewhere, their shapes differ or have more than one axis,
        the bounds are in the wrong order or ``quant_max - quant_min`` does not fit int64, `eps` is
        negative or not finite in float32, or `qscheme` is unknown.

    See Also
    --------
    choose_qparams : Choose one scale and zero point that cover the range of the data.
    choose_qparams_symmetric :
        Choose one scale that covers the range of the data, the zero point in the middle.

    Notes
    -----
    Corresponds to ``torch.ao.quantization.utils.determine_qparams`` of PyTorch 2.13. The formula is
    that of ``torch/ao/quantization/utils.py``.

    Departures from PyTorch: D10, D13, D16, D21, D30; see docs/departures.md.

    Examples
    --------
    >>> import numpy as np
    >>> import npquant as nq
    >>> low, high = np.array([-1, 0], np.float32), np.array([1, 3], np.float32)
    >>> scale, zero_point = nq.determine_qparams(
    ...     low, high, 0, 255, np.uint8, 1e-5, False, "per_channel_affine"
    ... )
    >>> scale
    array([0.00784314, 0.01176471])
    >>> zero_point
    array([127,   0])
    """
    mn, mx = checks.floats(min_val, "min_val"), checks.floats(max_val, "max_val")
    checks.same(mx, "max_val", mn, data="min_val")
    if mn.ndim > 1:
        raise ValueError(f"min_val must have at most one axis, got shape {mn.shape}")
    least = checks.least_scale(eps, type(mn))
    choice, at_once = _with_steps(
        mn.shape, mn.dtype, type(mn), quant_min, quant_max, least, dtypes.target(dtype),
        has_customized_qrange, qscheme,
    )  # fmt: skip
    done = at_once((mn, mx))
    if done is not None:
        return done
    if mn.size == 0:
        return _unset(mn)
    low, high = arrays.flat(mn), arrays.flat(mx)
    host = type(mn) is np.ndarray  # on a GPU nobody looks
    if host and mn.ndim == 0 and mn == math.inf and mx == -math.inf:
        return _unset(mn)
    if host and checks.any_reversed[mn.dtype](low, high):
        i = int(np.greater(low, high).argmax())
        raise ValueError(
            f"min_val must not exceed max_val, got {low[i]} and {high[i]} at index {i}"
        )
    return _chosen(low, high, choice, mn)


def _unset(mn: Array) -> tuple[Array, Array]:
    """What observers give before they have seen anything."""
    return arrays.full(mn, (1,), dtypes.float64, 1), arrays.full(mn, (1,), dtypes.int64, 0)


# --- what they share --------------------------------------------------------------------------


def _chosen(least: Array, greatest: Array, choice: Choice, x: Array) -> tuple[Array, Array]:
    """What the kernel chooses, on checked arguments: arrays of the kind of `x`."""
    scale, z = (arrays.new(x, choice.results, kind) for kind in choice.kinds)
    choose = getattr(backend.of(x), choice.kernel)
    choose(
        least, greatest, choice.bounds, choice.eps, choice.middle, choice.precision,
        arrays.flat(scale), arrays.flat(z),
    )  # fmt: skip
    return scale, z


def _precision(dtype: dtypes.DType, vector: bool, eps: float) -> tuple[str, float]:
    """The precision of scales, and `eps` in it: the float32 that PyTorch makes of it.

    A range without axes does not promote the float32 that it meets; a vector does.
    """
    if not vector or dtype != dtypes.float64:
        return "float32", eps
    with np.errstate(over="ignore"):
        return "float64", float(np.float32(eps))


def middle(target: dtypes.DType, lo: int, hi: int, custom: bool) -> int:
    """The zero point of a symmetric scheme: the middle of an unsigned range."""
    least, greatest = dtypes.BOUNDS[target]
    if least != 0:
        return 0
    return (lo + hi) // 2 if custom else (greatest + 1) // 2


def _scheme(
    qscheme: str, bounds: tuple[int, int], target: dtypes.DType, custom: bool
) -> tuple[str, int]:
    """The name of the kernel, and the zero point of symmetric schemes."""
    if qscheme.endswith("affine"):
        name = "choose_affine"
    else:
        name = "choose_symmetric" if qscheme.endswith("symmetric") else "choose_float"
    # Of uint16 it is 0, as in PyTorch (D21); observers take the middle there (D25).
    wide = dtypes.BOUNDS[target][1] > 255
    return name, 0 if wide else middle(target, *bounds, custom)


@checks.remembered
def _with_steps(
    shape: tuple[int, ...], dtype: dtypes.DType, kind: type, quant_min: Any, quant_max: Any,
    eps: float, target: dtypes.DType, custom: Any, qscheme: Any,
) -> tuple[Choice, FastPath]:  # fmt: skip
    """Bounds with an int64 of steps between, and what does it all at once if it can."""
    bounds = checks.bounds_with_steps(quant_min, quant_max, kind)
    custom = checks.switch(custom, "has_customized_qrange", kind)
    name, middle = _scheme(checks.option(qscheme, "qscheme", QSCHEMES), bounds, target, custom)
    if name == "choose_affine":  # whose zero points are made in int32, as in PyTorch
        checks.bounds_of(quant_min, quant_max, dtypes.int32, kind)
    precision, least = _precision(dtype, len(shape) == 1, eps)
    choice = Choice(name, shape, dtype, layout.PER_TENSOR, bounds, least, middle, precision,
                    shape or (1,), _RESULTS)  # fmt: skip
    return choice, fast_choice_of_range(
        kind,
        choice,
        lambda ends: determine_qparams(
            ends[0], ends[1], quant_min, quant_max, target, eps, custom, qscheme
        ),
    )


@checks.remembered
def _proper(
    shape: tuple[int, ...], dtype: dtypes.DType, kind: type, quant_min: Any, quant_max: Any,
    eps: float, target: dtypes.DType, qscheme: str,
) -> tuple[Choice, FastPath]:  # fmt: skip
    """The same of data, with zero between the bounds and more than one code."""
    lo, hi = checks.bounds_around_zero(quant_min, quant_max, kind)
    if lo == hi:
        raise ValueError(f"quant_min must be less than quant_max, got {lo} and {hi}")
    name, middle = _scheme(qscheme, (lo, hi), target, False)
    if name == "choose_affine":  # as above
        checks.bounds_of(quant_min, quant_max, dtypes.int32, kind)
    choice = Choice(name, shape, dtype, layout.whole(prod(shape)), (lo, hi), eps, middle, "float32",
                    (1,), _RESULTS)  # fmt: skip
    return choice, fast_choice(kind, choice, lambda x: _choose(x, lo, hi, eps, target, qscheme))


def _choose_per_token(x: Array, choice: Choice, symmetric: bool) -> tuple[Array, Array]:
    run, kind = getattr(backend.of(x), choice.kernel), x.dtype
    if not symmetric and kind in dtypes.INTEGERS:
        kind = dtypes.float32
    scale, z = (arrays.new(x, choice.results, found) for found in choice.kinds)
    run(
        choice.granularity, x, kind, choice.bounds, choice.eps, choice.middle, choice.precision,
        arrays.flat(scale), arrays.flat(z),
    )  # fmt: skip
    return scale, z


@checks.remembered
def choice_of_tokens(
    shape: tuple[int, ...], dtype: dtypes.DType, kind: type, symmetric: bool
) -> tuple[Choice, FastPath]:
    """How qparams of rows are chosen, and what does it all at once if it can."""
    if shape and shape[-1] == 0:
        raise ValueError(f"input must have elements along its last axis, got shape {shape}")
    found = dtype if dtype in _KEPT else dtypes.float32
    at_once: FastPath = no_fast_path
    anew: Callable[..., Any]
    if symmetric:
        kernel, kinds, how = "qparams_per_token", (found, found), _OF_TOKENS
        anew = choose_qparams_per_token
    else:
        kernel, kinds, how = "qparams_per_token_asymmetric", _RESULTS, _OF_TOKENS_ASYMMETRIC
        anew = choose_qparams_per_token_asymmetric
    choice = Choice(kernel, shape, dtype, layout.per_token(shape), *how, "float64",
                    (*shape[:-1], 1) if shape else (), kinds)  # fmt: skip
    # Of integers the range is made floats first.
    if symmetric or dtype not in dtypes.INTEGERS or kind is not np.ndarray:
        at_once = fast_choice(kind, choice, lambda x: anew(x, dtypes.int8))
    return choice, at_once
