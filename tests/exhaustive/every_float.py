"""Every float there is, through npquant and through PyTorch 2.13: how many bits differ.

    python tests/exhaustive/every_float.py                    # all float32, float16 and bfloat16
    python tests/exhaustive/every_float.py --only int8 --first 0 --last 16

All 2**32 bit patterns of float32 go through quantize per tensor, fake quantize with its mask and
the gradients of the learnable op, element by element, for the qparams below; all of float16 and
bfloat16 through those that PyTorch has for them; and every code through dequantize. What
departures.md lists is left out of the comparison, and not counted as compared. The patterns come in
256 parts of 2**24, so that a run can be cut into several and resumed: finished parts are remembered
in the file that --state names.

`tests/peers/test_every_float.py` runs the same table on every 65,537th pattern.
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import torch
import torch.ao.quantization.fx._decomposed  # registers the operators

import npquant as nq

Array = np.ndarray[Any, Any]

PART = 1 << 24
PARTS = 1 << 8

F32 = np.dtype(np.float32)
HALVES = np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)
TORCH = {
    np.dtype(np.float16): torch.float16,
    np.dtype(ml_dtypes.bfloat16): torch.bfloat16,
    F32: torch.float32,
    np.dtype(np.int8): torch.int8,
    np.dtype(np.uint8): torch.uint8,
    np.dtype(np.int16): torch.int16,
    np.dtype(np.uint16): torch.uint16,
    np.dtype(ml_dtypes.float8_e4m3fn): torch.float8_e4m3fn,
    np.dtype(ml_dtypes.float8_e5m2): torch.float8_e5m2,
}
SIGNED = {1: torch.int8, 2: torch.int16, 4: torch.int32}

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


def to_torch(x: Array) -> torch.Tensor:
    """The same memory as a tensor."""
    return torch.from_numpy(x.view(f"i{x.itemsize}")).view(TORCH[x.dtype])


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
        keep = None if self.comparable is None else self.comparable(x)
        wrong = np.zeros(x.shape, bool)
        for a, b in zip(self.ours(x), self.theirs(x), strict=True):
            wrong |= (bits(a) != bits(b)).reshape(x.shape)
        if keep is not None:
            wrong &= keep
        first = f"{bits(x)[np.argmax(wrong)]:#x}" if wrong.any() else ""
        return int(wrong.sum()), x.size if keep is None else int(keep.sum()), first


def quantize(target: str, scale: float, zero_point: int) -> Case:
    dtype = np.dtype(getattr(ml_dtypes, target, target))
    args = scale, zero_point, *BOUNDS[target]
    op = torch.ops.quantized_decomposed.quantize_per_tensor

    def a_number(x: Array) -> Array:  # the sign of a NaN is a departure (D22)
        with np.errstate(all="ignore"):
            return ~np.isnan(x.astype(np.float32) * np.float32(1 / scale))

    return Case(
        f"quantize_per_tensor {target} {args}",
        lambda x: (nq.quantize_per_tensor(x, *args, dtype),),
        lambda x: (op(to_torch(x), *args, TORCH[dtype]),),
        a_number if target.startswith("float8") else None,
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

    def inputs(x: Array) -> tuple[Array, ...]:
        s, z = (np.full(x.shape, v, np.float32) for v in (scale, zero_point))
        return np.full((x.size, 1), 0.7, np.float32), x.reshape(-1, 1), s, z

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
        lambda q: (op(to_torch(q), *args, TORCH[q.dtype]),),
    )


def qparams(target: str) -> Iterator[tuple[float, int]]:
    """Every scale with one zero point, and 0.1 with every zero point."""
    points = zero_points(*BOUNDS[target])
    yield from ((s, points[i % len(points)]) for i, s in enumerate(SCALES))
    yield from ((0.1, z) for z in points)


def cases(*makers: Callable[..., Case], targets: tuple[str, ...]) -> list[Case]:
    return [m(t, *p) for m, t in itertools.product(makers, targets) for p in set(qparams(t))]


INTEGERS = "int8", "uint8", "int16"
#: What every float goes through; halves through all but the gradients, which PyTorch has not.
OF_HALVES = cases(quantize, targets=tuple(BOUNDS)) + cases(fake_quantize, targets=INTEGERS)
OF_FLOATS = OF_HALVES + cases(gradients, targets=("int8", "uint8"))
OF_CODES = [(t, c) for t in INTEGERS for c in cases(dequantize, targets=(t,))]


def floats(first: int, stop: int, step: int = 1) -> Array:
    """The float32 of the bit patterns from `first` to `stop`."""
    return np.arange(first, stop, step, np.uint64).astype(np.uint32).view(np.float32)


def halves(dtype: np.dtype[Any]) -> Array:
    return np.arange(1 << 16, dtype=np.uint16).view(dtype)


def codes(target: str) -> Array:
    lo, hi = BOUNDS[target]
    return np.arange(lo, hi + 1, dtype=np.int64).astype(target)


# --- the command --------------------------------------------------------------------------------


def main(argv: list[str] | None = None) -> int:
    from tqdm import tqdm

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--first", type=int, default=0, help="first part of 2**24 patterns")
    parser.add_argument("--last", type=int, default=PARTS, help="part before which to stop")
    parser.add_argument("--state", type=Path, help="remember finished parts here, and go on")
    options = parser.parse_args(argv)
    if not 0 <= options.first < options.last <= PARTS:
        parser.error(f"0 <= --first < --last <= {PARTS} is required")

    state = {"compared": 0, "inputs": 0, "differing": 0, "done": [], "found": []}
    if options.state and options.state.exists():
        state = json.loads(options.state.read_text())

    def run(case: Case, x: Array) -> None:
        wrong, compared, first = case.differing(x)
        state["inputs"] += x.size
        state["compared"] += compared
        state["differing"] += wrong
        if wrong:
            state["found"].append(f"{case.name}: {wrong} differ, the first is {first}")
            tqdm.write(state["found"][-1])

    def chosen(table: list[Case]) -> list[Case]:
        return [case for case in table if options.only in case.name]

    for part in tqdm(range(options.first, options.last), unit="part"):
        if part in state["done"]:
            continue
        x = floats(part * PART, (part + 1) * PART)
        for case in chosen(OF_FLOATS):
            run(case, x)
        state["done"].append(part)
        if options.state:
            options.state.write_text(json.dumps(state))
    for dtype, case in itertools.product(HALVES, chosen(OF_HALVES)):
        run(case, halves(dtype))
    for target, case in OF_CODES:
        if options.only in case.name:
            run(case, codes(target))

    capability = torch.backends.cpu.get_cpu_capability()
    print(f"npquant {nq.__version__}, torch {torch.__version__} ({capability}), "
          f"numpy {np.__version__}, Python {platform.python_version()}")  # fmt: skip
    print(f"parts {len(state['done'])} of {PARTS}, inputs {state['inputs']:,}, "
          f"compared {state['compared']:,}, differing {state['differing']:,}")  # fmt: skip
    return 1 if state["differing"] else 0


if __name__ == "__main__":
    sys.exit(main())
