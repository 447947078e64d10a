"""Steps of the optimizers: one pass over a parameter, its gradient and its state, in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from npquant.cuda.arrays import device
from npquant.cuda.elements import Formula
from npquant.cuda.loops import Map, nothing
from npquant.cuda.vectors import ACCESS
from npquant.formulas import optim as f
from npquant.formulas.base import formula
from npquant.layout import PER_TENSOR


class Update:
    """gradient, arrays -> the arrays, updated in place.

    Parameters
    ----------
    element : callable
        ``element(values, numbers) -> values``: of the gradient and the arrays, to the arrays.
    name : str
        What it is called.
    """

    def __init__(self, element: Callable[..., Any], name: str) -> None:
        @formula
        def element_of(values: Any, p: Any, constants: Any, y: Any) -> Any:
            return element(values, constants)

        self.map = Map(Formula(nothing, element_of), name)
        self._ready: set[tuple[Any, int, bool]] = set()

    def __call__(self, gradient: Any, arrays: tuple[Any, ...], numbers: tuple[float, ...]) -> None:
        """Update the parameter and its state; all have its dtype, and so have the numbers."""
        update, args = self.ready(gradient, arrays, numbers)
        update(*args)

    def ready(
        self, gradient: Any, arrays: tuple[Any, ...], numbers: tuple[float, ...]
    ) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """What does the same, all of it compiled, and what to call it with."""
        g, a = device(gradient), tuple(map(device, arrays))
        x, kinds = (g, *a), ("int32", "int32", (g.dtype.name,) * len(numbers))
        # Of arrays in C order what is launched depends on little, and is soon known.
        known = g.dtype, len(a), not [p for p in x if p.pointer % ACCESS]
        if known not in self._ready or [p for p in x if not p.contiguous]:
            self.map.ready(x, kinds, a)
            if g.size and not [p for p in x if not p.contiguous]:
                self._ready.add(known)
        return self.map, (PER_TENSOR, x, 0, 0, numbers, kinds, a)


def _sgd(slope: Callable[..., Any]) -> Update:
    @formula
    def element(values: Any, numbers: Any) -> Any:
        gradient, value = values
        lr, weight_decay = numbers
        return (f.sgd(value, slope(gradient, value, weight_decay), lr),)

    return Update(element, f"sgd_{slope.__name__}")


def _sgd_momentum(slope: Callable[..., Any]) -> Update:
    @formula
    def element(values: Any, numbers: Any) -> Any:
        gradient, value, buffer = values
        lr, weight_decay, momentum = numbers
        g = slope(gradient, value, weight_decay)
        return f.sgd_momentum(value, buffer, g, lr, momentum)

    return Update(element, f"sgd_momentum_{slope.__name__}")


def _adam(rule: Callable[..., Any]) -> Update:
    @formula
    def element(values: Any, numbers: Any) -> Any:
        gradient, value, mean, square = values
        return rule(value, mean, square, gradient, numbers)

    return Update(element, rule.__name__)


#: What numbers and arrays they take, npquant.formulas.optim says.
sgd, sgd_decayed = _sgd(f.undecayed), _sgd(f.decayed)
sgd_momentum, sgd_momentum_decayed = _sgd_momentum(f.undecayed), _sgd_momentum(f.decayed)
adam, adam_decayed, adamw = map(_adam, (f.adam, f.adam_decayed, f.adamw))
