"""From arrays as they come to flat pieces that a kernel takes.

Contiguous arrays are one piece, dense permuted ones are taken in memory order; anything else
(strided, broadcast, unaligned, or arrays that lie differently) a kernel takes row by row, or packs
(`strided.py`) into buffers that stay in cache: no temporary of the size of the input is ever made.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from npquant.cpu import strided
from npquant.cpu.target import Kernel
from npquant.layout import Granularity, Spans, memory_order, order_of_strides

Array = np.ndarray[Any, Any]

#: Elements of a packed piece: two or three buffers of it fit a second-level cache.
PIECE = 1 << 14

#: Scales and as many zero points that are put into the order of the data at a time.
SCALES = 1 << 15


def plain(x: Array) -> bool:
    """Whether a kernel can take `x` in C order as it is."""
    flags = x.flags
    return flags.carray or (flags.c_contiguous and flags.aligned)


def contiguous(x: Array) -> Array:
    """`x` as a kernel takes it: a small array in C order, and a copy if it must be."""
    return x if x.flags.carray or plain(x) else x.copy()


class Piece(NamedTuple):
    """How a flat piece is cut.

    `channels` runs of `inner` elements, again and again; where `repeats` is not 0, after so many
    times come as many other channels. `first` is the place of its first element in all of this.
    With `views`, of outputs and then inputs, arrays are not flat.
    """

    channels: int
    inner: int
    repeats: int = 0
    first: int = 0
    views: strided.Views | None = None


def pieces(
    granularity: Granularity,
    inputs: tuple[Array, ...],
    outputs: tuple[Array | None, ...],
    qparams: tuple[Any, ...] = (),
    apart: bool = True,
) -> Iterator[tuple[Piece, list[Any], tuple[Any, ...]]]:
    """Yield (piece, flat arrays, qparams of its channels) until everything is done.

    Outputs may be None. What the consumer writes to the flat outputs is in the outputs once it asks
    for the next piece. With `apart`, it can take views.
    """
    arrays = [a for a in (*inputs, *outputs) if a is not None]
    shape, size = arrays[0].shape, arrays[0].size
    if size == 0:
        return
    if apart and size > PIECE and all(map(strided.aligned, arrays)):
        lying = [None if a is None else strided.lying(a) for a in (*outputs, *inputs)]
        way = seen_at_once(granularity, len(outputs), *lying)
        if way is not None:
            piece, order = way
            every: list[Any] = [*inputs, *outputs]
            if order is not None:
                every = [a if a is None else a.transpose(order) for a in every]
            seen = strided.forward if piece.views else flattened
            yield piece, [a if a is None else seen(a) for a in every], qparams
            return
    alike, order = common_order(arrays)
    if alike:
        layout = granularity.layout(shape, order)
        flat = [a if a is None else flattened(a, order) for a in (*inputs, *outputs)]
        if layout is not None:
            y, views = outputs[0], None
            if apart and y is not None and any(strided.written_over(y, x) for x in inputs):
                views = strided.views((*flat[len(inputs) :], *flat[: len(inputs)]), plain)
            yield Piece(layout.channels, layout.inner or size, views=views), flat, qparams
            return
        spans = granularity.spans(shape, order)  # type: ignore[arg-type]
        if spans is not None and worth(spans):
            grid = *shape[:-1], shape[-1] // granularity.inner
            ordered = [q.reshape(grid).transpose(order) for q in qparams]
            yield from _parts(spans, flat, ordered)
            return

    piece = Piece(granularity.channels, granularity.inner or size)
    if size <= PIECE:
        whole, into = _copied(inputs, outputs)
        yield piece, whole, qparams
        for a, room in into:
            np.copyto(a, room)
        return
    spans_of = [Packed(a, PIECE) for a in inputs]
    rooms: list[Any] = [a if a is None else Packed(a, PIECE) for a in outputs]
    for first in range(0, size, PIECE):
        span = first, min(first + PIECE, size)
        found: list[Any] = [a.read(*span) for a in spans_of]
        found += [a if a is None else a.room(*span) for a in rooms]
        yield piece._replace(first=first), found, qparams
        for a in filter(None, rooms):
            a.write(*span)


@lru_cache(maxsize=256)
def seen_at_once(
    granularity: Granularity, outputs: int, *lying: strided.Lying | None
) -> tuple[Piece, tuple[int, ...] | None] | None:
    """How one call takes aligned arrays that lie so: the piece, and the order to see the axes in.

    Results, the first few, are seen as they lie in memory, if they are dense, and what they are
    made of in that order. None where all lie alike, and need no views.
    """
    every = [w for w in lying if w is not None]
    shape, size = every[0][0], prod(every[0][0])
    alike, order = _lie_alike(*every)
    if alike:
        if granularity.layout(shape, order) is not None:
            return None
        spans = granularity.spans(shape, order)  # type: ignore[arg-type]
        if spans is not None and worth(spans):
            return None
    alike, order = _lie_alike(*[w for w in lying[:outputs] if w is not None])
    layout = granularity.layout(shape, order) if alike else None
    if layout is None:
        order = None
    turned = [w if w is None or order is None else _transposed(w, order) for w in lying]
    bent = [None if w is None or strided.in_c_order(*w) else w for w in turned]
    views = None
    if layout is None or not all(w is None or strided.steps_over_every_second(*w) for w in bent):
        views = strided.views_of(*bent)
    channels, inner = layout or (granularity.channels, granularity.inner)
    return Piece(channels, inner or size, views=views), order


def _transposed(lying: strided.Lying, order: tuple[int, ...]) -> strided.Lying:
    shape, strides, itemsize = lying
    return tuple([shape[i] for i in order]), tuple([strides[i] for i in order]), itemsize


def _copied(
    inputs: tuple[Array, ...], outputs: tuple[Any, ...]
) -> tuple[list[Any], list[tuple[Array, Array]]]:
    """Flat copies of small arrays, and (output, room) where results have to be put.

    There is less to prepare where NumPy packs them.
    """
    arrays = *inputs, *outputs
    rooms: list[Any] = [a if a is None or plain(a) else np.empty(a.shape, a.dtype) for a in arrays]
    for a, room in zip(inputs, rooms, strict=False):
        if room is not a:
            np.copyto(room, a)
    into: Any = [(a, r) for a, r in zip(outputs, rooms[len(inputs) :], strict=True) if a is not r]
    return [r if r is None else r.reshape(-1) for r in rooms], into


def readable(a: Array) -> bool:
    """Whether a kernel can read `a` in C order as it lies."""
    return plain(a) or strided.every_second(a)


def worth(spans: Spans) -> bool:
    """Whether tables of what lies side by side are worth making, and small."""
    _, run, beside = spans
    return beside <= SCALES and (beside >= 16 or beside == 1 or run * beside >= 1024)


def in_one_part(spans: Spans) -> bool:
    """The same, and whether all their scales are taken together."""
    return worth(spans) and spans.outer * spans.beside <= SCALES


def _parts(
    spans: Spans, flat: list[Any], qparams: list[Array]
) -> Iterator[tuple[Piece, list[Any], tuple[Any, ...]]]:
    """Yield as `pieces`: flat data as it lies, and the qparams, put into its order part by part."""
    outer, run, beside = spans
    count = min(SCALES // beside, outer)
    rooms = [Packed(q, count * beside) for q in qparams]
    for a in range(0, outer, count):
        z = min(a + count, outer)
        piece = Piece(z - a, run) if beside == 1 else Piece(beside, 1, run)
        part = slice(a * run * beside, z * run * beside)
        scales = tuple([room.read(a * beside, z * beside) for room in rooms])
        yield piece, [x if x is None else x[part] for x in flat], scales


def common_order(arrays: list[Array]) -> tuple[bool, tuple[int, ...] | None]:
    """Whether all `arrays` are dense and lie alike, and the order of their axes (None: C)."""
    if all(plain(a) for a in arrays):
        return True, None
    if not all(a.flags.aligned for a in arrays):
        return False, None
    return _lie_alike(*map(strided.lying, arrays))


@lru_cache(maxsize=256)
def _lie_alike(*lying: strided.Lying) -> tuple[bool, tuple[int, ...] | None]:
    """The same of arrays that lie so."""
    if all(strided.in_c_order(*w) for w in lying):
        return True, None
    orders = {order_of_strides(*w) for w in lying}
    order = orders.pop() if len(orders) == 1 else None
    return order is not None, order


def flattened(a: Array, order: tuple[int, ...] | None = None) -> Array:
    return (a if order is None else a.transpose(order)).reshape(-1)


def turned_to_memory(
    granularity: Granularity, arrays: tuple[Array | None, ...]
) -> tuple[Granularity, tuple[Any, ...]]:
    """The same with all axes in the order of memory, if the arrays, not in C order, lie alike."""
    first: Any = arrays[0]
    order, turned, there = memory_order(first), [], granularity
    if order is None:
        return granularity, arrays
    if granularity.axis is not None or granularity.channels != 1:
        layout = granularity.layout(first.shape, order)
        if layout is None:
            return granularity, arrays
        there = Granularity(*layout, None)
    for a in arrays:
        if a is not None:
            a = a.transpose(order)
            if not a.flags.c_contiguous:
                return granularity, arrays
        turned.append(a)
    return there, tuple(turned)


class Packed:
    """Flat spans of an array in C order; all memory that they need is there from the start."""

    def __init__(self, a: Array, most: int) -> None:
        self._packed, self._small = not plain(a), None
        if not self._packed:
            self._flat = a.reshape(-1)
            return
        self._flat = np.empty(most, a.dtype)
        if a.size <= min(most, PIECE):  # that is less to prepare
            self._small = a, self._flat[: a.size].reshape(a.shape)
            return
        self._words = 1
        if not strided.aligned(a):  # bytes always are
            self._words, a = a.itemsize, a.squeeze()[..., None].view(np.uint8)  # of 64 axes, too
        kind = np.dtype(f"u{a.itemsize}")
        self._key = (kind,)
        self._view = strided.view(a)
        self._array, self._room = strided.forward(a).view(kind), self._flat.view(kind)

    def room(self, begin: int, end: int) -> Array:
        """Where a span is to be written."""
        return self._flat[: end - begin] if self._packed else self._flat[begin:end]

    def read(self, begin: int, end: int) -> Array:
        """The elements of a span."""
        if self._small is not None:
            np.copyto(*self._small[::-1])
        else:
            self._move(strided.gather_kernel, begin, end)
        return self.room(begin, end)

    def write(self, begin: int, end: int) -> None:
        """Put a span where it belongs."""
        if self._small is not None:
            np.copyto(*self._small)
        else:
            self._move(strided.scatter_kernel, begin, end)

    def move_box(self, kernel: Kernel, row: int, rows: int, column: int, columns: int) -> None:
        """Read or write a part of some rows of an array of two axes."""
        view = self._view.copy()
        view[0, 1] += row * view[1, 1] + column * view[2, 1]
        view[1:, 0] = rows, columns
        n = rows * columns
        kernel(n, n, (0, view, self._array, self._room), self._key)

    def _move(self, kernel: Kernel, begin: int, end: int) -> None:
        if self._packed:
            n = (end - begin) * self._words
            kernel(n, n, (begin * self._words, self._view, self._array, self._room), self._key)
