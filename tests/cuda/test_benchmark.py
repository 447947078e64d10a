"""The cases of asv_benchmarks/gpu.py: each is a valid call, on few elements."""

import sys
from pathlib import Path

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
