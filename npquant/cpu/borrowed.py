"""Arrays as kernels see them: of whoever calls them, and pieces of their own, uncounted."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import NativeValue, models, register_model, unbox
from numba.np.arrayobj import populate_array

from npquant.cpu.lines import AHEAD
from npquant.cpu.lowered import lowered
from npquant.cpu.rooms import on_stack

#: Axes that an array of NumPy can have.
MOST_AXES = 64


class Borrowed(types.Array):  # type: ignore[misc]
    """An array of whoever calls a kernel.

    It lives as long as the call, so no references to it are counted: that takes time, in a loop
    most of all, and threads wait for one another to count.
    """

    def __init__(self, dtype: Any, ndim: int, layout: Any) -> None:
        super().__init__(dtype, ndim, layout, name=f"borrowed[{dtype}, {ndim}, {layout}]")


class Flat(types.Array):  # type: ignore[misc]
    """A borrowed array of any shape, contiguous, of which a kernel sees the elements in a row.

    In Python a flat view of each would take longer to make than all arrays to pass. Where a view of
    it (`strided.py`) is passed too, it need not be contiguous, but steps forward.
    """

    def __init__(self, dtype: Any) -> None:
        super().__init__(dtype, 1, "C", name=f"flat[{dtype}]")


class EverySecond(types.Array):  # type: ignore[misc]
    """Every second element of memory, to be read: see `every_second.py`."""

    def __init__(self, dtype: Any) -> None:
        super().__init__(dtype, 1, "A", readonly=True, name=f"every_second[{dtype}]")


def data_of(context: Any, builder: Any, kind: Any, values: Any) -> Any:
    """Where the first of `values` lies: of an array, or of what `local` has made."""
    if isinstance(kind, types.CPointer):
        return values
    return context.make_array(kind)(context, builder, values).data


@register_model(Borrowed)
@register_model(Flat)
@register_model(EverySecond)
class _BorrowedModel(models.StructModel):  # type: ignore[misc]
    """As of any array, but where references are counted there is only an address."""

    def __init__(self, dmm: Any, kind: Any) -> None:
        axes = types.UniTuple(types.intp, kind.ndim)
        members = [
            ("meminfo", types.voidptr),
            ("parent", types.voidptr),
            ("nitems", types.intp),
            ("itemsize", types.intp),
            ("data", types.CPointer(kind.dtype)),
            ("shape", axes),
            ("strides", axes),
        ]
        super().__init__(dmm, kind, members)


@unbox(Borrowed)
@unbox(EverySecond)
def _borrow(kind: Any, array: Any, c: Any) -> Any:
    found = c.context.make_array(kind)(c.context, c.builder)
    error = _describe(array, found, c)
    return NativeValue(found._getvalue(), is_error=error)


@unbox(Flat)
def _borrow_flat(kind: Any, array: Any, c: Any) -> Any:
    any_shape = Borrowed(kind.dtype, MOST_AXES, "A")
    room = on_stack(c.context, c.builder, any_shape, 1)
    given = c.context.make_array(any_shape)(c.context, c.builder, ref=room)
    error = _describe(array, given, c)
    found = c.context.make_array(kind)(c.context, c.builder)
    populate_array(
        found, data=given.data, shape=[given.nitems], strides=[given.itemsize],
        itemsize=given.itemsize, meminfo=None,
    )  # fmt: skip
    return NativeValue(found._getvalue(), is_error=error)


def _describe(array: Any, found: Any, c: Any) -> Any:
    """Have Numba write down where an array is and how it lies; whether it is none."""
    place = c.builder.bitcast(found._getpointer(), c.pyapi.voidptr)
    of = ir.FunctionType(ir.IntType(32), [c.pyapi.pyobj, c.pyapi.voidptr])
    adapt = cgutils.get_or_insert_function(c.builder.module, of, "numba_adapt_ndarray")
    return cgutils.is_not_null(c.builder, c.builder.call(adapt, [array, place]))


def after(x: Any, first: Any) -> Any:
    """Each array of a tuple from `first` on, without its count of references."""
    return tuple([a[first:] for a in x])


@lowered(after)
def _after(context: Any, x: Any, first: Any) -> Any:
    result = types.Tuple([types.CPointer(a.dtype) for a in x])

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        arrays = zip(x, cgutils.unpack_tuple(builder, args[0]), strict=True)
        found = [builder.gep(data_of(context, builder, *array), [args[1]]) for array in arrays]
        return context.make_tuple(builder, result, found)

    return result(x, types.intp), codegen


def flat(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """What a kernel sees of an array that is passed as `Flat`: its memory, if not contiguous."""
    if x.flags.c_contiguous:
        return x.reshape(-1)
    size = 1 + sum((n - 1) * s for n, s in zip(x.shape, x.strides, strict=True)) // x.itemsize
    # NumPy strides no dtype that only ml_dtypes knows.
    bits = x.view(f"u{x.itemsize}")
    return np.lib.stride_tricks.as_strided(bits, (size,), (x.itemsize,)).view(x.dtype)


def lent(x: Any, first: Any, n: Any) -> Any:
    """`n` elements of `x` from `first` on, without its count of references: `x` outlives them.

    Many are `far` if `x` is: of what is fetched then, a quarter at most lies behind their row. Not
    so beside those of another array, where fetching took longer.
    """
    return x[first : first + n]


@lowered(lent)
def _lent(context: Any, x: Any, first: Any, n: Any) -> Any:
    kind = Flat(x.dtype)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        array, first, n = args
        size = n.type(context.get_abi_sizeof(context.get_data_type(x.dtype)))
        found = context.make_array(kind)(context, builder)
        data = builder.gep(data_of(context, builder, x, array), [first])
        populate_array(found, data=data, shape=[n], strides=[size], itemsize=size, meminfo=None)
        many = builder.icmp_signed(">=", n, n.type(4 * AHEAD))
        whole = context.make_array(x)(context, builder, array).nitems
        found.nitems = builder.select(many, whole, n)
        return found._getvalue()

    return kind(x, types.intp, types.intp), codegen


def keep(arrays: Any) -> None:
    """Hold on to what was `lent` of arrays of a kernel's own: they live until here."""


@lowered(keep)
def _keep(context: Any, arrays: Any) -> Any:
    return types.void(arrays), lambda context, builder, sig, args: context.get_dummy_value()


def address(x: Any) -> int:
    """Where the memory of an array begins."""
    return int(x.__array_interface__["data"][0])


@lowered(address)
def _address(context: Any, x: Any) -> Any:
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        data = data_of(context, builder, x, args[0])
        return builder.ptrtoint(data, context.get_value_type(types.intp))

    return types.intp(x), codegen


def width(x: Any) -> int:
    """Bytes of an element of `x`, or of its first array, which the compiler knows."""
    return int((x if isinstance(x, np.ndarray) else x[0]).itemsize)


@lowered(width)
def _width(context: Any, x: Any) -> Any:
    several = isinstance(x, types.BaseTuple)
    kind = x[0] if several else x

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        size = context.get_abi_sizeof(context.get_data_type(kind.dtype))
        return context.get_constant(types.intp, size)

    return types.intp(x), codegen
