"""The lanes of a sum, kept in registers.

The order of a sum is fixed, so the compiler may not vectorise it by itself; here it is told to add
whole rows of lanes, and where the running sums stay meanwhile.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from npquant.cpu.storage import overload

#: Lanes of a sum.
LANES = 16


def add_rows(lanes: Any, terms: Any, rows: Any) -> None:
    """Add rows of terms to the lanes of two sums: term k of each goes to its lane k % LANES.

    `lanes` holds LANES float64 of the first sum, then of the second; the first half of `terms` are
    those of the first sum.
    """
    n = rows * LANES
    for sums, values in zip(lanes.reshape(2, -1), terms.reshape(2, -1)[:, :n], strict=True):
        for row in values.reshape(rows, LANES):
            sums += row


def folded(lanes: Any) -> Any:
    """The two sums: lanes are added by halves, lane i to lane i + h."""
    sums = lanes.reshape(2, -1)
    while sums.shape[1] > 1:
        h = sums.shape[1] // 2
        sums = sums[:, :h] + sums[:, h:]
    return sums[0, 0], sums[1, 0]


@overload(add_rows)
def _add_rows(lanes, terms, rows):
    return lambda lanes, terms, rows: _in_registers(lanes, terms, rows)  # type: ignore[call-arg]


@overload(folded)
def _folded(lanes):
    return lambda lanes: _by_halves(lanes)  # type: ignore[call-arg]


def _rows_of_lanes(context: Any, builder: Any, array: Any) -> list[Any]:
    """Pointers to the two rows of lanes, as vectors."""
    index = array.nitems.type
    return [_pointer(builder, array.data, index(k * LANES), _LANES) for k in range(2)]


def _pointer(builder: Any, data: Any, index: Any, to: Any) -> Any:
    return builder.bitcast(builder.gep(data, [index]), to.as_pointer())


_LANES = ir.VectorType(ir.DoubleType(), LANES)


@intrinsic
def _by_halves(context: Any, lanes: Any) -> Any:
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        array = context.make_array(lanes)(context, builder, args[0])
        sums = []
        for place in _rows_of_lanes(context, builder, array):
            v, h = builder.load(place, align=8), LANES // 2
            while h:
                low, high = (
                    ir.Constant(ir.VectorType(ir.IntType(32), h), list(range(k, k + h)))
                    for k in (0, h)
                )
                v = builder.fadd(*(builder.shuffle_vector(v, v, part) for part in (low, high)))
                h //= 2
            sums.append(builder.extract_element(v, ir.IntType(32)(0)))
        return context.make_tuple(builder, sig.return_type, sums)

    return types.UniTuple(types.float64, 2)(lanes), codegen


@intrinsic
def _in_registers(context: Any, lanes: Any, terms: Any, rows: Any) -> Any:
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        sums, values = (
            context.make_array(t)(context, builder, a)
            for t, a in zip(sig.args[:2], args[:2], strict=True)
        )
        row = ir.VectorType(context.get_value_type(sig.args[1].dtype), LANES)
        index = args[2].type
        half = builder.udiv(values.nitems, index(2))
        places = _rows_of_lanes(context, builder, sums)
        totals = [cgutils.alloca_once_value(builder, builder.load(p, align=8)) for p in places]
        with cgutils.for_range(builder, args[2]) as loop:
            start = builder.mul(loop.index, index(LANES))
            for k, total in enumerate(totals):
                first = builder.add(start, builder.mul(half, index(k)))
                added = builder.load(_pointer(builder, values.data, first, row), align=4)
                added = added if row == _LANES else builder.fpext(added, _LANES)
                builder.store(builder.fadd(builder.load(total), added), total)
        for place, total in zip(places, totals, strict=True):
            builder.store(builder.load(total), place, align=8)
        return context.get_dummy_value()

    return types.void(lanes, terms, types.intp), codegen
