"""A compiled segment in several threads: Numba's pool calls it, without Numba's parallel loops.

Those compile a kernel again for each function that is wrapped around it, which takes twice as long.
What the pool needs is a C function, and one serves all segments of a signature: it is told where
the segment's machine code is.

Each thread has a share of the segments, one after another in memory, as it had in the call before:
they may still be in its cache. When it is done it takes those that other threads have not begun,
as cores are not equally fast, nor free at once. A segment computes the same whoever does it. In the
end all must have come, also one that finds nothing left to do, which it may do late: if other
programs keep its core busy, some milliseconds.
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

from npquant.cpu import ieee

_BYTES = ir.IntType(8).as_pointer()
#: Words in a line of the cache, for which threads must not compete.
_LINE = 8
#: The fields of a task that say whether a segment failed, and how many one thread has done at most.
_FAILED, _MOST = 3, 8


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


def spread(loop: Any, threads: Any, segment: Any, items: Any, grain: Any, args: Any) -> Any:
    """Call ``segment(begin, end, *args)`` for each `grain` of the items, in so many threads.

    Return whether that was in vain: one call of the body, which ends when nothing is left to begin,
    did so much that the others' was not half of their share; of two threads, above three quarters.
    """
    found: Any = _spread(loop, threads, segment, items, grain, args)  # type: ignore[call-arg]
    failed, alone = found
    if failed:
        raise MemoryError("no memory for a part of the work")
    return alone


def signature(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return (types.intp,) * 5 + (types.Tuple(args),)


@intrinsic  # type: ignore[untyped-decorator]
def _spread(
    typing: Any, loop: Any, threads: Any, segment: Any, items: Any, grain: Any, args: Any
) -> Any:
    """The same, and first whether a segment failed, as it does when there is no memory."""
    kinds = (types.intp, types.intp, *args.types)

    def generate(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        loop, threads, segment, items, grain, args = values
        word = items.type
        segments = builder.sdiv(builder.add(items, builder.sub(grain, word(1))), grain)
        # No more than have something to do: each asks after the shares of all.
        threads = builder.select(builder.icmp_signed("<", segments, threads), segments, threads)
        turns = builder.alloca(word, builder.mul(threads, word(_LINE)))
        with cgutils.for_range(builder, threads) as thread:
            share = _share(builder, thread.index, segments, threads)
            builder.store(share, _turn(builder, turns, thread.index))
        fields = [segment, items, grain, word(0), args, threads, segments, turns, word(0)]
        task = cgutils.alloca_once_value(builder, cgutils.pack_struct(builder, fields))
        body = _body(context, builder.module, task.type, word, kinds)
        # The pool has one array to divide, of a byte for each thread. It is never read: a part of
        # it lies as far behind `task` as threads come before.
        array = cgutils.alloca_once_value(builder, builder.bitcast(task, _BYTES))
        count = cgutils.alloca_once_value(builder, threads)
        step = cgutils.alloca_once_value(builder, word(1))
        numbers = [word(0), word(1), threads]  # dimensions beyond the first, arrays
        pointers = [builder.bitcast(p, _BYTES) for p in (body, array, count, step, task)]
        kind = ir.FunctionType(ir.VoidType(), [_BYTES] * 5 + [word] * 3)
        builder.call(builder.inttoptr(loop, kind.as_pointer()), [*pointers, *numbers])
        failed, most = (builder.load(_field(builder, task, i)) for i in (_FAILED, _MOST))
        rest = builder.sub(segments, most)
        others = builder.mul(segments, builder.sub(threads, word(1)))
        alone = builder.icmp_signed("<", builder.mul(builder.mul(rest, threads), word(2)), others)
        failed = builder.icmp_signed("!=", failed, word(0))
        return context.make_tuple(builder, sig.return_type, (failed, alone))

    kind = types.UniTuple(types.boolean, 2)
    return kind(loop, threads, segment, items, grain, args), generate


def _share(builder: Any, thread: Any, segments: Any, threads: Any) -> Any:
    """The first segment of a thread's share."""
    return builder.sdiv(builder.mul(segments, thread), threads)


def _turn(builder: Any, turns: Any, thread: Any) -> Any:
    """Where the next segment of a thread's share is counted, in a line of the cache of its own."""
    return builder.gep(turns, [builder.mul(thread, thread.type(_LINE))])


def _field(builder: Any, struct: Any, i: int) -> Any:
    return cgutils.gep_inbounds(builder, struct, 0, i)


def _body(context: Any, module: Any, task_type: Any, word: Any, kinds: Any) -> Any:
    """The function that the pool calls: ``body(arrays, dimensions, steps, task)``.

    Any call of it would do all segments, if no other came.
    """
    kind = ir.FunctionType(
        ir.VoidType(), [_BYTES.as_pointer(), word.as_pointer(), word.as_pointer(), _BYTES]
    )
    body = ir.Function(module, kind, module.get_unique_name("segments"))
    body.linkage = "internal"
    builder = ir.IRBuilder(body.append_basic_block())
    before = ieee.begun(builder)
    arrays, _, _, data = body.args
    task = builder.bitcast(data, task_type)
    fields = cgutils.unpack_tuple(builder, builder.load(task))
    segment, items, grain, _, args, threads, segments, turns, _ = fields
    # What it returns is left in a place as large as a pointer, and lost: None, or a truth value.
    called = context.call_conv.get_function_type(types.none, kinds)
    segment = builder.inttoptr(segment, called.as_pointer())
    part = builder.load(arrays)
    first = builder.sub(builder.ptrtoint(part, word), builder.ptrtoint(data, word))
    count = cgutils.alloca_once_value(builder, word(0))
    with cgutils.for_range(builder, threads) as run:
        thread = builder.urem(builder.add(first, run.index), threads)
        end = _share(builder, builder.add(thread, word(1)), segments, threads)
        ask, work, done = (builder.append_basic_block(name) for name in ("ask", "work", "done"))
        builder.branch(ask)
        builder.position_at_end(ask)
        i = builder.atomic_rmw("add", _turn(builder, turns, thread), word(1), "monotonic")
        builder.cbranch(builder.icmp_signed("<", i, end), work, done)
        builder.position_at_end(work)
        begin = builder.mul(i, grain)
        stop = builder.add(begin, grain)
        stop = builder.select(builder.icmp_signed("<", stop, items), stop, items)
        each = [begin, stop, *cgutils.unpack_tuple(builder, args)]
        status, _ = context.call_conv.call_function(builder, segment, types.none, kinds, each)
        with builder.if_then(status.is_error, likely=False):
            builder.store(word(1), _field(builder, task, _FAILED))
        builder.store(builder.add(builder.load(count), word(1)), count)
        builder.branch(ask)
        builder.position_at_end(done)
    most = _field(builder, task, _MOST)
    builder.atomic_rmw("max", most, builder.load(count), "monotonic")
    ieee.ended(builder, before)
    builder.ret_void()
    return body
