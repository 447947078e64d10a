"""Counting values into bins.

A block counts a part of a channel in shared memory and adds that to the counts; where there are
more bins than it has room for, or few elements to a bin, each element is added at once. Counts are
integers, so no order changes them. What is made of them is made in NumPy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types

from npquant.cuda.arrays import device
from npquant.cuda.reduce import RUNS, Shape, divided, parts_of, walked
from npquant.cuda.target import COUNT, SIMULATED, THREADS, Kernel, Types, cuda, pointer
from npquant.cuda.vectors import moved, vectors
from npquant.cuda.walk import pieces
from npquant.formulas import histogram as f
from npquant.layout import TILE, Granularity

if not SIMULATED:
    from npquant.cuda.target import intrinsic, overload

#: Bins that fit in the shared memory of a block, as int32.
ROOM = 1 << 13


def _add(counts: Any, i: Any, n: Any) -> None:
    """counts[i] += n, of a pointer to int64, by many threads at once."""
    cuda.atomic.add(counts, i, n)


if not SIMULATED:

    @intrinsic
    def _atomic_add(context: Any, counts: Any, i: Any, n: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            place = builder.gep(args[0], [args[1]])
            builder.atomic_rmw("add", place, args[2], "monotonic")
            return context.get_dummy_value()

        return types.void(counts, types.int64, types.int64), codegen

    @overload(_add)
    def _added(counts, i, n):
        return lambda counts, i, n: _atomic_add(counts, i, n)  # type: ignore[call-arg]


class Count:
    """x -> how many of each channel fall into each bin.

    Parameters
    ----------
    parameters : callable
        ``parameters(low, high, bins) -> p``, once a channel.
    place : callable
        ``place(x, p) -> bin``, or `bins` for what is not counted.
    """

    def __init__(self, parameters: Callable[..., Any], place: Callable[..., Any]) -> None:
        self._parameters, self._bin = parameters, place
        self.blocks = Kernel(self._make_blocks, f"{place.__name__}_blocks")
        self.elements = Kernel(self._make_elements, f"{place.__name__}_elements")

    def __call__(self, granularity: Granularity, x: Any, low: Any, high: Any, counts: Any) -> None:
        """Add to `counts`, int64 of shape (channels, bins).

        `low` and `high` are what the parameters of each channel are made of.
        """
        x, low, high, counts = map(device, (x, low, high, counts))
        if not x.size:
            return
        bins = counts.shape[1]
        for layout, (flat,) in pieces(granularity, (x,), ()):
            shape = Shape.of(layout, x.size)
            rest = (bins, flat.argument(), low.argument(), high.argument(), counts.argument())
            key, on = (x.dtype, low.dtype), x.stream()
            if bins > ROOM or shape.beside or shape.length < 2 * bins:
                each = (x.size, shape.channels, shape.inner, *rest)
                blocks = -(-x.size // THREADS)
                self.elements(blocks, THREADS, each, (*key, x.size >= 1 << 32), on)
            else:
                parts, span = parts_of(shape.length, shape.channels, max(TILE, 4 * bins))
                room = max(256, 1 << (bins - 1).bit_length())
                form = (min(shape.width(flat), 8), shape.single, room)
                args = (*shape.told, parts, span, *rest)
                self.blocks(shape.channels * parts, THREADS, args, (*key, *form), on)

    def _make_blocks(
        self, x: Any, bound: Any, width: int, single: bool, room: int
    ) -> tuple[Callable[..., None], Types]:
        parameters, bin_of, load = self._parameters, self._bin, vectors(width, 1).load
        begin_of, place_of = walked(single)

        def kernel(
            channels: Any, inner: Any, length: Any, parts: Any, span: Any, bins: Any, x: Any,
            low: Any, high: Any, counts: Any,
        ) -> None:  # fmt: skip
            """A block for each (channel, part)."""
            table = cuda.shared.array(room, types.int32)
            t, (c, part) = cuda.threadIdx.x, divided(cuda.blockIdx.x, parts)
            start = part * span
            left = min(length - start, span)
            begin, skip = begin_of(c, start, channels, inner)
            data = moved(x, begin)
            for k in range(t, bins, THREADS):
                table[k] = 0
            p = parameters(low[c], high[c], bins)
            cuda.syncthreads()
            for e in range(t * width, left, THREADS * width):
                if e + width <= left:
                    to = place_of(COUNT(skip + COUNT(e)), channels, inner)
                    found = load((moved(data, to),), COUNT(0), COUNT(0))
                    for k in range(width):
                        place = bin_of(found[0][k], p)
                        if place < bins:
                            cuda.atomic.add(table, place, 1)
                else:
                    for i in range(e, left):
                        to = place_of(COUNT(skip + COUNT(i)), channels, inner)
                        place = bin_of(data[to], p)
                        if place < bins:
                            cuda.atomic.add(table, place, 1)
            cuda.syncthreads()
            for k in range(t, bins, THREADS):
                if table[k] > 0:
                    _add(counts, c * bins + k, np.int64(table[k]))

        return kernel, (types.int64, RUNS, *[types.int64] * 4, *_count_types(x, bound))

    def _make_elements(self, x: Any, bound: Any, far: bool) -> tuple[Callable[..., None], Types]:
        parameters, bin_of = self._parameters, self._bin
        index = np.int64 if far else np.uint32

        def kernel(
            n: Any, channels: Any, inner: Any, bins: Any, x: Any, low: Any, high: Any, counts: Any
        ) -> None:
            """A thread for each element."""
            i = np.int64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
            if i < n:
                c = np.int64(index(index(i) // index(inner)) % index(channels))
                place = bin_of(x[i], parameters(low[c], high[c], bins))
                if place < bins:
                    _add(counts, c * bins + place, np.int64(1))

        return kernel, (*[types.int64] * 4, *_count_types(x, bound))


def _count_types(x: Any, bound: Any) -> Types:
    return pointer(x), pointer(bound), pointer(bound), types.CPointer(types.int64)


count_linear = Count(f.linear_bins, f.linear_bin)
count_doubling = Count(f.doubling_bins, f.doubling_bin)
