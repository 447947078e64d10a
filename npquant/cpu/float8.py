"""Codes of float8, made of many integers at a time.

What makes a code of an integer works on the few bits that are left at the end, one in each lane of
32. So a loop leaves integers in a room on the stack, and vectors of them become codes together: the
bits of four are brought together first.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import config, types
from numba.core import cgutils, errors
from numba.extending import intrinsic

from npquant.cpu.lowered import lowered
from npquant.cpu.memory import data_of, on_stack
from npquant.cpu.storage import FLOAT8, FLOAT8_NUMBER
from npquant.primitives import store

#: Codes that are made together.
MANY = 64


def _no_room(n: Any, value: Any) -> Any:
    """Room for `n` values of the type of `value`, where codes are made of these; else None.

    `n` is a constant.
    """


@intrinsic
def _room_on_stack(context: Any, n: Any, value: Any) -> Any:
    if not isinstance(n, types.IntegerLiteral):
        raise errors.RequireLiteralValue("n")
    held, size = value == FLOAT8_NUMBER, n.literal_value

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return on_stack(context, builder, value, size) if held else context.get_dummy_value()

    return (types.CPointer(value) if held else types.none)(n, value), generate


room: Any = _no_room if config.DISABLE_JIT else _room_on_stack  # type: ignore[attr-defined]


def hold(held: Any, k: Any, y: Any, i: Any, value: Any) -> None:
    """Keep `value` as the k-th of the room `held`; where there is none, it goes to y[i]."""
    store(y, i, value)


def release(held: Any, n: Any, y: Any, first: Any) -> None:
    """The first `n` values of the room become elements of `y`, from `first` on."""


@lowered(hold)
def _hold(typing: Any, held: Any, k: Any, y: Any, i: Any, value: Any) -> Any:
    function = typing.resolve_value_type(store)
    stored = function.get_call_type(typing, (y, i, value), {})

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        room, k, *what = args
        if held == types.none:
            context.get_function(function, stored)(builder, what)
        else:
            builder.store(what[-1], builder.gep(room, [k]))
        return context.get_dummy_value()

    return types.void(held, types.uintp, y, types.uintp, value), generate


@lowered(release)
def _release(typing: Any, held: Any, n: Any, y: Any, first: Any) -> Any:
    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        if held == types.none:
            return context.get_dummy_value()
        room, n, array, first = args
        many = n.type(MANY)
        to = builder.gep(data_of(context, builder, y, array), [first])

        def codes(k: Any) -> Any:
            return _codes(builder, builder.gep(room, [k]), *FLOAT8[y.dtype][:2])

        def give(k: Any) -> None:
            some = codes(k)
            place = builder.bitcast(builder.gep(to, [k]), some.type.as_pointer())
            builder.store(some, place, align=1)

        rest = builder.urem(n, many)
        end = builder.sub(n, rest)
        with cgutils.for_range_slice(builder, n.type(0), end, many, n.type) as (k, _):
            give(k)
        with (
            builder.if_then(cgutils.is_not_null(builder, rest)),
            builder.if_else(cgutils.is_not_null(builder, end)) as (more, few),
        ):
            with more:  # of which some are given once again
                give(builder.sub(n, many))
            with few:
                last = cgutils.alloca_once_value(builder, codes(end))
                cgutils.raw_memcpy(builder, to, last, n, 1, align=1)
        return context.get_dummy_value()

    return types.void(held, types.uintp, y, types.uintp), generate


def _codes(builder: Any, numbers: Any, drop: Any, scale: Any) -> Any:
    """The codes of MANY numbers, as `primitives._number_to_float8` makes each."""
    one, index, half, byte = ir.FloatType(), ir.IntType(32), ir.IntType(16), ir.IntType(8)
    kind, ones = ir.VectorType(one, MANY), float(scale) * 2.0 ** int(drop)

    def all_(element: Any, value: Any) -> Any:
        return ir.Constant(ir.VectorType(element, MANY), [value] * MANY)

    def upper_halves(vector: Any, element: Any) -> Any:
        parts = ir.VectorType(element, 2 * MANY)
        odd = ir.Constant(ir.VectorType(index, MANY), list(range(1, 2 * MANY, 2)))
        vector = builder.bitcast(vector, parts)
        return builder.shuffle_vector(vector, ir.Constant(parts, ir.Undefined), odd)

    fma = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(kind, [kind] * 3), f"llvm.fma.v{MANY}f32"
    )
    v = builder.load(builder.bitcast(numbers, kind.as_pointer()), align=4)
    product = builder.fmul(v, all_(one, ones + float(scale)))
    rounded = builder.call(fma, [v, all_(one, -ones), product])
    # There is nothing in its lower half, and in its upper one no more than a sign above the code.
    magnitude = builder.shl(upper_halves(rounded, half), all_(half, 24 - int(drop)))
    sign = builder.and_(upper_halves(v, half), all_(half, 0x8000))
    return upper_halves(builder.or_(magnitude, sign), byte)
