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
from npquant.layout import Granularity, Layout, Spans, memory_order, order_of_strides

Array = np.ndarray[Any, Any]

#: Elements of a packed piece: two or three buffers of it fit a second-level cache.
PIECE = 1 << 14

#: Bytes of an array that are packed at a time for whole channels: so that three arrays, and what is
#: beside them, stay below a MiB.
ROOM = 3 << 16

#: Elements of a span at least whose rows are reduced as they lie.
SPAN = 1 << 10

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
    alike, order = _common_order(arrays)
    if alike:
        layout = granularity.layout(shape, order)
        flat = [a if a is None else flattened(a, order) for a in (*inputs, *outputs)]
        if layout is not None:
            yield Piece(layout.channels, layout.inner or size), flat, qparams
            return
        spans = granularity.spans(shape, order)  # type: ignore[arg-type]
        if spans is not None and _worth(spans):
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
    spans_of = [_Packed(a, PIECE) for a in inputs]
    rooms: list[Any] = [a if a is None else _Packed(a, PIECE) for a in outputs]
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
        if spans is not None and _worth(spans):
            return None
    alike, order = _lie_alike(*[w for w in lying[:outputs] if w is not None])
    layout = granularity.layout(shape, order) if alike else None
    if layout is None:
        order = None
    turned = [w if w is None or order is None else _transposed(w, order) for w in lying]
    bent = [None if w is None or strided.contiguous(*w) else w for w in turned]
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


def _worth(spans: Spans) -> bool:
    """Whether tables of what lies side by side are worth making, and small."""
    _, run, beside = spans
    return beside <= SCALES and (beside >= 16 or beside == 1 or run * beside >= 1024)


def in_one_part(spans: Spans) -> bool:
    """The same, and whether all their scales are taken together."""
    return _worth(spans) and spans.outer * spans.beside <= SCALES


def _parts(
    spans: Spans, flat: list[Any], qparams: list[Array]
) -> Iterator[tuple[Piece, list[Any], tuple[Any, ...]]]:
    """Yield as `pieces`: flat data as it lies, and the qparams, put into its order part by part."""
    outer, run, beside = spans
    count = min(SCALES // beside, outer)
    rooms = [_Packed(q, count * beside) for q in qparams]
    for a in range(0, outer, count):
        z = min(a + count, outer)
        piece = Piece(z - a, run) if beside == 1 else Piece(beside, 1, run)
        part = slice(a * run * beside, z * run * beside)
        scales = tuple([room.read(a * beside, z * beside) for room in rooms])
        yield piece, [x if x is None else x[part] for x in flat], scales


def _common_order(arrays: list[Array]) -> tuple[bool, tuple[int, ...] | None]:
    """Whether all `arrays` are dense and lie alike, and the order of their axes (None: C)."""
    if all(plain(a) for a in arrays):
        return True, None
    if not all(a.flags.aligned for a in arrays):
        return False, None
    return _lie_alike(*map(strided.lying, arrays))


@lru_cache(maxsize=256)
def _lie_alike(*lying: strided.Lying) -> tuple[bool, tuple[int, ...] | None]:
    """The same of arrays that lie so."""
    if all(strided.contiguous(*w) for w in lying):
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


def channel_pieces(
    granularity: Granularity,
    inputs: tuple[Array, ...],
    outputs: tuple[Array, ...],
    tile: int,
    ordered: bool,
    pairs: bool = False,
) -> Iterator[tuple[Layout, slice, slice, list[Any]]]:
    """Yield (layout, channels, tiles, flat arrays): as `pieces`, but of whole tiles of channels.

    `channels` and `tiles` say which ones a piece holds. With `ordered`, the elements of a channel
    keep their logical order; without, any order in memory will do. With `pairs`, a large input may
    be every second element of memory, which `strided.key` tells.
    """
    arrays = [*inputs, *outputs]
    size = arrays[0].size
    count = size // granularity.channels
    found, order = _as_they_lie(granularity, arrays, ordered)
    if pairs and found is None and size > PIECE and all(map(readable, arrays)):
        found = granularity.layout(arrays[0].shape, None)
    if isinstance(found, Layout):
        everything = slice(0, granularity.channels), slice(0, -(-count // tile))
        yield found, *everything, [flattened(a, order) for a in arrays]
        return
    arrays = [_channels_first(granularity, a) for a in arrays]
    # Now a channel is one run of `count` elements in C order: take some channels, or some tiles.
    most = ROOM // max(x.itemsize for x in arrays)
    rows = strided.BLOCK * max(map(strided.crossed, arrays))
    if ordered and rows > most and size > PIECE and _in_tiles(arrays, tile, count):
        yield from _tiles_of_rows(count, len(inputs), arrays, tile, most)
        return
    most = most // rows * rows if 0 < rows < most else most
    some, length = max(1, most // count), min(count, most // tile * tile)
    rooms = [_Packed(x, min(some * length, size)) for x in arrays]
    read, written = rooms[: len(inputs)], rooms[len(inputs) :]
    for c in range(0, granularity.channels, some):
        channels = slice(c, min(c + some, granularity.channels))
        for e in range(0, count, length):
            m = min(length, count - e)
            span = c * count + e, (channels.stop - 1) * count + e + m
            flat = [x.read(*span) for x in read] + [x.room(*span) for x in written]
            tiles = slice(e // tile, -(-(e + m) // tile))
            yield Layout(channels.stop - c, m), channels, tiles, flat
            for x in written:
                x.write(*span)


def _in_tiles(arrays: list[Array], tile: int, count: int) -> bool:
    """Whether all arrays are the same long rows that cross memory, each of whole tiles.

    And of one channel, of `count` elements.
    """
    lengths = {(len(strided.joined(a)), strided.crossed(a)) for a in arrays}
    axes, length = lengths.pop()
    alike = not lengths and axes == 2 and length > 0 and length % tile == count % length == 0
    return alike and all(map(strided.aligned, arrays))


def _tiles_of_rows(
    count: int, inputs: int, arrays: list[Array], tile: int, most: int
) -> Iterator[tuple[Layout, slice, slice, list[Any]]]:
    """As `channel_pieces`, a tile of some rows at a time: a row alone would use no line whole."""
    (rows, _), (length, _) = strided.joined(arrays[0])
    some = min(strided.BLOCK, most // tile, rows)
    rooms = [_Packed(a, some * tile) for a in arrays]
    for top in range(0, rows, some):
        n = min(some, rows - top)
        for e in range(0, length, tile):
            for room in rooms[:inputs]:
                room.move_box(strided.gather_kernel, top, n, e, tile)
            for r in range(n):
                channel, place = divmod((top + r) * length + e, count)
                part = slice(r * tile, (r + 1) * tile)
                t = place // tile
                flat = [room.room(0, some * tile)[part] for room in rooms]
                yield Layout(1, tile), slice(channel, channel + 1), slice(t, t + 1), flat
            for room in rooms[inputs:]:
                room.move_box(strided.scatter_kernel, top, n, e, tile)


def as_they_lie(
    granularity: Granularity, x: Array
) -> tuple[Layout | Spans | None, tuple[int, ...] | None]:
    """How the channels of `x` lie in memory, if they can be taken so in any order, and its axes."""
    if plain(x) or strided.every_second(x):
        return granularity.layout(x.shape, None), None
    return _as_they_lie(granularity, [x], ordered=False)


def by_view(granularity: Granularity, x: Array) -> tuple[Array, Array] | None:
    """The views of `x` alone with its channels first, and it; None where `channel_pieces` is best.

    That is where data are few or not aligned. Those that can be taken `as_they_lie` need no views.
    """
    if x.size <= PIECE or not strided.aligned(x):
        return None
    x = _channels_first(granularity, x)
    return strided.views((x,), flat=lambda a: False).rows, strided.forward(x)


def views_in_boxes(
    granularity: Granularity, arrays: tuple[Array, ...], tile: int
) -> tuple[Array, int, int, int, list[Array]] | None:
    """How a kernel packs data whose order matters; None where `channel_pieces` is best.

    Returns (views, some, length, count, arrays): the views are of lines of `count` elements,
    which are channels or whole tiles of one. Boxes of `some` lines and `length` elements follow
    one another in them, and where `length` is less than `count`, it is whole tiles.
    """
    size, most = arrays[0].size, ROOM // max(x.itemsize for x in arrays)
    if size <= PIECE or not all(map(strided.aligned, arrays)):
        return None
    if _as_they_lie(granularity, list(arrays), ordered=True)[0] is not None:
        return None
    moved = [_channels_first(granularity, a) for a in arrays]
    forward = list(map(strided.forward, moved))
    views, _ = strided.views(tuple(moved), flat=lambda a: False)
    count = size // granularity.channels
    rows = strided.BLOCK * max(map(strided.crossed, moved))
    if rows <= most:
        most = most // rows * rows if rows else min(2 * PIECE, *map(strided.row, moved))
        some, length = max(1, most // count), min(count, -(-most // tile) * tile)
        return views, some, length, count, forward
    if not _in_tiles(moved, tile, count):
        return None
    # A line alone would use no line of the cache whole.
    some, length = strided.BLOCK, strided.crossed(moved[0])
    if size // length % some:
        return None
    boxes = np.zeros((len(arrays), 5, 2), np.int64)
    boxes[:, 0] = views[:, 0] + [2, 0]
    for a in (0, 1):
        least = (some, tile)[a]
        boxes[:, 1 + a] = views[:, 1 + a] // [least, 1] * [1, least]
        boxes[:, 3 + a] = views[:, 1 + a]
        boxes[:, 3 + a, 0] = least
    return boxes, some, tile, length, forward


class Way(NamedTuple):
    """How one call of a kernel takes arrays that lie so, whose channels are reduced in order."""

    #: The axes that arrays are seen with, the order of these, the one of the channels, and whether
    #: arrays are flat then.
    shape: tuple[int, ...]
    order: tuple[int, ...] | None
    axis: int | None
    flat: bool
    #: How many channels there are, and lines, which are channels or whole tiles of one.
    channels: int
    lines: int
    #: The layout of flat arrays; of others (views, some, length), see `views_in_boxes`.
    told: Any

    def seen(self, a: Array) -> Array:
        """An array as the kernel takes it."""
        if a.shape != self.shape:
            a = a.reshape(self.shape)
        if self.order is not None:
            a = a.transpose(self.order)
        if self.flat:
            return a if a.ndim == 1 else a.reshape(-1)
        return strided.forward(np.moveaxis(a, self.axis, 0) if self.axis else a)

    @property
    def turned(self) -> bool:
        """Whether channels follow one another in the order of memory, not in their own."""
        return self.order is not None and self.axis is None

    def in_memory(self, a: Array, n: int) -> Array:
        """`n` values, one a channel or one for all, for each line that the kernel takes."""
        if self.turned and n == self.channels:
            a = turned(a, self.shape, self.order).reshape(-1)  # type: ignore[arg-type]
        return a if n == self.lines else a.repeat(self.lines // n)

    def in_order(self, a: Array) -> Array:
        """Two values of each channel, from the order of memory to that of the channels."""
        found = np.empty((2, self.channels), a.dtype)
        for to, values in zip(found, a, strict=True):
            there = turned(to, self.shape, self.order)  # type: ignore[arg-type]
            there[...] = values.reshape(there.shape)
        return found


def way_of(granularity: Granularity, arrays: tuple[Array, ...], tile: int, most: int) -> Way | None:
    """How one call takes arrays; None where it cannot, or has more than `most` channels."""
    channels, inner, axis = granularity
    if channels > most or not all(map(strided.aligned, arrays)):
        return None
    shape = arrays[0].shape
    if axis is None and inner > (shape[-1] if shape else 1):
        arrays = last_axes_joined(arrays, inner)
        shape = arrays[0].shape
    beside = rows_beside(granularity, list(arrays))
    order = rows_in_memory(granularity, arrays[1]) if beside is None else beside[0]
    if order is not None:
        arrays = tuple([a.transpose(order) for a in arrays])
    if beside is not None:
        told: Any = Layout(beside[1].beside, 1)
        return Way(shape, order, None, True, channels, channels, told)
    *data, y = arrays
    flat = plain(y) and all(map(plain if plain(data[0]) else strided.every_second, data))
    layout = Layout(channels, inner)
    if not flat and axis is not None:
        found, lying = _as_they_lie(granularity, list(arrays), ordered=True)
        if isinstance(found, Layout):
            flat, layout, order = True, found, lying
    if flat:
        return Way(shape, order, axis, True, channels, channels, layout)
    boxes = views_in_boxes(granularity, arrays, tile)
    if boxes is None:
        return None
    views, some, length, count, _ = boxes
    return Way(shape, order, axis, False, channels, y.size // count, (views, some, length))


def _as_they_lie(
    granularity: Granularity, arrays: list[Array], ordered: bool
) -> tuple[Layout | Spans | None, tuple[int, ...] | None]:
    """How channels lie in memory, if they can be taken so, and the order of the axes."""
    alike, order = _common_order(arrays)
    shape = arrays[0].shape
    if not alike or (ordered and granularity.reorders(order)):
        return None, order
    layout = granularity.layout(shape, order)
    if layout is not None or ordered:
        return layout, order
    spans = granularity.spans(shape, order)  # type: ignore[arg-type]
    if spans is None or spans.run * spans.beside < SPAN:
        return None, order
    # Whole rows alone, as their groups would not follow one another; and in their own order.
    rows = [i for i in order or () if i != len(shape) - 1]
    return spans if spans.run == shape[-1] and rows == sorted(rows) else None, order


def _channels_first(granularity: Granularity, a: Array) -> Array:
    return np.moveaxis(a, granularity.axis, 0) if granularity.axis else a


class _Packed:
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
            self._words, a = a.itemsize, a[..., None].view(np.uint8)
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


def rows_in_memory(granularity: Granularity, x: Array) -> tuple[int, ...] | None:
    """The axes of `x` in which its rows, tokens or groups, lie as in memory; the last stays last.

    None if they do already. Rows in another order are taken so; what belongs to them follows.
    """
    channels, inner, axis = granularity
    last = x.ndim - 1
    if axis is not None or channels == 1 or last < 2 or x.shape[last] % inner or plain(x):
        return None
    order = sorted(range(last), key=lambda i: -abs(x.strides[i]) if x.shape[i] > 1 else 0)
    return None if order == list(range(last)) else (*order, last)


def rows_beside(
    granularity: Granularity, arrays: list[Array]
) -> tuple[tuple[int, ...], Spans] | None:
    """How rows, tokens or groups, lie side by side in memory: the order of the axes, and the spans.

    None where they do not, or are too few and short.
    """
    if granularity.axis is not None or granularity.channels == 1 or plain(arrays[0]):
        return None
    alike, order = _common_order(arrays)
    spans = granularity.spans(arrays[0].shape, order) if alike and order is not None else None
    if spans is None or spans.beside == 1 or spans.run == 1 or not _worth(spans):
        return None
    return order, spans  # type: ignore[return-value]


def turned(a: Array, shape: tuple[int, ...], order: tuple[int, ...]) -> Array:
    """One value a row, for rows of `shape` whose axes are in `order`: a view."""
    return a.reshape(*shape[:-1], -1).transpose(order)


def last_axes_joined(arrays: tuple[Array, ...], inner: int) -> tuple[Array, ...]:
    """The arrays with their last axes, of `inner` elements, as one, if all can be seen so."""
    shape = arrays[0].shape
    first = len(shape) - 1
    while prod(shape[first:]) != inner:
        first -= 1
    if all(len(strided.joined(a[(0,) * first])) == 1 for a in arrays):
        arrays = tuple([a.reshape(*shape[:first], inner) for a in arrays])
    return arrays
