"""The tables of a run of compare.py, on the terminal and in the documents.

    python asv_benchmarks/compare.py --matrix --threads 1,2 --json figures.json
    python asv_benchmarks/tables.py figures.json

The second writes README.md, docs/performance.md (between their markers) and
docs/performance-tables.md. No figure in them is typed.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import goals
from goals import GOALS, Goal, Row

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- compare:begin -->\n", "<!-- compare:end -->"
MI = 1 << 20


# --- columns ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Column:
    """What is shown of a row, and the goals whose figure it is."""

    name: str
    value: Callable[[Row], Any]
    goals: tuple[str, ...] = ()
    width: int = 0

    @property
    def numeric(self) -> bool:
        return not self.width

    def text(self, row: Row) -> str:
        """A cell; an exclamation mark where a goal is missed."""
        value = self.value(row)
        if value is None:
            return "-"
        if not isinstance(value, float):
            return str(value)
        return number(value) + "!" * any(GOALS[name].missed(row) for name in self.goals)


def number(value: float) -> str:
    return f"{value:.2f}" if abs(value) < 100 else f"{value:,.0f}"


OP = Column("op", lambda row: row["op"], width=58)
DTYPE = Column("dtype", lambda row: row["dtype"], width=24)
LAYOUT = Column("layout", lambda row: row["layout"], width=28)
SIZE = Column("size", lambda row: count(row["size"]))
OWN_TIME = Column("npquant", lambda row: row["npquant"])
OUT_TIME = Column("with out=", lambda row: row.get("npquant out"))
COPY_TIME = Column("copy", lambda row: row["copy" if "npquant out" in row else "copy new"])
BEST = Column("best peer", goals.best, width=16)
BEST_TIME = Column("its time", lambda row: row["peers"].get(goals.best(row)))
TO_COPY = Column(
    "npquant/copy", goals.to_copy, ("copy, 64 Mi", "copy, in cache", "copy, learnable backward")
)
TO_BEST = Column("best/npquant", goals.to_best, ("any peer",))
TO_TORCH = Column(
    "torch/npquant",
    goals.own,
    (
        "PyTorch's call",
        "PyTorch's fake quantize",
        "PyTorch's decomposed ops",
        "PyTorch's learnable backward",
    ),
)
OVER = Column("over dispatch", goals.over_dispatch, ("the call",))
THREADS = Column("2 threads", goals.threads, ("threads",))

COLUMNS = (
    OP, DTYPE, LAYOUT, SIZE, OWN_TIME, OUT_TIME, COPY_TIME, BEST, BEST_TIME,
    TO_COPY, TO_BEST, TO_TORCH, OVER, THREADS,
)  # fmt: skip


def count(size: int) -> str:
    """A number of elements, in the binary units that it is near."""
    for unit, name in ((MI, " Mi"), (1 << 10, " Ki")):
        if size >= unit * 0.99:
            return f"{round(size / unit)}{name}"
    return str(size)


# --- the terminal -----------------------------------------------------------------------------


class Printer:
    """The table on the terminal, row by row as it is measured."""

    def __init__(self, cases: Sequence[Any], peers: Iterable[str]) -> None:
        widest = {
            "op": max(len(case.op) for case in cases),
            "dtype": max(len(case.dtype) for case in cases),
            "layout": max(len(case.kind) for case in cases),
            "best peer": max(map(len, peers)),
        }
        self.widths = [max(len(c.name), widest.get(c.name, 8)) for c in COLUMNS]
        self.line([c.name for c in COLUMNS])

    def line(self, cells: list[str]) -> None:
        padded = (
            cell.rjust(width) if column.numeric else cell.ljust(width)
            for cell, column, width in zip(cells, COLUMNS, self.widths, strict=True)
        )
        print("  ".join(padded), flush=True)

    def row(self, row: Row) -> None:
        self.line([column.text(row) for column in COLUMNS])


NOTE = "Times in microseconds, medians; - where there is none, ! where a goal is missed."


def summary(rows: list[Row]) -> list[str]:
    """How many cells have each goal, and how many miss it."""
    lines = [NOTE]
    for goal in GOALS.values():
        found, missed = judged(goal, rows)
        if found:
            lines.append(f"{len(missed)} of {len(found)} cells miss: {goal.text}.")
    return lines


def judged(goal: Goal, rows: list[Row]) -> tuple[list[Row], list[Row]]:
    """The rows that have the goal, and those that miss it, the worst first."""
    found = [row for row in rows if goal.of(row)]
    missed = sorted(filter(goal.missed, found), key=goal.distance, reverse=True)
    return found, missed


def refusals(rows: list[Row]) -> list[str]:
    """The peers that do not compute a cell, and what they say."""
    said: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for row in rows:
        for name, why in row["absent"].items():
            said[name, row["op"], why].append(f"{row['dtype']}")
    return [
        f"{name} does not compute {op}, {', '.join(dict.fromkeys(dtypes))} "
        f"({len(dtypes)} cells): {why}"
        for (name, op, why), dtypes in sorted(said.items())
    ]


# --- the documents ----------------------------------------------------------------------------


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """A table in Markdown, its first columns to the left."""
    rule = ["---" if i < left else "--:" for i in range(len(columns))]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (columns, rule, *rows))


def made_with(facts: dict[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in facts.items())


def goals_table(rows: list[Row]) -> str:
    lines = []
    for goal in GOALS.values():
        found, missed = judged(goal, rows)
        if found:
            met = f"{len(found) - len(missed)} of {len(found)}"
            worst = max(found, key=goal.distance)
            value, target = goal.of(worst) or (0.0, 0.0)
            lines.append((goal.text, met, f"{number(value)} for {number(target)}"))
    return table(("goal", "met in", "the worst"), lines)


class At:
    """The rows by op, layout and size, of the dtype that comes first."""

    def __init__(self, rows: list[Row]) -> None:
        self.dtypes: dict[str, str] = {}
        for row in rows:
            usual = row["dtype"] in ("float32", "float32 -> int8", "int8 -> float32")
            if usual or row["op"] not in self.dtypes:
                self.dtypes[row["op"]] = row["dtype"]
        self._rows = {
            (row["op"], row["layout"], count(row["size"])): row
            for row in rows
            if row["dtype"] == self.dtypes[row["op"]]
        }

    def layouts(self) -> list[tuple[str, str]]:
        """Every op with its layouts, in the order of the rows."""
        return list(dict.fromkeys((op, layout) for op, layout, _ in self._rows))

    def text(self, column: Column, op: str, layout: str, size: str) -> str:
        row = self._rows.get((op, layout, size))
        return "" if row is None else column.text(row)


def ops_table(rows: list[Row]) -> str:
    """A line an op and layout: the call, in the cache, beyond it."""
    at = At(rows)
    shown = (
        ("us, 16", OWN_TIME, "16"), ("over dispatch", OVER, "16"), ("torch, 16", TO_TORCH, "16"),
        ("copy, 1 Mi", TO_COPY, "1 Mi"), ("best peer", TO_BEST, "1 Mi"),
        ("torch", TO_TORCH, "1 Mi"), ("threads", THREADS, "1 Mi"),
        ("copy, 64 Mi", TO_COPY, "64 Mi"), ("best peer", TO_BEST, "64 Mi"),
    )  # fmt: skip
    lines = [
        (op, layout, *(at.text(column, op, layout, size) for _, column, size in shown))
        for op, layout in at.layouts()
    ]
    return table(("op", "layout", *(name for name, _, _ in shown)), lines, left=2)


def misses(rows: list[Row]) -> str:
    """Every cell that misses a goal, under the goal, a line an op."""
    parts = []
    for goal in GOALS.values():
        _, missed = judged(goal, rows)
        if not missed:
            continue
        by_op: dict[str, list[str]] = defaultdict(list)
        for row in missed:
            value, target = goal.of(row) or (0.0, 0.0)
            cell = f"{row['dtype']}, {row['layout']}, {count(row['size'])}"
            peer = f" ({goals.best(row)})" if goal.name == "any peer" else ""
            by_op[row["op"]].append(f"{cell}: {number(value)} for {number(target)}{peer}")
        parts += [f"### Missed: {goal.name}", "", f"{goal.text[0].upper()}{goal.text[1:]}.", ""]
        parts += [f"* `{op}`: {'; '.join(cells)}" for op, cells in by_op.items()] + [""]
    return "\n".join(parts)


def full_table(rows: list[Row]) -> str:
    columns = [c for c in COLUMNS if any(c.value(row) is not None for row in rows)]
    return table(
        [c.name for c in columns], ([c.text(row) for c in columns] for row in rows), left=3
    )


#: What the README shows: the op, its layout and the sizes.
README = (
    ("quantize_per_tensor", "tensor"),
    ("quantize_per_channel", "64 channels, first axis"),
    ("quantize_per_channel_group", "groups of 128"),
    ("dequantize_per_tensor", "tensor"),
    ("fake_quantize_per_tensor_affine", "tensor"),
    ("fake_quantize_per_channel_affine", "64 channels, first axis"),
    ("fake_quantize_per_tensor_affine_cachemask", "tensor"),
    ("fake_quantize_learnable_per_tensor_affine_backward", "tensor"),
    ("choose_qparams", "tensor"),
    ("AdaroundStep", "tensor"),
    ("HistogramObserver", "tensor"),
)


def readme(facts: dict[str, str], rows: list[Row]) -> str:
    at = At(rows)
    columns = OWN_TIME, TO_COPY, BEST, TO_BEST, TO_TORCH
    names = "npquant, us", "of the copy's time", "best peer", "its time", "PyTorch's time"
    lines = [
        (op, layout, *(at.text(column, op, layout, "1 Mi") for column in columns))
        for op, layout in README
        if (op, layout) in at.layouts()
    ]
    body = table(("op, 1 Mi float32", "layout", *names), lines, left=2)
    misses = sum(any(goal.missed(row) for goal in GOALS.values()) for row in rows)
    note = (
        "Times of the copy and of peers are ratios to npquant's; `!` marks a missed goal: "
        f"{misses} of {len(rows)} cells miss one, [all of them listed](docs/performance.md)."
    )
    return "\n\n".join((made_with(facts), body, note)) + "\n"


def performance(facts: dict[str, str], rows: list[Row]) -> str:
    parts = [
        made_with(facts),
        goals_table(rows),
        "Ratios: to the copy's time as npquant's share (less is better), of a peer's time to "
        "npquant's (more is better). `!` where a goal is missed.",
        ops_table(rows),
    ]
    return "\n\n".join(parts) + "\n"


def everything(facts: dict[str, str], rows: list[Row]) -> str:
    parts = [
        "# Performance: every figure",
        "Made by `asv_benchmarks/tables.py`; what the columns mean, and why goals are missed, is in "
        "[performance](performance.md).",
        made_with(facts),
        "## What misses its goal",
        misses(rows),
        "## Every cell",
        NOTE,
        full_table(rows),
        "## Peers that do not compute a cell",
        "\n".join(f"* {line.replace('<', '&lt;')}" for line in refusals(rows)) or "None.",
    ]
    return "\n\n".join(parts) + "\n"


def put(path: Path, text: str) -> None:
    """The text between the markers of a file."""
    before, begin, rest = path.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{path} must have the lines {BEGIN.strip()} and {END}")
    path.write_text(before + begin + text + end + after)


def write(figures: Path, root: Path = ROOT) -> None:
    found = json.loads(figures.read_text())
    facts, rows = found["about"], found["rows"]
    put(root / "README.md", readme(facts, rows))
    put(root / "docs" / "performance.md", performance(facts, rows))
    (root / "docs" / "performance-tables.md").write_text(everything(facts, rows))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    write(Path(sys.argv[1]))
