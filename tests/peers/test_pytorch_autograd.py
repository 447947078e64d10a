"""Every step of the tape, and a small network, against PyTorch's autograd.

Small integers, and integers over powers of two, go through all of these without a rounding, in
whatever order they are added: there all bits are equal. Real numbers are held to bounds.
"""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.ao.quantization.fx._decomposed  # registers the operators
import torch.nn.functional as F

import npquant as nq
import npquant.autograd as ag
from cases import assert_same
from npquant.autograd.rules import RULES

torch.set_num_threads(1)

F32, F64 = np.dtype(np.float32), np.dtype(np.float64)
decomposed = torch.ops.quantized_decomposed


def ours(step, arrays, grad, kwargs):
    with ag.Tape() as tape:
        for a in arrays:
            tape.watch(a)
        y = tape.apply(step, *arrays, **kwargs)
    return y, *tape.gradient(y, arrays, grad)


def theirs(step, arrays, grad, kwargs):
    tensors = [torch.from_numpy(a.copy()).requires_grad_() for a in arrays]
    y = step(*tensors, **kwargs)
    y.backward(torch.from_numpy(grad.copy()))
    # ascontiguousarray would give 0-d results an axis
    return tuple(np.array(t.detach().numpy(), order="C") for t in (y, *(t.grad for t in tensors)))


SHAPES = {
    "linear": (ag.linear, F.linear, [(4, 3), (5, 3), (5,)], {}),
    "linear, more axes": (ag.linear, F.linear, [(2, 4, 3), (5, 3)], {}),
    "matmul": (ag.matmul, torch.matmul, [(2, 1, 4, 3), (5, 3, 2)], {}),
    "add": (ag.add, torch.add, [(2, 1, 3), (4, 1)], {}),
    "mul": (ag.mul, torch.mul, [(2, 1, 3), (4, 3)], {}),
    "relu": (ag.relu, F.relu, [(5, 7)], {}),
    "conv2d": (ag.conv2d, F.conv2d, [(2, 3, 6, 7), (4, 3, 3, 2), (4,)], {}),
    "conv2d, stride": (
        ag.conv2d,
        F.conv2d,
        [(2, 6, 7, 6), (4, 3, 3, 2), (4,)],
        {"stride": (2, 3), "padding": (1, 2), "groups": 2},
    ),
    "conv2d, depthwise": (ag.conv2d, F.conv2d, [(2, 3, 6, 6), (3, 1, 3, 3)], {"groups": 3}),
    "max_pool2d": (ag.max_pool2d, F.max_pool2d, [(2, 3, 6, 6)], {"kernel_size": 2}),
    "max_pool2d, overlapping": (
        ag.max_pool2d,
        F.max_pool2d,
        [(2, 3, 7, 6)],
        {"kernel_size": (3, 2), "stride": (2, 1), "padding": (1, 1)},
    ),
    "flatten": (ag.flatten, torch.flatten, [(2, 3, 4)], {"start_dim": 1}),
    "reshape": (ag.reshape, torch.reshape, [(2, 3, 4)], {"shape": (-1, 8)}),
    "mse_loss": (ag.mse_loss, F.mse_loss, [(4, 8), (4, 8)], {}),
}


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
@pytest.mark.parametrize("case", SHAPES)
def test_integers_to_the_bit(case, dtype):
    """Ties among them: the gradients of relu at 0 and of equal values in a window agree too."""
    step, peer, shapes, kwargs = SHAPES[case]
    rng = np.random.default_rng(0)
    arrays = [rng.integers(-3, 4, shape).astype(dtype) for shape in shapes]
    shape = step(*arrays, **kwargs).shape
    grad = rng.integers(-3, 4, shape).astype(dtype)
    # x + 0 drops the sign of a zero, which sums in another order may give
    got, expected = (
        tuple(a + 0 for a in both(f, arrays, grad, kwargs))
        for both, f in ((ours, step), (theirs, peer))
    )
    assert_same(tuple(map(np.asarray, got)), tuple(map(np.asarray, expected)))


#: What rounds at most once, or the same way, in both.
ONCE = ("add", "mul", "relu", "max_pool2d", "flatten", "reshape")


@pytest.mark.parametrize("case", ONCE)
def test_single_operations_to_the_bit(case):
    step, peer, shapes, kwargs = SHAPES[case]
    shapes = [shapes[0]] * len(shapes)  # nothing is broadcast, and so nothing added
    rng = np.random.default_rng(1)
    arrays = [rng.normal(size=shape).astype(F32) for shape in shapes]
    grad = rng.normal(size=step(*arrays, **kwargs).shape).astype(F32)
    assert_same(ours(step, arrays, grad, kwargs), theirs(peer, arrays, grad, kwargs))


def test_specials_of_single_operations_to_the_bit():
    x = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-45, -1e-45, 3e38], F32)
    grad = np.array([1, np.inf, np.nan, -0.0, np.nan, -1, np.inf, 2], F32)
    _, ours_grad = ours(ag.relu, [x], grad, {})
    assert_same(ours_grad, theirs(F.relu, [x], grad, {})[1])
    image, grad = x.reshape(1, 1, 2, 4), grad[:3].reshape(1, 1, 1, 3)
    kwargs = {"kernel_size": 2, "stride": 1}
    assert_same(ours(ag.max_pool2d, [image], grad, kwargs)[0],
                theirs(F.max_pool2d, [image], grad, kwargs)[0])  # fmt: skip


@pytest.mark.parametrize("case", [case for case in SHAPES if case.split(",")[0] not in ONCE[2:]])
def test_real_numbers_within_the_bound_of_their_sums(case):
    """A sum of n terms, each a product of at most three numbers, in any order, is off by at most
    (n + 2) u times the sum of their magnitudes, in each of the two. Magnitudes: the same step on
    absolute values, in float64. n: no sum here has more terms than the largest array times two.
    """
    step, peer, shapes, kwargs = SHAPES[case]
    rng = np.random.default_rng(2)
    arrays = [rng.normal(size=shape).astype(F32) for shape in shapes]
    grad = rng.normal(size=step(*arrays, **kwargs).shape).astype(F32)
    magnitudes = [abs(a).astype(F64) for a in arrays]
    if step is ag.mse_loss:
        magnitudes[1] *= -1  # a difference
    sizes = ours(step, magnitudes, abs(grad).astype(F64), kwargs)
    n = 2 * max(a.size for a in arrays)
    got, expected = ours(step, arrays, grad, kwargs), theirs(peer, arrays, grad, kwargs)
    for a, b, size in zip(got, expected, sizes, strict=True):
        assert a.dtype == b.dtype == F32
        assert (abs(a.astype(F64) - b) <= 2 * (n + 2) * 2.0**-24 * abs(size)).all()


@pytest.mark.parametrize("target", ["float32", "float64"])
@pytest.mark.parametrize("source", ["float32", "float64"])
def test_conversion_to_the_bit(source, target):
    """`Tensor.to`, whose gradient is converted back."""
    rng = np.random.default_rng(0)
    x = (rng.normal(size=999) * 2.0 ** rng.integers(-140, 120, 999)).astype(source)
    grad = (rng.normal(size=999) * 2.0 ** rng.integers(-140, 120, 999)).astype(target)
    got = ours(nq.convert_element_type, [x], grad, {"dtype": target})
    expected = theirs(lambda t: t.to(getattr(torch, target)), [x], grad, {})
    assert_same(tuple(got), expected)


def test_sigmoid():
    """NumPy's exp is off by up to 2.52 units in the last place, PyTorch's by 1; addition and
    division, and in PyTorch a negation, follow: together below 8 units of 2**-23, relative. Of the
    gradient, y * (1 - y): |1 - 2 y| times that, and three roundings in each.
    """
    x = np.linspace(-80, 80, 1001).astype(F32)
    grad = np.random.default_rng(0).normal(size=x.shape).astype(F32)
    got, expected = ours(ag.sigmoid, [x], grad, {}), theirs(torch.sigmoid, [x], grad, {})
    assert (abs(got[0] - expected[0]) <= 8 * 2.0**-23 * expected[0]).all()
    assert (abs(got[1] - expected[1]) <= (8 + 3) * 2.0**-23 * abs(grad) * expected[0]).all()


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_softmax_cross_entropy(dtype):
    """In units of u = eps / 2, with R the distance to the greatest of a row: the differences are
    off by R, so the exponentials by R + 5 relative, their sum by C more, its logarithm L by 1 + L,
    and the last difference by R + L; L is at most R + log(C). The same in each of the two; the
    mean adds N. The gradient is an exponential of this, with 8 more.
    """
    rng = np.random.default_rng(0)
    z = rng.normal(0, 5, (16, 10)).astype(dtype)
    labels = rng.integers(0, 10, 16)
    grad = np.array(1.5, dtype)
    with ag.Tape() as tape:
        tape.watch(z)
        y = tape.apply(ag.softmax_cross_entropy, z, labels)
    got = y, tape.gradient(y, z, grad)
    expected = theirs(lambda t: F.cross_entropy(t, torch.from_numpy(labels)), [z], grad, {})
    reach, log_c, u = np.ptp(z), math.log(10), np.finfo(dtype).eps / 2
    off = 2 * (4 * reach + 2 * log_c + 10 + 6) * u
    assert abs(got[0] - expected[0]) <= off + 2 * 16 * u * expected[0]
    assert (abs(got[1] - expected[1]) <= (off + 2 * 8 * u) * 1.5 / 16).all()


# --- fake quantize --------------------------------------------------------------------------------

SCALES, ZEROS = np.array([0.25, 0.1, 0.4], F32), np.array([0, -2, 3], np.int32)
ONE, ZERO = np.array([0.3], F32), np.array([-2], np.int32)


def on_both_sides():
    return np.random.default_rng(0).normal(0, 2, (3, 40)).astype(F32)


def tensors(args):
    return [torch.from_numpy(a) if isinstance(a, np.ndarray) else a for a in args]


STRAIGHT = {
    "fake_quantize_per_tensor_affine": (torch.fake_quantize_per_tensor_affine, (0.3, -2, -8, 7)),
    "fake_quantize_per_tensor_affine_cachemask": (
        torch.fake_quantize_per_tensor_affine,
        (0.3, -2, -8, 7),
    ),
    "fake_quantize_per_tensor_affine_cachemask_tensor_qparams": (
        lambda x, s, z, on, lo, hi: torch.fake_quantize_per_tensor_affine(x, s, z, lo, hi),
        (ONE, ZERO, np.array([1]), -8, 7),
    ),
    "fake_quantize_per_channel_affine": (
        torch.fake_quantize_per_channel_affine,
        (SCALES, ZEROS, 0, -8, 7),
    ),
    "fake_quantize_per_channel_affine_cachemask": (
        torch.fake_quantize_per_channel_affine,
        (SCALES, ZEROS, 0, -8, 7),
    ),
    "fake_quant_per_channel": (decomposed.fake_quant_per_channel, (SCALES, ZEROS, 0, -8, 7)),
    "fake_quant_per_channel_cachemask": (
        decomposed.fake_quant_per_channel,
        (SCALES, ZEROS, 0, -8, 7),
    ),
}


def first(result):
    return result[0] if isinstance(result, tuple) else result


@pytest.mark.parametrize("name", STRAIGHT)
def test_straight_through(name):
    peer, args = STRAIGHT[name]
    x = on_both_sides()
    grad = np.random.default_rng(1).normal(size=x.shape).astype(F32)
    with ag.Tape() as tape:
        tape.watch(x)
        y = first(tape.apply(getattr(nq, name), x, *args))
    expected = theirs(lambda t: peer(t, *tensors(args)), [x], grad, {})
    assert_same((y, tape.gradient(y, x, grad)), expected)
    assert 0 < np.count_nonzero(expected[1]) < x.size


@pytest.mark.parametrize("per_row", [False, True])
@pytest.mark.parametrize(
    "name", ["fused_moving_avg_obs_fake_quant", "fused_moving_avg_obs_fake_quant_cachemask"]
)
def test_fused(name, per_row):
    """The second of two calls, whose moving range is narrower than its data."""
    x = on_both_sides()
    grad = np.random.default_rng(1).normal(size=x.shape).astype(F32)
    n = 3 if per_row else 1
    state = (
        np.full(n, np.inf, F32),
        np.full(n, -np.inf, F32),
        np.ones(n, F32),
        np.zeros(n, np.int32),
    )
    before = np.array([1]), np.array([1]), *state
    after = 0.01, -8, 7, 0, per_row, True
    copies = tensors([a.copy() for a in before])

    op, peer = getattr(nq, name), torch.fused_moving_avg_obs_fake_quant
    op(x / 4, *before, *after)
    peer(torch.from_numpy(x / 4), *copies, *after)
    with ag.Tape() as tape:
        tape.watch(x)
        y = first(tape.apply(op, x, *before, *after))
    expected = theirs(lambda t: peer(t, *copies, *after), [x], grad, {})
    assert_same((y, tape.gradient(y, x, grad)), expected)
    assert 0 < np.count_nonzero(expected[1]) < x.size
    assert_same(state, tuple(t.numpy() for t in copies[2:]))


LEARNABLE = {
    "per_tensor": (ONE, np.array([-2.6], F32), ()),
    "per_channel": (SCALES, np.array([0.2, -2.4, 3.0], F32), (0,)),
}


@pytest.mark.parametrize("kind", LEARNABLE)
def test_learnable(kind):
    """Results and gradients of the input to the bit. Sums: PyTorch adds in float32, which measured
    at most 1e-7 of the sum of the magnitudes off; docs/numerics.md allows for 2e-6 of it.
    """
    scale, zero_point, axis = LEARNABLE[kind]
    name = f"fake_quantize_learnable_{kind}_affine"
    peer = getattr(torch, f"_{name}")
    x = on_both_sides()
    grad = np.random.default_rng(1).normal(size=x.shape).astype(F32)
    args = *axis, -8, 7, 0.5
    arrays = [x, scale, zero_point]
    with ag.Tape() as tape:
        for a in arrays:
            tape.watch(a)
        y = tape.apply(getattr(nq, name), x, scale, zero_point, *args)
    got = y, *tape.gradient(y, arrays, grad)
    expected = theirs(lambda *t: peer(*t, *args), arrays, grad, {})
    assert_same(got[:2], expected[:2])
    # A term is at most the gradient times half the range of codes and more, or times the scale.
    magnitudes = abs(grad).sum() * np.array([16, scale.max()]) * 0.5
    for a, b, size in zip(got[2:], expected[2:], magnitudes, strict=True):
        assert a.shape == b.shape
        assert (abs(a - b) <= 2e-6 * size).all()
        assert (b != 0).all()


def test_every_step_has_its_peer():
    """But what PyTorch does not have: scales per token and per group, and AdaRound.

    The formulas of AdaRound are beside PyTorch's autograd in test_pytorch_adaround.py.
    """
    found = {step.__name__ for step, *_ in SHAPES.values()} | set(STRAIGHT)
    found |= {"convert_element_type", "sigmoid", "softmax_cross_entropy"}
    found |= {f"fake_quantize_learnable_{kind}_affine" for kind in LEARNABLE}
    found |= {f"fused_moving_avg_obs_fake_quant{end}" for end in ("", "_cachemask")}
    without = {
        f"fake_quantize_learnable_{kind}_affine" for kind in ("per_token", "per_channel_group")
    }
    without |= {"adaround_soft", "adaround_regularizer"}
    assert {step.__name__ for step in RULES} == found | without


# --- a network ------------------------------------------------------------------------------------

OURS = SimpleNamespace(
    per_channel=nq.fake_quantize_per_channel_affine,
    per_tensor=nq.fake_quantize_per_tensor_affine,
    learnable=nq.fake_quantize_learnable_per_tensor_affine,
    **{name: getattr(ag, name) for name in ag.__all__},
)
THEIRS = SimpleNamespace(
    per_channel=torch.fake_quantize_per_channel_affine,
    per_tensor=torch.fake_quantize_per_tensor_affine,
    learnable=torch._fake_quantize_learnable_per_tensor_affine,
    conv2d=F.conv2d,
    max_pool2d=F.max_pool2d,
    relu=F.relu,
    mul=torch.mul,
    add=torch.add,
    matmul=torch.matmul,
    flatten=torch.flatten,
    linear=F.linear,
    mse_loss=F.mse_loss,
)


def network(f, apply, x, k, b, w, bias, scale, zero_point, m, scales, zeros, target):
    """Convolution with weights quantized per channel, learned activations, a layer, and a loss."""
    k = apply(f.per_channel, k, scales, zeros, 0, -8, 7)
    h = apply(f.max_pool2d, apply(f.relu, apply(f.conv2d, x, k, b, padding=1)), 2)
    h = apply(f.learnable, h, scale, zero_point, 0, 15, 0.5)
    h = apply(f.mul, apply(f.flatten, h, 1), 0.5)
    y = apply(f.linear, h, apply(f.per_tensor, w, 0.25, 0, -8, 7), bias)
    return apply(f.mse_loss, apply(f.add, y, apply(f.matmul, h, m)), target)


def test_a_network_to_the_bit():
    """Quarters and eighths: nothing is rounded but by fake quantize, and so to equal codes."""
    rng = np.random.default_rng(0)

    def eighths(*shape):
        return (rng.integers(-16, 17, shape) / 8).astype(F32)

    arrays = {
        "x": eighths(4, 2, 4, 4),
        "k": eighths(2, 2, 3, 3),
        "b": eighths(2),
        "w": eighths(4, 8),
        "bias": eighths(4),
        "scale": np.array([0.5], F32),
        "zero_point": np.array([3.0], F32),
        "m": eighths(8, 4),
    }
    fixed = np.array([0.25, 0.5], F32), np.array([0, 1], np.int32), eighths(4, 4)

    with ag.Tape() as tape:
        for a in arrays.values():
            tape.watch(a)
        loss = network(OURS, tape.apply, *arrays.values(), *fixed)
    got = loss, *tape.gradient(loss, list(arrays.values()))

    def plainly(f, *args, **kwargs):
        return f(*args, **kwargs)

    def peer(*given):
        return network(THEIRS, plainly, *given, *tensors(fixed))

    expected = theirs(peer, list(arrays.values()), np.ones((), F32), {})
    for name, a, b in zip(("loss", *arrays), got, expected, strict=True):
        assert np.count_nonzero(b), name
        assert_same(a + 0, b + 0, name)
