"""The lanes of sums, kept in registers.

The order of a sum is fixed, so the compiler may not vectorise it by itself; here it is told to add
whole rows of lanes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from npquant.cpu.borrowed import data_of
from npquant.cpu.lowered import lowered
from npquant.layout import LANES

#: Channels whose lanes are in registers together.
TOGETHER = 8

_ROW = ir.VectorType(ir.DoubleType(), LANES)


def add_terms(lanes: Any, at: Any, terms: Any, first: Any, place: Any, n: Any) -> None:
    """Add `n` terms of each sum, from `first` on: the k-th goes to lane (place + k) % LANES.

    `terms` is a tuple of arrays, one a sum. The lanes of the sums follow one another from `at` on.
    """
    for s, values in enumerate(terms):
        for k in range(n):
            lanes[at + s * LANES + (place + k) % LANES] += values[first + k]


def add_columns(lanes: Any, at: Any, apart: Any, width: Any, terms: Any, n: Any) -> None:
    """Add `n` terms of each sum: the k-th goes to lane at + k % width.

    The lanes of the sums lie `apart`; `n` and `width` are multiples of LANES.
    """
    for s, values in enumerate(terms):
        for k in range(n):
            lanes[at + s * apart + k % width] += values[k]


def sums_together(sums: Any, terms: Any, n: Any) -> None:
    """The sums of `n` terms, a multiple of LANES, of each of TOGETHER channels.

    The terms of a channel follow those of another, and so do its sums, one sum after the other.
    """
    for s, values in enumerate(terms):
        for c in range(TOGETHER):
            lanes = np.zeros(LANES)
            add_terms(lanes, 0, (values,), c * n, 0, n)
            (sums[s * TOGETHER + c],) = folded(lanes, 0, (values,))


def folded(lanes: Any, at: Any, terms: Any) -> Any:
    """The sums, as many as there are `terms`: lanes are added by halves, lane i to lane i + h."""
    rest = lanes[at : at + len(terms) * LANES].reshape(len(terms), LANES)
    while rest.shape[1] > 1:
        h = rest.shape[1] // 2
        rest = rest[:, :h] + rest[:, h:]
    return tuple(rest[:, 0])


def _row(builder: Any, values: Any, index: Any, row: Any = _ROW) -> Any:
    """The place of a row that begins at `index`."""
    return builder.bitcast(builder.gep(values, [index]), row.as_pointer())


def _rows(builder: Any, place: Any, n: Any, add: Callable[[Any, Any], None]) -> None:
    """Call add(first, inside) for each row of `n` terms that begin in lane `place`.

    `first` is the term of lane 0, and `inside` tells which lanes have one, or None: all have.
    """
    index = n.type
    width, numbers = index(LANES), ir.VectorType(index, LANES)

    def all_lanes(v: Any) -> Any:
        one = builder.insert_element(numbers(ir.Undefined), v, ir.IntType(32)(0))
        return builder.shuffle_vector(one, one, ir.VectorType(ir.IntType(32), LANES)(None))

    def partial(first: Any) -> None:
        term = builder.add(all_lanes(first), numbers([index(k) for k in range(LANES)]))
        add(first, builder.icmp_unsigned("<", term, all_lanes(n)))

    begin = cgutils.alloca_once_value(builder, index(0))
    with builder.if_then(builder.icmp_signed("!=", place, index(0)), likely=False):
        partial(builder.neg(place))
        builder.store(builder.sub(width, place), begin)
    first = builder.load(begin)
    rows = builder.sdiv(builder.sub(n, first), width)
    with cgutils.for_range(builder, rows) as loop:
        add(builder.add(first, builder.mul(loop.index, width)), None)
    last = builder.add(first, builder.mul(rows, width))
    with builder.if_then(builder.icmp_signed("<", last, n), likely=False):
        partial(last)


class _Sum:
    """A row of lanes in registers, which begin at zero or at `lanes`, and what is added to it."""

    def __init__(self, builder: Any, lanes: Any, at: Any, values: Any, kind: Any) -> None:
        self._builder, self._values = builder, values
        self._row = ir.VectorType(kind, LANES)
        self._home = None if lanes is None else _row(builder, lanes, at)
        begin = _ROW(None) if lanes is None else builder.load(self._home, align=8)
        self._total = cgutils.alloca_once_value(builder, begin)

    def add(self, first: Any, inside: Any = None) -> None:
        """Add the terms from `first` on, of all lanes or of those that are `inside`."""
        builder = self._builder
        place, row = _row(builder, self._values, first, self._row), self._row
        if inside is None:
            v = builder.load(place, align=4)
        else:
            name = f"llvm.masked.load.v{LANES}f{32 if row != _ROW else 64}.p0"
            kind = ir.FunctionType(row, [place.type, ir.IntType(32), inside.type, row])
            load = cgutils.get_or_insert_function(builder.module, kind, name)
            v = builder.call(load, [place, ir.IntType(32)(4), inside, row(None)])
        v = v if self._row == _ROW else builder.fpext(v, _ROW)
        builder.store(builder.fadd(builder.load(self._total), v), self._total)

    @property
    def lanes(self) -> Any:
        return self._builder.load(self._total)

    def store(self) -> None:
        self._builder.store(self.lanes, self._home, align=8)


@lowered(add_terms)
def _add_terms(
    context: Any, lanes: Any, at: Any, terms: Any, first: Any, place: Any, n: Any
) -> Any:
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        to, at, terms_, begin, place, n = args
        data, sums = data_of(context, builder, lanes, to), []
        for s, kind in enumerate(terms):
            values = data_of(context, builder, kind, builder.extract_value(terms_, s))
            values = builder.gep(values, [begin])
            each = context.get_value_type(kind.dtype)
            sums.append(_Sum(builder, data, builder.add(at, at.type(s * LANES)), values, each))

        def add(first: Any, inside: Any) -> None:
            for each in sums:
                each.add(first, inside)

        _rows(builder, place, n, add)
        for each in sums:
            each.store()
        return context.get_dummy_value()

    return types.void(lanes, types.intp, terms, types.intp, types.intp, types.intp), codegen


@lowered(add_columns)
def _add_columns(
    context: Any, lanes: Any, at: Any, apart: Any, width: Any, terms: Any, n: Any
) -> Any:
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        to, at, apart, width, terms_, n = args
        data, index = data_of(context, builder, lanes, to), at.type
        end = builder.select(builder.icmp_signed("<", n, width), n, width)
        with cgutils.for_range_slice(builder, index(0), end, index(LANES), index) as (k, _):
            sums = []
            for s, kind in enumerate(terms):
                values = data_of(context, builder, kind, builder.extract_value(terms_, s))
                home = builder.add(builder.add(at, k), builder.mul(apart, index(s)))
                each = context.get_value_type(kind.dtype)
                sums.append(_Sum(builder, data, home, values, each))
            with cgutils.for_range_slice(builder, k, n, width, index) as (first, _):
                for each in sums:
                    each.add(first)
            for each in sums:
                each.store()
        return context.get_dummy_value()

    index = types.intp
    return types.void(lanes, index, index, index, terms, index), codegen


@lowered(sums_together)
def _sums_together(context: Any, sums: Any, terms: Any, n: Any) -> Any:
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        to, terms_, n = args
        found, index = data_of(context, builder, sums, to), n.type
        some = ir.VectorType(ir.DoubleType(), TOGETHER)

        def halves(a: Any, b: Any, h: int) -> Any:
            """Each h elements of two vectors plus the h behind them: TOGETHER are left."""
            first = [i for i in range(2 * TOGETHER) if not i & h]
            picked = ir.VectorType(ir.IntType(32), TOGETHER)
            both = (ir.Constant(picked, [i + half for i in first]) for half in (0, h))
            return builder.fadd(*(builder.shuffle_vector(a, b, places) for places in both))

        for s, kind in enumerate(terms):
            values = data_of(context, builder, kind, builder.extract_value(terms_, s))
            each = context.get_value_type(kind.dtype)
            channels = [
                _Sum(builder, None, None, builder.gep(values, [builder.mul(n, index(c))]), each)
                for c in range(TOGETHER)
            ]
            with cgutils.for_range_slice(builder, index(0), n, index(LANES), index) as (k, _):
                for channel in channels:
                    channel.add(k)
            h = LANES // 2
            rows = [halves(row, row, h) for row in (channel.lanes for channel in channels)]
            while h > 1:
                h //= 2
                rows = [halves(a, b, h) for a, b in zip(rows[::2], rows[1::2], strict=True)]
            place = builder.gep(found, [index(s * TOGETHER)])
            builder.store(rows[0], builder.bitcast(place, some.as_pointer()), align=8)
        return context.get_dummy_value()

    return types.void(sums, terms, types.intp), codegen


@lowered(folded)
def _folded(context: Any, lanes: Any, at: Any, terms: Any) -> Any:
    sums = len(terms)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        data = data_of(context, builder, lanes, args[0])
        all_ = ir.VectorType(ir.DoubleType(), sums * LANES)
        v, h = builder.load(_row(builder, data, args[1], all_), align=8), LANES // 2
        while h:
            halves = (
                [2 * h * s + half + i for s in range(sums) for i in range(h)] for half in (0, h)
            )
            picked = ir.VectorType(ir.IntType(32), sums * h)
            v = builder.fadd(
                *(builder.shuffle_vector(v, v, ir.Constant(picked, half)) for half in halves)
            )
            h //= 2
        found = [builder.extract_element(v, ir.IntType(32)(s)) for s in range(sums)]
        return context.make_tuple(builder, sig.return_type, found)

    return types.UniTuple(types.float64, sums)(lanes, types.intp, terms), codegen
