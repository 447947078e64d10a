"""Tensors of PyTorch from arrays, and back: the same bits, also of dtypes that NumPy lacks."""

import ml_dtypes
import numpy as np
import torch

TORCH_DTYPE = {
    np.dtype(numpy_dtype): torch_dtype
    for numpy_dtype, torch_dtype in (
        (np.bool_, torch.bool),
        (np.int8, torch.int8),
        (np.uint8, torch.uint8),
        (np.int16, torch.int16),
        (np.uint16, torch.uint16),
        (np.int32, torch.int32),
        (np.int64, torch.int64),
        (np.float16, torch.float16),
        (ml_dtypes.bfloat16, torch.bfloat16),
        (np.float32, torch.float32),
        (np.float64, torch.float64),
        (ml_dtypes.float8_e4m3fn, torch.float8_e4m3fn),
        (ml_dtypes.float8_e5m2, torch.float8_e5m2),
    )
}
NUMPY_DTYPE = {value: key for key, value in TORCH_DTYPE.items()}
SIGNED = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def to_torch(value):
    """Turn arrays into tensors and dtypes into dtypes; copy."""
    if isinstance(value, np.ndarray | np.generic):
        array = np.array(value)  # keeps no reference; from_numpy needs a writable array
        signed = torch.from_numpy(array.view(f"i{array.itemsize}"))
        return signed.view(TORCH_DTYPE[array.dtype])
    if isinstance(value, np.dtype | type):
        return TORCH_DTYPE[np.dtype(value)]
    return value


def to_numpy(value):
    """Turn tensors, or a tuple of them, into arrays."""
    if isinstance(value, tuple):
        return tuple(to_numpy(one) for one in value)
    signed = value.detach().contiguous().view(SIGNED[value.element_size()]).numpy()
    return signed.view(NUMPY_DTYPE[value.dtype])
