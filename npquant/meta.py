"""Shape inference: `ArraySpec` in, `ArraySpec` out, by the code that runs on real arrays.

The ops check, lay out and allocate as ever; only the allocation gives specs and the kernels do
nothing. So what is inferred is what the real call returns, and wrong arguments are the same errors.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from npquant.dtypes import canonical
from npquant.errors import show

_SEQUENCES = Sequence, np.ndarray
_BYTES = str, bytes, bytearray, memoryview


class ArraySpec:
    """Describe an array by its shape and dtype, without its data.

    Given in place of an array to any op, it makes the op return specs of what the real call would
    return, with the same errors for wrong arguments. Beside a spec, qparams may be real arrays, and
    then their values are checked too; what only data can tell is not. Specs are equal if shape and
    dtype are, and hashable.

    Parameters
    ----------
    shape : tuple of int
        Lengths of the axes, none of them negative.
    dtype : dtype
        Dtype of the elements, or what NumPy takes for one.

    Attributes
    ----------
    shape : tuple of int
        Lengths of the axes.
    dtype : numpy.dtype
        Dtype of the elements, in native byte order.
    ndim : int
        Number of axes.
    size : int
        Number of elements.

    Raises
    ------
    TypeError
        If `shape` is no sequence of integers, or `dtype` no dtype.
    ValueError
        If a length is negative.

    See Also
    --------
    quantize_per_tensor : Quantize with one scale and one zero point.

    Notes
    -----
    PyTorch has no such class, but tensors on the device ``meta``; for these many of the ops have no
    kernel, or one that differs from the real one (departure D11; see docs/departures.md). Here the
    op itself runs, and only its kernel is left out.

    Examples
    --------
    >>> import numpy as np
    >>> import npquant as nq
    >>> x = nq.ArraySpec((8, 3), np.float32)
    >>> nq.quantize_per_tensor(x, 0.1, 0, -128, 127, np.int8)
    ArraySpec((8, 3), int8)
    >>> nq.quantize_per_tensor(x, -0.1, 0, -128, 127, np.int8)
    Traceback (most recent call last):
        ...
    ValueError: scale must be positive and finite, got -0.1
    """

    __slots__ = ("_dtype", "_shape")

    def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
        try:
            if not isinstance(shape, _SEQUENCES) or isinstance(shape, _BYTES):
                raise TypeError  # of numbers too, but not of lengths in an order
            self._shape = tuple([int(operator.index(n)) for n in shape])
        except TypeError:
            raise TypeError(f"shape must be a tuple of integers, got {show(shape)}") from None
        if any(n < 0 for n in self._shape):
            raise ValueError(f"shape must not have negative lengths, got {self._shape}")
        self._dtype = canonical(dtype, "dtype")

    @property
    def shape(self) -> tuple[int, ...]:
        """The lengths of the axes."""
        return self._shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the elements."""
        return self._dtype

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._shape, self._dtype)  # which every protocol of pickle can take

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ArraySpec):
            return NotImplemented
        return self.shape == other.shape and self.dtype == other.dtype

    def __hash__(self) -> int:
        return hash((self.shape, self.dtype))

    def __repr__(self) -> str:
        return f"ArraySpec({self.shape}, {self.dtype})"
