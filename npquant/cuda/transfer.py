"""Between the host and the device, for those who have no other library to do it."""

from __future__ import annotations

from typing import Any

import numpy as np

from npquant.cuda import target
from npquant.cuda.arrays import OWN, device
from npquant.cuda.walk import packed
from npquant.dtypes import BOUNDS, REALS, bool_, native_order, refuse_others
from npquant.owners import named, of_numpy, on_device

#: What can be brought to a GPU: what ops take and give, masks too.
_KNOWN = REALS | BOUNDS.keys() | {bool_}


def to_device(array: np.ndarray[Any, Any]) -> Any:
    """Copy an array to the current GPU.

    Parameters
    ----------
    array : ndarray
        Array of any shape and of any dtype of npquant.

    Returns
    -------
    device array
        Numba's device array, of the same shape and dtype, in C order.

    Raises
    ------
    TypeError
        If `array` is no NumPy array, or of a dtype that npquant does not know.

    See Also
    --------
    to_host : Copy an array from a GPU.

    Notes
    -----
    The copy is complete when the function returns.
    """
    x = of_numpy(array)
    if x is None:
        raise TypeError(f"array must be a NumPy array, got {named(array)}")
    native = native_order(x.dtype)
    refuse_others(native, "array", _KNOWN)
    return OWN.upload(None, x.astype(native, copy=False))


def to_host(array: Any) -> np.ndarray[Any, Any]:
    """Copy an array from a GPU, of any library that npquant takes arrays from.

    Parameters
    ----------
    array : device array
        Array of any shape.

    Returns
    -------
    ndarray
        NumPy array of the same shape and dtype.

    Raises
    ------
    TypeError
        If `array` is no array on a GPU.

    See Also
    --------
    to_device : Copy an array to a GPU.

    Notes
    -----
    Waits for what the array's stream has still to do.
    """
    if not on_device(array):
        raise TypeError(f"array must be an array on a GPU, got {type(array).__name__}")
    x = packed(device(array))
    y = np.empty(x.shape, x.dtype)
    if not x.size:
        return y
    if target.SIMULATED:
        y.reshape(-1)[...] = x.argument()
    else:
        target.make_ready()
        stream = x.stream()
        target.drive(target.driver.cuMemcpyDtoHAsync, y.ctypes.data, x.pointer, y.nbytes, stream)
        target.drive(target.driver.cuStreamSynchronize, stream)
    return y
