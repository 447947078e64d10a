"""Work of more than one op, as training and calibration do it: ours, and PyTorch's beside it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import npquant as nq
from npquant.modules import observers
from npquant.optim import SGD, Adam

from .cases import LARGE, Call, Case, Inputs

SCALE, BOUNDS = 0.1, (-8, 7)


@dataclass(frozen=True)
class Work(Case):
    """A cell of the matrix that is no call of an op; `op` is a name in WORK."""

    @property
    def goal(self) -> None:
        return None

    def call(self, inputs: Inputs) -> Call:
        return WORK[self.op][0](inputs)


def peer(case: Case, inputs: Inputs) -> Call:
    """PyTorch's version of it."""
    call = WORK[case.op][1](importlib.import_module("torch"), inputs)
    call()  # what is set up by a first call
    return call


def read(i: Inputs) -> tuple[Any, ...]:
    return (i.x,)


def read_twice(i: Inputs) -> tuple[Any, ...]:
    return i.x, i.grad


def adaround_step(i: Inputs) -> Call:
    """Soft weights, the gradient of V, Adam."""
    V = nq.adaround_init(i.x, SCALE)
    soft, gradient, adam = np.empty_like(i.x), np.empty_like(i.x), Adam([V])

    def step() -> None:
        nq.adaround_soft(i.x, V, SCALE, 0, *BOUNDS, out=soft)
        nq.adaround_soft_backward(i.grad, i.x, V, SCALE, 0, *BOUNDS, out=gradient)
        adam.step([gradient])

    return step


def torch_adaround_step(torch: Any, i: Inputs) -> Call:
    V = torch.from_numpy(nq.adaround_init(i.x, SCALE)).requires_grad_()
    x, grad, adam = torch.from_numpy(i.x), torch.from_numpy(i.grad), torch.optim.Adam([V])

    def step() -> None:
        with torch.enable_grad():
            adam.zero_grad()
            h = torch.clamp(torch.sigmoid(V) * 1.2 - 0.1, 0, 1)
            torch.clamp(torch.floor(x / SCALE) + h, *BOUNDS).mul(SCALE).backward(grad)
            adam.step()

    return step


def optimizer(kind: type, **options: Any) -> Callable[[Inputs], Call]:
    def make(i: Inputs) -> Call:
        found = kind([i.x.copy()], **options)
        return lambda: found.step([i.grad])

    return make


def torch_optimizer(name: str, **options: Any) -> Callable[[Any, Inputs], Call]:
    def make(torch: Any, i: Inputs) -> Call:
        p = torch.from_numpy(i.x.copy())
        p.grad = torch.from_numpy(i.grad)
        step: Call = getattr(torch.optim, name)([p], **options).step
        return step

    return make


def observer(name: str) -> Callable[[Inputs], Call]:
    def make(i: Inputs) -> Call:
        found = getattr(observers, name)()
        return lambda: found(i.x)

    return make


def torch_observer(name: str) -> Callable[[Any, Inputs], Call]:
    def make(torch: Any, i: Inputs) -> Call:
        found = getattr(importlib.import_module("torch.ao.quantization.observer"), name)()
        x = torch.from_numpy(i.x)
        return lambda: found(x)

    return make


OBSERVERS = (
    "MinMaxObserver",
    "MovingAverageMinMaxObserver",
    "HistogramObserver",
)

#: What it is called: ours, and PyTorch's.
WORK: dict[str, tuple[Callable[[Inputs], Call], Callable[[Any, Inputs], Call]]] = {
    "AdaroundStep": (adaround_step, torch_adaround_step),
    "SGD": (optimizer(SGD, lr=1e-3, momentum=0.9), torch_optimizer("SGD", lr=1e-3, momentum=0.9)),
    "Adam": (optimizer(Adam), torch_optimizer("Adam")),
    **{name: (observer(name), torch_observer(name)) for name in OBSERVERS},
}

CASES = {
    str(case): case
    for name in WORK
    for case in [
        Work(name, "float32", LARGE, read if name in OBSERVERS else read_twice, ("torch work",))
    ]
}
