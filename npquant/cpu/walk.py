"""From arrays as they come to flat pieces that a kernel takes.

Contiguous arrays are one piece, dense permuted ones are one piece in memory order; anything else
(strided, broadcast, unaligned, or arrays that lie differently) is packed piece by
piece into buffers that stay in cache, so no temporary of the size of the input is ever made.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from npquant.layout import Granularity, Layout, Spans, memory_order

Array = np.ndarray[Any, Any]

#: Elements of a packed piece: two or three buffers of it fit a second-level cache.
PIECE = 1 << 14

#: Scales and as many zero points that are put into the order of the data at a time.
SCALES = 1 << 15


def plain(x: Array) -> bool:
    """Whether a kernel can take `x` in C order as it is."""
    flags = x.flags
    return flags.carray or (flags.c_contiguous and flags.aligned)


class Piece(NamedTuple):
    """How a flat piece is cut.

    `channels` runs of `inner` elements, again and again; where `repeats` is not 0, after so many
    times come as many other channels. `first` is the place of its first element in all of this.
    """

    channels: int
    inner: int
    repeats: int
    first: int


def pieces(
    granularity: Granularity,
    inputs: tuple[Array, ...],
    outputs: tuple[Array | None, ...],
    qparams: tuple[Any, ...] = (),
) -> Iterator[tuple[Piece, list[Any], tuple[Any, ...]]]:
    """Yield (piece, flat arrays, qparams of its channels) until everything is done.

    Outputs may be None. What the consumer writes to the flat outputs is in the outputs once it asks
    for the next piece.
    """
    arrays = [a for a in (*inputs, *outputs) if a is not None]
    shape, size = arrays[0].shape, arrays[0].size
    if size == 0:
        return
    alike, order = _common_order(arrays)
    if alike:
        layout = granularity.layout(shape, order)
        flat = [a if a is None else _flat(a, order) for a in (*inputs, *outputs)]
        if layout is not None:
            yield Piece(layout.channels, layout.inner or size, 0, 0), flat, qparams
            return
        spans = granularity.spans(shape, order)  # type: ignore[arg-type]
        if spans is not None and _worth(spans):
            grid = *shape[:-1], shape[-1] // granularity.inner
            ordered = [q.reshape(grid).transpose(order) for q in qparams]
            yield from _parts(spans, flat, ordered)
            return

    first = 0
    access = ["readonly"] * len(inputs) + ["writeonly"] * (len(arrays) - len(inputs))
    with _packed(arrays, access) as packed:
        for part in packed:
            each = iter(part if type(part) is tuple else (part,))
            found: list[Any] = [a if a is None else next(each) for a in (*inputs, *outputs)]
            piece = Piece(granularity.channels, granularity.inner or size, 0, first)
            yield piece, found, qparams
            first += found[0].size


def _worth(spans: Spans) -> bool:
    """Whether tables of what lies side by side are worth making, and small."""
    _, run, beside = spans
    return beside <= SCALES and (beside >= 16 or beside == 1 or run * beside >= 1024)


def _parts(
    spans: Spans, flat: list[Any], qparams: list[Array]
) -> Iterator[tuple[Piece, list[Any], tuple[Any, ...]]]:
    """Yield as `pieces`: flat data as it lies, and the qparams, put into its order part by part."""
    outer, run, beside = spans
    count = min(SCALES // beside, outer)
    rooms = [_Spans(q, "readonly", count * beside) for q in qparams]
    for a in range(0, outer, count):
        z = min(a + count, outer)
        piece = Piece(z - a, run, 0, 0) if beside == 1 else Piece(beside, 1, run, 0)
        part = slice(a * run * beside, z * run * beside)
        scales = tuple([room.read(a * beside, z * beside) for room in rooms])
        yield piece, [x if x is None else x[part] for x in flat], scales


def _packed(arrays: list[Array], access: list[str], *flags: Any) -> Any:
    """NumPy's iterator over the arrays in C order, in flat pieces that a kernel can take.

    It has all of its buffers from the start: where there is no memory for them, nothing has been
    written.
    """
    kinds: list[Any] = [[kind, "contig", "aligned"] for kind in access]
    return np.nditer(
        arrays, ["buffered", "external_loop", *flags], kinds, order="C", buffersize=PIECE
    )


def _common_order(arrays: list[Array]) -> tuple[bool, tuple[int, ...] | None]:
    """Whether all `arrays` are dense and lie alike, and the order of their axes (None: C)."""
    if all(plain(a) for a in arrays):
        return True, None
    orders = {memory_order(a) for a in arrays}
    if len(orders) > 1 or not all(a.flags.aligned for a in arrays):
        return False, None
    order = orders.pop()
    return order is not None, order


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
    alike, order = _common_order(arrays)
    layout = granularity.layout(arrays[0].shape, order) if alike else None
    if layout is not None and not (ordered and reordered(granularity, order)):
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
