"""What a small network needs round its fake-quantize ops, on arrays.

Matrix products are those of NumPy's BLAS. Gradients stand in `rules.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from npquant import checks, dtypes
from npquant.errors import show

Array = np.ndarray[Any, Any]
Pair = tuple[int, int]

#: Of what images have along an axis.
_MOST = 2**31 - 1
#: Bytes of an array at most.
_MOST_BYTES = 2**63 - 1


def linear(input: Array, weight: Array, bias: Array | None = None) -> Array:
    """Multiply rows by a matrix of weights, and add a bias.

    For every row along the last axis of `input`::

        y = input @ weight.T + bias

    Parameters
    ----------
    input : ndarray of shape (..., inputs)
        Rows; float32 or float64.
    weight : ndarray of shape (outputs, inputs)
        Weights, one row for each output; of the dtype of `input`.
    bias : ndarray of shape (outputs,), optional
        Bias, of the dtype of `input`. By default none.

    Returns
    -------
    ndarray of shape (..., outputs)
        Result, of the dtype of `input`.

    Raises
    ------
    TypeError
        If an argument is no array, or of a dtype that is not allowed. float16 and bfloat16 are not:
        NumPy has no BLAS for them.
    ValueError
        If a shape does not fit.

    See Also
    --------
    matmul : Multiply matrices.
    conv2d : Correlate images with kernels.

    Notes
    -----
    Corresponds to ``torch.nn.functional.linear``.

    Examples
    --------
    >>> import numpy as np
    >>> import npquant.autograd as ag
    >>> w, b = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), np.array([0.5, 0.0, 0.0])
    >>> ag.linear(np.array([[1.0, 10.0]]), w, b)
    array([[21.5, 43. , 65. ]])
    """
    x = _floats(input, "input")
    w = _like(weight, "weight", x)
    if w.ndim != 2:
        raise ValueError(f"weight must have the shape (outputs, inputs), got {w.shape}")
    outputs, inputs = w.shape
    if x.ndim == 0 or x.shape[-1] != inputs:
        raise ValueError(f"input must have the shape (..., {inputs}) for weight of shape "
                         f"{w.shape}, got {x.shape}")  # fmt: skip
    y: Array = rows(x) @ w.T
    if bias is not None:
        y += _bias(bias, outputs, x)
    return y if x.ndim == 2 else y.reshape(*x.shape[:-1], outputs)


def matmul(input: Array, other: Array) -> Array:
    """Multiply matrices.

    The last two axes are those of the matrices. The others broadcast, as in NumPy.

    Parameters
    ----------
    input : ndarray of shape (..., n, k)
        Matrices; float32 or float64.
    other : ndarray of shape (..., k, m)
        Matrices, of the dtype of `input`.

    Returns
    -------
    ndarray of shape (..., n, m)
        Products, of the dtype of `input`.

    Raises
    ------
    TypeError
        If an argument is no array, or of a dtype that is not allowed. float16 and bfloat16 are not:
        NumPy has no BLAS for them.
    ValueError
        If a shape does not fit.

    See Also
    --------
    linear : Multiply rows by a matrix of weights, and add a bias.

    Notes
    -----
    Corresponds to ``torch.matmul`` of arrays with at least two axes.

    Examples
    --------
    >>> import numpy as np
    >>> import npquant.autograd as ag
    >>> ag.matmul(np.array([[1.0, 2.0]]), np.array([[3.0], [4.0]]))
    array([[11.]])
    """
    x = _floats(input, "input")
    y = _like(other, "other", x)
    for array, name in ((x, "input"), (y, "other")):
        if array.ndim < 2:
            raise ValueError(f"{name} must have at least two axes, got shape {array.shape}")
    _broadcast(x.shape[:-2], y.shape[:-2], x, y)
    if x.shape[-1] != y.shape[-2]:
        raise ValueError(f"other must have the shape (..., {x.shape[-1]}, m) for input of shape "
                         f"{x.shape}, got {y.shape}")  # fmt: skip
    return np.matmul(x, y)  # type: ignore[no-any-return]


def add(input: Array | float, other: Array | float) -> Array:
    """Add two arrays, or an array and a number.

    Shapes broadcast, as in NumPy.

    Parameters
    ----------
    input : ndarray or float
        Array of float32 or float64, or a Python number.
    other : ndarray or float
        The same, of the same dtype; one of the two is an array.

    Returns
    -------
    ndarray
        Sum, of the common shape and the dtype of the arrays.

    Raises
    ------
    TypeError
        If neither is an array, one is neither array nor number, or a dtype is not allowed. float16
        and bfloat16 are not.
    ValueError
        If the shapes do not broadcast.

    See Also
    --------
    mul : Multiply two arrays, or an array and a number.

    Notes
    -----
    Corresponds to ``torch.add``.

    Examples
    --------
    >>> import numpy as np
    >>> import npquant.autograd as ag
    >>> ag.add(np.array([[1.0], [2.0]]), np.array([10.0, 20.0]))
    array([[11., 21.],
           [12., 22.]])
    """
    return np.asarray(np.add(*_two(input, other)))


def mul(input: Array | float, other: Array | float) -> Array:
    """Multiply two arrays, or an array and a number.

    Element by element. Shapes broadcast, as in NumPy.

    Parameters
    ----------
    input : ndarray or float
        Array of float32 or float64, or a Python number.
    other : ndarray or float
        The same, of the same dtype; one of the two is an array.

    Returns
    -------
    ndarray
        Product, of the common shape and the dtype of the arrays.

    Raises
    ------
    TypeError
        If neither is an array, one is neither array nor number, or a dtype is not allowed. float16
        and bfloat16 are not.
    ValueError
        If the shapes do not broadcast.

    See Also
    --------
    add : Add two arrays, or an array and a number.
    matmul : Multiply matrices.

    Notes
    -----
    Corresponds to ``torch.mul``.

    Examples
    --------
    >>> import numpy as np
    >>> import npquant.autograd as ag
    >>> ag.mul(np.array([1.0, 2.0]), 3)
    array([3., 6.])
    """
    return np.asarray(np.multiply(*_two(input, other)))


def relu(input: Array) -> Array:
    """Replace what is negative by zero.

    A NaN stays NaN. The gradient passes where `input` is positive or NaN.

    Parameters
    ----------
    input : ndarray
        Values of any shape; float32 or float64.

    Returns
    -------
    ndarray
        ``max(input, 0)``, of the shape and dtype of `input`.

    Raises
    ------
    TypeError
        If `input` is no array, or of a dtype that is not allowed. float16 and bfloat16 are not.

    See Also
    --------
    sigmoid : Compute the logistic function.

    Notes
    -----
    Corresponds to ``torch.nn.functional.relu``, which keeps the sign of a zero; NumPy's maximum,
    which this is, may not.

    Examples
    --------
    >>> import numpy as np
    >>> import npquant.autograd as ag
    >>> ag.relu(np.array([-1.0, 0.0, 2.0]))
    array([0., 0., 2.])
    """
    return np.asarray(np.maximum(_floats(input, "input"), 0))


def sigmoid(input: Array) -> Array:
    """Compute the logistic function.

    ``1 / (1 + exp(-input))``, by way of ``exp(-abs(input))``, which does not overflow.

    Parameters
    ----------
    input : ndarray
        Values of any shape; float32 or float64.

    Returns
    -------
    ndarray
        Values between 0 and 1, of the shape and dtype of `input`.

    Raises
    ------
    TypeError
        If `input` is no array, or of a dtype that is not allowed. float16 and bfloat16 are not.

    See Also
    --------
    relu : Replace what is negative by zero.

    Notes
    -----
    Corresponds to ``torch.sigmoid``.

    Examples
    --------
    >>> import numpy as np
    >>> import npquant.autograd as ag
    >>> ag.sigmoid(np.array([0.0, -1000.0, 1000.0]))
    array([0.5, 0. , 1. ])
    """
    x = _floats(input, "input")
    with np.errstate(under="ignore"):
        e = np.exp(-np.abs(x))
    return np.asarray(np.where(x < 0, e, x.dtype.type(1)) / (1 + e))


def conv2d(
    input: Array,
    weight: Array,
    bias: Array | None = None,
    stride: int | Pair = 1,
    padding: int | Pair = 0,
    *,
    groups: int = 1,
) -> Array:
    """Correlate images with kernels.

    Each output channel is the sum over the input channels of its group of the images, each
    correlated with a kernel, at every `stride`-th place; `padding` zeros surround the images. The
    places are gathered into a matrix, which BLAS multiplies by the kernels.

    Parameters
    ----------
    input : ndarray of shape (N, C, H, W)
        Images; float32 or float64.
    weight : ndarray of shape (K, C / groups, h, w)
        Kernels of each of the K output channels, of the dtype of `input`.
    bias : ndarray of shape (K,), optional
        Bias, of the dtype of `input`. By default none.
    stride : int or pair of int, default 1
        Step from one place to the next, along H and W; at least 1.
    padding : int or pair of int, default 0
        Rows and columns of zeros on each side; not negative.
    groups : int, default 1
        Number of groups of channels; it divides C and K.

    Returns
    -------
    ndarray of shape (N, K, (H + 2 * padding - h) // stride + 1, ...)
        Result, of the dtype of `input`.

    Raises
    ------
    TypeError
        If an argument is of the wrong kind, or of a dtype that is not allowed. float16 and bfloat16
        are not: NumPy has no BLAS for them.
    ValueError
        If a shape does not fit, or `stride`, `padding` or `groups` is out of range.

    See Also
    --------
    linear : Multiply rows by a matrix of weights, and add a bias.
    max_pool2d : Take the greatest value of each window of an image.

    Notes
    -----
    Corresponds to ``torch.nn.functional.conv2d`` without dilation.

    Examples
    --------
    >>> import numpy as np
    >>> import npquant.autograd as ag
    >>> x = np.arange(9.0).reshape(1, 1, 3, 3)
    >>> ag.conv2d(x, np.array([[[[1.0, 0.0], [0.0, -1.0]]]]), np.array([0.5]))
    array([[[[-3.5, -3.5],
             [-3.5, -3.5]]]])
    """
    x, w, step, pad, g = correlation(input, weight, stride, padding, groups)
    size = places(x, w.shape[2:], step, pad, "weight")
    found = w.reshape(g, w.shape[0] // g, -1) @ columns(x, w.shape[2:], step, pad, g)
    if bias is not None:
        found += _bias(bias, w.shape[0], x).reshape(g, -1, 1)
    return image_major(found.reshape(w.shape[0], len(x), *size))


def max_pool2d(
    input: Array,
    kernel_size: int | Pair,
    stride: int | Pair | None = None,
    padding: int | Pair = 0,
) -> Array:
    """Take the greatest value of each window of an image.

    A NaN counts as greatest. The gradient goes to the first of equal values.

    Parameters
    ----------
    input : ndarray of shape (N, C, H, W)
        Images; float32 or float64.
    kernel_size : int or pair of int
        Height and width of a window.
    stride : int or pair of int, optional
        Step from one window to the next, at least 1. By default `kernel_size`: no overlap.
    padding : int or pair of int, default 0
        Rows and columns on each side that count as -inf; at most half of `kernel_size`.

    Returns
    -------
    ndarray of shape (N, C, (H + 2 * padding - h) // stride + 1, ...)
        Result, of the dtype of `input`.

    Raises
    ------
    TypeError
        If an argument is of the wrong kind, or of a dtype that is not allowed. float16 and bfloat16
        are not.
    ValueError
        If `input` does not have four axes, a window is larger than the padded images, or
        `kernel_size`, `stride` or `padding` is out of range.

    See Also
    --------
    conv2d : Correlate images with kernels.

    Notes
    -----
    Corresponds to ``torch.nn.functional.max_pool2d`` without dilation.

    Examples
    --------
    >>> import numpy as np
    >>> import npquant.autograd as ag
    >>> ag.max_pool2d(np.arange(16.0).reshape(1, 1, 4, 4), 2)
    array([[[[ 5.,  7.],
             [13., 15.]]]])
    """
    return pooled(*pooling(input, kernel_size, stride, padding))[0]


def flatten(input: Array, start_dim: int = 1) -> Array:
    """Make one axis of the last ones.

    The axes before `start_dim` stay as they are.

    Parameters
    ----------
    input : ndarray
        Values; float32 or float64.
    start_dim : int, default 1
        First of the axes that become one; a negative one counts from the back.

    Returns
    -------
    ndarray
        View of `input`, or a copy where it lies in memory otherwise: a new array in any case.

    Raises
    ------
    TypeError
        If an argument is of the wrong kind, or of a dtype that is not allowed. float16 and bfloat16
        are not.
    ValueError
        If `start_dim` is no axis of `input`.

    See Also
    --------
    reshape : Give the same elements other axes.

    Notes
    -----
    Corresponds to ``torch.flatten``, with the default of ``torch.nn.Flatten``.

    Examples
    --------
    >>> import numpy as np
    >>> import npquant.autograd as ag
    >>> ag.flatten(np.zeros((5, 3, 2, 2))).shape
    (5, 12)
    """
    x = _floats(input, "input")
    first = checks.integer(start_dim, "start_dim")
    if not -x.ndim <= first < x.ndim:
        raise ValueError(f"start_dim must be an axis of input, of shape {x.shape}, "
                         f"got {show(first)}")  # fmt: skip
    kept = x.shape[: first % x.ndim]
    return x.reshape(*kept, math.prod(x.shape[len(kept) :]))


def reshape(input: Array, shape: int | Sequence[int]) -> Array:
    """Give the same elements other axes.

    So what is done per channel of the first axis is done per token, as rows, or per group.

    Parameters
    ----------
    input : ndarray
        Values; float32 or float64.
    shape : int or tuple or list of int
        Lengths of the axes, which hold as many elements. One of them may be -1, for what is left.

    Returns
    -------
    ndarray
        View of `input`, or a copy where it lies in memory otherwise: a new array in any case.

    Raises
    ------
    TypeError
        If an argument is of the wrong kind, or of a dtype that is not allowed. float16 and bfloat16
        are not.
    ValueError
        If `shape` does not hold as many elements.

    See Also
    --------
    flatten : Make one axis of the last ones.

    Notes
    -----
    Corresponds to ``torch.reshape``.

    Examples
    --------
    >>> import numpy as np
    >>> import npquant.autograd as ag
    >>> ag.reshape(np.zeros((4, 64)), (-1, 32)).shape
    (8, 32)
    """
    x = _floats(input, "input")
    lengths = shape if isinstance(shape, (tuple, list)) else (shape,)
    wanted = [checks.integer(n, "shape") for n in lengths]
    try:
        if min(wanted, default=0) < -1:  # which NumPy takes for -1
            raise ValueError
        return x.reshape(wanted)
    except (ValueError, OverflowError):
        raise ValueError(f"shape must hold the elements of input, of shape {x.shape}, "
                         f"got {show(shape)}") from None  # fmt: skip


def mse_loss(input: Array, target: Array) -> Array:
    """Compute the mean of the squared differences.

    The squares are added in float64.

    Parameters
    ----------
    input : ndarray
        Values of any shape, at least one; float32 or float64.
    target : ndarray
        Values of the shape and dtype of `input`. It has a gradient too.

    Returns
    -------
    ndarray
        Mean, without axes, of the dtype of `input`.

    Raises
    ------
    TypeError
        If an argument is no array, or of a dtype that is not allowed. float16 and bfloat16 are not.
    ValueError
        If the shapes differ, or there is nothing to take the mean of.

    See Also
    --------
    softmax_cross_entropy : Compute the mean cross-entropy of softmax.

    Notes
    -----
    Corresponds to ``torch.nn.functional.mse_loss``.

    Examples
    --------
    >>> import numpy as np
    >>> import npquant.autograd as ag
    >>> ag.mse_loss(np.array([1.0, 2.0]), np.array([1.0, 4.0]))
    array(2.)
    """
    input = _floats(input, "input")
    target = _like(target, "target", input)
    checks.of_shape(target, "target", input.shape)
    if input.size == 0:
        raise ValueError(f"input must have an element, got shape {input.shape}")
    return _mean(np.square(np.subtract(input, target, order="C")), input)


def softmax_cross_entropy(input: Array, target: Array) -> Array:
    """Compute the mean cross-entropy of softmax.

    The mean over the rows of ``log(sum(exp(input))) - input[label]``, with the greatest of the
    row subtracted first, so that nothing overflows. The rows are added in float64.

    Parameters
    ----------
    input : ndarray of shape (N, C)
        A row of scores for each of N examples, at least one; float32 or float64.
    target : ndarray of shape (N,)
        The right one of the C classes: integers from 0 to C - 1.

    Returns
    -------
    ndarray
        Mean, without axes, of the dtype of `input`.

    Raises
    ------
    TypeError
        If an argument is no array, or of a dtype that is not allowed. float16 and bfloat16 are not.
    ValueError
        If a shape does not fit, a label is no class, or there is no row.

    See Also
    --------
    mse_loss : Compute the mean of the squared differences.

    Notes
    -----
    Corresponds to ``torch.nn.functional.cross_entropy``.

    Examples
    --------
    >>> import numpy as np
    >>> import npquant.autograd as ag
    >>> ag.softmax_cross_entropy(np.zeros((1, 4)), np.array([2]))
    array(1.38629436)
    """
    return cross_entropy(input, target)[0]


# --- what the rules take from here ------------------------------------------------------------


def rows(x: Array) -> Array:
    """All axes but the last as one."""
    return x if x.ndim == 2 else x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def images(value: Any) -> Array:
    """An array of images."""
    x = _floats(value, "input")
    if x.ndim != 4:
        raise ValueError(f"input must have the shape (N, C, H, W), got {x.shape}")
    return x


def places(x: Array, kernel: Pair, stride: Pair, padding: Pair, name: str) -> Pair:
    """How many places a kernel has, along H and W."""
    size = [n + 2 * p for n, p in zip(x.shape[2:], padding, strict=True)]
    if any(k > n or k < 1 for k, n in zip(kernel, size, strict=True)):
        raise ValueError(f"{name} must have a kernel within the padded images, of {size[0]} x "
                         f"{size[1]}, got {kernel[0]} x {kernel[1]}")  # fmt: skip
    return (size[0] - kernel[0]) // stride[0] + 1, (size[1] - kernel[1]) // stride[1] + 1


def padded(x: Array, padding: Pair, fill: float = 0) -> Array:
    """Images with a border."""
    if padding == (0, 0):
        return x
    (up, left), (n, c, height, width) = padding, x.shape
    shape = n, c, height + 2 * up, width + 2 * left
    if math.prod(shape) * x.itemsize > _MOST_BYTES:
        raise ValueError(f"padding must give images that an array can hold, got {padding}")
    wide = np.full(shape, fill, x.dtype)
    wide[:, :, up : up + height, left : left + width] = x
    return wide


def windows(x: Array, kernel: Pair, stride: Pair) -> Array:
    """Every place of a kernel in padded images: a view of shape (N, C, places, kernel)."""
    size = places(x, kernel, stride, (0, 0), "kernel")
    n, c, down, right = x.strides
    strides = n, c, down * stride[0], right * stride[1], down, right
    return np.lib.stride_tricks.as_strided(x, (*x.shape[:2], *size, *kernel), strides)


def columns(x: Array, kernel: Pair, stride: Pair, padding: Pair, groups: int) -> Array:
    """What the kernels see: (groups, channels and places in the kernel, images and places)."""
    seen = windows(padded(x, padding), kernel, stride)
    n, c, height, width, *_ = seen.shape
    by_row = seen.transpose(1, 4, 5, 0, 2, 3)
    return by_row.reshape(groups, c // groups * math.prod(kernel), n * height * width)


def image_major(y: Array) -> Array:
    """(channels, images, ...) to (images, channels, ...)."""
    return np.ascontiguousarray(y.swapaxes(0, 1))


def correlation(
    x: Any, w: Any, stride: Any, padding: Any, groups: Any
) -> tuple[Array, Array, Pair, Pair, int]:
    """The arguments of `conv2d`, checked."""
    x = images(x)
    w = _like(w, "weight", x)
    step, pad = _pair(stride, "stride", 1), _pair(padding, "padding", 0)
    g = checks.within(groups, "groups", 1, _MOST)
    if w.ndim != 4 or w.shape[1] * g != x.shape[1] or w.shape[0] % g or not len(w):
        raise ValueError(
            f"weight must have the shape (K, {x.shape[1]} / groups, h, w) with K positive, and K "
            f"and {x.shape[1]} divisible by groups, got {w.shape} and groups {g}"
        )
    return x, w, step, pad, g


def pooling(x: Any, kernel_size: Any, stride: Any, padding: Any) -> tuple[Array, Pair, Pair, Pair]:
    """The arguments of `max_pool2d`, checked."""
    x = images(x)
    if 0 in x.shape[2:]:
        raise ValueError(f"input must have images of at least 1 x 1, got shape {x.shape}")
    kernel = _pair(kernel_size, "kernel_size", 1)
    step = kernel if stride is None else _pair(stride, "stride", 1)
    pad = _pair(padding, "padding", 0)
    if any(2 * p > k for p, k in zip(pad, kernel, strict=True)):
        raise ValueError(f"padding must be at most half of kernel_size, {kernel}, got {pad}")
    places(x, kernel, step, pad, "kernel_size")
    return x, kernel, step, pad


def pooled(x: Array, kernel: Pair, stride: Pair, padding: Pair) -> tuple[Array, Array]:
    """The greatest of each window, and where in the window it stands."""
    seen = windows(padded(x, padding, -np.inf), kernel, stride)
    best = np.full(seen.shape[:4], -np.inf, x.dtype)
    # Where all are -inf, the first that is not padding.
    first = [np.maximum(p - s * np.arange(n), 0)
             for p, s, n in zip(padding, stride, best.shape[2:], strict=True)]  # fmt: skip
    index = np.empty(best.shape, np.int32)
    index[...] = first[0][:, None] * kernel[1] + first[1]
    for k in range(math.prod(kernel)):
        v = seen[..., k // kernel[1], k % kernel[1]]
        better = (v > best) | (v != v)
        np.copyto(best, v, where=better)
        np.copyto(index, k, where=better)
    return best, index


def cross_entropy(logits: Any, labels: Any) -> tuple[Array, Array]:
    """The mean cross-entropy, and the logarithm of softmax."""
    logits = _floats(logits, "input")
    if logits.ndim != 2 or 0 in logits.shape:
        raise ValueError(f"input must have the shape (N, C), both positive, got {logits.shape}")
    rows, classes = logits.shape
    labels = checks.host_array(labels, "target", dtypes.INTEGERS)
    checks.of_shape(labels, "target", (rows,))
    outside = (labels < 0) | (labels >= classes)
    if outside.any():
        at = int(outside.argmax())
        raise ValueError(f"target must lie within 0..{classes - 1}, got {labels[at]} at index {at}")
    # Infinite differences are as in PyTorch.
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        y = np.subtract(logits, logits.max(axis=1, keepdims=True), order="C")
        y -= np.log(np.exp(y).sum(axis=1, keepdims=True))
    return _mean(-y[np.arange(rows), labels], logits), y


# --- arguments --------------------------------------------------------------------------------


def _floats(value: Any, name: str) -> Array:
    if type(value) is np.ndarray and value.dtype in dtypes.SINGLE_AND_DOUBLE:
        return value
    kinds = np.ndarray, np.generic
    x: Array = checks.host_array(value, name, dtypes.SINGLE_AND_DOUBLE, kinds)
    return x


def _like(value: Any, name: str, x: Array, other: str = "input", hint: str = "") -> Array:
    found = _floats(value, name)
    if found.dtype != x.dtype:
        raise TypeError(
            f"{name} must have the dtype of {other}, {x.dtype}, got {found.dtype}"
            + hint * isinstance(value, np.generic)
        )
    return found


#: Of a scalar of NumPy, where a number will do.
_NUMBER = ", of which float(...) makes a number that has none"


def _two(x: Any, y: Any) -> tuple[Any, Any]:
    """Two arrays of one dtype, or an array and a number."""
    if is_plain_number(y):
        return _floats(x, "input"), checks.number(y, "other")
    b = _floats(y, "other")
    if is_plain_number(x):
        return checks.number(x, "input"), b
    a = _floats(x, "input")
    if isinstance(y, np.generic):  # which is the one to be changed
        _like(y, "other", a, hint=_NUMBER)
    a = _like(x, "input", b, "other", _NUMBER)
    _broadcast(a.shape, b.shape, a, b)
    return a, b


def is_plain_number(value: Any) -> bool:
    """Whether it is one of Python's own: those of NumPy count as arrays here."""
    return isinstance(value, (int, float)) and not isinstance(value, (bool, np.generic))


def _broadcast(a: tuple[int, ...], b: tuple[int, ...], x: Array, y: Array) -> None:
    # NumPy's `broadcast_shapes` knows half as many axes as its arrays may have.
    if any(m != n and 1 not in (m, n) for m, n in zip(a[::-1], b[::-1], strict=False)):
        raise ValueError(f"input and other must have shapes that broadcast, got "
                         f"{x.shape} and {y.shape}")  # fmt: skip


def _bias(value: Any, outputs: int, x: Array) -> Array:
    b = _like(value, "bias", x)
    checks.of_shape(b, "bias", (outputs,))
    return b


def _pair(value: Any, name: str, least: int) -> Pair:
    """Two integers; one stands for both."""
    both = value if isinstance(value, (tuple, list)) else (value,)
    both = 2 * both if len(both) == 1 else both
    if len(both) != 2 or (isinstance(value, np.ndarray) and value.size != 1):
        raise ValueError(f"{name} must be an integer or a tuple of two, got {show(value)}")
    first, second = (checks.within(v, name, least, _MOST) for v in both)
    return first, second


def _mean(terms: Array, x: Array) -> Array:
    """The mean of terms in C order, which NumPy adds in the order of memory, in the dtype of x."""
    return np.array(terms.sum(dtype=np.float64) / terms.size, x.dtype)
