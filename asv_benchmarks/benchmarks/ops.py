"""The asv suite: a class an op, with the cells of a usual run, on one thread and on two."""

from __future__ import annotations

import tracemalloc
from timeit import Timer
from typing import Any, ClassVar

import numba

from npquant.cpu import target

from . import cases, work

CASES = cases.CASES | work.CASES
THREADS = [n for n in (1, 2) if n <= numba.config.NUMBA_NUM_THREADS]


class _Op:
    """Time, throughput and memory of a call; what is compiled is compiled in `setup`.

    The peak of memory is asv's, of the whole process: the compiler's, mostly.
    """

    params: ClassVar[tuple[list[Any], ...]]
    param_names = ("case", "threads")
    timeout = 120.0

    def setup(self, name: str, threads: int) -> None:
        numba.set_num_threads(threads)
        target.ALONE = 0  # threads are measured, not when they are left alone
        case = CASES[f"{type(self).__name__} {name}"]
        inputs = case.inputs()
        self.call = case.call(inputs)
        self.moved = case.moved(inputs, self.call())

    def time_call(self, name: str, threads: int) -> None:
        self.call()

    def peakmem_call(self, name: str, threads: int) -> None:
        self.call()

    def track_gbytes_per_s(self, name: str, threads: int) -> float:
        """The best of five samples: what the code can do, not what the machine was doing."""
        n, _ = Timer(self.call).autorange()
        return self.moved / (min(Timer(self.call).repeat(5, n)) / n) / 1e9

    def track_temporary_bytes(self, name: str, threads: int) -> int:
        """The most that a call holds beyond what it returns."""
        tracemalloc.start()
        result = self.call()
        held, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        del result
        return peak - held


_Op.track_gbytes_per_s.unit = "GB/s"  # type: ignore[attr-defined]
_Op.track_temporary_bytes.unit = "bytes"  # type: ignore[attr-defined]

for _op in dict.fromkeys(case.op for case in CASES.values()):
    _names = [name.removeprefix(f"{_op} ") for name, case in CASES.items() if case.op == _op]
    globals()[_op] = type(_op, (_Op,), {"params": (_names, THREADS), "__module__": __name__})
