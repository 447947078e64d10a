"""AdaRound against the formulas of PyTorch's experimental AdaroundFakeQuantizer and its loss.

No wheel of PyTorch contains them, so they are written out here, in tensor operations, and autograd
gives their gradients.
"""

import math

import numpy as np
import pytest
import torch

import npquant as nq
from cases import assert_same
from npquant.adaround import AdaroundLoss

torch.set_num_threads(1)

F32, F64 = np.float32, np.float64
ZETA, GAMMA = torch.tensor(1.1), torch.tensor(-0.1)
BOUNDS = (-8, 7)
#: Where h begins to be cut off, an ulp of the sigmoid decides whether there is a gradient.
EDGE = math.log(11)


def rectified(v):
    return torch.clamp(torch.sigmoid(v) * (ZETA - GAMMA) + GAMMA, 0, 1)


def soft(x, v, scale, zero_point):
    q = torch.clamp(torch.floor(x / scale) + zero_point + rectified(v), *BOUNDS)
    return (q - zero_point) * scale


def hard(x, v, scale, zero_point):
    q = torch.clamp(torch.floor(x / scale) + zero_point + (v >= 0).int(), *BOUNDS)
    return (q - zero_point) * scale


def initial(x, scale):
    t = x / scale
    return -torch.log((ZETA - GAMMA) / (t - torch.floor(t) - GAMMA) - 1)


def weights(dtype, axis):
    """Weights of which a tenth is beyond the codes, V of which a third is cut off, and qparams."""
    rng = np.random.default_rng(0)
    x = rng.normal(0, 2, (64, 83)).astype(dtype)
    v = rng.normal(0, 2, x.shape).astype(dtype)
    v[np.abs(np.abs(v) - EDGE) < 1e-4] = 0
    count = 1 if axis is None else x.shape[axis]
    scale = rng.uniform(0.3, 0.5, count).astype(dtype)
    zero_point = rng.integers(-3, 4, count).astype(np.int32)
    return x, v, scale, zero_point


def along(p, axis):
    shape = {None: (1,), 0: (-1, 1), 1: (1, -1)}[axis]
    return torch.from_numpy(p).reshape(shape)


by_dtype = pytest.mark.parametrize("dtype", [F32, F64])
by_axis = pytest.mark.parametrize("axis", [None, 0, 1])


@by_dtype
@by_axis
def test_hard(axis, dtype):
    """Equal bits: only the sigmoid is PyTorch's own."""
    x, v, scale, zero_point = weights(dtype, axis)
    args = torch.from_numpy(x), torch.from_numpy(v), along(scale, axis), along(zero_point, axis)
    actual = nq.adaround_hard(x, v, scale, zero_point, *BOUNDS, axis=axis)
    assert_same(actual, hard(*args).numpy())


@by_dtype
@by_axis
def test_soft_and_its_gradient(axis, dtype):
    x, v, scale, zero_point = weights(dtype, axis)
    grad = np.random.default_rng(1).normal(size=x.shape).astype(dtype)
    tensor = torch.from_numpy(v).requires_grad_()
    args = along(scale, axis), along(zero_point, axis)
    expected = soft(torch.from_numpy(x), tensor, *args)
    expected.backward(torch.from_numpy(grad))
    qparams = scale, zero_point, *BOUNDS
    eps = np.finfo(dtype).eps
    # h differs by the ulps of both sigmoids, 2 and 3 (of at most eps / 2 each, times 1.2), and a
    # rounding: 4 eps. The sum with a floor below 16 and what follows round to 8 eps each, twice.
    actual = nq.adaround_soft(x, v, *qparams, axis=axis)
    np.testing.assert_allclose(actual, expected.detach(), rtol=2 * eps, atol=0.5 * (4 + 32) * eps)
    # As in test_adaround.py; PyTorch's sigmoid has an error of its own.
    gradient = nq.adaround_soft_backward(grad, x, v, *qparams, axis=axis)
    np.testing.assert_array_equal(gradient == 0, tensor.grad.numpy() == 0)
    np.testing.assert_allclose(gradient, tensor.grad, rtol=(5 + 12 * 5 + 10) * eps, atol=0)


@by_dtype
@by_axis
def test_init(axis, dtype):
    x, _, scale, _ = weights(dtype, axis)
    expected = initial(torch.from_numpy(x), along(scale, axis))
    actual = torch.from_numpy(nq.adaround_init(x, scale, axis=axis))
    eps = np.finfo(dtype).eps
    if dtype == F64:
        # 3 ulp and PyTorch's own one, of at most 2 eps each.
        np.testing.assert_allclose(actual, expected, rtol=0, atol=8 * eps)
        return
    # In float32 PyTorch takes 1 from a rounded quotient, of which 1/11 may be left. The same of a
    # fraction in float64 tells whose error it is.
    t = torch.from_numpy(x) / along(scale, axis)
    exact = -torch.log(1.2 / ((t - torch.floor(t)).double() + 0.1) - 1)
    error, of_pytorch = (float((v.double() - exact).abs().max()) for v in (actual, expected))
    assert error <= 8 * eps
    assert error < of_pytorch < 16 * eps


def regularizer(v, step, max_iter, reg_param=0.001):
    """PyTorch's AdaptiveRoundingLoss with its defaults, without the reconstruction."""
    warm, (start, end) = 0.2 * max_iter, (20, 2)
    if step < warm:
        return torch.tensor(0.0)
    share = (step - warm) / (max_iter - warm)
    beta = end + 0.5 * (start - end) * (1 + np.cos(share * np.pi))
    h = torch.clamp(torch.sigmoid(v) * (1.1 - -0.1) + -0.1, 0, 1)
    return reg_param * torch.sum(1 - torch.pow(torch.abs(2 * h - 1), beta))


@pytest.mark.parametrize("step", [0, 1999, 2000, 5000, 8000, 9999])
def test_loss(step):
    """Values within rtol 1e-6, as promised; gradients within what the bounds of both allow."""
    v = np.random.default_rng(0).normal(0, 2, 20_000).astype(F32)
    v[np.abs(np.abs(v) - EDGE) < 1e-4] = 0
    tensor = torch.from_numpy(v).requires_grad_()
    expected = regularizer(tensor, step, 10_000)
    loss = AdaroundLoss(10_000)
    assert loss.regularizer(step, v) == pytest.approx(expected.item(), rel=1e-6, abs=0)
    gradient = loss.regularizer_backward(step, v)
    if step < 2000:
        assert not gradient.any()
        return
    expected.backward()
    # As in test_adaround.py, twice: here and there.
    beta = loss.beta(step)
    bound = 2 * 0.001 * 0.6 * beta * (4 + 6 * beta + 40) * np.finfo(F32).eps
    np.testing.assert_allclose(gradient, tensor.grad, rtol=0, atol=bound)
    exact = torch.from_numpy(v.astype(F64)).requires_grad_()
    regularizer(exact, step, 10_000).backward()
    np.testing.assert_allclose(gradient, exact.grad, rtol=0, atol=bound)


@pytest.mark.parametrize("weight", [0.25, -0.25])
@pytest.mark.parametrize("beta", [1.0, 2.0, 3.7, 20.0])
def test_the_sign_of_a_gradient_that_is_zero(beta, weight):
    """Autograd of the formula as it stands: in the middle -0.0 times the weight, else 0.0."""
    v = np.array([0.0, -0.0, 30, -30, 1e30, -np.inf], F32)
    tensor = torch.from_numpy(v).requires_grad_()
    h = rectified(tensor)
    (weight * torch.sum(1 - torch.abs(2 * h - 1) ** beta)).backward()
    gradient = nq.adaround_regularizer_backward(v, beta, weight)
    assert not gradient.any()
    assert not tensor.grad.any()
    assert np.signbit(gradient).tolist() == torch.signbit(tensor.grad).tolist()
    assert np.signbit(gradient).tolist() == [*[weight > 0] * 2, *[False] * 4]


def test_reconstruction():
    rng = np.random.default_rng(0)
    output, target = (rng.normal(size=(50, 30)).astype(F32) for _ in range(2))
    tensor = torch.from_numpy(output).requires_grad_()
    expected = torch.nn.functional.mse_loss(tensor, torch.from_numpy(target))
    expected.backward()
    loss = AdaroundLoss(10)
    # PyTorch adds 1,500 squares in float32.
    assert loss.reconstruction(output, target) == pytest.approx(expected.item(), rel=1500 * 2**-24)
    gradient = loss.reconstruction_backward(output, target)
    np.testing.assert_allclose(gradient, tensor.grad, rtol=3 * 2.0**-24, atol=0)


def test_learning_ends_where_pytorchs_does():
    """300 steps of soft rounding, its gradient, the regularizer and Adam, in both: the same codes.

    A step is at most the learning rate; where V ends near 0, an ulp may decide. None may be there.
    """
    from npquant.optim import Adam

    rng = np.random.default_rng(0)
    x = rng.normal(0, 1, (6, 20)).astype(F32)
    inputs = (rng.normal(size=(100, 20)) @ rng.normal(size=(20, 20))).astype(F32)
    scale = np.float32(0.4)
    value = nq.adaround_init(x, scale)
    tensor = torch.from_numpy(value.copy()).requires_grad_()
    steps, loss = 300, AdaroundLoss(300, reg_param=0.01)
    ours, theirs = Adam([value], lr=0.02), torch.optim.Adam([tensor], lr=0.02, foreach=False)
    for step in range(steps):
        error = inputs @ (nq.adaround_soft(x, value, scale, 0, *BOUNDS) - x).T
        grad = (2 / error.size * error.T @ inputs).astype(F32)
        gradient = nq.adaround_soft_backward(grad, x, value, scale, 0, *BOUNDS)
        ours.step([gradient + loss.regularizer_backward(step, value)])
        theirs.zero_grad()
        weight = soft(torch.from_numpy(x), tensor, torch.tensor(scale), 0)
        error = torch.from_numpy(inputs) @ (weight - torch.from_numpy(x)).T
        (torch.mean(error**2) + regularizer(tensor, step, steps, reg_param=0.01)).backward()
        theirs.step()
    near = nq.adaround_init(x, scale)
    decided = np.abs(value) > 0.1
    assert decided.mean() > 0.9
    codes = nq.adaround_codes(x, value, scale, 0, *BOUNDS, np.int8)
    other = nq.adaround_codes(x, tensor.detach().numpy(), scale, 0, *BOUNDS, np.int8)
    np.testing.assert_array_equal(codes[decided], other[decided])
    assert (codes != nq.adaround_codes(x, near, scale, 0, *BOUNDS, np.int8)).any(), "it has learned"
