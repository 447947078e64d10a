"""npquant on a GPU beside PyTorch and beside a plain copy: one run of under eight minutes.

    python asv_benchmarks/gpu.py [gpu-results.json] [--processes 6]
    python asv_benchmarks/gpu.py --markdown gpu-results.json

Every op and layout at 2**20, 2**28 and 2**24 elements. npquant and PyTorch's op on the same data
take turns; what is printed are medians of samples between two CUDA events. Fractions are of the
bandwidth of a copy of as many float32 as the largest size has, which is measured before them.
Compilation and first calls are not timed. All figures go to the file as soon as they are there, and
so does what could not be measured, and why. Without a GPU that runs kernels nothing is measured,
and the exit status is 1. npquant need not be installed: PYTHONPATH may name the folder that it lies
in. Most of the time goes by while kernels are compiled: several processes do that beside each
other, and measure one at a time.
"""

from __future__ import annotations

import argparse
import inspect
import json
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from benchmarks import cases, peers
from benchmarks.cases import Case, Inputs, Layout
from benchmarks.tensors import as_torch, load_torch
from revision import revision

import npquant

#: The smallest first: should one break the device, the others are there.
SIZES = (1 << 20, 1 << 28, 1 << 24)
#: The size of the calls whose overhead is measured.
SMALL = 16

#: Seconds from the start after which nothing new is begun, and nothing given to torch.compile.
DEADLINE, COMPILE_UNTIL = 440.0, 240.0
#: What a sample takes, at the least, and all samples of a case.
SAMPLE_SECONDS, CASE_SECONDS, LEAST_ROUNDS = 0.002, 0.3, 5

Call = Callable[[], Any]


class Part(NamedTuple):
    """What one of several processes measures: every `of`-th case; alone, all of them."""

    number: int = 0
    of: int = 1
    #: A file that is locked while one measures.
    turn: str = ""

    def some(self, cases: Iterator[tuple[str, Case]]) -> Iterator[tuple[int, str, Case]]:
        """Yield (place among all, layout, case)."""
        for place, (name, case) in enumerate(cases):
            if place % self.of == self.number:
                yield place, name, case


ALONE = Part()


# --- cases ------------------------------------------------------------------------------------


def layouts(n: int) -> dict[str, Layout]:
    """Every granularity for `n` elements, a power of two that is at least 2**8."""
    few, long, short = min(64, n // 16), min(4096, n // 2), min(512, n // 4)
    inner = max(n // 2**12, 4) if n < 2**20 else 256
    last = min(1024, n // 4)
    return {
        "per tensor": cases.per_tensor(n),
        "per channel, first axis": cases.per_channel(few, n // few, axis=0),
        "per channel, middle axis": cases.per_channel(n // few // inner, few, inner, axis=1),
        "per channel, last axis": cases.per_channel(n // last, last, axis=1),
        "per token": cases.per_token(n // long, long),
        "tokens of 512": cases.per_token(n // short, short),
        "groups of 32": cases.per_group(n // long, long, size=32),
        "groups of 128": cases.per_group(n // long, long, size=128),
    }


#: Which of them an op is measured in, by what it says of itself in the CPU's table.
_KINDS = {
    "tensor": ("per tensor",),
    "channel": ("per channel, first axis", "per channel, middle axis", "per channel, last axis"),
    "token": ("per token", "tokens of 512"),
    "group": ("groups of 32", "groups of 128"),
}
#: It is given one range a channel, and no data.
_NO_DATA = ("determine_qparams",)


def table(n: int) -> Iterator[tuple[str, Case]]:
    """Yield (layout, case) for every op with its usual dtype, and one op with the others."""
    ready, seen = layouts(n), set()
    for case in cases.CASES.values():
        usual = case.dtype.split(" -> ")[0] in ("float32", "int8") and not case.layout.wide
        other = case.dtype in ("float16", "bfloat16") and not case.layout.scales
        key = case.op, case.dtype, case.layout.grain
        if case.op in _NO_DATA or key in seen or not (usual or other):
            continue
        if case.op in cases.GRAINED and case.layout.scales:
            continue  # one granularity of five alike is enough
        if usual and any((case.op, key[2]) == (op, kind) for op, d, kind in seen if " -> " in d):
            continue  # one dtype of codes is enough
        seen.add(key)
        for name in _KINDS[key[2]]:
            yield name, replace(case, layout=ready[name])


# --- data -------------------------------------------------------------------------------------


class Arrays:
    """Arrays on the device: PyTorch's where it is there, else Numba's."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch

    def uploaded(self, value: Any) -> Any:
        """An array on the device; what is none, and what the host must see, as it is."""
        if not isinstance(value, np.ndarray) or value is cases.ON:
            return value
        if self.torch is None:
            return npquant.cuda.to_device(value)
        return as_torch(value).cuda()

    def repeated(self, block: Any, shape: tuple[int, ...]) -> Any:
        """An array on the device that holds `block` over and over."""
        n = int(np.prod(shape))
        if self.torch is None:
            return npquant.cuda.to_device(np.resize(block, shape))
        return self.uploaded(block).repeat(-(-n // block.size))[:n].reshape(shape)


class OnDevice(Inputs):
    """What calls take, on the device; large arrays repeat a block."""

    BLOCK = 1 << 20

    def __init__(self, case: Case, arrays: Arrays) -> None:
        usual = case.inputs()
        super().__init__(case.layout, usual.floating.name, usual.target.name)
        block = cases.per_tensor(min(self.BLOCK, case.size))
        self._block = Inputs(block, usual.floating.name, usual.target.name)
        self._arrays = arrays

    def _large(self, name: str) -> Any:
        return self._arrays.repeated(getattr(self._block, name), self.layout.shape)

    x = cached_property(lambda self: self._large("x"))
    grad = cached_property(lambda self: self._large("grad"))
    mask = cached_property(lambda self: self._large("mask"))
    codes = cached_property(lambda self: self._large("codes"))
    V = cached_property(lambda self: self._large("V"))


def on_device(case: Case, arrays: Arrays) -> tuple[Case, OnDevice]:
    """The case with arguments that lie on the device, the same ones each time."""
    inputs = OnDevice(case, arrays)
    given = tuple(arrays.uploaded(v) for v in case.arguments(inputs))
    return replace(case, arguments=lambda _: given), inputs


# --- time -------------------------------------------------------------------------------------


class Clock:
    """Milliseconds on the device, between events on the default stream."""

    def __init__(self, turn: str = "") -> None:
        from cuda.bindings import driver

        self._driver, self._turn = driver, turn
        flag = int(driver.CUevent_flags.CU_EVENT_DEFAULT)
        self._start, self._end = (self.checked(driver.cuEventCreate(flag)) for _ in range(2))

    def checked(self, result: Any) -> Any:
        """What the driver returns, or its error raised."""
        error, *values = result
        if int(error):
            raise RuntimeError(f"CUDA: {error.name}")
        return values[0] if values else None

    @contextmanager
    def turn(self) -> Iterator[None]:
        """While no other process measures."""
        if not self._turn:
            yield
            return
        import fcntl  # which Windows has not: there one process measures

        with open(self._turn, "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def sample(self, call: Call, n: int) -> float:
        """Milliseconds of one of `n` calls in a row."""
        self.checked(self._driver.cuEventRecord(self._start, 0))
        for _ in range(n):
            call()
        self.checked(self._driver.cuEventRecord(self._end, 0))
        self.wait()
        took = self.checked(self._driver.cuEventElapsedTime(self._start, self._end))
        return float(took) / n

    def wait(self) -> None:
        """Until the device has done all that it was given."""
        self.checked(self._driver.cuCtxSynchronize())

    def medians(self, calls: dict[str, Call]) -> dict[str, float]:
        """The median milliseconds of each call, of samples that are taken in turn."""
        for call in calls.values():  # which compiles
            call()
        self.wait()
        with self.turn():
            return self._medians(calls)

    def _medians(self, calls: dict[str, Call]) -> dict[str, float]:
        counts = {}
        for name, call in calls.items():
            once = min(self.sample(call, 1) for _ in range(3))
            counts[name] = max(1, round(SAMPLE_SECONDS * 1e3 / max(once, 1e-3)))
        samples: dict[str, list[float]] = {name: [] for name in calls}
        rounds, end = 0, perf_counter() + CASE_SECONDS
        while rounds < LEAST_ROUNDS or perf_counter() < end:
            for name, call in calls.items():
                samples[name].append(self.sample(call, counts[name]))
            rounds += 1
        return {name: statistics.median(times) for name, times in samples.items()}

    def overhead(self, calls: dict[str, Call]) -> dict[str, float]:
        """The median microseconds that a call keeps the host, the device not waited for."""
        for call in calls.values():
            call()
        with self.turn():
            return self._overhead(calls, 2000)

    def _overhead(self, calls: dict[str, Call], n: int) -> dict[str, float]:
        samples: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(9):
            for name, call in calls.items():
                call()
                self.wait()
                start = perf_counter()
                for _ in range(n // 9):
                    call()
                samples[name].append((perf_counter() - start) / (n // 9) * 1e6)
                self.wait()
        return {name: statistics.median(times) for name, times in samples.items()}

    @contextmanager
    def copy(self, nbytes: int) -> Iterator[Call]:
        """A copy on the device of so many bytes, as many read as written; then they are freed."""
        x, y = (self.checked(self._driver.cuMemAlloc(nbytes)) for _ in range(2))
        try:
            yield partial(self._driver.cuMemcpyDtoDAsync, y, x, nbytes, 0)
        finally:
            for room in (x, y):
                self.checked(self._driver.cuMemFree(room))


# --- what is measured -------------------------------------------------------------------------


def npquant_call(case: Case, inputs: OnDevice, arrays: Arrays) -> Call:
    """npquant's call. Numba's arrays cost an allocation by the driver: they are made before."""
    call = case.call(inputs)
    takes_out = "out" in inspect.signature(getattr(npquant, case.op)).parameters
    return partial(call, out=call()) if arrays.torch is None and takes_out else call


def torch_call(case: Case, inputs: OnDevice, arrays: Arrays) -> tuple[Call | None, str]:
    """PyTorch's op on the same arrays, or why there is none."""
    name = next((p for p in case.peers if p in ("torch", "torch decomposed")), None)
    if arrays.torch is None or name is None:
        return None, "PyTorch is not here" if arrays.torch is None else "PyTorch has no such op"
    # The switches of npquant are the host's, those of PyTorch are not.
    given = tuple(as_torch(v).cuda() if v is cases.ON else v for v in case.arguments(inputs))
    try:
        call = peers.PEERS[name](replace(case, arguments=lambda _: given), inputs)
        call()
    except Exception as error:  # whatever an op without a CUDA kernel says
        return None, said(error)
    return call, ""


def measured(
    name: str, case: Case, arrays: Arrays, clock: Clock, bandwidth: float, compiled: bool
) -> dict[str, Any]:
    """One row."""
    row: dict[str, Any] = {"op": case.op, "dtype": case.dtype, "layout": name, "size": case.size}
    case, inputs = on_device(case, arrays)
    calls = {"npquant": npquant_call(case, inputs, arrays)}
    moved = case.moved(inputs, calls["npquant"]())
    torch, why = torch_call(case, inputs, arrays)
    if torch is None:
        row["no torch"] = why
    else:
        calls["torch"] = torch
        if compiled:
            try:
                fast = peers.compiled_call(torch)
                fast()
                calls["torch.compile"] = fast
            except Exception as error:
                row["no torch.compile"] = said(error)
    row["ms"] = clock.medians(calls)
    ours = row["ms"]["npquant"]
    row["fraction of copy"] = moved / (ours * 1e-3) / bandwidth
    row["ratio"] = {k: ms / ours for k, ms in row["ms"].items() if k != "npquant"}
    return row


def line(row: dict[str, Any]) -> str:
    """A row as it is printed."""
    text = f"{row['op']:58} {row['dtype']:22} {row['layout']:26} 2**{row['size'].bit_length() - 1}"
    text += f" {row['ms']['npquant']:9.4f} ms {row['fraction of copy']:6.1%} of copy"
    for name, ratio in row["ratio"].items():
        text += f"  {name} {ratio:.2f} x"
    return text + (f"  ({row['no torch']})" if "no torch" in row else "")


def versions(arrays: Arrays, clock: Clock) -> dict[str, str]:
    """What was measured, with what."""
    import numba
    import numba_cuda

    from npquant.cuda.target import cuda

    device = cuda.get_current_device()
    name = device.name.decode() if isinstance(device.name, bytes) else device.name
    about = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "card": f"{name}, compute capability {'.'.join(map(str, device.compute_capability))}",
        "driver": str(clock.checked(clock._driver.cuDriverGetVersion())),
        "python": platform.python_version(),
        "npquant": revision(),
        "numpy": np.__version__,
        "numba": numba.__version__,
        "numba-cuda": numba_cuda.__version__,
        "torch": "not here" if arrays.torch is None else arrays.torch.__version__,
    }
    try:
        import cupy

        about["cupy"] = cupy.__version__
    except ImportError:
        about["cupy"] = "not here"
    return about


def a_gpu() -> str:
    """Why nothing can be measured here, or nothing."""
    try:
        from npquant.cuda.target import SIMULATED, cuda
    except ImportError as error:
        return f"numba-cuda is not installed ({error}); pip install '.[cuda13]'"
    if SIMULATED:
        return "the CUDA simulator is switched on, whose times mean nothing"
    if not cuda.is_available():
        return "no GPU is available here"
    try:
        q = npquant.quantize_per_tensor(npquant.cuda.to_device(np.ones(5)), 0.5, 0, -8, 7, np.int8)
        found = npquant.cuda.to_host(q).tolist()
    except Exception as error:  # no compiler for kernels, or none that fits the driver
        return f"a kernel could not be run here ({type(error).__name__}: {error})"
    return "" if found == [2] * 5 else f"a kernel gave {found} in place of twos"


def torch_with_cuda() -> Any:
    """PyTorch, if it sees the GPU."""
    try:
        import torch
    except ImportError:
        return None
    return torch if torch.cuda.is_available() else None


@dataclass
class Found:
    """What was measured, and what was not, and why; `keep` writes it to the file."""

    path: Path
    about: dict[str, str]
    bandwidth: float
    start: float
    deadline: float
    rows: list[dict[str, Any]] = field(default_factory=list)
    overheads: list[dict[str, Any]] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return perf_counter() - self.start

    def keep(self) -> None:
        """Write all of it anew, to a file that takes the place of the one before."""
        text = {"about": self.about, "copy TB/s": self.bandwidth / 1e12, "rows": self.rows,
                "overheads": self.overheads, "not measured": self.left,
                "seconds": self.seconds}  # fmt: skip
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps(text, indent=1) + "\n")
        new.replace(self.path)


def main(
    path: str = "gpu-results.json", sizes: tuple[int, ...] = (), seconds: float | None = None,
    compiled: bool = True, part: Part = ALONE,
) -> int:  # fmt: skip
    """Measure, all sizes for as long as `DEADLINE` says unless others are given."""
    start, sizes = perf_counter(), sizes or SIZES
    why = a_gpu()
    if why:
        print(f"Nothing was measured: {why}.", file=sys.stderr)
        return 1
    arrays = Arrays(torch_with_cuda())
    npquant.cuda.to_device(np.zeros(1, np.float32))  # makes the context
    if arrays.torch is not None:
        load_torch()
        arrays.torch.zeros(1, device="cuda")
    clock = Clock(part.turn)
    about = versions(arrays, clock)
    for key, value in about.items() if not part.number else ():
        print(f"{key}: {value}")
    nbytes = 4 * max(sizes)
    with clock.copy(nbytes) as copy:
        bandwidth = 2 * nbytes / (clock.medians({"copy": copy})["copy"] * 1e-3)
    if not part.number:
        print(f"copy: {bandwidth / 1e12:.3f} TB/s\n", flush=True)

    deadline = DEADLINE if seconds is None else seconds
    found = Found(Path(path), about, bandwidth, start, deadline)
    try:
        measure_rows(found, arrays, clock, sizes, compiled, part)
        print(f"\nA call of {SMALL} elements, microseconds of the host:")
        measure_overheads(found, arrays, clock, part)
    finally:
        for text in found.left:
            print(f"not measured: {text}")
        found.keep()
        print(f"\n{path}: {len(found.rows)} rows in {found.seconds:.0f} s")
    return 0 if found.rows or part.of > 1 else 1


def measure_rows(
    found: Found, arrays: Arrays, clock: Clock, sizes: tuple[int, ...], compile_too: bool,
    part: Part,
) -> None:  # fmt: skip
    """Every case of every size; what fails, or comes too late, is among those that are left."""
    for size in sizes:
        compiled: set[str] = set()
        for place, name, case in part.some(table(size)):
            what = f"{case.op} {case.dtype} {name} {size}"
            if found.seconds > found.deadline:
                found.left.append(f"{what}: out of time")
                continue
            new = size == max(sizes) and case.op not in compiled
            compiled.add(case.op)
            try_it = compile_too and new and found.seconds < COMPILE_UNTIL
            with attempted(what, found, clock):
                row = measured(name, case, arrays, clock, found.bandwidth, try_it)
                found.rows.append(row | {"place": (sizes.index(size), place)})
                print(line(row), flush=True)
            found.keep()


def measure_overheads(found: Found, arrays: Arrays, clock: Clock, part: Part) -> None:
    """What a call of few elements costs the host; the rest as for rows."""
    for place, name, case in part.some(table(256)):
        if name not in ("per tensor", "per channel, first axis"):
            continue
        what = f"overhead of {case.op} {name}"
        if found.seconds > found.deadline:
            found.left.append(f"{what}: out of time")
            continue
        shape = cases.per_channel(4, 4, axis=0) if case.layout.axis else cases.per_tensor(SMALL)
        with attempted(what, found, clock):
            small, inputs = on_device(replace(case, layout=shape), arrays)
            calls = {"npquant": npquant_call(small, inputs, arrays)}
            torch, _ = torch_call(small, inputs, arrays)
            took = clock.overhead(calls | ({"torch": torch} if torch else {}))
            row = {"op": case.op, "dtype": case.dtype, "us": took, "place": place}
            found.overheads.append(row)
            print(f"{case.op:58} {case.dtype:22}", *(f"{k} {us:.1f}" for k, us in took.items()))
        found.keep()


@contextmanager
def attempted(what: str, found: Found, clock: Clock) -> Iterator[None]:
    """What fails, for want of memory or whatever else, is left; the rest goes on.

    Unless the device itself fails from now on: then all of it would, and the error is raised.
    """
    try:
        yield
    except Exception as error:
        found.left.append(f"{what}: {said(error)}")
        clock.wait()


def said(error: Exception) -> str:
    """An error in one line."""
    lines = str(error).splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:100]}"


def shared(path: str, processes: int, given: list[str]) -> int:
    """The same by several processes; what each has found becomes one file."""
    why = a_gpu()
    if why:
        print(f"Nothing was measured: {why}.", file=sys.stderr)
        return 1
    with TemporaryDirectory() as folder:
        files = [Path(folder, f"{k}.json") for k in range(processes)]
        commands = [
            [sys.executable, __file__, str(file), *given, "--part", str(k), str(processes),
             str(Path(folder, "turn"))]
            for k, file in enumerate(files)
        ]  # fmt: skip
        running = [subprocess.Popen(command) for command in commands]
        codes = [process.wait() for process in running]
        parts = [json.loads(file.read_text()) for file in files if file.exists()]
    if not parts:
        return max(codes, key=abs)
    found = parts[0]
    for name in ("rows", "overheads"):
        found[name] = sorted((r for p in parts for r in p[name]), key=lambda row: row["place"])
    found["not measured"] = [text for p in parts for text in p["not measured"]]
    found["not measured"] += [
        f"what process {k} had not kept: it ended with {code}"
        for k, code in enumerate(codes)
        if code
    ]
    found["seconds"] = max(p["seconds"] for p in parts)
    Path(path).write_text(json.dumps(found, indent=1) + "\n")
    print(f"\n{path}: {len(found['rows'])} rows in {found['seconds']:.0f} s")
    return 0 if found["rows"] else 1


def markdown(path: str) -> str:
    """What a file of results says, as tables."""
    found = json.loads(Path(path).read_text())
    lines = [", ".join(f"{k} {v}" for k, v in found["about"].items()) + ".",
             f"Copy: {found['copy TB/s']:.2f} TB/s."]  # fmt: skip
    for size in dict.fromkeys(row["size"] for row in found["rows"]):
        lines += ["", f"2**{size.bit_length() - 1} elements:", ""]
        lines += [
            "| op | dtype | layout | ms | of the copy | PyTorch |",
            "|---|---|---|--:|--:|--:|",
        ]
        for row in (row for row in found["rows"] if row["size"] == size):
            torch = row["ratio"].get("torch")
            told = "" if torch is None else f"{torch:.2f} x"
            what = f"| `{row['op']}` | {row['dtype']} | {row['layout']} | "
            took, fraction = row["ms"]["npquant"], row["fraction of copy"]
            lines.append(f"{what}{took:.3f} | {fraction:.0%} | {told} |")
    lines += ["", f"A call of {SMALL} elements, microseconds of the host:", ""]
    lines += ["| op | dtype | npquant | PyTorch |", "|---|---|--:|--:|"]
    for row in found["overheads"]:
        torch = row["us"].get("torch")
        told = "" if torch is None else f"{torch:.0f}"
        lines.append(f"| `{row['op']}` | {row['dtype']} | {row['us']['npquant']:.0f} | {told} |")
    return "\n".join([*lines, *[f"not measured: {text}" for text in found["not measured"]]])


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", nargs="?", default="gpu-results.json")
    parser.add_argument("--sizes", type=int, nargs="+", default=(), help="powers of two, as 28 20")
    parser.add_argument("--seconds", type=float, help="after which nothing new is begun")
    parser.add_argument("--eager", action="store_true", help="nothing is given to torch.compile")
    parser.add_argument("--markdown", action="store_true", help="print what the file holds")
    parser.add_argument("--processes", type=int, default=1,
                        help="that compile beside each other (not on Windows)")  # fmt: skip
    parser.add_argument("--part", nargs=3, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    given = arguments()
    if given.markdown:
        print(markdown(given.path))
        sys.exit()
    if given.processes > 1:
        told = ["--sizes", *map(str, given.sizes)] if given.sizes else []
        told += [] if given.seconds is None else ["--seconds", str(given.seconds)]
        told += ["--eager"] if given.eager else []
        sys.exit(shared(given.path, given.processes, told))
    sizes = tuple(1 << n for n in given.sizes)
    number, of, turn = given.part or (0, 1, "")
    part = Part(int(number), int(of), turn)
    sys.exit(main(given.path, sizes, given.seconds, not given.eager, part))
