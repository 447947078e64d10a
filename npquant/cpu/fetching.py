"""What is read is brought to a cache before, and where lines of the cache begin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from npquant.cpu.borrowed import EverySecond, data_of
from npquant.cpu.lines import BEYOND_SECOND, FAR, LINE
from npquant.cpu.lowered import lowered


def fetch(values: Any, first: Any, n: Any) -> None:
    """Have `n` values brought to the first cache, of an array or of each of a tuple, unread."""


def fetch_to_second(values: Any, first: Any, n: Any) -> None:
    """The same to the second cache, from where they still take a while.

    What waits for memory then keeps none of the few places for what comes to the first cache, which
    a table that is in the second needs.
    """


_BYTE = ir.IntType(8).as_pointer()


def prefetch(builder: Any, place: Any, nearness: int) -> None:
    """Fetch the line in which the byte at `place` is: to the first cache, with a nearness of 3."""
    number = ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [place.type, number, number, number])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    builder.call(function, [place, number(0), number(nearness), number(1)])


def _fetching(nearness: int) -> Any:
    def fetching(context: Any, values: Any, first: Any, n: Any) -> Any:
        several = isinstance(values, types.BaseTuple)

        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            arrays = cgutils.unpack_tuple(builder, args[0]) if several else [args[0]]
            _, first, n = args
            for array, to in zip(arrays, values if several else [values], strict=True):
                data = data_of(context, builder, to, array)
                size = context.get_abi_sizeof(context.get_data_type(to.dtype))
                each = n.type(1 + isinstance(to, EverySecond))
                line = n.type(LINE // (size * each.constant))
                with cgutils.for_range_slice(builder, n.type(0), n, line, n.type) as (k, _):
                    i = builder.mul(builder.add(first, k), each)
                    place = builder.bitcast(builder.gep(data, [i]), _BYTE)
                    prefetch(builder, place, nearness)
            return context.get_dummy_value()

        return types.void(values, types.intp, types.intp), codegen

    return fetching


lowered(fetch)(_fetching(3))
lowered(fetch_to_second)(_fetching(2))


def far(x: Any) -> bool:
    """Whether no cache of a core holds `x`, or its first array; one holds what is on the stack."""
    return bool((x if isinstance(x, np.ndarray) else x[0]).size >= FAR)


def beyond_second(x: Any) -> bool:
    """Whether the second cache does not hold `x`, or its first array: then it is to be fetched."""
    return bool((x if isinstance(x, np.ndarray) else x[0]).nbytes >= BEYOND_SECOND)


def _at_least(elements: Callable[[int], int]) -> Any:
    """Whether there are so many elements, of an itemsize."""

    def enough(context: Any, x: Any) -> Any:
        several = isinstance(x, types.BaseTuple)
        kind = x[0] if several else x

        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            if isinstance(kind, types.CPointer):
                return context.get_constant(types.boolean, False)
            value = builder.extract_value(args[0], 0) if several else args[0]
            array = context.make_array(kind)(context, builder, value)
            # Of a piece that is lent, `nitems` may be that of the whole.
            size = builder.extract_value(array.shape, 0) if several else array.nitems
            itemsize = context.get_abi_sizeof(context.get_data_type(kind.dtype))
            return builder.icmp_signed(">=", size, size.type(elements(itemsize)))

        return types.boolean(x), codegen

    return enough


lowered(far)(_at_least(lambda itemsize: FAR))
lowered(beyond_second)(_at_least(lambda itemsize: BEYOND_SECOND // itemsize))


def to_line(x: Any, i: Any) -> int:
    """How many elements from `i` on lie before a line of the cache begins: of `x`, or its first."""
    return 0


@lowered(to_line)
def _to_line(context: Any, x: Any, i: Any) -> Any:
    several = isinstance(x, types.BaseTuple)
    kind = x[0] if several else x

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        array, i = args
        if several:
            array = builder.extract_value(array, 0)
        size = context.get_abi_sizeof(context.get_data_type(kind.dtype))
        size *= 1 + isinstance(kind, EverySecond)
        place = builder.ptrtoint(data_of(context, builder, kind, array), i.type)
        place = builder.add(builder.udiv(place, i.type(size)), i)
        return builder.and_(builder.neg(place), i.type(LINE // size - 1))

    return types.intp(x, types.intp), codegen
