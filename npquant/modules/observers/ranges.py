"""Observers of the least and the greatest value."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from npquant import backend, checks
from npquant.arrays import copy, following, ravel
from npquant.layout import Granularity
from npquant.modules.module import Array, Options
from npquant.modules.observers.base import (
    EPS,
    FLOAT_QPARAMS,
    PER_CHANNEL,
    PER_TENSOR,
    Observer,
    extremes,
)


class MinMaxObserver(Observer):
    """Observe the least and the greatest value.

    A NaN stays until `reset_min_max_vals`. Scale and zero point are those of `determine_qparams`,
    the scale in float32; in symmetric uint16 the zero point is the middle.

    Parameters
    ----------
    dtype : dtype, default uint8
        Dtype of the codes: uint8, int8, uint16, int16, int32, or from ml_dtypes int4, uint4, int2,
        uint2, float8_e4m3fn, float8_e5m2.
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
        Kept for the caller; it changes nothing here, as in PyTorch.

    Attributes
    ----------
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
        is unknown here, or `eps` is not positive.

    See Also
    --------
    MovingAverageMinMaxObserver : Observe moving averages of the extremes.
    PerChannelMinMaxObserver : Observe the extremes of each channel.
    HistogramObserver : Observe a histogram, and clip its outliers.

    Notes
    -----
    Corresponds to ``torch.ao.quantization.MinMaxObserver`` of PyTorch 2.13. It takes the four
    floating dtypes and integers.

    Departures from PyTorch: D10, D25; see docs/departures.md.

    Examples
    --------
    >>> import numpy as np
    >>> from npquant.modules import MinMaxObserver
    >>> observer = MinMaxObserver(dtype=np.int8, qscheme="per_tensor_symmetric")
    >>> x = observer(np.array([-1.25, 0.2, 2.75], np.float32))
    >>> observer
    MinMaxObserver(min_val=-1.25, max_val=2.75)
    >>> observer.calculate_qparams()
    (array([0.02156863], dtype=float32), array([0]))
    """

    _schemes = PER_TENSOR

    def __init__(
        self,
        dtype: Any = np.uint8,
        qscheme: str = "per_tensor_affine",
        reduce_range: bool = False,
        quant_min: int | None = None,
        quant_max: int | None = None,
        *,
        eps: float = EPS,
        is_dynamic: bool = False,
    ) -> None:
        super().__init__(dtype, qscheme, reduce_range, quant_min, quant_max, eps, is_dynamic)

    def _check_dynamic(self) -> None:
        """PyTorch lets it be."""


class _MovingAverage(Observer):
    """Each array moves the extremes by a part of the way to its own."""

    _settings = (*Observer._settings, "averaging_constant")
    _options: ClassVar[Options] = {**Observer._options, "averaging_constant": checks.share}
    _unmergeable = "a moving average depends on the order in which arrays came"
    _ends_may_cross = True
    averaging_constant: float

    def _observe(self, granularity: Granularity, x: Array) -> None:
        least, greatest = extremes(granularity, x)
        if not self._unset:
            state = self.min_val, self.max_val
            low, high = (copy(ravel(following(least, v))) for v in state)
            backend.of(low).step_towards(least, greatest, self.averaging_constant, low, high)
            least, greatest = low, high
        self._keep(self._shaped(least, greatest))


class MovingAverageMinMaxObserver(_MovingAverage, MinMaxObserver):
    """Observe moving averages of the least and the greatest value.

    The first array sets them; each later one moves them by ``averaging_constant * (seen - kept)``,
    each operation rounded to float32. Scale and zero point are those of `determine_qparams`, the
    scale in float32; in symmetric uint16 the zero point is the middle.

    Parameters
    ----------
    averaging_constant : float, default 0.01
        How far each array moves the bounds, from 0 to 1, rounded to float32; PyTorch takes any.
    dtype : dtype, default uint8
        Dtype of the codes: uint8, int8, uint16, int16, int32, or from ml_dtypes int4, uint4, int2,
        uint2, float8_e4m3fn, float8_e5m2.
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
        Whether each array is to have qparams of its own, for which `averaging_constant` must be 1.

    Attributes
    ----------
    min_val, max_val : ndarray
        Moving bounds, float32 of shape (); +inf and -inf of none.
    eps : ndarray
        Least scale, float32 of shape (1,).

    Raises
    ------
    TypeError
        If an argument is of the wrong kind or of a dtype that is not allowed.
    ValueError
        If the bounds are equal or in the wrong order, have no zero between, are beyond those of
        `dtype` or one without the other, the range is reduced where that has no meaning, `qscheme`
        is unknown here, `eps` is not positive, `averaging_constant` is not within 0..1, or it is
        not 1 and `is_dynamic`.

    See Also
    --------
    MinMaxObserver : Observe the least and the greatest value.
    MovingAveragePerChannelMinMaxObserver : Observe moving averages of each channel.

    Notes
    -----
    Corresponds to ``torch.ao.quantization.MovingAverageMinMaxObserver`` of PyTorch 2.13. An
    infinity becomes a NaN with the next array, which stays.

    Departures from PyTorch: D10, D25; see docs/departures.md.

    Examples
    --------
    >>> import numpy as np
    >>> from npquant.modules import MovingAverageMinMaxObserver
    >>> observer = MovingAverageMinMaxObserver(averaging_constant=0.5)
    >>> for x in ([-1, 1], [-3, 2]):
    ...     x = observer(np.array(x, np.float32))
    >>> observer
    MovingAverageMinMaxObserver(min_val=-2.0, max_val=1.5)
    """

    def __init__(
        self,
        averaging_constant: float = 0.01,
        dtype: Any = np.uint8,
        qscheme: str = "per_tensor_affine",
        reduce_range: bool = False,
        quant_min: int | None = None,
        quant_max: int | None = None,
        eps: float = EPS,
        is_dynamic: bool = False,
    ) -> None:
        self.averaging_constant = averaging_constant
        super().__init__(
            dtype, qscheme, reduce_range, quant_min, quant_max, eps=eps, is_dynamic=is_dynamic
        )

    def _check_dynamic(self) -> None:
        if self.averaging_constant != 1:
            raise ValueError(
                f"averaging_constant must be 1 if is_dynamic, got {self.averaging_constant}"
            )


class PerChannelMinMaxObserver(Observer):
    """Observe the least and the greatest value of each channel.

    Scales and zero points are those of `determine_qparams`, scales in float32; with float qparams
    the zero points stay floats, and in symmetric uint16 they are the middle.

    Parameters
    ----------
    ch_axis : int, default 0
        Axis of the channels; a negative one counts from the end.
    dtype : dtype, default uint8
        Dtype of the codes: uint8, int8, uint16, int16, int32, or from ml_dtypes int4, uint4, int2,
        uint2, float8_e4m3fn, float8_e5m2.
    qscheme : str, default "per_channel_affine"
        "per_channel_affine", "per_channel_symmetric" or
        "per_channel_affine_float_qparams".
    reduce_range : bool, default False
        Whether to halve the bounds, rounding down: those of int8 and uint8, or the given ones.
    quant_min, quant_max : int, optional
        Least and greatest code, both or neither, within the bounds of `dtype` and with zero
        between. Without them, the bounds of `dtype`.
    eps : float, default 2**-23
        Least scale, rounded to float32.
    is_dynamic : bool, default False
        Must be False.

    Attributes
    ----------
    min_val, max_val : ndarray
        Least and greatest values seen, float32 of shape (C,); of shape (0,) before.
    eps : ndarray
        Least scale, float32 of shape (1,).

    Raises
    ------
    TypeError
        If an argument is of the wrong kind or of a dtype that is not allowed.
    ValueError
        If the bounds are equal or in the wrong order, have no zero between, are beyond those of
        `dtype` or one without the other, the range is reduced where that has no meaning, `qscheme`
        is unknown here, `eps` is not positive, or `is_dynamic`. Of a call: if the array has no such
        axis, or another number of channels than before.

    See Also
    --------
    MinMaxObserver : Observe the least and the greatest value.
    MovingAveragePerChannelMinMaxObserver : Observe moving averages of each channel.

    Notes
    -----
    Corresponds to ``torch.ao.quantization.PerChannelMinMaxObserver`` of PyTorch 2.13. It takes
    arrays with one axis, too.

    Departures from PyTorch: D10, D25; see docs/departures.md.

    Examples
    --------
    >>> import numpy as np
    >>> from npquant.modules import PerChannelMinMaxObserver
    >>> observer = PerChannelMinMaxObserver(dtype=np.int8, qscheme="per_channel_symmetric")
    >>> w = observer(np.array([[-1, 0.5], [3, 4]], np.float32))
    >>> observer.calculate_qparams()
    (array([0.00784314, 0.03137255], dtype=float32), array([0, 0]))
    """

    _schemes = (*PER_CHANNEL, FLOAT_QPARAMS)

    def __init__(
        self,
        ch_axis: int = 0,
        dtype: Any = np.uint8,
        qscheme: str = "per_channel_affine",
        reduce_range: bool = False,
        quant_min: int | None = None,
        quant_max: int | None = None,
        *,
        eps: float = EPS,
        is_dynamic: bool = False,
    ) -> None:
        self.ch_axis = checks.shaping(ch_axis, "ch_axis")
        super().__init__(dtype, qscheme, reduce_range, quant_min, quant_max, eps, is_dynamic)


class MovingAveragePerChannelMinMaxObserver(_MovingAverage, PerChannelMinMaxObserver):
    """Observe moving averages of the least and the greatest value of each channel.

    The first array sets them; each later one moves them by ``averaging_constant * (seen - kept)``,
    each operation rounded to float32. Scales and zero points are those of
    `PerChannelMinMaxObserver`.

    Parameters
    ----------
    averaging_constant : float, default 0.01
        How far each array moves the bounds, from 0 to 1, rounded to float32; PyTorch takes any.
    ch_axis : int, default 0
        Axis of the channels; a negative one counts from the end.
    dtype : dtype, default uint8
        Dtype of the codes: uint8, int8, uint16, int16, int32, or from ml_dtypes int4, uint4, int2,
        uint2, float8_e4m3fn, float8_e5m2.
    qscheme : str, default "per_channel_affine"
        "per_channel_affine", "per_channel_symmetric" or
        "per_channel_affine_float_qparams".
    reduce_range : bool, default False
        Whether to halve the bounds, rounding down: those of int8 and uint8, or the given ones.
    quant_min, quant_max : int, optional
        Least and greatest code, both or neither, within the bounds of `dtype` and with zero
        between. Without them, the bounds of `dtype`.
    eps : float, default 2**-23
        Least scale, rounded to float32.
    is_dynamic : bool, default False
        Must be False.

    Attributes
    ----------
    min_val, max_val : ndarray
        Moving bounds, float32 of shape (C,); of shape (0,) before.
    eps : ndarray
        Least scale, float32 of shape (1,).

    Raises
    ------
    TypeError
        If an argument is of the wrong kind or of a dtype that is not allowed.
    ValueError
        If the bounds are equal or in the wrong order, have no zero between, are beyond those of
        `dtype` or one without the other, the range is reduced where that has no meaning, `qscheme`
        is unknown here, `eps` is not positive, `averaging_constant` is not within 0..1, or
        `is_dynamic`. Of a call: if the array has no such axis, or another number of channels than
        before.

    See Also
    --------
    MovingAverageMinMaxObserver : Observe moving averages of the extremes.
    PerChannelMinMaxObserver : Observe the extremes of each channel.

    Notes
    -----
    Corresponds to ``torch.ao.quantization.MovingAveragePerChannelMinMaxObserver`` of PyTorch 2.13.

    Departures from PyTorch: D10, D25; see docs/departures.md.

    Examples
    --------
    >>> import numpy as np
    >>> from npquant.modules import MovingAveragePerChannelMinMaxObserver
    >>> observer = MovingAveragePerChannelMinMaxObserver(averaging_constant=0.5, ch_axis=1)
    >>> for x in ([[-1, 0], [1, 2]], [[-3, 0], [2, 4]]):
    ...     x = observer(np.array(x, np.float32))
    >>> observer
    MovingAveragePerChannelMinMaxObserver(min_val=[-2.  0.], max_val=[1.5 3. ])
    """

    def __init__(
        self,
        averaging_constant: float = 0.01,
        ch_axis: int = 0,
        dtype: Any = np.uint8,
        qscheme: str = "per_channel_affine",
        reduce_range: bool = False,
        quant_min: int | None = None,
        quant_max: int | None = None,
        eps: float = EPS,
        is_dynamic: bool = False,
    ) -> None:
        self.averaging_constant = averaging_constant
        super().__init__(
            ch_axis, dtype, qscheme, reduce_range, quant_min, quant_max,
            eps=eps, is_dynamic=is_dynamic,
        )  # fmt: skip
