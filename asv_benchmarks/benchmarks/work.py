"""Work that is no single op: what training and calibration do, and a dispatch by Numba.

Ours, and PyTorch's beside it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numba
import numpy as np

import npquant as nq
from npquant.modules import observers
from npquant.optim import SGD, Adam

from .cases import FLOATS, PRECISIONS, TENSORS, Call, Case, Inputs, Spec, specs, star
from .tensors import as_torch

SCALE, BOUNDS = 0.1, (-8, 7)


@dataclass(frozen=True)
class Work(Case):
    """A cell of the matrix that is no call of an op; `op` is a name in WORK."""

    def call(self, inputs: Inputs) -> Call:
        return WORK[self.op].ours(inputs)

    def moved(self, inputs: Inputs, result: Any) -> int:
        passes = WORK[self.op].passes
        return passes * inputs.x.nbytes if passes else super().moved(inputs, result)


def peer(case: Case, inputs: Inputs) -> Call:
    """PyTorch's version of it."""
    torch = importlib.import_module("torch")
    make = WORK[case.op].torch
    if make is None:
        raise NotImplementedError(f"PyTorch has no {case.op}")
    call = make(torch, inputs)
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
        return partial(kind([i.x.copy()], **options).step, [i.grad])

    return make


def torch_optimizer(name: str, **options: Any) -> Callable[[Any, Inputs], Call]:
    def make(torch: Any, i: Inputs) -> Call:
        p = torch.from_numpy(i.x.copy())
        p.grad = torch.from_numpy(i.grad)
        step: Call = getattr(torch.optim, name)([p], **options).step
        return step

    return make


def channel(i: Inputs) -> dict[str, int]:
    return {"ch_axis": i.layout.axis[0]} if i.layout.axis else {}


def observer(name: str) -> Callable[[Inputs], Call]:
    def make(i: Inputs) -> Call:
        return partial(getattr(observers, name)(**channel(i)), i.x)

    return make


def torch_observer(name: str) -> Callable[[Any, Inputs], Call]:
    def make(torch: Any, i: Inputs) -> Call:
        kind = getattr(importlib.import_module("torch.ao.quantization.observer"), name)
        return partial(kind(**channel(i)), as_torch(i.x))

    return make


@numba.njit(cache=True)  # type: ignore[untyped-decorator]
def nothing(x, scale, zero_point, lo, hi):  # type: ignore[no-untyped-def]
    """What a call costs that does nothing."""


def dispatch(x: Any) -> Call:
    """The least that a kernel's call can cost: an array and four numbers, through Numba."""
    return partial(nothing, x, 0.1, 0, -128, 127)


@dataclass(frozen=True)
class Job:
    """How each does it; None who cannot."""

    ours: Callable[[Inputs], Call]
    torch: Callable[[Any, Inputs], Call] | None = None
    #: How many arrays of the data's size must be read or written, where arguments do not tell.
    passes: int = 0


#: With PyTorch's, and without.
OBSERVERS = ("MinMaxObserver", "MovingAverageMinMaxObserver", "HistogramObserver")
CHANNEL_OBSERVERS = ("PerChannelMinMaxObserver", "MovingAveragePerChannelMinMaxObserver")
COUNTING_OBSERVERS = ("PercentileObserver", "MSEObserver", "EntropyObserver")

WORK = {
    "BareDispatch": Job(lambda i: dispatch(i.x)),
    # The weight, its gradient, V and two moments are read; the soft weight, V and these written.
    "AdaroundStep": Job(adaround_step, torch_adaround_step, passes=9),
    # Gradient, parameter and momentum; then the latter two.
    "SGD": Job(
        optimizer(SGD, lr=1e-3, momentum=0.9),
        torch_optimizer("SGD", lr=1e-3, momentum=0.9),
        passes=5,
    ),
    # Gradient, parameter and two moments; then the latter three.
    "Adam": Job(optimizer(Adam), torch_optimizer("Adam"), passes=7),
    **{
        name: Job(observer(name), torch_observer(name)) for name in (*OBSERVERS, *CHANNEL_OBSERVERS)
    },
    **{name: Job(observer(name)) for name in COUNTING_OBSERVERS},
}


def works(names: str, arguments: Any, layouts: Any, dtypes: Any, peers: Any, **more: Any) -> Any:
    return specs(names, arguments, layouts, dtypes, peers, case=Work, **more)


_WITH_TORCH = ("torch work", "torch.compile")
_FIRST_AXIS = ("64 channels, first axis", "64 channels, last axis", "64 channels, channels last")

# fmt: off
SPECS: tuple[Spec, ...] = (
    *works("BareDispatch", read, ["tensor"], ["float32"], (), sizes=(16,)),
    *works("AdaroundStep", read_twice, ["tensor"], PRECISIONS, _WITH_TORCH),
    *works("SGD Adam", read_twice, TENSORS[:1], PRECISIONS, _WITH_TORCH),
    *works(" ".join(OBSERVERS), read, TENSORS, FLOATS, _WITH_TORCH),
    *works(" ".join(CHANNEL_OBSERVERS), read, _FIRST_AXIS, FLOATS, _WITH_TORCH),
    *works(" ".join(COUNTING_OBSERVERS), read, ["tensor"], FLOATS, ()),
)
# fmt: on

CASES = star(SPECS, whole=False)
