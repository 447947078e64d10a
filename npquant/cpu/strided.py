"""Arrays of any strides, read and written in C order, in place or through flat rooms.

A *view* of an array tells where its elements lie: rows of (length, step), from the slowest axis to
the fastest, in C order, behind one of (how many axes, where the first element lies). Steps are
counted in elements, and places from the one that comes first in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from npquant.cpu.borrowed import Borrowed, address, data_of, lent
from npquant.cpu.fetching import far
from npquant.cpu.lines import FAR
from npquant.cpu.lowered import called, lowered, overload
from npquant.cpu.target import Kernel, Types, array_type

Array = np.ndarray[Any, Any]
Axis = tuple[int, int]

#: Rows and columns of a block, which is turned in registers.
BLOCK = 8

#: Elements that are taken from twice as many at a time.
THINNED = 16

#: Bytes that are copied at a time.
COPIED = 64

#: Rows of so many elements that follow one another are pieces of their own, which need no room:
#: shorter ones are gathered faster, as the pages of the next ones are not foreseen. So are those
#: up to LONGER_ROW of arrays beyond the caches, and where a mask is made, too. (Measured.)
LONG_ROW, LONGER_ROW = 1024, 2048

#: Elements that are gathered at a time for a loop over flat data: they stay in the first cache.
#: Where rows cross memory, what shares lines of the cache, of all arrays up to CROSSED.
GATHERED, CROSSED = 1 << 13, 1 << 15


class Views(NamedTuple):
    """The views of some arrays, and how many elements to take at a time, at most."""

    rows: Array
    piece: int


#: How an array lies: its shape, its strides, and the bytes of an element.
Lying = tuple[tuple[int, ...], tuple[int, ...], int]


def lying(a: Array) -> Lying:
    return a.shape, a.strides, a.itemsize


def forward(a: Array) -> Array:
    """`a` with its first element first in memory too, as kernels take what they have a view of."""
    if min(a.strides, default=0) >= 0:
        return a
    return a[tuple([slice(None, None, -1 if s < 0 else 1) for s in a.strides])]


@lru_cache(maxsize=256)
def _joined(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> tuple[Axis, ...]:
    axes: list[Axis] = []
    for n, s in zip(shape, strides, strict=True):
        if n == 1:
            continue
        if axes and axes[-1][1] == n * s:
            axes[-1] = axes[-1][0] * n, s
        else:
            axes.append((n, s))
    return tuple(axes) or ((1, itemsize),)


def joined(a: Array) -> tuple[Axis, ...]:
    """(length, stride) of the axes of `a`, as few as there can be in C order."""
    return _joined(*lying(a))


@lru_cache(maxsize=256)
def _view(*lying: Any) -> Array:
    axes, itemsize = _joined(*lying), lying[-1]
    first = -sum((n - 1) * min(s, 0) for n, s in axes)
    found: Array = np.array([(len(axes), first), *axes], np.int64) // [1, itemsize]
    found.setflags(write=False)
    return found


def view(a: Array) -> Array:
    """The view of `a`, which is kept for the next one that lies like it."""
    return _view(*lying(a))


@lru_cache(maxsize=256)
def in_c_order(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> bool:
    """Whether what lies so, and is not empty, follows one another in C order."""
    return _joined(shape, strides, itemsize) == ((prod(shape), itemsize),)


@lru_cache(maxsize=256)
def steps_over_every_second(
    shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int
) -> bool:
    """Whether what lies so is every second element of memory, of few enough bytes."""
    return itemsize <= 4 and _joined(shape, strides, itemsize) == ((prod(shape), 2 * itemsize),)


def aligned(a: Array) -> bool:
    """Whether all elements of `a` lie where its dtype wants them."""
    return a.flags.aligned and _whole_steps(*lying(a))


@lru_cache(maxsize=256)
def _whole_steps(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> bool:
    """Nothing steps along an axis of one, whatever NumPy says."""
    return not any(s % itemsize for n, s in zip(shape, strides, strict=True) if n > 1)


def every_second(a: Array) -> bool:
    """Whether kernels can read `a` as it lies, as every second element of memory."""
    return a.flags.aligned and steps_over_every_second(*lying(a))


def key(a: Array) -> np.dtype[Any]:
    """What stands for `a` in keys of kernels: its dtype, or a pair of it for every second."""
    return a.dtype if a.flags.c_contiguous else _pair(a.dtype)


@cache
def _pair(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype((dtype, 2))


def row(a: Array) -> int:
    """How many elements of `a` may be taken at a time, at most, so that none needs room."""
    length, step = joined(a)[-1]
    long = LONG_ROW if a.size < FAR else LONGER_ROW
    return length if step == a.itemsize and length >= long else a.size


def crossed(a: Array) -> int:
    """How long the rows of `a` are, if its neighbours in memory are in no row; else 0."""
    axes = joined(a)
    across = len(axes) > 1 and 0 < abs(axes[-2][1]) < abs(axes[-1][1])
    return axes[-1][0] if across else 0


# --- in a kernel ------------------------------------------------------------------------------


def transpose(x: Any, i: Any, pitch: Any, y: Any, k: Any, to: Any) -> None:
    """Move BLOCK rows of as many, `pitch` apart, to the columns of as many rows, `to` apart."""
    for r in range(BLOCK):
        for c in range(BLOCK):
            y[k + to * c + r] = x[i + pitch * r + c]


def thin(x: Any, i: Any, y: Any, k: Any) -> None:
    """Move every second element to THINNED places. Twice as many are read."""
    for e in range(THINNED):
        y[k + e] = x[i + 2 * e]


def copy(x: Any, i: Any, y: Any, k: Any, n: Any) -> None:
    """Move `n` elements that follow one another."""
    y[k : k + n] = x[i : i + n]


def _block(context: Any, builder: Any, kind: Any, array: Any, at: Any, n: int) -> Any:
    """The place of `n` elements of an array, as a vector."""
    data = data_of(context, builder, kind, array)
    vector = ir.VectorType(context.get_data_type(kind.dtype), n)
    return builder.bitcast(builder.gep(data, [at]), vector.as_pointer())


def _picked(builder: Any, a: Any, b: Any, places: list[int]) -> Any:
    """These elements of two vectors."""
    return builder.shuffle_vector(
        a, b, ir.Constant(ir.VectorType(ir.IntType(32), len(places)), places)
    )


@lowered(transpose)
def _transpose(context: Any, x: Any, i: Any, pitch: Any, y: Any, k: Any, to: Any) -> Any:
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        source, i, pitch, target, k, to = args
        align = context.get_abi_sizeof(context.get_data_type(x.dtype))

        def place(kind: Any, array: Any, first: Any, apart: Any, r: int) -> Any:
            at = builder.add(first, builder.mul(apart, apart.type(r)))
            return _block(context, builder, kind, array, at, BLOCK)

        rows = [builder.load(place(x, source, i, pitch, r), align=align) for r in range(BLOCK)]
        h = BLOCK // 2
        while h:  # squares of h are swapped across the diagonal
            for r in [r for r in range(BLOCK) if not r & h]:
                a, b = rows[r], rows[r + h]
                left = [BLOCK + j - h if j & h else j for j in range(BLOCK)]
                right = [BLOCK + j if j & h else j + h for j in range(BLOCK)]
                rows[r], rows[r + h] = (_picked(builder, a, b, p) for p in (left, right))
            h //= 2
        for r, row in enumerate(rows):
            builder.store(row, place(y, target, k, to, r), align=align)
        return context.get_dummy_value()

    n = types.uintp
    return types.void(x, n, n, y, n, n), codegen


@lowered(thin)
def _thin(context: Any, x: Any, i: Any, y: Any, k: Any) -> Any:
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        source, i, target, k = args
        align = context.get_abi_sizeof(context.get_data_type(x.dtype))
        all_ = builder.load(_block(context, builder, x, source, i, 2 * THINNED), align=align)
        some = _picked(builder, all_, all_, list(range(0, 2 * THINNED, 2)))
        builder.store(some, _block(context, builder, y, target, k, THINNED), align=align)
        return context.get_dummy_value()

    return types.void(x, types.uintp, y, types.uintp), codegen


@lowered(copy)
def _copy(context: Any, x: Any, i: Any, y: Any, k: Any, n: Any) -> Any:
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        source, i, target, k, n = args
        size = context.get_abi_sizeof(context.get_data_type(x.dtype))
        some = n.type(COPIED // size)

        def move(e: Any, count: int) -> None:
            of, to = (
                _block(context, builder, kind, array, builder.add(at, e), count)
                for kind, array, at in ((x, source, i), (y, target, k))
            )
            builder.store(builder.load(of, align=size), to, align=size)

        last = builder.sub(n, some)
        with builder.if_else(builder.icmp_signed("<", last, n.type(0))) as (few, many):
            with few, cgutils.for_range(builder, n) as loop:
                move(loop.index, 1)
            with many:
                with cgutils.for_range_slice(builder, n.type(0), last, some, n.type) as (e, _):
                    move(e, some.constant)
                move(last, some.constant)  # some of these once more
        return context.get_dummy_value()

    n = types.intp
    return types.void(x, n, y, n, n), codegen


def _walk(
    move: Callable[..., None],
    run: Callable[..., None],
    turn: Callable[..., None],
    skip: Callable[..., None] | None,
    deep: int,
) -> Callable[..., None]:
    """Make a loop over `n` elements from the one at `first` on, beside those of a room from `at`.

    ``move(x, i, room, k)`` is done for each, or ``run(x, i, room, k, n)`` for some that follow one
    another. ``turn(x, i, step, room, k, length)`` does a block of rows and columns, `deep` rows in
    turn, and ``skip(x, i, room, k)`` some of every second element.
    """
    skips = skip is not None
    skip = skip or move

    @called
    def along(x: Any, base: Any, step: Any, n: Any, room: Any, at: Any) -> None:
        """A part of a row."""
        i, k, by = np.uintp(base), np.uintp(at), np.uintp(step)
        if step == 1:
            run(x, base, room, at, n)
            return
        if step == -1:
            for e in range(np.uintp(n)):
                move(x, i - e, room, k + e)
            return
        begin = 0
        if skips and step == 2:
            # What a block reads ends before the last one.
            begin = max(n - 1, 0) // THINNED * THINNED
            for e in range(0, begin, THINNED):
                skip(x, i + np.uintp(2 * e), room, k + np.uintp(e))
        for e in range(np.uintp(begin), np.uintp(n)):
            move(x, i + by * e, room, k + e)

    @called
    def across(
        x: Any, base: Any, rows: Any, row_step: Any, length: Any, step: Any, room: Any, at: Any
    ) -> None:
        """Whole rows, whose elements lie nearer to those of other rows than to one another."""
        by, wide, near = np.uintp(step), np.uintp(length), np.uintp(row_step)
        height, width = 0, 0  # of what blocks do
        if row_step == 1:
            height, width = rows // BLOCK * BLOCK, length // BLOCK * BLOCK
            for top in range(0, height, deep):
                for e in range(0, width, BLOCK):
                    for r in range(top, min(height, top + deep), BLOCK):
                        i, k = base + r + e * step, at + r * length + e
                        turn(x, np.uintp(i), by, room, np.uintp(k), wide)
        i, k = np.uintp(base), np.uintp(at)
        for e in range(wide):
            done = height if e < width else 0
            for r in range(np.uintp(done), np.uintp(rows)):
                move(x, i + by * e + near * r, room, k + e + wide * r)

    def walk(x: Any, view: Any, first: Any, n: Any, room: Any, at: Any) -> None:
        axes = view[0, 0]
        length, step = view[axes, 0], view[axes, 1]
        rows, row_step = (view[axes - 1, 0], view[axes - 1, 1]) if axes > 1 else (1, 0)
        while n > 0:
            row = first // length
            column = first - row * length
            plane = row // rows
            row -= plane * rows
            base = view[0, 1] + row * row_step + column * step
            for a in range(axes - 2, 0, -1):
                rest = plane // view[a, 0]
                base += (plane - rest * view[a, 0]) * view[a, 1]
                plane = rest
            some = min(n // length, rows - row)
            if column == 0 and some > 1 and 0 < abs(row_step) < abs(step):
                m = some * length
                across(x, base, some, row_step, length, step, room, at)
            elif column == 0 and some > 1:
                m = some * length
                if step == 1:
                    for r in range(some):
                        run(x, base + r * row_step, room, at + r * length, length)
                for r in range(0 if step == 1 else some):
                    along(x, base + r * row_step, step, length, room, at + r * length)
            else:
                m = min(n, length - column)
                along(x, base, step, m, room, at)
            first += m
            at += m
            n -= m

    return called(walk)


@called
def _read(x: Any, i: Any, room: Any, k: Any) -> None:
    room[k] = x[i]


@called
def _write(x: Any, i: Any, room: Any, k: Any) -> None:
    x[i] = room[k]


@called
def _write_run(x: Any, i: Any, room: Any, k: Any, n: Any) -> None:
    copy(room, k, x, i, n)


@called
def _write_block(x: Any, i: Any, step: Any, room: Any, k: Any, length: Any) -> None:
    transpose(room, k, length, x, i, step)


#: ``gather(x, view, first, n, room, at)``: `n` elements to a room; `scatter` takes them from there.
gather = _walk(_read, copy, transpose, thin, 2 * BLOCK)
scatter = _walk(_write, _write_run, _write_block, None, 8 * BLOCK)


# --- loops over flat data, of data that are not flat ------------------------------------------


def room(x: Any, n: Any) -> Any:
    """Room for `n` elements of an array, or of each of a tuple; None of None."""
    if x is None:
        return None
    if isinstance(x, tuple):
        return tuple([room(a, n) for a in x])
    return np.empty(n, x.dtype)


def lend(room: Any) -> Any:
    """The same without its count of references, which would be counted for every piece.

    What `room` has made is to be kept (`keep`) until all pieces are done.
    """
    if isinstance(room, tuple):
        return tuple([lend(a) for a in room])
    return room


@called
def piece(views: Any) -> Any:
    """How many elements to take at a time, at most."""
    wanted, gathered = 0, 0
    for k in range(views.shape[0]):
        axes = views[k, 0, 0]
        gathered += axes > 0
        if axes > 1 and 0 < abs(views[k, axes - 1, 1]) < abs(views[k, axes, 1]):
            wanted = max(wanted, 2 * BLOCK * views[k, axes, 0])
    return max(GATHERED, min(wanted, CROSSED // max(gathered, 1)))


@called
def overlap(a: Any, b: Any) -> Any:
    """Whether two contiguous arrays of one axis share memory."""
    i, j = address(a), address(b)
    return (i < j + len(b) * b.itemsize) & (j < i + len(a) * a.itemsize)


@called
def long_row(x: Any, mask: Any) -> Any:
    """How long the rows of `x` are, at least, that are pieces of their own."""
    return LONG_ROW if mask is None and not far(x) else LONGER_ROW


@called
def up_to_row(views: Any, first: Any, n: Any, long: Any) -> Any:
    """How many of `n` elements from `first` on are in one row of whatever has `long` ones."""
    for k in range(views.shape[0]):
        axes = views[k, 0, 0]
        length = views[k, axes, 0]
        if axes > 0 and views[k, axes, 1] == 1 and length >= long:
            n = min(n, length - first % length)
    return n


@called
def place(view: Any, first: Any, n: Any) -> Any:
    """Where `n` elements from `first` on follow one another; -1 where they do not."""
    axes = view[0, 0]
    if axes == 0:
        return first
    if view[axes, 1] != 1 or view[axes, 0] - first % view[axes, 0] < n:
        return -1
    at = view[0, 1]
    for a in range(axes, 0, -1):
        rest = first // view[a, 0]
        at += (first - rest * view[a, 0]) * view[a, 1]
        first = rest
    return at


def taken(x: Any, views: Any, k: Any, first: Any, n: Any, room: Any, y: Any) -> Any:
    """`n` elements from `first` on, where they follow one another as they lie, or in a room.

    ``views[k]`` is the view of an array; of a tuple, those of its members follow. They share no
    memory with `y`, or no loop that writes to it would be vectorised.
    """
    if isinstance(x, tuple):
        return tuple([taken(a, views, k + i, first, n, room[i], y) for i, a in enumerate(x)])
    return _one_taken(x, views, k, first, n, room, y)


def _one_taken(x, views, k, first, n, room, y):
    at = place(views[k], first, n)
    if at < 0:
        gather(x, views[k], first, n, room, 0)
    elif not shared(lent(x, at, n), y):
        return lent(x, at, n)
    else:
        copy(x, at, room, 0, n)
    return lent(room, 0, n)


def placed(y: Any, views: Any, k: Any, first: Any, n: Any, room: Any) -> Any:
    """Where `n` results from `first` on are written: in place, or a room to be `given`."""
    return None if y is None else _one_placed(y, views, k, first, n, room)


def _one_placed(y, views, k, first, n, room):
    at = place(views[k], first, n)
    return lent(room, 0, n) if at < 0 else lent(y, at, n)


def given(y: Any, views: Any, k: Any, first: Any, n: Any, room: Any) -> None:
    """Put what is in the room, if it is there, where it belongs."""
    if y is not None:
        _one_given(y, views, k, first, n, room)


def _one_given(y, views, k, first, n, room):
    if place(views[k], first, n) < 0:
        scatter(y, views[k], first, n, room, 0)


def shared(a: Any, b: Any) -> bool:
    """Whether two contiguous arrays, if `b` is one, share memory."""
    return b is not None and np.may_share_memory(a, b)


@overload(room)
def _room(x, n):
    if isinstance(x, types.NoneType):
        return lambda x, n: None
    if isinstance(x, types.Array):
        return lambda x, n: np.empty(n, x.dtype)
    if len(x) == 1:
        return lambda x, n: (room(x[0], n),)
    return lambda x, n: (room(x[0], n), *room(x[1:], n))


@overload(lend)
def _lend(room):
    if isinstance(room, types.NoneType):
        return lambda room: None
    if isinstance(room, types.Array):
        return lambda room: lent(room, 0, len(room))
    if len(room) == 1:
        return lambda room: (lend(room[0]),)
    return lambda room: (lend(room[0]), *lend(room[1:]))


@overload(taken)
def _taken(x, views, k, first, n, room, y):
    if isinstance(x, types.Array):
        return _one_taken
    if len(x) == 1:
        return lambda x, views, k, first, n, room, y: (taken(x[0], views, k, first, n, room[0], y),)
    return lambda x, views, k, first, n, room, y: (
        taken(x[0], views, k, first, n, room[0], y),
        *taken(x[1:], views, k + 1, first, n, room[1:], y),
    )


@overload(placed)
def _placed(y, views, k, first, n, room):
    if isinstance(y, types.NoneType):
        return lambda y, views, k, first, n, room: None
    return _one_placed


@overload(given)
def _given(y, views, k, first, n, room):
    if isinstance(y, types.NoneType):
        return lambda y, views, k, first, n, room: None
    return _one_given


@overload(shared)
def _shared(a, b):
    if isinstance(b, types.NoneType):
        return lambda a, b: False
    return lambda a, b: overlap(a, b)


def written_over(y: Array, x: Array) -> bool:
    """Whether results go where more data lie than a room has place for, as in place.

    A loop that writes to what it reads is not vectorised: it is given a copy of each piece. Callers
    do not ask for results that go past the caches, which wait in a room anyway.
    """
    return y.size > GATHERED and (x is y or np.may_share_memory(x, y))


def views(arrays: tuple[Array | None, ...], flat: Callable[[Array], bool]) -> Views:
    """The views of some arrays; those that are `flat` need none, nor does None: no axes."""
    return views_of(*[None if a is None or flat(a) else lying(a) for a in arrays])


@lru_cache(maxsize=256)
def views_of(*arrays: Lying | None) -> Views:
    """The views of what lies so; None for what needs none."""
    none = np.zeros((1, 2), np.int64)
    every = [none if a is None else _view(*a) for a in arrays]
    found = np.zeros((len(every), max(map(len, every)), 2), np.int64)
    for k, rows in enumerate(every):
        found[k, : len(rows)] = rows
    found.setflags(write=False)
    return Views(found, piece(found))


#: The types of a view and of several.
VIEW, VIEWS = Borrowed(types.int64, 2, "C"), Borrowed(types.int64, 3, "C")


# --- kernels ----------------------------------------------------------------------------------


def _gather(begin: Any, end: Any, first: Any, view: Any, x: Any, room: Any) -> None:
    gather(x, view, first + begin, end - begin, room, begin)


def _scatter(begin: Any, end: Any, first: Any, view: Any, x: Any, room: Any) -> None:
    scatter(x, view, first + begin, end - begin, room, begin)


def _signature(kind: Any) -> Types:
    data = array_type(kind)
    return types.intp, VIEW, data, data


gather_kernel = Kernel(_gather, "gather", _signature, 4)
scatter_kernel = Kernel(_scatter, "scatter", _signature, 4)
