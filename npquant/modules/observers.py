"""Observers: they watch arrays pass, and choose qparams from what they saw.

An observer keeps statistics in float32 and returns its input untouched. Those with PyTorch's names
have its bits; the percentile, squared-error and entropy observers count values in a histogram that
does not depend on the order in which the values came, so that observers of parts can be merged.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

import numpy as np

from npquant import backend, checks, dtypes, layout
from npquant.arithmetic import (
    astype,
    beside,
    copy,
    empty,
    flat,
    kind,
    maximum,
    minimum,
    reshape,
    without_negative_zero,
)
from npquant.errors import show
from npquant.layout import Granularity
from npquant.meta import ArraySpec
from npquant.modules.module import Array, Module, check_shape

PER_TENSOR = ("per_tensor_affine", "per_tensor_symmetric")
PER_CHANNEL = ("per_channel_affine", "per_channel_symmetric")
FLOAT_QPARAMS = "per_channel_affine_float_qparams"

#: float32's machine epsilon, the least scale unless another is given.
EPS = 2.0**-23

_FLOAT, _EIGHT_BITS = dtypes.float32, (np.dtype(np.int8), np.dtype(np.uint8))


class Observer(Module):
    """What all observers share: the bounds of the codes, and qparams from a range.

    A subclass lists the schemes it knows in `_schemes` and keeps `min_val` and `max_val`: of shape
    () if `ch_axis` is None, else of one a channel, and of shape (0,) before it has seen any. What
    it does with data is `_observe`; the range that qparams cover is `_range`.

    Parameters
    ----------
    dtype : dtype
        Dtype of the codes.
    qscheme : str
        How qparams follow from the range.
    reduce_range : bool
        Whether to halve the bounds.
    quant_min, quant_max : int or None
        Least and greatest code; None for those of `dtype`.
    eps : float
        Least scale.
    is_dynamic : bool
        Whether each array is to have qparams of its own.
    """

    _schemes: ClassVar[tuple[str, ...]] = ()
    _settings: ClassVar[tuple[str, ...]] = (
        "dtype", "qscheme", "quant_min", "quant_max", "reduce_range", "ch_axis",
    )  # fmt: skip
    _buffers: ClassVar[tuple[str, ...]] = ("eps", "min_val", "max_val")

    #: Why observers of a class cannot be merged, if they cannot.
    _unmergeable: ClassVar[str] = ""

    ch_axis: int | None = None
    eps: Array
    min_val: Array
    max_val: Array

    def __init__(
        self, dtype: Any, qscheme: str, reduce_range: bool, quant_min: Any, quant_max: Any,
        eps: float, is_dynamic: bool,
    ) -> None:  # fmt: skip
        self.dtype = dtypes.target(dtype)
        self.qscheme = checks.option(qscheme, "qscheme", self._schemes)
        self.reduce_range = checks.switch(reduce_range, "reduce_range")
        self.has_customized_qrange = quant_min is not None or quant_max is not None
        self.quant_min, self.quant_max = self._bounds(quant_min, quant_max)
        self.is_dynamic = checks.switch(is_dynamic, "is_dynamic")
        if self.is_dynamic:
            self._check_dynamic()
        self.eps = np.array([checks.scale_float32(eps, "eps")], _FLOAT)
        self.reset_min_max_vals()

    def _bounds(self, quant_min: Any, quant_max: Any) -> tuple[int, int]:
        """The bounds of the codes, with zero between and more than one code."""
        if (quant_min is None) != (quant_max is None):
            raise ValueError(
                "quant_min and quant_max must be given both or neither, got "
                f"{show(quant_min)} and {show(quant_max)}"
            )
        if quant_min is None:
            lo, hi = dtypes.BOUNDS[self.dtype]
            if self.reduce_range and self.dtype not in _EIGHT_BITS:
                raise ValueError(
                    "reduce_range must be off, or bounds given, unless dtype is int8 or uint8, "
                    f"got {self.dtype}"
                )
        else:
            lo, hi = checks.bounds_of(quant_min, quant_max, self.dtype)
        if self.reduce_range:
            if self._symmetric and dtypes.BOUNDS[self.dtype][0] == 0:
                raise ValueError(
                    f"reduce_range must be off for symmetric {self.dtype}: its zero point would "
                    "lie outside"
                )
            lo, hi = lo // 2, hi // 2
        if not lo <= 0 <= hi or lo == hi:
            raise ValueError(
                "quant_min <= 0 <= quant_max with quant_min < quant_max is required, "
                f"got {lo} and {hi}"
            )
        return lo, hi

    def _check_dynamic(self) -> None:
        """Raise a ValueError unless this observer can be dynamic."""
        raise ValueError(f"is_dynamic must be False for {type(self).__name__}, got True")

    @property
    def _symmetric(self) -> bool:
        return self.qscheme.endswith("_symmetric")

    @property
    def _middle(self) -> int:
        """The zero point of a symmetric scheme."""
        least, greatest = dtypes.BOUNDS[self.dtype]
        if least != 0:
            return 0
        if self.has_customized_qrange:
            return (self.quant_min + self.quant_max) // 2
        return (greatest + 1) // 2

    # --- seeing -------------------------------------------------------------------------------

    def forward(self, call: Callable[..., Any], x: Any) -> Any:
        """Observe `x` and return it; empty arrays and specs leave no trace."""
        data = checks.real(x, "x")
        if self.ch_axis is not None:
            axis = checks.axis_of(self.ch_axis, data, "ch_axis")
            granularity = layout.per_channel(data.shape, axis)
        else:
            granularity = Granularity(1, data.size, None)
        if type(data) is not ArraySpec and data.size:
            self._check_channels(granularity.channels)
            self._observe(granularity, data)
        return x

    def _observe(self, granularity: Granularity, x: Array) -> None:
        raise NotImplementedError(f"{type(self).__name__} observes nothing")

    def _check_channels(self, channels: int) -> None:
        shape, _ = kind(self.min_val)
        if shape and shape[0] not in (0, channels):
            raise ValueError(
                f"x must have {shape[0]} channels along ch_axis {self.ch_axis}, as "
                f"before, got {channels}"
            )

    @property
    def _unset(self) -> bool:
        """Whether nothing was seen."""
        if not isinstance(self.min_val, np.ndarray):
            return False  # it came to a GPU with what was seen
        if self.min_val.ndim:
            return self.min_val.size == 0
        return bool(self.min_val == math.inf and self.max_val == -math.inf)

    def _set_range(self, least: Array, greatest: Array) -> None:
        """Keep the extremes, which have one element a channel."""
        shape = () if self.ch_axis is None else kind(least)[0]
        self.min_val, self.max_val = reshape(least, shape), reshape(greatest, shape)

    def reset_min_max_vals(self) -> None:
        """Forget everything that was seen."""
        shape = () if self.ch_axis is None else (0,)
        self.min_val = np.full(shape, math.inf, _FLOAT)
        self.max_val = np.full(shape, -math.inf, _FLOAT)

    # --- choosing -----------------------------------------------------------------------------

    def calculate_qparams(self) -> tuple[Array, Array]:
        """Choose scale and zero point from what was seen.

        Returns
        -------
        scale : ndarray
            Scales, float32 of shape (1,) or of one a channel. Before anything was seen 1, with a
            warning.
        zero_point : ndarray
            Zero points of the same shape: int32 of the affine schemes, int64 of the symmetric ones,
            float32 of the scheme with float qparams. Before anything was seen an int64 0.
        """
        if self._unset:
            warnings.warn("nothing was observed: the scale is 1, the zero point 0", stacklevel=2)
            return np.ones(1, _FLOAT), np.zeros(1, np.int64)
        least, greatest = self._range()
        lib: Any = backend.of(least)
        if self.qscheme == FLOAT_QPARAMS:
            choose, code = lib.choose_kept_float, _FLOAT
        elif self._symmetric:
            choose, code = lib.choose_symmetric, np.dtype(np.int64)
        else:
            choose, code = lib.choose_affine, dtypes.int32
        shape, _ = kind(least)
        scale, zero_point = empty(least, shape, _FLOAT), empty(least, shape, code)
        choose(
            least, greatest, (self.quant_min, self.quant_max), float(self.eps[0]), self._middle,
            "float32", scale, zero_point,
        )  # fmt: skip
        return scale, zero_point

    def _range(self) -> tuple[Array, Array]:
        """The range that the qparams cover, one element a channel."""
        return flat(self.min_val), flat(self.max_val)

    # --- merging and state --------------------------------------------------------------------

    def merge(self, other: Self) -> None:
        """Add what another observer of the same settings has seen.

        Parameters
        ----------
        other : Observer
            Observer of the same class and settings. It is left as it is.

        Raises
        ------
        TypeError
            If `other` is of another class, or observers of this class cannot be merged.
        ValueError
            If the settings differ, or the numbers of channels.
        """
        if self._unmergeable:
            raise TypeError(f"a {type(self).__name__} cannot be merged: {self._unmergeable}")
        if type(other) is not type(self):
            raise TypeError(f"other must be a {type(self).__name__}, got {show(other)}")
        for name in self._settings:
            ours, theirs = getattr(self, name), getattr(other, name)
            if ours != theirs:
                raise ValueError(f"other must have the {name} {show(ours)}, got {show(theirs)}")
        if other._unset:
            return
        (ours, _), (theirs, _) = kind(self.min_val), kind(other.min_val)
        if not self._unset and ours != theirs:
            raise ValueError(f"other must have {ours[0]} channels, got {theirs[0]}")
        self._merge(other)

    def _merge(self, other: Self) -> None:
        if self._unset:
            self._set_range(flat(copy(other.min_val)), flat(copy(other.max_val)))
        else:
            self.min_val = minimum(self.min_val, beside(self.min_val, other.min_val))
            self.max_val = maximum(self.max_val, beside(self.max_val, other.max_val))

    def _check_state(self, prefix: str, state: Mapping[str, Array]) -> None:
        """The extremes have one shape, and the right order unless they are of nothing."""
        shape: tuple[int, ...] = ()
        if self.ch_axis is not None:
            shape = (state["min_val"].size,)
        for name, array in state.items():
            check_shape(prefix + name, array, ((1,) if name == "eps" else shape,))
        least, greatest = state["min_val"], state["max_val"]
        wrong = (least > greatest) & ~((least == math.inf) & (greatest == -math.inf))
        if wrong.any():
            raise ValueError(
                f"state_dict[{prefix + 'min_val'!r}] must not exceed max_val, got "
                f"{show(least)} and {show(greatest)}"
            )
        if not state["eps"] > 0:
            raise ValueError(
                f"state_dict[{prefix + 'eps'!r}] must be positive, got {show(state['eps'])}"
            )

    def extra_repr(self) -> str:
        """What stands between the brackets of the repr."""
        return f"min_val={self.min_val}, max_val={self.max_val}"


def _extremes(granularity: Granularity, x: Array) -> tuple[Array, Array]:
    """The least and the greatest value of each channel in float32; NaN where there is one."""
    return _kept(*backend.of(x).minmax(granularity, x))


def _kept(least: Array, greatest: Array) -> tuple[Array, Array]:
    """A range in float32. No zero has a sign: which is the least would depend on order."""
    low, high = (without_negative_zero(astype(v, _FLOAT)) for v in (least, greatest))
    return low, high


def _finite_extremes(granularity: Granularity, x: Array) -> tuple[Array, Array]:
    """The same of what is finite in float32; +inf and -inf where nothing is. No NaN is let in."""
    if not isinstance(x, np.ndarray):
        raise TypeError(
            "x must be a NumPy array for an observer that counts, got an array on a GPU; "
            "npquant.cuda.to_host copies it"
        )
    least, greatest = _extremes(granularity, x)
    if np.isnan(least).any():
        raise ValueError("x must not have a NaN, which has no bin")
    if np.isinf(least).any() or np.isinf(greatest).any():
        warnings.warn("x has infinities, which are not observed", stacklevel=5)
        return _kept(*backend.of(x).minmax_finite(granularity, x))
    return least, greatest


# --- the range of the data --------------------------------------------------------------------


class MinMaxObserver(Observer):
    """Observe the least and the greatest value.

    A NaN stays until `reset_min_max_vals`. Scale and zero point are those of `determine_qparams`.

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
        If the bounds are in the wrong order, beyond those of `dtype` or one without the other,
        `qscheme` is unknown
        here, `eps` is not positive, or the range is reduced where that has no meaning.

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

    def _observe(self, granularity: Granularity, x: Array) -> None:
        _widen_range(self, *_extremes(granularity, x))


class MovingAverageMinMaxObserver(MinMaxObserver):
    """Observe moving averages of the least and the greatest value.

    The first array sets them; each later one moves them by ``averaging_constant * (seen - kept)``,
    each operation rounded to float32. Scale and zero point are those of `determine_qparams`.

    Parameters
    ----------
    averaging_constant : float, default 0.01
        How far each array moves the bounds, rounded to float32.
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
        If the bounds are in the wrong order, beyond those of `dtype` or one without the other,
        `qscheme` is unknown
        here, `eps` is not positive, `averaging_constant` is not finite, or it is not 1 and
        `is_dynamic`.

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

    _settings = (*Observer._settings, "averaging_constant")
    _unmergeable = "a moving average depends on the order in which arrays came"

    def __init__(
        self,
        averaging_constant: float = 0.01,
        dtype: Any = np.uint8,
        qscheme: str = "per_tensor_affine",
        reduce_range: bool = False,
        quant_min: int | None = None,
        quant_max: int | None = None,
        *,
        eps: float = EPS,
        is_dynamic: bool = False,
    ) -> None:
        self.averaging_constant = checks.finite(averaging_constant, "averaging_constant")
        super().__init__(
            dtype, qscheme, reduce_range, quant_min, quant_max, eps=eps, is_dynamic=is_dynamic
        )

    def _check_dynamic(self) -> None:
        if self.averaging_constant != 1:
            raise ValueError(
                f"averaging_constant must be 1 if is_dynamic, got {self.averaging_constant}"
            )

    def _observe(self, granularity: Granularity, x: Array) -> None:
        _move_range(self, self.averaging_constant, *_extremes(granularity, x))


class PerChannelMinMaxObserver(Observer):
    """Observe the least and the greatest value of each channel.

    Scales and zero points are those of `determine_qparams`; with float qparams the zero points stay
    floats.

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
        If the bounds are in the wrong order, beyond those of `dtype` or one without the other,
        `qscheme` is unknown
        here, `eps` is not positive, or `is_dynamic`. Of a call: if the array has no such
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

    def _observe(self, granularity: Granularity, x: Array) -> None:
        _widen_range(self, *_extremes(granularity, x))


class MovingAveragePerChannelMinMaxObserver(PerChannelMinMaxObserver):
    """Observe moving averages of the least and the greatest value of each channel.

    The first array sets them; each later one moves them by ``averaging_constant * (seen - kept)``,
    each operation rounded to float32. Scales and zero points are those of `determine_qparams`.

    Parameters
    ----------
    averaging_constant : float, default 0.01
        How far each array moves the bounds, rounded to float32.
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
        If the bounds are in the wrong order, beyond those of `dtype` or one without the other,
        `qscheme` is unknown
        here, `eps` is not positive, `averaging_constant` is not finite, or `is_dynamic`. Of
        a call: if the array has no such axis, or another number of channels than before.

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

    _settings = MovingAverageMinMaxObserver._settings
    _unmergeable = MovingAverageMinMaxObserver._unmergeable

    def __init__(
        self,
        averaging_constant: float = 0.01,
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
        self.averaging_constant = checks.finite(averaging_constant, "averaging_constant")
        super().__init__(
            ch_axis, dtype, qscheme, reduce_range, quant_min, quant_max,
            eps=eps, is_dynamic=is_dynamic,
        )  # fmt: skip

    def _observe(self, granularity: Granularity, x: Array) -> None:
        _move_range(self, self.averaging_constant, *_extremes(granularity, x))


def _widen_range(observer: Observer, least: Array, greatest: Array) -> None:
    if not observer._unset:
        low, high = (beside(least, flat(v)) for v in (observer.min_val, observer.max_val))
        least, greatest = minimum(least, low), maximum(greatest, high)
    observer._set_range(least, greatest)


def _move_range(observer: Observer, constant: float, least: Array, greatest: Array) -> None:
    if not observer._unset:
        low, high = (copy(beside(least, flat(v))) for v in (observer.min_val, observer.max_val))
        backend.of(low).step_towards(least, greatest, constant, low, high)
        least, greatest = low, high
    observer._set_range(least, greatest)


# --- PyTorch's histogram ----------------------------------------------------------------------


class HistogramObserver(Observer):
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
        If the bounds are in the wrong order, beyond those of `dtype` or one without the other,
        `qscheme` is unknown
        here, `eps` is not positive, or `bins` or `upsample_rate` is out of range. Of a
        call: if the array has a NaN, or a range that is no float32; then nothing has changed.

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
    _settings = (*Observer._settings, "bins")
    _buffers = ("eps", "histogram", "min_val", "max_val")
    _unmergeable = (
        "its bins are spread over others whenever the range grows, so they depend on the order in "
        "which arrays came; an MSEObserver can be"
    )

    histogram: Array

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
        self.bins = _within(bins, "bins", 1, 2**24)
        self.upsample_rate = _within(upsample_rate, "upsample_rate", 1, 2**12)
        super().__init__(dtype, qscheme, reduce_range, quant_min, quant_max, eps, is_dynamic)
        _uniform(self.dtype)
        lo, hi = dtypes.BOUNDS[self.dtype]
        self.dst_nbins = hi - lo + 1

    def _observe(self, granularity: Granularity, x: Array) -> None:
        low, high = _finite_extremes(granularity, x)
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
        if first:
            self.histogram = histogram
        elif low[0] == self.min_val and high[0] == self.max_val:
            self.histogram = self.histogram + histogram
        else:
            self.histogram = self._respread(low, high) + histogram
        self._set_range(low, high)

    def _counted(self, granularity: Granularity, x: Array, low: Array, high: Array) -> Array:
        """The histogram of `x`, in float64 where float32 overflows on the way."""
        with np.errstate(over="ignore"):
            fits = np.isfinite((high - low) * np.float32(self.bins)).all()
        kind = np.float32 if fits else np.float64
        counts = np.zeros((1, self.bins), np.int64)
        backend.of(x).count_linear(granularity, x, low.astype(kind), high.astype(kind), counts)
        histogram: Array = counts[0].astype(_FLOAT)
        return histogram

    def _respread(self, low: Array, high: Array) -> Array:
        """The histogram so far over a wider range."""
        if self.min_val == self.max_val:
            one = self._counted(Granularity(1, 1, None), self.min_val.reshape(1), low, high)
            new: Array = one * self.histogram.sum()
            return new
        new = np.zeros(self.bins, _FLOAT)
        ends = (float(v) for v in (self.min_val, self.max_val, low[0], high[0]))
        backend.of(new).respread(self.histogram, *ends, self.upsample_rate, new)
        return new

    def _range(self) -> tuple[Array, Array]:
        bounds = np.empty(2, _FLOAT)
        ends = float(self.min_val), float(self.max_val)
        backend.of(bounds).clip_linear(self.histogram, *ends, self.dst_nbins, bounds)
        return bounds[:1], bounds[1:]

    def reset_min_max_vals(self) -> None:
        """Forget everything that was seen."""
        super().reset_min_max_vals()
        self.histogram = np.zeros(self.bins, _FLOAT)

    def _check_state(self, prefix: str, state: Mapping[str, Array]) -> None:
        rest = dict(state)
        histogram = rest.pop("histogram")
        super()._check_state(prefix, rest)
        check_shape(prefix + "histogram", histogram, ((self.bins,),))
        _check_counts(prefix + "histogram", histogram)


def _within(value: Any, name: str, least: int, greatest: int) -> int:
    n = checks.shaping(value, name)
    if not least <= n <= greatest:
        raise ValueError(f"{name} must lie within {least}..{greatest}, got {show(n)}")
    return n


def _uniform(dtype: dtypes.DType) -> None:
    """Refuse float8, whose codes are not evenly spaced."""
    if dtype in dtypes.FLOAT8:
        raise TypeError(f"dtype must be one of evenly spaced codes, got {dtype}")


def _check_counts(key: str, counts: Array) -> None:
    if not ((counts >= 0) & (counts < math.inf)).all():
        raise ValueError(f"state_dict[{key!r}] must have finite counts, none of them negative")


# --- histograms that merge --------------------------------------------------------------------

#: No bound is less than 2**this: float32 holds 1 / width for it, with the most bins.
_LEAST_EXPONENT = -100


class _CountingObserver(Observer):
    """What the observers with a doubling histogram share.

    The bins of a channel are of one width, a power of two, from -2**exponent to 2**exponent, which
    is more than any magnitude seen. When more is seen, the width doubles until it is enough, and
    each two bins become one: the counts are those that all the data would give at once. So neither
    the order of arrays nor how they were cut, nor merging, changes a bit.
    """

    _schemes = (*PER_TENSOR, *PER_CHANNEL)
    _settings = (*Observer._settings, "bins")
    _buffers = ("eps", "histogram", "exponent", "min_val", "max_val")

    histogram: Array
    exponent: Array

    def __init__(
        self, bins: int, ch_axis: int | None, dtype: Any, qscheme: str | None, reduce_range: bool,
        quant_min: int | None, quant_max: int | None, eps: float,
    ) -> None:  # fmt: skip
        self.bins = _within(bins, "bins", 16, 2**24)
        if self.bins & (self.bins - 1):
            raise ValueError(f"bins must be a power of two, got {self.bins}")
        self.ch_axis = None if ch_axis is None else checks.shaping(ch_axis, "ch_axis")
        schemes = PER_TENSOR if ch_axis is None else PER_CHANNEL
        scheme = schemes[0] if qscheme is None else checks.option(qscheme, "qscheme", self._schemes)
        if scheme not in schemes:
            raise ValueError(
                f"with ch_axis {ch_axis} qscheme must be one of {', '.join(schemes)}, got {scheme}"
            )
        super().__init__(dtype, scheme, reduce_range, quant_min, quant_max, eps, False)
        _uniform(self.dtype)

    def _observe(self, granularity: Granularity, x: Array) -> None:
        least, greatest = _finite_extremes(granularity, x)
        self._grow(granularity.channels, _exponents(least, greatest))
        exponent = self.exponent.reshape(-1)
        with np.errstate(over="ignore"):
            bound = np.ldexp(np.float32(1), exponent)
        inverse = np.ldexp(np.float32(self.bins // 2), -exponent)
        backend.of(x).count_doubling(granularity, x, inverse, bound, self._counts())
        _widen_range(self, least, greatest)

    def _counts(self) -> Array:
        return self.histogram.reshape(-1, self.bins)

    def _grow(self, channels: int, exponent: Array) -> None:
        """Let the bins reach to these exponents at least."""
        if self._unset:
            shape = () if self.ch_axis is None else (channels,)
            self.exponent = np.full(shape, _LEAST_EXPONENT, np.int32)
            self.histogram = np.zeros((*shape, self.bins), np.int64)
        old = self.exponent.reshape(-1)
        new = np.maximum(old, exponent)
        backend.of(new).double((new - old).astype(np.int64), self._counts())
        self.exponent = new.reshape(self.exponent.shape)

    def _merge(self, other: Self) -> None:
        exponent = other.exponent.reshape(-1)
        self._grow(exponent.size, exponent)
        theirs = other._counts().copy()
        shifts = (self.exponent.reshape(-1) - exponent).astype(np.int64)
        backend.of(theirs).double(shifts, theirs)
        self.histogram = self.histogram + theirs.reshape(self.histogram.shape)
        super()._merge(other)

    def _range(self) -> tuple[Array, Array]:
        least, greatest = (v.copy() for v in super()._range())
        nothing = least > greatest
        least[nothing] = greatest[nothing] = 0
        width = np.ldexp(2.0 / self.bins, self.exponent.reshape(-1))
        low, high = np.empty_like(least), np.empty_like(greatest)
        affine, symmetric, option = self._method(backend.of(least))
        (symmetric if self._symmetric else affine)(
            self._counts(), width, least, greatest, (self.quant_min, self.quant_max), self._middle,
            option, low, high,
        )  # fmt: skip
        return low, high

    def _method(self, lib: Any) -> tuple[Any, Any, float]:
        """The kernels for the affine and the symmetric schemes, and their number."""
        raise NotImplementedError(f"{type(self).__name__} has no method")

    def reset_min_max_vals(self) -> None:
        """Forget everything that was seen."""
        super().reset_min_max_vals()
        shape = self.min_val.shape
        self.exponent = np.full(shape, _LEAST_EXPONENT, np.int32)
        self.histogram = np.zeros((*shape, self.bins), np.int64)

    def _check_state(self, prefix: str, state: Mapping[str, Array]) -> None:
        rest = dict(state)
        histogram = rest.pop("histogram")
        super()._check_state(prefix, rest)
        check_shape(prefix + "histogram", histogram, ((*state["min_val"].shape, self.bins),))
        _check_counts(prefix + "histogram", histogram)
        wanted = _exponents(state["min_val"], state["max_val"])
        if not ((state["exponent"] >= wanted) & (state["exponent"] <= 128)).all():
            raise ValueError(
                f"state_dict[{prefix + 'exponent'!r}] must be at least that of the extremes, "
                f"got {show(state['exponent'])}"
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
        Number of bins, a power of two from 16 to 2**24. Each channel has its own.
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
        If the bounds are in the wrong order, beyond those of `dtype` or one without the other,
        `qscheme` is unknown
        here, `eps` is not positive, `bins` is no power of two, or `percentile` is out of
        range. Of a call: if the array has a NaN, or other channels than before.

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
        self.percentile = checks.finite(percentile, "percentile")
        if not 50 < self.percentile <= 100:
            raise ValueError(
                f"percentile must be more than 50 and at most 100, got {self.percentile}"
            )
        super().__init__(bins, ch_axis, dtype, qscheme, reduce_range, quant_min, quant_max, eps)

    def _method(self, lib: Any) -> tuple[Any, Any, float]:
        return lib.clip_percentile, lib.clip_percentile_symmetric, self.percentile


class MSEObserver(_CountingObserver):
    """Observe a histogram, and clip the range where the squared error is least.

    Ranges of n / 100 of what was seen are tried, with the qparams that each would have: of both
    ends together, then, in an affine scheme, of each end alone until neither moves. Of equals the
    widest wins. The error of a bin is the integral over its width, exact for values that lie evenly
    in it: a code's error is a parabola.

    Parameters
    ----------
    bins : int, default 4096
        Number of bins, a power of two from 16 to 2**24. Each channel has its own.
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
        If the bounds are in the wrong order, beyond those of `dtype` or one without the other,
        `qscheme` is unknown
        here, `eps` is not positive, or `bins` is no power of two. Of a call: if the array
        has a NaN, or other channels than before.

    See Also
    --------
    HistogramObserver : Observe a histogram, and clip it as PyTorch does.
    PercentileObserver : Clip at a percentile.

    Notes
    -----
    PyTorch has no such observer. The criterion is that of OMSE, Choukroun et al., "Low-bit
    Quantization of Neural Networks for Efficient Inference", 2019; the bins are integrated as in
    caffe2's ``norm_minimization.cc``. Infinities are left out, with a warning.

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
        super().__init__(bins, ch_axis, dtype, qscheme, reduce_range, quant_min, quant_max, eps)

    def _method(self, lib: Any) -> tuple[Any, Any, float]:
        return lib.clip_mse, lib.clip_mse_symmetric, float(self.eps[0])


class EntropyObserver(_CountingObserver):
    """Observe a histogram, and clip the range where the fewest bits are lost.

    For each number of bins of magnitudes, from one a code on, P is the histogram with what lies
    beyond in its last bin, and Q what remains of it with a code's worth of bins each: the same
    for all that hold something. The range of least KL(P || Q) is chosen, of equals the widest. A
    code's sign takes half of the codes, unless the scheme is affine and no value lies on the other
    side of zero.

    Parameters
    ----------
    bins : int, default 4096
        Number of bins, a power of two from 16 to 2**24. Each channel has its own.
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
        If the bounds are in the wrong order, beyond those of `dtype` or one without the other,
        `qscheme` is unknown
        here, `eps` is not positive, or `bins` is no power of two or less than four times
        the number of codes. Of a call: if the array has a NaN, or other channels than before.

    See Also
    --------
    PercentileObserver : Clip at a percentile.
    MSEObserver : Clip where the squared error is least.

    Notes
    -----
    PyTorch has no such observer. The method is TensorRT's: Migacz, "8-bit Inference with TensorRT",
    GPU Technology Conference 2017. The bins are divided among the codes as evenly as can be.
    It needs many values: of a few hundred, the shape of the histogram says little. Infinities are
    left out, with a warning.

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
        super().__init__(bins, ch_axis, dtype, qscheme, reduce_range, quant_min, quant_max, eps)
        codes = self.quant_max - self.quant_min + 1
        if self.bins < 4 * codes:
            raise ValueError(f"bins must be at least four times the {codes} codes, got {self.bins}")

    def _method(self, lib: Any) -> tuple[Any, Any, float]:
        return lib.clip_entropy, lib.clip_entropy_symmetric, 0.0
