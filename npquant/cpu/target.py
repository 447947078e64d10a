"""How kernels are compiled and called on the CPU: options, forms, threads, forks.

A kernel is written once, as a *segment*: a function of `begin`, `end` and its arguments that does
the items [begin, end). `Kernel` compiles it and calls it once, or in several threads (`threads.py`)
for segments of a fixed size: what a segment computes depends on the shape alone and never on the
number of threads.
"""

from __future__ import annotations

import contextlib
import gc
import os
import threading
import types as python_types
from collections.abc import Callable, Hashable, Iterator
from functools import cached_property
from time import perf_counter
from typing import Any

import numpy as np
from numba import config, njit, types
from numba.core.compiler_lock import global_compiler_lock

from npquant.cpu import cache
from npquant.cpu import primitives as _primitives  # noqa: F401 (teaches the compiler)
from npquant.cpu import threads as pool
from npquant.cpu.borrowed import EverySecond, Flat, flat
from npquant.cpu.machine_code import machine_code_of
from npquant.cpu.passes import needed_work
from npquant.cpu.storage import TYPES

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

#: Seconds that others have saved of late, CREDIT at most: as long as calls took in which they
#: helped, less those in which they came too late to. When none are left, one thread computes for
#: ALONE times as long as the last such call took, ALONE_AT_MOST; then others are asked again.
CREDIT, ALONE, ALONE_AT_MOST = 0.0625, 8, 0.25
_saved = _alone_until = 0.0

_forked = False


def _after_fork() -> None:
    """OpenMP kills a forked child that opens a parallel region; it computes serially instead."""
    global _forked
    _forked = True
    global_compiler_lock.release()


if hasattr(os, "register_at_fork"):
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
    return pool.available()


Types = tuple[Any, ...]
#: A formula, or a segment.
Function = Callable[..., Any]
Key = tuple[Hashable, ...]


class Compiled(dict[Any, Any]):
    """The entry points of one function by key; one that is asked for and not there is compiled."""

    def __init__(self, compile_: Callable[[Any], Any], function: Any = None) -> None:
        self._compile, self.function = compile_, function

    def __missing__(self, key: Hashable) -> Any:
        return _once(self, key, self._compile)


def array_type(dtype: np.dtype[Any]) -> types.Type:
    """The type of contiguous arrays; of those of every second element for a pair of a dtype."""
    return EverySecond(TYPES[dtype.base]) if dtype.shape else Flat(TYPES[dtype])


def array_types(*dtypes: Any) -> Types:
    """The types of several."""
    return tuple(map(array_type, dtypes))


class Kernel:
    """A segment, compiled once a key, in one thread or in several.

    Parameters
    ----------
    segment : callable
        ``segment(begin, end, *args)``; it writes to its last arguments. What it returns is for
        those who call the serial entry themselves.
    name : str
        What it is called in the cache and in profiles.
    signature : callable
        ``signature(*key)``: the Numba types of ``args``. A key is made of dtypes and names, since
        it is looked up on every call.
    work : int
        What an element costs: 1 where it is little more than moved, and 4 where sums are made, or
        exponentials.
    full_width : bool
        Whether to compute in vectors as long as the processor has.
    """

    def __init__(
        self,
        segment: Callable[..., Any],
        name: str,
        signature: Callable[..., Types],
        work: int = 1,
        full_width: bool = True,
    ) -> None:
        self.name, self.work, self._signature = name, work, signature
        self._full_width = full_width
        self._made = segment
        self._code = Compiled(self._compile)
        self.serial = Compiled(lambda key: self._code[key].entry_point)
        self.parallel = Compiled(self._compile_parallel)

    def __call__(
        self, n: int, size: int, args: tuple[Any, ...], key: Key, grain: int | None = None
    ) -> None:
        """Do the items [0, n), which are `size` elements; `grain` items are a parallel segment."""
        global _saved, _alone_until
        if size * self.work < PARALLEL_FROM or (some := threads()) == 1 or _parallel.locked():
            self.serial[key](0, n, *args)
            return
        spread, loop, segment = self.parallel[key]  # what is compiled depends on no clock
        if perf_counter() < _alone_until:
            self.serial[key](0, n, *args)
            return
        with _parallel:
            start = perf_counter()
            alone = spread(loop, some, segment, n, grain or max(1, n * GRAIN // size), args)
        took = perf_counter() - start
        _saved = _saved - took if alone else min(_saved + took, CREDIT)
        if _saved < 0:
            _saved, _alone_until = 0.0, start + took + min(ALONE * took, ALONE_AT_MOST)

    def ready(self, size: int, key: Key) -> None:
        """Compile what a call for `size` elements may ask for, and call nothing."""
        self.serial[key]
        if size * self.work >= PARALLEL_FROM and threads() > 1:
            self.parallel[key]

    def _compile(self, key: Key) -> Any:
        signature = types.intp, types.intp, *self._signature(*key)
        return _compile(self._segment, signature, self._full_width)

    @cached_property
    def _segment(self) -> Any:
        return renamed(self._made, self.name)

    def _compile_parallel(self, key: Key) -> Any:
        """What spreads segments of one signature, and where the pool's loop and this one are."""
        code = self._code[key]
        segment = code.library.get_pointer_to_function(code.fndesc.llvm_func_name)
        return _SPREAD[self._signature(*key)], pool.entry(), segment


class Later(Kernel):
    """A kernel whose segment ``segment()`` makes, when it is first compiled.

    To make all the functions of an op takes a millisecond, and most programs call a few of them.
    """

    @cached_property
    def _segment(self) -> Any:
        return renamed(self._made(), self.name)


class Either(Kernel):
    """One of two kernels of one signature, `first` for keys of which ``which(*key)`` says so."""

    def __init__(self, which: Callable[..., bool], first: Kernel, second: Kernel) -> None:
        self.name, self.work = second.name, second.work
        self.serial = Compiled(lambda key: (first if which(*key) else second).serial[key])
        self.parallel = Compiled(lambda key: (first if which(*key) else second).parallel[key])


#: Bytes; of 64 KiB LLVM ends the process.
_STACK = 8 << 20


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
            with _room_to_compile():
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


@contextlib.contextmanager
def _room_to_compile() -> Iterator[None]:
    """A thread that is started has as much of a stack as the main thread, or more."""
    before = threading.stack_size()  # which makes it the default one, too
    threading.stack_size(_STACK if 0 < before < _STACK else before)
    try:
        yield
    finally:
        threading.stack_size(before)


def renamed(function: Callable[..., Any], name: str) -> Any:
    """A copy with a name of its own: that of its entries in the cache, and in profiles."""
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


def _compile(function: Any, signature: tuple[types.Type, ...], full_width: bool = True) -> Any:
    """What Numba has of the compiled function of one signature."""
    dispatcher = njit(**OPTIONS)(function)
    if DISABLE_JIT:
        return python_types.SimpleNamespace(entry_point=_uncompiled(function, signature))
    dispatcher._cache = cache.of(function)
    code = machine_code_of(function.__qualname__, full_width)
    with global_compiler_lock, no_collection(), needed_work(), code:
        dispatcher.compile(signature)
    return dispatcher.overloads[signature]


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """No search for garbage, which takes a tenth of the time: a compiler makes many objects.

    Whether it is enabled is for the program to say, and may be said meanwhile by another thread.
    """
    before = gc.get_threshold()
    gc.set_threshold(0)
    try:
        yield
    finally:
        if gc.get_threshold()[0] == 0:
            gc.set_threshold(*before)


def _uncompiled(function: Any, signature: tuple[types.Type, ...]) -> Any:
    """The plain function, its numbers rounded to `signature` as the compiled one's would be."""

    def call(*args: Any) -> Any:
        with np.errstate(all="ignore"):
            return function(*_rounded(args, signature))

    return call


_NUMBERS = {types.float32: np.float32, types.float64: np.float64, types.int32: np.int32}


def _rounded(values: Any, kinds: Any) -> tuple[Any, ...]:
    """The values as they are in a kernel: numbers of these types, flat arrays, tuples of both."""

    def one(v: Any, kind: Any) -> Any:
        if isinstance(kind, types.BaseTuple):
            return _rounded(v, kind)
        return flat(v) if isinstance(kind, Flat) else _NUMBERS.get(kind, lambda v: v)(v)

    return tuple(one(v, kind) for v, kind in zip(values, kinds, strict=True))


def compiled(function: Any, signature: Callable[..., Types]) -> Compiled:
    """A small serial function that is no kernel: ``compiled(...)[key](*args)``.

    Nothing else has its name, nor that of a kernel: what two processes have compiled, one may load.
    """
    return Compiled(lambda key: _compile(function, signature(key)).entry_point, function)


#: How segments are spread, by the types of their arguments.
_SPREAD = compiled(pool.spread, pool.signature)
