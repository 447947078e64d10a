"""Every 65,537th float32, and every float16, bfloat16 and code, against PyTorch, bit for bit.

`tests/exhaustive/every_float.py` is the same for every float32.
"""

import shutil
from pathlib import Path

import numpy as np
import pytest

import npquant as nq
from exhaustive import every_float as every

#: Prime, so that every exponent meets many different low bits.
STEP = 65_537


@pytest.mark.parametrize("case", every.OF_FLOATS, ids=lambda case: case.name)
def test_floats(case):
    x = every.floats(0, 1 << 32, STEP)
    wrong, compared, first = case.differing(x)
    assert (wrong, first) == (0, "")
    assert compared > x.size // 5


@pytest.mark.parametrize("dtype", every.HALVES, ids=str)
@pytest.mark.parametrize("case", every.OF_HALVES, ids=lambda case: case.name)
def test_halves(dtype, case):
    wrong, compared, first = case.differing(every.halves(dtype))
    assert (wrong, first) == (0, "")
    assert compared > 0.9 * (1 << 16)


@pytest.mark.parametrize(("target", "case"), every.OF_CODES, ids=lambda v: getattr(v, "name", v))
def test_codes(target, case):
    q = every.codes(target)
    assert case.differing(q) == (0, q.size, "")


def test_a_wrong_bit_is_found():
    case = every.fake_quantize("int8", 0.1, 3)
    wrong = every.Case("", lambda x: case.ours(np.nextafter(x, np.float32(0))), case.theirs)
    assert wrong.differing(np.float32([0.05, 0.15])) == (1, 2, "0x3e19999a")


def test_every_kind_of_qparams_meets_every_op():
    for op in (every.quantize, every.fake_quantize, every.gradients):
        for target in ("int8", "uint8"):
            lo, hi = every.BOUNDS[target]
            made = [every.cases(op, targets=(target,)), list(every.qparams(target))]
            assert len(made[0]) == len(made[1]) == len(every.SCALES)
            assert {z for _, z in made[1]} == {0, 3, lo, hi} | ({-5} if lo else set())


def test_a_run_is_resumed_and_reported(tmp_path, monkeypatch, capsys):
    """A part after another, with a fault in the second: none is done again, nothing is lost."""
    right = every.fake_quantize("int8", 0.1, 3)
    nothing = np.float32(0.3)

    def ours(x):
        y, mask = right.ours(x)
        return y, mask & (x != nothing)

    monkeypatch.setattr(every, "OF_FLOATS", [every.Case(right.name, ours, right.theirs)])
    monkeypatch.setattr(every, "CHUNK", every.PART >> 2)
    state, document = tmp_path / "state", tmp_path / "report.md"
    document.write_text(f"before {every.BEGIN}\n\nold\n\n{every.END} after")
    command = ["--jobs", "1", "--state", str(state), "--report", str(document), "--first"]
    part = int(nothing.view(np.uint32)) // every.PART
    assert every.main([*command, f"{part - 1}", "--last", f"{part}"]) == 0
    assert every.main([*command, f"{part - 1}", "--last", f"{part + 1}"]) == 1
    text = document.read_text()
    assert text.startswith(f"before {every.BEGIN}\n\n| op | codes |")
    assert text.endswith(f"\n\n{every.END} after")
    assert f" | int8 | 1 | {2 * every.PART:,} | {2 * every.PART:,} | 1 |\n" in text
    assert "\n* int8: (0.1, 3)\n" in text
    assert "old" not in text
    printed = capsys.readouterr().out
    assert f"1 of float32 differ, the first is {int(nothing.view(np.uint32)):#x}" in printed
    monkeypatch.setattr(every, "a_part", pytest.fail)
    assert every.main([*command, f"{part - 1}", "--last", f"{part + 1}"]) == 1
    with pytest.raises(SystemExit):
        every.main([*command, "0", "--only", "other"])
    assert "is of another run" in capsys.readouterr().err
    monkeypatch.setattr(every, "sources", lambda: "edited")
    with pytest.raises(SystemExit):
        every.main([*command, f"{part - 1}", "--last", f"{part + 1}"])
    assert "is of another run" in capsys.readouterr().err


def test_sources_are_those_of_every_folder(tmp_path, monkeypatch):
    package = Path(nq.__file__).parent
    copy = shutil.copytree(package, tmp_path / "npquant", ignore=shutil.ignore_patterns("*.pyc"))
    monkeypatch.setattr(nq, "__file__", str(copy / "__init__.py"))
    before = every.sources()
    edited = copy / "formulas" / "quantize.py"
    edited.write_text(edited.read_text() + "\n")
    assert every.sources() != before
