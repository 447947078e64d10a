"""Every 65,537th float32, and every float16, bfloat16 and code, against PyTorch, bit for bit.

`tests/exhaustive/every_float.py` is the same for every float32.
"""

import numpy as np
import pytest

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
