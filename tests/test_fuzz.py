"""Some thousand calls drawn at random; `python -m fuzz` draws millions. See fuzz/generate.py."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import npquant as nq
from calls import CALLS
from fuzz import draw, generate, judge
from fuzz.large import as_if_large
from npquant.checks.calls import forget

#: Parts of the run, so that one complaint does not hide the others.
PARTS, CASES = 8, 500


@pytest.mark.interpreted
@pytest.mark.parametrize("part", range(PARTS))
def test_every_call_is_right_or_refused(part):
    calls(0, part)


@pytest.mark.interpreted
@pytest.mark.parametrize("part", range(PARTS // 4))
def test_every_call_is_right_or_refused_as_if_large(part, monkeypatch):
    as_if_large(monkeypatch.setattr)
    forget()  # plans that are made with other limits
    calls(1, part)
    forget()


@pytest.mark.interpreted
@pytest.mark.parametrize("part", range(PARTS // 2))
def test_every_call_is_right_or_refused_of_long_arrays(part):
    calls(2, part, long=True)


def calls(seed, part, **options):
    complaints = {}
    for index in range(part * CASES, (part + 1) * CASES):
        case = generate.case(seed, index, **options)
        if said := judge.complaint(case):
            complaints[index] = f"{said}\n{judge.report(case)}"
    assert not complaints, "\n".join(f"case {i}: {said}" for i, said in complaints.items())


def test_without_the_compiler():
    """The plain Python of kernels and primitives: the same bits and the same errors."""
    paths = os.pathsep.join((str(Path(__file__).parent), str(Path(nq.__file__).parents[1])))
    environment = os.environ | {"NUMBA_DISABLE_JIT": "1", "PYTHONPATH": paths}
    command = [sys.executable, "-m", "fuzz", "--few", "--seed", "1", "--count", "400"]
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert "complaints: 0" in run.stdout, run.stdout + run.stderr
    assert run.returncode == 0


def test_every_op_is_drawn():
    assert set(generate.NAMES) == set(CALLS)
    drawn = [generate.case(0, i) for i in range(1500)]
    assert {case.name for case in drawn} == set(CALLS)
    wrong = sum(bool(case.wrong) for case in drawn)
    assert len(drawn) / 5 < wrong < len(drawn) / 2
    named = {name for case in drawn for name in case.wrong}
    assert named > {"input", "scale", "scales", "zero_point", "axis", "dtype", "out", "mask", "V"}


def test_a_case_is_its_seed_and_number():
    def pattern(case):
        arrays = {k: (v.tobytes(), v.strides) for k, v in case.kwargs.items() if _is_array(v)}
        return case.name, list(case.kwargs), arrays, case.wrong

    for index in range(200):
        assert pattern(generate.case(5, index)) == pattern(generate.case(5, index))
    assert any(pattern(generate.case(5, i)) != pattern(generate.case(6, i)) for i in range(200))


def _is_array(value):
    """Of bytes that all mean something: those of a longdouble do not."""
    return isinstance(value, np.ndarray) and value.dtype.kind in "fiu" and value.itemsize <= 8


def _raise(error):
    raise error


def _after(op, kwargs, name, place):
    """Call the op, and then change a byte of an argument, or of the memory round it."""
    y = op(**kwargs)
    memory = kwargs[name].base if place == "beside" else kwargs[name].reshape(-1).view(np.uint8)
    np.frombuffer(memory, np.uint8)[:1] ^= 1
    return y


#: How an op may be broken -> what must be said of it.
BROKEN = {
    "another bit": (lambda op, k: op(**k) ^ 1, "differs from the oracle"),
    "another exception": (lambda op, k: 1 / 0, "raised ZeroDivisionError"),
    "an error": (lambda op, k: _raise(ValueError("no")), "refused a right call"),
    "a warning": (lambda op, k: np.float32(1e30) * np.float32(1e30), "raised RuntimeWarning"),
    "a write to an input": (lambda op, k: _after(op, k, "input", "to"), "wrote to input"),
    "a write beside": (lambda op, k: _after(op, k, "out", "beside"), "wrote to out, or beside it"),
    "not out": (lambda op, k: op(**k).copy(), "another array than `out`"),
}


@pytest.mark.parametrize("how", BROKEN)
def test_the_judge_can_complain(how, monkeypatch):
    broken, said = BROKEN[how]
    op = nq.quantize_per_tensor
    x, memory, plain = draw.placed(Unmoved(0, 0), np.arange(6, dtype=np.float32))
    out, other, _ = draw.placed(Unmoved(0, 0), np.zeros(6, np.int8))
    case = generate.Case("quantize_per_tensor")
    case.plain = {"input": plain, "scale": 1.0, "zero_point": 0, "quant_min": -128,
                  "quant_max": 127, "dtype": np.int8}  # fmt: skip
    case.kwargs = case.plain | {"input": x}
    case.memory = {"input": memory}
    if how in ("a write beside", "not out"):
        case.kwargs["out"], case.memory["out"] = out, other
    assert judge.complaint(case) is None
    monkeypatch.setattr(nq, "quantize_per_tensor", lambda **kwargs: broken(op, kwargs))
    assert said in (judge.complaint(case) or "")


class Unmoved(draw.Draw):
    """Draws nothing but what is usual."""

    def chance(self, probability):
        return probability > 0.3


def test_the_judge_asks_for_the_name(monkeypatch):
    monkeypatch.setattr(nq, "quantize_per_tensor", lambda **_: _raise(TypeError("scales: no")))
    case = generate.Case("quantize_per_tensor", wrong={"scale", "dtype"})
    assert "does not name dtype or scale" in judge.complaint(case)


def test_the_judge_asks_that_wrong_arguments_are_refused(monkeypatch):
    monkeypatch.setattr(nq, "quantize_per_tensor", lambda **kwargs: kwargs["input"])
    drawn = (generate.case(0, index) for index in range(10_000))
    wrong = next(c for c in drawn if c.name == "quantize_per_tensor" and c.wrong)
    assert "took a wrong" in judge.complaint(wrong)
