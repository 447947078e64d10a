"""From arrays as they come to flat pieces that a kernel takes.

Contiguous arrays are one piece, dense permuted ones are one piece in memory order; anything else
(strided, broadcast, unaligned, or arrays that lie differently) is packed piece by
piece into buffers that stay in cache, so no temporary of the size of the input is ever made.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from npquant.layout import Granularity, Layout, memory_order

Array = np.ndarray[Any, Any]

#: Elements of a packed piece: two or three buffers of it fit a second-level cache.
PIECE = 1 << 14


def plain(x: Array) -> bool:
    """Whether a kernel can take `x` in C order as it is."""
    flags = x.flags
    return flags.carray or (flags.c_contiguous and flags.aligned)


def pieces(
    granularity: Granularity, inputs: tuple[Array, ...], outputs: tuple[Array | None, ...]
) -> Iterator[tuple[Layout, int, list[Any]]]:
    """Yield (layout, first, flat arrays) until everything is done; outputs may be None.

    `first` is the place of a piece's first element in the flat data. What the consumer writes to
    the flat outputs is in the outputs once it asks for the next piece.
    """
    arrays = [a for a in (*inputs, *outputs) if a is not None]
    whole = _in_memory_order(granularity, arrays)
    if whole is not None:
        layout, order = whole
        yield layout, 0, [a if a is None else _flat(a, order) for a in (*inputs, *outputs)]
        return

    if arrays[0].size == 0:
        return
    layout, first = Layout(granularity.channels, granularity.inner), 0
    access = ["readonly"] * len(inputs) + ["writeonly"] * (len(arrays) - len(inputs))
    with _packed(arrays, access) as packed:
        for piece in packed:
            flat = iter(piece if type(piece) is tuple else (piece,))
            found: list[Any] = [a if a is None else next(flat) for a in (*inputs, *outputs)]
            yield layout, first, found
            first += found[0].size


def _packed(arrays: list[Array], access: list[str], *flags: Any) -> Any:
    """NumPy's iterator over the arrays in C order, in flat pieces that a kernel can take.

    It has all of its buffers from the start: where there is no memory for them, nothing has been
    written.
    """
    kinds: list[Any] = [[kind, "contig", "aligned"] for kind in access]
    return np.nditer(
        arrays, ["buffered", "external_loop", *flags], kinds, order="C", buffersize=PIECE
    )


def _in_memory_order(
    granularity: Granularity, arrays: list[Array]
) -> tuple[Layout, tuple[int, ...] | None] | None:
    """The layout and the order of the axes, where all `arrays` lie alike in memory."""
    if all(plain(a) for a in arrays):
        return Layout(granularity.channels, granularity.inner), None
    orders = {memory_order(a) for a in arrays}
    if len(orders) > 1 or not all(a.flags.aligned for a in arrays):
        return None
    order = orders.pop()
    if order is None:
        return None
    layout = granularity.layout(arrays[0].shape, order)
    return None if layout is None else (layout, order)


def _flat(a: Array, order: tuple[int, ...] | None) -> Array:
    return (a if order is None else a.transpose(order)).reshape(-1)


def channel_pieces(
    granularity: Granularity,
    inputs: tuple[Array, ...],
    outputs: tuple[Array, ...],
    tile: int,
    ordered: bool,
) -> Iterator[tuple[Layout, slice, slice, list[Any]]]:
    """Yield (layout, channels, tiles, flat arrays): as `pieces`, but of whole tiles of channels.

    `channels` and `tiles` say which ones a piece holds. With `ordered`, the elements of a channel
    keep their logical order; without, any order in memory will do.
    """
    arrays = [*inputs, *outputs]
    size = arrays[0].size
    count = size // granularity.channels
    whole = _in_memory_order(granularity, arrays)
    if whole is not None and not (ordered and reordered(granularity, whole[1])):
        layout, order = whole
        everything = slice(0, granularity.channels), slice(0, -(-count // tile))
        yield layout, *everything, [_flat(a, order) for a in arrays]
        return

    if granularity.axis:
        arrays = [np.moveaxis(a, granularity.axis, 0) for a in arrays]
    # Now a channel is one run of `count` elements in C order: take some channels, or some tiles.
    some, length = max(1, PIECE // count), min(count, PIECE // tile * tile)
    read = [_Spans(a, "readonly", some * length) for a in arrays[: len(inputs)]]
    written = [_Spans(a, "writeonly", some * length) for a in arrays[len(inputs) :]]
    for c in range(0, granularity.channels, some):
        channels = slice(c, min(c + some, granularity.channels))
        for e in range(0, count, length):
            m = min(length, count - e)
            span = c * count + e, (channels.stop - 1) * count + e + m
            flat = [a.read(*span) for a in read] + [a.buffer[: span[1] - span[0]] for a in written]
            tiles = slice(e // tile, -(-(e + m) // tile))
            yield Layout(channels.stop - c, m), channels, tiles, flat
            for a in written:
                a.write(*span)


class _Spans:
    """Flat spans of an array in C order, by way of a buffer; all memory is there from the start."""

    def __init__(self, a: Array, access: str, size: int) -> None:
        self.buffer = np.empty(size, a.dtype)
        self._packed = _packed([a], [access], "ranged")

    def _pieces(self, begin: int, end: int) -> Iterator[tuple[Array, Array]]:
        self._packed.iterrange = begin, end
        at = 0
        for piece in self._packed:
            yield piece, self.buffer[at : at + piece.size]
            at += piece.size

    def read(self, begin: int, end: int) -> Array:
        for piece, part in self._pieces(begin, end):
            part[...] = piece
        return self.buffer[: end - begin]

    def write(self, begin: int, end: int) -> None:
        for piece, part in self._pieces(begin, end):
            piece[...] = part


def reordered(granularity: Granularity, order: tuple[int, ...] | None) -> bool:
    """Whether `order` changes the order of the elements within a channel."""
    if order is None:
        return False
    within = [i for i in order if i != granularity.axis]
    return within != sorted(within)
