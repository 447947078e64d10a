"""Arrays of the simulator, and kernels of both backends on the same data."""

import numpy as np
from numba import cuda

from cases import assert_same
from npquant.cuda.arrays import DeviceArray


def upload(x):
    """`x` on the simulated device, lying as it does."""
    low, high = np.lib.array_utils.byte_bounds(x)
    room = np.empty(high - low + 32, np.uint8)
    start = (low - room.ctypes.data) % 16
    copy = np.ndarray(x.shape, x.dtype, room, start + x.ctypes.data - low, x.strides)
    copy[...] = x
    return cuda.cudadrv.devicearray.FakeCUDAArray(copy)


def download(a):
    a = a.owner if isinstance(a, DeviceArray) else a
    return a._ary


def both(cpu, twin, inputs, outputs, call):
    """Both kernels on `inputs` and copies of `outputs`; results and outputs must be the same.

    ``call(kernel, inputs, outputs)`` calls one of them.
    """
    mine = [y.copy(order="K") for y in outputs]
    expected = call(cpu, inputs, mine)
    theirs = [upload(y) for y in outputs]
    got = call(twin, [upload(x) for x in inputs], theirs)
    for y, other in zip(theirs, mine, strict=True):
        assert_same(download(y), other)
    if expected is not None:
        pairs = (
            zip(got, expected, strict=True) if isinstance(expected, tuple) else [(got, expected)]
        )
        for one, other in pairs:
            assert_same(download(one), np.asarray(other))
    return expected
