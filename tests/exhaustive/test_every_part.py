"""All 2**32 float32, in parts, beside PyTorch: `python -m pytest -m exhaustive --dist load`.

`NPQUANT_PARTS=16:32` takes some of the 256 parts. `every_float.py` is the same as a command, which
can be resumed, and writes what docs/exactness.md says.
"""

import os

import pytest

from exhaustive import every_float as every

FIRST, LAST = map(int, os.environ.get("NPQUANT_PARTS", f"0:{every.PARTS}").split(":"))


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(FIRST, LAST))
def test_part(part):
    every.one_thread()
    counts, found = every.a_part(part)
    assert found == []
    inputs, _, _ = map(sum, zip(*counts.values(), strict=True))
    assert inputs >= len(every.OF_FLOATS) * every.PART
