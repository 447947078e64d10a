"""How to go back through each step: its function, and the gradients of its inputs.

A rule computes the step once and returns, with the result, its backward: one function of the
result's gradient for each of the inputs, so that what nobody asks for is neither computed nor kept;
or a single function that gives all of them, where they come from one pass over the data.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any, Final, NamedTuple

import numpy as np

import npquant as nq
from npquant import checks, dtypes
from npquant.arrays import kind
from npquant.autograd import functional
from npquant.ops.learnable import ZERO_POINT_ROUNDINGS

Array = np.ndarray[Any, Any]
Differentiated = Callable[..., tuple[Any, Any]]
Function = Callable[..., Any]

#: The options of a backward that its op has not, and what they may be.
OPTIONS = {"zero_point_rounding": ZERO_POINT_ROUNDINGS}
#: What the learnable ops have gradients of; in other ops the qparams have none.
LEARNED = "input", "scale", "zero_point"
QPARAMS = frozenset({"scale", "zero_point", "scales", "zero_points"})


class Rule(NamedTuple):
    """What the tape knows of a step."""

    inputs: tuple[tuple[int, str], ...]  #: Place and name of each argument that has a gradient.
    fixed: tuple[tuple[int, str], ...]  #: The same of qparams that have none.
    plain: Function  #: The step alone.
    differentiated: Differentiated  #: The same, with its backward beside the result.


# --- families of rules ------------------------------------------------------------------------


def straight_through(op: Function, masked: Function) -> tuple[Function, Rule]:
    """Fake quantize: the gradient passes where `masked`, the op with a mask, says so."""
    backward = nq.fake_quantize_per_tensor_affine_cachemask_backward  # of masks alone

    def rule(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        y, mask = masked(*args, **kwargs)
        return (y, mask) if op is masked else y, (lambda grad: backward(grad, mask),)

    return _entry(op, op, rule, "input")


def with_backward(op: Function, backward: Function, *inputs: str) -> tuple[Function, Rule]:
    """An op with a backward of its own, ``backward(grad, *arguments of the op)``.

    It gives the gradients of the `inputs` in their order. Options that it alone takes are taken
    among the arguments of the op. What it would refuse is refused when the op is applied, but for
    arrays on a GPU, where to ask takes as long as to launch.
    """
    options = signature(backward).parameters.keys() - signature(op).parameters.keys() - {"grad"}

    def plain(*args: Any, **kwargs: Any) -> Any:
        for key in options.intersection(kwargs):
            checks.option(kwargs.pop(key), key, OPTIONS[key])
        return op(*args, **kwargs)

    def rule(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        def every(grad: Array) -> tuple[Any, ...]:
            found = backward(grad, *args, **kwargs)
            return found if isinstance(found, tuple) else (found,)

        y = plain(*args, **kwargs)
        if isinstance(y, np.ndarray):
            named = {key: _spec(a, y) for key, a in kwargs.items()}
            backward(*(_spec(a, y) for a in (y, *args)), **named)
        return y, every

    return _entry(op, plain, rule, *inputs)


def _spec(a: Any, y: Array) -> Any:
    """`a` without its data if it has the shape of `y`: given that, ops check and do nothing.

    What has one element may be a number: then so little is computed.
    """
    large = isinstance(a, np.ndarray) and a.shape == y.shape and y.size != 1
    return nq.ArraySpec(a.shape, a.dtype) if large else a


def function(op: Function, rule: Differentiated, *inputs: str) -> tuple[Function, Rule]:
    """A function with a rule below."""
    return _entry(op, op, rule, *inputs)


def _entry(
    op: Function, plain: Function, rule: Differentiated, *inputs: str
) -> tuple[Function, Rule]:
    names = list(signature(op).parameters)
    places = tuple((names.index(name), name) for name in inputs)
    fixed = tuple(p for p in enumerate(names) if p[1] in QPARAMS and p not in places)
    return op, Rule(places, fixed, plain, rule)


# --- functional.py ----------------------------------------------------------------------------


def _plain(*values: Any) -> tuple[Any, ...]:
    """What a step has taken, arrays without the operators that a class of theirs may define."""
    return tuple(np.asarray(v) if isinstance(v, np.ndarray) else v for v in values)


def linear(input: Array, weight: Array, bias: Array | None = None) -> tuple[Array, Any]:
    """y = input @ weight.T + bias."""
    y = functional.linear(input, weight, bias)
    (input, weight), shape = _plain(input, weight), input.shape
    return y, (
        lambda grad: (functional.rows(grad) @ weight).reshape(shape),
        lambda grad: functional.rows(grad).T @ functional.rows(input),
        lambda grad: added(functional.rows(grad), (0,)),
    )


def matmul(input: Array, other: Array) -> tuple[Array, Any]:
    """y = input @ other."""
    y = functional.matmul(input, other)
    input, other = _plain(input, other)
    of_input, of_other = input.shape, other.shape
    return y, (
        lambda grad: summed(grad @ other.swapaxes(-1, -2), of_input),
        lambda grad: summed(input.swapaxes(-1, -2) @ grad, of_other),
    )


def add(input: Any, other: Any) -> tuple[Array, Any]:
    """y = input + other."""
    y = functional.add(input, other)
    input, other = _plain(input, other)
    of_input, of_other = np.shape(input), np.shape(other)
    return y, (
        lambda grad: summed(grad, of_input),
        lambda grad: summed(grad, of_other),
    )


def mul(input: Any, other: Any) -> tuple[Array, Any]:
    """y = input * other."""
    y = functional.mul(input, other)
    # A number of a class of its own is a float64 to NumPy.
    input, other = (float(v) if functional.is_plain_number(v) else v for v in _plain(input, other))
    of_input, of_other = np.shape(input), np.shape(other)
    return y, (
        lambda grad: summed(grad * other, of_input),
        lambda grad: summed(grad * input, of_other),
    )


def relu(input: Array) -> tuple[Array, Any]:
    """y = max(input, 0)."""
    y = functional.relu(input)
    return y, (lambda grad: np.where(y <= 0, grad.dtype.type(0), grad),)


def sigmoid(input: Array) -> tuple[Array, Any]:
    """y = 1 / (1 + exp(-input))."""
    y = functional.sigmoid(input)

    def of_input(grad: Array) -> Array:
        with np.errstate(under="ignore"):
            return np.asarray(grad * (1 - y) * y)

    return y, (of_input,)


def conv2d(
    input: Array, weight: Array, bias: Array | None = None, stride: Any = 1, padding: Any = 0,
    *, groups: int = 1,
) -> tuple[Array, Any]:  # fmt: skip
    """A matrix product with the columns of the images, which are made anew rather than kept."""
    y = functional.conv2d(input, weight, bias, stride, padding, groups=groups)
    x, w, step, pad, groups = functional.correlation(input, weight, stride, padding, groups)
    (n, c, *size), of_w, kernel = x.shape, w.shape, w.shape[2:]
    places = y.shape[2:]

    def channel_major(y: Array) -> Array:
        return y.swapaxes(0, 1).reshape(groups, of_w[0] // groups, -1)

    def of_images(grad: Array) -> Array:
        back = w.reshape(groups, of_w[0] // groups, -1).swapaxes(1, 2) @ channel_major(grad)
        back = back.reshape(c, *kernel, n, *places)
        found = put_back(lambda i, j: back[:, i, j], (c, n, *size), kernel, step, pad, w.dtype)
        return functional.image_major(found)

    def of_kernels(grad: Array) -> Array:
        seen = functional.columns(x, kernel, step, pad, groups)
        return (channel_major(grad) @ seen.swapaxes(1, 2)).reshape(of_w)

    return y, (of_images, of_kernels, lambda grad: added(grad, (0, 2, 3)))


def max_pool2d(
    input: Array, kernel_size: Any, stride: Any = None, padding: Any = 0
) -> tuple[Array, Any]:
    """The gradient of a window goes to its greatest value."""
    x, kernel, step, pad = functional.pooling(input, kernel_size, stride, padding)
    y, index = functional.pooled(x, kernel, step, pad)
    shape = x.shape

    def of_images(grad: Array) -> Array:
        def part(i: int, j: int) -> Array:
            return np.where(index == i * kernel[1] + j, grad, grad.dtype.type(0))

        return put_back(part, shape, kernel, step, pad, grad.dtype)

    return y, (of_images,)


def flatten(input: Array, start_dim: int = 1) -> tuple[Array, Any]:
    """The same elements with other axes."""
    return _with_its_axes(input, functional.flatten(input, start_dim))


def reshape(input: Array, shape: Any) -> tuple[Array, Any]:
    """The same."""
    return _with_its_axes(input, functional.reshape(input, shape))


def _with_its_axes(input: Array, y: Array) -> tuple[Array, Any]:
    shape = input.shape
    return y, (lambda grad: grad.reshape(shape),)


def mse_loss(input: Array, target: Array) -> tuple[Array, Any]:
    """y = mean((input - target)**2)."""
    y = functional.mse_loss(input, target)
    input, target = _plain(input, target)
    twice = 2 / input.size
    return y, (
        lambda grad: (input - target) * (grad * twice),
        lambda grad: (target - input) * (grad * twice),
    )


def softmax_cross_entropy(input: Array, target: Array) -> tuple[Array, Any]:
    """The gradient of a row is its softmax less 1 at the label."""
    y, log_softmax = functional.cross_entropy(input, target)

    def of_input(grad: Array) -> Array:
        with np.errstate(under="ignore"):
            p = np.exp(log_softmax)
            p[np.arange(len(p)), target] -= 1
            p *= grad / len(p)
        return p

    return y, (of_input,)


def adaround_regularizer(V: Array, beta: Any) -> tuple[Array, Any]:
    """The backward of the op takes a weight of the sum, which its gradient is."""

    def of_V(grad: Any) -> Any:
        if isinstance(grad, np.ndarray):
            with np.errstate(over="ignore", invalid="ignore"):
                weight = grad.astype(V.dtype)
                if not np.isfinite(weight):  # a loss that overflowed, which the op refuses
                    return nq.adaround_regularizer_backward(V, beta) * weight
        return nq.adaround_regularizer_backward(V, beta, grad)

    return nq.adaround_regularizer(V, beta), (of_V,)


def convert_element_type(input: Array, dtype: Any) -> tuple[Array, Any]:
    """Among floats; of integers there is no gradient, and none could be held in float8."""
    if dtypes.canonical(dtype, "dtype") in dtypes.FLOAT8:
        raise TypeError(f"dtype must not be float8 where a gradient is traced, got {dtype}")
    y, (_, given) = nq.convert_element_type(input, dtype), kind(input)

    def back(grad: Array) -> Any:
        return nq.convert_element_type(grad, given)

    return y, (back if kind(y)[1] in dtypes.FLOATS else None,)


def summed(grad: Array, shape: tuple[int, ...]) -> Array:
    """`grad` added up along the axes that `shape` was repeated along."""
    if grad.shape == shape:
        return grad
    new = grad.ndim - len(shape)
    repeated = [new + i for i, n in enumerate(shape) if n != grad.shape[new + i]]
    return added(grad, (*range(new), *repeated)).reshape(shape)


def added(grad: Array, axes: tuple[int, ...]) -> Array:
    """The sum along axes, in float64: NumPy adds rows one after another, in their dtype."""
    return np.asarray(grad.sum(axis=axes, dtype=np.float64)).astype(grad.dtype)


def put_back(
    part: Callable[[int, int], Array], shape: tuple[int, ...], kernel: tuple[int, int],
    stride: tuple[int, int], padding: tuple[int, int], dtype: Any,
) -> Array:  # fmt: skip
    """The sum of what the windows give back to images: `part` of each element of the kernel."""
    (*outer, height, width), (up, left) = shape, padding
    wide = np.zeros((*outer, height + 2 * up, width + 2 * left), dtype)
    seen = functional.windows(wide, kernel, stride)
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            seen[..., i, j] += part(i, j)  # of one element the places do not overlap
    return wide[:, :, up : up + height, left : left + width]


#: Every step that a tape can apply.
RULES: Final[dict[Function, Rule]] = dict(
    (
        # The op that gives a mask, and the one that gives none.
        *(
            straight_through(op, masked)
            for masked, *plain in (
                (
                    nq.fake_quantize_per_tensor_affine_cachemask,
                    nq.fake_quantize_per_tensor_affine,
                ),
                (nq.fake_quantize_per_tensor_affine_cachemask_tensor_qparams,),
                (
                    nq.fake_quantize_per_channel_affine_cachemask,
                    nq.fake_quantize_per_channel_affine,
                ),
                (nq.fake_quant_per_channel_cachemask, nq.fake_quant_per_channel),
                (
                    nq.fused_moving_avg_obs_fake_quant_cachemask,
                    nq.fused_moving_avg_obs_fake_quant,
                ),
            )
            for op in (masked, *plain)
        ),
        # Those with a backward of their own, and the arguments whose gradients that gives.
        *(
            with_backward(op, getattr(nq, f"{op.__name__}_backward"), *LEARNED)
            for op in (
                nq.fake_quantize_learnable_per_tensor_affine,
                nq.fake_quantize_learnable_per_channel_affine,
                nq.fake_quantize_learnable_per_token_affine,
                nq.fake_quantize_learnable_per_channel_group_affine,
            )
        ),
        with_backward(nq.adaround_soft, nq.adaround_soft_backward, "V"),
        # Each with its rule above, and the arguments that have gradients.
        function(nq.adaround_regularizer, adaround_regularizer, "V"),
        function(nq.convert_element_type, convert_element_type, "input"),
        function(functional.linear, linear, "input", "weight", "bias"),
        function(functional.matmul, matmul, "input", "other"),
        function(functional.add, add, "input", "other"),
        function(functional.mul, mul, "input", "other"),
        function(functional.relu, relu, "input"),
        function(functional.sigmoid, sigmoid, "input"),
        function(functional.conv2d, conv2d, "input", "weight", "bias"),
        function(functional.max_pool2d, max_pool2d, "input"),
        function(functional.flatten, flatten, "input"),
        function(functional.reshape, reshape, "input"),
        function(functional.mse_loss, mse_loss, "input", "target"),
        function(functional.softmax_cross_entropy, softmax_cross_entropy, "input"),
    )
)
