"""Kernels of arrays of one shape without qparams: a segment goes in, what runs it comes out."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import numpy as np
from numba import types

from npquant.cpu import strided
from npquant.cpu.loops import LONG, PAST
from npquant.cpu.lowered import inlined
from npquant.cpu.memory import after, local, settle, to_line, write_past
from npquant.cpu.target import PARALLEL_FROM, Kernel, Types, array_types
from npquant.cpu.walk import PIECE, contiguous, pieces, plain, turned_to_memory
from npquant.layout import PER_TENSOR
from npquant.primitives import item

Array = np.ndarray[Any, Any]
_is_carray, _dtype_of = attrgetter("flags.carray"), attrgetter("dtype")


def mapped(segment: Callable[..., None], name: str) -> Callable[..., None]:
    """A kernel of arrays of one shape, the last of them the output, without qparams.

    Where the output was `given`, a large one is written past the caches.
    """
    kernel = Kernel(segment, name, array_types)
    run = inlined(segment)

    def past(begin: Any, end: Any, x: Any, y: Any) -> None:
        made = local(LONG, item(y))
        while begin < end:
            m = min(to_line(y, begin) or LONG, end - begin)
            if m < LONG:
                run(begin, begin + m, *(x + (y,)))  # noqa: RUF005 (for Numba)
            else:
                run(0, LONG, *(after(x, begin) + (made,)))  # noqa: RUF005
                write_past(y, begin, made, LONG)
            begin += m
        settle()

    def apart(begin: Any, end: Any, views: Any, x: Any, y: Any) -> None:
        size = strided.piece(views)
        room = strided.room(x, size)
        for first in range(begin, end, size):
            m = min(size, end - first)
            v = strided.part(y, first, m)
            run(0, m, *(strided.taken(x, views, 0, first, m, room) + (v,)))  # noqa: RUF005

    kernel_past = Kernel(past, f"{name}_past", _tuple_types, full_width=False)
    kernel_apart = Kernel(apart, f"{name}_apart", _apart_types)

    def call(*arrays: Array, given: bool = False) -> None:
        n = arrays[0].size
        if not arrays[0].flags.c_contiguous:
            _, arrays = turned_to_memory(PER_TENSOR, arrays)
        as_they_are = n < PARALLEL_FROM and all(map(_is_carray, arrays))
        if as_they_are or (n <= PIECE and arrays[-1].flags.carray):
            if not as_they_are:
                arrays = tuple(map(contiguous, arrays))
            entry = kernel.serial[tuple(map(_dtype_of, arrays))]
            entry(0, n, *(arrays if arrays[0].ndim == 1 else map(np.ndarray.ravel, arrays)))
            return
        key = tuple([a.dtype for a in arrays])
        if n and all(map(plain, arrays)):
            *x, y = flat = [a.reshape(n) for a in arrays]
            if given and y.nbytes >= PAST and y.itemsize >= x[0].itemsize:
                kernel_past(n, n, (tuple(x), y), key)
            else:
                kernel(n, n, tuple(flat), key)
            return
        for piece, flat, _ in pieces(PER_TENSOR, arrays[:-1], arrays[-1:]):
            m = flat[-1].size
            if piece.views is None:
                kernel(m, m, tuple(flat), tuple(map(strided.key, flat)))
            else:
                args = piece.views, tuple(flat[:-1]), flat[-1]
                kernel_apart(m, m, args, key, strided.piece(piece.views))

    return call


def _tuple_types(*dtypes: Any) -> Types:
    *x, y = array_types(*dtypes)
    return types.Tuple(x), y


def _apart_types(*dtypes: Any) -> Types:
    return strided.VIEWS, *_tuple_types(*dtypes)
