"""AdaRound: whether a weight is rounded up or down is learned, by a number V for each.

Nagel et al., "Up or Down? Adaptive Rounding for Post-Training Quantization", 2020. A weight is
rounded down and ``h(V)`` is added, a sigmoid stretched beyond [0, 1] and cut off there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from npquant import arrays, backend, checks, dtypes, layout
from npquant.dtypes import Precision
from npquant.errors import show
from npquant.layout import Granularity
from npquant.meta import ArraySpec
from npquant.ops.fast_path import PYTHON_NUMBERS, Form, Plan, fast_path, repeated
from npquant.owners import Array, FloatLike, IntLike, on_device


def adaround_init(
    input: Array,
    scale: Any,
    *,
    axis: int | None = None,
    group_size: int | None = None,
    out: Array | None = None,
) -> Array:
    """Choose the V with which AdaRound's soft weights are the weights themselves.

    ``V = -log(1.2 / (r + 0.1) - 1)`` with the fraction that rounding down drops,
    ``r = input / scale - floor(input / scale)``. So ``h(V)`` is r, and V lies within +-2.4.

    Parameters
    ----------
    input : ndarray or ArraySpec
        Weights of any shape; float16, bfloat16, float32 or float64.
    scale : float or array
        Distance between the values of neighbouring codes, positive and finite in float32, or in
        float64 for float64 input. A number; with `axis` one for each channel, of shape (C,); with
        `group_size` one for each group, of shape (..., groups of a row) or flat.
    axis : int, optional
        Axis whose every index has its own scale. By default there is one scale for all.
    group_size : int, optional
        Number of neighbours along the last axis that share a scale: at least 2, and a divisor of
        their number there, or greater for all of them. Not beside `axis`.
    out : ndarray or ArraySpec, optional
        Where to write the result: an array of its shape and dtype, either the very array that is
        read or one that does not overlap it. By default a new array.

    Returns
    -------
    ndarray or ArraySpec
        V, of the shape of `input`: float64 for float64 input, else float32.

    Raises
    ------
    TypeError
        If an argument is of the wrong kind or of a dtype that is not allowed.
    ValueError
        If a scale is not positive and finite, there is not one for each channel, `axis` is no axis
        of `input`, `group_size` does not divide the last axis or is given beside `axis`, or `out`
        does not fit.

    See Also
    --------
    adaround_soft : Quantize softly, with what V adds.
    adaround_hard : Quantize with what V has decided.

    Notes
    -----
    PyTorch has no such op; the formula is that of ``torch.ao.quantization.experimental``'s
    ``AdaroundFakeQuantizer``, which no wheel of PyTorch contains, and of [1]_.

    The quotient is a true one, in float32, or in float64 for float64 input. Of what it leaves, V is
    within ``8 * 2**-23``, which PyTorch's formula in float32 is not; of float64 it is that formula,
    with a logarithm within 5 ulp. A NaN or an infinity gives NaN.

    References
    ----------
    .. [1] M. Nagel et al., "Up or Down? Adaptive Rounding for Post-Training Quantization", ICML
       2020, arXiv:2004.10568.

    Examples
    --------
    >>> import numpy as np
    >>> import npquant as nq
    >>> x = np.array([-1.5, 0.0, 0.25, 0.75], np.float32)
    >>> V = nq.adaround_init(x, 1.0)
    >>> V.round(3)
    array([-0.   , -2.398, -0.887,  0.887], dtype=float32)
    >>> nq.adaround_soft(x, V, 1.0, 0, -8, 7).round(3)
    array([-1.5 ,  0.  ,  0.25,  0.75], dtype=float32)
    """
    x = checks.floats(input, out=out)
    granularity, shapes = _granularity(x.shape, axis, group_size)
    if type(x) is not np.ndarray:
        done = _init_on_gpu(type(x), axis, group_size)(x, scale, out)
        if done is not None:
            return done
    s = _scale(x, scale, shapes)
    dtype, precision = _COMPUTED[x.dtype]
    y = checks.output(out, x, dtype, _SCALE, (scale,))
    # There are no zero points; the scales fill their place.
    kernel = backend.of(x).adaround_init
    kernel(granularity, x, s, s, (0, 0, 0), precision, y, given=out is not None)
    return checks.returned(out, y)


def adaround_soft(
    input: Array,
    V: Array,
    scale: Any,
    zero_point: Any,
    quant_min: IntLike,
    quant_max: IntLike,
    *,
    axis: int | None = None,
    group_size: int | None = None,
    out: Array | None = None,
) -> Array:
    """Quantize softly: round down, add h(V), clamp, and go back.

    A weight is left between two neighbours of the grid while V is learned::

        h = clamp(sigmoid(V) * 1.2 - 0.1, 0, 1)
        q = clamp(floor(input / scale) + zero_point + h, quant_min, quant_max)
        output = (q - zero_point) * scale

    Each step is rounded, in float32, or in float64 for float64 input; results for float16 and
    bfloat16 are rounded once more, to them. A NaN stays NaN.

    Parameters
    ----------
    input : ndarray or ArraySpec
        Weights of any shape; float16, bfloat16, float32 or float64.
    V : ndarray or ArraySpec
        What decides the rounding, of the shape of `input`; float64 for float64 input, else float32.
    scale : float or array
        Distance between the values of neighbouring codes, positive and finite in float32, or in
        float64 for float64 input. A number; with `axis` one for each channel, of shape (C,); with
        `group_size` one for each group, of shape (..., groups of a row) or flat.
    zero_point : int or array
        Code that stands for 0.0, between `quant_min` and `quant_max`; a number, or with `axis` or
        `group_size` an array of the shape of the scales. In an array, fractions are truncated.
    quant_min, quant_max : int or array of one element
        Least and greatest code, both included, within +-2**23, or +-2**52 for float64 input.
    axis : int, optional
        Axis whose every index has its own scale. By default there is one scale for all.
    group_size : int, optional
        Number of neighbours along the last axis that share a scale: at least 2, and a divisor of
        their number there, or greater for all of them. Not beside `axis`.
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
        If a scale is not positive and finite, a zero point is not between the bounds, there is not
        one for each channel, the bounds are in the wrong order or too wide, shapes differ, `axis`
        is no axis of `input`, `group_size` does not divide the last axis or is given beside `axis`,
        or `out` does not fit.

    See Also
    --------
    adaround_soft_backward : Compute the gradient of V.
    adaround_hard : Quantize with what V has decided.
    adaround_init : Choose the V with which soft weights are the weights themselves.

    Notes
    -----
    PyTorch has no such op; the formula is that of ``torch.ao.quantization.experimental``'s
    ``AdaroundFakeQuantizer``, which no wheel of PyTorch contains, and of [1]_.

    The sigmoid is within 2**-23, or 2**-52 of float64; all else has PyTorch's bits.

    References
    ----------
    .. [1] M. Nagel et al., "Up or Down? Adaptive Rounding for Post-Training Quantization", ICML
       2020, arXiv:2004.10568.

    Examples
    --------
    >>> import numpy as np
    >>> import npquant as nq
    >>> x = np.array([0.3, 0.3, 0.3, 9.0], np.float32)
    >>> V = np.array([-9, 0, 9, 0], np.float32)
    >>> nq.adaround_soft(x, V, 1.0, 0, -8, 7)
    array([0. , 0.5, 1. , 7. ], dtype=float32)
    """
    return _rounded(
        "adaround_soft", input, V, scale, zero_point, quant_min, quant_max, axis, group_size, out
    )


def adaround_soft_backward(
    grad: Array,
    input: Array,
    V: Array,
    scale: Any,
    zero_point: Any,
    quant_min: IntLike,
    quant_max: IntLike,
    *,
    axis: int | None = None,
    group_size: int | None = None,
    out: Array | None = None,
) -> Array:
    """Compute V's gradient of `adaround_soft`.

    It is ``grad * scale * 1.2 * (1 - sigmoid(V)) * sigmoid(V)``, and 0 where the code was clamped
    or h was cut off. The input has no gradient: it is rounded down, which is flat.

    Parameters
    ----------
    grad : ndarray or ArraySpec
        Gradient of the output, of the shape and the dtype of `input`.
    input : ndarray or ArraySpec
        Weights of any shape; float16, bfloat16, float32 or float64.
    V : ndarray or ArraySpec
        What decides the rounding, of the shape of `input`; float64 for float64 input, else float32.
    scale : float or array
        Distance between the values of neighbouring codes, positive and finite in float32, or in
        float64 for float64 input. A number; with `axis` one for each channel, of shape (C,); with
        `group_size` one for each group, of shape (..., groups of a row) or flat.
    zero_point : int or array
        Code that stands for 0.0, between `quant_min` and `quant_max`; a number, or with `axis` or
        `group_size` an array of the shape of the scales. In an array, fractions are truncated.
    quant_min, quant_max : int or array of one element
        Least and greatest code, both included, within +-2**23, or +-2**52 for float64 input.
    axis : int, optional
        Axis whose every index has its own scale. By default there is one scale for all.
    group_size : int, optional
        Number of neighbours along the last axis that share a scale: at least 2, and a divisor of
        their number there, or greater for all of them. Not beside `axis`.
    out : ndarray or ArraySpec, optional
        Where to write the result: an array of its shape and dtype, either the very array that is
        read or one that does not overlap it. By default a new array.

    Returns
    -------
    ndarray or ArraySpec
        Gradient of V, of its shape and dtype.

    Raises
    ------
    TypeError
        If an argument is of the wrong kind or of a dtype that is not allowed.
    ValueError
        If a scale is not positive and finite, a zero point is not between the bounds, there is not
        one for each channel, the bounds are in the wrong order or too wide, shapes differ, `axis`
        is no axis of `input`, `group_size` does not divide the last axis or is given beside `axis`,
        or `out` does not fit.

    See Also
    --------
    adaround_soft : Quantize softly, with what V adds.
    adaround_regularizer_backward : Compute the gradient of `adaround_regularizer`.

    Notes
    -----
    PyTorch has no such op; the formula is that of ``torch.ao.quantization.experimental``'s
    ``AdaroundFakeQuantizer``, which no wheel of PyTorch contains, and of [1]_.

    Products are taken in the order in which they stand above, in float32, or in float64 for float64
    input. Where the gradient is cut off it is 0.0, whatever `grad` is.

    References
    ----------
    .. [1] M. Nagel et al., "Up or Down? Adaptive Rounding for Post-Training Quantization", ICML
       2020, arXiv:2004.10568.

    Examples
    --------
    >>> import numpy as np
    >>> import npquant as nq
    >>> x, g = np.array([0.3, 0.3, 0.3, 9.0], np.float32), np.ones(4, np.float32)
    >>> V = np.array([-9, 0, 1, 0], np.float32)
    >>> nq.adaround_soft_backward(g, x, V, 1.0, 0, -8, 7).round(3)
    array([0.   , 0.3  , 0.236, 0.   ], dtype=float32)
    """
    x = checks.floats(input, out=out)
    g, v = checks.same(grad, "grad", x, out=out), _decider(V, x, out)
    form, at_once = _plan(
        "adaround_soft_backward", x.shape, x.dtype, type(x), quant_min, quant_max, axis, group_size
    )
    done = at_once((g, x, v), scale, zero_point, out)
    if done is not None:
        return done[0]
    s, z = _qparams(x, scale, zero_point, form)
    y = checks.output(out, x, v.dtype, form.names, (g, v, scale, zero_point))
    run = backend.of(x).adaround_soft_backward
    run(form.granularity, (g, x, v), s, z, form.constants, form.precision, y)
    return checks.returned(out, y)


def adaround_hard(
    input: Array,
    V: Array,
    scale: Any,
    zero_point: Any,
    quant_min: IntLike,
    quant_max: IntLike,
    *,
    axis: int | None = None,
    group_size: int | None = None,
    out: Array | None = None,
) -> Array:
    """Quantize with what V has decided, and go back: on the grid of the codes.

    A weight is rounded up where V is at least 0, and else down::

        q = clamp(floor(input / scale) + zero_point + (V >= 0), quant_min, quant_max)
        output = (q - zero_point) * scale

    Each step is rounded, in float32, or in float64 for float64 input; results for float16 and
    bfloat16 are rounded once more, to them. A NaN stays NaN; a V that is NaN rounds down.

    Parameters
    ----------
    input : ndarray or ArraySpec
        Weights of any shape; float16, bfloat16, float32 or float64.
    V : ndarray or ArraySpec
        What decides the rounding, of the shape of `input`; float64 for float64 input, else float32.
    scale : float or array
        Distance between the values of neighbouring codes, positive and finite in float32, or in
        float64 for float64 input. A number; with `axis` one for each channel, of shape (C,); with
        `group_size` one for each group, of shape (..., groups of a row) or flat.
    zero_point : int or array
        Code that stands for 0.0, between `quant_min` and `quant_max`; a number, or with `axis` or
        `group_size` an array of the shape of the scales. In an array, fractions are truncated.
    quant_min, quant_max : int or array of one element
        Least and greatest code, both included, within +-2**23, or +-2**52 for float64 input.
    axis : int, optional
        Axis whose every index has its own scale. By default there is one scale for all.
    group_size : int, optional
        Number of neighbours along the last axis that share a scale: at least 2, and a divisor of
        their number there, or greater for all of them. Not beside `axis`.
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
        If a scale is not positive and finite, a zero point is not between the bounds, there is not
        one for each channel, the bounds are in the wrong order or too wide, shapes differ, `axis`
        is no axis of `input`, `group_size` does not divide the last axis or is given beside `axis`,
        or `out` does not fit.

    See Also
    --------
    adaround_codes : Give the codes of these values.
    adaround_soft : Quantize softly, with what V adds.

    Notes
    -----
    PyTorch has no such op; the formula is that of ``torch.ao.quantization.experimental``'s
    ``AdaroundFakeQuantizer``, which no wheel of PyTorch contains, and of [1]_.

    Results have PyTorch's bits. There the final weights of a layer are soft (departure D14; see
    docs/departures.md); with the V of `adaround_init` they are those of rounding to nearest, ties
    up.

    References
    ----------
    .. [1] M. Nagel et al., "Up or Down? Adaptive Rounding for Post-Training Quantization", ICML
       2020, arXiv:2004.10568.

    Examples
    --------
    >>> import numpy as np
    >>> import npquant as nq
    >>> x = np.array([0.3, 0.3, -0.3, 9.0], np.float32)
    >>> V = np.array([-1, 1, 0, -1], np.float32)
    >>> nq.adaround_hard(x, V, 0.5, 0, -8, 7)
    array([0. , 0.5, 0. , 3.5], dtype=float32)
    """
    return _rounded(
        "adaround_hard", input, V, scale, zero_point, quant_min, quant_max, axis, group_size, out
    )


def adaround_codes(
    input: Array,
    V: Array,
    scale: Any,
    zero_point: Any,
    quant_min: IntLike,
    quant_max: IntLike,
    dtype: Any,
    *,
    axis: int | None = None,
    group_size: int | None = None,
    out: Array | None = None,
) -> Array:
    """Quantize with what V has decided, to integer codes.

    ``clamp(floor(input / scale) + zero_point + (V >= 0), quant_min, quant_max)``, the q of
    `adaround_hard`. A NaN becomes 0, or the bound next to it.

    Parameters
    ----------
    input : ndarray or ArraySpec
        Weights of any shape; float16, bfloat16, float32 or float64.
    V : ndarray or ArraySpec
        What decides the rounding, of the shape of `input`; float64 for float64 input, else float32.
    scale : float or array
        Distance between the values of neighbouring codes, positive and finite in float32, or in
        float64 for float64 input. A number; with `axis` one for each channel, of shape (C,); with
        `group_size` one for each group, of shape (..., groups of a row) or flat.
    zero_point : int or array
        Code that stands for 0.0, between `quant_min` and `quant_max`; a number, or with `axis` or
        `group_size` an array of the shape of the scales. In an array, fractions are truncated.
    quant_min, quant_max : int or array of one element
        Least and greatest code, both included, within +-2**23, or +-2**52 for float64 input.
    dtype : dtype
        Dtype of the codes: int8, uint8, int16, uint16, int32, int4, uint4, int2 or uint2.
    axis : int, optional
        Axis whose every index has its own scale. By default there is one scale for all.
    group_size : int, optional
        Number of neighbours along the last axis that share a scale: at least 2, and a divisor of
        their number there, or greater for all of them. Not beside `axis`.
    out : ndarray or ArraySpec, optional
        Where to write the result: an array of its shape and dtype, either the very array that is
        read or one that does not overlap it. By default a new array.

    Returns
    -------
    ndarray or ArraySpec
        Codes of the shape of `input` and of `dtype`.

    Raises
    ------
    TypeError
        If an argument is of the wrong kind or of a dtype that is not allowed.
    ValueError
        If a scale is not positive and finite, a zero point is not between the bounds, there is not
        one for each channel, the bounds are in the wrong order, too wide or beyond those of
        `dtype`, shapes differ, `axis` is no axis of `input`, `group_size` does not divide the last
        axis or is given beside `axis`, or `out` does not fit.

    See Also
    --------
    adaround_hard : Give the values of these codes.
    dequantize_per_channel : Dequantize with one scale and zero point a channel.

    Notes
    -----
    PyTorch has no such op; the formula is that of ``torch.ao.quantization.experimental``'s
    ``AdaroundFakeQuantizer``, which no wheel of PyTorch contains, and of [1]_.

    References
    ----------
    .. [1] M. Nagel et al., "Up or Down? Adaptive Rounding for Post-Training Quantization", ICML
       2020, arXiv:2004.10568.

    Examples
    --------
    >>> import numpy as np
    >>> import npquant as nq
    >>> x = np.array([[0.3, 0.3], [-0.3, 9.0]], np.float32)
    >>> V = np.array([[-1, 1], [0, -1]], np.float32)
    >>> nq.adaround_codes(x, V, [0.5, 0.1], [0, 0], -8, 7, np.int8, axis=0)
    array([[ 0,  1],
           [-2,  7]], dtype=int8)
    """
    return _rounded("adaround_codes", input, V, scale, zero_point, quant_min, quant_max, axis,
                    group_size, out, dtypes.integer_target(dtype))  # fmt: skip


def adaround_regularizer(V: Array, beta: FloatLike) -> Array:
    """Sum what is undecided: ``1 - |2h(V) - 1|**beta``.

    A term is 1 where ``h(V) = clamp(sigmoid(V) * 1.2 - 0.1, 0, 1)`` is 1/2, and 0 where it is 0 or
    1. A large `beta` leaves all but those next to 0 and 1 alone; a small one drives all of them
    there.

    Parameters
    ----------
    V : ndarray or ArraySpec
        What decides the rounding, of any shape; float32 or float64.
    beta : float or array of one element
        Exponent, at least 1.

    Returns
    -------
    ndarray or ArraySpec
        The sum: float64, of shape ().

    Raises
    ------
    TypeError
        If an argument is of the wrong kind or of a dtype that is not allowed.
    ValueError
        If `beta` is less than 1 or not finite, or not in float32 where V has that dtype.

    See Also
    --------
    adaround_regularizer_backward : Compute the gradient of `adaround_regularizer`.
    adaround_soft : Quantize softly, with what V adds.

    Notes
    -----
    PyTorch has no such op; the formula is that of ``torch.ao.quantization.experimental``, which no
    wheel of PyTorch contains, and of [1]_.

    Terms are computed in the dtype of V; the power is within 4 * 2**-23, in float64 4 * 2**-52, of
    that of the computed ``abs(2 * h(V) - 1)``. They are added in float64, in an order that depends
    on the shape alone. On a tape, `convert_element_type` makes the sum fit a loss in
    float32, to which `npquant.autograd.add` adds it.

    References
    ----------
    .. [1] M. Nagel et al., "Up or Down? Adaptive Rounding for Post-Training Quantization", ICML
       2020, arXiv:2004.10568.

    Examples
    --------
    >>> import numpy as np
    >>> import npquant as nq
    >>> float(nq.adaround_regularizer(np.array([0, 9, -9], np.float32), 20.0))
    1.0
    """
    v = alone(V)
    b = checks.at_least(beta, "beta", 1.0, type(v), checks.BEYOND[v.dtype])
    if type(v) is not np.ndarray and (done := _on_gpu(type(v))[0](v, b)) is not None:
        return done
    total = backend.of(v).adaround_regularizer((v,), b)
    if isinstance(v, ArraySpec):
        return ArraySpec((), dtypes.float64)
    return np.array(total) if isinstance(v, np.ndarray) else total.owner


def adaround_regularizer_backward(
    V: Array,
    beta: FloatLike,
    weight: FloatLike = 1.0,
    *,
    out: Array | None = None,
) -> Array:
    """Compute V's gradient of `weight` times `adaround_regularizer`.

    With ``d = 2h(V) - 1`` it is
    ``-weight * beta * |d|**(beta - 1) * sign(d) * 2.4 * (1 - sigmoid(V)) * sigmoid(V)``, and 0
    where h was cut off.

    Parameters
    ----------
    V : ndarray or ArraySpec
        What decides the rounding, of any shape; float32 or float64.
    beta : float or array of one element
        Exponent, at least 1.
    weight : float or array of one element, default 1.0
        Finite factor of the sum.
    out : ndarray or ArraySpec, optional
        Where to write the result: an array of its shape and dtype, either V itself or one that does
        not overlap it. By default a new array.

    Returns
    -------
    ndarray or ArraySpec
        Gradient of V, of its shape and dtype.

    Raises
    ------
    TypeError
        If an argument is of the wrong kind or of a dtype that is not allowed.
    ValueError
        If `beta` is less than 1, `beta` or `weight` is not finite, or not in float32 where V has
        that dtype, or `out` does not fit.

    See Also
    --------
    adaround_regularizer : Sum what is undecided.
    adaround_soft_backward : Compute V's gradient of `adaround_soft`.

    Notes
    -----
    PyTorch has no such op; autograd gives it for the formula of
    ``torch.ao.quantization.experimental``, which no wheel of PyTorch contains, and of [1]_.

    References
    ----------
    .. [1] M. Nagel et al., "Up or Down? Adaptive Rounding for Post-Training Quantization", ICML
       2020, arXiv:2004.10568.

    Examples
    --------
    >>> import numpy as np
    >>> import npquant as nq
    >>> V = np.array([-9, -1, 0, 1, 9], np.float32)
    >>> nq.adaround_regularizer_backward(V, 2.0).round(3)
    array([ 0.   ,  0.523, -0.   , -0.523,  0.   ], dtype=float32)
    """
    v = alone(V, out)
    b = checks.at_least(beta, "beta", 1.0, type(v), checks.BEYOND[v.dtype])
    there = on_device(weight)  # the gradient of a sum that is there too
    w = weight if there else checks.finite(weight, "weight", type(v), checks.BEYOND[v.dtype])
    if type(v) is not np.ndarray:
        done = _on_gpu(type(v))[1](v, b, w, out)
        if done is not None:
            return done
    if there:
        w = arrays.cast(checks.parameters(weight, "weight", checks.ONE, v), v.dtype)
    y = checks.output(out, v, v.dtype, ("beta", "weight"), (beta, weight), "V")
    _, precision = _COMPUTED[v.dtype]
    kernel = backend.of(v).adaround_regularizer_backward
    kernel(layout.PER_TENSOR, v, b, w, (0, 0, 0), precision, y)
    return checks.returned(out, y)


# --- what they share --------------------------------------------------------------------------


#: What `out` must be apart from.
_SCALE, _ALL, _GRADIENT = ("scale",), ("V", *checks.QPARAM), ("grad", "V", *checks.QPARAM)
#: Dtypes of scales and zero points, as they mostly come.
_CODES = (*dtypes.CODES, (dtypes.float32, dtypes.int64))
#: In which dtype V is computed, and its name, of scale, zero point and constants alike.
_COMPUTED = {
    x: (dtypes.compute(x), Precision(*(dtypes.compute(x).name,) * 3)) for x in dtypes.FLOATS
}


@checks.remembered
def _init_on_gpu(kind: type, axis: Any, group_size: Any) -> Callable[..., Any]:
    """`adaround_init`, where equal calls come to the same."""
    return repeated(
        kind,
        lambda x, scale, out: adaround_init(x, scale, axis=axis, group_size=group_size, out=out),
        0, (2,),
    )  # fmt: skip


@checks.remembered
def _on_gpu(kind: type) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The regularizer and its gradient, where equal calls come to the same."""
    return repeated(kind, adaround_regularizer), repeated(
        kind, lambda *args: adaround_regularizer_backward(*args[:-1], out=args[-1]), 0, (3,)
    )


def alone(V: Any, out: Any = None) -> Array:
    """V without an input beside it."""
    return checks.native(checks.array(V, "V"), "V", dtypes.SINGLE_AND_DOUBLE, out)


@checks.remembered
def _granularity(
    shape: tuple[int, ...], axis: Any, group_size: Any
) -> tuple[Granularity, checks.Shapes]:
    found = (layout.PER_TENSOR, ()) if axis is None else checks.channels(shape, axis)
    if group_size is None:
        return found
    granularity, shapes = checks.groups(shape, group_size)
    if axis is not None:
        raise ValueError(f"group_size must be None where axis is given, got {show(group_size)}")
    return granularity, shapes


@checks.remembered
def _plan(
    kernel: str, shape: tuple[int, ...], dtype: dtypes.DType, kind: type, quant_min: Any,
    quant_max: Any, axis: Any, group_size: Any, target: dtypes.DType | None = None,
) -> Plan:  # fmt: skip
    """The form, and what does it all at once if it can."""
    if target is not None:
        checks.bounds_of(quant_min, quant_max, target, kind)
    lo, hi = checks.bounds(quant_min, quant_max, kind)
    if ArraySpec in (type(quant_min), type(quant_max)):  # those that are not known are right
        exact = dtypes.exact_codes(dtype)
        lo = -exact if type(quant_min) is ArraySpec else lo
        hi = exact if type(quant_max) is ArraySpec else hi
    name = checks.adaround_precision(lo, hi, dtype)
    constants = lo, hi, min(max(0, lo), hi)
    granularity, shapes = _granularity(shape, axis, group_size)
    computed, _ = _COMPUTED[dtype]
    kinds = () if computed == dtypes.float64 else _CODES
    kinds = kinds if shapes else kinds + PYTHON_NUMBERS
    backward = kernel == "adaround_soft_backward"
    form = Form(
        kernel, shape, (*(dtype,) * (1 + backward), computed), granularity, shapes, constants,
        Precision(name, name, name), computed if backward else target or dtype, kinds, (lo, hi),
        _GRADIENT if backward else _ALL, place=int(backward), used_in=dtypes.IN_FLOAT32,
    )  # fmt: skip

    def anew(data: tuple[Array, ...], s: Any, z: Any, out: Any) -> tuple[Array, None]:
        x, v = data[-2:]
        if backward:
            return adaround_soft_backward(
                data[0], x, v, s, z, quant_min, quant_max, axis=axis, group_size=group_size, out=out
            ), None
        return _rounded(
            kernel, x, v, s, z, quant_min, quant_max, axis, group_size, out, target
        ), None

    # A scale of one element is a number, but need not be made one.
    return form, fast_path(kind, form._replace(shapes=shapes or checks.ONE), anew)


def _qparams(x: Array, scale: Any, zero_point: Any, form: Form) -> tuple[Any, Any]:
    shapes, (lo, hi, _) = form.shapes, form.constants
    if shapes and x.dtype != dtypes.float64:
        found = checks.usual_qparams(scale, zero_point, shapes, checks.LOOK_AT_CODES, lo, hi, x)
        if found is not None:
            return found
    return _scale(x, scale, shapes), _zero_point(x, zero_point, shapes, lo, hi)


def _scale(x: Array, scale: Any, shapes: checks.Shapes) -> Any:
    """Scales in the precision of the computation."""
    double = x.dtype == dtypes.float64
    if not shapes and on_device(scale):
        shapes = checks.of_one_element(scale)
    if not shapes:
        return checks.scale_in(dtypes.compute(x.dtype), scale, kind=type(x))
    if not double:
        return checks.scales_float32(scale, "scale", shapes, x)
    return arrays.cast(checks.scales(scale, "scale", shapes, x, dtypes.float64), x.dtype)


def _zero_point(x: Array, zero_point: Any, shapes: checks.Shapes, lo: int, hi: int) -> Any:
    if not shapes and on_device(zero_point):
        shapes = checks.of_one_element(zero_point)
    if not shapes:
        return checks.zero_point_inside(zero_point, lo, hi, kind=type(x))
    z = checks.parameters(zero_point, "zero_point", shapes, x)
    return checks.truncated_inside(z, "zero_point", lo, hi)


def _decider(value: Any, x: Array, out: Any) -> Array:
    """V: of the shape of the input, and of the precision in which that is computed."""
    return checks.same(value, "V", x, dtypes.compute(x.dtype), out=out)


def _rounded(
    kernel: str, input: Any, V: Any, scale: Any, zero_point: Any, quant_min: Any, quant_max: Any,
    axis: Any, group_size: Any, out: Any, target: dtypes.DType | None = None,
) -> Array:  # fmt: skip
    x = checks.floats(input, out=out)
    v = _decider(V, x, out)
    form, at_once = _plan(
        kernel, x.shape, x.dtype, type(x), quant_min, quant_max, axis, group_size, target
    )
    done = at_once((x, v), scale, zero_point, out)
    if done is not None:
        return done[0]
    s, z = _qparams(x, scale, zero_point, form)
    y = checks.output(out, x, form.target, form.names, (v, scale, zero_point))
    run = getattr(backend.of(x), kernel)
    run(form.granularity, (x, v), s, z, form.constants, form.precision, y)
    return checks.returned(out, y)
