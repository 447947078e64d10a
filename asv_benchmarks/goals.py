"""The goals: what a row of compare.py must reach, and whether it does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]

#: Sizes, in elements: calls that are nothing but overhead, arrays in the cache, arrays beyond it.
CALL, IN_CACHE, BEYOND = 1 << 10, (1 << 16) - 2048, 60_000_000
#: From here on it costs as much to allocate a result as to compute it.
COSTLY = 1 << 22
#: About 1 Mi: three channels leave a few elements out.
MEBI = (1 << 20) - 2048

#: Of one time that is compared with the same code's: what they differ by of themselves.
NOISE = 1.03

#: By how much the machine may be slower in a cell than in others, before that is not for chance.
STEADY = 1.25

#: They compute a few numbers of each scale, and write no array.
REDUCTIONS = ("choose_qparams", "adaround_regularizer")


def elementwise(row: Row) -> bool:
    op = row["op"]
    once = op != "determine_qparams" and not op.startswith("fused")
    return once and not row["work"] and (op.endswith("_backward") or not op.startswith(REDUCTIONS))


def learnable_backward(row: Row) -> bool:
    return row["op"].startswith("fake_quantize_learnable") and row["op"].endswith("_backward")


def fake_quantize(row: Row) -> bool:
    """A forward: PyTorch's own fake quantize computes it."""
    return row["op"].startswith("fake_quantize") and not row["op"].endswith("_backward")


#: It keeps the memory of its results, and writes to it again.
REUSING = "onnxruntime"


def peer(row: Row, name: str) -> float | None:
    """How many times as long a peer takes; each writes to new memory, or neither."""
    own = row.get("npquant out", row["npquant"]) if name == REUSING else row["npquant"]
    return row["peers"][name] / own if name in row["peers"] else None


OWN = ("torch", "torch decomposed", "torch work")


def own(row: Row) -> float | None:
    """How many times as long PyTorch's call of the same op takes."""
    return next((peer(row, name) for name in OWN if name in row["peers"]), None)


def best(row: Row) -> str | None:
    return min(row["peers"], key=lambda name: peer(row, name), default=None)


def to_best(row: Row) -> float | None:
    name = best(row)
    return peer(row, name) if name else None


def to_copy(row: Row) -> float:
    """Both write to memory that is there, or both to new memory where that costs."""
    if "npquant out" in row:
        return float(row["npquant out"] / row["copy"])
    return float(row["npquant"] / row.get("copy new", row["copy"]))


def over_dispatch(row: Row) -> float | None:
    return row["npquant"] - row["dispatch"] if "dispatch" in row else None


def threads(row: Row) -> float | None:
    """How many times as fast it is on the most threads as on one."""
    return row["npquant"] / row["npquant threads"] if "npquant threads" in row else None


# --- what the machine did meanwhile ---------------------------------------------------------------


def pace(row: Row) -> float:
    """How long the machine took for what npquant has no part in: a dispatch, or to copy a byte."""
    return float(row["dispatch"] if "dispatch" in row else row["copy"] / row["bytes moved"])


def alike(row: Row, other: Row) -> bool:
    """Whether it should take as long in both."""
    if "dispatch" in row or "dispatch" in other:
        return "dispatch" in row and "dispatch" in other
    return row["bytes moved"] < 1.5 * other["bytes moved"] < 1.5**2 * row["bytes moved"]


def disturbed(row: Row, rows: list[Row]) -> bool:
    """Whether it took longer than in the fastest quarter of the cells like this one."""
    paces = sorted(pace(other) for other in rows if alike(row, other))
    return pace(row) > STEADY * paces[len(paces) // 4]


# --- how far each row must come ---------------------------------------------------------------


def copy_beyond(row: Row) -> float | None:
    if row["size"] < BEYOND or not elementwise(row) or learnable_backward(row):
        return None
    if row["order"] == "strided":
        return None
    return 1.25 if row["itemsize"] <= 2 else 1.1


def copy_in_cache(row: Row) -> float | None:
    if not IN_CACHE <= row["size"] < BEYOND or row["work"] or row["op"] == "determine_qparams":
        return None
    if learnable_backward(row):
        return None
    plain = "float32" in row["dtype"] and not row["wide"] and row["order"] != "strided"
    near = plain and row["grain"] != "group" and row["size"] >= MEBI
    return 1.5 if near else 2.5


def from_cache(ratio: float, applies: Callable[[Row], bool]) -> Callable[[Row], float | None]:
    return lambda row: ratio if row["size"] >= IN_CACHE and applies(row) else None


def always(ratio: float) -> Callable[[Row], float | None]:
    return lambda row: ratio


def calls(most: float) -> Callable[[Row], float | None]:
    return lambda row: most if row["size"] <= CALL and not row["work"] else None


def two_threads(row: Row) -> float | None:
    """1.8 where one thread takes twice the copy, and all of it fits the cache."""
    computes = row["npquant"] > 2 * row["copy"]
    return 1.8 if IN_CACHE <= row["size"] <= 1 << 20 and computes else 1 / NOISE


@dataclass(frozen=True)
class Goal:
    """A figure of a row, and how great or small it must be."""

    name: str
    text: str
    value: Callable[[Row], float | None]
    target: Callable[[Row], float | None]
    at_most: bool = False

    def of(self, row: Row) -> tuple[float, float] | None:
        """The figure and the goal, of a row that has both."""
        value, target = self.value(row), self.target(row)
        return None if value is None or target is None else (value, target)

    def missed(self, row: Row) -> bool:
        found = self.of(row)
        return found is not None and (found[0] > found[1] if self.at_most else found[0] < found[1])

    def distance(self, row: Row) -> float:
        """How many times the goal a row is away from it; above 1 it misses."""
        value, target = self.of(row) or (1, 1)
        return value / target if self.at_most else target / max(value, 1e-9)


GOALS = {
    goal.name: goal
    for goal in (
        Goal("copy, 64 Mi", "64 Mi elements, elementwise, any layout but the strided slice: at "
             "most 1.1 times the copy of the same bytes, 1.25 of two-byte and smaller inputs",
             to_copy, copy_beyond, at_most=True),
        Goal("copy, in cache", "64 Ki to 1 Mi elements: at most 1.5 times the copy for float32 per "
             "tensor, channel and token at 1 Mi, else 2.5", to_copy, copy_in_cache, at_most=True),
        Goal("copy, learnable backward", "learnable backward, from 64 Ki elements: at most 1.5 "
             "times the copy", to_copy, from_cache(1.5, learnable_backward), at_most=True),
        Goal("any peer", "never slower than any peer", to_best, always(1)),
        Goal("PyTorch's call", "to 1 Ki elements: no slower than PyTorch's call of the same op",
             own, calls(1)),
        Goal("PyTorch's fake quantize", "from 64 Ki elements: 20 times as fast as PyTorch's fake "
             "quantize", lambda row: peer(row, "torch"), from_cache(20, fake_quantize)),
        Goal("PyTorch's decomposed ops", "from 64 Ki elements: 5 times as fast as PyTorch's "
             "decomposed ops", lambda row: peer(row, "torch decomposed"),
             from_cache(5, lambda row: True)),
        Goal("PyTorch's learnable backward", "from 64 Ki elements: 10 times as fast as PyTorch's "
             "learnable backward", lambda row: peer(row, "torch"),
             from_cache(10, learnable_backward)),
        Goal("the call", "to 1 Ki elements: at most 2.5 microseconds over a bare dispatch by Numba",
             over_dispatch, calls(2.5), at_most=True),
        Goal("threads", "two threads: 1.8 times as fast as one where the work fits the cache and "
             "takes twice the copy, never slower elsewhere", threads, two_threads),
        Goal("memory", "at most 1 MiB beyond the results",
             lambda row: row.get("temporary"), always(2.0**20), at_most=True),
    )
}  # fmt: skip
