"""Formulas of which each step waits for the one before, done step by step.

A processor looks so many instructions ahead. Where an element takes a hundred that wait for each
other, it sees too few elements to be busy with. So a strip of elements goes through one step after
another; what is between them stays in the first cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba.extending import register_jitable

from npquant.cpu.memory import local
from npquant.primitives import each, store

#: Elements of a strip at most.
STRIP = 512

_inlined = register_jitable(no_cfunc_wrapper=True, forceinline=True)


def in_steps(first: Callable[..., Any], *steps: Callable[..., Any]) -> Callable[..., None]:
    """A function that does `n` elements of `x`, from `begin` on, and writes to `y` from `to` on.

    It is ``strip(x, begin, n, p, kind, y, to)``; what is between steps has the type of `kind`.

    Parameters
    ----------
    first : callable
        ``first(element, p) -> value``.
    *steps : callable
        ``step(values, p) -> value``: of what all steps before it have made. The last makes `y`.
    """
    if not steps:

        def only(x: Any, begin: Any, n: Any, p: Any, kind: Any, y: Any, to: Any) -> None:
            for k in range(np.uintp(n)):
                store(y, to + k, first(each(x, begin + k), p))

        return _inlined(only)

    rest = _after(*steps)

    def strip(x: Any, begin: Any, n: Any, p: Any, kind: Any, y: Any, to: Any) -> None:
        room = local(STRIP, kind)
        for k in range(np.uintp(n)):
            room[k] = first(each(x, begin + k), p)
        rest((room,), n, p, kind, y, to)

    return _inlined(strip)


def _after(step: Callable[..., Any], *steps: Callable[..., Any]) -> Callable[..., None]:
    """The same, of what steps have made."""
    if not steps:

        def last(made: Any, n: Any, p: Any, kind: Any, y: Any, to: Any) -> None:
            for k in range(np.uintp(n)):
                store(y, to + k, step(each(made, k), p))

        return _inlined(last)

    rest = _after(*steps)

    def strip(made: Any, n: Any, p: Any, kind: Any, y: Any, to: Any) -> None:
        room = local(STRIP, kind)
        for k in range(np.uintp(n)):
            room[k] = step(each(made, k), p)
        rest(made + (room,), n, p, kind, y, to)  # noqa: RUF005 (for Numba)

    return _inlined(strip)
