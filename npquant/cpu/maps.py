"""Kernels of arrays of one shape without qparams: a segment goes in, what runs it comes out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types

from npquant.cpu import strided
from npquant.cpu.borrowed import after, keep
from npquant.cpu.lines import FEW_LINES
from npquant.cpu.loops import PAST
from npquant.cpu.lowered import inlined
from npquant.cpu.past import waiting_for
from npquant.cpu.segments import end_past, next_past, waits_at, written_past
from npquant.cpu.target import PARALLEL_FROM, Kernel, Types, array_types
from npquant.cpu.walk import PIECE, contiguous, pieces, plain, turned_to_memory
from npquant.layout import PER_TENSOR

Array = np.ndarray[Any, Any]


def mapped(segment: Callable[..., None], name: str) -> Callable[..., None]:
    """A kernel of one or two arrays and an output, all of one shape, without qparams.

    Where the output was `given`, a large one of at least half the bytes is written past the caches.
    """
    kernel = Kernel(segment, name, array_types)
    serial, run = kernel.serial, inlined(segment)

    def past(begin: Any, end: Any, x: Any, y: Any) -> None:
        waiting, held = waiting_for(y), 0
        while begin < end:
            m = next_past(x, begin, y, begin, end - begin, FEW_LINES)
            run(0, m, *(after(x, begin) + after((waiting,), waits_at(y, begin))))
            begin += m
            held = written_past(y, begin, waiting, held + m)
        end_past(y, end, waiting, held)

    def apart(begin: Any, end: Any, views: Any, x: Any, y: Any) -> None:
        size = strided.piece(views)
        long = strided.long_row(x, None)
        made = strided.room(y, size), strided.room(x, size)
        y_room, x_room = strided.lend(made)
        while begin < end:
            m = strided.up_to_row(views, begin, min(size, end - begin), long)
            v = strided.placed(y, views, 0, begin, m, y_room)
            run(0, m, *(strided.taken(x, views, 1, begin, m, x_room, v) + (v,)))  # noqa: RUF005
            strided.given(y, views, 0, begin, m, y_room)
            begin += m
        keep(made)

    kernel_past = Kernel(past, f"{name}_past", _tuple_types, full_width=False)
    kernel_apart = Kernel(apart, f"{name}_apart", _apart_types)

    def of_any(arrays: tuple[Array, ...], given: bool) -> None:
        n, key = arrays[0].size, tuple([a.dtype for a in arrays])
        if not arrays[0].flags.c_contiguous:
            _, arrays = turned_to_memory(PER_TENSOR, arrays)
        *x, y = arrays
        past = given and y.nbytes >= PAST and 2 * y.itemsize >= x[0].itemsize
        over = given and not past and strided.written_over(y, x[0])
        if n <= PIECE and y.flags.carray and not over:
            serial[key](0, n, *map(contiguous, arrays))
            return
        if n and all(map(plain, arrays)) and not over:
            if past:
                kernel_past(n, n, (tuple(x), y), key)
            else:
                kernel(n, n, arrays, key)
            return
        for piece, flat, _ in pieces(PER_TENSOR, arrays[:-1], arrays[-1:]):
            m = flat[-1].size if piece.views is None else n
            if piece.views is None:
                kernel(m, m, tuple(flat), tuple(map(strided.key, flat)))
            else:
                rows, some = piece.views
                kernel_apart(m, m, (rows, tuple(flat[:-1]), flat[-1]), key, some)

    # Arguments by name take half a microsecond less than a tuple of them.
    def of_one(x: Array, y: Array, *, given: bool = False) -> None:
        n = x.size
        over = given and strided.written_over(y, x)
        if n < PARALLEL_FROM and x.flags.carray and y.flags.carray and not over:
            serial[x.dtype, y.dtype](0, n, x, y)
        else:
            of_any((x, y), given)

    def of_two(grad: Array, mask: Array, y: Array, *, given: bool = False) -> None:
        n = grad.size
        alike = grad.flags.carray and mask.flags.carray and y.flags.carray
        if n < PARALLEL_FROM and alike and not (given and strided.written_over(y, grad)):
            serial[grad.dtype, mask.dtype, y.dtype](0, n, grad, mask, y)
        else:
            of_any((grad, mask, y), given)

    return of_one if segment.__code__.co_argcount == 4 else of_two  # type: ignore[attr-defined]


def _tuple_types(*dtypes: Any) -> Types:
    *x, y = array_types(*dtypes)
    return types.Tuple(x), y


def _apart_types(*dtypes: Any) -> Types:
    return strided.VIEWS, *_tuple_types(*dtypes)
