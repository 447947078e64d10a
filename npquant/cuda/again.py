"""The short way of a call on a GPU: what an equal call came to is done again.

Nobody looks at what arrays hold there. So what an op comes to depends on shapes, strides, dtypes,
alignment and libraries, and on the numbers beside them: it is a list of arrays that are made and of
kernels that are launched. Calls note it while they go the long way, and once two have noted the
same, for any other like them nothing is checked again.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from math import copysign
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np

from npquant.cuda import target
from npquant.cuda.arrays import KINDS, DeviceArray, device, memory
from npquant.cuda.vectors import ACCESS
from npquant.cuda.watch import watch
from npquant.owners import on_device

#: Calls of an op in one form that are remembered; all of these are forgotten then.
MOST = KINDS
#: Calls that are not recorded before an equal one is: where a number differs each time all would be
#: in vain. And recordings that must be alike: what a finalizer launches meanwhile is in one, too.
FIRST, ALIKE = 1, 2

#: What begins in scratch begins at a multiple of it, as all memory of a GPU does.
APART = 256
_BYTE = np.dtype(np.uint8)


class Step(NamedTuple):
    """A launch of a call, but for its pointers."""

    entry: Any
    grid: tuple[int, ...]
    values: list[Any]
    #: Their places among the values, the arrays they are of, how far they are from where these
    #: begin, and what the simulator must know of the memory there.
    pointers: list[tuple[int, int, int, Any]]


class Recorded(NamedTuple):
    """What a call comes to; arrays are counted: those given, the results, and scratch."""

    steps: list[Step]
    #: The shape, the dtype and the strides of each.
    results: list[tuple[tuple[int, ...], Any, tuple[int, ...]]]
    #: Bytes of all other arrays that are made.
    scratch: int
    #: What is returned, of what was given, the results and None; a tuple, unless it is `alone`.
    returned: list[int]
    alone: bool


class _Candidate(NamedTuple):
    """What equal calls have come to, so many times."""

    recorded: Recorded
    times: int


class _Itself(NamedTuple):
    """An array to write to that is another argument."""

    place: int


class _Recording:
    """What a call makes and launches while it goes the long way; until it ends, that is kept."""

    def __init__(self, lead: DeviceArray, given: list[Any]) -> None:
        self._lead, self._on, self._given = lead, lead.stream(), given
        self._made: list[DeviceArray] = []
        self._kinds: list[tuple[tuple[int, ...], Any, tuple[int, ...]]] = []
        self._launches: list[tuple[Any, tuple[int, ...], list[Any], list[Any]]] = []
        self._understood = True

    def made(self, y: DeviceArray, like: DeviceArray, *kind: Any) -> None:
        """`y` is new, of the library of `like`, which was told the `kind`."""
        self._made.append(y)
        self._kinds.append(kind)
        if like.library is not self._lead.library or y.pointer % ACCESS:
            self._understood = False

    def launched(self, entry: Any, grid: tuple[int, ...], values: list[Any], on: int) -> None:
        """It is over, so `values` are the recording's."""
        pointers = [(i, *self._place(v), told) for i, v, told in entry.pointers(values)]
        if on != self._on or [1 for _, array, *_ in pointers if array is None]:
            self._understood = False
        for i, *_ in pointers:
            values[i] = None  # of the simulator's memory nothing is kept
        self._launches.append((entry, grid, values, pointers))

    def _place(self, address: int) -> tuple[Any, int]:
        """The array that an address is of, and how far it is from where that begins."""
        for a in (*self._given, *self._made):
            if type(a) is DeviceArray:
                begin, end = a.extent()
                if begin <= address < end:
                    return a, address - a.pointer
        return None, 0

    def recorded(self, done: Any, given: tuple[Any, ...]) -> Recorded | None:
        """What the call came to, if all of it was seen."""
        alone = type(done) is not tuple
        done = (done,) if alone else done
        results = [i for i, a in enumerate(self._made) if [v for v in done if v is a.owner]]
        known = [*given, *[self._made[i].owner for i in results], None]
        found = [[i for i, k in enumerate(known) if k is v] for v in done]
        if not (self._understood and self._launches and all(found)):
            return None
        n, size = len(given), 0
        arrays = [*self._given, *[self._made[i] for i in results]]
        places = {id(a): (i, 0) for i, a in enumerate(arrays)}
        for a in self._made:
            if id(a) not in places:
                places[id(a)] = n + len(results), size
                begin, end = a.extent()
                size += -(-(end - begin) // APART) * APART
        steps = []
        for entry, grid, values, pointers in self._launches:
            moved = []
            for i, array, offset, told in pointers:
                which, begin = places[id(array)]
                moved.append((i, which, begin + offset, told))
            steps.append(Step(entry, grid, values, moved))
        kinds = [self._kinds[i] for i in results]
        return Recorded(steps, kinds, size, [first for first, *_ in found], alone)


def repeated(op: Callable[..., Any], lead: int = 0, written: tuple[int, ...] = ()) -> Any:
    """`op`, of which an equal call is only what it came to.

    Its arguments are arrays and numbers, the first perhaps a tuple of them. Counting what is in
    that, the one at `lead`, which is described already, is the input, and those that are `written`
    to have their places. All else that `op` depends on must not change. It returns an array or a
    tuple, of those that it makes, those that it is given, and None.

    The result is None where the caller must go the long way: also while a call is recorded, so
    `op` may be what asks here first.
    """
    calls: dict[Any, Any] = {}

    def call(*args: Any) -> Any:
        if watch.recording is not None:
            return None
        given = (*args[0], *args[1:]) if type(args[0]) is tuple else args
        there = [a if type(a) in _AS_THEY_ARE else _described(a) for a in given]
        x = there[lead]
        for i in written:
            if there[i] is not None and not _all_apart(there):
                _name_twice(there, written)
                if not _all_apart(there):
                    return None
        key = _key(there)
        if key is None or x._leader is not None:
            return None
        found = calls.get(key, 0)
        if type(found) is FunctionType:
            return found(x, there, given)
        if found is _UNFIT or not _all_apart(there):  # so that an address is of one array
            return None
        if type(found) is int and found < FIRST:
            _remember(calls, key, found + 1)
            return None
        watch.recording = recording = _Recording(x, there)
        try:
            done = op(*args)
        finally:
            watch.recording = None
        recorded = recording.recorded(done, given)
        alike = type(found) is _Candidate and found.recorded == recorded
        times = found.times + 1 if alike else 1
        if recorded is None:
            _remember(calls, key, _UNFIT)
        elif times < ALIKE:
            _remember(calls, key, _Candidate(recorded, times))
        else:
            _remember(calls, key, _repeating(recorded, x.library))
        return done

    return call


_UNFIT = "unfit"


def _remember(calls: dict[Any, Any], key: Any, what: Any) -> None:
    """By the kinds of its arguments, of a call: what does it again, what it seems to come to, how
    often it has come, or that it cannot be repeated.
    """
    if len(calls) >= MOST:
        calls.clear()
    calls[key] = what


#: Numbers of NumPy, of which a key has the bits.
_SCALARS = frozenset({np.float64, np.float32, np.float16, np.int64, np.int32, np.bool_})
_AS_THEY_ARE = frozenset({DeviceArray, float, int, bool, type(None), *_SCALARS})


def _described(argument: Any) -> Any:
    """An array on a GPU as kernels see it; anything else as it is."""
    if type(argument) in _AS_THEY_ARE:
        return argument
    if getattr(argument, "is_cuda", None) is True:
        return device(argument)
    return device(argument) if on_device(argument) else argument


def _key(there: list[Any]) -> tuple[Any, ...] | None:
    """What of the arguments may change what an op comes to; None if it always goes the long way."""
    key: list[Any] = []
    for a in there:
        kind = type(a)
        if kind is DeviceArray:
            key += a.lying, a.pointer % ACCESS, a.library, a.writeable
        elif a is None or kind is int or kind is bool or kind is _Itself or kind is float:
            key += kind, a
            if kind is float and not a:  # zeros, which are equal, have signs
                key.append(copysign(1, a))
        elif kind in _SCALARS:
            key += kind, a.tobytes()
        else:
            return None
    return tuple(key)


def _all_apart(there: list[Any]) -> bool:
    """Whether no two arrays have memory in common."""
    ends = sorted([a.extent() for a in there if type(a) is DeviceArray])
    return not [1 for (_, end), (begin, _) in pairwise(ends) if begin < end]


def _name_twice(there: list[Any], written: tuple[int, ...]) -> None:
    """Put in place of arrays to write to that are other arguments, which these are."""
    for i in written:
        y = there[i]
        if type(y) is DeviceArray:
            same = [k for k, a in enumerate(there) if a is not y and _same(a, y)]
            there[i] = _Itself(same[0]) if same else y


def _same(a: Any, y: DeviceArray) -> bool:
    return type(a) is DeviceArray and a.pointer == y.pointer and _key([a]) == _key([y])


def _repeating(recorded: Recorded, library: Any) -> Callable[..., Any]:
    """What does such a call again, for an input of this library."""
    steps, _, scratch, returned, alone = recorded
    makers = [library.maker(*kind) for kind in recorded.results]
    room_of = library.maker((scratch,), _BYTE, (1,))
    address, stream, n = library.address, library.stream, len(makers)

    def repeat(x: DeviceArray, there: list[Any], given: tuple[Any, ...]) -> Any:
        """The results; None if new memory is not aligned as it was."""
        made = [make(x) for make in makers]
        if scratch:
            made.append(room_of(x))
        new = [address(y) for y in made]
        for place in new:
            if place % ACCESS:
                return None
        places = [a.pointer if type(a) is DeviceArray else 0 for a in there] + new
        target.make_ready()
        on = stream(x)
        for entry, grid, values, pointers in steps:
            values = values.copy()
            for i, which, offset, told in pointers:
                place = places[which] + offset
                values[i] = place if told is None else memory(place, *told)
            entry.launch(grid, values, on)
        known = (*given, *made[:n], None)
        return known[returned[0]] if alone else tuple([known[i] for i in returned])

    return repeat
