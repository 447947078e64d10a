"""npquant beside its peers and beside a plain copy: one run, one table.

    python asv_benchmarks/compare.py --quick

In every case npquant, each peer and the copy floor take turns, sample by sample, so that a busy
machine hurts all alike; what is printed are medians. The floor is `np.copyto` with as many bytes
read and written as the op must read and write. Compilation and first calls are not timed.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import statistics
import sys
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from time import perf_counter
from timeit import Timer
from typing import Any

import numba
import numpy as np
from benchmarks import cases, peers, work
from benchmarks.cases import QUICK, Call, Case

import npquant

CASES = cases.CASES | work.CASES

#: How long a sample takes, about: many calls of a small array, one of a large one.
SAMPLE_SECONDS = 0.002
LEAST_ROUNDS = 7

COLUMNS = (
    "op", "dtype", "layout", "size", "npquant", "best peer", "its time", "copy",
    "npquant/copy", "peer/npquant", "torch/npquant",
)  # fmt: skip
NUMERIC = COLUMNS[3:5] + COLUMNS[6:]
RATIOS = COLUMNS[8:]

#: The peers that are PyTorch's own call of the same op.
SAME_OP = ("torch", "torch decomposed", "torch work")


def loops(call: Call) -> int:
    """How many calls make a sample."""
    n = 1
    # The least of three: one interrupted call must not pass for a slow one.
    while (spent := min(Timer(call).repeat(3, n))) < SAMPLE_SECONDS / 10:
        n *= 10
    return max(1, round(n * SAMPLE_SECONDS / spent))


def medians(calls: dict[str, Call], seconds: float) -> dict[str, float]:
    """The median time of a call, of samples that are taken in turn."""
    turns = [(name, Timer(call), loops(call)) for name, call in calls.items()]
    samples: dict[str, list[float]] = {name: [] for name in calls}
    rounds, end = 0, perf_counter() + seconds
    while rounds < LEAST_ROUNDS or perf_counter() < end:
        for name, timer, n in turns:
            samples[name].append(timer.timeit(n) / n)
        turns.append(turns.pop(0))  # nobody always comes after the same one
        rounds += 1
    return {name: statistics.median(times) for name, times in samples.items()}


def copy_of(moved: int) -> Call:
    """A copy that reads and writes `moved` bytes in all."""
    source = np.random.default_rng(0).integers(0, 256, max(1, moved // 2), np.uint8)
    return partial(np.copyto, source.copy(), source)


def measure(case: Case, seconds: float) -> dict[str, Any]:
    """One row: microseconds of npquant, of each peer, and of the floor."""
    inputs = case.inputs()
    call = case.call(inputs)
    moved = case.moved(inputs, call())
    rivals = peers.calls_of(case, inputs)
    for rival in rivals.values():
        rival()
    times = medians({"npquant": call, "copy": copy_of(moved)} | rivals, seconds)
    own = times["npquant"]
    best = min(rivals, key=times.__getitem__, default=None)
    same = next((name for name in SAME_OP if name in rivals), None)
    return {
        "op": case.op,
        "dtype": case.dtype,
        "layout": str(case.layout),
        "size": case.size,
        "bytes moved": moved,
        "npquant": own * 1e6,
        "best peer": best,
        "its time": times[best] * 1e6 if best else None,
        "copy": times["copy"] * 1e6,
        "npquant/copy": own / times["copy"],
        "peer/npquant": times[best] / own if best else None,
        "torch/npquant": times[same] / own if same else None,
        "goal": case.goal,
        "peers": {name: times[name] * 1e6 for name in rivals},
    }


def missed(row: dict[str, Any], ratio: str) -> bool:
    """Whether a row misses a goal: to be near the copy, and no slower than a peer."""
    value, goal = row[ratio], row["goal"] if ratio == "npquant/copy" else 1
    if value is None or goal is None:
        return False
    return value > goal if ratio == "npquant/copy" else value < goal


# --- what is printed --------------------------------------------------------------------------


def header(threads: int, versions: dict[str, str]) -> dict[str, str]:
    """Where and with what the table was made."""
    absent = [name for name in ("torch", "onnxruntime", "onnx") if name not in versions]
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "CPU": cpu_model(),
        "threads": str(threads),
        "Python": platform.python_version(),
        "npquant": npquant.__version__,
        "numpy": np.__version__,
        "numba": numba.__version__,
        **versions,
        **({"missing peers": ", ".join(absent)} if absent else {}),
    }


def cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*:\s*(.+)", info.read_text()) if info.exists() else None
    return found[1] if found else platform.processor() or platform.machine()


def text(row: dict[str, Any], column: str) -> str:
    """A cell; an exclamation mark where a goal is missed."""
    value = row[column]
    if value is None:
        return "-"
    if not isinstance(value, float):
        return str(value)
    if column in RATIOS:
        return f"{value:.2f}" + "!" * missed(row, column)
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"


def summary(rows: list[dict[str, Any]]) -> list[str]:
    """What the marks mean, and how many there are of them."""
    goals = (
        "above 1.5 (2.5: last axis, groups of 32, two-byte floats)",
        "slower than the best peer",
        "slower than PyTorch's own call of the same op",
    )
    lines = ["Times in microseconds, medians; - where no peer has it, ! where a goal is missed."]
    for ratio, goal in zip(RATIOS, goals, strict=True):
        misses = sum(missed(row, ratio) for row in rows)
        lines.append(f"{ratio}: {misses} of {len(rows)} cases {goal}.")
    return lines


def markdown(about: dict[str, str], rows: list[dict[str, Any]]) -> str:
    rule = ["--:" if column in NUMERIC else "---" for column in COLUMNS]
    table = [COLUMNS, rule, *([text(row, column) for column in COLUMNS] for row in rows)]
    return "\n".join(
        [
            ", ".join(f"{name} {value}" for name, value in about.items()),
            "",
            *("| " + " | ".join(cells) + " |" for cells in table),
            "",
            *(f"{line}  " for line in summary(rows)),
            "",
        ]
    )


class Printer:
    """The table on the terminal, row by row as it is measured."""

    def __init__(self, cases: list[Case]) -> None:
        widest = {
            "op": max(len(case.op) for case in cases),
            "dtype": max(len(case.dtype) for case in cases),
            "layout": max(len(str(case.layout)) for case in cases),
            "best peer": max(map(len, peers.PEERS)),
        }
        self.widths = {c: max(len(c), widest.get(c, 8)) for c in COLUMNS}

    def line(self, cells: list[str]) -> None:
        padded = (
            cell.rjust(width) if column in NUMERIC else cell.ljust(width)
            for cell, (column, width) in zip(cells, self.widths.items(), strict=True)
        )
        print("  ".join(padded), flush=True)

    def row(self, row: dict[str, Any]) -> None:
        self.line([text(row, column) for column in COLUMNS])


# --- the command ------------------------------------------------------------------------------


def selected(quick: bool, pattern: str) -> list[Case]:
    """The cases whose names match; of a quick look, one of each op in QUICK and size."""
    found = [case for name, case in CASES.items() if re.search(pattern, name)]
    if not quick:
        return found
    firsts = {(case.op, case.size): case for case in reversed(found) if case.op in QUICK}
    return list(reversed(firsts.values()))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a handful of cases, under a minute")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="default: 1")
    parser.add_argument("--only", default="", metavar="PATTERN", help="cases matching a regex")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure here too")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table here too")
    options = parser.parse_args(argv)
    most = numba.config.NUMBA_NUM_THREADS
    if not 1 <= options.threads <= most:
        parser.error(f"--threads must be within 1..{most}, got {options.threads}")
    chosen = selected(options.quick, options.only)
    if not chosen:
        parser.error(f"no case matches --only {options.only!r}")

    numba.set_num_threads(options.threads)
    about = header(options.threads, peers.setup(options.threads))
    for name, value in about.items():
        print(f"{name}: {value}")
    print()
    printer, rows = Printer(chosen), []
    printer.line(list(COLUMNS))
    for case in chosen:
        rows.append(measure(case, seconds=0.5 if options.quick else 1.0))
        printer.row(rows[-1])
    print("", *summary(rows), sep="\n")
    if options.json:
        options.json.write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n")
    if options.markdown:
        options.markdown.write_text(markdown(about, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
