"""Room that kernels make to work in, from a line of the cache on: on the stack, or not."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils, errors
from numba.core.imputils import impl_ret_new_ref
from numba.np.arrayobj import populate_array

from npquant.cpu.lines import LINE
from npquant.cpu.lowered import lowered


def local(n: Any, v: Any) -> Any:
    """Room for `n` values of the type of `v`; `n` is a constant.

    It is on the stack, and so the compiler sees that no array overlaps it: it asks nothing before
    it vectorises a loop. It is no overload of a function, as what its frame holds is gone when it
    returns.
    """
    return np.empty(n, type(v))


def on_stack(context: Any, builder: Any, kind: Any, size: int) -> Any:
    """Where `size` values of a type of Numba lie on the stack, from a line of the cache on."""
    value = context.get_value_type(kind)
    with builder.goto_entry_block():  # not alloca_once, which writes zeros, each on its own
        room = builder.alloca(ir.ArrayType(value, size))
    room.align = LINE
    return builder.bitcast(room, value.as_pointer())


@lowered(local)
def _local(context: Any, n: Any, v: Any) -> Any:
    if not isinstance(n, types.IntegerLiteral):
        raise errors.RequireLiteralValue("n")
    size = n.literal_value

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return on_stack(context, builder, v, size)

    return types.CPointer(v)(n, v), codegen


def from_line(n: Any, x: Any) -> Any:
    """Room for `n` values of the dtype of `x`, from a line of the cache on."""
    return np.empty(n, x.dtype)


@lowered(from_line)
def _from_line(context: Any, n: Any, x: Any) -> Any:
    kind = types.Array(x.dtype, 1, "C")

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return new_array(context, builder, kind, args[0])

    return kind(types.intp, x), codegen


def new_array(context: Any, builder: Any, kind: Any, n: Any) -> Any:
    """An array of one axis of `n` elements, which begins at a line of the cache."""
    size = n.type(context.get_abi_sizeof(context.get_data_type(kind.dtype)))
    bytes_ = builder.mul(n, size)
    room = context.nrt.meminfo_alloc_aligned(builder, bytes_, LINE)
    with builder.if_then(cgutils.is_null(builder, room), likely=False):
        context.call_conv.return_user_exc(builder, MemoryError, ("no memory to work in",))
    array = context.make_array(kind)(context, builder)
    data = context.nrt.meminfo_data(builder, room)
    populate_array(
        array, data=builder.bitcast(data, array.data.type), shape=[n], strides=[size],
        itemsize=size, meminfo=room,
    )  # fmt: skip
    return impl_ret_new_ref(context, builder, kind, array._getvalue())
