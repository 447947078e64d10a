"""The short way of a call on a GPU: what an equal call came to is launched again.

What an op comes to there depends on shapes, strides, dtypes and alignment, and on the numbers
beside them, since nobody looks at what arrays hold. So where one kernel took the arrays as they
were given, it does so for any others of which the same is true, and nothing is checked again.
"""

from __future__ import annotations

import threading
from typing import Any, NamedTuple
from weakref import ref

from npquant.checks.arrays import device_array
from npquant.cuda.arrays import DeviceArray
from npquant.cuda.target import THREADS, Kernel
from npquant.cuda.vectors import ACCESS

#: Calls that are remembered of each form of data; those before are forgotten then.
MOST = 64

#: A scale and a zero point: numbers or device arrays.
Pair = tuple[Any, ...]


class Launch(NamedTuple):
    """A launch, but for its arrays."""

    kernel: Kernel
    blocks: int
    key: Any
    counts: tuple[int, ...]
    #: Those that are numbers.
    qparams: tuple[Any, ...]
    constants: tuple[Any, ...]
    #: The dtype and the strides of each.
    outputs: list[tuple[Any, tuple[int, ...]]]


class Call(NamedTuple):
    """A call that goes the long way; it keeps no array alive."""

    x: ref[DeviceArray]
    #: Of each qparam, see `_place`.
    places: tuple[Any, ...]
    launches: dict[Any, Launch]
    key: Any


class _Watched(threading.local):
    """Of each thread, the call of which no launch was seen yet."""

    call: Call | None = None


_watched = _Watched()


def fast_path() -> Any:
    """A function of data of one form, qparams and perhaps `out`, as those of ops/fast_path.py.

    It must see every call of the form, and what is not in its arguments must not change.
    """
    launches: dict[Any, Launch] = {}

    def call(x: Any, scale: Any, zero_point: Any, out: Any = None) -> tuple[Any, Any] | None:
        qparams = _described(scale), _described(zero_point)
        y = None if out is None else _described(out)
        key = x.strides, x.pointer % ACCESS, *map(_kind, (*qparams, y))
        if None in key:
            return None
        found = launches.get(key)
        if found is None:
            _watched.call = Call(ref(x), tuple(map(_place, qparams)), launches, key)
            return None
        if y is None:
            new = [x.new(x.shape, dtype, strides) for dtype, strides in found.outputs]
            if [v for v in new if v.pointer % ACCESS]:
                return None
        elif y.writeable and _apart(y, x, qparams):
            y.follow(x)
            new = [y]
        else:
            return None
        s, z = (
            p.argument() if isinstance(p, DeviceArray) else a
            for p, a in zip(qparams, found.qparams, strict=True)
        )
        args = (*found.counts, (x.argument(),), s, z, found.constants,
                tuple([v.argument() for v in new]))  # fmt: skip
        found.kernel(found.blocks, THREADS, args, found.key, x.stream())
        if out is not None:
            return out, None
        return new[0].owner, new[1].owner if len(new) > 1 else None

    return call


def _described(argument: Any) -> Any:
    """An array on a GPU as kernels see it; anything else as it is."""
    if type(argument) is float or type(argument) is int or argument is None:
        return argument
    found = device_array(argument, "argument")
    return argument if found is None else found


def _kind(argument: Any) -> Any:
    """What of it may change what an op comes to; None of one that always goes the long way."""
    if isinstance(argument, DeviceArray):
        return argument.dtype, argument.shape, argument.strides, argument.pointer % ACCESS
    kind = type(argument)
    known = argument is None or kind is int or (kind is float and argument)  # zeros have signs
    return (kind, argument) if known else None


def _place(qparam: Any) -> Any:
    """Where an array lies, and as what; None of a number."""
    return (qparam.pointer, qparam.dtype) if isinstance(qparam, DeviceArray) else None


def _apart(y: DeviceArray, x: DeviceArray, qparams: Pair) -> bool:
    """Whether `y` is `x` or apart from it, and apart from the qparams."""
    itself = (y.pointer, y.strides, y.dtype) == (x.pointer, x.strides, x.dtype)
    others = [p for p in qparams if isinstance(p, DeviceArray)]
    return not [a for a in (others if itself else [x, *others]) if a.overlaps(y)]


def note(
    inputs: tuple[DeviceArray, ...], qparams: Pair, outputs: tuple[DeviceArray, ...],
    kernel: Kernel, blocks: int, key: Any, counts: tuple[int, ...], constants: tuple[Any, ...],
) -> None:  # fmt: skip
    """A kernel has taken arrays as they are, in one launch: remember it if a call waits for that.

    `qparams` are numbers, or device arrays.
    """
    call, _watched.call = _watched.call, None
    if call is None or len(inputs) > 1 or inputs[0] is not call.x():
        return
    if tuple(map(_place, qparams)) != call.places:
        return  # one was converted
    numbers = tuple([None if isinstance(p, DeviceArray) else p for p in qparams])
    if len(call.launches) >= MOST:
        call.launches.clear()
    call.launches[call.key] = Launch(
        kernel, blocks, key, counts, numbers, constants, [(y.dtype, y.strides) for y in outputs]
    )
