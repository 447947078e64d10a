"""The cases of asv_benchmarks/gpu.py: each is a valid call, on few elements."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import npquant as nq

sys.path.insert(0, str(Path(nq.__file__).parents[1] / "asv_benchmarks"))
import gpu

CASES = {f"{case} {name}": case for name, case in gpu.table(256)}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_case(case):
    assert case.size == 256
    arrays = gpu.Arrays(None)
    case, inputs = gpu.on_device(case, arrays)
    call = gpu.npquant_call(case, inputs, arrays)
    assert case.moved(inputs, call()) > 0


def test_every_op_is_there():
    missing = {name for name in nq.__all__ if name.islower() and callable(getattr(nq, name))}
    assert missing - {case.op for case in CASES.values()} == {"determine_qparams"}


@pytest.mark.parametrize("size", gpu.SIZES)
def test_sizes(size):
    """Whole channels and groups, whatever the size."""
    for name, layout in gpu.layouts(size).items():
        assert gpu.cases.prod(layout.shape) == size, name


def test_without_a_gpu(capsys, monkeypatch):
    monkeypatch.setattr(gpu, "a_gpu", lambda: "no GPU is available here")
    assert gpu.main() == 1
    assert capsys.readouterr().err == "Nothing was measured: no GPU is available here.\n"


class Clock(gpu.Clock):
    """A clock that calls and does not measure."""

    def __init__(self):
        self.freed = []
        rooms = iter((b"first", b"second"))
        self._driver = SimpleNamespace(
            cuMemAlloc=lambda nbytes: (0, next(rooms)),
            cuMemFree=lambda room: self.freed.append(room) or (0,),
            cuMemcpyDtoDAsync=lambda *args: None,
        )

    def medians(self, calls):
        assert self.freed == [] or "copy" not in calls
        for call in calls.values():
            call()
        return dict.fromkeys(calls, 1.0)

    overhead = medians

    def wait(self):
        """The device is well."""


@pytest.fixture
def kept(monkeypatch, tmp_path):
    """A run with two ops of a few elements; what it has written to the file."""
    clock = Clock()
    for attribute, value in {
        "a_gpu": lambda: "",
        "torch_with_cuda": lambda: None,
        "Clock": lambda turn: clock,
        "versions": lambda arrays, clock: {"card": "none"},
        "SIZES": (256,),
        "table": lambda n: [(name, case) for name, case in TABLE(n) if case.op in FEW],
    }.items():
        monkeypatch.setattr(gpu, attribute, value)
    path = tmp_path / "results.json"
    monkeypatch.setattr(gpu.main, "__defaults__", (str(path), *gpu.main.__defaults__[1:]))
    yield lambda: json.loads(path.read_text())
    assert clock.freed == [b"first", b"second"]


TABLE = gpu.table
FEW = "quantize_per_tensor", "dequantize_per_tensor"


def test_a_run(kept):
    assert gpu.main() == 0
    assert {row["op"] for row in kept()["rows"]} == set(FEW)
    assert {row["op"] for row in kept()["overheads"]} == set(FEW)
    assert kept()["not measured"] == []


def test_several_processes(kept, monkeypatch, tmp_path):
    """What each measures is in the file, in the order of one that measures alone."""
    assert gpu.main() == 0
    alone = kept()

    class Process:
        def __init__(self, command):
            _, _, path, size, *part = command
            assert size == "--size"
            assert part[0] == "--part"
            monkeypatch.setattr(gpu, "Clock", lambda turn: Clock())
            self.code = gpu.main(path, part=gpu.Part(int(part[1]), int(part[2]), part[3]))

        def wait(self):
            return self.code

    monkeypatch.setattr(gpu.subprocess, "Popen", Process)
    assert gpu.shared(str(tmp_path / "results.json"), 3, ["--size"]) == 0
    for name in ("rows", "overheads", "not measured"):
        assert kept()[name] == alone[name]


def test_one_measures_at_a_time(tmp_path):
    fcntl = pytest.importorskip("fcntl", reason="Windows has no such locks")
    clock = gpu.Clock.__new__(gpu.Clock)
    clock._turn = tmp_path / "turn"
    with clock.turn(), open(clock._turn) as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with clock.turn(), open(clock._turn) as other:
        assert other.read() == ""


def test_as_tables(kept, tmp_path):
    assert gpu.main() == 0
    lines = gpu.markdown(tmp_path / "results.json").splitlines()
    assert lines[0] == "card none."
    for op in FEW:  # of each layout, and what a call costs
        assert len([line for line in lines if line.startswith(f"| `{op}` ")]) >= 2
    rows = [line.count("|") for line in lines if line.startswith("|")]
    assert set(rows) == {7, 5}


def test_what_fails_is_left_out(kept, monkeypatch):
    """A row, an overhead, for whatever reason; the rest is there."""
    call = gpu.npquant_call

    def failing(case, inputs, arrays):
        if case.op == FEW[0]:
            raise RuntimeError("CUDA_ERROR_OUT_OF_MEMORY\nand more")
        return call(case, inputs, arrays)

    monkeypatch.setattr(gpu, "npquant_call", failing)
    assert gpu.main() == 0
    for found in (kept()["rows"], kept()["overheads"]):
        assert {row["op"] for row in found} == {FEW[1]}
    left = kept()["not measured"]
    assert len(left) >= 2
    assert all(FEW[0] in text and text.endswith("CUDA_ERROR_OUT_OF_MEMORY") for text in left)


def test_a_broken_device_ends_it(kept, monkeypatch):
    """Whatever came after would fail as well, and say nothing of itself."""
    call = gpu.npquant_call

    def breaking(case, inputs, arrays):
        if case.op == FEW[1]:
            monkeypatch.setattr(Clock, "wait", broken)
            raise RuntimeError("CUDA_ERROR_ILLEGAL_ADDRESS")
        return call(case, inputs, arrays)

    def broken(self):
        raise RuntimeError("CUDA: CUDA_ERROR_ILLEGAL_ADDRESS")

    monkeypatch.setattr(gpu, "npquant_call", breaking)
    with pytest.raises(RuntimeError, match="ILLEGAL_ADDRESS"):
        gpu.main()
    assert {row["op"] for row in kept()["rows"]} == {FEW[0]}
    assert len(kept()["not measured"]) == 1
    assert kept()["overheads"] == []


def test_an_interrupt_keeps_what_was_measured(kept, monkeypatch):
    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(gpu, "measure_overheads", interrupted)
    with pytest.raises(KeyboardInterrupt):
        gpu.main()
    assert {row["op"] for row in kept()["rows"]} == set(FEW)


def test_without_time(kept, monkeypatch):
    monkeypatch.setattr(gpu, "DEADLINE", -1.0)
    assert gpu.main() == 1
    assert kept()["rows"] == kept()["overheads"] == []
    assert all(text.endswith("out of time") for text in kept()["not measured"])
