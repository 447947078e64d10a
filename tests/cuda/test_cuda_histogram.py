"""Counts, and ranges that are found in them, on the simulated device: the bits of the CPU's."""

import ml_dtypes
import numpy as np
import pytest
from numba import config

if not config.ENABLE_CUDASIM:
    pytest.skip("needs the simulator: NUMBA_ENABLE_CUDASIM=1", allow_module_level=True)

from simulated import both

from npquant import cpu, layout
from npquant.cuda import histogram as twins

FLOATS = (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)


def data(shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


#: Shapes, axes of the channels (None: one channel) and bins: parts, runs that are cut, channels
#: side by side, fewer elements than bins, and more bins than a block has room for.
COUNTS = {
    "parts": ((9001,), None, 64),
    "few": ((40,), None, 64),
    "many bins": ((300,), None, 2 * twins.ROOM),
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
        granularity = layout.Granularity(1, int(np.prod(shape)), None)
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
    call = lambda kernel, inputs, outputs: kernel(granularity, *inputs, *outputs)
    both(getattr(cpu, name), getattr(twins, name), [x, *ends], [before], call)


@pytest.mark.parametrize("value", [0.0, 3.0, -3.0, 2.0**24, -(2.0**24), 2.0**60, -1e-40, 3.4e38])
def test_counts_of_one_value(value):
    """Where the bounds are moved apart, by one or to the next numbers."""
    x = np.array([value, -value, value + 1], np.float32)
    ends = [np.array([value], np.float32)] * 2
    call = lambda kernel, inputs, outputs: kernel(layout.Granularity(1, 3, None), *inputs, *outputs)
    both(cpu.count_linear, twins.count_linear, [x, *ends], [np.zeros((1, 16), np.int64)], call)


def test_next_above():
    """Against NumPy's, in both types."""
    from npquant.formulas.histogram import next_above

    for kind in (np.float32, np.float64):
        ends = np.finfo(kind)
        for v in (1, 2**24, 0.1, ends.max, ends.tiny, ends.smallest_subnormal):
            for u in (kind(v), -kind(v)):
                with np.errstate(over="ignore"):
                    assert next_above(u) == np.nextafter(u, kind(np.inf))


@pytest.mark.parametrize("shifts", [[0, 1, 2], [3, 0, 40]])
def test_doubling(shifts):
    counts = np.random.default_rng(0).integers(0, 100, (3, 32))
    call = lambda kernel, inputs, outputs: kernel(*inputs, *outputs)
    both(cpu.double_range, twins.double_range, [np.array(shifts)], [counts], call)


@pytest.mark.parametrize(
    "ends", [(-1.0, 2.0, -1.5, 2.0), (0.1, 0.2, -3.0, 7.7), (0.0, 1e-44, 0.0, 3e-44)]
)
def test_respread(ends):
    old = data(33) ** 2
    call = lambda kernel, inputs, outputs: kernel(*inputs, *ends, 5, *outputs)
    both(cpu.respread, twins.respread, [old], [np.zeros(33, np.float32)], call)


@pytest.mark.parametrize("bins", [3, 61, 200])
@pytest.mark.parametrize("codes", [4, 256])
def test_linear_clip(bins, codes):
    counts = (np.exp(-(np.linspace(-4, 5, bins) ** 2)) * 1e5).astype(np.int64).astype(np.float32)
    call = lambda kernel, inputs, outputs: kernel(*inputs, -4.0, 5.0, codes, *outputs)
    both(cpu.clip_linear, twins.clip_linear, [counts], [np.zeros(2, np.float32)], call)


@pytest.mark.parametrize("bits", [1, pytest.param(4, marks=pytest.mark.full)])
@pytest.mark.parametrize(
    "name", [f"clip_{n}{s}" for n in ("percentile", "mse", "entropy") for s in ("", "_symmetric")]
)
def test_clips(name, bits):
    bins = 16 if "mse" in name else 64
    # Both sides of zero, one, and a single value; of the longest search one channel is enough.
    x = [data(2000), np.abs(data(2000)), -np.abs(data(2000)), np.full(5, 0.7, np.float32)]
    x = x[:1] if "mse" in name else x
    least, greatest = (np.array([f(v) for v in x], np.float32) for f in (np.min, np.max))
    counts = np.stack([np.histogram(v, bins, (-4, 4))[0] for v in x]).astype(np.int64)
    width = np.full(len(x), 8 / bins)
    bounds, option = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1), 99.0 if "perc" in name else 1e-7
    outputs = np.zeros(len(x), np.float32), np.zeros(len(x), np.float32)

    def call(kernel, inputs, outputs):
        kernel(*inputs, bounds, 0, option, *outputs)

    inputs = counts, width, least, greatest
    both(getattr(cpu, name), getattr(twins, name), inputs, outputs, call)
