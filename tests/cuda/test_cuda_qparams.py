"""Qparams that are chosen and moved on the simulated device: the bits of the CPU's."""

import ml_dtypes
import numpy as np
import pytest
from numba import config

if not config.ENABLE_CUDASIM:
    pytest.skip("needs the simulator: NUMBA_ENABLE_CUDASIM=1", allow_module_level=True)

from npquant.cpu import qparams as on_cpu
from npquant.cuda import qparams
from npquant.cuda.target import THREADS
from twins import both

#: Ranges of all kinds, more than a block takes.
ENDS = np.array([0.0, -0.0, 1.0, -1.0, 3e-40, -3e-40, 5.5, 1e30, -1e30, np.inf, -np.inf, np.nan])
LEAST, GREATEST = (a.reshape(-1) for a in np.meshgrid(ENDS, ENDS))
CHOICES = [name for name, value in vars(on_cpu).items() if isinstance(value, on_cpu.Choose)]


@pytest.mark.parametrize("name", CHOICES)
def test_choices(name):
    dtypes = [np.float32] if "fbgemm" in name else [np.float32, np.float64, ml_dtypes.bfloat16]
    for dtype in dtypes:
        with np.errstate(over="ignore"):
            ends = LEAST.astype(dtype), GREATEST.astype(dtype)
        kind = np.float32 if "float" in name else np.int64
        outputs = np.zeros(LEAST.size, np.float32), np.zeros(LEAST.size, kind)
        assert LEAST.size > THREADS
        for bounds, middle in (((-128, 127), 0), ((0, 255), 128)):
            given = *ends, bounds, 2.0**-23, middle, "float32", *outputs
            both(getattr(on_cpu, name), getattr(qparams, name), *given)


@pytest.mark.parametrize("name", ["move", "step_towards"])
def test_moves(name):
    ends = LEAST.astype(np.float32), GREATEST.astype(np.float32)
    moved = [e[::-1].copy() for e in ends]
    both(getattr(on_cpu, name), getattr(qparams, name), *ends, 0.01, *moved)
