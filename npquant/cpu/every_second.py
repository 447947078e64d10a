"""Every second element of memory, as slices `x[..., ::2]` are: they are read in vectors.

An element is half of a pair of them that begins where pairs do. So a pair lies in one page, and can
be read though its other half is not the array's. A compiler would gather elements one by one.
"""

from __future__ import annotations

import operator
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils, errors
from numba.core.imputils import impl_ret_borrowed
from numba.extending import lower_builtin

from npquant.cpu.borrowed import EverySecond, data_of
from npquant.cpu.lines import LINE
from npquant.cpu.lowered import lowered
from npquant.cpu.rooms import on_stack


def rooms_for(n: Any, x: Any) -> Any:
    """Rooms as `local` ones for `n` elements of an array, or of each of a tuple, of which any is of
    every second element; else None.
    """


@lowered(rooms_for)
def _rooms_for(context: Any, n: Any, x: Any) -> Any:
    if not isinstance(n, types.IntegerLiteral):
        raise errors.RequireLiteralValue("n")
    size = n.literal_value
    several = isinstance(x, types.BaseTuple)
    arrays = list(x) if several else [x]
    result: Any = types.none
    if any(isinstance(a, EverySecond) for a in arrays):
        kinds = [types.CPointer(a.dtype) for a in arrays]
        result = types.Tuple(kinds) if several else kinds[0]

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        if result == types.none:
            return context.get_dummy_value()
        rooms = [on_stack(context, builder, a.dtype, size) for a in arrays]
        return context.make_tuple(builder, result, rooms) if several else rooms[0]

    return result(n, x), codegen


def brought(x: Any, begin: Any, n: Any, rooms: Any) -> Any:
    """Where `n` elements of `x` from `begin` on can be read: itself, or rooms for it."""
    return x, begin


@lowered(brought)
def _brought(typing: Any, x: Any, begin: Any, n: Any, rooms: Any) -> Any:
    several, there = isinstance(x, types.BaseTuple), rooms == types.none
    result = types.Tuple([x if there else rooms, types.uintp])

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        array, begin, n, room = args
        if there:
            found = context.make_tuple(builder, result, [array, begin])
            return impl_ret_borrowed(context, builder, result, found)
        arrays: Any = [(x, array, room)]
        if several:
            of = (cgutils.unpack_tuple(builder, values) for values in (array, room))
            arrays = zip(x, *of, strict=True)
        _bring(builder, [_Moved(context, builder, begin, *a) for a in arrays], n)
        return context.make_tuple(builder, result, [room, begin.type(0)])

    return result(x, types.uintp, types.uintp, rooms), generate


class Vectors:
    """Vectors of `lanes` elements of an array, as integers."""

    def __init__(self, context: Any, builder: Any, kind: Any, array: Any, lanes: int) -> None:
        self.builder, self.step = builder, 1 + isinstance(kind, EverySecond)
        self.size, self.lanes = context.get_abi_sizeof(context.get_data_type(kind.dtype)), lanes
        self.bits = ir.IntType(8 * self.size)
        self._data = builder.bitcast(data_of(context, builder, kind, array), self.bits.as_pointer())

    def place(self, i: Any, back: int = 0) -> Any:
        """Where element `i` lies, or so many of memory before it."""
        i = self.builder.mul(i, i.type(self.step))
        return self.builder.gep(self._data, [self.builder.sub(i, i.type(back))])

    def load(self, i: Any, last: bool = False) -> Any:
        """Those from `i` on.

        Of every second element as many more are read: those behind each, or, of the last of an
        array, those before. So of the first the last must not be asked for, nor the other way.
        """
        back = self.step - 1 if last else 0
        wide = ir.VectorType(self.bits, self.lanes * self.step)
        place = self.builder.bitcast(self.place(i, back), wide.as_pointer())
        v = self.builder.load(place, align=self.size)
        if self.step == 1:
            return v
        order = ir.VectorType(ir.IntType(32), self.lanes)(list(range(back, wide.count, 2)))
        return self.builder.shuffle_vector(v, v, order)


class _Moved:
    """An array of whose elements, from `begin` on, some become those of a room."""

    def __init__(
        self, context: Any, builder: Any, begin: Any, kind: Any, array: Any, room: Any
    ) -> None:
        size = context.get_abi_sizeof(context.get_data_type(kind.dtype))
        self._builder, self._begin, self.many = builder, begin, LINE // size
        self._read = Vectors(context, builder, kind, array, self.many)
        self._room = builder.bitcast(room, self._read.bits.as_pointer())

    def _put(self, value: Any, k: Any) -> None:
        into = self._builder.gep(self._room, [k])
        into = self._builder.bitcast(into, value.type.as_pointer())
        self._builder.store(value, into, align=self._read.size)

    def line(self, k: Any, last: bool) -> None:
        """So many elements from the k-th on as fill a line; of the `last` none beyond is read."""
        self._put(self._read.load(self._builder.add(self._begin, k), last), k)

    def one(self, k: Any) -> None:
        """The k-th element."""
        place = self._read.place(self._builder.add(self._begin, k))
        self._put(self._builder.load(place), k)


def _bring(builder: Any, arrays: list[_Moved], n: Any) -> None:
    """Move `n` elements of each, of all side by side."""
    many = n.type(max(a.many for a in arrays))
    with builder.if_else(builder.icmp_unsigned(">", n, many)) as (more, few):
        with more:
            last = builder.sub(n, many)
            with cgutils.for_range_slice(builder, n.type(0), last, many, n.type) as (k, _):
                for a in arrays:
                    for part in range(many.constant // a.many):
                        a.line(builder.add(k, n.type(part * a.many)), last=False)
            for a in arrays:
                for part in range(many.constant // a.many):
                    a.line(builder.add(last, n.type(part * a.many)), last=True)
        with few, cgutils.for_range(builder, n) as loop:
            for a in arrays:
                a.one(loop.index)


def _pairs(builder: Any, data: Any, word: Any, size: int) -> tuple[Any, Any]:
    """Where the first pair begins, and how many bytes of it come before the element there."""
    place = builder.bitcast(data, ir.IntType(8).as_pointer())
    skip = builder.and_(builder.ptrtoint(place, word), word(size))  # the bytes of a first half
    return builder.gep(place, [builder.neg(skip)]), skip


@lower_builtin(operator.getitem, EverySecond, types.Integer)  # type: ignore[untyped-decorator]
def _half_of_pair(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    array, i = sig.args
    kind = context.get_data_type(array.dtype)
    size = context.get_abi_sizeof(kind)
    half, pair = ir.IntType(8 * size), ir.IntType(16 * size)
    i = context.cast(builder, args[1], i, types.uintp)
    data = data_of(context, builder, array, args[0])
    pairs, skip = _pairs(builder, data, i.type, size)
    pairs = builder.bitcast(pairs, pair.as_pointer())
    found = builder.load(builder.gep(pairs, [i]), align=2 * size)
    bits = builder.mul(skip, i.type(8))
    bits = builder.trunc(bits, pair) if pair.width < i.type.width else bits
    found = builder.trunc(builder.lshr(found, bits), half)
    return context.data_model_manager[array.dtype].from_data(builder, builder.bitcast(found, kind))
