"""Quantize to codes and dequantize, as PyTorch's quantized_decomposed ops do."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from npquant import arrays, backend, checks, dtypes, layout
from npquant.dtypes import Precision
from npquant.ops.fast_path import PYTHON_NUMBERS, Form, Plan, fast_path, no_fast_path
from npquant.owners import Array, IntLike, on_device


def quantize_per_tensor(
    input: Array,
    scale: Any,
    zero_point: Any,
    quant_min: IntLike,
    quant_max: IntLike,
    dtype: Any,
    *,
    rounding: str = "reciprocal",
    out: Array | None = None,
) -> Array:
    """Quantize with one scale and one zero point.

    Every value becomes a code::

        q = clamp(rint(input * (1 / scale)) + zero_point, quant_min, quant_max)

    The reciprocal is divided in float64, then rounded to float32, in which all else is computed;
    float64 input is computed in float64 throughout. Ties round to even, before the zero point is
    added; what a fractional zero point leaves of a fraction is truncated at the end, or in float8
    rounded to its grid. A NaN becomes 0, or the bound nearest to it; infinities become a bound.
    Float8 codes keep NaN.

    With ``rounding="divide"`` the codes are ONNX's::

        q = clamp(rint(input / scale) + zero_point, quant_min, quant_max)

    The scale is a float32 then, or a float64 for float64 input, and float8 codes are not rounded to
    integers. See docs/numerics.md.

    Parameters
    ----------
    input : ndarray or ArraySpec
        Values of any shape; float16, bfloat16, float32 or float64.
    scale : float or array of one element
        Distance between the values of neighbouring codes, in the units of the data. Positive and
        finite.
    zero_point : int or array of one element
        Code that stands for 0.0. In an array it may be fractional.
    quant_min, quant_max : int or array of one element
        Least and greatest code, both included, within the bounds of `dtype`.
    dtype : dtype
        Dtype of the codes: uint8, int8, uint16, int16, int32, or from ml_dtypes int4, uint4, int2,
        uint2, float8_e4m3fn, float8_e5m2.
    rounding : {"reciprocal", "divide"}, default "reciprocal"
        Whether `input` is multiplied by the reciprocal of the scale, as PyTorch does, or divided by
        the scale, as ONNX does.
    out : ndarray or ArraySpec, optional
        Where to write the result: an array of its shape and dtype, either the very array that is
        read or one that does not overlap it. By default a new array.

    Returns
    -------
    ndarray or ArraySpec
        Codes of the shape of `input` and the dtype `dtype`.

    Raises
    ------
    TypeError
        If an argument is of the wrong kind or of a dtype that is not allowed.
    ValueError
        If `rounding` is neither word, a scale is not positive and finite in the precision in which
        it is used, a zero point in an array is not finite, the bounds are in the wrong order or
        beyond those of `dtype`, or `out` does not fit.

    See Also
    --------
    dequantize_per_tensor : Turn codes back into floats, with one scale and one zero point.
    choose_qparams : Choose one scale and zero point that cover the range of the data.
    fake_quantize_per_tensor_affine :
        Round to the grid of one scale and zero point, and clamp to its range.

    Notes
    -----
    Corresponds to ``torch.ops.quantized_decomposed.quantize_per_tensor`` of PyTorch 2.13. Its
    overloads ``default``, ``.tensor`` and ``.tensor2`` are one function here: each qparam is a
    number or an array of one element. The formula is that of
    ``torch/ao/quantization/fx/_decomposed.py``.

    The affine scheme is that of [1]_.

    Float8 codes are rounded to integers first, as all codes are: 0.3 becomes 0. PyTorch has no
    sub-byte codes here and refuses float64 input.

    Departures from PyTorch: D2, D4, D10, D13, D17, D18, D19, D22; see docs/departures.md.

    References
    ----------
    .. [1] B. Jacob et al., "Quantization and Training of Neural Networks for Efficient
       Integer-Arithmetic-Only Inference", CVPR 2018, arXiv:1712.05877.

    Examples
    --------
    >>> import ml_dtypes
    >>> import numpy as np
    >>> import npquant as nq
    >>> x = np.array([-0.26, 0.05, 0.3, 20, np.nan], np.float32)
    >>> nq.quantize_per_tensor(x, 0.1, 0, -128, 127, np.int8)
    array([ -3,   0,   3, 127,   0], dtype=int8)
    >>> nq.quantize_per_tensor(x, 0.1, 8, 0, 15, ml_dtypes.uint4).tolist()
    [5, 8, 11, 15, 0]
    >>> x = np.array([1.55, 2.35], np.float32)
    >>> nq.quantize_per_tensor(x, 0.1, 0, -128, 127, np.int8)
    array([16, 24], dtype=int8)
    >>> nq.quantize_per_tensor(x, 0.1, 0, -128, 127, np.int8, rounding="divide")
    array([15, 23], dtype=int8)
    """
    x = checks.floats(input, out=out)
    target = dtypes.target(dtype)
    form, at_once = _tensor(x.shape, x.dtype, type(x), quant_min, quant_max, target, rounding)
    done = at_once(x, scale, zero_point, out)
    if done is not None:
        return done[0]
    s, z, kinds = _inverse(x, scale, zero_point, not form.inverse)
    y = checks.output(out, x, target, checks.QPARAM, (scale, zero_point))
    run, precision = getattr(backend.of(x), form.kernel), Precision(*kinds, form.precision.code)
    run(form.granularity, x, s, z, form.constants, precision, y, given=out is not None)
    return checks.returned(out, y)


def dequantize_per_tensor(
    input: Array,
    scale: Any,
    zero_point: Any,
    quant_min: IntLike,
    quant_max: IntLike,
    dtype: Any,
    *,
    out_dtype: Any = None,
    out: Array | None = None,
) -> Array:
    """Turn codes back into floats, with one scale and one zero point.

    Every code becomes a value::

        output = (input - zero_point) * scale

    The code, the zero point, the difference and the product are each rounded to `out_dtype`. The
    scale is a float32, or a float64 for float64 output. A NaN, which only float8 has, stays NaN.
    Codes and zero points that `out_dtype` does not hold, as integers beyond 65,519 in float16, are
    infinite.

    Parameters
    ----------
    input : ndarray or ArraySpec
        Codes of any shape, of the dtype `dtype`.
    scale : float or array of one element
        Distance between the values of neighbouring codes, in the units of the data. Positive and
        finite.
    zero_point : int or array of one element
        Code that stands for 0.0. In an array it may be fractional.
    quant_min, quant_max : int or array of one element
        Least and greatest code, within the bounds of `dtype`. They are checked, but do not change
        the result.
    dtype : dtype
        Dtype of the codes: uint8, int8, uint16, int16, int32, or from ml_dtypes int4, uint4, int2,
        uint2, float8_e4m3fn, float8_e5m2.
    out_dtype : dtype, default float32
        Dtype of the result: float16, bfloat16, float32 or float64.
    out : ndarray or ArraySpec, optional
        Where to write the result: an array of its shape and dtype, either the very array that is
        read or one that does not overlap it. By default a new array.

    Returns
    -------
    ndarray or ArraySpec
        Values of the shape of the codes and the dtype `out_dtype`.

    Raises
    ------
    TypeError
        If an argument is of the wrong kind or of a dtype that is not allowed.
    ValueError
        If a scale is not positive and finite in the precision in which it is used, a zero point in
        an array is not finite, the bounds are in the wrong order or beyond those of `dtype`, or
        `out` does not fit.

    See Also
    --------
    quantize_per_tensor : Quantize with one scale and one zero point.
    dequantize_per_channel :
        Turn codes back into floats, with a scale and a zero point for each index of one axis.

    Notes
    -----
    Corresponds to ``torch.ops.quantized_decomposed.dequantize_per_tensor`` of PyTorch 2.13. Its
    overloads ``default``, ``.tensor`` and ``.tensor2`` are one function here. The formula is that
    of ``torch/ao/quantization/fx/_decomposed.py``.

    Departures from PyTorch: D10, D11, D13, D17, D19; see docs/departures.md.

    Examples
    --------
    >>> import numpy as np
    >>> import npquant as nq
    >>> q = np.array([-128, 3, 127], np.int8)
    >>> nq.dequantize_per_tensor(q, 0.1, 3, -128, 127, np.int8)
    array([-13.1     ,   0.      ,  12.400001], dtype=float32)
    >>> nq.dequantize_per_tensor(q, 0.1, 3, -128, 127, np.int8, out_dtype=np.float64)
    array([-13.1,   0. ,  12.4])
    """
    q = checks.codes(input, dtype, out=out)
    form, at_once = _from_tensor(q.shape, out_dtype, quant_min, quant_max, q.dtype, type(q))
    done = at_once(q, scale, zero_point, out)
    if done is not None:
        return done[0]
    computed = dtypes.compute(form.target)
    s, z = _numbers(q, scale, zero_point, computed)
    z = _rounded_once(z, computed)
    s = arrays.cast(s, computed) if on_device(s) else s
    y = checks.output(out, q, form.target, checks.QPARAM, (scale, zero_point))
    _dequantize(form, q, s, z, Precision(computed.name, "float64", "float32"), y, out is not None)
    return checks.returned(out, y)


def quantize_per_channel(
    input: Array,
    scales: Array,
    zero_points: Array,
    axis: int,
    quant_min: IntLike,
    quant_max: IntLike,
    dtype: Any,
    *,
    rounding: str = "reciprocal",
    out: Array | None = None,
) -> Array:
    """Quantize with a scale and a zero point for each index of one axis.

    With the scale and the zero point of its channel, every value becomes a code::

        q = clamp(rint(input * (1 / scale)) + zero_point, quant_min, quant_max)

    The reciprocal is rounded to the dtype of `scales`, or to float64 for float64 input; all else is
    computed in float32, or in float64 where that is the dtype of an operand. Ties round to even,
    before the zero point is added; what a fractional zero point leaves of a fraction is truncated
    at the end, or in float8 rounded to its grid. A NaN becomes 0, or the bound nearest to it;
    infinities become a bound. Float8 codes keep NaN.

    With ``rounding="divide"`` the codes are ONNX's::

        q = clamp(rint(input / scale) + zero_point, quant_min, quant_max)

    The quotient is rounded to the dtype of `input` and `scales` if that is one, else to float32, or
    to float64 where that is one of them. Float8 codes are not rounded to integers then.

    Parameters
    ----------
    input : ndarray or ArraySpec
        Values of any shape; float16, bfloat16, float32 or float64.
    scales : array_like of shape (C,)
        Distances between the values of neighbouring codes, in the units of the data: one for each
        of the C indices of `axis`. Positive and finite; float16,
        bfloat16, float32 or float64, or integers, which count as float32.
    zero_points : array_like of shape (C,)
        Codes that stand for 0.0: one for each of the C indices of `axis`. They may be fractional.
    axis : int
        Axis of the channels; a negative one counts from the back.
    quant_min, quant_max : int or array of one element
        Least and greatest code, both included, within the bounds of `dtype`.
    dtype : dtype
        Dtype of the codes: uint8, int8, uint16, int16, int32, or from ml_dtypes int4, uint4, int2,
        uint2, float8_e4m3fn, float8_e5m2.
    rounding : {"reciprocal", "divide"}, default "reciprocal"
        Whether `input` is multiplied by the reciprocal of the scale, as PyTorch does, or divided by
        the scale, as ONNX does.
    out : ndarray or ArraySpec, optional
        Where to write the result: an array of its shape and dtype, either the very array that is
        read or one that does not overlap it. By default a new array.

    Returns
    -------
    ndarray or ArraySpec
        Codes of the shape of `input` and the dtype `dtype`.

    Raises
    ------
    TypeError
        If an argument is of the wrong kind or of a dtype that is not allowed.
    ValueError
        If `rounding` is neither word, a scale is not positive and finite, a zero point is not
        finite, the bounds are in the wrong order or beyond those of `dtype`, `input` has no such
        axis, or a shape or `out` does not fit.

    See Also
    --------
    dequantize_per_channel :
        Turn codes back into floats, with a scale and a zero point for each index of one axis.
    quantize_per_tensor : Quantize with one scale and one zero point.
    quantize_per_channel_group :
        Quantize a matrix with a scale and a zero point for each group of a row.

    Notes
    -----
    Corresponds to ``torch.ops.quantized_decomposed.quantize_per_channel`` of PyTorch 2.13. The
    formula is that of ``torch/ao/quantization/fx/_decomposed.py``.

    PyTorch has no sub-byte codes here and refuses float64 input.

    The reciprocal of a float16 scale below 1.53e-5 is infinite, in PyTorch too: zeros become the
    code 0, or the bound nearest to it (in float8 NaN), and all else a bound. The same scale as a
    float32 has a finite one.

    Departures from PyTorch: D2, D4, D8, D10, D13, D17, D18, D19, D22; see docs/departures.md.

    Examples
    --------
    >>> import numpy as np
    >>> import npquant as nq
    >>> x = np.array([[0.12, -0.26], [1.4, 2.6]], np.float32)
    >>> scales = np.array([0.1, 1.0], np.float32)
    >>> nq.quantize_per_channel(x, scales, [0, -1], 0, -128, 127, np.int8)
    array([[ 1, -3],
           [ 0,  2]], dtype=int8)
    """
    x = checks.floats(input, out=out)
    target = dtypes.target(dtype)
    form, at_once = _per_channel(
        x.shape, axis, x.dtype, type(x), quant_min, quant_max, target, rounding
    )
    done = at_once(x, scales, zero_points, out)
    if done is not None:
        return done[0]
    s, z = checks.code_qparams(scales, zero_points, form.shapes, x)
    y = checks.output(out, x, target, checks.QPARAMS, (scales, zero_points))
    s = arrays.cast(s, form.used_in.get(s.dtype, s.dtype))
    run, given = getattr(backend.of(x), form.kernel), out is not None
    run(form.granularity, x, s, z, form.constants, form.precision, y, given=given)
    return checks.returned(out, y)


def dequantize_per_channel(
    input: Array,
    scales: Array,
    zero_points: Array | None,
    axis: int,
    quant_min: IntLike,
    quant_max: IntLike,
    dtype: Any,
    *,
    out_dtype: Any = None,
    out: Array | None = None,
) -> Array:
    """Turn codes back into floats, with a scale and a zero point for each index of one axis.

    With the scale and the zero point of its channel, every code becomes a value::

        output = (input - zero_point) * scale

    The code, the zero point, the difference and the product are each rounded to `out_dtype`. The
    scale is a float32, or a float64 for float64 output. A NaN, which only float8 has, stays NaN.
    Codes and zero points that `out_dtype` does not hold, as integers beyond 65,519 in float16, are
    infinite.

    Parameters
    ----------
    input : ndarray or ArraySpec
        Codes of any shape, of the dtype `dtype`.
    scales : array_like of shape (C,)
        Distances between the values of neighbouring codes, in the units of the data: one for each
        of the C indices of `axis`. Positive and finite; float16,
        bfloat16, float32 or float64, or integers, which count as float32.
    zero_points : array_like of shape (C,), or None
        Codes that stand for 0.0: one for each of the C indices of `axis`. They may be fractional.
        None means 0.
    axis : int
        Axis of the channels; a negative one counts from the back.
    quant_min, quant_max : int or array of one element
        Least and greatest code, within the bounds of `dtype`. They are checked, but do not change
        the result.
    dtype : dtype
        Dtype of the codes: uint8, int8, uint16, int16, int32, or from ml_dtypes int4, uint4, int2,
        uint2, float8_e4m3fn, float8_e5m2.
    out_dtype : dtype, default float32
        Dtype of the result: float16, bfloat16, float32 or float64.
    out : ndarray or ArraySpec, optional
        Where to write the result: an array of its shape and dtype, either the very array that is
        read or one that does not overlap it. By default a new array.

    Returns
    -------
    ndarray or ArraySpec
        Values of the shape of the codes and the dtype `out_dtype`.

    Raises
    ------
    TypeError
        If an argument is of the wrong kind or of a dtype that is not allowed.
    ValueError
        If a scale is not positive and finite in the precision in which it is used, a zero point is
        not finite, the bounds are in the wrong order or beyond those of `dtype`, `input` has no
        such axis, or a shape or `out` does not fit.

    See Also
    --------
    quantize_per_channel : Quantize with a scale and a zero point for each index of one axis.
    dequantize_per_tensor : Turn codes back into floats, with one scale and one zero point.

    Notes
    -----
    Corresponds to ``torch.ops.quantized_decomposed.dequantize_per_channel`` of PyTorch 2.13. The
    formula is that of ``torch/ao/quantization/fx/_decomposed.py``.

    Departures from PyTorch: D3, D8, D10, D13, D15, D17, D19, D30; see docs/departures.md.

    Examples
    --------
    >>> import numpy as np
    >>> import npquant as nq
    >>> q = np.array([[1, -3], [0, 2]], np.int8)
    >>> scales = np.array([0.5, 1.0], np.float32)
    >>> nq.dequantize_per_channel(q, scales, [0, -1], 0, -128, 127, np.int8)
    array([[ 0.5, -1.5],
           [ 1. ,  3. ]], dtype=float32)
    >>> nq.dequantize_per_channel(q, scales, None, 1, -128, 127, np.int8)
    array([[ 0.5, -3. ],
           [ 0. ,  2. ]], dtype=float32)
    """
    q = checks.codes(input, dtype, out=out)
    form, at_once = _from_channels(q.shape, axis, out_dtype, quant_min, quant_max, q.dtype, type(q))
    done = at_once(q, scales, zero_points, out)
    if done is not None:
        return done[0]
    s, z = _qparams_or_none(scales, zero_points, form.shapes, q)
    s = checks.in_precision(s, "scales", dtypes.compute(form.target))
    y = checks.output(out, q, form.target, checks.QPARAMS, (scales, zero_points))
    _dequantize(form, q, s, z, _IN_FLOAT32, y, out is not None)
    return checks.returned(out, y)


def quantize_per_token(
    input: Array,
    scales: Array,
    zero_points: Array,
    quant_min: IntLike,
    quant_max: IntLike,
    dtype: Any,
    *,
    rounding: str = "reciprocal",
    out: Array | None = None,
) -> Array:
    """Quantize with a scale and a zero point for each row along the last axis.

    With the scale and the zero point of its row, every value becomes a code::

        q = clamp(rint(input * (1 / scale) + zero_point), quant_min, quant_max)

    The zero point is added before rounding, unlike per tensor and per channel, so that ties with an
    odd zero point differ. Each step is rounded to the dtype that PyTorch promotes its operands to,
    so two-byte input with scales of the same dtype stays in that dtype, and integer input takes the
    dtype of the scales. A NaN becomes 0, or the bound nearest to it; infinities become a bound.
    Float8 codes keep NaN.

    With ``rounding="divide"`` the codes are ONNX's, and the zero point is added last::

        q = clamp(rint(input / scale) + zero_point, quant_min, quant_max)

    The quotient is rounded to the dtype of `input` and `scales` if that is one, else to float32, or
    to float64 where that is one of them. Float8 codes are not rounded to integers then.

    Parameters
    ----------
    input : ndarray or ArraySpec
        Values of any shape; float16, bfloat16, float32 or float64, or integers.
    scales : array_like of shape (..., 1), or flat
        Distances between the values of neighbouring codes, in the units of the data: one for each
        row along the last axis. Positive and finite; float16,
        bfloat16, float32 or float64, or integers, which count as float32.
    zero_points : array_like of shape (..., 1), or flat
        Codes that stand for 0.0: one for each row along the last axis. They may be fractional.
    quant_min, quant_max : int or array of one element
        Least and greatest code, both included, within the bounds of `dtype`.
    dtype : dtype
        Dtype of the codes: uint8, int8, uint16, int16, int32, or from ml_dtypes int4, uint4, int2,
        uint2, float8_e4m3fn, float8_e5m2.
    rounding : {"reciprocal", "divide"}, default "reciprocal"
        Whether `input` is multiplied by the reciprocal of the scale, as PyTorch does, or divided by
        the scale, as ONNX does.
    out : ndarray or ArraySpec, optional
        Where to write the result: an array of its shape and dtype, either the very array that is
        read or one that does not overlap it. By default a new array.

    Returns
    -------
    ndarray or ArraySpec
        Codes of the shape of `input` and the dtype `dtype`.

    Raises
    ------
    TypeError
        If an argument is of the wrong kind or of a dtype that is not allowed.
    ValueError
        If `rounding` is neither word, a scale is not positive and finite, a zero point is not
        finite, the bounds are in the wrong order or beyond those of `dtype`, or a shape or `out`
        does not fit.

    See Also
    --------
    dequantize_per_token : Turn codes back into floats, with a scale and a zero point for each row.
    choose_qparams_per_token : Choose a symmetric scale for each row along the last axis, for int8.
    choose_qparams_per_token_asymmetric :
        Choose a scale and a zero point for each row along the last axis, for int8.

    Notes
    -----
    Corresponds to ``torch.ops.quantized_decomposed.quantize_per_token`` of PyTorch 2.13. The
    formula is that of ``torch/ao/quantization/fx/_decomposed.py``.

    The reciprocal of a float16 scale below 1.53e-5 is infinite, in PyTorch too: zeros become the
    code 0, or the bound nearest to it (in float8 NaN), and all else a bound. The same scale as a
    float32 has a finite one.

    Departures from PyTorch: D2, D4, D8, D10, D13, D17, D19, D22, D30; see docs/departures.md.

    Examples
    --------
    >>> import numpy as np
    >>> import npquant as nq
    >>> x = np.array([[0.5, 1.5], [-3, 40]], np.float32)
    >>> scales = np.array([[1.0], [0.5]], np.float32)
    >>> nq.quantize_per_token(x, scales, [[1], [0]], -8, 7, np.int8)
    array([[ 2,  2],
           [-6,  7]], dtype=int8)
    """
    x, target = checks.real(input, out=out), dtypes.target(dtype)
    plan = _per_token(x.shape, x.dtype, type(x), quant_min, quant_max, target, rounding)
    return _quantize_rows(plan, x, scales, zero_points, out)


def dequantize_per_token(
    input: Array,
    scales: Array,
    zero_points: Array,
    quant_min: IntLike,
    quant_max: IntLike,
    dtype: Any,
    output_dtype: Any = np.float32,
    *,
    out: Array | None = None,
) -> Array:
    """Turn codes back into floats, with a scale and a zero point for each row.

    With the scale and the zero point of its row, every code becomes a value::

        output = (input - zero_point) * scale

    The difference is exact for integers. The product is rounded to the dtype of `scales`, promoted
    with fractional zero points, and then to `output_dtype`. A NaN, which only float8 has, stays
    NaN.

    Parameters
    ----------
    input : ndarray or ArraySpec
        Codes of any shape, of the dtype `dtype`.
    scales : array_like of shape (..., 1), or flat
        Distances between the values of neighbouring codes, in the units of the data: one for each
        row along the last axis. Positive and finite; float16,
        bfloat16, float32 or float64, or integers, which count as float32.
    zero_points : array_like of shape (..., 1), or flat
        Codes that stand for 0.0: one for each row along the last axis. They may be fractional.
    quant_min, quant_max : int or array of one element
        Least and greatest code, within the bounds of `dtype`. They are checked, but do not change
        the result.
    dtype : dtype
        Dtype of the codes: uint8, int8, uint16, int16, int32, or from ml_dtypes int4, uint4, int2,
        uint2, float8_e4m3fn, float8_e5m2.
    output_dtype : dtype, default float32
        Dtype of the result: float16, bfloat16, float32 or float64.
    out : ndarray or ArraySpec, optional
        Where to write the result: an array of its shape and dtype, either the very array that is
        read or one that does not overlap it. By default a new array.

    Returns
    -------
    ndarray or ArraySpec
        Values of the shape of the codes and the dtype `output_dtype`.

    Raises
    ------
    TypeError
        If an argument is of the wrong kind or of a dtype that is not allowed.
    ValueError
        If a scale is not positive and finite, a zero point is not finite, the bounds are in the
        wrong order or beyond those of `dtype`, or a shape or `out` does not fit.

    See Also
    --------
    quantize_per_token : Quantize with a scale and a zero point for each row along the last axis.
    choose_qparams_per_token : Choose a symmetric scale for each row along the last axis, for int8.

    Notes
    -----
    Corresponds to ``torch.ops.quantized_decomposed.dequantize_per_token`` of PyTorch 2.13. The
    formula is that of ``torch/ao/quantization/fx/_decomposed.py``.

    Departures from PyTorch: D3, D8, D10, D13, D17, D19, D30; see docs/departures.md.

    Examples
    --------
    >>> import numpy as np
    >>> import npquant as nq
    >>> q = np.array([[2, -3], [-6, 7]], np.int8)
    >>> scales = np.array([[1.0], [0.5]], np.float32)
    >>> nq.dequantize_per_token(q, scales, [[1], [0]], -8, 7, np.int8)
    array([[ 1. , -4. ],
           [-3. ,  3.5]], dtype=float32)
    """
    q = checks.codes(input, dtype, out=out)
    plan = _from_tokens(q.shape, output_dtype, quant_min, quant_max, q.dtype, type(q))
    return _dequantize_rows(plan, q, scales, zero_points, out, checks.kept_qparams)


def quantize_per_channel_group(
    input: Array,
    scales: Array,
    zero_points: Array,
    quant_min: IntLike,
    quant_max: IntLike,
    dtype: Any,
    group_size: int = 128,
    *,
    rounding: str = "reciprocal",
    out: Array | None = None,
) -> Array:
    """Quantize a matrix with a scale and a zero point for each group of a row.

    With the scale and the zero point of its group, every value becomes a code::

        q = clamp(rint(input * (1 / scale) + zero_point), quant_min, quant_max)

    The zero point is added before rounding, unlike per tensor and per channel, so that ties with an
    odd zero point differ. Each step is rounded to the dtype that PyTorch promotes its operands to,
    so two-byte input with scales of the same dtype stays in that dtype, and integer input takes the
    dtype of the scales. A NaN becomes 0, or the bound nearest to it; infinities become a bound.
    Float8 codes keep NaN.

    With ``rounding="divide"`` the codes are ONNX's, and the zero point is added last::

        q = clamp(rint(input / scale) + zero_point, quant_min, quant_max)

    The quotient is rounded to the dtype of `input` and `scales` if that is one, else to float32, or
    to float64 where that is one of them. Float8 codes are not rounded to integers then.

    Parameters
    ----------
    input : ndarray or ArraySpec
        Values of shape (rows, columns); float16, bfloat16, float32 or float64, or integers.
    scales : array_like of shape (rows, columns / group_size), or flat
        Distances between the values of neighbouring codes, in the units of the data: one for each
        group of a row. Positive and finite; float16,
        bfloat16, float32 or float64, or integers, which count as float32.
    zero_points : array_like of shape (rows, columns / group_size), or flat
        Codes that stand for 0.0: one for each group of a row. They may be fractional.
    quant_min, quant_max : int or array of one element
        Least and greatest code, both included, within the bounds of `dtype`.
    dtype : dtype
        Dtype of the codes: uint8, int8, uint16, int16, int32, or from ml_dtypes int4, uint4, int2,
        uint2, float8_e4m3fn, float8_e5m2.
    group_size : int, default 128
        Number of neighbouring elements of a row that share a scale: at least 2, and a divisor of
        the number of columns. A greater one stands for the whole row.
    rounding : {"reciprocal", "divide"}, default "reciprocal"
        Whether `input` is multiplied by the reciprocal of the scale, as PyTorch does, or divided by
        the scale, as ONNX does.
    out : ndarray or ArraySpec, optional
        Where to write the result: an array of its shape and dtype, either the very array that is
        read or one that does not overlap it. By default a new array.

    Returns
    -------
    ndarray or ArraySpec
        Codes of the shape of `input` and the dtype `dtype`.

    Raises
    ------
    TypeError
        If an argument is of the wrong kind or of a dtype that is not allowed.
    ValueError
        If `rounding` is neither word, a scale is not positive and finite, a zero point is not
        finite, the bounds are in the wrong order or beyond those of `dtype`, `group_size` does not
        divide the columns, or a shape or `out` does not fit.

    See Also
    --------
    dequantize_per_channel_group :
        Turn the codes of a matrix back into floats, with a scale for each group of a row.
    quantize_per_channel : Quantize with a scale and a zero point for each index of one axis.

    Notes
    -----
    Corresponds to ``torch.ops.quantized_decomposed.quantize_per_channel_group`` of PyTorch 2.13.
    The formula is that of ``torch/ao/quantization/fx/_decomposed.py``.

    The reciprocal of a float16 scale below 1.53e-5 is infinite, in PyTorch too: zeros become the
    code 0, or the bound nearest to it (in float8 NaN), and all else a bound. The same scale as a
    float32 has a finite one.

    Departures from PyTorch: D2, D4, D8, D10, D13, D17, D19, D22; see docs/departures.md.

    Examples
    --------
    >>> import numpy as np
    >>> import npquant as nq
    >>> w = np.array([[0.1, -0.4, 3.0, 7.0]], np.float32)
    >>> scales = np.array([[0.1, 1.0]], np.float32)
    >>> nq.quantize_per_channel_group(w, scales, [[0, 0]], -8, 7, np.int8, group_size=2)
    array([[ 1, -4,  3,  7]], dtype=int8)
    """
    x, target = checks.real(input, out=out), dtypes.target(dtype)
    plan = _per_group(x.shape, group_size, x.dtype, type(x), quant_min, quant_max, target, rounding)
    return _quantize_rows(plan, x, scales, zero_points, out)


def dequantize_per_channel_group(
    input: Array,
    scales: Array,
    zero_points: Array | None,
    quant_min: IntLike,
    quant_max: IntLike,
    dtype: Any,
    group_size: int = 128,
    output_dtype: Any = np.float32,
    *,
    out: Array | None = None,
) -> Array:
    """Turn the codes of a matrix back into floats, with a scale for each group of a row.

    With the scale and the zero point of its group, every code becomes a value::

        output = (input - zero_point) * scale

    The difference is exact for integers. The product is rounded to the dtype of `scales`, promoted
    with fractional zero points, and then to `output_dtype`. A NaN, which only float8 has, stays
    NaN.

    Parameters
    ----------
    input : ndarray or ArraySpec
        Codes of shape (rows, columns), of the dtype `dtype`, which need not be int8.
    scales : array_like of shape (rows, columns / group_size), or flat
        Distances between the values of neighbouring codes, in the units of the data: one for each
        group of a row. Positive and finite; float16,
        bfloat16, float32 or float64, or integers, which count as float32.
    zero_points : array_like of shape (rows, columns / group_size) or flat, or None
        Codes that stand for 0.0: one for each group of a row. They may be fractional. None means 0.
    quant_min, quant_max : int or array of one element
        Least and greatest code, within the bounds of `dtype`. They are checked, but do not change
        the result.
    dtype : dtype
        Dtype of the codes: uint8, int8, uint16, int16, int32, or from ml_dtypes int4, uint4, int2,
        uint2, float8_e4m3fn, float8_e5m2.
    group_size : int, default 128
        Number of neighbouring elements of a row that share a scale: at least 2, and a divisor of
        the number of columns. A greater one stands for the whole row.
    output_dtype : dtype, default float32
        Dtype of the result: float16, bfloat16, float32 or float64.
    out : ndarray or ArraySpec, optional
        Where to write the result: an array of its shape and dtype, either the very array that is
        read or one that does not overlap it. By default a new array.

    Returns
    -------
    ndarray or ArraySpec
        Values of the shape of the codes and the dtype `output_dtype`.

    Raises
    ------
    TypeError
        If an argument is of the wrong kind or of a dtype that is not allowed.
    ValueError
        If a scale is not positive and finite, a zero point is not finite, the bounds are in the
        wrong order or beyond those of `dtype`, `group_size` does not divide the columns, or a shape
        or `out` does not fit.

    See Also
    --------
    quantize_per_channel_group :
        Quantize a matrix with a scale and a zero point for each group of a row.
    dequantize_per_channel :
        Turn codes back into floats, with a scale and a zero point for each index of one axis.

    Notes
    -----
    Corresponds to ``torch.ops.quantized_decomposed.dequantize_per_channel_group`` of PyTorch 2.13.
    The formula is that of ``torch/ao/quantization/fx/_decomposed.py``.

    Departures from PyTorch: D3, D8, D10, D13, D17, D19, D30; see docs/departures.md.

    Examples
    --------
    >>> import numpy as np
    >>> import npquant as nq
    >>> q = np.array([[1, -4, 3, 7]], np.int8)
    >>> scales = np.array([[0.1, 1.0]], np.float32)
    >>> nq.dequantize_per_channel_group(q, scales, None, -8, 7, np.int8, group_size=2)
    array([[ 0.1, -0.4,  3. ,  7. ]], dtype=float32)
    """
    q = checks.codes(input, dtype, out=out)
    plan = _from_groups(q.shape, group_size, output_dtype, quant_min, quant_max, q.dtype, type(q))
    return _dequantize_rows(plan, q, scales, zero_points, out, _qparams_or_none)


# --- what they share --------------------------------------------------------------------------

#: Zero points up to here, and their differences with codes, are exact in float32.
_SMALL = dtypes.EXACT32
#: What stands for the bounds of codes, and in which precision, where nothing is clamped.
_NO_CODES, _IN_FLOAT32 = (0, 0, 0), Precision("float32", "float32", "float32")


@checks.remembered
def _tensor(
    shape: tuple[int, ...], dtype: dtypes.DType, kind: type, quant_min: Any, quant_max: Any,
    target: dtypes.DType, rounding: Any,
) -> Plan:  # fmt: skip
    lo, hi = checks.bounds_of(quant_min, quant_max, target, kind)
    constants, code = checks.constants(lo, hi, target), checks.code_precision(dtype, target)
    divide, end = checks.divides(rounding), checks.SMALL_ZERO_POINT
    form = Form(
        _by_division(target) if divide else "quantize_per_tensor", shape, dtype, layout.PER_TENSOR,
        (), constants, Precision(dtypes.compute(dtype).name, "int32", code), target, PYTHON_NUMBERS,
        (-end, end), checks.QPARAM, inverse=not divide,
    )  # fmt: skip

    def anew(x: Array, s: Any, z: Any, out: Any) -> tuple[Array, None]:
        return quantize_per_tensor(x, s, z, lo, hi, target, rounding=rounding, out=out), None

    return form, fast_path(kind, form, anew)


@checks.remembered
def _per_channel(shape: tuple[int, ...], axis: Any, *codes: Any) -> Plan:
    return _codes(shape, checks.channels(shape, axis), "quantize_per_channel", axis, *codes)


@checks.remembered
def _per_token(shape: tuple[int, ...], *codes: Any) -> Plan:
    return _codes(shape, checks.tokens(shape), "quantize_per_token", None, *codes)


@checks.remembered
def _per_group(shape: tuple[int, ...], group_size: Any, *codes: Any) -> Plan:
    return _codes(shape, checks.groups(shape, group_size, 2), "quantize_per_token", None, *codes)


def _codes(
    shape: tuple[int, ...], found: tuple[layout.Granularity, checks.Shapes], kernel: str,
    axis: Any, dtype: dtypes.DType, kind: type, quant_min: Any, quant_max: Any,
    target: dtypes.DType, rounding: Any,
) -> Plan:  # fmt: skip
    lo, hi = checks.bounds_of(quant_min, quant_max, target, kind)
    constants, code = checks.constants(lo, hi, target), checks.code_precision(dtype, target)
    divide, rows = checks.divides(rounding), kernel == "quantize_per_token"
    end = checks.MOST if rows and not divide else checks.SMALL_ZERO_POINT
    double = dtype == dtypes.float64 and not rows  # whose every step is in float64
    form = Form(
        _by_division(target) if divide else kernel, shape, dtype, *found, constants,
        Precision("float32", "float32", code), target,
        dtypes.DOUBLE if double else dtypes.KEPT, (-end, end), checks.QPARAMS,
        used_in=dtypes.IN_FLOAT64 if double else dtypes.IN_THEIR_OWN,
    )  # fmt: skip

    def anew(x: Array, s: Any, z: Any, out: Any) -> tuple[Array, None]:
        if rows:
            return _quantize_rows((form, no_fast_path), x, s, z, out), None
        return quantize_per_channel(x, s, z, axis, lo, hi, target, rounding=rounding, out=out), None

    return form, fast_path(kind, form, anew)


# Of codes that are given the bounds are only checked.

#: Dtypes of qparams that are used in float32: codes, and zero points that are rounded once.
_ROUNDED = dtypes.CODES + tuple((dtypes.float32, z) for z in dtypes.FLOATS)


@checks.remembered
def _from_tensor(shape: tuple[int, ...], out_dtype: Any, *bounds: Any) -> Plan:
    *_, dtype, kind = bounds
    checks.bounds_of(*bounds)
    result, end = _output_dtype(out_dtype, "out_dtype"), dtypes.EXACT64
    if _narrow(result, dtype):
        kernel, precision, within = "dequantize_promoted", _IN_FLOAT32, _exact_within(dtype)
    else:
        precision = Precision(dtypes.compute(result).name, "float64", "float32")
        kernel, within = "dequantize", (-end, end)
    form = Form(
        kernel, shape, dtype, layout.PER_TENSOR, (), _NO_CODES, precision, result, PYTHON_NUMBERS,
        within, checks.QPARAM,
    )  # fmt: skip

    def anew(q: Array, s: Any, z: Any, out: Any) -> tuple[Array, None]:
        return dequantize_per_tensor(q, s, z, *bounds[:3], out_dtype=result, out=out), None

    return form, fast_path(kind, form, anew)


@checks.remembered
def _from_channels(shape: tuple[int, ...], axis: Any, out_dtype: Any, *bounds: Any) -> Plan:
    *_, dtype, kind = bounds
    checks.bounds_of(*bounds)
    found, result = checks.channels(shape, axis), _output_dtype(out_dtype, "out_dtype")
    kernel, within = "dequantize", (-checks.MOST, checks.MOST)
    kinds, used_in = _ROUNDED, dtypes.IN_FLOAT32
    if result == dtypes.float64:
        kinds, used_in = dtypes.DOUBLE, dtypes.IN_FLOAT64
    elif _narrow(result, dtype):
        kernel, kinds, within = "dequantize_promoted", dtypes.CODES, _exact_within(dtype)
    form = Form(kernel, shape, dtype, *found, _NO_CODES, _IN_FLOAT32, result, kinds, within,
                checks.QPARAMS, used_in=used_in)  # fmt: skip

    def anew(q: Array, s: Any, z: Any, out: Any) -> tuple[Array, None]:
        return dequantize_per_channel(q, s, z, axis, *bounds[:3], out_dtype=result, out=out), None

    return form, fast_path(kind, form, anew)


@checks.remembered
def _from_tokens(shape: tuple[int, ...], output_dtype: Any, *bounds: Any) -> Plan:
    checks.bounds_of(*bounds)
    return _promoting(shape, checks.tokens(shape), checks.kept_qparams, output_dtype, *bounds[2:])


@checks.remembered
def _from_groups(shape: tuple[int, ...], group_size: Any, output_dtype: Any, *bounds: Any) -> Plan:
    checks.bounds_of(*bounds)
    found = checks.groups(shape, group_size, 2)
    return _promoting(shape, found, _qparams_or_none, output_dtype, *bounds[2:])


def _promoting(
    shape: tuple[int, ...], found: tuple[layout.Granularity, checks.Shapes],
    qparams: Callable[..., Any], output_dtype: Any, dtype: dtypes.DType, kind: type,
) -> Plan:  # fmt: skip
    result = _output_dtype(output_dtype, "output_dtype")
    kinds, used_in = dtypes.KEPT, dtypes.IN_THEIR_OWN
    within: tuple[float, float] = -_SMALL, _SMALL
    if dtype in dtypes.FLOAT8:  # as which it counts is a float32, and so do scales and zero points
        kinds = tuple(pair for pair in kinds if pair[0].itemsize > 2)
    elif _narrow(result, dtype):  # the product is rounded to the scales' dtype anyway
        kinds = tuple(pair for pair in kinds if pair != (result, dtypes.int32))
        within, used_in = _exact_within(dtype), {result: dtypes.float32}
    form = Form(
        "dequantize_promoted", shape, dtype, *found, _NO_CODES, _IN_FLOAT32, result, kinds, within,
        checks.QPARAMS, used_in=used_in,
    )  # fmt: skip

    def anew(q: Array, s: Any, z: Any, out: Any) -> tuple[Array, None]:
        return _dequantize_rows((form, no_fast_path), q, s, z, out, qparams), None

    # Of all but int32 the differences with small integers are exact in float32.
    if kind is np.ndarray and dtype == dtypes.int32:
        return form, no_fast_path
    return form, fast_path(kind, form, anew)


def _numbers(x: Array, scale: Any, zero_point: Any, precision: dtypes.DType) -> tuple[Any, Any]:
    """One scale, used in `precision`, and one zero point: numbers, or what is on a GPU."""
    if checks.any_on_device(x, scale, zero_point):
        return checks.device_qparams(scale, zero_point, x, precision)
    s = checks.scale_in(precision, scale, kind=type(x))
    return s, checks.zero_point_number(zero_point, kind=type(x))


def _rounded_once(z: Any, computed: dtypes.DType) -> Any:
    """A zero point as it is used: an integer that no float64 may hold, or a float64 on a GPU.

    Of any other a kernel is told its precision.
    """
    if on_device(z) and z.dtype == dtypes.float64:
        return arrays.cast(z, computed)
    if type(z) is int and not -dtypes.EXACT64 <= z <= dtypes.EXACT64 and computed != dtypes.float64:
        return int(np.int64(z).astype(np.float32))
    return z


def _inverse(
    x: Array, scale: Any, zero_point: Any, divide: bool
) -> tuple[Any, Any, tuple[str, str]]:
    """As `_numbers`, but the reciprocal of the scale, made in float64; and their precisions."""
    computed = dtypes.compute(x.dtype)
    s, z = _numbers(x, scale, zero_point, computed if divide else dtypes.float64)
    z = _rounded_once(z, computed)
    if type(s) is float:
        s = s if divide else 1.0 / s
    elif divide:
        s = arrays.cast(s, computed)
    else:
        s, given = x.new((1,), computed), s
        backend.of(x).inverse(given, s)
    name = "float64" if computed == dtypes.float64 else "float32"
    small = type(s) is float and isinstance(z, int) and abs(z) <= checks.SMALL_ZERO_POINT
    return s, z, (name, "int32" if small else name)


def _output_dtype(dtype: Any, name: str) -> dtypes.DType:
    return dtypes.float32 if dtype is None else dtypes.floating(dtype, name)


def _qparams_or_none(
    scales: Any, zero_points: Any, shapes: checks.Shapes, q: Array
) -> tuple[Array, Array]:
    if zero_points is not None:
        return checks.kept_qparams(scales, zero_points, shapes, q)
    s = checks.scales(scales, "scales", shapes, q)
    return s, 0 if on_device(q) else arrays.full(q, (prod(shapes[-1]),), dtypes.int32, 0)


def _by_division(target: dtypes.DType) -> str:
    """The kernel of ONNX's rule, the same for all granularities."""
    float8 = target in dtypes.FLOAT8
    return "quantize_by_division_to_float8" if float8 else "quantize_by_division"


def _quantize_rows(plan: Plan, x: Array, scales: Any, zero_points: Any, out: Any) -> Array:
    """Quantize per token or group."""
    form, at_once = plan
    done = at_once(x, scales, zero_points, out)
    if done is not None:
        return done[0]
    s, z = checks.kept_qparams(scales, zero_points, form.shapes, x)
    y = checks.output(out, x, form.target, checks.QPARAMS, (scales, zero_points))
    if form.kernel != "quantize_per_token":  # divides, and rounds before it adds a zero point
        z = checks.large_as_floats(z, s, x)
    run, given = getattr(backend.of(x), form.kernel), out is not None
    run(form.granularity, x, s, z, form.constants, form.precision, y, given=given)
    return checks.returned(out, y)


def _dequantize(
    form: Form, q: Array, s: Any, z: Any, precision: Precision, y: Array, given: bool
) -> None:
    """Each step is rounded to the dtype of the output, where any but the last can matter."""
    lib = backend.of(q)
    run = lib.dequantize
    if _narrow(form.target, q.dtype) and _exact(z, q.dtype):
        run, precision = lib.dequantize_promoted, _IN_FLOAT32
    run(form.granularity, q, s, z, form.constants, precision, y, given=given)


def _narrow(result: dtypes.DType, dtype: dtypes.DType) -> bool:
    """Whether the 8 bits of a bfloat16 hold codes of `dtype`, and differences of most."""
    return result.itemsize == 2 and dtype.itemsize == 1


def _exact_within(dtype: dtypes.DType) -> tuple[float, float]:
    """Bounds of integer zero points whose differences with codes of a byte have 8 bits at most."""
    return (0, 0) if dtype in dtypes.FLOAT8 else dtypes.BOUNDS[dtype]


def _exact(z: Any, dtype: dtypes.DType) -> bool:
    """Whether differences with all these zero points have 8 bits at most."""
    lo, hi = _exact_within(dtype)
    if type(z) is np.ndarray:
        return z.dtype.kind == "i" and checks.outside(z, lo, hi) < 0
    return type(z) in (int, float) and lo <= z <= hi and z == int(z)


def _dequantize_rows(
    plan: Plan, q: Array, scales: Any, zero_points: Any, out: Any, qparams: Callable[..., Any],
) -> Array:  # fmt: skip
    """Dequantize per token or group, with qparams that are checked so."""
    form, at_once = plan
    done = at_once(q, scales, zero_points, out)
    if done is not None:
        return done[0]
    found, code = None, "float32"
    if q.dtype != dtypes.int32:  # whose differences with small integers a float32 holds exactly
        looks = checks.LOOK_AT_CODES
        found = checks.usual_qparams(scales, zero_points, form.shapes, looks, *form.within, q)
    if found is not None:
        s, z = found
    else:
        s, z = qparams(scales, zero_points, form.shapes, q)
        narrow = _narrow(form.target, q.dtype) and _exact(z, q.dtype)
        if narrow and s.dtype == form.target:
            s = arrays.cast(s, dtypes.float32)  # a product is rounded to the scales' dtype anyway
        s, z, code = _promoted(q, s, z)
    y = checks.output(out, q, form.target, checks.QPARAMS, (scales, zero_points))
    lib = backend.of(q)
    in_integers = type(z) is np.ndarray and z.dtype == dtypes.int64
    run = lib.dequantize_in_integers if in_integers else lib.dequantize_promoted
    precision, given = Precision("float32", code, "float32"), out is not None
    run(form.granularity, q, s, z, form.constants, precision, y, given=given)
    return checks.returned(out, y)


def _promoted(q: Array, s: Array, z: Array) -> tuple[Array, Array, str]:
    """Scales and zero points in the precision of PyTorch's promotion; its name for a number.

    Integer zero points become floats that hold their differences with codes, if there are such.
    """
    code = "float32"
    if q.dtype in dtypes.FLOAT8 and type(z) is not int and z.dtype in dtypes.FLOATS:
        z = arrays.cast(z, dtypes.promote(z.dtype, dtypes.float32))  # as which the codes count
    if on_device(q):
        # Integers stay integers, of which the difference is exact; nobody looks how large they are.
        if q.dtype in dtypes.FLOAT8:
            if type(z) is not int and z.dtype.kind == "i":
                z = arrays.cast(z, dtypes.float32)
        else:
            code = "int32"
        if type(z) is not int and z.dtype in dtypes.FLOATS:
            s = arrays.cast(s, dtypes.promote(s.dtype, z.dtype))
    elif type(z) is np.ndarray:
        fractional = z.dtype.kind != "i" or q.dtype in dtypes.FLOAT8
        if z.dtype.kind == "i":
            # float32 holds the difference exactly, unless a zero point or a code is too large.
            # Float8 codes count as float32.
            small = q.dtype != dtypes.int32 and checks.outside(z, -_SMALL, _SMALL) < 0
            if small or q.dtype in dtypes.FLOAT8:
                z = z.astype(dtypes.float32)
            elif checks.outside(z, -dtypes.EXACT64, dtypes.EXACT64) < 0:
                z = z.astype(dtypes.float64)
        if fractional and type(s) is np.ndarray:
            s = s.astype(dtypes.promote(s.dtype, z.dtype), copy=False)
    return s, z, code
