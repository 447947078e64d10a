"""How kernels are compiled and called on the CPU: options, forms, threads, forks.

A kernel is written once, as a *segment*: a function of `begin`, `end` and its arguments that does
the items [begin, end). `Kernel` makes two forms of it. The serial one is the segment itself; the
parallel one is a `prange` over segments of a fixed size, so what a segment computes depends on the
shape alone and never on the number of threads.
"""

from __future__ import annotations

import os
import threading
import types as python_types
from collections.abc import Callable, Hashable
from typing import Any

import numba
import numpy as np
from numba import config, njit, prange, types
from numba.core.compiler_lock import global_compiler_lock
from numba.extending import register_jitable
from numba.np.ufunc import parallel as numba_threads

from npquant.cpu import cache
from npquant.cpu.storage import TYPES
from npquant.primitives import at, widen

#: error_model="numpy": a division by zero is an infinity, not a branch to an exception.
#: nogil: other Python threads run meanwhile. Never fastmath: a bit is a bit.
OPTIONS: dict[str, Any] = {
    "nogil": True,
    "error_model": "numpy",
    "no_cfunc_wrapper": True,
}

#: A parallel region costs some ten microseconds: below this much work, elements times the `work` of
#: their kernel, it is not worth it.
PARALLEL_FROM = 1 << 18

#: Elements of a parallel segment.
GRAIN = 1 << 14

DISABLE_JIT: bool = config.DISABLE_JIT  # type: ignore[attr-defined]

#: Held by the Python thread whose kernel is parallel; another computes serially meanwhile. One
#: threading layer (workqueue) ends the process when two threads are in parallel regions at once.
_parallel = threading.Lock()

_forked = False


def _after_fork() -> None:
    """OpenMP kills a forked child that opens a parallel region; it computes serially instead."""
    global _forked
    _forked = True
    global_compiler_lock.release()


# A fork waits for what another thread compiles: the child would wait for that thread forever.
os.register_at_fork(
    before=global_compiler_lock.acquire,
    after_in_parent=global_compiler_lock.release,
    after_in_child=_after_fork,
)


def threads() -> int:
    """How many threads a large array is given.

    One in a thread that Python did not start: it may be of a parallel region of somebody else, and
    workqueue ends the process when one lies in another.
    """
    if _forked or DISABLE_JIT or isinstance(threading.current_thread(), threading._DummyThread):
        return 1
    if not numba_threads._is_initialized:
        numba.get_num_threads()
    # That takes a lock every time, which an interrupt can leave locked: other threads would hang.
    n: int = numba_threads._get_num_threads()  # type: ignore[attr-defined]
    return n


Types = tuple[Any, ...]
Key = tuple[Hashable, ...]


class Compiled(dict[Any, Any]):
    """The entry points of one function by key; one that is asked for and not there is compiled."""

    def __init__(self, compile_: Callable[[Any], Any]) -> None:
        self._compile = compile_

    def __missing__(self, key: Hashable) -> Any:
        return _once(self, key, self._compile)


#: For functions that kernels call, and nobody else: no C wrapper is compiled.
called = register_jitable(no_cfunc_wrapper=True)


def array_type(dtype: np.dtype[Any], ndim: int = 1) -> types.Type:
    return types.Array(TYPES[dtype], ndim, "C")


@called
def usual(n: Any, scale: Any, zero_point: Any, least: Any, most: Any) -> Any:
    """Whether `n` scales are positive and finite, and as many zero points within least..most."""
    bad = 0
    for i in range(n):  # to the end: a loop that can stop early is not vectorised
        v, w = widen(at(scale, i)), widen(at(zero_point, i))
        bad |= not (v > type(v)(0) and v < type(v)(np.inf) and w >= least and w <= most)
    return not bad


class Kernel:
    """A segment in its serial and its parallel form, compiled once a key.

    Parameters
    ----------
    segment : callable
        ``segment(begin, end, *args)``; it writes to its last arguments. One of them may be a tuple.
        What it returns is for those who call the serial form themselves.
    name : str
        What it is called in the cache and in profiles.
    signature : callable
        ``signature(*key)``: the Numba types of ``args``. A key is made of dtypes and names, since
        it is looked up on every call.
    work : int
        What an element costs: 1 where it is little more than moved, and 4 where sums are made, or
        exponentials.
    """

    def __init__(
        self,
        segment: Callable[..., None],
        name: str,
        signature: Callable[..., Types],
        work: int = 1,
    ) -> None:
        self.name, self.work, self._signature = name, work, signature
        self._segment = renamed(segment, name)
        run = called(segment)

        def parallel(n: int, grain: int, args: tuple[Any, ...]) -> None:
            for t in prange((n + grain - 1) // grain):
                run(t * grain, min(n, (t + 1) * grain), *args)

        self._run = run
        self._parallel = renamed(parallel, f"{name}_parallel")
        self.serial = Compiled(self._compile_serial)
        self.parallel = Compiled(self._compile_parallel)

    def __call__(
        self, n: int, size: int, args: tuple[Any, ...], key: Key, grain: int | None = None
    ) -> None:
        """Do the items [0, n), which are `size` elements; `grain` items are a parallel segment."""
        if size * self.work < PARALLEL_FROM or threads() == 1 or _parallel.locked():
            self.serial[key](0, n, *args)
            return
        entry = self.parallel[key]
        place = next((i for i, a in enumerate(args) if type(a) is tuple), None)
        grain = grain or max(1, n * GRAIN // size)
        with _parallel:
            if place is None:
                entry(n, grain, args)
            else:
                entry(n, grain, args[:place] + args[place + 1 :], args[place])

    def _compile_serial(self, key: Key) -> Any:
        types_ = (types.intp, types.intp, *self._signature(*key))
        return _compile(self._segment, types_, False)

    def _compile_parallel(self, key: Key) -> Any:
        """The parallel form of one key; Numba's does not take a tuple within its tuple."""
        signature = self._signature(*key)
        tuples = (i for i, t in enumerate(signature) if isinstance(t, types.BaseTuple))
        place = next(tuples, None)
        if place is None:
            types_: Types = (types.intp, types.intp, types.Tuple(signature))
            return _compile(self._parallel, types_, True)
        run = self._run

        def nested(n: int, grain: int, args: tuple[Any, ...], several: tuple[Any, ...]) -> None:
            for t in prange((n + grain - 1) // grain):
                all_ = args[:place] + (several,) + args[place:]  # noqa: RUF005 (for Numba)
                run(t * grain, min(n, (t + 1) * grain), *all_)

        rest = types.Tuple(signature[:place] + signature[place + 1 :])
        types_ = (types.intp, types.intp, rest, signature[place])
        return _compile(renamed(nested, f"{self.name}_nested"), types_, True)


class Either(Kernel):
    """One of two kernels of one signature, `first` for keys of which ``which(*key)`` says so."""

    def __init__(self, which: Callable[..., bool], first: Kernel, second: Kernel) -> None:
        self.name, self.work = second.name, second.work
        self.serial = Compiled(lambda key: (first if which(*key) else second).serial[key])
        self.parallel = Compiled(lambda key: (first if which(*key) else second).parallel[key])


def _once(entries: dict[Any, Any], key: Any, compile_: Callable[[Any], Any]) -> Any:
    """The entry of a key, which the first thread that needs it compiles while others wait.

    The main thread has another compile it. Python interrupts the main thread alone, anywhere, and
    LLVM ends a process in which it has been interrupted. What is compiled meanwhile is kept.
    """
    errors = []

    def work() -> None:
        try:
            with global_compiler_lock:
                if key not in entries:
                    entries[key] = compile_(key)
        except BaseException as error:
            errors.append(error)

    main = threading.current_thread() is threading.main_thread()
    if main and not global_compiler_lock.is_locked():  # by this thread: another would wait for it
        thread = threading.Thread(target=work, name="npquant compiles")
        try:
            thread.start()
        except RuntimeError:  # the interpreter is about to end, and starts no threads
            work()
        else:
            thread.join()
    else:
        work()
    if errors:
        raise errors[0]
    return entries[key]


def renamed(function: Callable[..., Any], name: str) -> Any:
    """A copy with a name of its own: Numba's cache tells functions apart by name and line."""
    code = function.__code__  # type: ignore[attr-defined]
    copy = python_types.FunctionType(
        code.replace(co_name=name, co_qualname=name),
        function.__globals__,  # type: ignore[attr-defined]
        name,
        function.__defaults__,  # type: ignore[attr-defined]
        function.__closure__,  # type: ignore[attr-defined]
    )
    copy.__qualname__, copy.__module__ = name, function.__module__
    return copy


def _compile(function: Any, signature: tuple[types.Type, ...], parallel: bool) -> Any:
    """The compiled function of one signature, without Numba's dispatcher in front of it.

    The caller knows the types: asking for them again costs more than a small array does.
    """
    dispatcher = njit(parallel=parallel, **OPTIONS)(function)
    if DISABLE_JIT:
        return _uncompiled(function, signature)
    dispatcher._cache = cache.of(function)
    dispatcher.compile(signature)
    return dispatcher.overloads[signature].entry_point


def _uncompiled(function: Any, signature: tuple[types.Type, ...]) -> Any:
    """The plain function, its numbers rounded to `signature` as the compiled one's would be."""

    def call(*args: Any) -> Any:
        with np.errstate(all="ignore"):
            return function(*_rounded(args, signature))

    return call


_NUMBERS = {types.float32: np.float32, types.float64: np.float64, types.int32: np.int32}


def _rounded(values: Any, kinds: Any) -> tuple[Any, ...]:
    """The values as numbers of these types, those within tuples too; arrays as they are."""
    return tuple(
        _rounded(v, t) if isinstance(t, types.BaseTuple) else _NUMBERS.get(t, lambda v: v)(v)
        for v, t in zip(values, kinds, strict=True)
    )


def compiled(function: Any, signature: Callable[..., Types]) -> Compiled:
    """A small serial function that is no kernel: ``compiled(...)[key](*args)``."""
    return Compiled(lambda key: _compile(function, signature(key), False))
