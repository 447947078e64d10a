"""From arrays as they come to whole channels, whose elements a kernel reduces.

Where channels lie one after another in memory, or side by side, a kernel takes flat arrays; else it
packs what it needs by views (`strided.py`), or is told of some channels at a time, packed before.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any, NamedTuple

import numpy as np

from npquant.cpu import strided
from npquant.cpu.walk import PIECE, Packed, common_order, flattened, plain, readable, worth
from npquant.layout import Granularity, Layout, Spans

Array = np.ndarray[Any, Any]

#: Bytes of an array that are packed at a time for whole channels: so that three arrays, and what is
#: beside them, stay below a MiB.
ROOM = 3 << 16

#: Elements of a span at least whose rows are reduced as they lie.
SPAN = 1 << 10


class Part(NamedTuple):
    """Some channels of arrays, to be done by themselves."""

    granularity: Granularity
    #: Where its data are.
    data: tuple[slice, ...]
    #: The shape of values, one a channel, the order of its axes, and where its own are then.
    grid: tuple[int, ...]
    order: tuple[int, ...] | None
    values: tuple[slice, ...]

    def _there(self, values: Array) -> Array:
        values = values.reshape(self.grid)
        return (values if self.order is None else values.transpose(self.order))[self.values]

    def of(self, values: Array) -> Array:
        """Its values, contiguous: a view if they are that in memory, too."""
        return np.ascontiguousarray(self._there(values)).reshape(-1)

    def room(self, values: Array) -> Array:
        """Where these are to be written: there, if they are contiguous."""
        there = self._there(values)
        return there.reshape(-1) if there.flags.c_contiguous else np.empty(there.size, there.dtype)

    def put(self, values: Array, made: Array) -> None:
        """Take what was written to such a room."""
        there = self._there(values)
        if not there.flags.c_contiguous:
            there[...] = made.reshape(there.shape)


def parts(
    granularity: Granularity, arrays: tuple[Array, ...], most: int
) -> Iterator[tuple[Part, list[Array]]]:
    """Parts of arrays of more than `most` channels, which then have no more, or less than all.

    Rows come as they lie in the last array, and an axis is cut that makes parts as long as can be.
    """
    channels, inner, axis = granularity
    whole = (slice(None),)
    if axis is not None:
        for c in range(0, channels, most):
            some = slice(c, min(c + most, channels))
            there = Granularity(some.stop - c, inner, axis)
            part = Part(there, (*whole * axis, some), (channels,), None, (some,))
            yield part, [a[part.data] for a in arrays]
        return
    if all(map(plain, arrays)):
        arrays = tuple([a.reshape(channels, inner) for a in arrays])
    shape, order = arrays[0].shape, rows_in_memory(granularity, arrays[-1])
    last, unit = len(shape) - 1, inner
    lengths = grid = (*shape[:-1], shape[-1] // inner)  # tokens, or groups of the last axis
    if order is not None:
        arrays = tuple([a.transpose(order) for a in arrays])
        lengths = tuple([grid[i] for i in order])
    cut = [i for i, n in enumerate(lengths) if n > 1 and channels // n <= most]
    if cut:
        steps = arrays[-1].strides
        i = max(cut, key=lambda i: abs(steps[i]) * (unit if i == last else 1))
    else:
        i = next(i for i, n in enumerate(lengths) if n > 1)
    step = max(1, most * lengths[i] // channels)
    for a in range(0, lengths[i], step):
        some = slice(a, min(a + step, lengths[i]))
        run = slice(some.start * unit, some.stop * unit) if i == last else some
        there = Granularity(channels // lengths[i] * (some.stop - a), inner, None)
        part = Part(there, (*whole * i, run), grid, order, (*whole * i, some))
        yield part, [a[part.data] for a in arrays]


def leading(shape: tuple[int, ...], rows: int, most: int) -> Iterator[tuple[tuple[Any, ...], int]]:
    """Where parts of an array of so many rows are, no more than `most`, in order, and of how many.

    A row is whole last axes.
    """
    axis, each = 0, rows
    while each > most:
        each //= shape[axis]
        axis += 1
    if axis == 0:
        yield (), rows
        return
    step = most // each
    for place in np.ndindex(shape[: axis - 1]):
        for a in range(0, shape[axis - 1], step):
            z = min(a + step, shape[axis - 1])
            yield (*place, slice(a, z)), (z - a) * each


def as_they_lie(
    granularity: Granularity, x: Array
) -> tuple[Layout | Spans | None, tuple[int, ...] | None]:
    """How the channels of `x` lie in memory, if they can be taken so in any order, and its axes."""
    if plain(x) or strided.every_second(x):
        return granularity.layout(x.shape, None), None
    return _as_they_lie(granularity, [x], ordered=False)


def _as_they_lie(
    granularity: Granularity, arrays: list[Array], ordered: bool
) -> tuple[Layout | Spans | None, tuple[int, ...] | None]:
    """How channels lie in memory, if they can be taken so, and the order of the axes."""
    alike, order = common_order(arrays)
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
    alike, order = common_order(arrays)
    spans = granularity.spans(arrays[0].shape, order) if alike and order is not None else None
    if spans is None or spans.beside == 1 or spans.run == 1 or not worth(spans):
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


def by_view(granularity: Granularity, x: Array) -> tuple[Array, Array] | None:
    """The views of `x` alone with its channels first, and it; None where `channel_pieces` is best.

    That is where data are few or not aligned. Those that can be taken `as_they_lie` need no views.
    """
    if x.size <= PIECE or not strided.aligned(x):
        return None
    x = _channels_first(granularity, x)
    return strided.view(x)[None], strided.forward(x)


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
    views, _ = strided.views_of(*map(strided.lying, moved))
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
    #: Whether channels follow one another in the order of memory, not in their own.
    turned: bool
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

    def in_memory(self, a: Array, n: int) -> Array:
        """`n` values, one a channel or one for all, for each line that the kernel takes."""
        if self.turned and n == self.channels:
            a = turned(a, self.shape, self.order).reshape(-1)  # type: ignore[arg-type]
        return a if n == self.lines else a.repeat(self.lines // n)

    def put(self, found: Array, *into: Array) -> None:
        """Write values of each channel, in the order of memory, to arrays in that of channels."""
        for to, values in zip(into, found, strict=True):
            there = turned(to, self.shape, self.order)  # type: ignore[arg-type]
            there[...] = values.reshape(there.shape)


def way_of(granularity: Granularity, arrays: tuple[Array, ...], tile: int) -> Way | None:
    """How one call takes arrays; None where it cannot."""
    channels, inner, axis = granularity
    if not all(map(strided.aligned, arrays)):
        return None
    shape = arrays[0].shape
    if axis is None and inner > (shape[-1] if shape else 1):
        arrays = last_axes_joined(arrays, inner)
        shape = arrays[0].shape
    beside = rows_beside(granularity, list(arrays))
    order = rows_in_memory(granularity, arrays[1]) if beside is None else beside[0]
    around = False
    if order is not None:
        arrays = tuple([a.transpose(order) for a in arrays])
        grid = *shape[:-1], channels // prod(shape[:-1])
        seen = [i for i in order if grid[i] > 1]
        around = seen != sorted(seen)
    if beside is not None:
        told: Any = Layout(beside[1].beside, 1)
        return Way(shape, order, None, True, around, channels, channels, told)
    *data, y = arrays
    flat = plain(y) and all(map(plain if plain(data[0]) else strided.every_second, data))
    layout = Layout(channels, inner)
    if not flat and axis is not None:
        found, lying = _as_they_lie(granularity, list(arrays), ordered=True)
        if isinstance(found, Layout):
            flat, layout, order = True, found, lying
    if flat:
        return Way(shape, order, axis, True, around, channels, channels, layout)
    boxes = views_in_boxes(granularity, arrays, tile)
    if boxes is None:
        return None
    views, some, length, count, _ = boxes
    told = views, some, length
    return Way(shape, order, axis, False, around, channels, y.size // count, told)


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
    rooms = [Packed(x, min(some * length, size)) for x in arrays]
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
    rooms = [Packed(a, some * tile) for a in arrays]
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


def _channels_first(granularity: Granularity, a: Array) -> Array:
    return np.moveaxis(a, granularity.axis, 0) if granularity.axis else a
