"""From arrays as they come to flat pieces that a kernel takes.

Contiguous arrays are one piece, dense permuted ones are one piece in memory order; anything else
(strided, broadcast, unaligned, or arrays that lie differently) is packed piece by
piece into buffers that stay in cache, so no temporary of the size of the input is ever made.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
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

    layout = Layout(granularity.channels, granularity.inner)
    size = arrays[0].size
    buffers = [a if a is None else _buffer(a, min(PIECE, size)) for a in (*inputs, *outputs)]
    for first in range(0, size, PIECE):
        stop = min(first + PIECE, size)
        packed = [_packed(a, first, stop, b) for a, b in zip(inputs, buffers, strict=False)]
        results = [
            a if a is None else _room(a, first, stop, b)
            for a, b in zip(outputs, buffers[len(inputs) :], strict=True)
        ]
        yield layout, first, packed + results
        for a, result in zip(outputs, results, strict=True):
            if a is not None and result is not None:
                _unpack(a, first, stop, result)


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


def _buffer(a: Array, size: int) -> Array | None:
    """Room for a piece, of an array that has none of its own."""
    return None if plain(a) else np.empty(size, a.dtype)


def _packed(a: Array, first: int, stop: int, buffer: Array | None) -> Array:
    """The elements [first, stop) in C order."""
    flat = _room(a, first, stop, buffer)
    if buffer is not None:
        for part, its in _parts(a, first, stop, flat):
            np.copyto(its, part)
    return flat


def _room(a: Array, first: int, stop: int, buffer: Array | None) -> Array:
    """Where the elements [first, stop) are to be flat: in the array itself, or in its buffer."""
    return a.reshape(-1)[first:stop] if buffer is None else buffer[: stop - first]


def _unpack(a: Array, first: int, stop: int, flat: Array) -> None:
    """Bring the elements [first, stop) from where they are flat to where they belong."""
    if not plain(a):
        for part, its in _parts(a, first, stop, flat):
            np.copyto(part, its)


def _parts(a: Array, first: int, stop: int, flat: Array) -> Iterator[tuple[Array, Array]]:
    """Views of `a` that make up [first, stop), each with its piece of `flat` in the same shape."""
    k = 0
    for box in _boxes(a.shape, first, stop):
        part = a[(*box, ...)]
        yield part, flat[k : k + part.size].reshape(part.shape)
        k += part.size


def _boxes(shape: tuple[int, ...], first: int, stop: int) -> Iterator[tuple[int | slice, ...]]:
    """Indices of the boxes that make up the elements [first, stop) of a shape, in C order."""
    if len(shape) < 2:
        yield (slice(first, stop),) if shape else ()
        return
    within = prod(shape[1:])
    (row, skip), (last, rest) = divmod(first, within), divmod(stop, within)
    if row == last:
        yield from ((row, *box) for box in _boxes(shape[1:], skip, rest))
        return
    if skip:
        yield from ((row, *box) for box in _boxes(shape[1:], skip, within))
        row += 1
    if row < last:
        yield (slice(row, last),)
    if rest:
        yield from ((last, *box) for box in _boxes(shape[1:], 0, rest))


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
    buffers = [_buffer(a, some * length) for a in arrays]
    for c in range(0, granularity.channels, some):
        channels = slice(c, min(c + some, granularity.channels))
        for e in range(0, count, length):
            m = min(length, count - e)
            first, stop = c * count + e, (channels.stop - 1) * count + e + m
            flat = [
                (_packed if i < len(inputs) else _room)(a, first, stop, b)
                for i, (a, b) in enumerate(zip(arrays, buffers, strict=True))
            ]
            tiles = slice(e // tile, -(-(e + m) // tile))
            yield Layout(channels.stop - c, m), channels, tiles, flat
            for a, result in zip(arrays[len(inputs) :], flat[len(inputs) :], strict=True):
                _unpack(a, first, stop, result)


def reordered(granularity: Granularity, order: tuple[int, ...] | None) -> bool:
    """Whether `order` changes the order of the elements within a channel."""
    if order is None:
        return False
    within = [i for i in order if i != granularity.axis]
    return within != sorted(within)
