"""A step of learning the rounding: npquant beside PyTorch's autograd and Adam, in turns.

    python asv_benchmarks/adaround.py

Soft weights, the gradient of V, the update by Adam; then the same with the regularizer. One thread
each, medians of steps that alternate, so that a busy machine hurts both alike.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numba
import numpy as np
import torch

import npquant as nq
from npquant.optim import Adam

SIZE, ROUNDS = 1 << 20, 25
SCALE, BOUNDS, BETA, WEIGHT = 0.1, (-8, 7), 5.0, 0.001


def ours(x: np.ndarray, grad: np.ndarray, regularized: bool) -> Callable[[], None]:
    value = nq.adaround_init(x, SCALE)
    soft, gradient, extra = np.empty_like(x), np.empty_like(x), np.empty_like(x)
    adam = Adam([value])

    def step() -> None:
        nq.adaround_soft(x, value, SCALE, 0, *BOUNDS, out=soft)
        nq.adaround_soft_backward(grad, x, value, SCALE, 0, *BOUNDS, out=gradient)
        if regularized:
            nq.adaround_regularizer(value, BETA)
            nq.adaround_regularizer_backward(value, BETA, WEIGHT, out=extra)
            np.add(gradient, extra, out=gradient)
        adam.step([gradient])

    return step


def theirs(x: np.ndarray, grad: np.ndarray, regularized: bool) -> Callable[[], None]:
    value = torch.from_numpy(nq.adaround_init(x, SCALE)).requires_grad_()
    weight, upstream = torch.from_numpy(x), torch.from_numpy(grad)
    adam = torch.optim.Adam([value])

    def step() -> None:
        adam.zero_grad()
        h = torch.clamp(torch.sigmoid(value) * 1.2 - 0.1, 0, 1)
        torch.clamp(torch.floor(weight / SCALE) + h, *BOUNDS).mul(SCALE).backward(upstream)
        if regularized:
            h = torch.clamp(torch.sigmoid(value) * 1.2 - 0.1, 0, 1)
            (WEIGHT * torch.sum(1 - torch.abs(2 * h - 1).pow(BETA))).backward()
        adam.step()

    return step


def main() -> None:
    torch.set_num_threads(1)
    numba.set_num_threads(1)
    rng = np.random.default_rng(0)
    x, grad = (rng.normal(0, 0.3, SIZE).astype(np.float32) for _ in range(2))
    for regularized in (False, True):
        steps = {f.__name__: f(x, grad, regularized) for f in (ours, theirs)}
        times: dict[str, list[float]] = {name: [] for name in steps}
        for turn in range(ROUNDS + 2):
            for name, step in steps.items():
                start = time.perf_counter()
                step()
                if turn >= 2:  # compiled, and its state allocated
                    times[name].append(time.perf_counter() - start)
        mine, other = (statistics.median(t) * 1e6 for t in times.values())
        what = "soft, backward, Adam" + ", regularizer" * regularized
        print(f"{what}: npquant {mine:,.0f} us, PyTorch {other:,.0f} us, {other / mine:.1f} x")


if __name__ == "__main__":
    main()
