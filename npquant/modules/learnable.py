"""Fake quantize with qparams that are learned, from an estimate on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np

import npquant as nq
from npquant import checks, dtypes
from npquant.arithmetic import maximum, rounded
from npquant.arrays import (
    array_of,
    astype,
    beside,
    flat,
    following,
    full_like,
    given,
    kind,
    reshape,
)
from npquant.autograd import Parameter
from npquant.cpu.metrics import total, total_magnitude, total_squared_difference
from npquant.errors import show
from npquant.meta import ArraySpec
from npquant.modules.fake_quantize import SWITCH, FakeQuantizeBase, in_rows
from npquant.modules.module import Array, Kinds, Options, check_eps
from npquant.modules.observers import EPS, FLOAT_QPARAMS, PER_CHANNEL, MSEObserver
from npquant.ops.learnable import ZERO_POINT_ROUNDINGS
from npquant.owners import is_array

_FLOAT = dtypes.float32
#: What `init` may be.
INITS = ("observer", "lsq", "lsq+")
#: Channels whose histograms are kept at a time: some 32 KiB each.
_CHANNELS = 1024


class LearnableFakeQuantize(FakeQuantizeBase):
    """Fake quantize with a scale and a zero point that can be learned.

    It starts with static estimates: a call observes the array, takes scale and zero point from it,
    and fake quantizes. From `enable_param_learning` on, scale and zero point are left to an
    optimizer, and on a tape they have gradients: those of LSQ [1]_ and LSQ+ [2]_, by the code of
    the forward. A scale below `eps` is raised to it when it is used.

    Parameters
    ----------
    observer : callable
        Class of an observer, or what makes one, such as ``MinMaxObserver.with_args(...)``.
    quant_min, quant_max : int, default 0 and 255
        Least and greatest code, with zero between, within the bounds of the observer's dtype.
    scale : float, default 1.0
        Scale at first.
    zero_point : float, default 0.0
        Zero point at first. That of a symmetric scheme is the observer's, and is not learned.
    channel_len : int, default -1
        Number of scales: of channels, tokens or groups. -1 is one.
    use_grad_scaling : bool, default False
        Whether to multiply the gradients of scale and zero point by ``1 / sqrt(n * quant_max)``
        for n elements, with ``-quant_min`` in place of a `quant_max` of 0.
    per_token : bool, default False
        Whether each row along the last axis has a scale; the observer is one of channels, with
        `ch_axis` 0, and sees rows.
    group_size : int, optional
        Number of neighbours along the last axis that share a scale; the observer is one of
        channels, with `ch_axis` 0, and sees groups.
    init : {"observer", "lsq", "lsq+"}, default "observer"
        What a static estimate is: qparams of the observer; of the array alone the scale
        ``2 * mean(abs(x)) / sqrt(quant_max)`` of LSQ, with ``-quant_min`` in place of a `quant_max`
        of 0; or of the array alone those of LSQ+, which in a symmetric scheme are
        ``max(abs(mean - 3 * std), abs(mean + 3 * std))`` divided by half the number of codes, else
        those of least squared error, by an `MSEObserver`, which takes some milliseconds a channel.
    zero_point_rounding : {"nearest", "pytorch"}, default "nearest"
        Whether gradients are those of the zero point and the code that the forward uses, or
        PyTorch's, which per tensor rounds most zero points below -1/2 to others in its backward.
    **observer_kwargs
        Further arguments of the observer.

    Attributes
    ----------
    activation_post_process : Observer
        The observer.
    scale, zero_point : Parameter
        What is learned: float32 of shape (1,) or (channel_len,), which a call makes of other
        numbers. Their arrays are replaced by a call that changes them, so give an optimizer the
        parameters.
    fake_quant_enabled, static_enabled, learning_enabled : ndarray
        Switches, 0 or 1: uint8 of shape (1,).
    observer_enabled : ndarray
        Always 1: PyTorch has this key, and leaves it alone.
    eps : ndarray
        Least scale, float32 of shape (1,).
    bitwidth : int
        Whole bits of the codes.

    Raises
    ------
    TypeError
        If an argument is of the wrong kind or of a dtype that is not allowed; the codes must be
        integers. Of a call: if the array is not one of floats, or one on a GPU of which qparams are
        to be estimated by another `init` than "observer".
    ValueError
        If the observer refuses an argument, `scale` is not positive, `scale` or `zero_point` is not
        finite in float32, `channel_len` is neither -1 nor positive or not 1 of a scheme per tensor,
        `init` or `zero_point_rounding` is unknown, `group_size` is below 2, both tokens and groups
        are asked for, or one where the observer has no channels or `ch_axis` is not 0. Of a call:
        if the observer refuses the array, it has not `channel_len` channels, a scale is not
        positive and finite, or a zero point is NaN.

    See Also
    --------
    FakeQuantize : Fake quantize with observed qparams.
    npquant.fake_quantize_learnable_per_tensor_affine_backward : The gradients.

    Notes
    -----
    Corresponds to ``torch.ao.quantization._learnable_fake_quantize._LearnableFakeQuantize`` of
    PyTorch 2.13, with the keys of its state. Tokens, groups and `init` are not PyTorch's.

    The op clamps zero points to the bounds. With float qparams an observer's may lie outside, for a
    channel whose range does not hold 0, of which values are clipped then; ``init="lsq+"`` chooses
    zero points within the bounds.

    Departures from PyTorch: D7, D10, D12, D13, D25, D28; see docs/departures.md.

    The codes of what was learned are those of the module's result, which lies on the grid (of codes
    of up to 21 bits; in two-byte floats, of up to 8). Codes of the array itself may be others at
    ties: quantize ops per token and per group add the zero point before they round, the module
    after, and with ``rounding="divide"`` they divide, where the module multiplies by the
    reciprocal. Of float64, `npquant.dequantize_per_token` and
    `npquant.dequantize_per_channel_group` need the scales in float64 to give the result; with one
    scale it is a float32 product, which `npquant.dequantize_per_tensor` gives in float32, and not
    with float64 for `out_dtype`.

    References
    ----------
    .. [1] S. K. Esser et al., "Learned Step Size Quantization", ICLR 2020, arXiv:1902.08153.
    .. [2] Y. Bhalgat et al., "LSQ+: Improving low-bit quantization through learnable offsets and
       better initialization", CVPR Workshops 2020, arXiv:2004.09576.

    Examples
    --------
    >>> import numpy as np
    >>> import npquant as nq
    >>> import npquant.autograd as ag
    >>> from npquant.modules import LearnableFakeQuantize, MinMaxObserver
    >>> fake_quantize = LearnableFakeQuantize(MinMaxObserver, -8, 7, dtype=np.int8)
    >>> x = np.array([-1.6, 0.32, 1.4], np.float32)
    >>> y = fake_quantize(x)
    >>> fake_quantize.enable_param_learning().scale.value
    array([0.2], dtype=float32)
    >>> with ag.Tape() as tape:
    ...     loss = tape.apply(ag.mse_loss, tape.apply(fake_quantize, x), x)
    >>> tape.gradient(loss, fake_quantize.scale).round(4)
    array([0.0213], dtype=float32)

    Codes of the result, which dequantize to it:

    >>> y, (scale, zero_point) = fake_quantize(x), fake_quantize.calculate_qparams()
    >>> codes = nq.quantize_per_tensor(y, scale, zero_point, -8, 7, np.int8)
    >>> codes
    array([-8,  2,  7], dtype=int8)
    >>> np.array_equal(nq.dequantize_per_tensor(codes, scale, zero_point, -8, 7, np.int8), y)
    True
    """

    _parameters = ("scale", "zero_point")
    _switches = (*FakeQuantizeBase._switches, "static_enabled", "learning_enabled")
    _buffers = (*_switches, "eps")
    _kinds: ClassVar[Kinds] = {
        **dict.fromkeys(_switches, (SWITCH, dtypes.int64)),
        **dict.fromkeys((*_parameters, "eps"), (_FLOAT,)),
    }
    _options: ClassVar[Options] = {
        **dict.fromkeys(("use_grad_scaling", "per_token"), checks.switch),
        "group_size": lambda value, _: checks.group_size_alone(value),
        "init": partial(checks.option, allowed=INITS),
        "zero_point_rounding": partial(checks.option, allowed=ZERO_POINT_ROUNDINGS),
    }

    static_enabled: Array
    learning_enabled: Array

    def __init__(
        self,
        observer: Callable[..., Any],
        quant_min: int = 0,
        quant_max: int = 255,
        scale: float = 1.0,
        zero_point: float = 0.0,
        channel_len: int = -1,
        use_grad_scaling: bool = False,
        *,
        per_token: bool = False,
        group_size: int | None = None,
        init: str = "observer",
        zero_point_rounding: str = "nearest",
        **observer_kwargs: Any,
    ) -> None:
        bounds = {"quant_min": quant_min, "quant_max": quant_max}
        super().__init__(observer, observer_kwargs | bounds)
        self.use_grad_scaling, self.per_token = use_grad_scaling, per_token
        self.group_size, self.init = group_size, init
        self.zero_point_rounding = zero_point_rounding
        if self.per_token or self.group_size is not None:
            self._check_rows()
        self.channel_len = checks.within(channel_len, "channel_len", -1, 2**31 - 1)
        if self.channel_len == 0:
            raise ValueError("channel_len must be -1 or positive, got 0")
        if self.channel_len > 1 and not self.is_per_channel:
            raise ValueError(f"channel_len must be -1 or 1 for {self.qscheme}, got {channel_len}")
        count = max(self.channel_len, 1)
        s, z = checks.scale_float32(scale, "scale"), checks.finite_float32(zero_point, "zero_point")
        self.scale = Parameter(np.full(count, s, _FLOAT), "scale")
        self.zero_point = Parameter(np.full(count, z, _FLOAT), "zero_point")
        self.eps = np.array([EPS], _FLOAT)
        self._switch("learning_enabled", False)

    @property
    def bitwidth(self) -> int:
        """Whole bits of the codes."""
        return int(self.quant_max - self.quant_min + 1).bit_length() - 1

    def _check_rows(self) -> None:
        """Raise a ValueError unless rows can be observed as channels."""
        if self.per_token and self.group_size is not None:
            raise ValueError(f"group_size must be None if per_token, got {self.group_size}")
        if not self.is_per_channel or self.ch_axis != 0:
            raise ValueError(
                "observer must have channels, and ch_axis 0, for tokens and groups, got "
                f"{self.qscheme} and {self.ch_axis}"
            )

    # --- switches -----------------------------------------------------------------------------

    def enable_param_learning(self) -> Self:
        """Learn scale and zero point: fake quantize, and estimate no more.

        Returns
        -------
        LearnableFakeQuantize
            The module itself.
        """
        return self._mode(learning=True, fake_quant=True, static=False)

    def enable_static_estimate(self) -> Self:
        """Estimate scale and zero point from each array, and fake quantize.

        Returns
        -------
        LearnableFakeQuantize
            The module itself.
        """
        return self._mode(learning=False, fake_quant=True, static=True)

    def enable_static_observation(self) -> Self:
        """Estimate scale and zero point from each array, and let it pass as it is.

        Returns
        -------
        LearnableFakeQuantize
            The module itself.
        """
        return self._mode(learning=False, fake_quant=False, static=True)

    def _mode(self, learning: bool, fake_quant: bool, static: bool) -> Self:
        # What was learned is never estimated, wherever an interrupt comes.
        self.toggle_observer_update(False).toggle_qparam_learning(learning)
        return self.toggle_fake_quant(fake_quant).toggle_observer_update(static)

    def toggle_qparam_learning(self, enabled: bool = True) -> Self:
        """Switch the gradients of scale and zero point on, or off.

        Parameters
        ----------
        enabled : bool, default True
            Whether scale and zero point have gradients.

        Returns
        -------
        LearnableFakeQuantize
            The module itself.
        """
        self._switch("learning_enabled", enabled)
        return self

    def toggle_fake_quant(self, enabled: bool = True) -> Self:
        """Switch fake quantizing on, or off.

        Parameters
        ----------
        enabled : bool, default True
            Whether to fake quantize; otherwise arrays pass as they are.

        Returns
        -------
        LearnableFakeQuantize
            The module itself.
        """
        self._switch("fake_quant_enabled", enabled)
        return self

    def toggle_observer_update(self, enabled: bool = True) -> Self:
        """Switch static estimates on, or off.

        Parameters
        ----------
        enabled : bool, default True
            Whether to observe, and to take scale and zero point from what was seen.

        Returns
        -------
        LearnableFakeQuantize
            The module itself.
        """
        self._switch("static_enabled", enabled)
        return self

    def enable_observer(self, enabled: bool = True) -> None:
        """Switch static estimates on, or off.

        Parameters
        ----------
        enabled : bool, default True
            As of `toggle_observer_update`.
        """
        self.toggle_observer_update(enabled)

    # --- what it does -------------------------------------------------------------------------

    def _forward(self, call: Callable[..., Any], x: Any, data: Array) -> Any:
        if isinstance(data, ArraySpec):  # which changes no state
            scale, zero_point = self.scale.value, self.zero_point.value
            if self._on("static_enabled") and data.size:
                seen = self._rows(data)
                self._check_channels(seen)
                self._seen(seen)
                scale, zero_point = (ArraySpec(kind(v)[0], _FLOAT) for v in (scale, zero_point))
            else:
                s, z = given(data, scale), given(data, zero_point)
                scale = self._scale() if s is scale else s
                zero_point = self._zero_point() if z is zero_point else z
        else:
            if self._on("static_enabled") and data.size:
                self._estimate(data)
            scale, zero_point = self._for_call(data)
        if not self._on("fake_quant_enabled") or data.size == 0:
            return x
        step, before, after = self._step()
        try:
            return call(
                step, x, scale, zero_point, *before, self.quant_min, self.quant_max, *after,
                self._grad_factor(data.size), zero_point_rounding=self.zero_point_rounding,
            )  # fmt: skip
        except ValueError:
            self._check_channels(self._rows(data))
            raise

    def _for_call(self, x: Array) -> tuple[Any, Any]:
        """The scale and the zero point beside `x`: Parameters, if they are learned."""
        if not (isinstance(x, np.ndarray) and self._scale_is_used):
            _replace(self.scale, self._scale(x))
        _replace(self.zero_point, self._learned("zero_point", x))
        if self._on("fake_quant_enabled") and x.size:
            if self._symmetric:
                _replace(self.zero_point, self._zero_point(x))
            for parameter in (self.scale, self.zero_point):
                parameter.value = beside(x, parameter.value)
        if not self._on("learning_enabled"):
            return self.scale.value, self.zero_point.value
        return self.scale, self.zero_point.value if self._symmetric else self.zero_point

    def _step(self) -> tuple[Callable[..., Any], tuple[int, ...], tuple[int, ...]]:
        """The op, and what stands before and after its bounds."""
        if self.group_size is not None:
            after = (self.group_size,)
            return nq.fake_quantize_learnable_per_channel_group_affine, (), after
        if self.per_token:
            return nq.fake_quantize_learnable_per_token_affine, (), ()
        if self.is_per_channel:
            return nq.fake_quantize_learnable_per_channel_affine, (self.ch_axis,), ()
        return nq.fake_quantize_learnable_per_tensor_affine, (), ()

    def _grad_factor(self, size: int) -> float:
        if not self.use_grad_scaling:
            return 1.0
        return float(1.0 / (size * (self.quant_max or -self.quant_min)) ** 0.5)

    @property
    def _symmetric(self) -> bool:
        return self.activation_post_process._symmetric

    @property
    def _scale_is_used(self) -> bool:
        """Whether the scale, in NumPy, is used as it is."""
        scale = self.scale.value
        usual = type(scale) is np.ndarray and scale.dtype == _FLOAT
        return usual and checks.outside(flat(scale), float(self.eps[0]), math.inf) < 0

    def _learned(self, name: str, beside: Any) -> Array:
        """The array of a Parameter, to which anything may have been assigned, in float32."""
        value = array_of(getattr(self, name).value)
        if type(value) is np.ndarray and value.dtype == _FLOAT:
            return value
        if not is_array(value):
            raise TypeError(f"{name} must be an array of NumPy or on a GPU, got {show(value)}")
        dtypes.refuse_others(dtypes.native_order(kind(value, name)[1]), name, dtypes.REALS)
        array: Array = _single(value, beside)
        return array

    def _scale(self, beside: Any = None) -> Array:
        """The scale that is used, perhaps beside data: not below eps."""
        scale = self._learned("scale", beside)
        scale = scale if beside is None else following(beside, scale)
        least: Array = maximum(scale, float(self.eps[0]))
        return least

    def _zero_point(self, beside: Any = None) -> Array:
        """The zero point that is used, which in a symmetric scheme is not learned."""
        z = self._learned("zero_point", beside)
        if not self._symmetric:
            return z
        z = z if beside is None else following(beside, z)
        middle: Array = full_like(z, self.activation_post_process._middle)
        return middle

    def calculate_qparams(self) -> tuple[Array, Array]:
        """Give scale and zero point as a call uses them.

        Returns
        -------
        scale : ndarray
            Scales, float32, not below `eps`.
        zero_point : ndarray
            Zero points, int64: rounded to the nearest integer, ties to even, and clamped to the
            float32 numbers within the bounds.

        Raises
        ------
        TypeError
            If what was assigned to `scale` or `zero_point` is no array, or has a dtype that
            observers do not take.
        ValueError
            If a zero point is NaN.
        """
        self._check_observer()
        z = self._zero_point()
        if isinstance(z, np.ndarray):
            checks.no_nan(z, "zero_point")
        lo, hi = (_float32_within(bound) for bound in (self.quant_min, self.quant_max))
        return self._scale(), rounded(z, lo, hi, np.int64)

    # --- estimates ----------------------------------------------------------------------------

    def _estimate(self, x: Array) -> None:
        """Observe `x`, and take scale and zero point from it."""
        seen = self._rows(x)
        self._check_channels(seen)
        if self.init != "observer" and not isinstance(x, np.ndarray):
            raise TypeError(f"x must be a NumPy array to estimate by {self.init!r}, got {show(x)}")
        qparams = self._seen(seen, None if self.init == "observer" else self._chosen(seen))
        if qparams is not None:
            scale, zero_point = (astype(v, _FLOAT) for v in qparams)
            self.scale.value, self.zero_point.value = scale, zero_point

    def _check_channels(self, x: Array) -> None:
        """Refuse data whose channels are not those of the scale."""
        count = self._count(x) if self.is_per_channel else 1
        shape = kind(self.scale.value)[0]
        if shape != (count,) and (shape or self.is_per_channel):  # an op takes one without axes
            if shape != (max(self.channel_len, 1),):  # it is another one by now
                raise ValueError(f"scale must have the shape {(count,)}, got {shape}") from None
            groups = self.group_size is not None
            what = "groups" if groups else "rows" if self.per_token else "channels"
            raise ValueError(
                f"channel_len must be the number of {what}, {count}, got {self.channel_len}"
            ) from None

    def _chosen(self, x: Array) -> tuple[Array, Array]:
        """Scale and zero point by the rule that `init` names."""
        if self.init == "lsq":
            return self._lsq(self._channels(x)), beside(x, self._zero_point())
        if self._symmetric:
            return self._lsq_plus(self._channels(x)), beside(x, self._zero_point())
        return self._least_error(x)

    def _rows(self, x: Any) -> Any:
        """What the observer sees: tokens and groups as rows."""
        return in_rows(x, self.group_size, self.per_token)

    def _channels(self, x: Array) -> Iterable[Array]:
        if not self.is_per_channel:
            return [x]
        rows = np.moveaxis(x, self.ch_axis, 0)
        return [rows[i, ...] for i in range(len(rows))]  # arrays, though of no axes

    def _lsq(self, channels: Iterable[Array]) -> Array:
        """``2 * mean(abs(x)) / sqrt(quant_max)`` of each channel."""
        root = math.sqrt(self.quant_max or -self.quant_min)
        return self._raised([2 * total_magnitude((x,)) / x.size / root for x in channels])

    def _lsq_plus(self, channels: Iterable[Array]) -> Array:
        """``max(abs(mean - 3 * std), abs(mean + 3 * std))`` over half the codes, of a channel."""

        def reach(x: Array) -> float:
            mean: float = total((x,)) / x.size
            square: float = total_squared_difference(
                (x, np.broadcast_to(np.float64(mean), x.shape))
            )
            return abs(mean) + 3 * math.sqrt(square / x.size)

        half = (self.quant_max - self.quant_min + 1) / 2
        return self._raised([reach(x) / half for x in channels])

    def _raised(self, scales: list[float]) -> Array:
        with np.errstate(over="ignore"):
            return np.maximum(np.array(scales), self.eps).astype(_FLOAT)  # type: ignore[no-any-return]

    def _least_error(self, x: Array) -> tuple[Array, Array]:
        """The qparams whose squared error is least."""
        if np.isinf(x).any():  # which are counted in no bin
            raise ValueError("x must be finite to estimate by 'lsq+', got an infinity")
        axis = self.ch_axis if self.is_per_channel else None
        qscheme = PER_CHANNEL[0] if self.qscheme == FLOAT_QPARAMS else self.qscheme

        def of_rows(x: Array) -> tuple[Array, Array]:
            observer = MSEObserver(
                ch_axis=axis, dtype=self.dtype, qscheme=qscheme, quant_min=self.quant_min,
                quant_max=self.quant_max, eps=float(self.eps[0]),
            )  # fmt: skip
            observer(x)
            return observer.calculate_qparams()

        if axis is None:
            return of_rows(x)
        rows = np.moveaxis(x, axis, 0)
        some = (rows[i : i + _CHANNELS] for i in range(0, max(1, len(rows)), _CHANNELS))
        parts = [of_rows(np.moveaxis(part, 0, axis)) for part in some]
        scales, zero_points = zip(*parts, strict=True)
        return np.concatenate(scales), np.concatenate(zero_points)

    # --- state and looks ----------------------------------------------------------------------

    def _get(self, name: str) -> Array:
        array: Array = super()._get(name)
        if name not in self._parameters:
            return array
        array = _single(array)
        if is_array(array) and kind(array)[0] == ():  # as an op takes one
            array = reshape(array, (1,))
        return array

    def _check_array(self, key: str, name: str, array: Array) -> None:
        super()._check_array(key, name, array)
        if name in self._parameters:  # whose values optimizers move freely
            checks.of_shape(array, key, (math.prod(kind(self.scale.value)[0]),))
        if name == "eps":
            check_eps(key, array)

    def extra_repr(self) -> str:
        """What stands between the brackets of the repr."""
        parts = [
            f"{name}={getattr(self, name)}" for name in self._switches[:1] + self._switches[2:]
        ]
        rows = ["per_token=True"] * self.per_token
        if self.group_size is not None:
            rows.append(f"group_size={self.group_size}")
        scale, zero_point = self.scale.value, self.zero_point.value
        return ", ".join(
            [*parts, self._bounds_repr(), *rows, f"scale={scale}", f"zero_point={zero_point}"]
        )


def _single(array: Any, like: Any = None) -> Any:
    """Numbers in float32, as what is learned is saved, made beside data; anything else as it is."""
    array = array_of(array)
    if not is_array(array) or (dtype := kind(array)[1]) == _FLOAT:
        return array
    if dtypes.native_order(dtype) not in dtypes.REALS:
        return array
    if like is not None and not isinstance(array, np.ndarray):
        array = following(like, array)
    return astype(array, _FLOAT)


def _float32_within(bound: int) -> int:
    """The bound where zero points are float32: the next one towards 0 if that lies beyond."""
    near = np.float32(bound)
    return int(np.nextafter(near, np.float32(0)) if abs(int(near)) > abs(bound) else near)


def _replace(parameter: Parameter, array: Array) -> None:
    """Change the array of a parameter; a tape may still need the old one."""
    value = parameter.value
    if value is array:
        return
    on_host = isinstance(value, np.ndarray) and isinstance(array, np.ndarray)
    same = on_host and value.dtype == array.dtype
    if not (same and np.array_equal(value, array, equal_nan=True)):
        parameter.value = array
