"""Fake quantize with a scale and a zero point that are learned, and its gradients.

The gradient of the scale is that of LSQ (Esser et al., Learned Step Size Quantization, 2020), that
of the zero point that of LSQ+ (Bhalgat et al., 2020); both pass through rounding straight.
"""

from __future__ import annotations

from math import inf, prod
from typing import Any

import numpy as np

from npquant import arrays, backend, checks, dtypes, layout
from npquant.dtypes import Precision
from npquant.layout import Granularity
from npquant.meta import ArraySpec
from npquant.ops.fast_path import Form, fast_backward, fast_path, no_fast_path
from npquant.owners import Array, FloatLike, IntLike

#: What `zero_point_rounding` may be.
ZERO_POINT_ROUNDINGS = ("pytorch", "nearest")


def fake_quantize_learnable_per_tensor_affine(
    input: Array,
    scale: Array,
    zero_point: Array,
    quant_min: IntLike,
    quant_max: IntLike,
    grad_factor: FloatLike = 1.0,
    *,
    out: Array | None = None,
) -> Array:
    """Fake quantize with one learned scale and zero point.

    Every value goes to its code and back::

        z = clamp(rint(zero_point), quant_min, quant_max)
        q = clamp(rint(input * (1 / scale)) + z, quant_min, quant_max)
        output = (q - z) * scale

    Scale, zero point and the last product are float32, whatever the input; the code is computed in
    float32, or in float64 for float64 input. Ties round to even. A NaN becomes `quant_min`, an
    infinity the bound of its sign.

    Parameters
    ----------
    input : ndarray or ArraySpec
        Values of any shape; float16, bfloat16, float32 or float64.
    scale : float or array of shape (1,) or ()
        Distance between the values of neighbouring codes, in the units of the data. Positive and
        finite in float32.
    zero_point : float or array of shape (1,) or ()
        Code that stands for 0.0, as learned: fractional, and anything but NaN. A floating dtype or
        integers.
    quant_min, quant_max : int or array of one element
        Least and greatest code, both included, within int64.
    grad_factor : float or array of one element, default 1.0
        Finite factor of the gradients of scale and zero point. The forward has no use for it.
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
        If a scale is not positive and finite in float32, a zero point is NaN, the bounds are in the
        wrong order or beyond int64, `grad_factor` is not finite, `scale` or `zero_point` does not
        have one element, or `out` does not fit.

    See Also
    --------
    fake_quantize_learnable_per_tensor_affine_backward :
        Compute the gradients of `fake_quantize_learnable_per_tensor_affine`.
    fake_quantize_per_tensor_affine :
        Round to the grid of one scale and zero point, and clamp to its range.

    Notes
    -----
    Corresponds to ``torch.ops.aten._fake_quantize_learnable_per_tensor_affine`` of PyTorch 2.13.
    The formula is that of ``aten/src/ATen/native/quantized/FakeQuantPerTensorAffine.cpp``.

    Departures from PyTorch: D1, D7, D8, D10, D13, D17, D19, D30; see docs/departures.md.

    Examples
    --------
    >>> import numpy as np
    >>> import npquant as nq
    >>> x = np.array([-9, -0.4, 0.3, 9], np.float32)
    >>> scale, zero_point = np.array([0.5], np.float32), np.array([0.2], np.float32)
    >>> nq.fake_quantize_learnable_per_tensor_affine(x, scale, zero_point, -8, 7)
    array([-4. , -0.5,  0.5,  3.5], dtype=float32)
    """
    x = checks.floats(input, out=out)
    plan = _per_tensor(x.shape, x.dtype, type(x), quant_min, quant_max, grad_factor)
    return _forward(x, scale, zero_point, plan, out)


def fake_quantize_learnable_per_tensor_affine_backward(
    grad: Array,
    input: Array,
    scale: Array,
    zero_point: Array,
    quant_min: IntLike,
    quant_max: IntLike,
    grad_factor: FloatLike = 1.0,
    *,
    zero_point_rounding: str = "pytorch",
) -> tuple[Array, Array, Array]:
    """Compute the gradients of `fake_quantize_learnable_per_tensor_affine`.

    The gradients pass straight through rounding. With
    ``z = trunc(clamp(zero_point + 1/2, quant_min, quant_max))``::

        q = rint(input * (1 / scale) + z)
        grad_input      = grad inside, 0 outside
        grad_scale      = sum(grad * ((q - z) * scale - input) * (1 / scale)) inside
                        + sum(grad * (clamp(q, quant_min, quant_max) - z)) outside
        grad_zero_point = -sum(grad * scale) outside

    where inside means ``quant_min <= q <= quant_max`` and the sums, over all elements, are
    multiplied by `grad_factor`. Terms are computed in float32, or in float64 for float64 input; a
    product that `z` or `input` is added to or taken from is rounded once with the sum (an fma).
    Terms are added in float64, in an order that depends on the shape alone. A NaN in `input` counts
    as below the range, infinities as beyond it.

    Parameters
    ----------
    grad : ndarray or ArraySpec
        Gradient of the output, of the shape and the dtype of `input`.
    input : ndarray or ArraySpec
        Values of any shape; float16, bfloat16, float32 or float64.
    scale : float or array of shape (1,) or ()
        Distance between the values of neighbouring codes, in the units of the data. Positive and
        finite in float32; a floating dtype. A number is taken for float32 of shape (1,),
        an ``np.float64`` for float64.
    zero_point : float or array of shape (1,) or ()
        Code that stands for 0.0, as learned: fractional, and anything but NaN. A floating dtype, or
        integers, whose gradient is float32.
    quant_min, quant_max : int or array of one element
        Least and greatest code, both included, with ``quant_min <= 0 <= quant_max``.
    grad_factor : float or array of one element, default 1.0
        Finite factor of the gradients of scale and zero point, for instance
        ``1 / sqrt(input.size * quant_max)``.
    zero_point_rounding : {"pytorch", "nearest"}, default "pytorch"
        Which code decides what was inside the range: PyTorch's own, or with "nearest" exactly the
        code of the forward.

    Returns
    -------
    grad_input : ndarray or ArraySpec
        Gradient of `input`, of its shape and dtype.
    grad_scale : ndarray or ArraySpec
        Gradient of `scale`, of its shape and dtype.
    grad_zero_point : ndarray or ArraySpec
        Gradient of `zero_point`, of its shape and dtype; float32 of integers.

    Raises
    ------
    TypeError
        If an argument is of the wrong kind or of a dtype that is not allowed.
    ValueError
        If a scale is not positive and finite in float32, a zero point is NaN, 0 is not between the
        bounds, or these are 2**63 or more apart, `grad_factor` is not finite,
        `zero_point_rounding` is unknown, `scale` or `zero_point` does not have one element, or
        a shape does not fit.

    See Also
    --------
    fake_quantize_learnable_per_tensor_affine : Fake quantize with one learned scale and zero point.

    Notes
    -----
    Corresponds to ``torch.ops.aten._fake_quantize_learnable_per_tensor_affine_backward`` of PyTorch
    2.13. The formula is that of ``aten/src/ATen/native/quantized/FakeQuantPerTensorAffine.cpp``.

    The gradient of the scale is that of LSQ [1]_, that of the zero point that of LSQ+ [2]_. By
    default zero point and code are those of the backward of PyTorch, which truncates where the
    forward rounds and adds the zero point before rounding, not after. With
    ``zero_point_rounding="nearest"`` zero point and code are those of the forward.

    Departures from PyTorch: D1, D5, D6, D7, D8, D10, D12, D13, D17, D19, D23, D30; see
    docs/departures.md.

    References
    ----------
    .. [1] S. K. Esser et al., "Learned Step Size Quantization", ICLR 2020, arXiv:1902.08153.
    .. [2] Y. Bhalgat et al., "LSQ+: Improving low-bit quantization through learnable offsets and
       better initialization", CVPR Workshops 2020, arXiv:2004.09576.

    Examples
    --------
    >>> import numpy as np
    >>> import npquant as nq
    >>> x = np.array([-9, -0.4, 0.3, 9], np.float32)
    >>> scale, zero_point = np.array([0.5], np.float32), np.array([0.2], np.float32)
    >>> grads = nq.fake_quantize_learnable_per_tensor_affine_backward(
    ...     np.ones_like(x), x, scale, zero_point, -8, 7
    ... )
    >>> grads[0]
    array([0., 1., 1., 0.], dtype=float32)
    >>> grads[1], grads[2]
    (array([-0.8], dtype=float32), array([-1.], dtype=float32))
    """
    x = checks.floats(input)
    plan = _per_tensor(
        x.shape, x.dtype, type(x), quant_min, quant_max, grad_factor, zero_point_rounding
    )
    return _backward(grad, x, scale, zero_point, plan)


def fake_quantize_learnable_per_channel_affine(
    input: Array,
    scale: Array,
    zero_point: Array,
    axis: int,
    quant_min: IntLike,
    quant_max: IntLike,
    grad_factor: FloatLike = 1.0,
    *,
    out: Array | None = None,
) -> Array:
    """Fake quantize with a learned scale and zero point for each index of one axis.

    With the scale and the zero point of its channel, every value goes to its code and back::

        z = clamp(rint(zero_point), quant_min, quant_max)
        q = clamp(rint(input * (1 / scale)) + z, quant_min, quant_max)
        output = (q - z) * scale

    Scale and zero point are float32, whatever the input; the code is computed in float32, or in
    float64 for float64 input. Ties round to even. A NaN becomes `quant_min`, an infinity the bound
    of its sign. The last product is rounded once to the dtype of `input`.

    Parameters
    ----------
    input : ndarray or ArraySpec
        Values of any shape; float16, bfloat16, float32 or float64.
    scale : array_like of shape (C,)
        Distances between the values of neighbouring codes, in the units of the data: one for each
        of the C indices of `axis`. Positive and finite in float32.
    zero_point : array_like of shape (C,)
        Codes that stand for 0.0: one for each of the C indices of `axis`. As learned: fractional,
        and anything but NaN. A floating dtype or integers.
    axis : int
        Axis of the channels; a negative one counts from the back.
    quant_min, quant_max : int or array of one element
        Least and greatest code, both included, within int64.
    grad_factor : float or array of one element, default 1.0
        Finite factor of the gradients of scale and zero point. The forward has no use for it.
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
        If a scale is not positive and finite in float32, a zero point is NaN, the bounds are in the
        wrong order or beyond int64, `grad_factor` is not finite, `input` has no such axis, or a
        shape or `out` does not fit.

    See Also
    --------
    fake_quantize_learnable_per_channel_affine_backward :
        Compute the gradients of `fake_quantize_learnable_per_channel_affine`.
    fake_quantize_learnable_per_tensor_affine : Fake quantize with one learned scale and zero point.

    Notes
    -----
    Corresponds to ``torch.ops.aten._fake_quantize_learnable_per_channel_affine`` of PyTorch 2.13.
    The formula is that of ``aten/src/ATen/native/quantized/FakeQuantPerChannelAffine.cpp``.

    Departures from PyTorch: D1, D7, D8, D9, D10, D13, D17, D19, D30; see docs/departures.md.

    Examples
    --------
    >>> import numpy as np
    >>> import npquant as nq
    >>> x = np.array([[-9, -0.4], [0.3, 9]], np.float32)
    >>> scale, zero_point = np.array([0.5, 1.0], np.float32), np.zeros(2, np.float32)
    >>> nq.fake_quantize_learnable_per_channel_affine(x, scale, zero_point, 0, -8, 7)
    array([[-4. , -0.5],
           [ 0. ,  7. ]], dtype=float32)
    """
    x = checks.floats(input, out=out)
    plan = _per_channel(x.shape, axis, x.dtype, type(x), quant_min, quant_max, grad_factor)
    return _forward(x, scale, zero_point, plan, out)


def fake_quantize_learnable_per_channel_affine_backward(
    grad: Array,
    input: Array,
    scale: Array,
    zero_point: Array,
    axis: int,
    quant_min: IntLike,
    quant_max: IntLike,
    grad_factor: FloatLike = 1.0,
    *,
    zero_point_rounding: str = "pytorch",
) -> tuple[Array, Array, Array]:
    """Compute the gradients of `fake_quantize_learnable_per_channel_affine`.

    The gradients pass straight through rounding. With
    ``z = clamp(rint(zero_point), quant_min, quant_max)``::

        q = rint(input * (1 / scale) + z)
        grad_input      = grad inside, 0 outside
        grad_scale      = sum(grad * ((q - z) * scale - input) * (1 / scale)) inside
                        + sum(grad * (clamp(q, quant_min, quant_max) - z)) outside
        grad_zero_point = -sum(grad * scale) outside

    where inside means ``quant_min <= q <= quant_max`` and the sums, over each channel, are
    multiplied by `grad_factor`. Terms are computed in float32, or in float64 for float64 input; a
    product that `z` or `input` is added to or taken from is rounded once with the sum (an fma).
    Terms are added in float64, in an order that depends on the shape alone. A NaN in `input` counts
    as below the range, infinities as beyond it.

    Parameters
    ----------
    grad : ndarray or ArraySpec
        Gradient of the output, of the shape and the dtype of `input`.
    input : ndarray or ArraySpec
        Values of any shape; float16, bfloat16, float32 or float64.
    scale : array_like of shape (C,)
        Distances between the values of neighbouring codes, in the units of the data: one for each
        of the C indices of `axis`. Positive and finite in float32; a floating dtype.
    zero_point : array_like of shape (C,)
        Codes that stand for 0.0: one for each of the C indices of `axis`. As learned: fractional,
        and anything but NaN. A floating dtype, or integers, whose gradient is float32.
    axis : int
        Axis of the channels; a negative one counts from the back.
    quant_min, quant_max : int or array of one element
        Least and greatest code, both included, with ``quant_min <= 0 <= quant_max``.
    grad_factor : float or array of one element, default 1.0
        Finite factor of the gradients of scale and zero point, for instance
        ``1 / sqrt(input.size * quant_max)``.
    zero_point_rounding : {"pytorch", "nearest"}, default "pytorch"
        Which code decides what was inside the range: PyTorch's own, or with "nearest" exactly the
        code of the forward.

    Returns
    -------
    grad_input : ndarray or ArraySpec
        Gradient of `input`, of its shape and dtype.
    grad_scale : ndarray or ArraySpec
        Gradient of `scale`, of its shape and dtype.
    grad_zero_point : ndarray or ArraySpec
        Gradient of `zero_point`, of its shape and dtype; float32 of integers.

    Raises
    ------
    TypeError
        If an argument is of the wrong kind or of a dtype that is not allowed.
    ValueError
        If a scale is not positive and finite in float32, a zero point is NaN, 0 is not between the
        bounds, or these are 2**63 or more apart, `grad_factor` is not finite,
        `zero_point_rounding` is unknown, `input` has no such axis, or a shape does not fit.

    See Also
    --------
    fake_quantize_learnable_per_channel_affine :
        Fake quantize with a learned scale and zero point for each index of one axis.

    Notes
    -----
    Corresponds to ``torch.ops.aten._fake_quantize_learnable_per_channel_affine_backward`` of
    PyTorch 2.13. The formula is that of
    ``aten/src/ATen/native/quantized/FakeQuantPerChannelAffine.cpp``.

    The gradient of the scale is that of LSQ [1]_, that of the zero point that of LSQ+ [2]_. By
    default the zero point is added before rounding, unlike in the forward. With
    ``zero_point_rounding="nearest"`` the code is that of the forward, which differs at ties and
    next to them.

    Departures from PyTorch: D1, D5, D6, D7, D8, D9, D10, D13, D17, D19, D23, D30; see
    docs/departures.md.

    References
    ----------
    .. [1] S. K. Esser et al., "Learned Step Size Quantization", ICLR 2020, arXiv:1902.08153.
    .. [2] Y. Bhalgat et al., "LSQ+: Improving low-bit quantization through learnable offsets and
       better initialization", CVPR Workshops 2020, arXiv:2004.09576.

    Examples
    --------
    >>> import numpy as np
    >>> import npquant as nq
    >>> x = np.array([[-9, -0.4], [0.3, 9]], np.float32)
    >>> scale, zero_point = np.array([0.5, 1.0], np.float32), np.zeros(2, np.float32)
    >>> grads = nq.fake_quantize_learnable_per_channel_affine_backward(
    ...     np.ones_like(x), x, scale, zero_point, 0, -8, 7
    ... )
    >>> grads[0]
    array([[0., 1.],
           [1., 0.]], dtype=float32)
    >>> grads[1], grads[2]
    (array([-8.2,  6.7], dtype=float32), array([-0.5, -1. ], dtype=float32))
    """
    x = checks.floats(input)
    plan = _per_channel(
        x.shape, axis, x.dtype, type(x), quant_min, quant_max, grad_factor, zero_point_rounding
    )
    return _backward(grad, x, scale, zero_point, plan)


def fake_quantize_learnable_per_token_affine(
    input: Array,
    scale: Array,
    zero_point: Array,
    quant_min: IntLike,
    quant_max: IntLike,
    grad_factor: FloatLike = 1.0,
    *,
    out: Array | None = None,
) -> Array:
    """Fake quantize with a learned scale and zero point for each row along the last axis.

    With the scale and the zero point of its row, every value goes to its code and back::

        z = clamp(rint(zero_point), quant_min, quant_max)
        q = clamp(rint(input * (1 / scale)) + z, quant_min, quant_max)
        output = (q - z) * scale

    Scale and zero point are float32, whatever the input; the code is computed in float32, or in
    float64 for float64 input. Ties round to even. A NaN becomes `quant_min`, an infinity the bound
    of its sign. The last product is rounded once to the dtype of `input`.

    Parameters
    ----------
    input : ndarray or ArraySpec
        Values of any shape; float16, bfloat16, float32 or float64.
    scale : array_like of shape (..., 1), or flat
        Distances between the values of neighbouring codes, in the units of the data: one for each
        row along the last axis. Positive and finite in float32.
    zero_point : array_like of shape (..., 1), or flat
        Codes that stand for 0.0: one for each row along the last axis. As learned: fractional, and
        anything but NaN. A floating dtype or integers.
    quant_min, quant_max : int or array of one element
        Least and greatest code, both included, within int64.
    grad_factor : float or array of one element, default 1.0
        Finite factor of the gradients of scale and zero point. The forward has no use for it.
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
        If a scale is not positive and finite in float32, a zero point is NaN, the bounds are in the
        wrong order or beyond int64, `grad_factor` is not finite, or a shape or `out` does not fit.

    See Also
    --------
    fake_quantize_learnable_per_token_affine_backward :
        Compute the gradients of `fake_quantize_learnable_per_token_affine`.
    fake_quantize_learnable_per_channel_affine :
        Fake quantize with a learned scale and zero point for each index of one axis.

    Notes
    -----
    PyTorch has no such op: the formula is that of `fake_quantize_learnable_per_channel_affine`,
    with rows for channels.

    Examples
    --------
    >>> import numpy as np
    >>> import npquant as nq
    >>> x = np.array([[-9, -0.4], [0.3, 9]], np.float32)
    >>> scale, zero_point = np.array([[0.5], [1.0]], np.float32), np.zeros((2, 1), np.float32)
    >>> nq.fake_quantize_learnable_per_token_affine(x, scale, zero_point, -8, 7)
    array([[-4. , -0.5],
           [ 0. ,  7. ]], dtype=float32)
    """
    x = checks.floats(input, out=out)
    plan = _per_token(x.shape, x.dtype, type(x), quant_min, quant_max, grad_factor)
    return _forward(x, scale, zero_point, plan, out)


def fake_quantize_learnable_per_token_affine_backward(
    grad: Array,
    input: Array,
    scale: Array,
    zero_point: Array,
    quant_min: IntLike,
    quant_max: IntLike,
    grad_factor: FloatLike = 1.0,
    *,
    zero_point_rounding: str = "pytorch",
) -> tuple[Array, Array, Array]:
    """Compute the gradients of `fake_quantize_learnable_per_token_affine`.

    The gradients pass straight through rounding. With
    ``z = clamp(rint(zero_point), quant_min, quant_max)``::

        q = rint(input * (1 / scale) + z)
        grad_input      = grad inside, 0 outside
        grad_scale      = sum(grad * ((q - z) * scale - input) * (1 / scale)) inside
                        + sum(grad * (clamp(q, quant_min, quant_max) - z)) outside
        grad_zero_point = -sum(grad * scale) outside

    where inside means ``quant_min <= q <= quant_max`` and the sums, over each row, are multiplied
    by `grad_factor`. Terms are computed in float32, or in float64 for float64 input; a product that
    `z` or `input` is added to or taken from is rounded once with the sum (an fma). Terms are added
    in float64, in an order that depends on the shape alone. A NaN in `input` counts as below the
    range, infinities as beyond it.

    Parameters
    ----------
    grad : ndarray or ArraySpec
        Gradient of the output, of the shape and the dtype of `input`.
    input : ndarray or ArraySpec
        Values of any shape; float16, bfloat16, float32 or float64.
    scale : array_like of shape (..., 1), or flat
        Distances between the values of neighbouring codes, in the units of the data: one for each
        row along the last axis. Positive and finite in float32; a floating dtype.
    zero_point : array_like of shape (..., 1), or flat
        Codes that stand for 0.0: one for each row along the last axis. As learned: fractional, and
        anything but NaN. A floating dtype, or integers, whose gradient is float32.
    quant_min, quant_max : int or array of one element
        Least and greatest code, both included, with ``quant_min <= 0 <= quant_max``.
    grad_factor : float or array of one element, default 1.0
        Finite factor of the gradients of scale and zero point, for instance
        ``1 / sqrt(input.size * quant_max)``.
    zero_point_rounding : {"pytorch", "nearest"}, default "pytorch"
        Which code decides what was inside the range: PyTorch's own, or with "nearest" exactly the
        code of the forward.

    Returns
    -------
    grad_input : ndarray or ArraySpec
        Gradient of `input`, of its shape and dtype.
    grad_scale : ndarray or ArraySpec
        Gradient of `scale`, of its shape and dtype.
    grad_zero_point : ndarray or ArraySpec
        Gradient of `zero_point`, of its shape and dtype; float32 of integers.

    Raises
    ------
    TypeError
        If an argument is of the wrong kind or of a dtype that is not allowed.
    ValueError
        If a scale is not positive and finite in float32, a zero point is NaN, 0 is not between the
        bounds, or these are 2**63 or more apart, `grad_factor` is not finite,
        `zero_point_rounding` is unknown, or a shape does not fit.

    See Also
    --------
    fake_quantize_learnable_per_token_affine :
        Fake quantize with a learned scale and zero point for each row along the last axis.

    Notes
    -----
    PyTorch has no such op: the formula is that of
    `fake_quantize_learnable_per_channel_affine_backward`, with rows for channels.

    The gradient of the scale is that of LSQ [1]_, that of the zero point that of LSQ+ [2]_. By
    default the zero point is added before rounding, unlike in the forward. With
    ``zero_point_rounding="nearest"`` the code is that of the forward, which differs at ties and
    next to them.

    References
    ----------
    .. [1] S. K. Esser et al., "Learned Step Size Quantization", ICLR 2020, arXiv:1902.08153.
    .. [2] Y. Bhalgat et al., "LSQ+: Improving low-bit quantization through learnable offsets and
       better initialization", CVPR Workshops 2020, arXiv:2004.09576.

    Examples
    --------
    >>> import numpy as np
    >>> import npquant as nq
    >>> x = np.array([[-9, -0.4], [0.3, 9]], np.float32)
    >>> scale, zero_point = np.array([[0.5], [1.0]], np.float32), np.zeros((2, 1), np.float32)
    >>> grads = nq.fake_quantize_learnable_per_token_affine_backward(
    ...     np.ones_like(x), x, scale, zero_point, -8, 7
    ... )
    >>> grads[0]
    array([[0., 1.],
           [1., 0.]], dtype=float32)
    >>> grads[1], grads[2]
    (array([[-8.2],
           [ 6.7]], dtype=float32), array([[-0.5],
           [-1. ]], dtype=float32))
    """
    x = checks.floats(input)
    plan = _per_token(
        x.shape, x.dtype, type(x), quant_min, quant_max, grad_factor, zero_point_rounding
    )
    return _backward(grad, x, scale, zero_point, plan)


def fake_quantize_learnable_per_channel_group_affine(
    input: Array,
    scale: Array,
    zero_point: Array,
    quant_min: IntLike,
    quant_max: IntLike,
    group_size: int = 128,
    grad_factor: FloatLike = 1.0,
    *,
    out: Array | None = None,
) -> Array:
    """Fake quantize with a learned scale and zero point for each group along the last axis.

    With the scale and the zero point of its group, every value goes to its code and back::

        z = clamp(rint(zero_point), quant_min, quant_max)
        q = clamp(rint(input * (1 / scale)) + z, quant_min, quant_max)
        output = (q - z) * scale

    Scale and zero point are float32, whatever the input; the code is computed in float32, or in
    float64 for float64 input. Ties round to even. A NaN becomes `quant_min`, an infinity the bound
    of its sign. The last product is rounded once to the dtype of `input`.

    Parameters
    ----------
    input : ndarray or ArraySpec
        Values of shape (..., columns); float16, bfloat16, float32 or float64.
    scale : array_like of shape (..., columns / group_size), or flat
        Distances between the values of neighbouring codes, in the units of the data: one for each
        group of a row. Positive and finite in float32.
    zero_point : array_like of shape (..., columns / group_size), or flat
        Codes that stand for 0.0: one for each group of a row. As learned: fractional, and anything
        but NaN. A floating dtype or integers.
    quant_min, quant_max : int or array of one element
        Least and greatest code, both included, within int64.
    group_size : int, default 128
        Number of neighbouring elements of a row that share a scale: at least 2, and a divisor of
        the number of columns. A greater one stands for the whole row.
    grad_factor : float or array of one element, default 1.0
        Finite factor of the gradients of scale and zero point. The forward has no use for it.
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
        If a scale is not positive and finite in float32, a zero point is NaN, the bounds are in the
        wrong order or beyond int64, `grad_factor` is not finite, `group_size` does not divide the
        columns, or a shape or `out` does not fit.

    See Also
    --------
    fake_quantize_learnable_per_channel_group_affine_backward :
        Compute the gradients of `fake_quantize_learnable_per_channel_group_affine`.
    fake_quantize_learnable_per_channel_affine :
        Fake quantize with a learned scale and zero point for each index of one axis.

    Notes
    -----
    PyTorch has no such op: the formula is that of `fake_quantize_learnable_per_channel_affine`,
    with groups for channels.

    Examples
    --------
    >>> import numpy as np
    >>> import npquant as nq
    >>> x = np.array([[-9, -0.4, 0.3, 9]], np.float32)
    >>> scale, zero_point = np.array([[0.5, 1.0]], np.float32), np.zeros((1, 2), np.float32)
    >>> nq.fake_quantize_learnable_per_channel_group_affine(x, scale, zero_point, -8, 7, 2)
    array([[-4. , -0.5,  0. ,  7. ]], dtype=float32)
    """
    x = checks.floats(input, out=out)
    plan = _per_group(x.shape, group_size, x.dtype, type(x), quant_min, quant_max, grad_factor)
    return _forward(x, scale, zero_point, plan, out)


def fake_quantize_learnable_per_channel_group_affine_backward(
    grad: Array,
    input: Array,
    scale: Array,
    zero_point: Array,
    quant_min: IntLike,
    quant_max: IntLike,
    group_size: int = 128,
    grad_factor: FloatLike = 1.0,
    *,
    zero_point_rounding: str = "pytorch",
) -> tuple[Array, Array, Array]:
    """Compute the gradients of `fake_quantize_learnable_per_channel_group_affine`.

    The gradients pass straight through rounding. With
    ``z = clamp(rint(zero_point), quant_min, quant_max)``::

        q = rint(input * (1 / scale) + z)
        grad_input      = grad inside, 0 outside
        grad_scale      = sum(grad * ((q - z) * scale - input) * (1 / scale)) inside
                        + sum(grad * (clamp(q, quant_min, quant_max) - z)) outside
        grad_zero_point = -sum(grad * scale) outside

    where inside means ``quant_min <= q <= quant_max`` and the sums, over each group, are multiplied
    by `grad_factor`. Terms are computed in float32, or in float64 for float64 input; a product that
    `z` or `input` is added to or taken from is rounded once with the sum (an fma). Terms are added
    in float64, in an order that depends on the shape alone. A NaN in `input` counts as below the
    range, infinities as beyond it.

    Parameters
    ----------
    grad : ndarray or ArraySpec
        Gradient of the output, of the shape and the dtype of `input`.
    input : ndarray or ArraySpec
        Values of shape (..., columns); float16, bfloat16, float32 or float64.
    scale : array_like of shape (..., columns / group_size), or flat
        Distances between the values of neighbouring codes, in the units of the data: one for each
        group of a row. Positive and finite in float32; a floating dtype.
    zero_point : array_like of shape (..., columns / group_size), or flat
        Codes that stand for 0.0: one for each group of a row. As learned: fractional, and anything
        but NaN. A floating dtype, or integers, whose gradient is float32.
    quant_min, quant_max : int or array of one element
        Least and greatest code, both included, with ``quant_min <= 0 <= quant_max``.
    group_size : int, default 128
        Number of neighbouring elements of a row that share a scale: at least 2, and a divisor of
        the number of columns. A greater one stands for the whole row.
    grad_factor : float or array of one element, default 1.0
        Finite factor of the gradients of scale and zero point, for instance
        ``1 / sqrt(input.size * quant_max)``.
    zero_point_rounding : {"pytorch", "nearest"}, default "pytorch"
        Which code decides what was inside the range: PyTorch's own, or with "nearest" exactly the
        code of the forward.

    Returns
    -------
    grad_input : ndarray or ArraySpec
        Gradient of `input`, of its shape and dtype.
    grad_scale : ndarray or ArraySpec
        Gradient of `scale`, of its shape and dtype.
    grad_zero_point : ndarray or ArraySpec
        Gradient of `zero_point`, of its shape and dtype; float32 of integers.

    Raises
    ------
    TypeError
        If an argument is of the wrong kind or of a dtype that is not allowed.
    ValueError
        If a scale is not positive and finite in float32, a zero point is NaN, 0 is not between the
        bounds, or these are 2**63 or more apart, `grad_factor` is not finite,
        `zero_point_rounding` is unknown, `group_size` does not divide the columns, or a shape
        does not fit.

    See Also
    --------
    fake_quantize_learnable_per_channel_group_affine :
        Fake quantize with a learned scale and zero point for each group along the last axis.

    Notes
    -----
    PyTorch has no such op: the formula is that of
    `fake_quantize_learnable_per_channel_affine_backward`, with groups for channels.

    The gradient of the scale is that of LSQ [1]_, that of the zero point that of LSQ+ [2]_. By
    default the zero point is added before rounding, unlike in the forward. With
    ``zero_point_rounding="nearest"`` the code is that of the forward, which differs at ties and
    next to them.

    References
    ----------
    .. [1] S. K. Esser et al., "Learned Step Size Quantization", ICLR 2020, arXiv:1902.08153.
    .. [2] Y. Bhalgat et al., "LSQ+: Improving low-bit quantization through learnable offsets and
       better initialization", CVPR Workshops 2020, arXiv:2004.09576.

    Examples
    --------
    >>> import numpy as np
    >>> import npquant as nq
    >>> x = np.array([[-9, -0.4, 0.3, 9]], np.float32)
    >>> scale, zero_point = np.array([[0.5, 1.0]], np.float32), np.zeros((1, 2), np.float32)
    >>> grads = nq.fake_quantize_learnable_per_channel_group_affine_backward(
    ...     np.ones_like(x), x, scale, zero_point, -8, 7, 2
    ... )
    >>> grads[0]
    array([[0., 1., 1., 0.]], dtype=float32)
    >>> grads[1], grads[2]
    (array([[-8.2,  6.7]], dtype=float32), array([[-0.5, -1. ]], dtype=float32))
    """
    x = checks.floats(input)
    plan = _per_group(
        x.shape,
        group_size,
        x.dtype,
        type(x),
        quant_min,
        quant_max,
        grad_factor,
        zero_point_rounding,
    )
    return _backward(grad, x, scale, zero_point, plan)


# --- what they share --------------------------------------------------------------------------


#: As `Plan`, of a backward too.
_Plan = tuple[Form, Any]


@checks.remembered
def _per_tensor(shape: tuple[int, ...], *told: Any) -> _Plan:
    return _plan(shape, (layout.whole(prod(shape)), checks.ONE), "_per_tensor", *told)


@checks.remembered
def _per_channel(shape: tuple[int, ...], axis: Any, *told: Any) -> _Plan:
    return _plan(shape, checks.channels(shape, axis), "", *told)


@checks.remembered
def _per_token(shape: tuple[int, ...], *told: Any) -> _Plan:
    return _plan(shape, checks.tokens(shape), "", *told)


@checks.remembered
def _per_group(shape: tuple[int, ...], group_size: Any, *told: Any) -> _Plan:
    return _plan(shape, checks.groups(shape, group_size), "", *told)


def _plan(
    shape: tuple[int, ...], found: tuple[Granularity, checks.Shapes], which: str,
    dtype: dtypes.DType, kind: type, quant_min: Any, quant_max: Any, grad_factor: Any,
    *rounding: Any,
) -> _Plan:  # fmt: skip
    """The plan of a backward, if it says how it rounds; a forward only checks the factor."""
    kernel = f"fake_quantize_learnable{which}"
    if rounding:
        kernel = f"learnable_gradients{which or '_per_channel'}"
    for option in rounding:
        if checks.option(option, "zero_point_rounding", ZERO_POINT_ROUNDINGS) == "nearest":
            kernel += "_nearest"
    bounds = checks.bounds_around_zero if rounding else checks.bounds
    lo, hi = bounds(quant_min, quant_max, kind)
    factor = checks.finite(grad_factor, "grad_factor", kind)
    form = Form(
        kernel, shape, dtype, *found, (lo, hi, factor if rounding else 0.0),
        Precision("float32", "float32", dtypes.precision(dtype, lo, hi)), dtype, dtypes.LEARNED,
        (-inf, inf), checks.QPARAM, used_in=dtypes.IN_FLOAT32,
    )  # fmt: skip
    told = form, no_fast_path
    if rounding:
        return form, fast_backward(
            kind, form, lambda data, s, z: _backward(data[0], data[1], s, z, told)
        )

    def anew(x: Array, scale: Any, zero_point: Any, out: Any) -> tuple[Array, None]:
        return _forward(x, scale, zero_point, told, out), None

    return form, fast_path(kind, form, anew)


def _forward(x: Array, scale: Any, zero_point: Any, plan: _Plan, out: Any) -> Array:
    form, at_once = plan
    done = at_once(x, scale, zero_point, out)
    if done is not None:
        return done[0]
    of_one = form.shapes is checks.ONE
    granularity = layout.PER_TENSOR if of_one else form.granularity
    s: Any
    if of_one and not checks.any_on_device(x, scale, zero_point):
        s, z = checks.learned_numbers(scale, zero_point, type(x))
    else:
        s, z = checks.learned_qparams(scale, zero_point, form.shapes, x)
    y = checks.output(out, x, x.dtype, checks.QPARAM, (scale, zero_point))
    run, given = getattr(backend.of(x), form.kernel), out is not None
    run(granularity, x, s, z, form.constants, form.precision, y, given=given)
    return checks.returned(out, y)


def _backward(
    grad: Any, x: Array, scale: Any, zero_point: Any, plan: _Plan
) -> tuple[Array, Array, Array]:
    form, at_once = plan
    done: tuple[Array, Array, Array] | None = at_once((grad, x), scale, zero_point)
    if done is not None:
        return done
    g = checks.same(grad, "grad", x)
    u, v = checks.learned(scale, "scale"), checks.learned_zero_point(zero_point, x)
    if not isinstance(x, (np.ndarray, ArraySpec)):
        for name, p in (("scale", u), ("zero_point", v)):
            if p.dtype not in dtypes.SINGLE_AND_DOUBLE:
                raise TypeError(
                    f"{name} must be float32 or float64 where it has a gradient on a GPU, "
                    f"got {p.dtype}"
                )
    s, z = checks.learned_qparams(u, v, form.shapes, x)
    y = checks.output(None, x, x.dtype)
    a, b = dtypes.without_metadata(u.dtype), dtypes.without_metadata(v.dtype)
    if type(x) is ArraySpec or x.size == 0:
        return y, arrays.full(x, u.shape, a, 0), arrays.full(x, v.shape, b, 0)
    slope, shift = (
        arrays.new(x, u.shape, dtypes.summed(a)),
        arrays.new(x, v.shape, dtypes.summed(b)),
    )
    run, code = getattr(backend.of(x), form.kernel), form.precision.code
    run(
        form.granularity, g, x, s, z, form.constants, code, y, arrays.flat(slope),
        arrays.flat(shift),
    )  # fmt: skip
    return y, arrays.rounded_once(slope, a), arrays.rounded_once(shift, b)
