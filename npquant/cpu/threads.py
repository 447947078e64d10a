"""A compiled segment in several threads: Numba's pool calls it, without Numba's parallel loops.

Those compile a kernel again for each function that is wrapped around it, which takes twice as long.
What the pool needs is a C function, and one serves all segments of a signature: it is told where
the segment's machine code is.
"""

from __future__ import annotations

from typing import Any

import llvmlite.binding as llvm
import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.ufunc import parallel as pool

_BYTES = ir.IntType(8).as_pointer()


def available() -> int:
    """How many threads Numba's pool has for this one; it is started by the first call."""
    if not pool._is_initialized:
        numba.get_num_threads()
    # That takes a lock every time, which an interrupt can leave locked: other threads would hang.
    n: int = pool._get_num_threads()  # type: ignore[attr-defined]
    return n


def entry() -> int:
    """Where the pool's loop begins. LLVM has a lock before it, too."""
    available()
    address: int = llvm.address_of_symbol("numba_parallel_for")
    return address


def spread(loop: Any, threads: Any, segment: Any, items: Any, grain: Any, args: Any) -> None:
    """Call ``segment(begin, end, *args)`` for each `grain` of the items, in so many threads."""
    if _spread(loop, threads, segment, items, grain, args):  # type: ignore[call-arg]
        raise MemoryError("no memory for a part of the work")


def signature(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return (types.intp,) * 5 + (types.Tuple(args),)


@intrinsic  # type: ignore[untyped-decorator]
def _spread(
    typing: Any, loop: Any, threads: Any, segment: Any, items: Any, grain: Any, args: Any
) -> Any:
    """The same; whether a segment failed, as it does when there is no memory."""
    kinds = (types.intp, types.intp, *args.types)

    def generate(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        loop, threads, segment, items, grain, args = values
        word = items.type
        task = cgutils.alloca_once_value(
            builder, cgutils.pack_struct(builder, [segment, items, grain, word(0), args])
        )
        body = _body(context, builder.module, task.type, word, kinds)
        segments = builder.sdiv(builder.add(items, builder.sub(grain, word(1))), grain)
        # The pool has one array to divide, of a byte for each segment. It is never read: a part of
        # it lies as far behind `task` as segments come before.
        array = cgutils.alloca_once_value(builder, builder.bitcast(task, _BYTES))
        count = cgutils.alloca_once_value(builder, segments)
        step = cgutils.alloca_once_value(builder, word(1))
        numbers = [word(0), word(1), threads]  # dimensions beyond the first, arrays
        pointers = [builder.bitcast(p, _BYTES) for p in (body, array, count, step, task)]
        kind = ir.FunctionType(ir.VoidType(), [_BYTES] * 5 + [word] * 3)
        builder.call(builder.inttoptr(loop, kind.as_pointer()), [*pointers, *numbers])
        return builder.icmp_signed("!=", builder.load(_field(builder, task, 3)), word(0))

    return types.boolean(loop, threads, segment, items, grain, args), generate


def _field(builder: Any, struct: Any, i: int) -> Any:
    return cgutils.gep_inbounds(builder, struct, 0, i)


def _body(context: Any, module: Any, task_type: Any, word: Any, kinds: Any) -> Any:
    """The function that the pool calls: ``body(arrays, dimensions, steps, task)``."""
    kind = ir.FunctionType(
        ir.VoidType(), [_BYTES.as_pointer(), word.as_pointer(), word.as_pointer(), _BYTES]
    )
    body = ir.Function(module, kind, module.get_unique_name("segments"))
    body.linkage = "internal"
    builder = ir.IRBuilder(body.append_basic_block())
    arrays, dimensions, _, data = body.args
    task = builder.bitcast(data, task_type)
    segment, items, grain, _, args = cgutils.unpack_tuple(builder, builder.load(task))
    # What it returns is left in a place as large as a pointer, and lost: None, or a truth value.
    called = context.call_conv.get_function_type(types.none, kinds)
    segment = builder.inttoptr(segment, called.as_pointer())
    part = builder.load(arrays)
    first = builder.sub(builder.ptrtoint(part, word), builder.ptrtoint(data, word))
    with cgutils.for_range(builder, builder.load(dimensions)) as run:
        begin = builder.mul(builder.add(first, run.index), grain)
        end = builder.add(begin, grain)
        end = builder.select(builder.icmp_signed("<", end, items), end, items)
        each = [begin, end, *cgutils.unpack_tuple(builder, args)]
        status, _ = context.call_conv.call_function(builder, segment, types.none, kinds, each)
        with builder.if_then(status.is_error, likely=False):
            builder.store(word(1), _field(builder, task, 3))
    builder.ret_void()
    return body
