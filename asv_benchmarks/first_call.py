"""What the first call of each op costs: compiled, then with the kernels on disk.

    python asv_benchmarks/first_call.py

Every case has a cache of its own, empty at first. A new process makes the first call ever, which
compiles; another one finds what the first has left, and must leave nothing more. The time is that
of the call alone, after the imports.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

import numba
from benchmarks.cases import CASES
from revision import revision

#: The most milliseconds that a first call may take, compiled and from the cache.
GOALS = {"compiled": 1000.0, "cached": 30.0}

COLUMNS = ("op", "dtype", "layout", "compiled", "cached", "again", "files", "added")


def first_call(name: str) -> dict[str, float]:
    """Milliseconds of the first and of a second call in this process.

    What the imports left is looked through for garbage before: that takes three times as long as to
    load a kernel, and would come during the call or not, as the counts of objects have it.
    """
    call = CASES[name].call(CASES[name].inputs())
    gc.collect()
    times = []
    for _ in range(2):
        start = perf_counter()
        call()
        times.append((perf_counter() - start) * 1e3)
    return dict(zip(("first", "again"), times, strict=True))


def in_new_process(name: str, threads: int, cache: str) -> dict[str, float]:
    """As `first_call`, in a process with the cache in a folder, and so many threads."""
    done = subprocess.run(
        [sys.executable, __file__, "--case", name],
        env=os.environ | {"NUMBA_CACHE_DIR": cache, "NUMBA_NUM_THREADS": str(threads)},
        stdout=subprocess.PIPE,
        check=True,
    )
    times: dict[str, float] = json.loads(done.stdout)
    return times


def measure(name: str, threads: int) -> dict[str, Any]:
    """One row: milliseconds of the first call ever, then of one with the cache, and files kept."""
    with tempfile.TemporaryDirectory() as cache:
        compiled = in_new_process(name, threads, cache)
        files = _files(cache)
        cached = in_new_process(name, threads, cache)
        added = _files(cache) - files
    case = CASES[name]
    return {
        "op": case.op,
        "dtype": case.dtype,
        "layout": str(case.layout),
        "compiled": compiled["first"],
        "cached": cached["first"],
        "again": cached["again"],
        "files": len(files),
        "added": len(added),
    }


def _files(cache: str) -> set[tuple[str, int]]:
    """Names and times, so that a file written anew counts."""
    return {(str(p), p.stat().st_mtime_ns) for p in Path(cache).rglob("*") if p.is_file()}


def missed(row: dict[str, Any], column: str) -> bool:
    """Whether a row misses a goal."""
    return (
        bool(row["added"]) if column == "added" else row[column] > GOALS.get(column, float("inf"))
    )


def cells(row: dict[str, Any]) -> list[str]:
    """A line of the table, with an exclamation mark where a goal is missed."""
    texts = []
    for column in COLUMNS:
        value = row[column]
        text = f"{value:.2f}" if column == "again" else f"{value:.0f}" if column in GOALS else value
        texts.append(f"{text}{'!' * (column in (*GOALS, 'added') and missed(row, column))}")
    return texts


def summary(rows: list[dict[str, Any]]) -> list[str]:
    """How many rows miss each goal."""
    counts = {c: sum(missed(row, c) for row in rows) for c in (*GOALS, "added")}
    return [
        "Milliseconds of one call; ! where a goal is missed.",
        f"first call ever: {counts['compiled']} of {len(rows)} above {GOALS['compiled']:.0f}.",
        f"with the cache: {counts['cached']} of {len(rows)} above {GOALS['cached']:.0f}.",
        f"cache written to by a second process: {counts['added']} of {len(rows)}.",
    ]


def markdown(rows: list[dict[str, Any]]) -> str:
    rule = ["---"] * 3 + ["--:"] * (len(COLUMNS) - 3)
    lines = ["| " + " | ".join(line) + " |" for line in (COLUMNS, rule, *map(cells, rows))]
    return "\n".join([*lines, "", *(f"{line}  " for line in summary(rows)), ""])


def selected(pattern: str) -> list[str]:
    """The cases of float32, and of int8 where there are codes, that match: small and of 1 Mi."""
    dtypes, sizes = ("float32", "float32 -> int8", "int8 -> float32"), (16, 1 << 20)
    return [
        name
        for name, case in CASES.items()
        if case.dtype in dtypes and case.size in sizes and re.search(pattern, name)
    ]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", metavar="PATTERN", help="cases matching a regex")
    parser.add_argument("--threads", type=int, default=None, metavar="N", help="default: all")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure here too")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table here too")
    parser.add_argument("--case", help=argparse.SUPPRESS)  # what a new process is asked for
    options = parser.parse_args(argv)
    most = numba.config.NUMBA_NUM_THREADS
    options.threads = most if options.threads is None else options.threads
    if not 1 <= options.threads <= most:
        parser.error(f"--threads must be within 1..{most}, got {options.threads}")
    if options.case:
        print(json.dumps(first_call(options.case)))
        return 0
    names = selected(options.only)
    if not names:
        parser.error(f"no case matches --only {options.only!r}")

    widths = (56, 16, 24, *(max(8, len(c)) for c in COLUMNS[3:]))
    rows: list[dict[str, Any]] = []
    print("  ".join(c.ljust(w) for c, w in zip(COLUMNS, widths, strict=True)))
    for name in names:
        rows.append(measure(name, options.threads))
        line = zip(cells(rows[-1]), widths, strict=True)
        print("  ".join(text.ljust(w) for text, w in line), flush=True)
    print("", *summary(rows), sep="\n")
    if options.json:
        about = {"npquant": revision(), "threads": options.threads, "rows": rows}
        options.json.write_text(json.dumps(about, indent=1))
    if options.markdown:
        options.markdown.write_text(markdown(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
