"""How much memory a call takes beside its results, and how much it may take."""

import tracemalloc

import numpy as np

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


def peak(call):
    """The most that a call had allocated at once beside its results."""
    tracemalloc.start()
    try:
        got = call()
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    return most - sum(y.nbytes for y in got)
