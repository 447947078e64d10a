"""Which backend an array belongs to.

Every backend has the names of `npquant.cpu`, with the same signatures, and CUDA's has `inverse`
besides, and its short ways. (Searches of histograms and sums of metrics are NumPy's alone, and are
imported from their files.) Kernels trust their arguments: the ops have checked, laid out and
allocated before.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from npquant import cpu
from npquant.meta import ArraySpec


def _nothing(*args: Any, **kwargs: Any) -> tuple[None, None]:
    """What a kernel does to specs."""
    return None, None


#: Shapes and dtypes only: the ops have made the specs they return, and there is nothing to compute.
meta: Any = SimpleNamespace(**dict.fromkeys(cpu.__all__, _nothing))


def of(x: Any) -> Any:
    """The backend of an array that was checked."""
    return of_kind(type(x))


def of_kind(kind: type) -> Any:
    """The backend of the arrays of a type."""
    if kind is np.ndarray:
        return cpu
    if kind is ArraySpec:
        return meta
    from npquant import cuda  # when the first array on a GPU is met

    return cuda
