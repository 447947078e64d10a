"""Modules that observe what passes, and fake quantize it with the qparams that follow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np

import npquant as nq
from npquant import backend, checks, dtypes
from npquant.arrays import astype, copy, flat, following, given, kind, new, ravel, reshape
from npquant.autograd.tape import value_of
from npquant.errors import show
from npquant.meta import ArraySpec
from npquant.modules.module import Array, Kinds, Module, key_of
from npquant.modules.observers import (
    FLOAT_QPARAMS,
    PER_TENSOR,
    MovingAverageMinMaxObserver,
    MovingAveragePerChannelMinMaxObserver,
    Observer,
)
from npquant.ops.fused import SMALL_SCALE
from npquant.owners import on_device
from npquant.state import seen

_FLOAT, _INT32 = dtypes.float32, dtypes.int32
_AVERAGES = MovingAverageMinMaxObserver, MovingAveragePerChannelMinMaxObserver
#: What an observer of the user's own gives, in messages.
_CHOSEN = "scale of activation_post_process", "zero_point of activation_post_process"
#: As what switches are kept.
SWITCH = np.dtype(np.uint8)


class FakeQuantizeBase(Module):
    """What all fake-quantize modules share: an observer, and two switches.

    Parameters
    ----------
    observer : callable
        Class of an observer, or what makes one, such as ``MinMaxObserver.with_args(...)``.
    observer_kwargs : dict
        Its arguments.

    Attributes
    ----------
    activation_post_process : Observer
        The observer.
    fake_quant_enabled, observer_enabled : ndarray
        Switches, 0 or 1, of shape (1,).
    quant_min, quant_max : int
        Least and greatest code, those of the observer: there they may be changed.
    dtype : dtype
        Dtype of the codes.
    qscheme : str
        How qparams follow from the range.
    ch_axis : int
        Axis of the channels; -1 without channels.
    """

    _switches: ClassVar[tuple[str, ...]] = ("fake_quant_enabled", "observer_enabled")
    _buffers = _switches
    _kinds: ClassVar[Kinds] = dict.fromkeys(_switches, (SWITCH, dtypes.int64))
    _modules = ("activation_post_process",)

    fake_quant_enabled: Array
    observer_enabled: Array
    #: Settings of the observer, as they were looked at.
    _found: tuple[Any, ...] = ()

    def __init__(self, observer: Callable[..., Any], observer_kwargs: dict[str, Any]) -> None:
        foreign = isinstance(observer, type) and not issubclass(observer, Observer)
        # An instance can be called too, but with data.
        if foreign or not callable(observer) or isinstance(observer, Module):
            raise TypeError(f"observer must be a class of observers, got {show(observer)}")
        made = observer(**observer_kwargs)
        if not isinstance(made, Observer):
            raise TypeError(f"observer must make an Observer, got {show(made)}")
        self.activation_post_process = made
        self.dtype = dtypes.integer_target(made.dtype)
        self.qscheme = made.qscheme
        self._widest = made.quant_min, made.quant_max
        self.ch_axis = -1 if made.ch_axis is None else made.ch_axis
        self.is_per_channel = self.qscheme not in PER_TENSOR
        for name in self._switches:
            self._switch(name, True)

    @property
    def quant_min(self) -> int:
        """Least code: that of the observer, whose qparams are for it."""
        return self.activation_post_process.quant_min

    @property
    def quant_max(self) -> int:
        """Greatest code, of the observer too."""
        return self.activation_post_process.quant_max

    def _bounds_so_far(self) -> tuple[int, int]:
        """The widest that the module has had: until qparams are chosen anew they are of any."""
        least, greatest = self._widest
        return min(least, self.quant_min), max(greatest, self.quant_max)

    def _check_observer(self) -> None:
        """Its options, which may be changed at any time, go together, and with the module."""
        seen = self.activation_post_process
        found = seen.dtype, seen.qscheme, seen.ch_axis, seen.quant_min, seen.quant_max
        if found == self._found and not seen._assigned:
            return
        self._check_settings("activation_post_process", seen, ("dtype", "qscheme", "ch_axis"))
        seen._check_together()
        self.__dict__.update(_widest=self._bounds_so_far(), _found=found)

    def _check_settings(self, name: str, observer: Observer, settings: tuple[str, ...]) -> None:
        for setting in settings:
            ours, theirs = getattr(self, setting), getattr(observer, setting)
            if ours != (-1 if theirs is None else theirs):
                raise ValueError(f"{name} must have the {setting} {ours}, got {theirs}")

    def _check_module(self, name: str, value: Any) -> None:
        if not isinstance(value, Observer):
            raise TypeError(f"{name} must be an Observer, got {seen(value)}")

    def _checked(self, name: str, value: Any) -> Any:
        """An observer is exchanged for one whose qparams the module can have."""
        value = super()._checked(name, value)
        if name == "activation_post_process":
            settings = "dtype", "qscheme", "quant_min", "quant_max", "ch_axis"
            self._check_settings(name, value, settings)
        return value

    # --- switches -----------------------------------------------------------------------------

    def _switch(self, name: str, enabled: Any) -> None:
        on = checks.switch(enabled, "enabled")
        setattr(self, name, np.array([on], getattr(self, name, np.empty(0, SWITCH)).dtype))

    def _on(self, name: str) -> bool:
        return bool(getattr(self, name)[0])

    def enable_fake_quant(self, enabled: bool = True) -> None:
        """Switch fake quantizing on, or off.

        Parameters
        ----------
        enabled : bool, default True
            Whether to fake quantize; otherwise arrays pass as they are.
        """
        self._switch("fake_quant_enabled", enabled)

    def disable_fake_quant(self) -> None:
        """Switch fake quantizing off: arrays pass as they are."""
        self.enable_fake_quant(False)

    def enable_observer(self, enabled: bool = True) -> None:
        """Switch observing on, or off.

        Parameters
        ----------
        enabled : bool, default True
            Whether to observe; otherwise qparams stay as they are.
        """
        self._switch("observer_enabled", enabled)

    def disable_observer(self) -> None:
        """Switch observing off: qparams stay as they are."""
        self.enable_observer(False)

    # --- what they do -------------------------------------------------------------------------

    def forward(self, call: Callable[..., Any], x: Any) -> Any:
        """Observe and fake quantize, as the switches say; what fails has changed no state."""
        data = checks.floats(value_of(x), "x")
        # Arrays and values are replaced, never written to.
        modules = [m for _, m in self._walk("")]
        states = [m.__dict__.copy() for m in modules]
        values = [
            (p, p.value) for m in modules for n in m._parameters if (p := getattr(m, n)) is not None
        ]
        try:
            self._check_observer()
            return self._forward(call, x, data)
        except BaseException:  # an interrupt too, after which the call may be made again
            for module, state in zip(modules, states, strict=True):
                module.__dict__.update(state)
                for name in module.__dict__.keys() - state.keys():
                    del module.__dict__[name]
            for parameter, value in values:
                if parameter.value is not value:
                    parameter.value = value
            raise

    def _forward(self, call: Callable[..., Any], x: Any, data: Array) -> Any:
        """Do so: `x` is these `data`, or a parameter of which they are the value."""
        raise NotImplementedError(f"{type(self).__name__} has no forward")

    def calculate_qparams(self) -> tuple[Array, Array]:
        """Choose scale and zero point.

        Returns
        -------
        scale : ndarray
            One scale, or one a channel.
        zero_point : ndarray
            Zero points of the same shape.
        """
        raise NotImplementedError(f"{type(self).__name__} has no qparams")

    def _seen(
        self, x: Array, found: tuple[Array, Array] | None = None
    ) -> tuple[Array, Array] | None:
        """Have the observer see `x`, and choose qparams, unless others were `found`.

        None if it has seen nothing yet, or a shape alone. Refuses qparams that are to be used now
        and cannot be.
        """
        observer = self.activation_post_process
        observer(x)
        # An observer of the user's own may choose without a range of what it has seen.
        own = type(observer).calculate_qparams is not Observer.calculate_qparams
        if isinstance(x, ArraySpec) or (observer._unset and not (own and x.size)):
            return None
        qparams = found or observer.calculate_qparams()
        if own:  # and in arrays that it keeps
            scale, zero_point = self._in_arrays(x, qparams)
            qparams = astype(scale, _FLOAT), zero_point
        self._check_qparams(*qparams)
        if own:
            self._check_zero_point(*qparams)
        return qparams

    def _in_arrays(self, x: Array, qparams: Any) -> tuple[Array, Array]:
        """What an observer of the user's own has chosen, in arrays with one axis."""
        if not isinstance(qparams, (tuple, list)) or len(qparams) != 2:
            raise TypeError(
                "activation_post_process must choose scale and zero_point, two arrays, "
                f"got {show(qparams)}"
            )
        scale, zero_point = (
            ravel(copy(following(x, v) if on_device(v) else checks.real(v, name)))
            for name, v in zip(_CHOSEN, qparams, strict=True)
        )
        checks.of_shape(zero_point, _CHOSEN[1], kind(scale)[0])
        return scale, zero_point

    def _check_zero_point(self, scale: Array, zero_point: Array) -> None:
        """Refuse zero points of an observer of the user's own that the module cannot keep."""

    def _check_qparams(self, scale: Array, zero_point: Array) -> None:
        """Refuse what was chosen, if it is to be used now and cannot be."""
        if not (self._uses_qparams and isinstance(scale, np.ndarray)):
            return
        for must, p, least in (
            ("scale must be positive and finite", scale, 5e-324),
            ("zero_point must be finite", zero_point, -checks.MOST),
        ):
            i = checks.outside(p := flat(p), least, checks.MOST)
            if i >= 0:
                raise ValueError(
                    f"{must} in float32, got {p[i]}: x is not finite, or something that "
                    "was observed before, which activation_post_process.reset_min_max_vals() "
                    "forgets"
                )

    def _count(self, x: Any) -> int:
        """How many channels `x` has."""
        count: int = x.shape[checks.axis_of(self.ch_axis, x, "ch_axis", "x")]
        return count

    @property
    def _uses_qparams(self) -> bool:
        """Whether a call uses scale and zero point."""
        return self._on("fake_quant_enabled")

    def _check_array(self, key: str, name: str, array: Array) -> None:
        if name in self._switches:
            checks.of_shape(array, key, (1,))
            if array[0] not in (0, 1):
                raise ValueError(f"{key} must be 0 or 1, got {show(array)}")

    def _check_state(self, prefix: str, state: Mapping[str, Array]) -> None:
        """Switches do not depend on each other."""

    def _bounds_repr(self) -> str:
        return (
            f"quant_min={self.quant_min}, quant_max={self.quant_max}, dtype={self.dtype}, "
            f"qscheme={self.qscheme}, ch_axis={self.ch_axis}"
        )


def in_rows(x: Any, group_size: int | None, per_token: bool = False) -> Any:
    """What an observer sees of `x`: groups and tokens as rows."""
    if group_size is not None:
        width = checks.group_size_of(group_size, x, "x")
    elif per_token:
        width = x.shape[-1] if x.ndim else 1
    else:
        return x
    shape = x.size // width, width
    if on_device(x):  # a view of what has no gaps, where a library is given a copy
        return flat(x).viewed(shape)
    return reshape(x, shape)


class FakeQuantize(FakeQuantizeBase):
    """Observe what passes, choose qparams from it, and fake quantize with them.

    With the observer on, a call first observes the array and takes scale and zero point anew. With
    fake quantizing on, it returns what `fake_quantize_per_tensor_affine` or
    `fake_quantize_per_channel_affine` makes of the array; otherwise, and if it is empty, the array
    itself. On a tape the gradient passes where codes were not clamped; no gradient goes by way of
    the scale.

    Parameters
    ----------
    observer : callable, default MovingAverageMinMaxObserver
        Class of an observer, or what makes one, such as ``MinMaxObserver.with_args(...)``.
    quant_min, quant_max : int, optional
        Least and greatest code, both or neither. Without them, those that the observer has.
    is_dynamic : bool, default False
        Passed to the observer if it is true.
    **observer_kwargs
        Further arguments of the observer.

    Attributes
    ----------
    activation_post_process : Observer
        The observer.
    scale : ndarray
        Scales, float32 of shape (1,), or (C,) for C channels.
    zero_point : ndarray
        Zero points of the same shape: int32, or float32 of the scheme with float qparams.
    fake_quant_enabled, observer_enabled : ndarray
        Switches, 0 or 1: uint8 of shape (1,).

    Raises
    ------
    TypeError
        If an argument is of the wrong kind or of a dtype that is not allowed; the codes must be
        integers. Of a call: if the array is not one of floats.
    ValueError
        If the observer refuses an argument. Of a call: if the observer refuses the array, or the
        scale is not positive and finite, as after a NaN; the observer forgets an array that is to
        be quantized too.

    See Also
    --------
    FusedMovingAvgObsFakeQuantize : Observe and quantize in one step, with FBGEMM's qparams.
    LearnableFakeQuantize : Learn the qparams.

    Notes
    -----
    Corresponds to ``torch.ao.quantization.FakeQuantize`` of PyTorch 2.13, with the keys of its
    state.

    Of float64 with one scale, a value is a float32 product, as in PyTorch: of its codes it is what
    `npquant.dequantize_per_tensor` gives in float32, and not with float64 for `out_dtype`.

    Departures from PyTorch: D10, D13, D25, D27; see docs/departures.md.

    Examples
    --------
    >>> import numpy as np
    >>> from npquant.modules import FakeQuantize, MinMaxObserver
    >>> fake_quantize = FakeQuantize(MinMaxObserver, -8, 7, dtype=np.int8)
    >>> fake_quantize(np.array([-1.6, 0.32, 1.4], np.float32))
    array([-1.6,  0.4,  1.4], dtype=float32)
    >>> fake_quantize.disable_observer()
    >>> fake_quantize(np.array([9], np.float32))
    array([1.4], dtype=float32)
    """

    _buffers = (*FakeQuantizeBase._buffers, "scale", "zero_point")
    _travelling = ("scale", "zero_point")
    _kinds: ClassVar[Kinds] = {
        **FakeQuantizeBase._kinds,
        "scale": (_FLOAT,),
        "zero_point": (_FLOAT, _INT32),
    }

    scale: Array
    zero_point: Array

    def __init__(
        self,
        observer: Callable[..., Any] = MovingAverageMinMaxObserver,
        quant_min: int | None = None,
        quant_max: int | None = None,
        is_dynamic: bool = False,
        **observer_kwargs: Any,
    ) -> None:
        if quant_min is not None or quant_max is not None:
            observer_kwargs |= {"quant_min": quant_min, "quant_max": quant_max}
        if checks.switch(is_dynamic, "is_dynamic"):
            observer_kwargs["is_dynamic"] = True
        super().__init__(observer, observer_kwargs)
        self.is_dynamic = self.activation_post_process.is_dynamic
        self.scale = np.ones(1, _FLOAT)
        self.zero_point = np.zeros(1, _FLOAT if self.qscheme == FLOAT_QPARAMS else _INT32)

    def _forward(self, call: Callable[..., Any], x: Any, data: Array) -> Any:
        if self._on("observer_enabled"):
            self._observe(data)
        return self._quantized(call, x) if self._on("fake_quant_enabled") and data.size else x

    def _observe(self, x: Array) -> None:
        qparams = self._seen(x)
        if qparams is not None:
            zero_point = astype(qparams[1], kind(self.zero_point)[1])
            self.__dict__.update(scale=qparams[0], zero_point=zero_point)

    def _check_zero_point(self, scale: Array, zero_point: Array) -> None:
        if self.qscheme == FLOAT_QPARAMS or not type(scale) is type(zero_point) is np.ndarray:
            return
        lo, hi, used = self.quant_min, self.quant_max, zero_point[np.isfinite(scale)]
        z = used.astype(np.float64)  # which holds the bounds, as other floats may not
        wrong = used[~((z >= lo) & (z <= hi) & (z == np.rint(z)))]
        if wrong.size:
            raise ValueError(f"{_CHOSEN[1]} must be of integers within {lo}..{hi}, got {wrong[0]}")

    def _quantized(self, call: Callable[..., Any], x: Any) -> Any:
        data = value_of(x)
        if isinstance(data, ArraySpec) and self._on("observer_enabled"):
            qparams = self._of_spec(data)
        else:
            self._bring(data, "scale", "zero_point")
            qparams = given(data, self.scale), given(data, self.zero_point)
        bounds = self.quant_min, self.quant_max
        if not self.is_per_channel:
            return call(nq.fake_quantize_per_tensor_affine, x, *qparams, *bounds)
        try:
            return call(nq.fake_quantize_per_channel_affine, x, *qparams, self.ch_axis, *bounds)
        except ValueError:
            self._check_channels(data)
            raise

    def _check_channels(self, x: Array) -> None:
        """Refuse what has other channels, in terms of the module."""
        channels = self._count(x)
        (scales,), _ = kind(self.scale)
        if channels != scales:
            raise ValueError(
                f"x must have {scales} channels along ch_axis {self.ch_axis}, as scale has, "
                f"got {channels}"
            ) from None

    def _of_spec(self, x: ArraySpec) -> tuple[Any, Any]:
        """Qparams as an array of this shape will have them."""
        shape = (self._count(x) if self.is_per_channel else 1,)
        scale, zero_point = (kind(v)[1] for v in (self.scale, self.zero_point))
        return ArraySpec(shape, scale), ArraySpec(shape, zero_point)

    def calculate_qparams(self) -> tuple[Array, Array]:
        """Choose scale and zero point from what was observed.

        Returns
        -------
        scale : ndarray
            Scales, float32 of shape (1,) or of one a channel. Before anything was seen 1, with a
            warning.
        zero_point : ndarray
            Zero points of the same shape: int32 of the affine schemes, int64 of the symmetric ones,
            float32 of the scheme with float qparams. Before anything was seen an int64 0.

        Raises
        ------
        ValueError
            If arrays that were assigned to the observer do not go together.
        """
        return self.activation_post_process.calculate_qparams()

    def _check_array(self, key: str, name: str, array: Array) -> None:
        super()._check_array(key, name, array)
        if name in ("scale", "zero_point"):
            checks.of_shape(array, key, (array.size if self.is_per_channel else 1,))
        # What was made of an observed NaN is NaN, and may be saved and loaded.
        if name == "scale" and (array <= 0).any():
            raise ValueError(f"{key} must be positive, got {show(array)}")

    def _check_state(self, prefix: str, state: Mapping[str, Array]) -> None:
        checks.of_shape(state["zero_point"], key_of(prefix, "zero_point"), state["scale"].shape)
        if self.qscheme != FLOAT_QPARAMS:
            lo, hi = self._bounds_so_far()
            z = state["zero_point"][np.isfinite(state["scale"])]
            if not ((z >= lo) & (z <= hi)).all():
                raise ValueError(
                    f"{key_of(prefix, 'zero_point')} must lie within {lo}..{hi}, "
                    f"got {show(state['zero_point'])}"
                )

    def extra_repr(self) -> str:
        """What stands between the brackets of the repr."""
        return (
            f"fake_quant_enabled={self.fake_quant_enabled}, "
            f"observer_enabled={self.observer_enabled}, {self._bounds_repr()}, "
            f"scale={self.scale}, zero_point={self.zero_point}"
        )


class FusedMovingAvgObsFakeQuantize(FakeQuantize):
    """Move a running range, choose qparams from it, and fake quantize, all in one step.

    The step is `fused_moving_avg_obs_fake_quant`, with the qparams of FBGEMM: a symmetric scale
    divides by 127, not 127.5, for int8. `calculate_qparams` gives these too. While fake quantizing
    is off, scale and zero point stay as they are; the range moves.

    Parameters
    ----------
    observer : callable, default MovingAverageMinMaxObserver
        `MovingAverageMinMaxObserver`, `MovingAveragePerChannelMinMaxObserver`, or what makes one of
        these.
    quant_min, quant_max : int, default 0 and 255
        Least and greatest code.
    **observer_kwargs
        Further arguments of the observer. Its `eps` has no effect.

    Attributes
    ----------
    activation_post_process : Observer
        The observer, which holds the running range.
    scale : ndarray
        Scales, float32 of shape (1,), or (C,) for C channels.
    zero_point : ndarray
        Zero points, int32 of the same shape.
    fake_quant_enabled, observer_enabled : ndarray
        Switches, 0 or 1: int64 of shape (1,).

    Raises
    ------
    TypeError
        If an argument is of the wrong kind or of a dtype that is not allowed, or the observer no
        moving average. Of a call: if the array is not one of floats.
    ValueError
        If the observer refuses an argument, or its scheme has float qparams. Of a call: if the
        array has no such axis, or other channels than before.

    See Also
    --------
    FakeQuantize : Quantize with the qparams of any observer.
    npquant.fused_moving_avg_obs_fake_quant : The step.

    Notes
    -----
    Corresponds to ``torch.ao.quantization.FusedMovingAvgObsFakeQuantize`` of PyTorch 2.13, with the
    keys of its state.

    Departures from PyTorch: D10, D24, D25, D27; see docs/departures.md.

    Examples
    --------
    >>> import numpy as np
    >>> from npquant.modules import FusedMovingAvgObsFakeQuantize
    >>> fake_quantize = FusedMovingAvgObsFakeQuantize(
    ...     quant_min=-128, quant_max=127, dtype=np.int8, qscheme="per_tensor_symmetric"
    ... )
    >>> fake_quantize(np.array([-1, 0.504, 1.27], np.float32))
    array([-1.  ,  0.5 ,  1.27], dtype=float32)
    >>> fake_quantize.calculate_qparams()
    (array([0.01], dtype=float32), array([0], dtype=int32))
    """

    def __init__(
        self,
        observer: Callable[..., Any] = MovingAverageMinMaxObserver,
        quant_min: int = 0,
        quant_max: int = 255,
        **observer_kwargs: Any,
    ) -> None:
        super().__init__(observer, quant_min, quant_max, **observer_kwargs)
        made = self.activation_post_process
        if not isinstance(made, _AVERAGES):
            raise TypeError(f"observer must make a moving average, got {type(made).__name__}")
        if self.qscheme == FLOAT_QPARAMS:
            raise ValueError(
                "qscheme must have integer zero points, as per_channel_affine has, "
                f"got {self.qscheme!r}"
            )
        self.is_symmetric_quant = self.qscheme.endswith("_symmetric")
        self.__dict__.update({name: np.ones(1, np.int64) for name in self._switches})

    def _check_module(self, name: str, value: Any) -> None:
        super()._check_module(name, value)
        if not isinstance(value, _AVERAGES):
            raise TypeError(f"{name} must be a moving average, got {type(value).__name__}")

    def _forward(self, call: Callable[..., Any], x: Any, data: Array) -> Any:
        if data.size == 0:
            return x
        observing, enabled = self._on("observer_enabled"), self._on("fake_quant_enabled")
        if not observing and not enabled:
            return x
        seen: Any = self.activation_post_process
        low, high, scale, zero_point = state = self._state_for(data)
        y = call(
            nq.fused_moving_avg_obs_fake_quant, x, observing, enabled, *state,
            seen.averaging_constant, self.quant_min, self.quant_max, self.ch_axis,
            self.is_per_channel, self.is_symmetric_quant,
        )  # fmt: skip
        if isinstance(data, ArraySpec):
            return y
        if observing:
            seen._keep(seen._shaped(low, high))
        if enabled:
            self.__dict__.update(scale=scale, zero_point=zero_point)
        return y

    def _state_for(self, x: Array) -> tuple[Array, Array, Array, Array]:
        """Copies of the state, which the step writes to; of one a channel from the first call."""
        seen = self.activation_post_process
        if not seen._unset:
            seen._bring(x, "min_val", "max_val")
        self._bring(x, "scale", "zero_point")
        low, high, scale, zero_point = seen.min_val, seen.max_val, self.scale, self.zero_point
        if self.is_per_channel:
            channels = self._count(x)
            seen._check_channels(channels)
            if seen._unset:
                low = np.full(channels, np.inf, _FLOAT)
                high = np.full(channels, -np.inf, _FLOAT)
            if kind(scale)[0] != (channels,):
                scale, zero_point = np.ones(channels, _FLOAT), np.zeros(channels, _INT32)
        elif isinstance(low, np.ndarray):  # as the op has the least to do with
            low, high = low.reshape(1), high.reshape(1)
        if isinstance(x, ArraySpec):
            return given(x, low), given(x, high), given(x, scale), given(x, zero_point)
        low, high, scale, zero_point = (
            copy(following(x, v)) for v in (low, high, scale, zero_point)
        )  # fmt: skip
        return low, high, scale, zero_point

    def calculate_qparams(self) -> tuple[Array, Array]:
        """Choose scale and zero point from the running range, as a call does.

        Returns
        -------
        scale : ndarray
            Scales, float32 of shape (1,) or of one a channel. Before anything was seen 1, with a
            warning.
        zero_point : ndarray
            Zero points of the same shape, int32; before anything was seen an int64 0.
        """
        seen = self.activation_post_process
        if seen._unset:
            return seen.calculate_qparams()
        low, high = seen._range()
        lib: Any = backend.of(low)
        choose = lib.choose_fbgemm_symmetric if self.is_symmetric_quant else lib.choose_fbgemm
        x = checks.array(low, "min_val")
        scale, zero_point = new(x, x.shape, _FLOAT), new(x, x.shape, _INT32)
        bounds = self.quant_min, self.quant_max
        choose(low, high, bounds, SMALL_SCALE, 0, "float32", scale, zero_point)
        return scale, zero_point

    def extra_repr(self) -> str:
        """What stands between the brackets of the repr, in PyTorch's order."""
        return (
            f"fake_quant_enabled={self.fake_quant_enabled}, "
            f"observer_enabled={self.observer_enabled}, scale={self.scale}, "
            f"zero_point={self.zero_point}, dtype={self.dtype}, quant_min={self.quant_min}, "
            f"quant_max={self.quant_max}, qscheme={self.qscheme}, "
            f"reduce_range={self.activation_post_process.reduce_range}"
        )
