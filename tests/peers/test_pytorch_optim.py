"""SGD and Adam against torch.optim of PyTorch 2.13: equal bits, step after step."""

import numpy as np
import pytest
import torch

from cases import assert_same
from npquant.optim import SGD, Adam

torch.set_num_threads(1)

N = 1003  # whole vectors and a tail
STEPS = 20


def run(make, make_torch, dtype):
    """Some steps of both on the same data; what was left out is left out of both."""
    rng = np.random.default_rng(0)
    values = [rng.normal(0, 1, N).astype(dtype), rng.normal(0, 1e-3, (7, 5)).astype(dtype)]
    tensors = [torch.from_numpy(v.copy()).requires_grad_() for v in values]
    ours, theirs = make(values), make_torch(tensors)
    for t in range(STEPS):
        gradients = [(rng.normal(0, 10.0 ** (t % 5 - 2), v.shape)).astype(dtype) for v in values]
        gradients[0][::50] = 0
        given = [gradients[0], None if t % 3 == 1 else gradients[1]]
        for tensor, g in zip(tensors, given, strict=True):
            tensor.grad = None if g is None else torch.from_numpy(g)
        ours.step(given)
        theirs.step()
        yield ours, theirs, values, [tensor.detach().numpy() for tensor in tensors]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("momentum", [0, 0.9])
@pytest.mark.parametrize("decay", [0, 0.01])
def test_sgd(momentum, decay, dtype):
    options = {"lr": 0.1, "momentum": momentum, "weight_decay": decay}
    runs = run(
        lambda p: SGD(p, **options), lambda p: torch.optim.SGD(p, **options, foreach=False), dtype
    )
    for ours, theirs, values, tensors in runs:
        assert_same(tuple(values), tuple(tensors))
        mine, state = ours.state_dict()["state"], theirs.state_dict()["state"]
        for i in mine:
            assert_same(mine[i]["momentum_buffer"], state[i]["momentum_buffer"].numpy())
        assert len(mine) == 2 * bool(momentum)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("decay", ["none", "decay", "decoupled"])
@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.3, 0.9), (0.0, 0.0)])
def test_adam(betas, decay, dtype):
    options = {"lr": 0.01, "betas": betas}
    if decay != "none":
        options |= {"weight_decay": 0.3, "decoupled_weight_decay": decay == "decoupled"}
    runs = run(
        lambda p: Adam(p, **options), lambda p: torch.optim.Adam(p, **options, foreach=False), dtype
    )
    for t, (ours, theirs, values, tensors) in enumerate(runs):
        mine, state = ours.state_dict()["state"], theirs.state_dict()["state"]
        for i in mine:
            assert mine[i]["step"] == int(state[i]["step"])
            for name in ("exp_avg", "exp_avg_sq"):
                assert_same(mine[i][name], state[i][name].numpy(), (t, name))
        eps = np.finfo(dtype).eps
        for value, tensor in zip(values, tensors, strict=True):
            # PyTorch's root may be an ulp off, eps at most; the two quotients, the product and the
            # sum after it are rounded to eps / 2 each, here as there. So of a step of at most
            # 2 * lr / (1 - beta1) there may be 5 * eps, and eps of the value, in every step; and
            # eps of the value more where its product with what is kept is rounded.
            step, rounded = 2 * options["lr"] / (1 - betas[0]), 1 + (decay == "decoupled")
            steps = 1 if decay == "decay" else t + 1
            np.testing.assert_allclose(
                value, tensor, rtol=steps * rounded * eps, atol=steps * 5 * eps * step
            )
            if decay == "decay":  # the next gradient is made of it, and then the means
                value[...] = tensor


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("decoupled", [None, False, True])
def test_the_root_is_all_that_differs(decoupled, dtype):
    """Where PyTorch's root is the nearest one, parameters have the same bits.

    How many are not depends on the processor: with AVX-512 a sixth of float32.
    """
    rng = np.random.default_rng(1)
    g, value = rng.normal(size=(2, N)).astype(dtype)
    options = (
        {} if decoupled is None else {"weight_decay": 0.3, "decoupled_weight_decay": decoupled}
    )
    tensor = torch.from_numpy(value.copy())
    tensor.requires_grad_().grad = torch.from_numpy(g)
    adam, theirs = Adam([value], **options), torch.optim.Adam([tensor], foreach=False, **options)
    adam.step([g])
    theirs.step()
    square = theirs.state_dict()["state"][0]["exp_avg_sq"]
    exact = np.sqrt(square.numpy()) == square.sqrt().numpy()
    assert exact.sum() > N // 2
    assert_same(value[exact], tensor.detach().numpy()[exact])
