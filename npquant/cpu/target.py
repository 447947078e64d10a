"""How kernels are compiled and called on the CPU: options, forms, threads, the cache's name.

A kernel is written once, as a *segment*: a function of `begin`, `end` and its arguments that does
the items [begin, end). `Kernel` makes two forms of it. The serial one is the segment itself; the
parallel one is a `prange` over segments of a fixed size, so what a segment computes depends on the
shape alone and never on the number of threads.
"""

from __future__ import annotations

import hashlib
import os
import threading
import types as python_types
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numba import config, njit, prange, types
from numba.extending import register_jitable

from npquant.cpu.storage import TYPES

#: error_model="numpy": a division by zero is an infinity, not a branch to an exception.
#: nogil: other Python threads run meanwhile. Never fastmath: a bit is a bit.
OPTIONS: dict[str, Any] = {
    "cache": True,
    "nogil": True,
    "error_model": "numpy",
    "no_cfunc_wrapper": True,
}


def _fingerprint() -> str:
    """A name for this state of the sources that kernels are made of.

    Numba's cache looks at the file of a kernel alone; with this in its name, an edited or upgraded
    formula is never served from yesterday's cache.
    """
    package = Path(__file__).parent.parent
    files = [*package.glob("*.py"), *package.glob("formulas/*.py"), *package.glob("cpu/*.py")]
    state = sorted((str(f), f.stat().st_mtime_ns, f.stat().st_size) for f in files)
    return hashlib.sha1(repr(state).encode(), usedforsecurity=False).hexdigest()[:10]


FINGERPRINT = _fingerprint()

#: A parallel region costs some ten microseconds: below this many elements it is not worth it.
PARALLEL_FROM = 1 << 16

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


os.register_at_fork(after_in_child=_after_fork)


def threads() -> int:
    """How many threads a large array is given."""
    return 1 if _forked or DISABLE_JIT else numba.get_num_threads()


Types = tuple[Any, ...]
Key = tuple[Hashable, ...]


def array_type(dtype: np.dtype[Any], ndim: int = 1) -> types.Type:
    return types.Array(TYPES[dtype], ndim, "C")


class Kernel:
    """A segment in its serial and its parallel form, compiled once a key.

    Parameters
    ----------
    segment : callable
        ``segment(begin, end, *args)``; it returns nothing and writes to its last arguments. One of
        them may be a tuple.
    name : str
        What it is called in the cache and in profiles.
    signature : callable
        ``signature(*key)``: the Numba types of ``args``. A key is made of dtypes and names, since
        it is looked up on every call.
    """

    def __init__(
        self, segment: Callable[..., None], name: str, signature: Callable[..., Types]
    ) -> None:
        self.name, self._signature = name, signature
        self._segment = _renamed(segment, f"{name}_{FINGERPRINT}")
        run = register_jitable(segment)

        def parallel(n: int, grain: int, args: tuple[Any, ...]) -> None:
            for t in prange((n + grain - 1) // grain):
                run(t * grain, min(n, (t + 1) * grain), *args)

        self._run = run
        self._parallel = _renamed(parallel, f"{name}_parallel_{FINGERPRINT}")
        self.serial: dict[Key, Any] = {}
        self.parallel: dict[Key, Any] = {}

    def __call__(
        self, n: int, size: int, args: tuple[Any, ...], key: Key, grain: int | None = None
    ) -> None:
        """Do the items [0, n), which are `size` elements; `grain` items are a parallel segment."""
        if size < PARALLEL_FROM or threads() == 1 or not _parallel.acquire(blocking=False):
            entry = self.serial.get(key)
            if entry is None:
                types_ = (types.intp, types.intp, *self._signature(*key))
                entry = self.serial[key] = _compile(self._segment, types_, False)
            entry(0, n, *args)
        else:
            try:
                entry = self.parallel.get(key)
                place = next((i for i, a in enumerate(args) if type(a) is tuple), None)
                if entry is None:
                    entry = self.parallel[key] = self._compile_parallel(key, place)
                grain = grain or max(1, n * GRAIN // size)
                if place is None:
                    entry(n, grain, args)
                else:
                    entry(n, grain, args[:place] + args[place + 1 :], args[place])
            finally:
                _parallel.release()

    def _compile_parallel(self, key: Key, place: int | None) -> Any:
        """The parallel form of one key; Numba's does not take a tuple within its tuple."""
        signature = self._signature(*key)
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
        return _compile(_renamed(nested, f"{self.name}_nested_{FINGERPRINT}"), types_, True)


def _renamed(function: Callable[..., Any], name: str) -> Any:
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
    dispatcher.compile(signature)
    return dispatcher.overloads[signature].entry_point


def _uncompiled(function: Any, signature: tuple[types.Type, ...]) -> Any:
    """The plain function, its numbers rounded to `signature` as the compiled one's would be."""
    numbers = {types.float32: np.float32, types.float64: np.float64, types.int32: np.int32}

    def call(*args: Any) -> Any:
        with np.errstate(all="ignore"):
            return function(
                *(numbers.get(t, lambda v: v)(a) for t, a in zip(signature, args, strict=True))
            )

    return call


def compiled(function: Any, signature: Callable[..., Types]) -> Callable[..., Any]:
    """A small serial function that is no kernel, compiled once a key: ``call(key, *args)``."""
    named = _renamed(function, f"{function.__name__}_{FINGERPRINT}")
    entries: dict[Hashable, Any] = {}

    def call(key: Hashable, *args: Any) -> Any:
        entry = entries.get(key)
        if entry is None:
            entry = entries[key] = _compile(named, signature(key), False)
        return entry(*args)

    return call
