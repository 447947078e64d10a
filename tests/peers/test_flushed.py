"""Subnormal numbers are numbers, also in a thread that PyTorch has told to flush them to zero."""

import os
import platform
import subprocess
import sys

import numpy as np
import pytest
import torch

import npquant as nq
from cases import assert_same
from npquant import metrics, optim

pytestmark = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"), reason="kept on x86, see docs/robustness.md"
)

F32, F64 = np.float32, np.float64
#: Of several threads, and of one.
SIZES = 1 << 19, 100


@pytest.fixture
def flushing():
    """What sets or clears it: of NumPy's arithmetic, too."""

    def flush(on):
        assert torch.set_flush_denormal(on)
        assert (F32(1e-39) * np.ones(1, F32) == 0) == on

    yield flush
    torch.set_flush_denormal(False)


def updated(x):
    parameter = x.copy()
    optim.SGD([parameter], 0.5).step([x])
    return parameter


LEARNED = nq.fake_quantize_learnable_per_tensor_affine_backward
INT8 = -128, 127, np.int8
QPARAMS = np.array([0.1], F32), np.array([3], F32)
ONE = np.array([2e-38], F32), np.array([3], np.int32)
#: Numbers of float32 about 1e-38, the least that is normal, and how many steps of 1e-39 they are.
CODES = {n: np.resize(np.arange(-15, 16), (1, n)).astype(np.int8) for n in SIZES}
DOUBLES = {n: codes * 1e-39 for n, codes in CODES.items()}
#: What is computed of them.
STEPS = {
    "to float64": lambda x: nq.convert_element_type(x, F64),
    "to float32": lambda x: nq.convert_element_type(DOUBLES[x.size], F32),
    "quantize": lambda x: nq.quantize_per_channel(x, *ONE, 0, *INT8),
    "dequantize": lambda x: nq.dequantize_per_tensor(CODES[x.size], 1e-39, 3, *INT8),
    "fake quantize": lambda x: nq.fake_quantize_per_tensor_affine(x, 2e-38, 3, -128, 127),
    "learnable": lambda x: LEARNED(x, CODES[x.size] * F32(0.013), *QPARAMS, -128, 127, 1.0)[1],
    "step": updated,
    "distance": lambda x: np.array(metrics.mse(x, 2 * x)),
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", STEPS)
def test_subnormal_numbers_are_kept(name, size, flushing):
    step = STEPS[name]
    x = CODES[size] * F32(1e-39)
    wanted = step(x)
    assert (wanted != 0).any()
    flushing(True)
    found = step(x)
    still = F32(1e-39) * np.ones(1, F32) == 0
    flushing(False)
    assert still
    assert_same(found, wanted)


FROM_THE_START = """
import torch
assert torch.set_flush_denormal(True)
import numpy as np
import npquant as nq
bits = np.resize(np.arange(1 << 12, dtype=np.int32), 1 << 20)
y = nq.convert_element_type(bits.view(np.float32), np.float64)
# As integers, which nothing flushes: a subnormal float32 is so many times 2**-149.
found = nq.convert_element_type(nq.dequantize_per_tensor(
    bits, 2.0**-149, 0, 0, 1 << 12, np.int32, out_dtype=np.float64), np.float64)
assert (y.view(np.int64) == found.view(np.int64)).all() and len(np.unique(y)) == 1 << 12
"""


def test_threads_that_are_started_by_one_that_flushes():
    """They would do as it does; those of OpenMP are started within a kernel."""
    env = os.environ | {"NUMBA_THREADING_LAYER": "workqueue", "NUMBA_NUM_THREADS": "2"}
    done = subprocess.run(
        [sys.executable, "-c", FROM_THE_START], env=env, text=True, capture_output=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
