"""The tape: what it traces, what it frees, what it refuses; and the gradient of every step."""

import copy
import gc
import inspect
import itertools
import math
import pickle
import re
import threading
import weakref
from io import BytesIO

import ml_dtypes
import numpy as np
import pytest

import npquant as nq
import npquant.autograd as ag
import oracle
from calls import CALLS, arguments, results
from cases import assert_same
from npquant import dtypes
from npquant.autograd import rules
from npquant.autograd.rules import RULES
from npquant.optim import Adam

F32, F64 = np.dtype(np.float32), np.dtype(np.float64)
FUNCTIONS = [
    name for name in ag.__all__ if inspect.isfunction(getattr(ag, name)) and name != "call"
]


def on_tape(step, *args, sources, grad=None, **kwargs):
    """Apply one step: its results and the gradients of the sources."""
    with ag.Tape() as tape:
        for source in sources:
            tape.watch(source)
        got = tape.apply(step, *args, **kwargs)
    y = got[0] if isinstance(got, tuple) else got
    grad = np.ones_like(y) if grad is None else grad
    return got, tape.gradient(y, sources, grad)


# --- the gradients of smooth and of piecewise linear functions ------------------------------------
#
# With integers everything below is exact in float64, in whatever order BLAS adds. The projection
# p(t) = <u, f(x + t v)> is a polynomial in t: of a degree up to 2, its central difference with any
# step is its slope, and up to 6, the one of seven points. So the comparison is of equal numbers.


def integers(seed, *shape, least=-4, most=4):
    return np.random.default_rng([seed, *shape]).integers(least, most + 1, shape).astype(F64)


def apart(seed, *shape):
    """Numbers 1 apart from each other and 1/2 from zero: a quarter's step meets no kink."""
    n = math.prod(shape)
    return (np.random.default_rng(seed).permutation(n).reshape(shape) - n // 2 + 0.5).astype(F64)


EXACT = {
    "linear": (ag.linear, [integers(0, 4, 3), integers(1, 5, 3), integers(2, 5)], {}),
    "linear, no bias": (ag.linear, [integers(0, 4, 3), integers(1, 5, 3)], {}),
    "linear, a row": (ag.linear, [integers(0, 3), integers(1, 5, 3), integers(2, 5)], {}),
    "linear, more axes": (ag.linear, [integers(0, 2, 4, 3), integers(1, 5, 3), integers(2, 5)], {}),
    "linear, transposed": (ag.linear, [integers(0, 3, 4).T, integers(1, 3, 5).T], {}),
    "matmul": (ag.matmul, [integers(0, 4, 3), integers(1, 3, 5)], {}),
    "matmul, broadcast": (ag.matmul, [integers(0, 2, 1, 4, 3), integers(1, 5, 3, 2)], {}),
    "add": (ag.add, [integers(0, 3, 4), integers(1, 3, 4)], {}),
    "add, broadcast": (ag.add, [integers(0, 2, 1, 3), integers(1, 4, 1)], {}),
    "add, to no elements": (ag.add, [integers(0, 1, 3), integers(1, 0, 1)], {}),
    "add, no axes": (ag.add, [integers(0), integers(1)], {}),
    "add, a number": (ag.add, [integers(0, 3)], {"other": 2.5}),
    "mul": (ag.mul, [integers(0, 3, 4), integers(1, 3, 4)], {}),
    "mul, broadcast": (ag.mul, [integers(0, 1, 4), integers(1, 3, 1)], {}),
    "mul, to no elements": (ag.mul, [integers(0, 2, 0), integers(1, 1)], {}),
    "mul, no axes": (ag.mul, [integers(0), integers(1, 2, 3)], {}),
    "mul, a number": (ag.mul, [integers(0, 3)], {"other": 3}),
    "conv2d": (ag.conv2d, [integers(0, 2, 3, 5, 6), integers(1, 4, 3, 3, 2), integers(2, 4)], {}),
    "conv2d, stride and padding": (
        ag.conv2d,
        [integers(0, 2, 3, 6, 7), integers(1, 4, 3, 3, 2), integers(2, 4)],
        {"stride": (2, 3), "padding": (1, 2)},
    ),
    "conv2d, groups": (
        ag.conv2d,
        [integers(0, 2, 6, 4, 4), integers(1, 4, 3, 3, 3)],
        {"groups": 2, "padding": 1},
    ),
    "conv2d, depthwise": (
        ag.conv2d,
        [integers(0, 2, 3, 5, 5), integers(1, 6, 1, 3, 3), integers(2, 6)],
        {"groups": 3, "stride": 2},
    ),
    "conv2d, pointwise": (ag.conv2d, [integers(0, 2, 3, 4, 4), integers(1, 5, 3, 1, 1)], {}),
    "flatten": (ag.flatten, [integers(0, 2, 3, 4)], {}),
    "flatten, from the back": (ag.flatten, [integers(0, 2, 3, 4).T], {"start_dim": -2}),
    "reshape": (ag.reshape, [integers(0, 2, 3, 4)], {"shape": (-1, 2)}),
    "reshape, transposed": (ag.reshape, [integers(0, 2, 3, 4).T], {"shape": [3, 1, 8]}),
    "reshape, to one axis": (ag.reshape, [integers(0, 2, 3)], {"shape": 6}),
    "reshape, to none": (ag.reshape, [integers(0, 1, 1)], {"shape": ()}),
    # 16 elements: a division by them is exact too.
    "mse_loss": (ag.mse_loss, [integers(0, 4, 4), integers(1, 4, 4)], {}),
    "relu": (ag.relu, [apart(0, 5, 4)], {}),
    "max_pool2d": (ag.max_pool2d, [apart(0, 2, 3, 4, 6)], {"kernel_size": 2}),
    "max_pool2d, overlapping": (
        ag.max_pool2d,
        [apart(0, 2, 3, 7, 6)],
        {"kernel_size": (3, 2), "stride": (2, 1), "padding": (1, 1)},
    ),
}


def projection(f, arrays, directions, u, t):
    return np.vdot(u, f(*(a + t * v for a, v in zip(arrays, directions, strict=True))))


class _Half(float):
    """A number of a class of its own, which NumPy takes for a float64."""


class _Three(int):
    """And one that is whole."""


@pytest.mark.parametrize("number", [_Half(0.5), _Three(3)])
def test_numbers_of_a_class_of_their_own(number):
    """A gradient has the dtype of its source."""
    x = np.array([1.5, 2], F32)
    for args in ((x, number), (number, x)):
        with ag.Tape() as tape:
            tape.watch(x)
            y = tape.apply(ag.mul, *args)
        assert_same(tape.gradient(y, x, np.ones_like(y)), np.full(2, number, F32))


@pytest.mark.parametrize("case", EXACT)
def test_gradient_is_the_exact_difference(case):
    step, arrays, kwargs = EXACT[case]

    def f(*arrays):
        return step(*arrays, **kwargs)

    for seed in range(4):
        u = integers(seed + 10, *f(*arrays).shape)
        v = [integers(seed + 20 + i, *a.shape, least=-1, most=1) for i, a in enumerate(arrays)]
        _, grads = on_tape(step, *arrays, **kwargs, sources=arrays, grad=u)
        slope = sum(np.vdot(g, d) for g, d in zip(grads, v, strict=True))
        h = 0.25
        there, back = (projection(f, arrays, v, u, t) for t in (h, -h))
        assert slope == (there - back) / (2 * h)
        assert [(g.shape, g.dtype) for g in grads] == [(a.shape, F64) for a in arrays]


def test_every_function_has_its_gradient_checked():
    smooth = ["sigmoid", "softmax_cross_entropy"]
    assert sorted({step.__name__ for step, _, _ in EXACT.values()} | set(smooth)) == FUNCTIONS


def test_gradient_of_sigmoid():
    """Central difference: h**2 / 6 times the third derivative, at most 1/8 per element, off.

    Rounding: the argument is off by |x| u, the exponential by 2 u, three more operations and the
    sum over n follow; each value and slope is at most 1.
    """
    rng = np.random.default_rng(0)
    x, u, v = rng.normal(0, 3, (3, 50))
    h, eps = 1e-4, 2.0**-53
    _, (grad,) = on_tape(ag.sigmoid, x, sources=[x], grad=u)
    there, back = (projection(ag.sigmoid, [x], [v], u, t) for t in (h, -h))
    bound = h**2 / 6 / 8 * np.sum(np.abs(u * v**3))
    bound += (abs(x).max() + 1 + 5 + x.size) * eps * np.sum(np.abs(u)) / h
    assert bound < 1e-6
    assert abs(np.vdot(grad, v) - (there - back) / (2 * h)) < bound


@pytest.mark.parametrize("labels_dtype", [np.uint8, np.int64])
def test_gradient_of_softmax_cross_entropy(labels_dtype):
    """Its third derivative along v is a third central moment of v, under softmax: at most the cube
    of the range of v. Rounding: C + N + 6 operations on numbers of at most twice the range of z.
    """
    rng = np.random.default_rng(0)
    z, v = rng.normal(0, 3, (2, 6, 5))
    labels = rng.integers(0, 5, 6).astype(labels_dtype)
    h, eps = 1e-4, 2.0**-53
    _, (grad,) = on_tape(ag.softmax_cross_entropy, z, labels, sources=[z], grad=np.array(1.5))
    there, back = (ag.softmax_cross_entropy(z + t * v, labels) for t in (h, -h))
    bound = 1.5 * (h**2 / 6 * np.ptp(v) ** 3 + (5 + 6 + 6) * eps * 2 * (np.ptp(z) + 1) / h)
    assert bound < 1e-5
    assert abs(np.vdot(grad, v) - 1.5 * (there - back) / (2 * h)) < bound


def test_gradient_of_a_network():
    """A convolution, its square, a layer and a detour round both: of degree 5 in t."""
    x, k, w = integers(0, 2, 2, 4, 4), integers(1, 3, 2, 2, 2), integers(2, 4, 27)
    b, detour = integers(3, 4), integers(4, 4, 32)
    watched = [x, k, w, b, detour]

    def network(apply, x, k, w, b, detour):
        h = apply(ag.flatten, apply(ag.conv2d, x, k))
        y = apply(ag.linear, apply(ag.mul, h, h), w, b)
        return apply(ag.add, y, apply(ag.linear, apply(ag.flatten, x), detour))

    def plain(*arrays):
        return network(ag.call, *arrays)

    u = integers(5, 2, 4)
    v = [integers(6 + i, *a.shape, least=-1, most=1) for i, a in enumerate(watched)]
    with ag.Tape() as tape:
        for a in watched:
            tape.watch(a)
        y = network(tape.apply, *watched)
    grads = tape.gradient(y, watched, u)
    slope = sum(np.vdot(g, d) for g, d in zip(grads, v, strict=True))
    p = {t: projection(plain, watched, v, u, t) for t in range(-3, 4)}
    assert slope * 60 == 45 * (p[1] - p[-1]) - 9 * (p[2] - p[-2]) + (p[3] - p[-3])


@pytest.mark.parametrize("case", EXACT)
def test_float32_stays_float32(case):
    """Small integers are exact in float32 too, and so are all results."""
    step, arrays, kwargs = EXACT[case]
    y, grads = on_tape(step, *arrays, **kwargs, sources=arrays)
    arrays = [a.astype(F32) for a in arrays]
    y32, grads32 = on_tape(step, *arrays, **kwargs, sources=arrays)
    assert_same((y32, *grads32), tuple(np.asarray(a, F32) for a in (y, *grads)))


# --- the functions themselves ---------------------------------------------------------------------


def naive_conv2d(x, w, b, stride, padding, groups):
    x = np.pad(x, ((0, 0), (0, 0), (padding[0],) * 2, (padding[1],) * 2))
    n, _, height, width = x.shape
    k, c, h, v = w.shape
    size = (height - h) // stride[0] + 1, (width - v) // stride[1] + 1
    y = np.zeros((n, k, *size))
    for m, o, i, j in np.ndindex(*y.shape):
        first = o // (k // groups) * c
        rows, cols = (
            slice(i * stride[0], i * stride[0] + h),
            slice(j * stride[1], j * stride[1] + v),
        )
        y[m, o, i, j] = np.sum(x[m, first : first + c, rows, cols] * w[o]) + b[o]
    return y


def naive_max_pool2d(x, kernel, stride, padding):
    edge = (0, 0), (0, 0), (padding[0],) * 2, (padding[1],) * 2
    x = np.pad(x, edge, constant_values=-np.inf)
    size = [(n - k) // s + 1 for n, k, s in zip(x.shape[2:], kernel, stride, strict=True)]
    y = np.zeros((*x.shape[:2], *size))
    for m, c, i, j in np.ndindex(*y.shape):
        top, left = i * stride[0], j * stride[1]
        y[m, c, i, j] = x[m, c, top : top + kernel[0], left : left + kernel[1]].max()
    return y


@pytest.mark.parametrize(
    ("stride", "padding"), [((1, 1), (0, 0)), ((2, 1), (0, 2)), ((3, 2), (1, 1))]
)
def test_conv2d_and_max_pool2d_place_by_place(stride, padding):
    x, b = integers(0, 2, 6, 7, 8), integers(2, 4)
    for groups, kernel in itertools.product((1, 2), ((3, 2), (1, 1), (7, 4))):
        w = integers(1, 4, 6 // groups, *kernel)
        got = ag.conv2d(x, w, b, stride, padding, groups=groups)
        np.testing.assert_array_equal(got, naive_conv2d(x, w, b, stride, padding, groups))
    args = (3, 4), stride, padding
    np.testing.assert_array_equal(ag.max_pool2d(x, *args), naive_max_pool2d(x, *args))


def test_one_number_stands_for_both_axes():
    """Alone or in a tuple, as in PyTorch."""
    x, w = integers(0, 1, 2, 7, 7), integers(1, 3, 2, 3, 3)
    expected = ag.conv2d(x, w, None, (2, 2), (1, 1))
    for stride, padding in ((2, 1), ((2,), [1])):
        np.testing.assert_array_equal(ag.conv2d(x, w, None, stride, padding), expected)


def test_max_pool2d_of_specials():
    """Padding is never chosen, a NaN always, and of equal values the first."""
    x = np.full((1, 1, 2, 2), -np.inf)
    y, (grad,) = on_tape(ag.max_pool2d, x, 2, 1, 1, sources=[x])
    assert (y == -np.inf).all()
    np.testing.assert_array_equal(grad[0, 0], [[4, 2], [2, 1]])
    x = np.array([[[[1.0, 1.0], [np.nan, 1.0]]]])
    y, (grad,) = on_tape(ag.max_pool2d, x, 2, sources=[x])
    assert np.isnan(y).all()
    np.testing.assert_array_equal(grad[0, 0], [[0, 0], [1, 0]])


def test_sigmoid_and_relu_of_specials():
    x = np.array([np.nan, -np.inf, -800.0, -0.0, 0.0, 800.0, np.inf])
    y, (grad,) = on_tape(ag.sigmoid, x, sources=[x])
    np.testing.assert_array_equal(y, [np.nan, 0, 0, 0.5, 0.5, 1, 1])
    np.testing.assert_array_equal(grad, [np.nan, 0, 0, 0.25, 0.25, 0, 0])
    assert ag.sigmoid(np.array([-100.0], F32))[0] > 0  # where exp(100) is beyond float32
    y, (grad,) = on_tape(ag.relu, x, sources=[x])
    np.testing.assert_array_equal(y, [np.nan, 0, 0, 0, 0, 800, np.inf])
    np.testing.assert_array_equal(grad, [1, 0, 0, 0, 0, 1, 1])


def test_softmax_cross_entropy_is_stable():
    """Equal logits give log(C); one far ahead costs its distance; nothing overflows."""
    z = np.array([[-9000.0, -9000.0], [-1000.0, 1000.0]])
    assert ag.softmax_cross_entropy(z[:1], np.array([1])) == np.log(2)
    assert ag.softmax_cross_entropy(z[1:], np.array([0])) == 2000
    assert ag.softmax_cross_entropy(z[1:], np.array([1])) == 0
    both = ag.softmax_cross_entropy(z, np.array([1, 0]))
    assert both == (np.log(2) + 2000) / 2


@pytest.mark.filterwarnings("error")
def test_softmax_cross_entropy_of_infinite_differences():
    """As PyTorch has them, and without a word of NumPy's."""
    inf, far = np.inf, np.finfo(F32).max
    for logits, losses in (
        ((inf, 0), (np.nan, np.nan)),
        ((-inf, 0), (inf, 0)),
        ((far, -far), (0, inf)),
    ):
        for label, loss in enumerate(losses):
            got = ag.softmax_cross_entropy(np.array([logits], F32), np.array([label]))
            np.testing.assert_array_equal(got, loss)


def test_means_are_added_in_float64():
    """2**24 ones and one more: float32 could not count them one by one; here all are seen."""
    a = np.zeros(4096, F32)
    b = np.full(4096, 2.0**-13, F32)
    b[0] = 2.0
    assert ag.mse_loss(a, b) == F32.type((4 + 4095 * 2.0**-26) / 4096)


def test_results_without_axes_are_arrays():
    x = np.array(2.0)
    for step in (ag.relu, ag.sigmoid):
        y, (grad,) = on_tape(step, x, sources=[x])
        assert [type(a) for a in (y, grad)] == [np.ndarray, np.ndarray]
    with ag.Tape() as tape:
        tape.watch(x)
        y = tape.apply(ag.mul, tape.apply(ag.add, x, x), x)
        for _ in range(3):
            y = tape.apply(ag.mul, y, 2.0)
    assert_same(tape.gradient(y, x), np.array(8 * 2 * 2 * 2.0))


# --- fake quantize: the straight-through definition -----------------------------------------------

DIFFERENTIABLE = [n for n in CALLS if "fake_quant" in n and not n.endswith("_backward")]
LEARNABLE = [n for n in DIFFERENTIABLE if "learnable" in n]


def mask_of(name, kwargs):
    """What the oracle says was inside the range; and what the op returns without a mask."""
    masked = name if "cachemask" in name else f"{name}_cachemask"
    return getattr(oracle, masked)(**copied(kwargs))


def copied(kwargs):
    return {k: v.copy() if isinstance(v, np.ndarray) else v for k, v in kwargs.items()}


@pytest.mark.parametrize("name", [n for n in DIFFERENTIABLE if n not in LEARNABLE])
def test_gradient_passes_straight_through_inside_the_range(name):
    kwargs = arguments(name, (6, 8))
    x = kwargs["input"]
    grad = np.random.default_rng(1).normal(size=x.shape).astype(F32)
    grad[0] = np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 3e38
    y, mask = mask_of(name, kwargs)
    assert 0 < mask.sum() < mask.size
    by_hand = copied(kwargs)
    got, (found,) = on_tape(getattr(nq, name), **kwargs, sources=[x], grad=grad)
    assert_same(found, np.where(mask, grad, np.copysign(F32.type(0), grad)))
    assert_same(got, (y, mask) if "cachemask" in name else y)
    # What the fused ops update in place is updated as without a tape, and once.
    results(name, by_hand)
    for key, value in kwargs.items():
        if isinstance(value, np.ndarray):
            assert_same(value, by_hand[key], key)


@pytest.mark.parametrize("rounding", [None, "pytorch", "nearest"])
@pytest.mark.parametrize("name", LEARNABLE)
def test_gradients_of_the_learnable_ops(name, rounding):
    kwargs = arguments(name, (6, 8))
    if "tensor" in name:  # there PyTorch is off by one below zero: the option shows
        kwargs["zero_point"] = np.array([-2.6], F32)
    parameters = [kwargs[key] for key in ("input", "scale", "zero_point")]
    grad = np.random.default_rng(1).normal(size=(6, 8)).astype(F32)
    option = {} if rounding is None else {"zero_point_rounding": rounding}
    y, grads = on_tape(getattr(nq, name), **kwargs, **option, sources=parameters, grad=grad)
    expected = getattr(oracle, f"{name}_backward")(grad, **kwargs, **option)
    assert_same((y, *grads), (getattr(oracle, name)(**kwargs), *expected))
    if "tensor" in name:
        other = {"zero_point_rounding": {"nearest": "pytorch"}.get(rounding, "nearest")}
        others = on_tape(getattr(nq, name), **kwargs, **other, sources=parameters, grad=grad)[1]
        assert others[1] != grads[1]  # so the option counts


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float64])
def test_learnable_gradients_have_the_dtypes_of_their_arrays(dtype):
    x = np.array([0.25, -3.0, 100.0], dtype)
    s, z = ag.Parameter(np.ones(1, F32)), ag.Parameter(np.zeros(1, F64))
    op = nq.fake_quantize_learnable_per_tensor_affine
    y, grads = on_tape(op, x, s, z, -8, 7, sources=[x, s, z])
    assert [a.dtype for a in (y, *grads)] == [x.dtype, x.dtype, F32, F64]
    # inside: grad * (q - x / s); above: grad * quant_max, and -grad * s
    assert_same(tuple(grads), (np.array([1, 1, 0], dtype), np.array([6.75], F32), np.array([-1.0])))


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize(("name", "kind"), [
    (name, kind) for name in LEARNABLE
    for kind in (int if "tensor" in name else list, *map(np.dtype, ("i1", ">i4", "i8", "u4")))
])  # fmt: skip
def test_integer_zero_points_are_learnable_ones_without_a_gradient(name, kind, traced):
    """As choose_qparams has them, in a backward and on a tape as in the op alone."""
    given = arguments(name, (6, 8))
    shape = np.shape(given["zero_point"])
    z = np.full(shape, 2, "i8" if kind in (int, list) else kind)
    z = 2 if kind is int else z.tolist() if kind is list else z
    integer, real = given | {"zero_point": z}, given | {"zero_point": np.full(shape, 2, F32)}
    op, backward = getattr(nq, name), getattr(nq, f"{name}_backward")
    grad = np.random.default_rng(1).normal(size=(6, 8)).astype(F32)
    assert_same(backward(grad, **integer), backward(grad, **real))
    sources = [given["input"], given["scale"]] if traced else [given["input"]]
    y, grads = on_tape(op, **integer, sources=sources, grad=grad)
    assert_same(y, op(**integer))
    assert_same(tuple(grads), backward(grad, **real)[: len(sources)])


def test_integer_zero_points_are_rounded_to_float32_once():
    """As in the op alone: this one lies just above the middle of two float32."""
    x, s, z = np.array([-(2.0**36)], F32), np.ones(1, F32), 2**60 + 2**36 + 1
    backward, bounds = nq.fake_quantize_learnable_per_tensor_affine_backward, (-(2**62), 2**61)
    expected = backward(x, x, s, np.array([2**60 + 2**37], F32), *bounds)
    for zero in (z, np.array([z])):
        assert_same(backward(x, x, s, zero, *bounds), expected)
    assert_same(backward(x, x, s, 2**63, *bounds), backward(x, x, s, 2.0**63, *bounds))


def test_learnable_gradients_of_a_vector_and_of_nothing():
    """Departure D6, where PyTorch's autograd fails, or takes parameters for their gradients."""
    op = nq.fake_quantize_learnable_per_channel_affine
    x, s, z = np.array([0, 100, 200, 300], F32), np.ones(4, F32), np.zeros(4, F32)
    _, grads = on_tape(op, x, s, z, 0, -128, 127, sources=[x, s, z])
    assert_same(tuple(grads), tuple(np.array(a, F32) for a in ([1, 1, 0, 0], [0, 0, 127, 127],
                                                               [0, 0, -1, -1])))  # fmt: skip
    x = np.zeros((4, 0), F32)
    _, grads = on_tape(op, x, s, z, 0, -128, 127, sources=[x, s, z])
    assert_same(tuple(grads), (x, np.zeros(4, F32), np.zeros(4, F32)))


def test_a_module_may_pass_the_option_of_the_backward():
    class Learned:
        def __init__(self):
            self.scale = ag.Parameter(np.ones(1, F32))
            self.zero_point = ag.Parameter(np.array([-3.0], F32))

        def forward(self, apply, x):
            op = nq.fake_quantize_learnable_per_tensor_affine
            return apply(op, x, self.scale, self.zero_point, -8, 7, zero_point_rounding="nearest")

    learned, x = Learned(), np.array([-6, -5, 10, 9, 11], F32)
    y, (grad,) = on_tape(learned, x, sources=[x])
    assert_same(y, ag.call(learned, x))
    assert_same(grad, np.array([0, 1, 1, 1, 0], F32))  # PyTorch's option: 1, 1, 0, 1, 0


# --- AdaRound -------------------------------------------------------------------------------------


def test_gradient_of_soft_rounding():
    """The op's own backward, which test_adaround.py holds against the formulas; V alone has one."""
    kwargs = arguments("adaround_soft", (6, 8))
    x, V = kwargs["input"], kwargs["V"]
    grad = np.random.default_rng(1).normal(size=x.shape).astype(F32)
    y, (of_x, of_V) = on_tape(nq.adaround_soft, **kwargs, sources=[x, V], grad=grad)
    assert of_x is None
    assert_same((y, of_V), (nq.adaround_soft(**kwargs), nq.adaround_soft_backward(grad, **kwargs)))
    assert np.count_nonzero(of_V) > 10


@pytest.mark.parametrize("V_dtype", [F32, F64])
def test_gradient_of_the_regularizer(V_dtype):
    """By the gradient of its sum, a number of float64; of V's dtype itself."""
    V = np.linspace(-3, 3, 9, dtype=V_dtype)
    y, (of_V,) = on_tape(nq.adaround_regularizer, V, 4.0, sources=[V], grad=np.array(0.3))
    expected = nq.adaround_regularizer_backward(V, 4.0, 0.3)
    assert_same((y, of_V), (nq.adaround_regularizer(V, 4.0), expected))
    assert np.count_nonzero(abs(of_V) > 1e-9) == 6  # not in the middle, nor where h is cut off


@pytest.mark.parametrize(
    ("V_dtype", "grad"),
    [(dtype, grad) for dtype in (F32, F64) for grad in (np.nan, np.inf, -np.inf)] + [(F32, 1e39)],
)
def test_gradient_of_the_regularizer_of_a_loss_that_overflowed(V_dtype, grad):
    """It is no number either, as after any other step."""
    V = np.linspace(-3, 3, 8, dtype=V_dtype)
    _, (of_V,) = on_tape(nq.adaround_regularizer, V, 4.0, sources=[V], grad=np.array(grad))
    with np.errstate(all="ignore"):
        expected = nq.adaround_regularizer_backward(V, 4.0) * V_dtype.type(grad)
    assert_same(of_V, expected)
    assert not np.isfinite(of_V).any()


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"zero_point": np.zeros(1, bool)}, TypeError, "zero_point must have a dtype among"),
        ({"scale": np.ones(1, np.int32)}, TypeError, "scale must have a dtype among"),
        ({"quant_min": 1, "quant_max": 15}, ValueError, "quant_min"),
        ({"zero_point_rounding": "nearst"}, ValueError, "zero_point_rounding must be"),
    ],
)
def test_what_a_learnable_backward_refuses_is_refused_when_it_is_traced(wrong, error, message):
    """Not when the gradient is asked for: the tape would be spent."""
    given = arguments("fake_quantize_learnable_per_tensor_affine", (6, 8)) | wrong
    with ag.Tape() as tape:
        tape.watch(given["input"])
        with pytest.raises(error, match=message):
            tape.apply(nq.fake_quantize_learnable_per_tensor_affine, **given)


@pytest.mark.parametrize(
    "name", sorted(step.__name__ for step, rule in RULES.items() if rule.fixed)
)
@pytest.mark.parametrize("by_name", [False, True])
def test_qparams_without_a_gradient_are_not_traced(name, by_name):
    """None would say that the result does not depend on them."""
    given, s, z = arguments(name, (6, 8)), *([k for _, k in RULES[getattr(nq, name)].fixed])
    step, scale = getattr(nq, name), ag.Parameter(np.atleast_1d(np.float32(given[s])))
    given[s] = scale
    args, kwargs = ((), given) if by_name else (tuple(given.values()), {})
    with ag.Tape() as tape, pytest.raises(TypeError, match=f"{s} must not be traced.*{name}"):
        tape.apply(step, *args, **kwargs)
    watched = np.zeros(6, F32)
    with ag.Tape() as tape:
        tape.watch(watched)
        with pytest.raises(TypeError, match=f"{z} must not be traced"):
            tape.apply(step, **given | {s: scale.value, z: watched})


def test_which_qparams_have_no_gradient():
    """Those of all steps that take any, but of the learnable ones."""
    fixed = {step.__name__ for step, rule in RULES.items() if rule.fixed}
    taking = {s.__name__ for s in RULES if "scale" in str(inspect.signature(s))}
    assert taking - fixed == {name for name in taking if "learnable" in name}
    assert {"fake_quantize_per_tensor_affine", "adaround_soft", "fake_quant_per_channel"} <= fixed


@pytest.mark.parametrize("traced", [False, True])
def test_options_of_a_backward_are_looked_at_whether_it_is_traced_or_not(traced):
    given = arguments("fake_quantize_learnable_per_tensor_affine", (6, 8))
    op = nq.fake_quantize_learnable_per_tensor_affine
    with ag.Tape() as tape:
        if traced:
            tape.watch(given["input"])
        for apply in (tape.apply, *(() if traced else (ag.call,))):
            y = apply(op, **given, zero_point_rounding="nearest")
            assert_same(y, op(**given))
            with pytest.raises(ValueError, match="zero_point_rounding must be"):
                apply(op, **given, zero_point_rounding="nearst")
            with pytest.raises(TypeError, match="grad"):
                apply(op, **given, grad=5)
        out = np.empty_like(y)
        assert ag.call(op, **given, zero_point_rounding="nearest", out=out) is out
        assert_same(out, y)


def test_one_weight_among_arrays_of_one_element():
    """Bounds and axes may be such arrays: they are no data, though of its shape."""
    w, lo, hi = np.array([0.3], F32), np.array([-8]), np.array([7])
    V = ag.Parameter(np.array([0.1], F32))
    with ag.Tape() as tape:
        y = tape.apply(nq.adaround_soft, w, V, 0.5, 0, lo, hi)
    assert_same(y, nq.adaround_soft(w, V.value, 0.5, 0, -8, 7))
    grad = np.array([2], F32)
    expected = nq.adaround_soft_backward(grad, w, V.value, 0.5, 0, -8, 7)
    assert_same(tape.gradient(y, V, grad), expected)
    x, s, z = ag.Parameter(w), np.ones(1, F32), np.zeros(1, F32)
    with ag.Tape() as tape:
        y = tape.apply(nq.fake_quantize_learnable_per_channel_affine, x, s, z, np.array([0]), -8, 7)
    assert_same(tape.gradient(y, x, grad), grad)


def test_soft_rounding_and_a_layer_on_one_tape():
    """The gradient of V through a product: that of the weights, and then of the rounding."""
    w, x = integers(0, 4, 3).astype(F32) / 8, integers(1, 5, 3).astype(F32)
    V = ag.Parameter(nq.adaround_init(w, 0.3))
    args = 0.3, 0, -8, 7
    with ag.Tape() as tape:
        y = tape.apply(ag.linear, x, tape.apply(nq.adaround_soft, w, V, *args))
    grad = np.ones_like(y)
    expected = nq.adaround_soft_backward(grad.T @ x, w, V.value, *args)
    assert_same(tape.gradient(y, V, grad), expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_gradient_of_a_conversion(dtype):
    """It is converted back, by the rules of the op."""
    x, grad = np.array([0.1, 3, -1e-3]), np.array([1, 1 / 3, -7])
    dtype = dtypes.canonical(dtype, "dtype")
    y, (of_x,) = on_tape(
        nq.convert_element_type, x, dtype, sources=[x], grad=nq.convert_element_type(grad, dtype)
    )
    assert_same(y, nq.convert_element_type(x, dtype))
    assert_same(of_x, nq.convert_element_type(grad, dtype).astype(F64))
    _, (none,) = on_tape(nq.convert_element_type, x, np.int8, sources=[x], grad=np.ones(3, np.int8))
    assert none is None
    with pytest.raises(TypeError, match="dtype must not be float8 where a gradient is traced"):
        on_tape(nq.convert_element_type, x, ml_dtypes.float8_e5m2, sources=[x])
    ag.call(nq.convert_element_type, x, ml_dtypes.float8_e5m2)


def test_adaround_loss_on_one_tape():
    """The regularizer is a float64, and what it is added to may be another."""
    w, V = np.array([0.33, 0.1], F32), ag.Parameter(np.array([0.1, -0.2], F32))
    with ag.Tape() as tape:
        soft = tape.apply(nq.adaround_soft, w, V, 0.1, 0, -8, 7)
        loss = tape.apply(ag.mse_loss, soft, w)
        drive = tape.apply(nq.adaround_regularizer, V, 2.0)
        both = tape.apply(ag.add, loss, tape.apply(nq.convert_element_type, drive, F32))
    grad = np.float32(0.5) * 2 * (soft - w)
    expected = nq.adaround_soft_backward(grad, w, V.value, 0.1, 0, -8, 7)
    expected += nq.adaround_regularizer_backward(V.value, 2.0, 1.0)
    # Two products and a sum, each rounded once.
    assert tape.gradient(both, V) == pytest.approx(expected, rel=2**-21)


class Odd(np.ndarray):
    """An array whose operators and functions are others."""

    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        return "odd"

    def __array_function__(self, function, kinds, args, kwargs):
        return "odd"


@pytest.mark.parametrize(
    "step", [ag.add, ag.mul, ag.matmul, ag.linear, ag.mse_loss, ag.relu, ag.sigmoid]
)
def test_arrays_whose_class_computes_otherwise(step):
    """They are the arrays that they are views of, going back as going forth."""
    several = 1 if step in (ag.relu, ag.sigmoid) else 2
    arrays = [np.array([[1.0, -2], [3, 4 + k]]) for k in range(several)]
    found = []
    for given in (arrays, [a.view(Odd) for a in arrays]):
        with ag.Tape() as tape:
            for a in given:
                tape.watch(a)
            y = tape.apply(step, *given)
        found.append([y, *tape.gradient(y, given, np.ones(y.shape))])
    for expected, got in zip(*found, strict=True):
        assert type(got) is np.ndarray
        assert_same(got, expected)


def test_parameters_are_no_arrays():
    """NumPy would save an object of Python, or compute what no tape sees."""
    p = ag.Parameter(np.ones(3))
    for wrong in (np.asarray, np.sum, lambda p: np.ones(3) * p, lambda p: np.savez(BytesIO(), w=p)):
        with pytest.raises(TypeError, match="is no array: take its value"):
            wrong(p)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ([1.0, 2.0], "[1.0, 2.0] (list)"),
        (None, "None"),
        ("abc", "'abc' (str)"),
        (np.float32(1.5), "1.5"),
        (float, "the class float"),
    ],
)
def test_a_parameter_shows_a_value_that_is_no_array(value, shown):
    """So that the message of what refuses it is the one that is raised."""
    p = ag.Parameter(np.ones(3), "w")
    p.value = value
    shown = re.escape(f"Parameter({shown}, 'w')")
    assert re.fullmatch(shown, repr(p))
    for refuses in (np.asarray, lambda p: Adam([p]), lambda p: nq.quantize_per_tensor(
        np.ones(3), p, 0, 0, 255, np.uint8
    )):  # fmt: skip
        with pytest.raises(TypeError, match=shown):
            refuses(p)


# --- what is traced -------------------------------------------------------------------------------


def test_gradients_add_up_where_an_array_is_used_twice():
    x, w = integers(0, 2, 3), ag.Parameter(integers(1, 3, 3))
    with ag.Tape() as tape:
        tape.watch(x)
        h = tape.apply(ag.linear, x, w)
        y = tape.apply(ag.linear, h, w)
        z = tape.apply(ag.add, tape.apply(ag.mul, y, y), h)
    found = tape.gradient(z, [x, w, h], np.ones_like(z))
    # z = y * y + h, y = h @ w.T, h = x @ w.T
    of_y = 2 * y
    of_h = of_y @ w.value + 1
    expected = of_h @ w.value, of_y.T @ h + of_h.T @ x, of_h
    assert_same(tuple(found), expected)


def test_a_view_is_an_array_of_its_own():
    x = integers(0, 2, 6)
    with ag.Tape() as tape:
        tape.watch(x)
        flat = tape.apply(ag.flatten, x)
        assert np.shares_memory(flat, x)
        assert flat is not x
        y = tape.apply(ag.add, tape.apply(ag.mul, flat, 3.0), tape.apply(ag.mul, x, 2.0))
    of_x, of_flat = tape.gradient(y, [x, flat], np.ones_like(y))
    assert (of_x == 5).all()
    assert (of_flat == 3).all()


def test_a_composite_may_return_what_it_was_given():
    class Off:
        def forward(self, apply, x):
            return x

    x = integers(0, 3)
    with ag.Tape() as tape:
        tape.watch(x)
        same = tape.apply(Off(), x)
        y = tape.apply(ag.mul, same, x)
    assert same is x
    assert_same(tape.gradient(y, x, np.ones(3)), 2 * x)


def test_composites_consist_of_composites():
    class Square:
        def forward(self, apply, x, *, factor):
            return apply(ag.mul, apply(ag.mul, x, x), factor)

    class Fourth:
        square = Square()

        def forward(self, apply, x):
            return apply(self.square, apply(self.square, x, factor=1.0), factor=2.0)

    x = np.array([3.0])
    assert_same(ag.call(Fourth(), x), np.array([162.0]))
    assert_same(on_tape(Fourth(), x, sources=[x])[1][0], np.array([8 * 27.0]))


def test_parameters_are_known_by_themselves():
    w = ag.Parameter(np.array([2.0]))
    with ag.Tape() as tape:
        y = tape.apply(ag.mul, w, w)
        w.value = np.array([5.0])
        y = tape.apply(ag.mul, y, w)
        tape.watch(w)
    assert_same(tape.gradient(y, [w])[0], np.array([2 * 2 * 5 + 4.0]))
    with ag.Tape() as tape:
        y = tape.apply(ag.mul, input=w, other=3.0)
    assert_same(tape.gradient(y, w), np.array([3.0]))


def test_sources():
    a, b, c = (ag.Parameter(np.array([v])) for v in (2.0, 3.0, 5.0))

    def taped():
        with ag.Tape() as tape:
            y = tape.apply(ag.mul, a, b)
            z = tape.apply(ag.mul, y, c)
            tape.apply(ag.mul, z, z)
        return tape, y, z

    tape, y, z = taped()
    assert [float(g[0]) for g in tape.gradient(z, [c, a, y, z, a])] == [6, 15, 5, 1, 15]
    tape, y, z = taped()
    assert tape.gradient(y, (c, a), np.array([2.0]))[0] is None
    tape, y, z = taped()
    assert type(tape.gradient(z, (a,))) is list
    tape, y, z = taped()
    assert_same(tape.gradient(z, a), np.array([15.0]))
    tape, y, z = taped()
    assert tape.gradient(z, []) == []
    tape, y, z = taped()
    for unknown in (a.value, np.array([2.0]), np.array(["a"], object)):
        for sources in (unknown, [a, unknown]):
            with pytest.raises(
                ValueError, match=r"sources must be .* that this tape does not know"
            ):
                tape.gradient(z, sources)
    assert_same(tape.gradient(z, a), np.array([15.0]))  # it is not spent


def test_a_watched_array_is_its_own_gradient():
    x = np.array([3.0])
    with ag.Tape() as tape:
        tape.watch(x)
        assert_same(tape.gradient(x, [x])[0], np.ones(1))


def test_gradients_share_no_memory():
    """They may be written to: clipped, scaled, added to."""
    x, y = integers(0, 4, 3), integers(1, 4, 3)
    grad = integers(2, 12)
    with ag.Tape() as tape:
        for a in (x, y):
            tape.watch(a)
        s = tape.apply(ag.add, x, y)
        z = tape.apply(ag.flatten, s, 0)
    arrays = [grad, x, y, s, z, *tape.gradient(z, [x, y, s, z, x], grad)]
    for a, b in itertools.combinations(arrays[4:] + arrays[:1], 2):
        assert not np.shares_memory(a, b)


def test_without_a_traced_input_nothing_is_held():
    x, w = integers(0, 3, 3), ag.Parameter(integers(1, 3, 3))
    with ag.Tape() as tape:
        y = tape.apply(ag.linear, x, x)
        gone = weakref.ref(y)
        del y
        assert gone() is None
        y = tape.apply(ag.linear, x, w)
        held = weakref.ref(y)
        del y
        assert held() is not None  # or another array could get its identity


def test_what_leads_to_no_source_is_not_computed():
    a, b = ag.Parameter(np.array(2.0)), ag.Parameter(np.array(3.0))
    called = []

    def noting(name, *grads):
        def backward(grad):
            called.append(name)
            return grads

        return backward

    with ag.Tape() as tape:
        of_a, of_b, both = np.array(1.0), np.array(1.0), np.array(1.0)
        tape.record(of_a, [a], noting("a", np.array(7.0)))
        tape.record(of_b, [b], noting("b", np.array(7.0)))
        tape.record(both, [of_a, of_b, np.array(0.0)], noting("both", np.array(5.0), None, None))
        tape.record(np.array(0.0), [both], noting("after", np.array(1.0)))
        tape.record(np.array(0.0), [np.array(0.0)], noting("unwatched", np.array(1.0)))
    assert tape.gradient(both, a) == 7
    assert called == ["both", "a"]
    called.clear()
    with ag.Tape() as tape:
        tape.record(of_a, [a], noting("a", np.array(7.0)))
    assert tape.gradient(of_a, [b, of_a]) == [None, 1]
    assert called == []


def test_of_a_step_only_what_is_asked_for_is_computed(monkeypatch):
    """The gradient of the images takes another way than that of the kernels."""

    def fail(*args):
        raise ArithmeticError("the gradient of the images is computed")

    monkeypatch.setattr(rules, "put_back", fail)
    x, w = ag.Parameter(IMAGES), ag.Parameter(KERNELS)

    def taped():
        with ag.Tape() as tape:
            return tape, tape.apply(ag.conv2d, x, w)

    tape, y = taped()
    assert tape.gradient(y, w, np.ones_like(y)).shape == KERNELS.shape
    tape, y = taped()
    with pytest.raises(ArithmeticError):
        tape.gradient(y, [w, x], np.ones_like(y))


def test_of_a_step_only_what_is_traced_is_kept():
    """The gradient of the weights needs the input, and not the weights."""
    x, w = np.ones((2, 3)), np.ones((4, 3))
    refs = weakref.ref(x), weakref.ref(w)
    p = ag.Parameter(w)
    with ag.Tape() as tape:
        y = tape.apply(ag.linear, x, p)
        p.value = np.ones((4, 3))
        del x, w
        assert [r() is not None for r in refs] == [True, False]
    assert (tape.gradient(y, p, np.ones_like(y)) == 2).all()


def test_memory_is_freed_as_the_backward_goes():
    """When a step goes back, results and saved arrays of all later steps are gone already."""
    x, steps = np.zeros(3), 6
    results, saved, alive = [], [], []

    class Saved:
        pass

    def step(tape, x):
        y, keep = x + 1, Saved()
        results.append(weakref.ref(y))
        saved.append(weakref.ref(keep))

        def backward(grad):
            assert keep is not None
            alive.append([sum(r() is not None for r in refs) for refs in (results, saved)])
            return (grad.copy(),)

        tape.record(y, [x], backward)
        return y

    with ag.Tape() as tape:
        tape.watch(x)
        y = x
        for _ in range(steps):
            y = step(tape, y)
    grad = tape.gradient(y, x, np.ones(3))
    assert (grad == 1).all()
    # Results: those before the step, and the target, which is the caller's.
    assert [r for r, _ in alive] == list(range(steps, 0, -1))
    # What was saved: by the steps before, and by this one.
    assert [s for _, s in alive] == list(range(steps, 0, -1))
    assert sum(s() is not None for s in saved) == 0
    assert sum(r() is not None for r in results) == 1


def test_a_gradient_has_the_order_of_bytes_of_the_machine():
    """Whatever that of its source is, of a step of one's own too."""
    for source, returned in ((">f4", "<f4"), ("<f4", ">f4"), (">f4", ">f4")):
        x = np.array([1.0, 2.0], source)
        with ag.Tape() as tape:
            tape.watch(x)
            y = x.astype(np.float32) * 2
            tape.record(y, [x], lambda grad, d=returned: ((2 * grad).astype(d),))
        assert_same(tape.gradient(y, x, np.ones(2, np.float32)), np.array([2, 2], np.float32))


@pytest.mark.parametrize("given", ["<f4", ">f4", None])
def test_a_target_in_the_other_order_of_bytes(given):
    """The gradient that is given, or 1, comes to a step in the machine's order, too."""
    x, seen = np.array([[3.0]], ">f4"), []
    with ag.Tape() as tape:
        tape.watch(x)
        y = (2 * x).astype(">f4")
        tape.record(y, [x], lambda grad: (seen.append(grad) or 2 * grad,))
    grad = None if given is None else np.array([[1.0]], given)
    assert_same(tape.gradient(y, x, grad), np.array([[2]], np.float32))
    assert seen[0].dtype.str == np.dtype(np.float32).str
    with ag.Tape() as tape:
        tape.watch(x)
    assert_same(tape.gradient(x, x), np.array([[1]], np.float32))


def test_gradients_on_the_way_are_freed():
    x, seen = np.zeros(3), []

    def backward(grad):
        mine = grad + 1
        alive = sum(r() is not None for r in seen)
        seen.append(weakref.ref(mine))
        most.append(alive)
        return (mine,)

    most = []
    with ag.Tape() as tape:
        tape.watch(x)
        y = x
        for _ in range(6):
            before, y = y, y + 1
            tape.record(y, [before], backward)
    tape.gradient(y, x, np.ones(3))
    assert max(most) == 1


def test_what_is_left_is_freed_where_a_backward_fails():
    def fails(grad):
        raise OSError("no more of it")

    with ag.Tape() as tape:
        x = np.zeros(3)
        tape.watch(x)
        first = tape.apply(ag.mul, x, np.ones(3))
        last = first + 1
        tape.record(last, [first], fails)
    kept = weakref.ref(first)
    del first
    with pytest.raises(OSError, match="no more"):
        tape.gradient(last, x, np.ones(3))
    gc.collect()  # what the error's frames hold
    assert kept() is None


def test_identities_are_not_mistaken():
    """Arrays come and go beside the tape, at the addresses of those before."""
    x, other = np.array([1.0, 2.0]), np.array([3.0, 4.0])
    with ag.Tape() as tape:
        tape.watch(x)
        y = x
        for _ in range(200):
            y = tape.apply(ag.mul, y, np.ones(2))  # the ones, and every earlier y, are let go
            tape.apply(ag.mul, other, other + 1)
        unrelated = [np.zeros(2) for _ in range(1000)]
    for array in unrelated:
        with pytest.raises(ValueError, match="does not know"):
            tape.gradient(y, [x, array], np.ones(2))
    assert (tape.gradient(y, x, np.ones(2)) == 1).all()


def test_tapes_do_not_see_each_other():
    x = np.array([3.0])
    with ag.Tape() as one, ag.Tape() as two:
        one.watch(x)
        y = one.apply(ag.mul, x, x)
        two.watch(y)
        z = two.apply(ag.mul, y, 2.0)
    for tape, target, other in ((two, z, x), (one, y, z)):
        with pytest.raises(ValueError, match="does not know"):
            tape.gradient(target, other)
    assert two.gradient(z, y) == 2
    assert one.gradient(y, x) == 6


def test_two_tapes_in_two_threads():
    """Step by step in turn, on shared weights: the gradients are those of one after the other."""
    w = [ag.Parameter(integers(i, 4, 4)) for i in range(3)]
    turn = threading.Barrier(2, timeout=30)

    def work(seed, pause):
        x = integers(seed, 5, 4)
        with ag.Tape() as tape:
            y = x
            for p in w:
                pause()
                y = tape.apply(ag.relu, tape.apply(ag.linear, y, p))
        pause()
        return tape.gradient(y, w, np.ones_like(y))

    expected = [work(seed, lambda: None) for seed in (0, 1)]
    found = [None, None]

    def run(seed):
        found[seed] = work(seed, turn.wait)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in (0, 1)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for got, right in zip(found, expected, strict=True):
        assert_same(tuple(got), tuple(right))


def test_apply_gives_the_arguments_by_name():
    x, w, b = integers(0, 2, 3), integers(1, 4, 3), ag.Parameter(integers(2, 4))
    y, (of_b,) = on_tape(ag.linear, x, bias=b, weight=w, sources=[b])
    assert_same(y, ag.linear(x, w, b.value))
    assert_same(of_b, np.full(4, 2.0))


def test_no_place_for_the_result_is_what_there_is_by_default():
    x, op = np.array([0.3, 2.6], F32), nq.fake_quantize_per_tensor_affine
    y, (of_x,) = on_tape(op, x, 0.5, 0, -8, 7, out=None, sources=[x])
    assert_same(y, ag.call(op, x, 0.5, 0, -8, 7, out=None))
    assert (of_x == 1).all()


def test_a_parameter_stands_for_its_value_wherever_it_is():
    """Also where it has no gradient."""
    w, V = ag.Parameter(np.array([0.3, 2.6], F32)), np.array([0.5, -0.5], F32)
    op, bounds = nq.adaround_soft, {"scale": 0.5, "zero_point": 0, "quant_min": -8, "quant_max": 7}
    y, (of_V, of_w) = on_tape(op, w, V=V, **bounds, sources=[V, w])
    assert_same(y, op(w.value, V, **bounds))
    assert of_w is None
    assert (of_V != 0).all()
    assert_same(ag.call(op, w, V, **bounds), y)
    scale = ag.Parameter(np.array(0.5))
    assert_same(ag.call(op, w, V, **bounds | {"scale": scale}), y)


def test_the_mask_is_that_of_the_rounding():
    """15.499999 steps: a product rounds them to 16, beyond the range."""
    x = np.array([1.55], F32)
    args = 0.1, 0, 0, 15
    op = nq.fake_quantize_per_tensor_affine
    for rounding, slope in (("reciprocal", 0), ("divide", 1)):
        _, (of_x,) = on_tape(op, x, *args, rounding=rounding, sources=[x])
        assert of_x == slope


# --- errors ---------------------------------------------------------------------------------------


def entered():
    return ag.Tape().__enter__()


def with_result():
    tape, x = entered(), np.array([1.0, 2.0])
    tape.watch(x)
    return tape, x, tape.apply(ag.mul, x, x)


def spent():
    tape, x, y = with_result()
    tape.gradient(y, x, np.ones(2))
    return tape, x, y


def left():
    with ag.Tape() as tape:
        pass
    return tape


X = np.ones(2)
REFUSED = {
    "apply before": (lambda: ag.Tape().apply(ag.relu, X), ValueError, "inside of `with"),
    "watch before": (lambda: ag.Tape().watch(X), ValueError, "inside of `with"),
    "record before": (lambda: ag.Tape().record(X, [], len), ValueError, "inside of `with"),
    "gradient before": (lambda: ag.Tape().gradient(X, X), ValueError, "inside of `with"),
    "apply after": (lambda: left().apply(ag.relu, X), ValueError, "block has ended"),
    "watch after": (lambda: left().watch(X), ValueError, "block has ended"),
    "enter twice": (lambda: entered().__enter__(), ValueError, "entered once"),
    "enter again": (lambda: left().__enter__(), ValueError, "entered once"),
    "gradient of a spent tape": (
        lambda: (lambda tape, x, y: tape.gradient(y, x, X))(*spent()),
        ValueError,
        "spent",
    ),
    "gradient of a spent tape that was left": (
        lambda: (lambda tape, x, y: (tape.__exit__(), tape.gradient(y, x, X)))(*spent()),
        ValueError,
        "spent",
    ),
    "apply on a spent tape": (lambda: spent()[0].apply(ag.relu, X), ValueError, "spent"),
    "record on a spent tape": (lambda: spent()[0].record(X, [], len), ValueError, "spent"),
    "a function without a rule": (
        lambda: entered().apply(np.sin, X),
        TypeError,
        "step must .* got sin; Tape.record",
    ),
    "an op without a gradient": (
        lambda: entered().apply(nq.quantize_per_tensor, X, 1.0, 0, -8, 7, np.int8),
        TypeError,
        "step must .* got quantize_per_tensor; Tape.record",
    ),
    "no function": (lambda: entered().apply([], X), TypeError, "step must .* got \\[\\]"),
    "call of no function": (lambda: ag.call(3, X), TypeError, "step must .* got 3"),
    "a class": (
        lambda: entered().apply(type("Layer", (), {"forward": len}), X),
        TypeError,
        "step must .* got Layer",
    ),
    "out": (lambda: entered().apply(ag.relu, X, out=X), TypeError, "out must not"),
    "watch a list": (lambda: entered().watch([1.0]), TypeError, "source must .* Parameter, got"),
    "watch integers": (lambda: entered().watch(np.ones(2, int)), TypeError, "source .* int64"),
    "watch a spec": (
        lambda: entered().watch(nq.ArraySpec((2,), F32)),
        TypeError,
        "source must .* ArraySpec|shape \\(2,\\)",
    ),
    "an unknown target": (
        lambda: with_result()[0].gradient(np.ones(1), X),
        ValueError,
        "target must be a result",
    ),
    "an unwatched target": (
        lambda: (lambda tape: tape.gradient(tape.apply(ag.relu, X), X))(entered()),
        ValueError,
        "target must be a result",
    ),
    "no target": (lambda: with_result()[0].gradient(2.0, X), TypeError, "target must be an arr"),
    "no source": (
        lambda: (lambda tape, x, y: tape.gradient(y, [x, None], X))(*with_result()),
        TypeError,
        "sources must .* got None",
    ),
    "no grad": (
        lambda: (lambda tape, x, y: tape.gradient(y, x))(*with_result()),
        ValueError,
        "grad must be given .* \\(2,\\)",
    ),
    "grad of another shape": (
        lambda: (lambda tape, x, y: tape.gradient(y, x, np.ones(3)))(*with_result()),
        ValueError,
        "grad must have the shape \\(2,\\), got \\(3,\\)",
    ),
    "grad of another dtype": (
        lambda: (lambda tape, x, y: tape.gradient(y, x, np.ones(2, F32)))(*with_result()),
        TypeError,
        "grad must have the dtype float64, got float32",
    ),
    "record a number": (lambda: entered().record(2.0, [X], len), TypeError, "output must"),
    "record a scalar": (lambda: entered().record(X.sum(), [X], len), TypeError, "output must"),
    "record integers": (
        lambda: entered().record(np.ones(2, int), [X], len),
        TypeError,
        "output must .* int64",
    ),
    "record an input": (lambda: entered().record(X, [X], len), ValueError, "output must .*view"),
    "record a result": (
        lambda: (lambda tape, x, y: tape.record(y, [x], len))(*with_result()),
        ValueError,
        "output must .* does not know yet",
    ),
    "record one input": (
        lambda: entered().record(np.ones(2), X, len),
        TypeError,
        "inputs must be a list",
    ),
    "record no backward": (
        lambda: entered().record(np.ones(2), [X], X),
        TypeError,
        "backward must be callable",
    ),
    "padding beyond any array": (
        lambda: ag.conv2d(np.zeros((1, 1, 3, 3)), np.zeros((1, 1, 1, 1)), padding=2**30),
        ValueError,
        "padding must give images that an array can hold, got \\(1073741824, 1073741824\\)",
    ),
    "an array of strides": (
        lambda: ag.conv2d(np.zeros((1, 1, 3, 3)), np.zeros((1, 1, 1, 1)), stride=np.ones(2, int)),
        ValueError,
        "stride must be an integer or a tuple of two, got an array",
    ),
    "a parameter of a list": (lambda: ag.Parameter([1.0]), TypeError, "value must be a NumPy"),
    "a parameter of integers": (lambda: ag.Parameter(np.ones(2, int)), TypeError, "value .* int64"),
    "a parameter's name": (lambda: ag.Parameter(X, 3), TypeError, "name must be a string"),
}


def test_gradients_of_what_is_repeated_are_sums_in_float64():
    """NumPy would add rows one after another in float32, and of 0.1 lose more than ten."""
    n = 200_000
    tenth, expected = np.full((n, 2), 0.1, F32), np.float32(n * float(np.float32(0.1)))
    assert abs(tenth.sum(axis=0)[0] - expected) > 10
    x, b = np.zeros((n, 3), F32), ag.Parameter(np.zeros(2, F32))
    images = np.zeros((n, 1, 1, 1), F32)
    for step, *args in (
        (ag.linear, x, np.zeros((2, 3), F32)), (ag.add, np.zeros((n, 2), F32)),
        (ag.conv2d, images, np.zeros((2, 1, 1, 1), F32)),
    ):  # fmt: skip
        with ag.Tape() as tape:
            y = tape.apply(step, *args, b)
        found = tape.gradient(y, b, tenth.reshape(y.shape))
        assert_same(found, np.full(2, expected, F32))


def test_losses_of_any_layout():
    """Terms are added in C order, however they lie."""
    x = np.array([[2.5, 2.0**28], [2.5, 0], [2.5, 0]])
    target = np.zeros_like(x)
    loss = ag.mse_loss(x, target)
    for order in (np.asfortranarray, np.ascontiguousarray):
        for other in (np.asfortranarray, np.ascontiguousarray):
            assert_same(ag.mse_loss(order(x), other(target)), loss)
    logits = np.random.default_rng(0).normal(size=(300, 17)).astype(F32)
    labels = np.arange(300) % 17
    cross = ag.softmax_cross_entropy(logits, labels)
    assert_same(ag.softmax_cross_entropy(np.asfortranarray(logits), labels), cross)


def test_no_underflow_of_an_exponential_is_an_error_backwards():
    x, labels = ag.Parameter(np.array([[0, -87]] * 3, F32)), np.zeros(3, int)
    far = ag.Parameter(np.array([-80, 80], F32))
    with np.errstate(all="raise"):
        with ag.Tape() as tape:
            loss = tape.apply(ag.softmax_cross_entropy, x, labels)
        assert 0 < tape.gradient(loss, x)[0, 1] < 1e-38
        with ag.Tape() as tape:
            y = tape.apply(ag.sigmoid, far)
        assert tape.gradient(y, far, np.full(2, 1e-10, F32))[0] > 0


def test_no_underflow_is_an_error():
    """However NumPy is told to take it: it is part of the results."""
    x = np.array([[1000, -1000, 0]], F32)
    scale = np.full(3, 1e-40)
    with np.errstate(all="raise"):
        assert ag.sigmoid(x).tolist() == [[1, 0, 0.5]]
        assert ag.softmax_cross_entropy(x, np.array([0])) == 0
        y = nq.fake_quantize_per_channel_affine(x, scale, np.zeros(3, int), 1, -8, 7)
    assert_same(y, nq.fake_quantize_per_channel_affine(x, scale, np.zeros(3, int), 1, -8, 7))


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    call, error, words = REFUSED[case]
    with pytest.raises(error, match=words):
        call()


@pytest.mark.parametrize(
    ("returned", "error", "words"),
    [
        (None, TypeError, "backward must return a tuple or list of gradients, got None"),
        (np.ones(2), TypeError, "backward must return a tuple"),
        ((np.ones(2),), ValueError, "backward must return 2 gradients, got 1"),
        ((np.ones(2), None, None), ValueError, "backward must return 2 gradients, got 3"),
        ((np.ones(3), None), ValueError, r"gradient 0 of backward must have the shape \(2,\)"),
        ((np.ones(2, F32), None), TypeError, "gradient 0 of backward must have the dtype float64"),
        ((None, 1.0), TypeError, "gradient 1 of backward must be a NumPy array or None, got 1.0"),
        ((None, np.ones(())), ValueError, "gradient 1 of backward must have the shape"),
        ((np.ma.masked_array([1.0, 1.0]), None), TypeError, "gradient 0 of backward must be"),
    ],
)
def test_a_wrong_backward(returned, error, words):
    with ag.Tape() as tape:
        x, w, y = np.zeros(2), ag.Parameter(np.zeros((1, 2))), np.zeros(2)
        tape.watch(x)
        tape.record(y, [x, w], lambda grad: returned)
    with pytest.raises(error, match=words):
        tape.gradient(y, [x, w], np.ones(2))


def test_a_wrong_call_leaves_the_tape_usable():
    tape, x, y = with_result()
    for wrong in ((np.ones(3), x), (y, "x", np.ones(2)), (y, x, np.ones(3))):
        with pytest.raises((TypeError, ValueError)):
            tape.gradient(*wrong)
    with pytest.raises(ValueError, match="broadcast"):
        tape.apply(ag.mul, x, np.ones(3))
    assert_same(tape.gradient(y, x, np.ones(2)), 2 * x)


IMAGES, KERNELS = np.ones((2, 4, 5, 5)), np.ones((6, 4, 3, 3))
BAD = [
    ("linear", (np.ones(3), [1.0]), TypeError, "weight"),
    ("linear", ([1.0], np.ones((2, 1))), TypeError, "input"),
    ("linear", (np.ones((2, 3)), np.ones(3)), ValueError, "weight"),
    ("linear", (np.ones((2, 4)), np.ones((5, 3))), ValueError, "input"),
    ("linear", (np.ones(()), np.ones((5, 1))), ValueError, "input"),
    ("linear", (np.ones((2, 3)), np.ones((5, 3)), np.ones(3)), ValueError, "bias"),
    ("linear", (np.ones((2, 3)), np.ones((5, 3), F32)), TypeError, "weight"),
    ("linear", (np.ones((2, 3)), np.ones((5, 3)), np.ones(5, F32)), TypeError, "bias"),
    ("linear", (np.ones((2, 3)), ag.Parameter(np.ones((5, 3)))), TypeError, "weight"),
    ("matmul", (np.ones(3), np.ones((3, 2))), ValueError, "input"),
    ("matmul", (np.ones((2, 3)), np.ones(3)), ValueError, "other"),
    ("matmul", (np.ones((2, 3)), np.ones((2, 3))), ValueError, "other"),
    ("matmul", (np.ones((2, 2, 3)), np.ones((4, 3, 2))), ValueError, "input and other"),
    ("add", (1.0, 2.0), TypeError, "input"),
    ("add", (np.ones(2), "1"), TypeError, "other"),
    ("add", (np.ones(2), True), TypeError, "other"),
    ("add", (np.ones(2), 10**400), ValueError, "other"),
    ("mul", (10**400, np.ones(2)), ValueError, "input"),
    ("add", (np.ones(2), np.ones(2, F32)), TypeError, "input"),
    ("add", (np.ones(2, F32), np.float64(2)), TypeError, "input"),
    ("mul", (np.ones(2, F32), np.float64(2)), TypeError, "other must have the dtype of input"),
    ("mul", (np.ones(2), np.ones(3)), ValueError, "input and other"),
    ("mul", ([1], np.ones(3)), TypeError, "input"),
    ("relu", (1.0,), TypeError, "input"),
    ("sigmoid", (np.ones(2, int),), TypeError, "input"),
    ("conv2d", (np.ones((4, 5, 5)), KERNELS), ValueError, "input"),
    ("conv2d", (IMAGES, np.ones((6, 4, 3))), ValueError, "weight"),
    ("conv2d", (IMAGES, np.ones((6, 3, 3, 3))), ValueError, "weight"),
    ("conv2d", (IMAGES, np.ones((6, 4, 6, 3))), ValueError, "weight"),
    ("conv2d", (IMAGES, np.ones((6, 4, 0, 3))), ValueError, "weight"),
    ("conv2d", (IMAGES, KERNELS, np.ones(4)), ValueError, "bias"),
    ("conv2d", (IMAGES, KERNELS, None, 0), ValueError, "stride"),
    ("conv2d", (IMAGES, KERNELS, None, 1.5), TypeError, "stride"),
    ("conv2d", (IMAGES, KERNELS, None, 2**70), ValueError, "stride"),
    ("conv2d", (IMAGES, KERNELS, None, 1, 2**40), ValueError, "padding"),
    ("conv2d", (IMAGES, KERNELS[:0]), ValueError, "weight"),
    ("conv2d", (IMAGES, KERNELS, None, (1, 2, 3)), ValueError, "stride"),
    ("conv2d", (IMAGES, KERNELS, None, 1, -1), ValueError, "padding"),
    ("conv2d", (IMAGES, KERNELS, None, 1, 0, 0), ValueError, "groups"),
    ("conv2d", (IMAGES, KERNELS, None, 1, 0, 4), ValueError, "groups"),
    ("conv2d", (IMAGES, np.ones((3, 2, 3, 3)), None, 1, 0, 2), ValueError, "groups"),
    ("max_pool2d", (np.ones((5, 5)), 2), ValueError, "input"),
    ("max_pool2d", (np.ones((1, 1, 0, 3)), 2, None, 1), ValueError, "input"),
    ("max_pool2d", (IMAGES, 6), ValueError, "kernel_size"),
    ("max_pool2d", (IMAGES, 0), ValueError, "kernel_size"),
    ("max_pool2d", (IMAGES, 2, 0), ValueError, "stride"),
    ("max_pool2d", (IMAGES, 3, 1, 2), ValueError, "padding"),
    ("flatten", (np.ones(()),), ValueError, "start_dim"),
    ("flatten", (np.ones((2, 3)), 2), ValueError, "start_dim"),
    ("flatten", (np.ones((2, 3)), 1.0), TypeError, "start_dim"),
    *(
        ("reshape", (np.ones((2, 3)), wrong), ValueError, "shape")
        for wrong in (5, (2, 2), (-2, 3), (-1, -1), (-1, 4), (2, 2**70), (), (-1, 0))
    ),
    *(
        ("reshape", (np.ones(2), wrong), TypeError, "shape")
        for wrong in (None, "2", (1.0, 2), True)
    ),
    ("mse_loss", (np.ones(2), np.ones(3)), ValueError, "target"),
    ("mse_loss", (np.ones(2), np.ones(2, F32)), TypeError, "target"),
    ("mse_loss", (np.ones(0), np.ones(0)), ValueError, "input"),
    ("softmax_cross_entropy", (np.ones(3), np.array([0])), ValueError, "input"),
    ("softmax_cross_entropy", (np.ones((0, 3)), np.zeros(0, int)), ValueError, "input"),
    ("softmax_cross_entropy", (np.ones((2, 3)), np.array([0])), ValueError, "target"),
    (
        "softmax_cross_entropy",
        (np.ones((2, 3)), np.array([0, 3])),
        ValueError,
        "target must lie within 0..2, got 3 at index 1",
    ),
    (
        "softmax_cross_entropy",
        (np.ones((2, 3)), np.array([-1, 0])),
        ValueError,
        "target must lie within 0..2, got -1 at index 0",
    ),
    ("softmax_cross_entropy", (np.ones((2, 3)), np.ones(2)), TypeError, "target"),
    ("softmax_cross_entropy", (np.ones((2, 3)), [0, 1]), TypeError, "target"),
    ("softmax_cross_entropy", (np.ones((2, 3)), nq.ArraySpec((2,), int)), TypeError, "ArraySpec"),
    ("add", (np.ones((1,) * 32 + (4,)), np.ones((2, 3))), ValueError, "input and other"),
]


@pytest.mark.parametrize(("name", "args", "error", "argument"), BAD)
def test_bad_arguments(name, args, error, argument):
    """The same error by itself and on a tape where every array is watched."""
    args, kwargs = args[:5], {"groups": args[5]} if len(args) > 5 else {}
    with pytest.raises(error, match=rf"\b{argument}\b") as plain:
        getattr(ag, name)(*args, **kwargs)
    if any(isinstance(a, ag.Parameter) for a in args):
        return
    with ag.Tape() as tape:
        for a in args:
            if isinstance(a, np.ndarray) and a.dtype.kind == "f":
                tape.watch(a)
        with pytest.raises(error, match=re.escape(str(plain.value))):
            tape.apply(getattr(ag, name), *args, **kwargs)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_two_byte_floats_are_refused(name, dtype):
    found = [(step, arrays, kw) for step, arrays, kw in EXACT.values() if step.__name__ == name]
    step, arrays, kwargs = found[0] if found else (getattr(ag, name), [np.ones((2, 2))], {})
    if name == "softmax_cross_entropy":
        kwargs = {"target": np.zeros(2, int)}
    with pytest.raises(
        TypeError, match=rf"must have a dtype among float32, float64, got {np.dtype(dtype)}"
    ):
        step(*(a.astype(dtype) for a in arrays), **kwargs)


@pytest.mark.parametrize("name", ["add", "mul", "matmul"])
def test_what_is_no_array_is_named_on_a_tape_too(name):
    step, ragged = getattr(ag, name), [[1.0], [2.0, 3.0]]
    with ag.Tape() as tape, pytest.raises(TypeError, match="input must be a NumPy array") as traced:
        tape.apply(step, ragged, ag.Parameter(np.ones((2, 2))))
    with pytest.raises(TypeError) as alone:
        step(ragged, np.ones((2, 2)))
    assert str(traced.value) == str(alone.value)


def test_parameters_are_pickled():
    p = pickle.loads(pickle.dumps(ag.Parameter(np.ones(2, F32), "w")))
    assert_same(p.value, np.ones(2, F32))
    assert repr(p) == "Parameter(float32 of shape (2,), 'w')"


# --- the shape of the package ---------------------------------------------------------------------


def test_every_differentiable_op_has_a_rule():
    """The fake-quantize ops, whatever has a backward, and every function of the package."""
    named = {step.__name__: step for step in RULES}
    backward = {n.removesuffix("_backward") for n in nq.__all__ if n.endswith("_backward")}
    assert {*DIFFERENTIABLE, *backward, *FUNCTIONS} <= named.keys()
    public = {name: getattr(ag if name in FUNCTIONS else nq, name) for name in named}
    assert named == public


def test_inputs_of_a_rule_stand_where_it_says():
    for step, rule in RULES.items():
        names = list(inspect.signature(step).parameters)
        assert rule.inputs
        assert all(names[place] == name for place, name in rule.inputs), step.__name__


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, pickle.dumps], ids=["copy", "deepcopy", "pickle"]
)
def test_a_tape_is_not_copied(copied):
    """An array may come to lie where one was that it knew."""
    with pytest.raises(TypeError, match="a tape is not copied or pickled"):
        copied(ag.Tape())


@pytest.mark.parametrize(
    ("step", "of_numpy", "shape"),
    [(ag.add, np.add, (2, 1)), (ag.mul, np.multiply, (2, 1)), (ag.matmul, np.matmul, (1, 3))],
    ids=["add", "mul", "matmul"],
)
def test_more_axes_than_broadcast_shapes_knows(step, of_numpy, shape):
    a, b = np.full((1,) * 40, 2.0), np.full(shape, 3.0)
    with ag.Tape() as tape:
        tape.watch(a)
        tape.watch(b)
        y = tape.apply(step, a, b)
    np.testing.assert_array_equal(y, of_numpy(a, b), strict=True)
    grads = tape.gradient(y, [a, b], np.ones_like(y))
    assert [g.shape for g in grads] == [a.shape, b.shape]
    with pytest.raises(ValueError, match="must have shapes that broadcast"):
        step(np.ones((1,) * 37 + (2, 1, 1)), np.ones((3, 1, 1)))
