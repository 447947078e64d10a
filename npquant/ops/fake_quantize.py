"""Fake quantize: to the grid of the codes and back to floats, as aten does it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from npquant import arrays, backend, checks, dtypes, layout
from npquant.dtypes import Precision
from npquant.meta import ArraySpec
from npquant.ops.fast_path import PYTHON_NUMBERS, Form, Plan, fast_path, no_fast_path, repeated
from npquant.owners import Array, IntLike

#: Of zero points on a GPU.
_INTEGERS = dtypes.int32, dtypes.int64


def fake_quantize_per_tensor_affine(
    input: Array,
    scale: Any,
    zero_point: Any,
    quant_min: IntLike,
    quant_max: IntLike,
    *,
    rounding: str = "reciprocal",
    out: Array | None = None,
) -> Array:
    """Round to the grid of one scale and zero point, and clamp to its range.

    Every value goes to its code and back::

        q = clamp(rint(input * (1 / scale)) + zero_point, quant_min, quant_max)
        output = (q - zero_point) * scale

    Scale, reciprocal and the last product are float32, whatever the input; the code is computed in
    float32, or in float64 for float64 input. Ties round to even, before the zero point is added. A
    NaN becomes `quant_min`, an infinity the bound of its sign.

    With ``rounding="divide"`` the scale, a float32, divides: ``rint(input / scale)``.

    Parameters
    ----------
    input : ndarray or ArraySpec
        Values of any shape; float16, bfloat16, float32 or float64.
    scale : float or array of one element
        Distance between the values of neighbouring codes, in the units of the data. Positive and
        finite in float32.
    zero_point : int or array of one element
        Code that stands for 0.0, between `quant_min` and `quant_max`. A fractional one, in an
        array, is truncated.
    quant_min, quant_max : int or array of one element
        Least and greatest code, both included, within int64.
    rounding : {"reciprocal", "divide"}, default "reciprocal"
        Whether `input` is multiplied by the reciprocal of the scale, as PyTorch does, or divided by
        the scale, as ONNX does.
    out : ndarray or ArraySpec, optional
        Where to write the result: an array of its shape and dtype, either the very array that is
        read or one that does not overlap it. By default a new array.

    Returns
    -------
    ndarray or ArraySpec
        Values of the shape and the dtype of `input`.

    Raises
    ------
    TypeError
        If an argument is of the wrong kind or of a dtype that is not allowed.
    ValueError
        If `rounding` is neither word, a scale is not positive and finite in float32, the zero point
        is not between the bounds, the bounds are in the wrong order or beyond int64, or `out` does
        not fit.

    See Also
    --------
    fake_quantize_per_tensor_affine_cachemask :
        Fake quantize per tensor, and tell which values were inside the range.
    fake_quantize_learnable_per_tensor_affine : Fake quantize with one learned scale and zero point.
    quantize_per_tensor : Quantize with one scale and one zero point.

    Notes
    -----
    Corresponds to ``torch.ops.aten.fake_quantize_per_tensor_affine`` of PyTorch 2.13. The formula
    is that of ``aten/src/ATen/native/quantized/cpu/kernels/QuantizedOpKernels.cpp``.

    The affine scheme is that of [1]_.

    Departures from PyTorch: D1, D10, D11, D13, D19; see docs/departures.md.

    References
    ----------
    .. [1] B. Jacob et al., "Quantization and Training of Neural Networks for Efficient
       Integer-Arithmetic-Only Inference", CVPR 2018, arXiv:1712.05877.

    Examples
    --------
    >>> import numpy as np
    >>> import npquant as nq
    >>> x = np.array([-9, -0.5, 0.5, 1.5, 9, np.nan], np.float32)
    >>> nq.fake_quantize_per_tensor_affine(x, 1.0, 0, -8, 7)
    array([-8.,  0.,  0.,  2.,  7., -8.], dtype=float32)
    >>> nq.fake_quantize_per_tensor_affine(x, 1.0, 1, -8, 7)
    array([-9.,  0.,  0.,  2.,  6., -9.], dtype=float32)
    """
    return _per_tensor(input, scale, zero_point, quant_min, quant_max, rounding, False, out)[0]


def fake_quantize_per_tensor_affine_cachemask(
    input: Array,
    scale: Any,
    zero_point: Any,
    quant_min: IntLike,
    quant_max: IntLike,
    *,
    rounding: str = "reciprocal",
) -> tuple[Array, Array]:
    """Fake quantize per tensor, and tell which values were inside the range.

    Every value goes to its code and back::

        q = clamp(rint(input * (1 / scale)) + zero_point, quant_min, quant_max)
        output = (q - zero_point) * scale

    Scale, reciprocal and the last product are float32, whatever the input; the code is computed in
    float32, or in float64 for float64 input. Ties round to even, before the zero point is added. A
    NaN becomes `quant_min`, an infinity the bound of its sign. The mask says where the code lay
    between the bounds before it was clamped; it is false for NaN.

    With ``rounding="divide"`` the scale, a float32, divides: ``rint(input / scale)``.

    Parameters
    ----------
    input : ndarray or ArraySpec
        Values of any shape; float16, bfloat16, float32 or float64.
    scale : float or array of one element
        Distance between the values of neighbouring codes, in the units of the data. Positive and
        finite in float32.
    zero_point : int or array of one element
        Code that stands for 0.0, between `quant_min` and `quant_max`. A fractional one, in an
        array, is truncated.
    quant_min, quant_max : int or array of one element
        Least and greatest code, both included, within int64.
    rounding : {"reciprocal", "divide"}, default "reciprocal"
        Whether `input` is multiplied by the reciprocal of the scale, as PyTorch does, or divided by
        the scale, as ONNX does.

    Returns
    -------
    output : ndarray or ArraySpec
        Values of the shape and the dtype of `input`.
    mask : ndarray or ArraySpec
        Bool, of the shape of `input`: true where the code lay between the bounds unclamped.

    Raises
    ------
    TypeError
        If an argument is of the wrong kind or of a dtype that is not allowed.
    ValueError
        If `rounding` is neither word, a scale is not positive and finite in float32, the zero point
        is not between the bounds, or the bounds are in the wrong order or beyond int64.

    See Also
    --------
    fake_quantize_per_tensor_affine :
        Round to the grid of one scale and zero point, and clamp to its range.
    fake_quantize_per_tensor_affine_cachemask_backward :
        Compute the input's gradient of `fake_quantize_per_tensor_affine_cachemask`.

    Notes
    -----
    Corresponds to ``torch.ops.aten.fake_quantize_per_tensor_affine_cachemask`` of PyTorch 2.13. The
    formula is that of ``aten/src/ATen/native/quantized/cpu/kernels/QuantizedOpKernels.cpp``.

    The mask compares in float32, or in float64 for float64 input: a bound beyond 2**24 is rounded
    there.

    Departures from PyTorch: D1, D10, D13; see docs/departures.md.

    Examples
    --------
    >>> import numpy as np
    >>> import npquant as nq
    >>> x = np.array([-9, -0.5, 1.5, np.nan], np.float32)
    >>> output, mask = nq.fake_quantize_per_tensor_affine_cachemask(x, 1.0, 0, -8, 7)
    >>> output
    array([-8.,  0.,  2., -8.], dtype=float32)
    >>> mask
    array([False,  True,  True, False])
    """
    return _per_tensor(input, scale, zero_point, quant_min, quant_max, rounding, True)


def fake_quantize_per_tensor_affine_cachemask_tensor_qparams(
    input: Array,
    scale: Array,
    zero_point: Array,
    fake_quant_enabled: Array,
    quant_min: IntLike,
    quant_max: IntLike,
    *,
    rounding: str = "reciprocal",
) -> tuple[Array, Array]:
    """Fake quantize per tensor with qparams in arrays, if a switch is on.

    Every value goes to its code and back::

        q = clamp(rint(input * (1 / scale)) + zero_point, quant_min, quant_max)
        output = (q - zero_point) * scale

    Scale, reciprocal and the last product are float32, whatever the input; the code is computed in
    float32, or in float64 for float64 input. Ties round to even, before the zero point is added. A
    NaN becomes `quant_min`, an infinity the bound of its sign. The mask says where the code lay
    between the bounds before it was clamped; it is false for NaN.

    With ``rounding="divide"`` the scale, a float32, divides: ``rint(input / scale)``.

    Parameters
    ----------
    input : ndarray or ArraySpec
        Values of any shape; float16, bfloat16, float32 or float64.
    scale : float or array of one element
        Distance between the values of neighbouring codes, in the units of the data. Positive and
        finite in float32.
    zero_point : int or array of one element
        Code that stands for 0.0, truncated to an int32. It may lie beyond `quant_min` and
        `quant_max`.
    fake_quant_enabled : number, bool or array of one element
        Whether to quantize at all, truncated to an integer. Where it is 0 the output is a copy of
        `input` and the mask is true.
    quant_min, quant_max : int or array of one element
        Least and greatest code, both included, within int64.
    rounding : {"reciprocal", "divide"}, default "reciprocal"
        Whether `input` is multiplied by the reciprocal of the scale, as PyTorch does, or divided by
        the scale, as ONNX does.

    Returns
    -------
    output : ndarray or ArraySpec
        Values of the shape and the dtype of `input`.
    mask : ndarray or ArraySpec
        Bool, of the shape of `input`: true where the code lay between the bounds unclamped.

    Raises
    ------
    TypeError
        If an argument is of the wrong kind or of a dtype that is not allowed.
    ValueError
        If `rounding` is neither word, a scale is not positive and finite in float32, the zero point
        does not fit int32, the switch is not finite, the bounds are in the wrong order or beyond
        int64, or an array does not have one element.

    See Also
    --------
    fake_quantize_per_tensor_affine_cachemask :
        Fake quantize per tensor, and tell which values were inside the range.
    fused_moving_avg_obs_fake_quant :
        Update a moving range, choose qparams from it, and fake quantize with them.

    Notes
    -----
    Corresponds to ``torch.ops.aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams`` of
    PyTorch 2.13. The formula is that of
    ``aten/src/ATen/native/quantized/cpu/kernels/QuantizedOpKernels.cpp``.

    The zero point is truncated and not held against the bounds, as in PyTorch.

    Departures from PyTorch: D1, D10, D13; see docs/departures.md.

    Examples
    --------
    >>> import numpy as np
    >>> import npquant as nq
    >>> x = np.array([-9, -0.6, 1.4], np.float32)
    >>> scale, zero_point = np.array([1.0], np.float32), np.array([0], np.int32)
    >>> op = nq.fake_quantize_per_tensor_affine_cachemask_tensor_qparams
    >>> op(x, scale, zero_point, np.array([1]), -8, 7)
    (array([-8., -1.,  1.], dtype=float32), array([False,  True,  True]))
    >>> op(x, scale, zero_point, np.array([0]), -8, 7)
    (array([-9. , -0.6,  1.4], dtype=float32), array([ True,  True,  True]))
    """
    x = checks.floats(input)
    form, at_once = _tensor(True, True, x.shape, x.dtype, type(x), quant_min, quant_max, rounding)
    enabled = checks.switch(fake_quant_enabled, "fake_quant_enabled", type(x))
    if enabled and (done := at_once(x, scale, zero_point, None)) is not None:
        return done
    if type(x) is not np.ndarray and checks.any_on_device(x, scale, zero_point):
        s, z = _device_qparams(x, scale, zero_point, _truncated_int32)
        z = z if type(z) is int else arrays.cast(z, dtypes.int32)
    else:
        s, z = _tensor_numbers(scale, zero_point, type(x))
    precision, (lo, hi, _) = form.precision, form.constants
    if type(z) is not int:  # on a GPU, where nobody looks how large it is
        precision = Precision(precision.scale, "wide", "wide")
    elif z > dtypes.EXACT32 or z < -dtypes.EXACT32:
        precision = dtypes.affine_precision(x.dtype, lo, hi, z)
    y, mask = checks.output_and_mask(x, True)
    lib = backend.of(x)
    if not enabled:
        lib.copy(x, y, mask)
        return y, mask
    getattr(lib, form.kernel)(form.granularity, x, s, z, form.constants, precision, y, mask)
    return y, mask


def fake_quantize_per_tensor_affine_cachemask_backward(
    grad: Array, mask: Array, *, out: Array | None = None
) -> Array:
    """Compute the input's gradient of `fake_quantize_per_tensor_affine_cachemask`.

    The gradient passes straight through rounding, and not at all through the clamp::

        grad_input = grad where mask, else 0

    Where the mask is false the result is a zero with the sign of the gradient, so also for NaN and
    infinite gradients.

    Parameters
    ----------
    grad : ndarray or ArraySpec
        Gradient of the output: floats or integers of any shape.
    mask : ndarray or ArraySpec
        Mask that the forward returned: bool, of the shape of `grad`, or of one that
        broadcasts with it by axes of length 1 alone.
    out : ndarray or ArraySpec, optional
        Where to write the result: an array of its shape and dtype, either the very array that is
        read or one that does not overlap it. By default a new array.

    Returns
    -------
    ndarray or ArraySpec
        Gradient of the input, of the dtype and the shape of `grad`, with the axes of length 1 that
        only `mask` has.

    Raises
    ------
    TypeError
        If an argument is of the wrong kind or of a dtype that is not allowed.
    ValueError
        If `mask` has another shape than `grad`, or `out` does not fit.

    See Also
    --------
    fake_quantize_per_tensor_affine_cachemask :
        Fake quantize per tensor, and tell which values were inside the range.

    Notes
    -----
    Corresponds to ``torch.ops.aten.fake_quantize_per_tensor_affine_cachemask_backward`` of PyTorch
    2.13.

    The straight-through estimator [1]_; PyTorch multiplies `grad` by `mask` instead of selecting.

    Departures from PyTorch: D5, D10, D30; see docs/departures.md.

    References
    ----------
    .. [1] Y. Bengio, N. Léonard and A. Courville, "Estimating or Propagating Gradients Through
       Stochastic Neurons for Conditional Computation", 2013, arXiv:1308.3432.

    Examples
    --------
    >>> import numpy as np
    >>> import npquant as nq
    >>> grad = np.array([2, np.nan, -3], np.float32)
    >>> mask = np.array([True, False, False])
    >>> nq.fake_quantize_per_tensor_affine_cachemask_backward(grad, mask)
    array([ 2.,  0., -0.], dtype=float32)
    """
    return _masked(grad, mask, out)


def fake_quantize_per_channel_affine(
    input: Array,
    scale: Array,
    zero_point: Array,
    axis: int,
    quant_min: IntLike,
    quant_max: IntLike,
    *,
    rounding: str = "reciprocal",
    out: Array | None = None,
) -> Array:
    """Round to the grid of a scale and a zero point for each index of one axis.

    With the scale and the zero point of its channel, every value goes to its code and back::

        q = clamp(rint(input * (1 / scale)) + zero_point, quant_min, quant_max)
        output = (q - zero_point) * scale

    A floating zero point is not rounded, and is added before rounding::

        q = clamp(rint(input * (1 / scale) + zero_point), quant_min, quant_max)

    With float32 zero points that is one fma, rounded once; with float16 ones product and sum are
    rounded each. Of float64 input the sum is then rounded to float32. Scale and reciprocal are
    float32; the code is computed in float32, or in float64 for float64 input; the last product is
    rounded once to the dtype of `input`. Ties round to even. A NaN becomes `quant_min`, an infinity
    the bound of its sign.

    With ``rounding="divide"`` the scale, a float32, divides, and every zero point is added last:
    ``rint(input / scale) + zero_point``.

    Parameters
    ----------
    input : ndarray or ArraySpec
        Values of any shape; float16, bfloat16, float32 or float64.
    scale : array_like of shape (C,)
        Distances between the values of neighbouring codes, in the units of the data: one for each
        of the C indices of `axis`. Positive and finite in float32.
    zero_point : array_like of shape (C,)
        Codes that stand for 0.0: one for each of the C indices of `axis`. Integers between
        `quant_min` and `quant_max`, or finite floats of any size.
    axis : int
        Axis of the channels; a negative one counts from the back.
    quant_min, quant_max : int or array of one element
        Least and greatest code, both included, within int64.
    rounding : {"reciprocal", "divide"}, default "reciprocal"
        Whether `input` is multiplied by the reciprocal of the scale, as PyTorch does, or divided by
        the scale, as ONNX does.
    out : ndarray or ArraySpec, optional
        Where to write the result: an array of its shape and dtype, either the very array that is
        read or one that does not overlap it. By default a new array.

    Returns
    -------
    ndarray or ArraySpec
        Values of the shape and the dtype of `input`.

    Raises
    ------
    TypeError
        If an argument is of the wrong kind or of a dtype that is not allowed.
    ValueError
        If `rounding` is neither word, a scale is not positive and finite in float32, an integer
        zero point is not between the bounds or does not fit int32, a floating one is not finite in
        float32, the bounds are in the wrong order or beyond int64, `input` has no such axis, or a
        shape or `out` does not fit.

    See Also
    --------
    fake_quantize_per_channel_affine_cachemask :
        Fake quantize per channel, and tell which values were inside the range.
    fake_quant_per_channel : Round to a grid for each index of one axis, and keep NaN.
    fake_quantize_learnable_per_channel_affine :
        Fake quantize with a learned scale and zero point for each index of one axis.

    Notes
    -----
    Corresponds to ``torch.ops.aten.fake_quantize_per_channel_affine`` of PyTorch 2.13. The formula
    is that of ``aten/src/ATen/native/quantized/cpu/kernels/QuantizedOpKernels.cpp``.

    Departures from PyTorch: D1, D8, D9, D10, D13, D17; see docs/departures.md.

    Examples
    --------
    >>> import numpy as np
    >>> import npquant as nq
    >>> x = np.array([[0.5, 1.5, 9], [0.5, 1.5, 9]], np.float32)
    >>> scale = np.array([1.0, 0.5], np.float32)
    >>> nq.fake_quantize_per_channel_affine(x, scale, [1, 0], 0, -8, 7)
    array([[0. , 2. , 6. ],
           [0.5, 1.5, 3.5]], dtype=float32)
    >>> nq.fake_quantize_per_channel_affine(x, scale, [1.0, 0.25], 0, -8, 7)
    array([[1.   , 1.   , 6.   ],
           [0.375, 1.375, 3.375]], dtype=float32)
    """
    return _per_channel(input, scale, zero_point, axis, quant_min, quant_max, rounding, False, out)[
        0
    ]


def fake_quantize_per_channel_affine_cachemask(
    input: Array,
    scale: Array,
    zero_point: Array,
    axis: int,
    quant_min: IntLike,
    quant_max: IntLike,
    *,
    rounding: str = "reciprocal",
) -> tuple[Array, Array]:
    """Fake quantize per channel, and tell which values were inside the range.

    With the scale and the zero point of its channel, every value goes to its code and back::

        q = clamp(rint(input * (1 / scale)) + zero_point, quant_min, quant_max)
        output = (q - zero_point) * scale

    A floating zero point is not rounded, and is added before rounding::

        q = clamp(rint(input * (1 / scale) + zero_point), quant_min, quant_max)

    With float32 zero points that is one fma, rounded once; with float16 ones product and sum are
    rounded each. Of float64 input the sum is then rounded to float32. Scale and reciprocal are
    float32; the code is computed in float32, or in float64 for float64 input; the last product is
    rounded once to the dtype of `input`. Ties round to even. A NaN becomes `quant_min`, an infinity
    the bound of its sign. The mask says where the code lay between the bounds before it was
    clamped; it is false for NaN.

    With ``rounding="divide"`` the scale, a float32, divides, and every zero point is added last:
    ``rint(input / scale) + zero_point``.

    Parameters
    ----------
    input : ndarray or ArraySpec
        Values of any shape; float16, bfloat16, float32 or float64.
    scale : array_like of shape (C,)
        Distances between the values of neighbouring codes, in the units of the data: one for each
        of the C indices of `axis`. Positive and finite in float32.
    zero_point : array_like of shape (C,)
        Codes that stand for 0.0: one for each of the C indices of `axis`. Integers between
        `quant_min` and `quant_max`, or finite floats of any size.
    axis : int
        Axis of the channels; a negative one counts from the back.
    quant_min, quant_max : int or array of one element
        Least and greatest code, both included, within int64.
    rounding : {"reciprocal", "divide"}, default "reciprocal"
        Whether `input` is multiplied by the reciprocal of the scale, as PyTorch does, or divided by
        the scale, as ONNX does.

    Returns
    -------
    output : ndarray or ArraySpec
        Values of the shape and the dtype of `input`.
    mask : ndarray or ArraySpec
        Bool, of the shape of `input`: true where the code lay between the bounds unclamped.

    Raises
    ------
    TypeError
        If an argument is of the wrong kind or of a dtype that is not allowed.
    ValueError
        If `rounding` is neither word, a scale is not positive and finite in float32, an integer
        zero point is not between the bounds or does not fit int32, a floating one is not finite in
        float32, the bounds are in the wrong order or beyond int64, `input` has no such axis, or a
        shape does not fit.

    See Also
    --------
    fake_quantize_per_channel_affine :
        Round to the grid of a scale and a zero point for each index of one axis.
    fake_quantize_per_channel_affine_cachemask_backward :
        Compute the input's gradient of `fake_quantize_per_channel_affine_cachemask`.

    Notes
    -----
    Corresponds to ``torch.ops.aten.fake_quantize_per_channel_affine_cachemask`` of PyTorch 2.13.
    The formula is that of ``aten/src/ATen/native/quantized/cpu/kernels/QuantizedOpKernels.cpp``.

    Departures from PyTorch: D1, D8, D9, D10, D13, D17; see docs/departures.md.

    Examples
    --------
    >>> import numpy as np
    >>> import npquant as nq
    >>> x = np.array([[0.5, 1.5, 9], [0.5, 1.5, 9]], np.float32)
    >>> scale = np.array([1.0, 0.5], np.float32)
    >>> output, mask = nq.fake_quantize_per_channel_affine_cachemask(x, scale, [1, 0], 0, -8, 7)
    >>> output
    array([[0. , 2. , 6. ],
           [0.5, 1.5, 3.5]], dtype=float32)
    >>> mask
    array([[ True,  True, False],
           [ True,  True, False]])
    """
    return _per_channel(input, scale, zero_point, axis, quant_min, quant_max, rounding, True)


def fake_quantize_per_channel_affine_cachemask_backward(
    grad: Array, mask: Array, *, out: Array | None = None
) -> Array:
    """Compute the input's gradient of `fake_quantize_per_channel_affine_cachemask`.

    The gradient passes straight through rounding, and not at all through the clamp::

        grad_input = grad where mask, else 0

    Where the mask is false the result is a zero with the sign of the gradient, so also for NaN and
    infinite gradients.

    Parameters
    ----------
    grad : ndarray or ArraySpec
        Gradient of the output: floats or integers of any shape.
    mask : ndarray or ArraySpec
        Mask that the forward returned: bool, of the shape of `grad`, or of one that
        broadcasts with it by axes of length 1 alone.
    out : ndarray or ArraySpec, optional
        Where to write the result: an array of its shape and dtype, either the very array that is
        read or one that does not overlap it. By default a new array.

    Returns
    -------
    ndarray or ArraySpec
        Gradient of the input, of the dtype and the shape of `grad`, with the axes of length 1 that
        only `mask` has.

    Raises
    ------
    TypeError
        If an argument is of the wrong kind or of a dtype that is not allowed.
    ValueError
        If `mask` has another shape than `grad`, or `out` does not fit.

    See Also
    --------
    fake_quantize_per_channel_affine_cachemask :
        Fake quantize per channel, and tell which values were inside the range.

    Notes
    -----
    Corresponds to ``torch.ops.aten.fake_quantize_per_channel_affine_cachemask_backward`` of PyTorch
    2.13.

    The straight-through estimator [1]_; PyTorch multiplies `grad` by `mask` instead of selecting.

    Departures from PyTorch: D5, D10, D30; see docs/departures.md.

    References
    ----------
    .. [1] Y. Bengio, N. Léonard and A. Courville, "Estimating or Propagating Gradients Through
       Stochastic Neurons for Conditional Computation", 2013, arXiv:1308.3432.

    Examples
    --------
    >>> import numpy as np
    >>> import npquant as nq
    >>> grad = np.array([2, np.nan, -3], np.float32)
    >>> mask = np.array([True, False, False])
    >>> nq.fake_quantize_per_channel_affine_cachemask_backward(grad, mask)
    array([ 2.,  0., -0.], dtype=float32)
    """
    return _masked(grad, mask, out)


def fake_quant_per_channel(
    input: Array,
    scales: Array,
    zero_points: Array,
    axis: int,
    quant_min: IntLike,
    quant_max: IntLike,
    *,
    rounding: str = "reciprocal",
    out: Array | None = None,
) -> Array:
    """Round to a grid for each index of one axis, and keep NaN.

    With the scale and the zero point of its channel, every value goes to its code and back::

        q = clamp(rint(input * (1 / scale)) + zero_point, quant_min, quant_max)
        output = (q - zero_point) * scale

    Every step is in float32, or in float64 for float64 input. Ties round to even, before the zero
    point is added. A NaN stays NaN, an infinity becomes the bound of its sign.

    With ``rounding="divide"`` the scale divides: ``rint(input / scale)``.

    Parameters
    ----------
    input : ndarray or ArraySpec
        Values of any shape; float16, bfloat16, float32 or float64.
    scales : array_like of shape (C,)
        Distances between the values of neighbouring codes, in the units of the data: one for each
        of the C indices of `axis`. Positive and finite in float32, or in float64 for float64 input.
    zero_points : array_like of shape (C,)
        Codes that stand for 0.0: one for each of the C indices of `axis`. Truncated to int32; they
        may lie beyond `quant_min` and `quant_max`.
    axis : int
        Axis of the channels; a negative one counts from the back.
    quant_min, quant_max : int or array of one element
        Least and greatest code, both included, within int64.
    rounding : {"reciprocal", "divide"}, default "reciprocal"
        Whether `input` is multiplied by the reciprocal of the scale, as PyTorch does, or divided by
        the scale, as ONNX does.
    out : ndarray or ArraySpec, optional
        Where to write the result: an array of its shape and dtype, either the very array that is
        read or one that does not overlap it. By default a new array.

    Returns
    -------
    ndarray or ArraySpec
        Values of the shape and the dtype of `input`.

    Raises
    ------
    TypeError
        If an argument is of the wrong kind or of a dtype that is not allowed.
    ValueError
        If `rounding` is neither word, a scale is not positive and finite, a zero point does not fit
        int32, the bounds are in the wrong order or beyond int64, `input` has no such
        axis, or a shape or `out` does not fit.

    See Also
    --------
    fake_quant_per_channel_cachemask :
        Fake quantize per channel, keep NaN, and tell which values were inside the range.
    fake_quantize_per_channel_affine :
        Round to the grid of a scale and a zero point for each index of one axis.
    quantize_per_channel : Quantize with a scale and a zero point for each index of one axis.

    Notes
    -----
    Corresponds to ``torch.ops.quantized_decomposed.fake_quant_per_channel`` of PyTorch 2.13. The
    formula is that of ``torch/ao/quantization/fx/_decomposed.py``.

    PyTorch takes float32 input alone.

    Departures from PyTorch: D8, D10, D13, D17, D18, D30; see docs/departures.md.

    Examples
    --------
    >>> import numpy as np
    >>> import npquant as nq
    >>> x = np.array([[0.5, np.nan], [1.3, 9]], np.float32)
    >>> scales = np.array([1.0, 0.5], np.float32)
    >>> nq.fake_quant_per_channel(x, scales, [0, 0], 0, -8, 7)
    array([[0. , nan],
           [1.5, 3.5]], dtype=float32)
    """
    return _decomposed(
        input, scales, zero_points, axis, quant_min, quant_max, rounding, False, out
    )[0]


def fake_quant_per_channel_cachemask(
    input: Array,
    scales: Array,
    zero_points: Array,
    axis: int,
    quant_min: IntLike,
    quant_max: IntLike,
    *,
    rounding: str = "reciprocal",
) -> tuple[Array, Array]:
    """Fake quantize per channel, keep NaN, and tell which values were inside the range.

    With the scale and the zero point of its channel, every value goes to its code and back::

        q = clamp(rint(input * (1 / scale)) + zero_point, quant_min, quant_max)
        output = (q - zero_point) * scale

    Every step is in float32, or in float64 for float64 input. Ties round to even, before the zero
    point is added. A NaN stays NaN, an infinity becomes the bound of its sign. The mask says where
    the code lay between the bounds before it was clamped; it is false for NaN.

    With ``rounding="divide"`` the scale divides: ``rint(input / scale)``.

    Parameters
    ----------
    input : ndarray or ArraySpec
        Values of any shape; float16, bfloat16, float32 or float64.
    scales : array_like of shape (C,)
        Distances between the values of neighbouring codes, in the units of the data: one for each
        of the C indices of `axis`. Positive and finite in float32, or in float64 for float64 input.
    zero_points : array_like of shape (C,)
        Codes that stand for 0.0: one for each of the C indices of `axis`. Truncated to int32; they
        may lie beyond `quant_min` and `quant_max`.
    axis : int
        Axis of the channels; a negative one counts from the back.
    quant_min, quant_max : int or array of one element
        Least and greatest code, both included, within int64.
    rounding : {"reciprocal", "divide"}, default "reciprocal"
        Whether `input` is multiplied by the reciprocal of the scale, as PyTorch does, or divided by
        the scale, as ONNX does.

    Returns
    -------
    output : ndarray or ArraySpec
        Values of the shape and the dtype of `input`.
    mask : ndarray or ArraySpec
        Bool, of the shape of `input`: true where the code lay between the bounds unclamped.

    Raises
    ------
    TypeError
        If an argument is of the wrong kind or of a dtype that is not allowed.
    ValueError
        If `rounding` is neither word, a scale is not positive and finite, a zero point does not fit
        int32, the bounds are in the wrong order or beyond int64, `input` has no such
        axis, or a shape does not fit.

    See Also
    --------
    fake_quant_per_channel : Round to a grid for each index of one axis, and keep NaN.
    fake_quant_per_channel_backward :
        Compute the input's gradient of `fake_quant_per_channel_cachemask`.

    Notes
    -----
    Corresponds to the forward of ``torch.ops.quantized_decomposed.fake_quant_per_channel`` of
    PyTorch 2.13 with the mask that it saves for its backward. The formula is that of
    ``torch/ao/quantization/fx/_decomposed.py``.

    PyTorch takes float32 input alone.

    Departures from PyTorch: D8, D10, D13, D17, D18, D30; see docs/departures.md.

    Examples
    --------
    >>> import numpy as np
    >>> import npquant as nq
    >>> x = np.array([[0.5, np.nan], [1.3, 9]], np.float32)
    >>> scales = np.array([1.0, 0.5], np.float32)
    >>> output, mask = nq.fake_quant_per_channel_cachemask(x, scales, [0, 0], 0, -8, 7)
    >>> output
    array([[0. , nan],
           [1.5, 3.5]], dtype=float32)
    >>> mask
    array([[ True, False],
           [ True, False]])
    """
    return _decomposed(input, scales, zero_points, axis, quant_min, quant_max, rounding, True)


def fake_quant_per_channel_backward(grad: Array, mask: Array, *, out: Array | None = None) -> Array:
    """Compute the input's gradient of `fake_quant_per_channel_cachemask`.

    The gradient passes straight through rounding, and not at all through the clamp::

        grad_input = grad where mask, else 0

    Where the mask is false the result is a zero with the sign of the gradient, so also for NaN and
    infinite gradients.

    Parameters
    ----------
    grad : ndarray or ArraySpec
        Gradient of the output: floats or integers of any shape.
    mask : ndarray or ArraySpec
        Mask that the forward returned: bool, of the shape of `grad`, or of one that
        broadcasts with it by axes of length 1 alone.
    out : ndarray or ArraySpec, optional
        Where to write the result: an array of its shape and dtype, either the very array that is
        read or one that does not overlap it. By default a new array.

    Returns
    -------
    ndarray or ArraySpec
        Gradient of the input, of the dtype and the shape of `grad`, with the axes of length 1 that
        only `mask` has.

    Raises
    ------
    TypeError
        If an argument is of the wrong kind or of a dtype that is not allowed.
    ValueError
        If `mask` has another shape than `grad`, or `out` does not fit.

    See Also
    --------
    fake_quant_per_channel_cachemask :
        Fake quantize per channel, keep NaN, and tell which values were inside the range.

    Notes
    -----
    Corresponds to the backward of ``torch.ops.quantized_decomposed.fake_quant_per_channel`` of
    PyTorch 2.13, which has no name of its own.

    The straight-through estimator [1]_; PyTorch multiplies `grad` by `mask` instead of selecting.

    Departures from PyTorch: D5, D10; see docs/departures.md.

    References
    ----------
    .. [1] Y. Bengio, N. Léonard and A. Courville, "Estimating or Propagating Gradients Through
       Stochastic Neurons for Conditional Computation", 2013, arXiv:1308.3432.

    Examples
    --------
    >>> import numpy as np
    >>> import npquant as nq
    >>> grad = np.array([2, np.nan, -3], np.float32)
    >>> mask = np.array([True, False, False])
    >>> nq.fake_quant_per_channel_backward(grad, mask)
    array([ 2.,  0., -0.], dtype=float32)
    """
    return _masked(grad, mask, out)


# --- what they share --------------------------------------------------------------------------


def _per_tensor(
    input: Any, scale: Any, zero_point: Any, quant_min: Any, quant_max: Any, rounding: Any,
    masked: bool, out: Any = None,
) -> tuple[Array, Any]:  # fmt: skip
    x = checks.floats(input, out=out)
    form, at_once = _tensor(
        False, masked, x.shape, x.dtype, type(x), quant_min, quant_max, rounding
    )
    done = at_once(x, scale, zero_point, out)
    if done is not None:
        return done
    lo, hi, _ = form.constants
    if checks.any_on_device(x, scale, zero_point):
        s, z = _device_qparams(x, scale, zero_point, lambda v: checks.zero_point_inside(v, lo, hi))
    else:
        s = checks.scale_float32(scale, kind=type(x))
        z = checks.zero_point_inside(zero_point, lo, hi, kind=type(x))
    y, mask = checks.output_and_mask(x, masked, out, checks.QPARAM, (scale, zero_point))
    run, given = getattr(backend.of(x), form.kernel), out is not None
    run(form.granularity, x, s, z, form.constants, form.precision, y, mask, given=given)
    return checks.returned(out, y), mask


def _device_qparams(
    x: Array, scale: Any, zero_point: Any, number: Callable[[Any], int]
) -> tuple[Any, Any]:
    """A float32 scale and an integer zero point in arrays on a GPU, or one of them a number."""
    s, z = checks.device_qparams(scale, zero_point, x, dtypes.float32, number)
    s = s if type(s) is float else arrays.cast(s, dtypes.float32)
    return s, z if type(z) is int or z.dtype in _INTEGERS else arrays.cast(z, _INTEGERS[1])


def _truncated_int32(value: Any, kind: type | None = None) -> int:
    """A zero point as PyTorch reads one from a tensor: truncated, and an int32."""
    z = checks.number(value, "zero_point", kind)
    if not -(2.0**31) - 1 < z < 2.0**31:  # and so no NaN
        raise ValueError(f"zero_point must fit int32, got {z}")
    return int(z)


def _tensor_numbers(scale: Any, zero_point: Any, kind: type) -> tuple[float, int]:
    """A float32 scale and an int32 zero point, which come in arrays."""
    if (
        type(scale) is type(zero_point) is np.ndarray
        and scale.dtype is dtypes.float32
        and zero_point.dtype is dtypes.int32
    ):
        try:
            s, z = scale.item(), zero_point.item()
        except ValueError:  # of more than one element
            s, z = math.nan, 0
        if 0 < s < math.inf:
            return s, z
    return checks.scale_float32(scale, "scale", kind), _truncated_int32(zero_point, kind)


@checks.remembered
def _tensor(
    in_arrays: bool, masked: bool, shape: tuple[int, ...], dtype: dtypes.DType, kind: type,
    quant_min: Any, quant_max: Any, rounding: Any,
) -> Plan:  # fmt: skip
    """The form, and what does it all at once if it can.

    Of qparams in arrays, the zero point may be any integer.
    """
    lo, hi = checks.bounds(quant_min, quant_max, kind)
    precision, constants = dtypes.affine_precision(dtype, lo, hi), (lo, hi, 0)
    kernel = "fake_quantize_per_tensor" + "_by_division" * checks.divides(rounding)
    exact = -dtypes.EXACT32, dtypes.EXACT32
    shapes, kinds, within = (
        (checks.ONE, dtypes.CODES, exact) if in_arrays else ((), PYTHON_NUMBERS, (lo, hi))
    )
    form = Form(
        kernel, shape, dtype, layout.PER_TENSOR, shapes, constants, precision, dtype, kinds, within,
        checks.QPARAM, masked=masked,
    )  # fmt: skip

    def anew(x: Array, s: Any, z: Any, out: Any) -> tuple[Array, Any]:
        if in_arrays:
            return fake_quantize_per_tensor_affine_cachemask_tensor_qparams(
                x, s, z, True, lo, hi, rounding=rounding
            )
        return _per_tensor(x, s, z, lo, hi, rounding, masked, out)

    return form, fast_path(kind, form, anew)


#: The kernels of zero points that are not rounded, by their dtype.
_OF_FLOATS = {
    dtypes.float32: "fake_quantize_float_zero_point",
    dtypes.float16: "fake_quantize_half_zero_point",
}


@checks.remembered
def _channels(
    kernel: str, masked: bool, shape: tuple[int, ...], dtype: dtypes.DType, kind: type, axis: Any,
    quant_min: Any, quant_max: Any, rounding: Any, zero_point: dtypes.DType | None = None,
) -> Plan:  # fmt: skip
    """The form, and what does it all at once if it can.

    `zero_point` is the dtype of zero points that are not rounded.
    """
    found = checks.channels(shape, axis)
    within: tuple[float, float]
    lo, hi = within = checks.bounds(quant_min, quant_max, kind)
    precision, kinds, given = dtypes.affine_precision(dtype, lo, hi), dtypes.CODES, checks.QPARAM
    decomposed, divide = kernel == "fake_quantize_decomposed", checks.divides(rounding)
    if decomposed:  # by the formula in which zero points cancel, or by none at once
        within, given = (-dtypes.EXACT32, dtypes.EXACT32), checks.QPARAMS
    elif zero_point is not None:
        within, kinds = (-checks.MOST, checks.MOST), ((dtypes.float32, zero_point),)
        precision = Precision("float32", *("wide" if divide else "float64",) * 2)
        if not divide:
            kernel = _OF_FLOATS[zero_point]
    form = Form(
        kernel + "_by_division" * divide, shape, dtype, *found, (lo, hi, 0), precision, dtype,
        kinds, within, given, masked=masked, used_in=dtypes.IN_FLOAT32,
    )  # fmt: skip

    def anew(x: Array, s: Any, z: Any, out: Any) -> tuple[Array, Any]:
        run = _decomposed if decomposed else _per_channel
        return run(x, s, z, axis, lo, hi, rounding, masked, out)

    if kind is np.ndarray and decomposed and precision.code != "float32":
        return form, no_fast_path
    return form, fast_path(kind, form, anew)


def _per_channel(
    input: Any, scale: Any, zero_point: Any, axis: Any, quant_min: Any, quant_max: Any,
    rounding: Any, masked: bool, out: Any = None,
) -> tuple[Array, Any]:  # fmt: skip
    x = checks.floats(input, out=out)
    told = (
        "fake_quantize_per_channel", masked, x.shape, x.dtype, type(x), axis, quant_min, quant_max,
        rounding,
    )  # fmt: skip
    in_arrays = type(zero_point) is type(x) is np.ndarray
    kept = zero_point.dtype if in_arrays and zero_point.dtype in _OF_FLOATS else None
    form, at_once = _channels(*told, kept)
    done = at_once(x, scale, zero_point, out)
    if done is not None:
        return done
    lo, hi, _ = form.constants
    qparams = checks.usual_qparams(scale, zero_point, form.shapes, checks.LOOK_AT_CODES, lo, hi, x)
    if qparams is None:
        s = checks.scales_float32(scale, "scale", form.shapes, x)
        z = checks.parameters(zero_point, "zero_point", form.shapes, x)
        if z.dtype in dtypes.FLOATS:
            if z.dtype == dtypes.float16:
                checks.all_finite(z, "zero_point")
            else:
                z = checks.in_float32(z, "zero_point")
            form, _ = _channels(*told, z.dtype)
        else:
            checks.in_range(z, "zero_point", lo, hi)
            z = checks.int32s(z, "zero_point")
        qparams = s, z
    s, z = qparams
    y, mask = checks.output_and_mask(x, masked, out, checks.QPARAM, (scale, zero_point))
    run, given = getattr(backend.of(x), form.kernel), out is not None
    run(form.granularity, x, s, z, form.constants, form.precision, y, mask, given=given)
    return checks.returned(out, y), mask


def _decomposed(
    input: Any, scales: Any, zero_points: Any, axis: Any, quant_min: Any, quant_max: Any,
    rounding: Any, masked: bool, out: Any = None,
) -> tuple[Array, Any]:  # fmt: skip
    x = checks.floats(input, out=out)
    form, at_once = _channels(
        "fake_quantize_decomposed", masked, x.shape, x.dtype, type(x), axis, quant_min, quant_max,
        rounding,
    )  # fmt: skip
    done = at_once(x, scales, zero_points, out)
    if done is not None:
        return done
    double, qparams, kernel = x.dtype == dtypes.float64, None, form.kernel
    shapes = form.shapes
    if form.precision.code == "float32":
        qparams = checks.usual_qparams(
            scales, zero_points, shapes, checks.LOOK_AT_CODES, *form.within, x
        )
    if qparams is None:
        kernel = kernel.replace("decomposed", "decomposed_wide")
        if double:
            s = arrays.cast(checks.scales(scales, "scales", shapes, x, x.dtype), x.dtype)
        else:
            s = checks.scales_float32(scales, "scales", shapes, x)
        z = checks.parameters(zero_points, "zero_points", shapes, x)
        qparams = s, checks.int32s(z, "zero_points")
    s, z = qparams
    run = getattr(backend.of(x), kernel)
    y, mask = checks.output_and_mask(x, masked, out, checks.QPARAMS, (scales, zero_points))
    code = "float64" if double else "float32"
    precision, given = Precision("float32", code, code), out is not None
    run(form.granularity, x, s, z, form.constants, precision, y, mask, given=given)
    return checks.returned(out, y), mask


def _masked(grad: Any, mask: Any, out: Any) -> Array:
    g, m = checks.real(grad, "grad", out), checks.array(mask, "mask")
    if type(g) is not type(m):
        checks.of_one_kind(g, m, "mask", "grad")
    if m.dtype != dtypes.bool_:
        raise TypeError(f"mask must have the dtype bool, got {m.dtype}")
    if g.shape != m.shape:
        g, m = _with_axes_of_one(g, m)
    if type(g) is not np.ndarray and (done := _on_gpu(type(g))((g, m), out)) is not None:
        return done
    y = checks.output(out, g, g.dtype, ("mask",), (m,), "grad")
    backend.of(g).masked_gradient(g, m, y, given=out is not None)
    return checks.returned(out, y)


@checks.remembered
def _on_gpu(kind: type) -> Callable[..., Any]:
    """`_masked`, where equal calls come to the same."""
    return repeated(kind, lambda data, out: _masked(data[0], data[1], out), 0, (2,))


def _with_axes_of_one(g: Array, m: Array) -> tuple[Array, Array]:
    """Both in the longer shape, where they differ by leading or inner axes of one alone."""
    axes = max(g.ndim, m.ndim)
    shape = tuple(map(max, *((1,) * (axes - s.ndim) + s.shape for s in (g, m))))
    lengths = [[n for n in s if n != 1] for s in (shape, g.shape, m.shape)]
    if not lengths[0] == lengths[1] == lengths[2]:
        raise ValueError(f"mask must have the shape of grad, {g.shape}, got {m.shape}")
    if isinstance(g, ArraySpec):
        return ArraySpec(shape, g.dtype), ArraySpec(shape, m.dtype)
    if isinstance(g, np.ndarray):
        return np.broadcast_to(g, shape), np.broadcast_to(m, shape)
    return g.with_axes_of_one(shape), m.with_axes_of_one(shape)
