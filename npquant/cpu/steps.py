"""Formulas of which each step waits for the one before, done step by step.

A processor looks so many instructions ahead. Where an element takes a hundred that wait for each
other, it sees too few elements to be busy with. So a strip of elements goes through one step after
another; what is between them stays in the first cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types

from npquant.cpu.lowered import inlined, overload
from npquant.cpu.memory import local
from npquant.primitives import each, put, store

#: Elements of a strip at most.
STRIP = 512


def in_steps(*steps: Callable[..., Any]) -> Callable[..., None]:
    """A function that does `n` elements of `x`, from `begin` on, and writes to `y` from `to` on.

    It is ``strip(x, begin, n, made, shared, kind, y, to)``, with () made; what is between steps has
    the type of `kind`.

    Parameters
    ----------
    *steps : callable
        ``step(element, made, shared) -> value``, given what the steps before it have made of the
        element. The last makes the result.
    """
    step, *rest = steps
    if not rest:

        def last(
            x: Any, begin: Any, n: Any, made: Any, shared: Any, kind: Any, y: Any, to: Any
        ) -> None:
            for k in range(np.uintp(n)):
                store(y, to + k, step(each(x, begin + k), each(made, k), shared))

        return inlined(last)

    others = in_steps(*rest)

    def strip(
        x: Any, begin: Any, n: Any, made: Any, shared: Any, kind: Any, y: Any, to: Any
    ) -> None:
        room = local(STRIP, kind)
        for k in range(np.uintp(n)):
            room[k] = step(each(x, begin + k), each(made, k), shared)
        others(x, begin, n, made + (room,), shared, kind, y, to)  # noqa: RUF005 (for Numba)

    return inlined(strip)


def brought(x: Any, begin: Any, n: Any, rooms: Any) -> Any:
    """Where a strip of elements of `x` from `begin` on can be read: itself, or rooms, `near` it.

    What reads more than it computes reads every second element as it goes. But twice as wide loads
    make it compute half as many elements at a time.
    """
    return x, begin


@overload(brought, forceinline=True)
def _brought(x, begin, n, rooms):
    if isinstance(rooms, types.NoneType):
        return lambda x, begin, n, rooms: (x, begin)

    def from_rooms(x, begin, n, rooms):
        for k in range(np.uintp(n)):
            put(rooms, k, each(x, begin + k))
        return rooms, np.uintp(0)

    def from_room(x, begin, n, rooms):
        for k in range(np.uintp(n)):
            rooms[k] = x[begin + k]
        return rooms, np.uintp(0)

    return from_rooms if isinstance(x, types.BaseTuple) else from_room
