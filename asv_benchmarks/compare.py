"""npquant beside its peers and beside a plain copy: one run, one table.

    python asv_benchmarks/compare.py --quick

In every cell npquant, each peer and the copy floor take turns, sample by sample, so that a busy
machine hurts all alike; what is printed are medians. The floor is `np.copyto` with as many bytes
read and written as the op must read and write. Compilation and first calls are not timed.
"""

from __future__ import annotations

import argparse
import ctypes
import inspect
import json
import platform
import random
import re
import statistics
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from time import perf_counter
from timeit import Timer
from typing import Any

import goals
import numba
import numpy as np
import tables
from benchmarks import cases, peers, work
from benchmarks.cases import Call, Case, Inputs
from llvmlite.binding import get_host_cpu_name
from revision import revision

import npquant
from npquant.cpu import target
from npquant.demo.environment import cpu_name

SPECS = cases.SPECS + work.SPECS

#: How long a sample takes, about: many calls of a small array, one of a large one.
SAMPLE_SECONDS = 0.002
LEAST_ROUNDS = 5


# --- the measurement --------------------------------------------------------------------------


class Turn:
    """A call that takes turns with others, on so many threads of npquant."""

    def __init__(self, call: Call, threads: int) -> None:
        self.timer, self.threads = Timer(call), threads
        self.samples: list[float] = []
        self.loops = 1
        # The least of three: one interrupted call must not pass for a slow one.
        while (spent := self._least()) < SAMPLE_SECONDS / 10:
            self.loops *= 10
        self.loops = max(1, round(self.loops * SAMPLE_SECONDS / spent))

    def _least(self) -> float:
        numba.set_num_threads(self.threads)
        first = self.timer.timeit(self.loops)
        return first if first > SAMPLE_SECONDS else min(first, *self.timer.repeat(2, self.loops))

    def take(self) -> None:
        numba.set_num_threads(self.threads)
        self.samples.append(self.timer.timeit(self.loops) / self.loops)

    @property
    def microseconds(self) -> float:
        return statistics.median(self.samples) * 1e6


def medians(turns: dict[str, Turn], seconds: float) -> dict[str, float]:
    """The median microseconds of a call, of samples that are taken in turn."""
    order, rounds, end = list(turns.values()), 0, perf_counter() + seconds
    drawn = random.Random(0)
    while rounds < LEAST_ROUNDS or perf_counter() < end:
        drawn.shuffle(order)  # nobody always comes after the same one
        for turn in order:
            turn.take()
        rounds += 1
    return {name: turn.microseconds for name, turn in turns.items()}


def copy_of(moved: int) -> Call:
    """A copy that reads and writes `moved` bytes in all, to memory that is there."""
    source = np.resize(np.random.default_rng(0).integers(0, 256, 1 << 20, np.uint8), _half(moved))
    return partial(np.copyto, source.copy(), source)


def copy_to_new(moved: int, written: int) -> Call:
    """The same where `written` of the bytes go to memory that each call allocates."""
    new = min(written, _half(moved))
    source = np.resize(np.random.default_rng(0).integers(0, 256, 1 << 20, np.uint8), _half(moved))
    fresh, rest, there = source[:new], source[new:], source[new:].copy()

    def copy() -> np.ndarray[Any, Any]:
        np.copyto(there, rest)
        result = np.empty(new, np.uint8)
        np.copyto(result, fresh)
        return result

    return copy


def _half(moved: int) -> int:
    return max(1, moved // 2)


def beyond_results(call: Call, results: int) -> int | None:
    """By how many bytes the memory of the process grows in a call, beyond its results.

    The least of three: what other threads of the process allocate meanwhile is counted, too.
    """
    status, refs = Path("/proc/self/status"), Path("/proc/self/clear_refs")

    def kib(name: str) -> int:
        return int(re.findall(rf"{name}:\s*(\d+)", status.read_text())[0])

    growths = []
    for _ in range(3):
        try:
            ctypes.CDLL(None).malloc_trim(0)  # what is free must not serve the call unseen
            refs.write_text("5")  # sets the peak to what is there now
        except (OSError, AttributeError):
            return None  # not Linux with glibc
        before = kib("VmRSS")
        call()
        growths.append((kib("VmHWM") - before) * 1024)
    return max(0, min(growths) - results)


def ours(case: Case, inputs: Inputs) -> tuple[dict[str, Call], int, int]:
    """npquant's calls and the floors; the bytes that move, and those of the results."""
    call = case.call(inputs)
    call()
    result = call()  # what moves an average compiles more the second time
    moved = case.moved(inputs, result)
    written = case.written(inputs, result)
    calls: dict[str, Call] = {"npquant": call, "copy": copy_of(moved)}
    op = getattr(npquant, case.op, None)
    if case.size < goals.COSTLY:
        pass
    elif op and "out" in inspect.signature(op).parameters:
        calls["npquant out"] = partial(call, out=result)
        calls["npquant out"]()
    else:
        calls["copy new"] = copy_to_new(moved, written)
    if case.size <= goals.CALL:
        calls["dispatch"] = work.dispatch(np.zeros(case.layout.shape, np.float32))
        calls["dispatch"]()
    return calls, moved, written


def measure(case: Case, seconds: float, threads: list[int], wanted: list[str]) -> goals.Row:
    """One row: what the cell is, and microseconds of npquant, of each peer, and of the floor."""
    numba.set_num_threads(threads[0])
    inputs = case.inputs()
    calls, moved, written = ours(case, inputs)
    rivals, absent = peers.calls_of(case, inputs, wanted)
    turns = {name: Turn(call, threads[0]) for name, call in (calls | rivals).items()}
    if len(threads) > 1:
        numba.set_num_threads(threads[-1])
        calls["npquant"]()  # compiles what spreads it
        calls["npquant threads"] = calls["npquant"]
        turns["npquant threads"] = Turn(calls["npquant"], threads[-1])
    times = medians(turns, seconds)
    numba.set_num_threads(threads[0])
    out = calls.get("npquant out")
    layout = case.layout
    return {
        "name": str(case),
        "op": case.op,
        "dtype": case.dtype,
        "layout": case.kind,
        "shape": str(layout),
        "size": case.size,
        "grain": layout.grain,
        "order": layout.order,
        "wide": layout.wide,
        "work": isinstance(case, work.Work),
        "itemsize": cases.dtype_named(case.dtype.split(" -> ")[0]).itemsize,
        "bytes moved": moved,
        "temporary": beyond_results(out or calls["npquant"], 0 if out else written),
        "peers": {name: times[name] for name in rivals},
        "absent": absent,
        **{name: times[name] for name in calls},
    }


# --- where and with what ----------------------------------------------------------------------


def about(threads: list[int], versions: dict[str, str]) -> dict[str, str]:
    absent = [name for name in ("torch", "onnxruntime", "onnx") if name not in versions]
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "CPU": f"{cpu_name()} ({get_host_cpu_name()})",  # and what the compiler takes it for
        "threads": ", ".join(map(str, threads)),
        "Python": platform.python_version(),
        "npquant": revision(),
        "numpy": np.__version__,
        "numba": numba.__version__,
        **versions,
        **({"missing peers": ", ".join(absent)} if absent else {}),
    }


# --- the command ------------------------------------------------------------------------------


def selected(options: argparse.Namespace) -> list[Case]:
    """The cells that were asked for."""
    specs = [spec for spec in SPECS if re.search(options.op, spec.op)]
    if options.dtype or options.layout or options.size:
        ask = options.dtype, options.layout, options.size
        return list(cases.by_name(c for spec in specs for c in spec.product(*ask)).values())
    found = list(cases.star(specs, whole=options.matrix).values())
    if not options.quick:
        return found
    usual = [case for case in found if case.op in cases.QUICK and case.size in cases.USUAL_SIZES]
    firsts = {(case.op, case.size): case for case in reversed(usual)}
    return list(reversed(firsts.values()))


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def parsed(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("--quick", action="store_true", help="a handful of cells, under a minute")
    add(
        "--matrix",
        action="store_true",
        help="the whole matrix: an hour or so, with --json in parts",
    )
    add("--op", default="", metavar="PATTERN", help="only ops that match a regex")
    add("--dtype", default="", metavar="PATTERN", help="every cell of these dtypes")
    add("--layout", default="", metavar="PATTERN", help="every cell of these layouts, by name")
    add("--size", type=numbers, default=[], metavar="N,N", help="every cell of so many elements")
    add("--threads", type=numbers, default=[1], metavar="N[,M]",
        help="all of them on N threads, npquant on M too (default: 1)")  # fmt: skip
    add("--peers", default=None, metavar="NAME,NAME",
        help="'all', 'none' or names (default: those that need not compile every cell; "
        f"--matrix: all). Of: {', '.join(peers.PEERS)}")  # fmt: skip
    add("--seconds", type=float, default=None, metavar="S", help="of sampling, for each cell")
    add("--again", type=int, default=0, metavar="N",
        help="then measure those cells again in which the machine was slow, N times")  # fmt: skip
    add("--json", type=Path, metavar="FILE",
        help="every figure, cell by cell; rows that are there already are kept")  # fmt: skip
    options = parser.parse_args(argv)

    most = numba.config.NUMBA_NUM_THREADS
    if not 1 <= len(options.threads) <= 2 or not all(1 <= n <= most for n in options.threads):
        parser.error(f"--threads must be one or two of 1..{most}, got {options.threads}")
    quickly = [name for name in peers.PEERS if name not in peers.SLOW]
    names = options.peers or ("all" if options.matrix else ",".join(quickly))
    ready = {"all": list(peers.PEERS), "none": []}
    options.peers = ready[names] if names in ready else names.split(",")
    if unknown := set(options.peers) - set(peers.PEERS):
        parser.error(f"--peers must be of {', '.join(peers.PEERS)}, got {', '.join(unknown)}")
    if options.again < 0:
        parser.error(f"--again must be at least 0, got {options.again}")
    if options.seconds is None:
        options.seconds = 0.4 if options.quick or options.matrix else 0.7
    options.cells = selected(options)
    if not options.cells:
        parser.error("no cell matches")
    return options


def resumed(path: Path | None, facts: dict[str, str]) -> list[goals.Row]:
    """The rows of a run that was cut off; they must come from the same machine and code."""
    if path is None or not path.exists():
        return []
    before = json.loads(path.read_text())
    differ = {k for k, v in facts.items() if k != "date" and before["about"].get(k) != v}
    if differ:
        sys.exit(f"{path} is of another run, its {', '.join(sorted(differ))} differ: remove it")
    return list(before["rows"])


def kept(path: Path | None, facts: dict[str, str], rows: list[goals.Row]) -> None:
    if path is not None:
        part = path.with_name(path.name + ".part")
        part.write_text(json.dumps({"about": facts, "rows": rows}, indent=1) + "\n")
        part.replace(path)  # never half a file


def measured_again(
    rows: list[goals.Row], cells: list[Case], measure: Callable[[Case], goals.Row]
) -> Iterator[goals.Row]:
    """Measure the cells again in which the machine was slow; of both the one where it was less so.

    That says nothing of npquant: it goes by how long a copy, or a bare dispatch, took.
    """
    for case in cells:
        at = next(i for i, row in enumerate(rows) if row["name"] == str(case))
        if goals.disturbed(rows[at], rows):
            rows[at] = min(rows[at], measure(case), key=goals.pace)
            yield rows[at]


def main(argv: list[str] | None = None) -> int:
    options = parsed(argv)
    target.ALONE = 0  # threads are measured, not when they are left alone
    facts = about(options.threads, peers.setup(options.threads[0]))
    rows = resumed(options.json, facts)
    for name, value in facts.items():
        print(f"{name}: {value}")
    print()
    there = {row["name"]: row for row in rows}
    printer = tables.Printer(options.cells, peers.PEERS)

    def measured(case: Case) -> goals.Row:
        return measure(case, options.seconds, options.threads, options.peers)

    for case in options.cells:
        row = there.get(str(case))
        if row is None:
            row = measured(case)
            rows.append(row)
            kept(options.json, facts, rows)
        printer.row(row)
    for turn in range(options.again):
        print(f"\nMeasured again, {turn + 1} of {options.again}:")
        for row in measured_again(rows, options.cells, measured):
            kept(options.json, facts, rows)
            printer.row(row)
    print("", *tables.summary(rows), "", "What peers do not compute:", sep="\n")
    print(*tables.refusals(rows), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
