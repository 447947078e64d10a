"""What it costs that another program keeps a core busy: calls in one thread and in several.

    python asv_benchmarks/busy.py

Prints the mean and the median of a call, which differ where a few wait for long: beside nothing,
and beside two programs that never rest, one of them on the last core this process may use. "Always
asked" is what threads would cost that are never left alone (`npquant.cpu.target.ALONE`). All take
turns.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from time import perf_counter, sleep

import numba
import numpy as np

import npquant as nq
from npquant.cpu import target

#: Seconds that one of them calls before it is another's turn.
TURN = 0.5


@contextmanager
def busy_cores() -> Iterator[None]:
    cores = os.sched_getaffinity(0)
    code = "import os; os.sched_setaffinity(0, {})\nwhile True: pass"
    programs = [
        subprocess.Popen([sys.executable, "-c", code.format(where)])
        for where in ({max(cores)}, cores)
    ]
    try:
        sleep(TURN)
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--size", type=int, default=1 << 20, help="float32 elements")
    parser.add_argument("--turns", type=int, default=5)
    arguments = parser.parse_args()
    x = np.random.default_rng(0).normal(size=arguments.size).astype(np.float32)
    most = numba.get_num_threads()
    if most == 1:
        parser.error("there is one thread")
    ways = {"1 thread": (1, target.ALONE), f"{most} threads": (most, target.ALONE),
            f"{most} threads, always asked": (most, 0)}  # fmt: skip
    for threads in (1, most):  # what is compiled, and the pool
        numba.set_num_threads(threads)
        nq.fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127)
    for beside, others in (("beside nothing", nullcontext), ("beside busy cores", busy_cores)):
        times: dict[str, list[float]] = {way: [] for way in ways}
        with others():
            for _ in range(arguments.turns):
                for way, (threads, alone) in ways.items():
                    numba.set_num_threads(threads)
                    target.ALONE, target._alone_until, target._saved = alone, 0.0, 0.0
                    end = perf_counter() + TURN
                    while (start := perf_counter()) < end:
                        nq.fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127)
                        times[way].append(perf_counter() - start)
        for way, seconds in times.items():
            mean, median = 1e6 * statistics.mean(seconds), 1e6 * statistics.median(seconds)
            print(f"{beside:20} {way:25} mean {mean:8,.0f} us   median {median:8,.0f} us")


if __name__ == "__main__":
    main()
