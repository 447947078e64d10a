"""Fake quantize weights with a rounding that is learned."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np

import npquant as nq
from npquant import checks, dtypes
from npquant.arrays import beside, copy, kind, on_host
from npquant.autograd import Parameter
from npquant.autograd.tape import value_of
from npquant.meta import ArraySpec
from npquant.modules.fake_quantize import FakeQuantize, in_rows
from npquant.modules.module import Array, Kinds, key_of
from npquant.modules.observers import PER_CHANNEL, PER_TENSOR, MinMaxObserver
from npquant.modules.observers import PerChannelMinMaxObserver as PerChannel


class AdaroundFakeQuantizer(FakeQuantize):
    """Fake quantize weights, and learn which way each of them is rounded.

    With the observer on, a call takes scale and zero point from the array. V, which decides the
    rounding, is made by the first call such that soft weights are the weights themselves; it stays,
    whatever is observed later, until `reset_rounding`. With fake quantizing on, a call returns soft
    weights, between two neighbours of the grid, or hard ones without `use_soft_rounding`. On a tape
    soft weights have a gradient of V, and none of the array.

    Parameters
    ----------
    observer : callable, optional
        Class of an observer, or what makes one. By default `MinMaxObserver`, or
        `PerChannelMinMaxObserver` if the scheme is one of channels.
    qscheme : str, default "per_tensor_symmetric"
        "per_tensor_symmetric", "per_channel_symmetric", or the same with "affine".
    quant_min, quant_max : int, default -128 and 127
        Least and greatest code, within the bounds of `dtype` and with zero between.
    ch_axis : int, default 0
        Axis of the channels, of a scheme with channels; a negative one counts from the end.
    dtype : dtype, default int8
        Dtype of the codes: int8, uint8, int16, uint16, int32, int4, uint4, int2 or uint2.
    group_size : int, optional
        Number of neighbours along the last axis that share a scale. The scheme is one of channels,
        `ch_axis` 0, and the observer sees groups as rows.
    **observer_kwargs
        Further arguments of the observer.

    Attributes
    ----------
    activation_post_process : Observer
        The observer.
    V : Parameter
        What decides the rounding, of the shape of the weights: float64 for float64 weights, else
        float32; of shape (0,) before the first call.
    scale : ndarray
        Scales, float32 of shape (1,), or one for each channel or group, flat.
    zero_point : ndarray
        Zero points, int32 of the same shape.
    fake_quant_enabled, observer_enabled : ndarray
        Switches, 0 or 1: uint8 of shape (1,).
    use_soft_rounding : bool
        Whether a call returns soft weights; True at first.

    Raises
    ------
    TypeError
        If an argument is of the wrong kind or of a dtype that is not allowed. Of a call: if the
        array is not one of floats, or of another precision than V.
    ValueError
        If the observer refuses an argument, `qscheme` is none of the four, or `group_size` is given
        where the scheme has no channels. Of a call: if the observer refuses the array, V is to be
        made of one on the CPU that is not finite, it has another shape than V, the scale is not
        positive and finite, as after a NaN, or the bounds lie beyond 2**23, or for float64 weights
        2**52.

    See Also
    --------
    npquant.adaround_soft : What a call computes.
    npquant.adaround.AdaroundLoss : What learning minimises.

    Notes
    -----
    PyTorch has no such module in its wheels; this one corresponds to that of its repository,
    ``torch/ao/quantization/experimental/adaround_fake_quantize.py``, and to [1]_.

    Departures from it: D10, D14, D25; see docs/departures.md.

    References
    ----------
    .. [1] M. Nagel et al., "Up or Down? Adaptive Rounding for Post-Training Quantization", ICML
       2020, arXiv:2004.10568.

    Examples
    --------
    >>> import numpy as np
    >>> from npquant.modules import AdaroundFakeQuantizer
    >>> rounding = AdaroundFakeQuantizer(quant_min=-8, quant_max=7)
    >>> w = np.array([[0.3, -0.72], [0.75, 0.1]], np.float32)
    >>> rounding(w).round(3)
    array([[ 0.3 , -0.72],
           [ 0.7 ,  0.1 ]], dtype=float32)
    >>> rounding.codes(w)
    array([[ 3, -7],
           [ 7,  1]], dtype=int8)
    >>> rounding.V.value[:] = -1
    >>> rounding.codes(w)
    array([[ 3, -8],
           [ 7,  1]], dtype=int8)
    """

    _parameters = ("V",)
    _kinds: ClassVar[Kinds] = {**FakeQuantize._kinds, "V": (dtypes.float32, dtypes.float64)}

    def __init__(
        self,
        observer: Callable[..., Any] | None = None,
        qscheme: str = "per_tensor_symmetric",
        quant_min: int = -128,
        quant_max: int = 127,
        ch_axis: int = 0,
        *,
        dtype: Any = np.int8,
        group_size: int | None = None,
        **observer_kwargs: Any,
    ) -> None:
        qscheme = checks.option(qscheme, "qscheme", (*PER_TENSOR, *PER_CHANNEL))
        axis = checks.shaping(ch_axis, "ch_axis")
        channels = qscheme in PER_CHANNEL
        if channels:
            observer_kwargs["ch_axis"] = axis
        if observer is None:
            observer = PerChannel if channels else MinMaxObserver
        super().__init__(
            observer, quant_min, quant_max, dtype=dtype, qscheme=qscheme,
            **observer_kwargs,
        )  # fmt: skip
        self.group_size = checks.group_size_alone(group_size)
        if self.group_size is not None and not (channels and axis == 0):
            raise ValueError(
                "group_size must be None unless the scheme has channels and ch_axis is 0, got "
                f"{self.group_size}, {qscheme} and {axis}"
            )
        self.V = Parameter(np.empty(0, np.float32), "V")
        self.use_soft_rounding = True

    def _forward(self, call: Callable[..., Any], x: Any, data: Array) -> Any:
        if data.size == 0:
            return x
        enabled, observing = self._on("fake_quant_enabled"), self._on("observer_enabled")
        if enabled or observing:  # before anything is observed
            checks.adaround_precision(self.quant_min, self.quant_max, data.dtype)
        first = not self._decided and (enabled or observing)
        if self._decided:
            self._check_shape(data)
        elif first and isinstance(data, np.ndarray):  # on a GPU nobody looks
            checks.finite_array(data, "x")  # observers of counts would leave infinities out
        if observing:
            self._observe(data)
        if first and not (observing and isinstance(data, ArraySpec)):  # which changes no scale
            self._check_granularity(data)
        if isinstance(data, ArraySpec):
            return x
        if first:
            self._bring(data, "scale", "zero_point")
            self.V.value = nq.adaround_init(value_of(x), self.scale, **self._where())
        if not enabled:
            return x
        if not self.use_soft_rounding:
            return self.hard(x)
        return call(nq.adaround_soft, x, self.V, *self._qparams(data), **self._where())

    def _observe(self, x: Array) -> None:
        super()._observe(in_rows(x, self.group_size))

    def _check_shape(self, x: Array) -> None:
        shape, dtype = kind(self.V.value)
        if x.shape != shape:
            raise ValueError(f"x must have the shape of V, {shape}, got {x.shape}")
        if dtype != dtypes.compute(x.dtype):
            raise TypeError(f"x must have the precision of V, {dtype}, got {x.dtype}")
        self.V.value = beside(x, self.V.value)

    def _check_granularity(self, x: Array) -> None:
        """Refuse, in terms of the module, what has not as many scales as there are."""
        if self.group_size is None:
            if self.is_per_channel:
                self._check_channels(x)
            return
        checks.group_size_of(self.group_size, x, "x")
        scales, needed = math.prod(kind(self.scale)[0]), self._scales_of(x.shape)
        if scales != needed:
            raise ValueError(
                f"x must have {scales} groups of {self.group_size}, as scale has, got {needed}"
            )

    @property
    def _uses_qparams(self) -> bool:
        return super()._uses_qparams or not self._decided  # to make V

    @property
    def _decided(self) -> bool:
        """Whether there is a V."""
        return math.prod(kind(self.V.value)[0]) > 0

    def _decided_on(self, x: Any) -> Array:
        """The array of weights for which there is a V."""
        data: Array = checks.floats(value_of(x), "x")
        if not self._decided:
            raise ValueError("V must be made by a first call with the weights, got none so far")
        self._check_shape(data)
        return data

    def _qparams(self, x: Array) -> tuple[Array, Array, int, int]:
        self._bring(x, "scale", "zero_point")
        return self.scale, self.zero_point, self.quant_min, self.quant_max

    def _where(self) -> dict[str, int]:
        if self.group_size is not None:
            return {"group_size": self.group_size}
        return {"axis": self.ch_axis} if self.is_per_channel else {}

    def hard(self, x: Array) -> Array:
        """Quantize weights with what V has decided: on the grid.

        Parameters
        ----------
        x : ndarray or Parameter
            Weights, of the shape of V.

        Returns
        -------
        ndarray
            The values of `codes`, of the shape and dtype of `x`.

        Raises
        ------
        TypeError
            If `x` is no array of floats, or of another precision than V.
        ValueError
            If `x` has another shape than V, or there is no V yet.
        """
        data = self._decided_on(x)
        y: Array = nq.adaround_hard(
            value_of(x), self.V.value, *self._qparams(data), **self._where()
        )
        return y

    def codes(self, x: Array, dtype: Any = None) -> Array:
        """Quantize weights with what V has decided, to codes.

        Parameters
        ----------
        x : ndarray or Parameter
            Weights, of the shape of V.
        dtype : dtype, optional
            Dtype of the codes, an integer one that has the bounds within. By default that of the
            module.

        Returns
        -------
        ndarray
            Codes, of the shape of `x` and of `dtype`.

        Raises
        ------
        TypeError
            If `x` is no array of floats, or of another precision than V, or `dtype` is not allowed.
        ValueError
            If `x` has another shape than V, there is no V yet, or the bounds are beyond `dtype`.
        """
        data = self._decided_on(x)
        target = self.dtype if dtype is None else dtype
        q: Array = nq.adaround_codes(
            value_of(x), self.V.value, *self._qparams(data), target, **self._where()
        )
        return q

    def reset_rounding(self) -> None:
        """Forget V: the next call makes it anew."""
        self.V.value = np.empty(0, np.float32)

    def calculate_qparams(self) -> tuple[Array, Array]:
        """Give scale and zero point as a call uses them.

        Returns
        -------
        scale : ndarray
            Copy of the attribute.
        zero_point : ndarray
            Copy of the attribute.
        """
        return copy(self.scale), copy(self.zero_point)

    def _check_state(self, prefix: str, state: Mapping[str, Array]) -> None:
        super()._check_state(prefix, state)
        shape, scales = state["V"].shape, state["scale"].size
        if state["V"].size == 0:
            return
        try:
            needed = self._scales_of(shape)
        except ValueError:  # it has no such axis, or groups do not divide it
            needed = None
        if scales != needed:
            where = ", ".join(f"{k}={v}" for k, v in self._where().items()) or "one tensor"
            raise ValueError(
                f"{key_of(prefix, 'V')} must have the channels of scale, {scales} by "
                f"{where}, got the shape {shape}"
            )

    def _scales_of(self, shape: tuple[int, ...]) -> int:
        """How many scales weights of this shape have."""
        if self.group_size is not None:
            return checks.groups(shape, self.group_size)[0].channels
        return checks.channels(shape, self.ch_axis)[0].channels if self.is_per_channel else 1

    def extra_repr(self) -> str:
        """What stands between the brackets of the repr."""
        up = int(np.count_nonzero(on_host(self._get("V")) >= 0))
        return f"{super().extra_repr()}, (V >= 0).sum()={up}"
