"""Observers of a histogram whose range doubles, so that observers of parts can be merged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np

from npquant import checks, dtypes
from npquant.cpu.histogram import (
    clip_entropy,
    clip_entropy_symmetric,
    clip_mse,
    clip_mse_symmetric,
    clip_percentile,
    clip_percentile_symmetric,
    double_range,
)
from npquant.errors import show
from npquant.layout import Granularity
from npquant.modules.module import Array, Kinds, Options, key_of
from npquant.modules.observers.base import (
    EPS,
    PER_CHANNEL,
    PER_TENSOR,
    Observer,
)
from npquant.modules.observers.bins import BinnedObserver, counted, finite_extremes

#: No bound is less than 2**this: float32 holds 1 / width for it, with the most bins.
_LEAST_EXPONENT = -100


def _power_of_two(value: Any, name: str) -> int:
    n = checks.within(value, name, 16, 2**24)
    if n & (n - 1):
        raise ValueError(f"{name} must be a power of two, got {n}")
    return n


def _percentile(value: Any, name: str) -> float:
    v = checks.finite(value, name)
    if not 50 < v <= 100:
        raise ValueError(f"{name} must be more than 50 and at most 100, got {v}")
    return v


class _CountingObserver(BinnedObserver):
    """What the observers with a doubling histogram share.

    The bins of a channel are of one width, a power of two, from -2**exponent to 2**exponent, which
    is more than any magnitude seen. When more is seen, the width doubles until it is enough, and
    each two bins become one: the counts are those that all the data would give at once. So neither
    the order of arrays nor how they were cut, nor merging, changes a bit.
    """

    _schemes = (*PER_TENSOR, *PER_CHANNEL)
    _buffers = ("eps", "histogram", "exponent", "min_val", "max_val")
    _kinds: ClassVar[Kinds] = {
        **Observer._kinds,
        "histogram": (dtypes.int64,),
        "exponent": (dtypes.int32,),
    }
    _options: ClassVar[Options] = {**Observer._options, "bins": _power_of_two}

    exponent: Array

    def __init__(
        self,
        bins: int = 4096,
        ch_axis: int | None = None,
        dtype: Any = np.uint8,
        qscheme: str | None = None,
        reduce_range: bool = False,
        quant_min: int | None = None,
        quant_max: int | None = None,
        *,
        eps: float = EPS,
    ) -> None:
        self.bins, self.ch_axis = bins, ch_axis
        if qscheme is None:
            qscheme = (PER_TENSOR if ch_axis is None else PER_CHANNEL)[0]
        super().__init__(dtype, qscheme, reduce_range, quant_min, quant_max, eps, False)

    def _check_together(self) -> None:
        super()._check_together()
        if self.ch_axis is not None:
            channels = len(self.min_val)
            if not channels == len(self.histogram) == len(self.exponent):
                for name in ("histogram", "exponent"):
                    self._check_fits(name)

    def _observe(self, granularity: Granularity, x: Array) -> None:
        self._check_together()
        least, greatest = finite_extremes(granularity, x)
        reach, histogram = self._reaching(_exponents(least, greatest))
        exponent = reach.reshape(-1)
        with np.errstate(over="ignore"):
            bound = np.ldexp(np.float32(1), exponent)
        inverse = np.ldexp(np.float32(self.bins // 2), -exponent)
        counted("count_doubling", granularity, x, inverse, bound, self._rows(histogram))
        self._keep(self._widened(least, greatest), exponent=reach, histogram=histogram)

    def _rows(self, histogram: Array) -> Array:
        """The counts, a row a channel."""
        return histogram.reshape(-1, self.bins)

    def _reaching(self, exponent: Array) -> tuple[Array, Array]:
        """New exponents, these at least, and the counts so far in such bins, in new arrays too."""
        if self._unset:
            shape = () if self.ch_axis is None else exponent.shape
            old = np.full(shape, _LEAST_EXPONENT, np.int32)
            histogram = np.zeros((*shape, self.bins), np.int64)
        else:
            old, histogram = self.exponent, self.histogram.copy()
        new = np.maximum(old.reshape(-1), exponent)
        shifts = (new - old.reshape(-1)).astype(np.int64)
        double_range(shifts, self._rows(histogram))
        return new.reshape(old.shape), histogram

    def _merge(self, other: Self) -> None:
        reach, histogram = self._reaching(other.exponent.reshape(-1))
        theirs = other.histogram.copy()
        shifts = (reach - other.exponent).astype(np.int64).reshape(-1)
        double_range(shifts, self._rows(theirs))
        histogram += theirs
        self._keep(self._merged(other), exponent=reach, histogram=histogram)

    def _range(self) -> tuple[Array, Array]:
        least, greatest = (v.copy() for v in super()._range())
        nothing = least > greatest
        least[nothing] = greatest[nothing] = 0
        width = np.ldexp(2.0 / self.bins, self.exponent.reshape(-1))
        low, high = np.empty_like(least), np.empty_like(greatest)
        affine, symmetric, option = self._method()
        (symmetric if self._symmetric else affine)(
            self._rows(self.histogram), width, least, greatest, (self.quant_min, self.quant_max),
            self._middle, option, low, high,
        )  # fmt: skip
        return low, high

    def _choose(self, least: Array, greatest: Array) -> tuple[Array, Array]:
        """In float64 where float32 does not hold the width of the range."""
        scale, zero_point = super()._choose(least, greatest)
        with np.errstate(over="ignore"):
            far = np.isinf(greatest - least)
        if far.any():
            wide = super()._choose(least.astype(np.float64), greatest.astype(np.float64))
            scale[far], zero_point[far] = (v[far] for v in wide)
        return scale, zero_point

    def _method(self) -> tuple[Any, Any, float]:
        """The kernels for the affine and the symmetric schemes, and their number."""
        raise NotImplementedError(f"{type(self).__name__} has no method")

    def _of_nothing(self) -> dict[str, Array]:
        ends = super()._of_nothing()
        shape = ends["min_val"].shape
        return {
            **ends,
            "exponent": np.full(shape, _LEAST_EXPONENT, np.int32),
            "histogram": np.zeros((*shape, self.bins), np.int64),
        }

    def _check_array(self, key: str, name: str, array: Array) -> None:
        if name == "histogram":
            rows = () if self.ch_axis is None else array.shape[:1]
            checks.of_shape(array, key, (*rows, self.bins))
        else:
            super()._check_array(key, name, array)

    def _check_state(self, prefix: str, state: Mapping[str, Array]) -> None:
        rest = dict(state)
        histogram = rest.pop("histogram")
        super()._check_state(prefix, rest)
        shape = (*state["min_val"].shape, self.bins)
        checks.of_shape(histogram, key_of(prefix, "histogram"), shape)
        self._check_counts(prefix, state)
        if not (histogram.any(axis=-1) | (state["min_val"] > state["max_val"])).all():
            raise ValueError(
                f"{key_of(prefix, 'histogram')} must have counts where something was seen"
            )
        wanted = _exponents(state["min_val"], state["max_val"])
        if not ((state["exponent"] >= wanted) & (state["exponent"] <= 128)).all():
            raise ValueError(
                f"{key_of(prefix, 'exponent')} must be at least that of the extremes "
                f"and at most 128, got {show(state['exponent'])}"
            )


def _exponents(least: Array, greatest: Array) -> Array:
    """Of the least powers of two above all magnitudes, or what stands for nothing and for zeros."""
    reach = np.maximum(-least, greatest)
    exponent = np.frexp(np.where(reach > 0, reach, np.float32(0)))[1]
    return np.maximum(np.where(reach > 0, exponent, _LEAST_EXPONENT), _LEAST_EXPONENT).astype(
        np.int32
    )


class PercentileObserver(_CountingObserver):
    """Observe a histogram, and clip the range at a percentile.

    An affine scheme covers the values from the percentile ``100 - percentile`` to `percentile`; a
    symmetric one the magnitudes up to `percentile`. Inside a bin values are taken to lie evenly. No
    range goes beyond what was seen.

    Parameters
    ----------
    percentile : float, default 99.99
        How much of the data lies below the upper end; more than 50, at most 100.
    bins : int, default 4096
        Number of bins, a power of two from 16 to 2**24. Each channel has its own, of 8 bytes each:
        4,096 channels of 4,096 bins take 128 MiB.
    ch_axis : int, optional
        Axis of the channels; a negative one counts from the end. Without it, all is one channel.
    dtype : dtype, default uint8
        Dtype of the codes: uint8, int8, uint16, int16, int32, or from ml_dtypes int4, uint4, int2,
        uint2.
    qscheme : str, optional
        "per_tensor_affine" or "per_tensor_symmetric", with `ch_axis` "per_channel_affine" or
        "per_channel_symmetric". The first of the two by default.
    reduce_range : bool, default False
        Whether to halve the bounds, rounding down: those of int8 and uint8, or the given ones.
    quant_min, quant_max : int, optional
        Least and greatest code, both or neither, within the bounds of `dtype` and with zero
        between. Without them, the bounds of `dtype`.
    eps : float, default 2**-23
        Least scale, rounded to float32.

    Attributes
    ----------
    histogram : ndarray
        Counts, int64 of shape (bins,), or (C, bins) with `ch_axis`.
    exponent : ndarray
        The bins reach from ``-2**exponent`` to ``2**exponent``; int32 of shape () or (C,).
    min_val, max_val : ndarray
        Least and greatest value seen, float32 of shape () or (C,); +inf and -inf of none.
    eps : ndarray
        Least scale, float32 of shape (1,).

    Raises
    ------
    TypeError
        If an argument is of the wrong kind or of a dtype that is not allowed.
    ValueError
        If the bounds are equal or in the wrong order, have no zero between, are beyond those of
        `dtype` or one without the other, the range is reduced where that has no meaning, `qscheme`
        is unknown here, `eps` is not positive, `bins` is no power of two within 16..2**24, or
        `percentile` is out of range. Of a call: if the array has a NaN, or other channels than
        before.

    See Also
    --------
    MSEObserver : Clip where the squared error is least.
    EntropyObserver : Clip where the fewest bits are lost.

    Notes
    -----
    PyTorch has no such observer. The method is that of Wu et al., "Integer Quantization for Deep
    Learning Inference: Principles and Empirical Evaluation", 2020, section 5.1, which has it for
    magnitudes. Infinities are left out, with a warning.

    Examples
    --------
    >>> import numpy as np
    >>> from npquant.modules import PercentileObserver
    >>> observer = PercentileObserver(99, dtype=np.int8, qscheme="per_tensor_symmetric")
    >>> x = observer(np.array([*np.linspace(-1, 1, 999), 50], np.float32))
    >>> scale, zero_point = observer.calculate_qparams()
    >>> print(f"{127.5 * scale.item():.2f}")
    0.99
    """

    _settings = (*_CountingObserver._settings, "percentile")
    _options: ClassVar[Options] = {**_CountingObserver._options, "percentile": _percentile}

    def __init__(
        self,
        percentile: float = 99.99,
        bins: int = 4096,
        ch_axis: int | None = None,
        dtype: Any = np.uint8,
        qscheme: str | None = None,
        reduce_range: bool = False,
        quant_min: int | None = None,
        quant_max: int | None = None,
        *,
        eps: float = EPS,
    ) -> None:
        self.percentile = percentile
        super().__init__(bins, ch_axis, dtype, qscheme, reduce_range, quant_min, quant_max, eps=eps)

    def _method(self) -> tuple[Any, Any, float]:
        return clip_percentile, clip_percentile_symmetric, self.percentile


class MSEObserver(_CountingObserver):
    """Observe a histogram, and clip the range where the squared error is least.

    Ranges of n / 100 of what was seen are tried, with the qparams that each would have: of both
    ends together, then, in an affine scheme, of each end alone until neither moves. Of equals the
    widest wins. The error of a bin is the integral over its width, exact for values that lie evenly
    in it: a code's error is a parabola.

    Parameters
    ----------
    bins : int, default 4096
        Number of bins, a power of two from 16 to 2**24. Each channel has its own, of 8 bytes each:
        4,096 channels of 4,096 bins take 128 MiB.
    ch_axis : int, optional
        Axis of the channels; a negative one counts from the end. Without it, all is one channel.
    dtype : dtype, default uint8
        Dtype of the codes: uint8, int8, uint16, int16, int32, or from ml_dtypes int4, uint4, int2,
        uint2.
    qscheme : str, optional
        "per_tensor_affine" or "per_tensor_symmetric", with `ch_axis` "per_channel_affine" or
        "per_channel_symmetric". The first of the two by default.
    reduce_range : bool, default False
        Whether to halve the bounds, rounding down: those of int8 and uint8, or the given ones.
    quant_min, quant_max : int, optional
        Least and greatest code, both or neither, within the bounds of `dtype` and with zero
        between. Without them, the bounds of `dtype`.
    eps : float, default 2**-23
        Least scale, rounded to float32.

    Attributes
    ----------
    histogram : ndarray
        Counts, int64 of shape (bins,), or (C, bins) with `ch_axis`.
    exponent : ndarray
        The bins reach from ``-2**exponent`` to ``2**exponent``; int32 of shape () or (C,).
    min_val, max_val : ndarray
        Least and greatest value seen, float32 of shape () or (C,); +inf and -inf of none.
    eps : ndarray
        Least scale, float32 of shape (1,).

    Raises
    ------
    TypeError
        If an argument is of the wrong kind or of a dtype that is not allowed.
    ValueError
        If the bounds are equal or in the wrong order, have no zero between, are beyond those of
        `dtype` or one without the other, the range is reduced where that has no meaning, `qscheme`
        is unknown here, `eps` is not positive, or `bins` is no power of two within 16..2**24. Of a
        call: if the array has a NaN, or other channels than before.

    See Also
    --------
    HistogramObserver : Observe a histogram, and clip it as PyTorch does.
    PercentileObserver : Clip at a percentile.

    Notes
    -----
    PyTorch has no such observer. The criterion is that of OMSE, Choukroun et al., "Low-bit
    Quantization of Neural Networks for Efficient Inference", 2019; the bins are integrated as in
    caffe2's ``norm_minimization.cc``. Infinities are left out, with a warning.

    `calculate_qparams` searches anew at each call, channel by channel, which takes seconds of
    thousands of channels: keep what it gives.

    Examples
    --------
    >>> import numpy as np
    >>> from npquant.modules import MSEObserver
    >>> observer = MSEObserver(dtype=np.int8, quant_min=-8, quant_max=7)
    >>> x = observer(np.array([*np.linspace(-1, 1, 9999), 8], np.float32))
    >>> scale, zero_point = observer.calculate_qparams()
    >>> print(f"{scale.item():.2f}")
    0.14
    """

    def _method(self) -> tuple[Any, Any, float]:
        return clip_mse, clip_mse_symmetric, float(self.eps[0])


class EntropyObserver(_CountingObserver):
    """Observe a histogram, and clip the range where the fewest bits are lost.

    A range is a number of bins of magnitudes, at least one for each code. P is the histogram with
    what lies beyond the range added to its last bin; Q is the histogram quantized: the bins of a
    code share the counts within the range evenly, those that hold something. The range of least
    KL(P || Q) is chosen, of equal sums the widest, among those that clip nothing or keep at least
    half of the values, in more than one bin. The bin next to zero counts as no more than its
    neighbour. Each sign has half of the codes, unless the scheme is affine and all values lie on
    one side of zero.

    Parameters
    ----------
    bins : int, default 4096
        Number of bins, a power of two from 16 to 2**24, and at least four times the number of
        codes: 1,024 for those of 8 bits, 2**18 for 16. Each channel has its own, of 8 bytes each:
        4,096 channels of 4,096 bins take 128 MiB.
    ch_axis : int, optional
        Axis of the channels; a negative one counts from the end. Without it, all is one channel.
    dtype : dtype, default uint8
        Dtype of the codes: uint8, int8, uint16, int16, int32 (with narrower bounds, for which there
        are bins enough), or from ml_dtypes int4, uint4, int2, uint2.
    qscheme : str, optional
        "per_tensor_affine" or "per_tensor_symmetric", with `ch_axis` "per_channel_affine" or
        "per_channel_symmetric". The first of the two by default.
    reduce_range : bool, default False
        Whether to halve the bounds, rounding down: those of int8 and uint8, or the given ones.
    quant_min, quant_max : int, optional
        Least and greatest code, both or neither, within the bounds of `dtype` and with zero
        between. Without them, the bounds of `dtype`.
    eps : float, default 2**-23
        Least scale, rounded to float32.

    Attributes
    ----------
    histogram : ndarray
        Counts, int64 of shape (bins,), or (C, bins) with `ch_axis`.
    exponent : ndarray
        The bins reach from ``-2**exponent`` to ``2**exponent``; int32 of shape () or (C,).
    min_val, max_val : ndarray
        Least and greatest value seen, float32 of shape () or (C,); +inf and -inf of none.
    eps : ndarray
        Least scale, float32 of shape (1,).

    Raises
    ------
    TypeError
        If an argument is of the wrong kind or of a dtype that is not allowed.
    ValueError
        If the bounds are equal or in the wrong order, have no zero between, are beyond those of
        `dtype` or one without the other, the range is reduced where that has no meaning, `qscheme`
        is unknown here, `eps` is not positive, or `bins` is no power of two within 16..2**24, or
        less than four times the number of codes. Of a call: if the array has a NaN, or other
        channels than before.

    See Also
    --------
    PercentileObserver : Clip at a percentile.
    MSEObserver : Clip where the squared error is least.

    Notes
    -----
    PyTorch has no such observer. The method is TensorRT's: Migacz, "8-bit Inference with TensorRT",
    GPU Technology Conference 2017, but for the condition on what is kept: a single bin loses
    nothing, and so the first one of data that lie apart from zero would be chosen. The bins are
    divided among the codes as evenly as can be. What is exactly zero, as half of a ReLU's values
    are, would be spread in Q over all bins of the first code, for which only narrow ranges make up,
    and yet no range loses anything of it: so the counts beside it say how full its bin is, as in
    NVIDIA's pytorch-quantization; `histogram` keeps what was seen. Where what lies beyond comes to
    a code that has nothing else, Q is 0 and the divergence infinite: 2**-1022 of a value stands for
    it, or a single one far out would decide the range. It needs many values, zeros not counted: of
    a few hundred, the shape of the histogram says little. Infinities are left out, with a warning.

    `calculate_qparams` searches anew at each call, channel by channel, which takes seconds of
    thousands of channels, and much longer of codes of 16 bits: keep what it gives.

    Examples
    --------
    >>> import numpy as np
    >>> from npquant.modules import EntropyObserver
    >>> observer = EntropyObserver(dtype=np.int8, qscheme="per_tensor_symmetric")
    >>> x = np.random.default_rng(0).normal(size=100_000).astype(np.float32)
    >>> x[0] = 50
    >>> scale, zero_point = observer(x) is x and observer.calculate_qparams()
    >>> bool(127.5 * scale < 6)
    True
    """

    def _check_options(self) -> None:
        super()._check_options()
        codes = self.quant_max - self.quant_min + 1
        if self.bins < 4 * codes:
            raise ValueError(f"bins must be at least four times the {codes} codes, got {self.bins}")

    def _method(self) -> tuple[Any, Any, float]:
        return clip_entropy, clip_entropy_symmetric, 0.0
