"""Where kernels keep what they need, and how it lies: on the stack, in lines of the cache."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from llvmlite.binding import get_host_cpu_name
from numba import config, types
from numba.core import cgutils, errors
from numba.core.imputils import impl_ret_new_ref
from numba.extending import NativeValue, intrinsic, models, register_model, unbox
from numba.np.arrayobj import populate_array

from npquant.cpu.lowered import lowered

#: Bytes of a line of the cache. A vector that lies in two of them takes twice as long to load, and
#: NumPy's large arrays begin 16 bytes behind one.
LINE = 64

#: Axes that an array of NumPy can have.
MOST_AXES = 64

#: No cache of a core holds an array of more than FAR elements. What is read of it is fetched, so
#: many elements AHEAD of where they are used, FETCHED of them at a time; or FETCHED_FAR, which is
#: faster, where a loop does not take long to begin, and half of that beside a table. It pays where
#: most of what moves is read.
FAR, AHEAD, FETCHED, FETCHED_FAR = 1 << 22, 1024, 256, 64

#: Elements that are done at a time where a run is longer.
LONG = 512

#: Bytes that are written past the caches at a time. Of more, those that are read meanwhile wait
#: for those that are written; of a line at a time, what takes long to compute. (Measured.)
WAIT = 8 * LINE

_PROCESSOR: str = config.CPU_NAME or get_host_cpu_name()  # type: ignore[attr-defined]
#: Whether what is only read is fetched, too: Zen is faster by itself there. (Measured.)
FETCHED_TO_READ = not _PROCESSOR.startswith("znver")
#: What is read is fetched so many bytes ahead where results go past the caches: half a page, since
#: a whole one ahead it took longer than without. (Measured, but not on Zen.)
FETCHED_PAST, PAST_AHEAD = FETCHED_TO_READ, 2048


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


def _room(n: Any, v: Any) -> Any:
    """Room for `n` values of the type of `v`; `n` is a constant.

    It is on the stack, and so the compiler sees that no array overlaps it: it asks nothing before
    it vectorises a loop.
    """
    return np.empty(n, type(v))


def on_stack(context: Any, builder: Any, kind: Any, size: int) -> Any:
    """Where `size` values of a type of Numba lie on the stack, from a line of the cache on."""
    value = context.get_value_type(kind)
    with builder.goto_entry_block():  # not alloca_once, which writes zeros, each on its own
        room = builder.alloca(ir.ArrayType(value, size))
    room.align = 64
    return builder.bitcast(room, value.as_pointer())


@intrinsic
def _room_on_stack(context: Any, n: Any, v: Any) -> Any:
    if not isinstance(n, types.IntegerLiteral):
        raise errors.RequireLiteralValue("n")
    size = n.literal_value

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return on_stack(context, builder, v, size)

    return types.CPointer(v)(n, v), codegen


def _waiting(y: Any) -> Any:
    """Room where what is written past the caches to `y` waits until it is WAIT bytes.

    What was left of it waits before these. So vectors are stored within lines of the cache: across
    two it took twice as long.
    """
    return np.empty((LINE + WAIT) // y.itemsize, y.dtype)


@intrinsic
def _waiting_on_stack(context: Any, y: Any) -> Any:
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        size = context.get_abi_sizeof(context.get_data_type(y.dtype))
        return on_stack(context, builder, y.dtype, (LINE + WAIT) // size)

    return types.CPointer(y.dtype)(y), codegen


# No overloads of functions, since what their frames hold is gone when they return.
local: Any = _room if config.DISABLE_JIT else _room_on_stack  # type: ignore[attr-defined]
waiting_for: Any = _waiting if config.DISABLE_JIT else _waiting_on_stack  # type: ignore[attr-defined]


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


def write_past(y: Any, stop: Any, room: Any, held: Any) -> int:
    """Write to `y`, past the caches, the `held` values before `stop`, which end a room.

    Those after the last line of the cache wait on, before the places of the next WAIT bytes, and
    how many they are is returned. What is overwritten need not be read before, as it is for what
    goes by a cache. Others see it after `settle`.
    """
    end = (LINE + WAIT) // y.itemsize
    y[stop - held : stop] = room[end - held : end]
    return 0


def _as(builder: Any, place: Any, kind: Any) -> Any:
    return builder.bitcast(place, kind.as_pointer())


@lowered(write_past)
def _write_past(context: Any, y: Any, stop: Any, room: Any, held: Any) -> Any:
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        data = data_of(context, builder, y, args[0])
        stop, held, word = args[1], args[3], args[1].type
        element = context.get_data_type(y.dtype)
        size = context.get_abi_sizeof(element)
        past = builder.module.add_metadata([ir.IntType(32)(1)])
        data = builder.gep(data, [builder.sub(stop, held)])
        first = builder.sub(word((LINE + WAIT) // size), held)
        read = builder.gep(data_of(context, builder, room, args[2]), [first])

        def move(k: Any, some: int) -> None:
            kind = ir.VectorType(element, some) if some > 1 else element
            value = builder.load(_as(builder, builder.gep(read, [k]), kind), align=size)
            to = _as(builder, builder.gep(data, [k]), kind)
            store = builder.store(value, to, align=size * some)
            if some > 1:
                store.set_metadata("nontemporal", past)

        place = builder.udiv(builder.ptrtoint(data, word), word(size))
        head = builder.and_(builder.neg(place), word(LINE // size - 1))
        head = builder.select(builder.icmp_signed("<", head, held), head, held)
        lines = builder.and_(builder.sub(held, head), word(-LINE // size))
        tail = builder.add(head, lines)
        with cgutils.for_range(builder, head) as loop:
            move(loop.index, 1)
        with cgutils.for_range_slice(builder, head, tail, word(LINE // size), word) as (k, _):
            move(k, LINE // size)
        with cgutils.for_range_slice(builder, tail, held, word(1), word) as (k, _):
            value = builder.load(builder.gep(read, [k]))
            builder.store(value, builder.gep(read, [builder.sub(k, word(WAIT // size))]))
        return builder.sub(held, tail)

    return types.intp(y, types.intp, room, types.intp), codegen


def settle() -> None:
    """What was written past the caches comes before whatever other threads are told of it."""


@lowered(settle)
def _settle(context: Any) -> Any:
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), codegen


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


def far(x: Any) -> bool:
    """Whether no cache of a core holds `x`, or its first array; one holds what is on the stack."""
    return bool((x if isinstance(x, np.ndarray) else x[0]).size >= FAR)


@lowered(far)
def _far(context: Any, x: Any) -> Any:
    several = isinstance(x, types.BaseTuple)
    kind = x[0] if several else x

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        if isinstance(kind, types.CPointer):
            return context.get_constant(types.boolean, False)
        value = builder.extract_value(args[0], 0) if several else args[0]
        array = context.make_array(kind)(context, builder, value)
        # Of a piece that is lent, `nitems` may be that of the whole.
        size = builder.extract_value(array.shape, 0) if several else array.nitems
        return builder.icmp_signed(">=", size, size.type(FAR))

    return types.boolean(x), codegen


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
