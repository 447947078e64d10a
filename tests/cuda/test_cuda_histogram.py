"""Counts on the simulated device: the bits of the CPU's."""

import ml_dtypes
import numpy as np
import pytest
from numba import config

if not config.ENABLE_CUDASIM:
    pytest.skip("needs the simulator: NUMBA_ENABLE_CUDASIM=1", allow_module_level=True)

from npquant import cpu, layout
from npquant.cuda import histogram as on_gpu
from twins import both

FLOATS = (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)


def data(shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


#: Shapes, axes of the channels (None: one channel) and bins: parts, runs that are cut, channels
#: side by side, fewer elements than bins, and more bins than a block has room for.
COUNTS = {
    "parts": ((9001,), None, 64),
    "few": ((40,), None, 64),
    "many bins": ((300,), None, 2 * on_gpu.ROOM),
    "channels": ((3, 2, 70), 1, 16),
    "odd channels": ((3, 2, 69), 1, 16),
    "rows": ((3, 200), 0, 32),
    "last": ((70, 3), 1, 16),
}


@pytest.mark.parametrize(
    "dtype", [pytest.param(d, marks=() if d is np.float32 else pytest.mark.full) for d in FLOATS]
)
@pytest.mark.parametrize("where", COUNTS)
@pytest.mark.parametrize("name", ["count_linear", "count_doubling"])
def test_counts(name, where, dtype):
    shape, axis, bins = COUNTS[where]
    if axis is None:
        granularity = layout.whole(int(np.prod(shape)))
    else:
        granularity = layout.per_channel(shape, axis)
    x = data(shape, dtype)
    x.reshape(-1)[:4] = np.nan, np.inf, -np.inf, 0
    n, kind = granularity.channels, np.float64 if dtype == np.float64 else np.float32
    if name == "count_linear":
        ends = -np.linspace(0.5, 2, n, dtype=kind), np.linspace(1, 3, n, dtype=kind)
    else:
        bound = np.ldexp(np.float32(1), np.arange(n, dtype=np.int32))
        ends = np.float32(bins // 2) / bound, bound
    before = np.random.default_rng(1).integers(0, 9, (n, bins))
    both(getattr(cpu, name), getattr(on_gpu, name), granularity, x, *ends, before)


@pytest.mark.parametrize("value", [0.0, 3.0, -3.0, 2.0**24, -(2.0**24), 2.0**60, -1e-40, 3.4e38])
def test_counts_of_one_value(value):
    """Where the bounds are moved apart, by one or to the next numbers."""
    x = np.array([value, -value, value + 1], np.float32)
    ends = [np.array([value], np.float32)] * 2
    counts = np.zeros((1, 16), np.int64)
    both(cpu.count_linear, on_gpu.count_linear, layout.whole(3), x, *ends, counts)
