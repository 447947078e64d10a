"""Steps of the optimizers: one pass over a parameter, its gradient and its state, in place."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import numpy as np
from numba import types

from npquant.cpu import strided
from npquant.cpu.storage import TYPES
from npquant.cpu.target import PARALLEL_FROM, Kernel, Key, Types, array_type
from npquant.cpu.walk import PIECE, common_order, pieces, plain
from npquant.formulas import optim as f
from npquant.layout import PER_TENSOR

Array = np.ndarray[Any, Any]
_is_carray = attrgetter("flags.carray")


class Update:
    """gradient, arrays -> the arrays, updated in place.

    Parameters
    ----------
    segment : callable
        ``segment(begin, end, numbers, gradient, *arrays)``.
    name : str
        What it is called.
    """

    def __init__(self, segment: Callable[..., None], name: str) -> None:
        self._kernel = Kernel(segment, name, _signature)

    def __call__(
        self, gradient: Array, arrays: tuple[Array, ...], numbers: tuple[float, ...]
    ) -> None:
        """Update the parameter and its state; all have its dtype, and so have the numbers."""
        update, args = self.ready(gradient, arrays, numbers)
        update(*args)

    def ready(
        self, gradient: Array, arrays: tuple[Array, ...], numbers: tuple[float, ...]
    ) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """What does the same, all of it compiled, and what to call it with."""
        n = gradient.size
        if n == 0:
            return _nothing, ()
        key = (gradient.dtype, len(numbers), len(arrays))
        if n < PARALLEL_FROM and all(map(_is_carray, (gradient, *arrays))):
            return self._kernel.serial[key], (0, n, numbers, gradient, *arrays)
        if plain(gradient) and all(map(plain, arrays)):
            self._kernel.ready(n, key)
            return self._kernel, (n, n, (numbers, gradient, *arrays), key)
        alike, _ = common_order([gradient, *arrays])
        self._kernel.ready(n if alike else min(n, PIECE), key)
        if n > PIECE and not alike:
            _packs(gradient, strided.gather_kernel)
            for a in arrays:
                _packs(a, strided.gather_kernel, strided.scatter_kernel)
        return self._in_pieces, (gradient, arrays, numbers, key)

    def _in_pieces(
        self, gradient: Array, arrays: tuple[Array, ...], numbers: tuple[float, ...], key: Key
    ) -> None:
        """The same of arrays of which one or more cannot be taken as they are."""
        for _, flat, _ in pieces(PER_TENSOR, (gradient, *arrays), arrays, apart=False):
            read, results = flat[: 1 + len(arrays)], flat[1 + len(arrays) :]
            # What is read may be a view of what is written or a copy, and read-only: so update
            # the results, which lie apart from the gradient.
            for result, a in zip(results, read[1:], strict=True):
                np.copyto(result, a)
            m = read[0].size
            self._kernel(m, m, (numbers, read[0], *results), key)


def _nothing() -> None:
    """Update no elements."""


def _packs(a: Array, *kernels: Kernel) -> None:
    """Have these ready for the pieces of `a`, as `Packed` calls them where it must."""
    if not plain(a):
        words = 1 if strided.aligned(a) else a.itemsize
        for kernel in kernels:
            kernel.ready(PIECE * words, (np.dtype(f"u{a.itemsize // words}"),))


def _signature(dtype: Any, numbers: int, arrays: int) -> Types:
    return types.Tuple([TYPES[dtype]] * numbers), *[array_type(dtype)] * (1 + arrays)


def _sgd(slope: Callable[..., Any]) -> Update:
    def segment(begin: Any, end: Any, numbers: Any, gradient: Any, value: Any) -> None:
        lr, weight_decay = numbers
        base = np.uintp(begin)
        for k in range(np.uintp(end - begin)):
            i = base + k
            g = slope(gradient[i], value[i], weight_decay)
            value[i] = f.sgd(value[i], g, lr)

    return Update(segment, f"sgd_{slope.__name__}")


def _sgd_momentum(slope: Callable[..., Any]) -> Update:
    def segment(begin: Any, end: Any, numbers: Any, gradient: Any, value: Any, buffer: Any) -> None:
        lr, weight_decay, momentum = numbers
        base = np.uintp(begin)
        for k in range(np.uintp(end - begin)):
            i = base + k
            g = slope(gradient[i], value[i], weight_decay)
            value[i], buffer[i] = f.sgd_momentum(value[i], buffer[i], g, lr, momentum)

    return Update(segment, f"sgd_momentum_{slope.__name__}")


def _adam(rule: Callable[..., Any]) -> Update:
    def segment(
        begin: Any, end: Any, numbers: Any, gradient: Any, value: Any, mean: Any, square: Any
    ) -> None:
        base = np.uintp(begin)
        for k in range(np.uintp(end - begin)):
            i = base + k
            found = rule(value[i], mean[i], square[i], gradient[i], numbers)
            value[i], mean[i], square[i] = found

    return Update(segment, rule.__name__)


#: What numbers and arrays they take, npquant.formulas.optim says.
sgd, sgd_decayed = _sgd(f.undecayed), _sgd(f.decayed)
sgd_momentum, sgd_momentum_decayed = _sgd_momentum(f.undecayed), _sgd_momentum(f.decayed)
adam, adam_decayed, adamw = map(_adam, (f.adam, f.adam_decayed, f.adamw))
