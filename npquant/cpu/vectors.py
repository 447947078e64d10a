"""Minima and maxima in whole vectors, as LLVM makes none of a loop.

Of floats three numbers are kept: of their bits the greatest and the least, and the greatest as
unsigned. If any is negative, the latter is the least value, since bits grow with its distance from
zero; and the least bits are the greatest value, if all are negative.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils, errors

from npquant.cpu.every_second import Vectors
from npquant.cpu.fetching import prefetch
from npquant.cpu.lines import LINE, PAST_AHEAD
from npquant.cpu.lowered import lowered
from npquant.layout import LANES
from npquant.primitives import key

#: Bytes of a vector that is looked at: two of the processor, or more. Where they are fetched,
#: AT_ONCE of them are, as long as there are: rows of 8 KiB take less time so. Those of 16 KiB take
#: a tenth more than longer ones with 4 at once and with 32; why is not known. (Measured.)
VECTORS, AT_ONCE = 2 * LINE, 4


class _Vectors(Vectors):
    """Those of which the least and the greatest elements are kept."""

    def __init__(self, context: Any, builder: Any, kind: Any, array: Any, lanes: int) -> None:
        super().__init__(context, builder, kind, array, lanes)
        self.integer = isinstance(kind.dtype, types.Integer)
        s = "s" if not self.integer or kind.dtype.signed else "u"
        #: What is asked of them: of keys the first two.
        self.kinds = [f"{s}min", f"{s}max"] + ["umax"] * (not self.integer)

    def see_all(self, begin: Any, end: Any, see: Callable[[Any], None], fetched: bool) -> None:
        """Let ``see(vector)`` see those from `begin` on, the last of which goes on beyond `end`."""
        builder, word = self.builder, begin.type
        parts: Any = ((begin, end, 1),)
        if fetched:
            rest = builder.urem(builder.sub(end, begin), word(AT_ONCE * self.lanes))
            middle = builder.sub(end, rest)
            parts = (begin, middle, AT_ONCE), (middle, end, 1)
        for start, stop, some in parts:
            step = word(some * self.lanes)
            with cgutils.for_range_slice(builder, start, stop, step, word) as (i, _):
                for j in range(some):
                    at = builder.add(i, word(j * self.lanes))
                    if fetched:
                        self.fetch(at)
                    see(self.load(at))

    def fetch(self, i: Any) -> None:
        """Fetch the lines that lie PAST_AHEAD bytes behind those from `i` on."""
        place = self.builder.bitcast(self.place(i), ir.IntType(8).as_pointer())
        for line in range(0, self.lanes * self.size * self.step, LINE):
            ahead = self.builder.gep(place, [i.type(PAST_AHEAD + line)])
            prefetch(self.builder, ahead, 3)

    def keys(self, v: Any) -> Any:
        """The keys of a vector."""
        return v if self.integer else key_of_bits(self.builder, v)


def _see(builder: Any, kinds: Any, places: Any, v: Any) -> None:
    """Keep the one or the other in each place."""
    for kind, place in zip(kinds, places, strict=True):
        builder.store(_both(builder, kind, builder.load(place), v), place)


def key_of_bits(builder: Any, v: Any) -> Any:
    """The `key` of a float, or of a vector of them, of its bits."""
    vector = isinstance(v.type, ir.VectorType)
    width = (v.type.element if vector else v.type).width
    sign, rest = (
        v.type([m] * v.type.count if vector else m) for m in (width - 1, 2 ** (width - 1) - 1)
    )
    return builder.xor(v, builder.and_(builder.ashr(v, sign), rest))


def _both(builder: Any, kind: str, v: Any, w: Any) -> Any:
    """The one or the other of two vectors, or numbers, by "smin", "smax", "umin" or "umax"."""
    name = f"llvm.{kind}.{_name(v.type)}"
    function = ir.FunctionType(v.type, [v.type] * 2)
    return builder.call(cgutils.get_or_insert_function(builder.module, function, name), [v, w])


def _of_all(builder: Any, kind: str, v: Any) -> Any:
    """The same of all that are in a vector."""
    name = f"llvm.vector.reduce.{kind}.{_name(v.type)}"
    function = ir.FunctionType(v.type.element, [v.type])
    return builder.call(cgutils.get_or_insert_function(builder.module, function, name), [v])


def _name(kind: Any) -> str:
    return f"v{kind.count}{kind.element}" if isinstance(kind, ir.VectorType) else str(kind)


def extremes_in_vectors(x: Any, begin: Any, n: Any, low: Any, high: Any) -> Any:
    """The least and the greatest key of `n` elements from `begin` on, and of `low` and `high`.

    They fill more than a vector of VECTORS bytes.
    """
    keys = [key(v) for v in x[begin : begin + n]]
    return min(low, *keys), max(high, *keys)


def extremes_in_vectors_fetched(x: Any, begin: Any, n: Any, low: Any, high: Any) -> Any:
    """The same; what comes next is fetched."""
    return extremes_in_vectors(x, begin, n, low, high)


def _extremes(fetched: bool) -> Callable[..., Any]:
    def extremes(context: Any, x: Any, begin: Any, n: Any, low: Any, high: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            array, begin, n, *given = args
            size = context.get_abi_sizeof(context.get_data_type(x.dtype))
            vectors = _Vectors(context, builder, x, array, VECTORS // size)
            kinds, first = vectors.kinds, vectors.load(begin)
            places = [cgutils.alloca_once_value(builder, first) for _ in kinds]

            def see(v: Any) -> None:
                _see(builder, kinds, places, v)

            last = builder.sub(builder.add(begin, n), n.type(vectors.lanes))
            vectors.see_all(begin, last, see, fetched)
            see(vectors.load(last, last=True))  # some once more, which changes no extreme
            found = [
                _of_all(builder, kind, builder.load(place))
                for kind, place in zip(kinds, places, strict=True)
            ]
            if not vectors.integer:
                least, greatest, farthest = found
                some_below, all_below = (
                    builder.icmp_signed("<", v, vectors.bits(0)) for v in (least, greatest)
                )
                found = [
                    key_of_bits(builder, builder.select(some_below, farthest, least)),
                    key_of_bits(builder, builder.select(all_below, least, greatest)),
                ]
            ends = zip(kinds[:2], found, given, strict=True)
            found = [_both(builder, kind, v, w) for kind, v, w in ends]
            return context.make_tuple(builder, sig.return_type, found)

        return types.UniTuple(low, 2)(x, types.intp, types.intp, low, low), codegen

    return extremes


lowered(extremes_in_vectors)(_extremes(fetched=False))
lowered(extremes_in_vectors_fetched)(_extremes(fetched=True))


def lanes_of_row(x: Any, at: Any, n: Any, least: Any, greatest: Any, to: Any) -> None:
    """The least and the greatest key of some of `n` elements from `at` on, LANES or more.

    There are LANES of each, written from the place `to` on, and each element is in one or more.
    """
    for lane in range(LANES):
        keys = [key(v) for v in (*x[at + lane : at + n : LANES], x[at + n - LANES + lane])]
        least[to + lane], greatest[to + lane] = min(keys), max(keys)


def lanes_of_row_fetched(x: Any, at: Any, n: Any, least: Any, greatest: Any, to: Any) -> None:
    """The same; what comes next is fetched."""
    lanes_of_row(x, at, n, least, greatest, to)


def range_of_short_row(
    x: Any, at: Any, n: Any, least: Any, greatest: Any, to: Any, lanes: Any
) -> None:
    """The least and the greatest key of `n` elements from `at` on, written to the place `to`.

    They are more than `lanes`, but no more than twice as many; `lanes` is a constant.
    """
    keys = [key(v) for v in x[at : at + n]]
    least[to], greatest[to] = min(keys), max(keys)


def _lanes(fetched: bool) -> Callable[..., Any]:
    def lanes(context: Any, x: Any, at: Any, n: Any, least: Any, greatest: Any, to: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            array, at, n, *rooms, to = args
            vectors = _Vectors(context, builder, x, array, LANES)
            kinds = vectors.kinds[:2]
            places = [
                cgutils.alloca_once_value(builder, vectors.keys(vectors.load(at))) for _ in kinds
            ]

            def see(v: Any) -> None:
                _see(builder, kinds, places, vectors.keys(v))

            last = builder.sub(builder.add(at, n), n.type(LANES))
            # Several at once are counted from the first, which is seen twice then.
            first = at if fetched else builder.add(at, n.type(LANES))
            vectors.see_all(first, last, see, fetched)
            see(vectors.load(last, last=True))  # some once more
            for room, place in zip(rooms, places, strict=True):
                v = builder.load(place)
                to_all = builder.bitcast(builder.gep(room, [to]), v.type.as_pointer())
                builder.store(v, to_all, align=vectors.size)
            return context.get_dummy_value()

        return _lanes_signature(x, least, greatest), codegen

    return lanes


def _lanes_signature(x: Any, least: Any, greatest: Any, *more: Any) -> Any:
    index = types.intp
    return types.void(x, index, index, least, greatest, index, *more)


lowered(lanes_of_row)(_lanes(fetched=False))
lowered(lanes_of_row_fetched)(_lanes(fetched=True))


@lowered(range_of_short_row)
def _range_of_short_row(
    context: Any, x: Any, at: Any, n: Any, least: Any, greatest: Any, to: Any, lanes: Any
) -> Any:
    if not isinstance(lanes, types.IntegerLiteral):
        raise errors.RequireLiteralValue("lanes")
    some = lanes.literal_value

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        array, at, n, *rooms, to, _ = args
        vectors = _Vectors(context, builder, x, array, some)
        last = builder.sub(builder.add(at, n), n.type(some))
        # Each of so many is among the first or the last ones, or both.
        ends = vectors.load(at), vectors.load(last, last=True)
        first, last = (vectors.keys(v) for v in ends)
        for room, kind in zip(rooms, vectors.kinds, strict=False):
            found = _of_all(builder, kind, _both(builder, kind, first, last))
            builder.store(found, builder.gep(room, [to]))
        return context.get_dummy_value()

    return _lanes_signature(x, least, greatest, lanes), codegen
