"""PyTorch's histogram, whose bins are spread anew when the range grows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

import numpy as np

from npquant import checks, dtypes
from npquant.cpu.histogram import clip_linear, respread
from npquant.errors import show
from npquant.layout import Granularity, whole
from npquant.modules.module import Array, Kinds, Options, key_of
from npquant.modules.observers.base import (
    EPS,
    FLOAT,
    PER_TENSOR,
    Observer,
)
from npquant.modules.observers.bins import BinnedObserver, counted, finite_extremes


class HistogramObserver(BinnedObserver):
    """Observe a histogram, and clip the range to where the squared error is least.

    The bins divide the range from the least to the greatest value seen. When an array widens it,
    each bin is divided into `upsample_rate` parts that go to the new bins in which their middles
    lie. The search drops bins from one end or the other, by quantiles in steps of 1e-5, as long as
    the squared error of the codes, estimated for uniformly filled bins, does not grow.

    Parameters
    ----------
    bins : int, default 2048
        Number of bins, from 1 to 2**24.
    dtype : dtype, default uint8
        Dtype of the codes: uint8, int8, uint16, int16, int32, or from ml_dtypes int4, uint4, int2,
        uint2.
    qscheme : str, default "per_tensor_affine"
        "per_tensor_affine" or "per_tensor_symmetric".
    reduce_range : bool, default False
        Whether to halve the bounds, rounding down: those of int8 and uint8, or the given ones.
    quant_min, quant_max : int, optional
        Least and greatest code, both or neither, within the bounds of `dtype` and with zero
        between. Without them, the bounds of `dtype`.
    eps : float, default 2**-23
        Least scale, rounded to float32.
    is_dynamic : bool, default False
        Must be False.
    upsample_rate : int, default 16
        Number of parts of a bin, from 1 to 2**12.

    Attributes
    ----------
    histogram : ndarray
        Counts, float32 of shape (bins,); fractions once the range was widened.
    min_val, max_val : ndarray
        Least and greatest value seen, float32 of shape (); +inf and -inf of none.
    eps : ndarray
        Least scale, float32 of shape (1,).

    Raises
    ------
    TypeError
        If an argument is of the wrong kind or of a dtype that is not allowed.
    ValueError
        If the bounds are equal or in the wrong order, have no zero between, are beyond those of
        `dtype` or one without the other, the range is reduced where that has no meaning, `qscheme`
        is unknown here, `eps` is not positive, `bins` or `upsample_rate` is out of range, or
        `is_dynamic`. Of a call: if the array has a NaN, or a range that is no float32; then nothing
        has changed.

    See Also
    --------
    MSEObserver : Clip where the squared error is least, whatever the order of the arrays.
    MinMaxObserver : Observe the least and the greatest value.

    Notes
    -----
    Corresponds to ``torch.ao.quantization.HistogramObserver`` of PyTorch 2.13; the search is that
    of caffe2's ``norm_minimization.cc``. It estimates with all codes of `dtype`, whatever the
    bounds. Infinities are left out, with a warning. What is not float32 is rounded to it before it
    is counted, and the counts of an array are exact.

    Departures from PyTorch: D10, D25, D26; see docs/departures.md.

    Examples
    --------
    >>> import numpy as np
    >>> from npquant.modules import HistogramObserver
    >>> observer = HistogramObserver(dtype=np.int8)
    >>> x = observer(np.random.default_rng(0).normal(size=10**6).astype(np.float32))
    >>> observer.min_val, observer.max_val
    (array(-4.6798377, dtype=float32), array(4.731958, dtype=float32))
    >>> observer.calculate_qparams()
    (array([0.03087164], dtype=float32), array([-1], dtype=int32))
    """

    _schemes = PER_TENSOR
    _buffers = ("eps", "histogram", "min_val", "max_val")
    _kinds: ClassVar[Kinds] = dict.fromkeys(_buffers, (FLOAT,))
    _options: ClassVar[Options] = {
        **Observer._options,
        "bins": partial(checks.within, least=1, greatest=2**24),
        "upsample_rate": partial(checks.within, least=1, greatest=2**12),
    }
    _unmergeable = (
        "its bins are spread over others whenever the range grows, so they depend on the order in "
        "which arrays came; an MSEObserver can be"
    )

    def __init__(
        self,
        bins: int = 2048,
        dtype: Any = np.uint8,
        qscheme: str = "per_tensor_affine",
        reduce_range: bool = False,
        quant_min: int | None = None,
        quant_max: int | None = None,
        *,
        eps: float = EPS,
        is_dynamic: bool = False,
        upsample_rate: int = 16,
    ) -> None:
        self.bins, self.upsample_rate = bins, upsample_rate
        super().__init__(dtype, qscheme, reduce_range, quant_min, quant_max, eps, is_dynamic)

    def _observe(self, granularity: Granularity, x: Array) -> None:
        self._check_together()
        low, high = finite_extremes(granularity, x)
        if low[0] > high[0]:  # nothing is finite
            return
        first = self._unset
        if not first:
            low, high = np.minimum(low, self.min_val), np.maximum(high, self.max_val)
        with np.errstate(over="ignore"):
            width = (high - low)[0]
        if not np.isfinite(width):
            raise ValueError(f"x must have a range that is a float32, got {low[0]} to {high[0]}")
        histogram = self._counted(granularity, x, low, high)
        if not first:
            same = low[0] == self.min_val and high[0] == self.max_val
            histogram += self.histogram if same else self._respread(low, high)
        self._keep(self._shaped(low, high), histogram=histogram)

    def _counted(self, granularity: Granularity, x: Array, low: Array, high: Array) -> Array:
        """The histogram of `x`, in float64 where float32 overflows on the way."""
        with np.errstate(over="ignore"):
            fits = np.isfinite((high - low) * np.float32(self.bins)).all()
        kind = np.float32 if fits else np.float64
        counts = np.zeros((1, self.bins), np.int64)
        counted("count_linear", granularity, x, low.astype(kind), high.astype(kind), counts)
        histogram: Array = counts[0].astype(FLOAT)
        return histogram

    def _respread(self, low: Array, high: Array) -> Array:
        """The histogram so far over a wider range."""
        if self.min_val == self.max_val:
            one = self._counted(whole(1), self.min_val.reshape(1), low, high)
            new: Array = one * self.histogram.sum()
            return new
        new = np.zeros(self.bins, FLOAT)
        respread(
            self.histogram, float(self.min_val), float(self.max_val), float(low[0]), float(high[0]),
            self.upsample_rate, new,
        )  # fmt: skip
        return new

    def _range(self) -> tuple[Array, Array]:
        bounds = np.empty(2, FLOAT)
        ends = float(self.min_val), float(self.max_val)
        lo, hi = dtypes.BOUNDS[self.dtype]
        clip_linear(self.histogram, *ends, hi - lo + 1, bounds)
        return bounds[:1], bounds[1:]

    def _of_nothing(self) -> dict[str, Array]:
        return {**super()._of_nothing(), "histogram": np.zeros(self.bins, FLOAT)}

    def _check_array(self, key: str, name: str, array: Array) -> None:
        if name == "histogram":
            checks.of_shape(array, key, (self.bins,))
        else:
            super()._check_array(key, name, array)

    def _check_state(self, prefix: str, state: Mapping[str, Array]) -> None:
        super()._check_state(prefix, {k: v for k, v in state.items() if k != "histogram"})
        self._check_counts(prefix, state)
        with np.errstate(over="ignore"):
            width = state["max_val"] - state["min_val"]
        if width == math.inf:
            raise ValueError(
                f"{key_of(prefix, 'max_val')} less min_val must be a float32, got "
                f"{show(state['min_val'])} to {show(state['max_val'])}"
            )
