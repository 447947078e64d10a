"""Formulas of which each step waits for the one before, done step by step.

A processor looks so many instructions ahead. Where an element takes a hundred that wait for each
other, it sees too few elements to be busy with. So a strip of elements goes through one step after
another; what is between them stays in the first cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from npquant.cpu.lowered import inlined
from npquant.cpu.rooms import local
from npquant.primitives import each, store

#: Elements of a strip at most, and of one that goes past the caches.
STRIP, STRIP_PAST = 512, 128


def in_steps(*steps: Callable[..., Any], most: int = STRIP) -> Callable[..., None]:
    """A function that does `n` elements of `x`, from `begin` on, and writes to `y` from `to` on.

    It is ``strip(x, begin, n, made, shared, kind, y, to)``, with () made; what is between steps has
    the type of `kind`.

    Parameters
    ----------
    *steps : callable
        ``step(element, made, shared) -> value``, given what the steps before it have made of the
        element. The last makes the result.
    most : int
        Elements of a strip at most.
    """
    step, *rest = steps
    if not rest:

        def last(
            x: Any, begin: Any, n: Any, made: Any, shared: Any, kind: Any, y: Any, to: Any
        ) -> None:
            for k in range(np.uintp(n)):
                store(y, to + k, step(each(x, begin + k), each(made, k), shared))

        return inlined(last)

    others = in_steps(*rest, most=most)

    def strip(
        x: Any, begin: Any, n: Any, made: Any, shared: Any, kind: Any, y: Any, to: Any
    ) -> None:
        room = local(most, kind)
        for k in range(np.uintp(n)):
            room[k] = step(each(x, begin + k), each(made, k), shared)
        others(x, begin, n, made + (room,), shared, kind, y, to)  # noqa: RUF005 (for Numba)

    return inlined(strip)
