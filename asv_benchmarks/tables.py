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
COPY_TIME = Column("copy", lambda row: row.get("copy new", row["copy"]))
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
    """The peers that do not compute a cell, what they say, and of which ops and dtypes."""
    said: dict[tuple[str, str], dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        for name, why in row["absent"].items():
            said[name, why][row["op"]].append(row["dtype"])
    return [
        f"{name}: {why}: "
        + "; ".join(
            f"{op}, {len(dtypes)} cells of {', '.join(dict.fromkeys(dtypes))}"
            for op, dtypes in ops.items()
        )
        for (name, why), ops in sorted(said.items())
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
    """The rows by op, dtype, layout and size, and which of these an op is usually measured in."""

    def __init__(self, rows: list[Row]) -> None:
        self.rows = rows
        self._cells = {_key(row): row for row in rows}
        self._usual = {
            row["op"]: (row["dtype"], row["layout"]) for row in reversed(rows) if _usual(row)
        }

    def ops(self) -> list[str]:
        centre = [row["op"] for row in self.rows if count(row["size"]) == "1 Mi"]
        return list(dict.fromkeys([*centre, *(row["op"] for row in self.rows)]))

    def usual(self, op: str) -> tuple[str, str]:
        """The dtype and the layout of most of its cells."""
        first = next(row for row in self.rows if row["op"] == op)
        return self._usual.get(op, (first["dtype"], first["layout"]))

    def text(self, column: Column, op: str, size: str, **other: str) -> str:
        dtype, layout = self.usual(op)
        cell = op, other.get("dtype", dtype), other.get("layout", layout), size
        row = self._cells.get(cell)
        return "" if row is None else column.text(row)

    def label(self, row: Row) -> str:
        """What sets a cell apart from the others of its op."""
        dtype, layout = self.usual(row["op"])
        parts = [row["dtype"]] * (row["dtype"] != dtype) + [row["layout"]] * (
            row["layout"] != layout
        )
        return ", ".join([*parts, count(row["size"])])


def _key(row: Row) -> tuple[str, str, str, str]:
    return row["op"], row["dtype"], row["layout"], count(row["size"])


def _usual(row: Row) -> bool:
    """Of an op's cells, only those in its centre have these sizes."""
    return count(row["size"]) in ("16", "1 Ki")


def ops_table(at: At) -> str:
    """A line an op: the call, in the cache, beyond it."""
    shown = [
        (name, column, size)
        for name, column, size in (
            ("16: us", OWN_TIME, "16"),
            ("over dispatch", OVER, "16"),
            ("best peer", TO_BEST, "16"),
            ("1 Mi: us", OWN_TIME, "1 Mi"),
            ("copy", TO_COPY, "1 Mi"),
            ("best peer", TO_BEST, "1 Mi"),
            ("PyTorch", TO_TORCH, "1 Mi"),
            ("threads", THREADS, "1 Mi"),
            ("64 Mi: copy", TO_COPY, "64 Mi"),
            ("best peer", TO_BEST, "64 Mi"),
        )
        if any(column.value(row) is not None for row in at.rows)
    ]
    lines = [
        (f"`{op}`", at.usual(op)[1], *(at.text(column, op, size) for _, column, size in shown))
        for op in at.ops()
    ]
    return table(("op", "layout", *(name for name, _, _ in shown)), lines, left=2)


#: Ops that are one in all layouts, by how their names begin and end.
FAMILIES = {
    "quantize": ("quantize_per", ""),
    "dequantize": ("dequantize", ""),
    "fake quantize": ("fake_quantize_per", "_affine"),
    "with mask": ("fake_quantize_per", "_cachemask"),
    "learnable": ("fake_quantize_learnable", "_affine"),
    "learnable backward": ("fake_quantize_learnable", "_backward"),
    "AdaRound": ("adaround_soft", "soft"),
    "AdaRound backward": ("adaround_soft", "_backward"),
}


def families_table(at: At, axis: str) -> str:
    """Ratios to the copy at 1 Mi and 64 Mi elements: along one axis, the families across."""
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for row in at.rows:
        family = next((name for name, ends in FAMILIES.items() if _of(row["op"], *ends)), None)
        if family is None or (family in found[_short(row[axis])]):
            continue
        both = (at.text(TO_COPY, row["op"], n, **{axis: row[axis]}) for n in ("1 Mi", "64 Mi"))
        if text := " / ".join(filter(None, both)):
            found[_short(row[axis])][family] = text
    lines = [(v, *(cells.get(f, "") for f in FAMILIES)) for v, cells in found.items() if cells]
    return table((axis, *FAMILIES), lines)


def _of(op: str, begin: str, end: str) -> bool:
    return op.startswith(begin) and op.endswith(end)


def _short(value: str) -> str:
    """Of dtypes the one that is not the usual one; a layout as it is."""
    parts = value.split(" -> ")
    usual = [part in ("float32", "int8") for part in parts]
    return "float32, int8" if all(usual) else parts[usual.index(False)]


def misses(at: At) -> str:
    """Every cell that misses a goal, under the goal, a line an op."""
    parts = []
    for goal in GOALS.values():
        _, missed = judged(goal, at.rows)
        if not missed:
            continue
        by_op: dict[str, list[str]] = defaultdict(list)
        for row in missed:
            value, target = goal.of(row) or (0.0, 0.0)
            peer = f" {goals.best(row)}" if goal.name == "any peer" else ""
            by_op[row["op"]].append(f"{at.label(row)}:{peer} {number(value)} for {number(target)}")
        parts.append(f"**{goal.text[0].upper()}{goal.text[1:]}.** Missed by {len(missed)} cells:")
        parts.append("\n".join(f"* `{op}`: {'; '.join(cells)}" for op, cells in by_op.items()))
    return "\n\n".join(parts)


def full_table(rows: list[Row]) -> str:
    columns = [c for c in COLUMNS if any(c.value(row) is not None for row in rows)]
    return table(
        [c.name for c in columns], ([c.text(row) for c in columns] for row in rows), left=3
    )


#: The ops that the README shows.
README = (
    "quantize_per_tensor",
    "quantize_per_channel",
    "quantize_per_token",
    "quantize_per_channel_group",
    "dequantize_per_tensor",
    "fake_quantize_per_tensor_affine",
    "fake_quantize_per_channel_affine",
    "fake_quantize_per_tensor_affine_cachemask",
    "fake_quantize_learnable_per_tensor_affine_backward",
    "choose_qparams",
    "AdaroundStep",
    "HistogramObserver",
)


def readme(facts: dict[str, str], rows: list[Row]) -> str:
    at = At(rows)
    columns = OWN_TIME, TO_COPY, BEST, TO_BEST, TO_TORCH
    names = "us", "npquant/copy", "best peer", "best peer/npquant", "PyTorch/npquant"
    lines = [
        (f"`{op}`", at.usual(op)[1], *(at.text(column, op, "1 Mi") for column in columns))
        for op in README
        if op in at.ops()
    ]
    short = sum(any(goal.missed(row) for goal in GOALS.values()) for row in rows)
    return paragraphs(
        made_with(facts),
        table(("1 Mi float32", "layout", *names), lines, left=2),
        "Ratios of times; `!` where one of our goals is missed, such as 1.5 times a copy. "
        f"Of all {len(rows)} cells {short} miss at least one: "
        "[each is named](docs/performance.md#what-misses-its-goal).",
    )


def performance(facts: dict[str, str], rows: list[Row]) -> str:
    at = At(rows)
    return paragraphs(
        made_with(facts),
        goals_table(rows),
        "### By op",
        "Of each op the usual dtype and layout. Microseconds, and ratios of times: copy is "
        "npquant's to that of the copy, where less is better; of a peer to npquant's and of one "
        "thread to two, more is better. `!` where a goal is missed.",
        ops_table(at),
        "### By layout",
        "npquant's time to the copy's, at 1 Mi elements and, after the stroke, at 64 Mi.",
        families_table(at, "layout"),
        "### By dtype",
        "The same, in the layout that comes first.",
        families_table(at, "dtype"),
        "### What misses its goal",
        misses(at) or "Nothing.",
    )


def everything(facts: dict[str, str], rows: list[Row]) -> str:
    return paragraphs(
        "# Performance: every figure",
        "Made by `asv_benchmarks/tables.py`; what the columns mean, and why goals are missed, is "
        "in [performance](performance.md).",
        made_with(facts),
        "## Every cell",
        NOTE,
        full_table(rows),
        "## Peers that do not compute a cell",
        "\n".join(f"* {line.replace('<', '&lt;')}" for line in refusals(rows)) or "None.",
    )


def paragraphs(*parts: str) -> str:
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
