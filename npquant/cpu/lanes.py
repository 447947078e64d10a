"""The lanes of sums, kept in registers.

The order of a sum is fixed, so the compiler may not vectorise it by itself; here it is told to add
whole rows of lanes, and where the running sums stay meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, register_jitable

from npquant.cpu.storage import overload

#: Lanes of a sum.
LANES = 16

_ROW = ir.VectorType(ir.DoubleType(), LANES)


def _of(sums: int) -> tuple[Callable[..., None], Callable[..., Any]]:
    """Two functions of the lanes of so many sums: LANES float64 of the first, then of the next."""

    def add_rows(lanes: Any, terms: Any, rows: Any) -> None:
        """Add rows of terms: term k of a sum goes to its lane k % LANES.

        `terms` are in as many equal parts as there are sums.
        """
        n = rows * LANES
        for to, values in zip(lanes.reshape(sums, -1), terms.reshape(sums, -1), strict=True):
            for row in values[:n].reshape(rows, LANES):
                to += row

    def folded(lanes: Any) -> Any:
        """The sums: lanes are added by halves, lane i to lane i + h."""
        rest = lanes.reshape(sums, -1)
        while rest.shape[1] > 1:
            h = rest.shape[1] // 2
            rest = rest[:, :h] + rest[:, h:]
        return tuple(rest[:, 0])

    def pointer(builder: Any, data: Any, index: Any, to: Any) -> Any:
        return builder.bitcast(builder.gep(data, [index]), to.as_pointer())

    def places(builder: Any, lanes: Any) -> list[Any]:
        index = lanes.nitems.type
        return [pointer(builder, lanes.data, index(k * LANES), _ROW) for k in range(sums)]

    @intrinsic
    def add(context: Any, lanes: Any, terms: Any, rows: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            to, values = (
                context.make_array(t)(context, builder, a)
                for t, a in zip(sig.args[:2], args[:2], strict=True)
            )
            row = ir.VectorType(context.get_value_type(sig.args[1].dtype), LANES)
            index = args[2].type
            part = builder.udiv(values.nitems, index(sums))
            totals = [
                cgutils.alloca_once_value(builder, builder.load(place, align=8))
                for place in places(builder, to)
            ]
            with cgutils.for_range(builder, args[2]) as loop:
                start = builder.mul(loop.index, index(LANES))
                for k, total in enumerate(totals):
                    first = builder.add(start, builder.mul(part, index(k)))
                    added = builder.load(pointer(builder, values.data, first, row), align=4)
                    added = added if row == _ROW else builder.fpext(added, _ROW)
                    builder.store(builder.fadd(builder.load(total), added), total)
            for place, total in zip(places(builder, to), totals, strict=True):
                builder.store(builder.load(total), place, align=8)
            return context.get_dummy_value()

        return types.void(lanes, terms, types.intp), codegen

    @intrinsic
    def fold(context: Any, lanes: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            found = []
            for place in places(builder, context.make_array(lanes)(context, builder, args[0])):
                v, h = builder.load(place, align=8), LANES // 2
                while h:
                    halves = (
                        ir.Constant(ir.VectorType(ir.IntType(32), h), list(range(k, k + h)))
                        for k in (0, h)
                    )
                    v = builder.fadd(*(builder.shuffle_vector(v, v, half) for half in halves))
                    h //= 2
                found.append(builder.extract_element(v, ir.IntType(32)(0)))
            return context.make_tuple(builder, sig.return_type, found)

        return types.UniTuple(types.float64, sums)(lanes), codegen

    @overload(add_rows)
    def _add_rows(lanes, terms, rows):
        return lambda lanes, terms, rows: add(lanes, terms, rows)  # type: ignore[call-arg]

    @overload(folded)
    def _folded(lanes):
        return lambda lanes: fold(lanes)  # type: ignore[call-arg]

    return add_rows, folded


@register_jitable
def filled_rows(terms: Any, n: Any, part: Any) -> Any:
    """How many rows `n` terms make; the last is filled up with zeros, which add nothing.

    Each sum has `part` places for its terms, a multiple of LANES.
    """
    rows = (n + LANES - 1) // LANES
    for first in range(0, terms.size, part):
        for k in range(first + n, first + rows * LANES):
            terms[k] = 0
    return rows


add_rows_of_one, folded_one = _of(1)
add_rows_of_two, folded_two = _of(2)
