"""No op makes a temporary of the size of its input, however the input lies."""

import tracemalloc
from functools import partial

import numba
import numpy as np
import pytest

from calls import CALLS, DATA, ONE_AXIS, STATE, arguments, axes, results
from npquant.cpu.walk import PIECE

#: 1 Mi elements; a row is a channel, a token and a group, so that qparams are few.
SHAPE = (1024, 1024)
LAYOUTS = {
    "contiguous": np.ascontiguousarray,
    "permuted": np.asfortranarray,
    "strided": lambda x: np.repeat(x, 2, axis=1)[:, ::2],
}

# What an op may need beside its results, in bytes:
# - packed pieces: for each of at most two inputs and two outputs a buffer of PIECE elements, and
#   the copy that NumPy makes on the way in or out; an element has at most four bytes here;
# - qparams: of each of 1024 channels, tokens or groups a scale, a zero point and two sums or
#   extremes, in at most eight bytes; NumPy computes with whole arrays of them, so that a few
#   copies are alive at once: eight are allowed;
# - Python's own objects.
BOUND = 2 * 4 * PIECE * 4 + 1024 * 4 * 8 * 8 + 2**15


@pytest.fixture(autouse=True)
def _one_thread():
    """A parallel kernel takes seconds to compile, and allocates nothing that NumPy knows of."""
    before = numba.get_num_threads()
    numba.set_num_threads(1)
    yield
    numba.set_num_threads(before)


def peak(call):
    """The most that a call had allocated at once beside its results."""
    tracemalloc.start()
    try:
        got = call()
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    return most - sum(y.nbytes for y in got)


def a_call(name, axis, lay):
    kwargs = arguments(name, SHAPE, axis)
    if kwargs.get("group_size"):
        qparams = [k for k, v in kwargs.items() if isinstance(v, np.ndarray) and k not in DATA]
        kwargs |= {key: kwargs[key][:, :1] for key in qparams} | {"group_size": SHAPE[1]}
    return {key: lay(value) if key in DATA else value for key, value in kwargs.items()}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", [name for name in CALLS if name not in ONE_AXIS])
def test_no_temporary_of_the_size_of_the_input(name, layout):
    for axis in axes(name, SHAPE):
        kwargs = a_call(name, axis, LAYOUTS[layout])
        results(name, kwargs)  # compiles
        given = sum(kwargs[key].nbytes for key in STATE) if name.startswith("fused") else 0
        assert peak(partial(results, name, kwargs)) + given <= BOUND, axis


def test_a_temporary_would_be_seen():
    """Can it fail? One bool an element is too much."""
    x = arguments("quantize_per_tensor", SHAPE)["input"]
    assert peak(lambda: [(x > -1) & (x < 1)]) > BOUND
    assert peak(lambda: [x > -1]) <= BOUND
