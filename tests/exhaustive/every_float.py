"""Every float there is, through npquant and through PyTorch 2.13: how many bits differ.

    python tests/exhaustive/every_float.py --report docs/exactness.md
    python tests/exhaustive/every_float.py --only int8 --first 0 --last 16
    python -m pytest -m exhaustive --dist load tests/exhaustive

All 2**32 bit patterns of float32 go through quantize per tensor, fake quantize with its mask and
the gradients of the learnable op, element by element, with the qparams below; all of float16 and
bfloat16 through those that PyTorch has for them; and every code through dequantize. What
departures.md lists is left out of the comparison, and not counted as compared.

The patterns come in 256 parts of 2**24, which processes share. With --state, finished parts are
remembered in a file, and the same command goes on where it was stopped. A core takes
4 to 8 seconds for a set of qparams of quantize, 19 of fake quantize, 54 of the gradients; two cores
take a quarter of an hour for all of the 78 sets.

`tests/peers/test_every_float.py` runs the same table on every 65,537th pattern.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import itertools
import json
import multiprocessing
import os
import platform
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import ml_dtypes
import numba
import numpy as np
import torch
import torch.ao.quantization.fx._decomposed  # registers the operators

import npquant as nq
from npquant.demo.environment import cpu_name

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a script

from tensors import SIGNED, TORCH_DTYPE, to_torch

Array = np.ndarray[Any, Any]

PART = 1 << 24
PARTS = 1 << 8
#: Patterns at a time: all arrays of a call stay in the second-level cache.
CHUNK = 1 << 16

F32 = np.dtype(np.float32)
HALVES = np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)

#: Powers of two, no floats, a subnormal, a large one.
SCALES = (1.0, 2.0**-7, 0.1, 1 / 3, 3e-39, 3e36)
BOUNDS = {
    "int8": (-128, 127),
    "uint8": (0, 255),
    "int16": (-32768, 32767),
    "float8_e4m3fn": (-448, 448),
    "float8_e5m2": (-57344, 57344),
}


def zero_points(lo: int, hi: int) -> tuple[int, ...]:
    """Even, odd, negative where there is one, and both ends."""
    return tuple(dict.fromkeys((max(lo, 0), 3, max(lo, -5), lo, hi)))


def bits(value: Any) -> Array:
    """The bits of a tensor or an array, as integers."""
    if isinstance(value, torch.Tensor):
        if value.dtype == torch.bool:
            return value.numpy().view(np.int8)
        return value.view(SIGNED[value.element_size()]).numpy()
    return value.view(f"i{value.itemsize}")


@dataclass(frozen=True)
class Case:
    """An op with its qparams: ours and PyTorch's, of one array each."""

    name: str
    ours: Callable[[Array], tuple[Any, ...]]
    theirs: Callable[[Array], tuple[Any, ...]]
    #: Where the two may be compared: not where a departure says otherwise.
    comparable: Callable[[Array], Array] | None = None

    def differing(self, x: Array) -> tuple[int, int, str]:
        """How many elements differ, how many were compared, and the first one that differs."""
        pairs = [(bits(a), bits(b)) for a, b in zip(self.ours(x), self.theirs(x), strict=True)]
        keep = None if self.comparable is None else self.comparable(x)
        compared = x.size if keep is None else int(np.count_nonzero(keep))
        if all(np.array_equal(a, b) for a, b in pairs):
            return 0, compared, ""
        wrong = np.zeros(x.shape, bool)
        for a, b in pairs:
            wrong |= (a != b).reshape(x.shape)
        if keep is not None:
            wrong &= keep
        first = f"{bits(x)[np.argmax(wrong)]:#x}" if wrong.any() else ""
        return int(wrong.sum()), compared, first


def quantize(target: str, scale: float, zero_point: int) -> Case:
    dtype = np.dtype(target)
    args = scale, zero_point, *BOUNDS[target]
    op = torch.ops.quantized_decomposed.quantize_per_tensor

    def a_number(x: Array) -> Array:  # the sign of a NaN is a departure (D22)
        with np.errstate(all="ignore"):
            return ~np.isnan(x.astype(np.float32) * np.float32(1 / scale))

    return Case(
        f"quantize_per_tensor {target} {args}",
        lambda x: (nq.quantize_per_tensor(x, *args, dtype),),
        lambda x: (op(to_torch(x), *args, TORCH_DTYPE[dtype]),),
        a_number if target.startswith("float8") else None,
    )


def quantize_per_token(target: str, scale: float, zero_point: int) -> Case:
    """With a float64 scale, as `choose_qparams_per_token` gives."""
    dtype = np.dtype(target)
    qparams = np.full((1, 1), scale), np.full((1, 1), zero_point, np.int64)
    bounds = BOUNDS[target]
    op = torch.ops.quantized_decomposed.quantize_per_token
    theirs = tuple(map(torch.from_numpy, qparams))
    return Case(
        f"quantize_per_token {target} {(scale, zero_point, *bounds)}",
        lambda x: (nq.quantize_per_token(x[None], *qparams, *bounds, dtype),),
        lambda x: (op(to_torch(x[None]), *theirs, *bounds, TORCH_DTYPE[dtype]),),
    )


def fake_quantize(target: str, scale: float, zero_point: int) -> Case:
    args = scale, zero_point, *BOUNDS[target]
    op = torch.ops.aten.fake_quantize_per_tensor_affine_cachemask
    return Case(
        f"fake_quantize_per_tensor_affine_cachemask {target} {args}",
        lambda x: nq.fake_quantize_per_tensor_affine_cachemask(x, *args),
        lambda x: op(to_torch(x), *args),
    )


def gradients(target: str, scale: float, zero_point: int) -> Case:
    """Each element is a channel, so that its sums are its own terms."""
    lo, hi = BOUNDS[target]

    @functools.lru_cache(maxsize=1)
    def constants(size: int) -> tuple[Array, ...]:
        s, z = (np.full(size, v, np.float32) for v in (scale, zero_point))
        return np.full((size, 1), 0.7, np.float32), s, z

    def inputs(x: Array) -> tuple[Array, ...]:
        grad, s, z = constants(x.size)
        return grad, x.reshape(-1, 1), s, z

    def theirs(x: Array) -> tuple[Any, ...]:
        op = torch.ops.aten._fake_quantize_learnable_per_channel_affine_backward
        return tuple(op(*map(to_torch, inputs(x)), 0, lo, hi, 0.3))

    def ours(x: Array) -> tuple[Any, ...]:
        op = nq.fake_quantize_learnable_per_channel_affine_backward
        return op(*inputs(x), 0, lo, hi, 0.3)

    def comparable(x: Array) -> Array:
        with np.errstate(all="ignore"):  # beyond int64 PyTorch overflows, for a NaN too (D1)
            return np.abs(x * (np.float32(1) / np.float32(scale))) < 2.0**62

    return Case(f"learnable gradients {target} {(scale, zero_point, lo, hi)}", ours, theirs,
                comparable)  # fmt: skip


def dequantize(target: str, scale: float, zero_point: int) -> Case:
    args = scale, zero_point, *BOUNDS[target]
    op = torch.ops.quantized_decomposed.dequantize_per_tensor
    return Case(
        f"dequantize_per_tensor {target} {args}",
        lambda q: (nq.dequantize_per_tensor(q, *args, q.dtype),),
        lambda q: (op(to_torch(q), *args, TORCH_DTYPE[q.dtype]),),
    )


def qparams(target: str) -> Iterator[tuple[float, int]]:
    """Every scale, each with another zero point; of a few points some come twice."""
    return zip(SCALES, itertools.cycle(zero_points(*BOUNDS[target])), strict=False)


def cases(*makers: Callable[..., Case], targets: tuple[str, ...]) -> list[Case]:
    return [m(t, *p) for m, t in itertools.product(makers, targets) for p in qparams(t)]


INTEGERS = "int8", "uint8", "int16"
#: What every float goes through; halves through all but the gradients, which PyTorch has not.
OF_HALVES = cases(quantize, targets=tuple(BOUNDS)) + cases(fake_quantize, targets=INTEGERS)
OF_FLOATS = [
    *OF_HALVES,
    *cases(quantize_per_token, targets=INTEGERS),
    *cases(gradients, targets=("int8", "uint8")),
]
OF_CODES = [(t, c) for t in INTEGERS for c in cases(dequantize, targets=(t,))]


def floats(first: int, stop: int, step: int = 1) -> Array:
    """The float32 of the bit patterns from `first` to `stop`."""
    return np.arange(first, stop, step, np.uint64).astype(np.uint32).view(np.float32)


def halves(dtype: np.dtype[Any]) -> Array:
    return np.arange(1 << 16, dtype=np.uint16).view(dtype)


def codes(target: str) -> Array:
    lo, hi = BOUNDS[target]
    return np.arange(lo, hi + 1, dtype=np.int64).astype(target)


# --- the work -------------------------------------------------------------------------------------

#: Of a case: how many inputs, how many of them compared, how many with a bit that differs.
Counts = dict[str, list[int]]


def one_thread() -> None:
    """What all cores have work for, each does alone."""
    torch.set_num_threads(1)
    numba.set_num_threads(1)


def run(work: Iterator[tuple[Case, Array]]) -> tuple[Counts, list[str]]:
    """Count over all of the work, and say which cases differ, and where first."""
    counts: Counts = {}
    found = []
    for case, x in work:
        wrong, compared, first = case.differing(x)
        count = counts.setdefault(case.name, [0, 0, 0])
        for i, n in enumerate((x.size, compared, wrong)):
            count[i] += n
        if wrong:
            found.append(f"{case.name}: {wrong} of {x.dtype} differ, the first is {first}")
    return counts, found


def a_part(part: int, only: str = "") -> tuple[Counts, list[str]]:
    """All cases with one of the parts of float32; after the last one those of fewer patterns."""

    def chosen(table: list[Case]) -> list[Case]:
        return [case for case in table if only in case.name]

    def work() -> Iterator[tuple[Case, Array]]:
        for first in range(part * PART, (part + 1) * PART, CHUNK):
            x = floats(first, first + CHUNK)
            yield from ((case, x) for case in chosen(OF_FLOATS))
        if part == PARTS - 1:
            for dtype in HALVES:
                yield from ((case, halves(dtype)) for case in chosen(OF_HALVES))
            yield from ((case, codes(t)) for t, case in OF_CODES if only in case.name)

    return run(work())


# --- the command --------------------------------------------------------------------------------

BEGIN, END = "<!-- every_float.py writes this -->", "<!-- to here -->"


def main(argv: list[str] | None = None) -> int:
    from tqdm import tqdm

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--first", type=int, default=0, help="first part of 2**24 patterns")
    parser.add_argument("--last", type=int, default=PARTS, help="part before which to stop")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    parser.add_argument("--state", type=Path, help="remember finished parts here, and go on")
    parser.add_argument("--report", type=Path, help="Markdown to write the result into")
    options = parser.parse_args(argv)
    if not 0 <= options.first < options.last <= PARTS or options.jobs < 1:
        parser.error(f"0 <= --first < --last <= {PARTS} and --jobs >= 1 are required")

    key = [options.only, *versions(), sources()]
    state: dict[str, Any] = {"key": key, "done": [], "counts": {}, "found": []}
    if options.state and options.state.exists():
        state = json.loads(options.state.read_text())
        if state["key"] != key:
            parser.error(f"{options.state} is of another run: {state['key']}, not {key}")

    def finished(part: int, counts: Counts, found: list[str]) -> None:
        for name, numbers in counts.items():
            before = state["counts"].get(name, [0, 0, 0])
            state["counts"][name] = [a + b for a, b in zip(before, numbers, strict=True)]
        state["found"] += found
        state["done"].append(part)
        for line in found:
            tqdm.write(line)
        if options.state:
            options.state.parent.mkdir(parents=True, exist_ok=True)
            new = options.state.with_suffix(".new")
            new.write_text(json.dumps(state))
            new.replace(options.state)

    parts = [p for p in range(options.first, options.last) if p not in state["done"]]
    count = options.last - options.first
    with tqdm(total=count, initial=count - len(parts), unit="part") as bar:
        for part, result in results(parts, options.only, options.jobs):
            finished(part, *result)
            bar.update()

    text = report(state)
    print(text)
    if options.report:
        document = options.report.read_text()
        head, _, rest = document.partition(BEGIN)
        _, end, tail = rest.partition(END)
        if not end:
            parser.error(f"{options.report} has no lines {BEGIN} and {END}")
        options.report.write_text(f"{head}{BEGIN}\n\n{text}\n\n{END}{tail}")
    return 1 if state["found"] else 0


def results(parts: list[int], only: str, jobs: int) -> Iterator[tuple[int, Any]]:
    """Each part with what came of it, as it is done."""
    if jobs == 1:
        one_thread()
        yield from ((part, a_part(part, only)) for part in parts)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, one_thread) as pool:
        futures = {pool.submit(a_part, part, only): part for part in parts}
        for future in as_completed(futures):
            yield futures[future], future.result()


def versions() -> list[str]:
    capability = torch.backends.cpu.get_cpu_capability()
    return [
        f"npquant {nq.__version__}", f"PyTorch {torch.__version__} ({capability})",
        f"NumPy {np.__version__}", f"Numba {numba.__version__}",
        f"ml_dtypes {ml_dtypes.__version__}", f"Python {platform.python_version()}", cpu_name(),
    ]  # fmt: skip


def sources() -> str:
    """A digest of the package: what a run has found is of no other code."""
    package = Path(nq.__file__).parent
    digest = hashlib.sha256()
    for file in sorted(package.rglob("*.py")):
        digest.update(f"{file.relative_to(package)}\n".encode() + file.read_bytes())
    return digest.hexdigest()[:16]


def report(state: dict[str, Any]) -> str:
    """The result in Markdown: a line for each op and target, and the sets of each target."""
    lines = [
        "| op | codes | sets | inputs | compared | with a bit that differs |",
        "|---|---|--:|--:|--:|--:|",
    ]
    sets: dict[str, list[str]] = {}
    table = [*OF_FLOATS, *(case for _, case in OF_CODES)]
    for what, same in itertools.groupby(table, lambda case: case.name.partition(" (")[0]):
        names = [case.name for case in same if case.name in state["counts"]]
        if not names:
            continue
        op, _, target = what.rpartition(" ")
        of_target = sets.setdefault(target, [])
        for name in names:
            scale, zero_point, *_ = name.partition(" (")[2].split(", ")
            pair = f"({float(scale):.4g}, {zero_point})"
            of_target += [pair] * (pair not in of_target)
        counts = [sum(column) for column in zip(*(state["counts"][n] for n in names), strict=True)]
        numbers = " | ".join(f"{n:,}" for n in (len(names), *counts))
        lines.append(f"| {op} | {target} | {numbers} |")
    lines += ["", "The sets of scale and zero point:", ""]
    lines += [f"* {target}: {', '.join(pairs)}" for target, pairs in sets.items()]
    inputs, compared, wrong = map(sum, zip(*state["counts"].values(), strict=True))
    lines += [
        "",
        f"Parts of float32: {len(state['done'])} of {PARTS}. Inputs {inputs:,}; compared "
        f"{compared:,}; with a bit that differs: {wrong:,}.",
        "",
        f"{datetime.now(UTC):%Y-%m-%d}, {', '.join(versions())}.",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
