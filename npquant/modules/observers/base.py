"""What all observers share: settings, a running range, and the qparams that follow from it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

import numpy as np

from npquant import backend, checks, dtypes, layout
from npquant.arithmetic import maximum, minimum, without_negative_zero
from npquant.arrays import astype, beside, copy, following, kind, new, on_host, ravel, reshape
from npquant.autograd.tape import value_of
from npquant.errors import show, warn
from npquant.layout import Granularity
from npquant.meta import ArraySpec
from npquant.modules.module import Array, Kinds, Module, Options, check_eps, key_of
from npquant.ops.qparams import middle
from npquant.owners import on_device

PER_TENSOR = ("per_tensor_affine", "per_tensor_symmetric")
PER_CHANNEL = ("per_channel_affine", "per_channel_symmetric")
FLOAT_QPARAMS = "per_channel_affine_float_qparams"

#: float32's machine epsilon, the least scale unless another is given.
EPS = 2.0**-23

FLOAT, EIGHT_BITS = dtypes.float32, (dtypes.int8, np.dtype(np.uint8))


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
    _travelling: ClassVar[tuple[str, ...]] = ("min_val", "max_val")
    _kinds: ClassVar[Kinds] = dict.fromkeys(_buffers, (FLOAT,))
    _options: ClassVar[Options] = {
        "dtype": lambda value, _: dtypes.target(value),
        "ch_axis": lambda value, name: None if value is None else checks.shaping(value, name),
        **dict.fromkeys(("quant_min", "quant_max"), checks.shaping),
        **dict.fromkeys(("reduce_range", "has_customized_qrange", "is_dynamic"), checks.switch),
    }

    #: Why observers of a class cannot be merged, if they cannot.
    _unmergeable: ClassVar[str] = ""
    #: Whether options were assigned since they were looked at together.
    _assigned: bool = False
    #: Whether the ends move each by itself, so that the least may come to exceed the greatest.
    _ends_may_cross: ClassVar[bool] = False

    ch_axis: int | None = None
    eps: Array
    min_val: Array
    max_val: Array

    def __init__(
        self, dtype: Any, qscheme: str, reduce_range: bool, quant_min: Any, quant_max: Any,
        eps: float, is_dynamic: bool,
    ) -> None:  # fmt: skip
        self.dtype = dtype
        self.qscheme = checks.option(qscheme, "qscheme", self._schemes)
        self.reduce_range = reduce_range
        self.has_customized_qrange = quant_min is not None or quant_max is not None
        self.quant_min, self.quant_max = self._bounds(quant_min, quant_max)
        self.is_dynamic = is_dynamic
        self._check_options()
        self.eps = np.array([checks.scale_float32(eps, "eps")], FLOAT)
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
            if self.reduce_range and self.dtype not in EIGHT_BITS:
                raise ValueError(
                    "reduce_range must be off, or bounds given, unless dtype is int8 or uint8, "
                    f"got {self.dtype}"
                )
        else:
            lo, hi = checks.bounds_of(quant_min, quant_max, self.dtype)
        why = ""
        if self.reduce_range:
            if self._symmetric and quant_min is None and lo == 0:
                raise ValueError(
                    f"reduce_range must be off, or bounds given, for symmetric {self.dtype}: its "
                    "zero point would lie outside"
                )
            why = f", halves of {lo} and {hi} as reduce_range is on"
            lo, hi = lo // 2, hi // 2
        _check_around_zero(lo, hi, why)
        return lo, hi

    def _check_options(self) -> None:
        """Raise an error unless the options go together, each of which is right by itself."""
        checks.option(self.qscheme, "qscheme", self._schemes)
        if (self.qscheme in PER_TENSOR) != (self.ch_axis is None):
            schemes = PER_TENSOR if self.ch_axis is None else PER_CHANNEL
            raise ValueError(
                f"with ch_axis {self.ch_axis} qscheme must be one of {', '.join(schemes)}, "
                f"got {self.qscheme}"
            )
        lo, hi = checks.bounds_of(self.quant_min, self.quant_max, self.dtype)
        _check_around_zero(lo, hi)
        if self._symmetric and not lo <= self._middle <= hi:
            raise ValueError(
                f"quant_min and quant_max must have the zero point {self._middle} between, "
                f"got {lo} and {hi}"
            )
        if self.is_dynamic:
            self._check_dynamic()

    def _check_dynamic(self) -> None:
        """Raise a ValueError unless this observer can be dynamic."""
        raise ValueError(f"is_dynamic must be False for {type(self).__name__}, got True")

    @property
    def _symmetric(self) -> bool:
        return self.qscheme.endswith("_symmetric")

    @property
    def _middle(self) -> int:
        """The zero point of a symmetric scheme."""
        return middle(self.dtype, self.quant_min, self.quant_max, self.has_customized_qrange)

    # --- seeing -------------------------------------------------------------------------------

    def forward(self, call: Callable[..., Any], x: Any) -> Any:
        """Observe `x` and return it; empty arrays and specs leave no trace."""
        data = checks.real(value_of(x), "x")
        if self.ch_axis is not None:
            axis = checks.axis_of(self.ch_axis, data, "ch_axis", "x")
            granularity = layout.per_channel(data.shape, axis)
        else:
            granularity = layout.whole(data.size)
        if data.size and self.ch_axis is not None:
            self._check_channels(granularity.channels)
        if data.size and type(data) is not ArraySpec:
            self._observe(granularity, data)
        return x

    def _observe(self, granularity: Granularity, x: Array) -> None:
        """Keep the extremes of all that was seen."""
        self._keep(self._widened(*extremes(granularity, x)))

    def _check_together(self) -> None:
        """Raise an error unless options go together, and arrays have as many channels.

        Each may be assigned, in any order.
        """
        if self._assigned:
            self._check_options()
            self.__dict__["_assigned"] = False
        low, high = self.min_val, self.max_val
        if not (type(low) is type(high) is np.ndarray and low.shape == high.shape):
            self._check_fits("max_val")

    def _check_fits(self, name: str) -> None:
        """Raise a ValueError unless an array has as many channels as min_val."""
        ours, theirs = kind(self.min_val)[0], kind(getattr(self, name))[0]
        if ours[:1] != theirs[:1]:
            raise ValueError(
                f"{name} must have {ours[0]} channels, as min_val has, got {theirs[0]}"
            )

    def _check_channels(self, channels: int) -> None:
        self._check_together()
        shape, _ = kind(self.min_val)
        if shape and shape[0] not in (0, channels):
            raise ValueError(
                f"x must have {shape[0]} channels along ch_axis {self.ch_axis}, as "
                f"before, got {channels}"
            )

    @property
    def _unset(self) -> bool:
        """Whether nothing was seen."""
        if not (isinstance(self.min_val, np.ndarray) and isinstance(self.max_val, np.ndarray)):
            return False  # it came to a GPU with what was seen
        if self.min_val.ndim:
            return self.min_val.size == 0
        return bool(self.min_val.item() == math.inf and self.max_val.item() == -math.inf)

    def _keep(self, ends: tuple[Array, Array], **more: Array) -> None:
        """Keep extremes, and more beside them, all at once: an interrupt finds old or new ones."""
        self.__dict__.update(more, min_val=ends[0], max_val=ends[1])

    def _shaped(self, least: Array, greatest: Array) -> tuple[Array, Array]:
        """Extremes, which have one element a channel, as they are kept."""
        shape = () if self.ch_axis is None else kind(least)[0]
        return reshape(least, shape), reshape(greatest, shape)

    def _widened(self, least: Array, greatest: Array) -> tuple[Array, Array]:
        """The range as it is kept when it has reached to these extremes."""
        if not self._unset:
            least = minimum(least, ravel(following(least, self.min_val)))
            greatest = maximum(greatest, ravel(following(greatest, self.max_val)))
        return self._shaped(least, greatest)

    def _checked(self, name: str, value: Any) -> Any:
        """An end on a GPU that is that of nothing is kept in NumPy, where `_unset` looks at it."""
        value = super()._checked(name, value)
        if name in (*self._options, "qscheme"):
            self.__dict__["_assigned"] = True
        if name in self._travelling and on_device(value):
            nothing = self._of_nothing()[name]
            if kind(value)[0] == nothing.shape and (on_host(value) == nothing).all():
                return nothing
        return value

    def reset_min_max_vals(self) -> None:
        """Forget everything that was seen."""
        self.__dict__.update(self._of_nothing())  # all at once

    def _of_nothing(self) -> dict[str, Array]:
        """The state before anything is seen."""
        shape = () if self.ch_axis is None else (0,)
        ends = {"min_val": math.inf, "max_val": -math.inf}
        return {name: np.full(shape, end, FLOAT) for name, end in ends.items()}

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

        Raises
        ------
        ValueError
            If arrays that were assigned have different numbers of channels, or a `min_val` in NumPy
            is greater than its `max_val` (but in a moving average).
        """
        self._check_together()
        if self._unset:
            warn("nothing was observed: the scale is 1, the zero point 0")
            return np.ones(1, FLOAT), np.zeros(1, np.int64)
        self._check_order("min_val", self.min_val, self.max_val)
        return self._choose(*self._range())

    def _choose(self, least: Array, greatest: Array) -> tuple[Array, Array]:
        """Scale and zero point of a range, computed in its dtype."""
        lib: Any = backend.of(least)
        code: dtypes.DType
        if self.qscheme == FLOAT_QPARAMS:
            choose, code = lib.choose_kept_float, FLOAT
        elif self._symmetric:
            choose, code = lib.choose_symmetric, dtypes.int64
        else:
            choose, code = lib.choose_affine, dtypes.int32
        x = checks.array(least, "min_val")
        scale, zero_point = new(x, x.shape, FLOAT), new(x, x.shape, code)
        choose(
            least, greatest, (self.quant_min, self.quant_max), float(self.eps[0]), self._middle,
            "float64" if x.dtype == dtypes.float64 else "float32", scale, zero_point,
        )  # fmt: skip
        return scale, zero_point

    def _range(self) -> tuple[Array, Array]:
        """The range that the qparams cover, one element a channel."""
        self._check_together()
        return ravel(self.min_val), ravel(beside(self.min_val, self.max_val))

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
            raise TypeError(f"other must be of the class {type(self).__name__}, got {show(other)}")
        for name in self._settings:
            ours, theirs = getattr(self, name), getattr(other, name)
            if ours != theirs:
                raise ValueError(f"other must have the {name} {show(ours)}, got {show(theirs)}")
        if self._symmetric and self._middle != other._middle:
            raise ValueError(
                f"other must have the zero point {self._middle}, got {other._middle}: bounds were "
                "given to one of both, whose middle it is"
            )
        if self.eps != other.eps:
            raise ValueError(f"other must have the eps {self.eps[0]}, got {other.eps[0]}")
        for observer in (self, other):
            observer._check_together()
        if other._unset:
            return
        (ours, _), (theirs, _) = kind(self.min_val), kind(other.min_val)
        if not self._unset and ours != theirs:
            raise ValueError(f"other must have {ours[0]} channels, got {theirs[0]}")
        self._merge(other)

    def _merge(self, other: Self) -> None:
        self._keep(self._merged(other))

    def _merged(self, other: Self) -> tuple[Array, Array]:
        """The extremes of both, as they are kept."""
        if self._unset:
            return self._shaped(ravel(copy(other.min_val)), ravel(copy(other.max_val)))
        low, high = self.min_val, self.max_val
        return minimum(low, beside(low, other.min_val)), maximum(high, beside(high, other.max_val))

    def _check_array(self, key: str, name: str, array: Array) -> None:
        if name == "eps":
            check_eps(key, array)
        else:
            checks.of_shape(array, key, () if self.ch_axis is None else (array.size,))

    def _check_state(self, prefix: str, state: Mapping[str, Array]) -> None:
        """The extremes have one shape, and the right order unless they are of nothing."""
        for name, array in state.items():
            if name != "eps":
                checks.of_shape(array, key_of(prefix, name), state["min_val"].shape)
        self._check_order(key_of(prefix, "min_val"), state["min_val"], state["max_val"])

    def _check_order(self, key: str, least: Array, greatest: Array) -> None:
        """Raise a ValueError if ends that are looked at, those in NumPy, are in the wrong order."""
        if self._ends_may_cross or on_device(least) or on_device(greatest):
            return
        wrong = least > greatest
        if not (np.count_nonzero(wrong) if wrong.ndim else wrong):  # sooner than `any`
            return
        if (wrong & ~((least == math.inf) & (greatest == -math.inf))).any():
            raise ValueError(
                f"{key} must not exceed max_val, got {show(least)} and {show(greatest)}"
            )

    def extra_repr(self) -> str:
        """What stands between the brackets of the repr."""
        return f"min_val={self.min_val}, max_val={self.max_val}"


def _check_around_zero(lo: int, hi: int, why: str = "") -> None:
    """Refuse bounds without zero between, or of a single code."""
    if not lo <= 0 <= hi or lo == hi:
        raise ValueError(
            "quant_min <= 0 <= quant_max with quant_min < quant_max is required, "
            f"got {lo} and {hi}{why}"
        )


def extremes(granularity: Granularity, x: Array) -> tuple[Array, Array]:
    """The least and the greatest value of each channel in float32; NaN where there is one."""
    return kept(*backend.of(x).minmax(granularity, x))


def kept(least: Array, greatest: Array) -> tuple[Array, Array]:
    """A range in float32. No zero has a sign: which is the least would depend on order."""
    low, high = astype(least, FLOAT), astype(greatest, FLOAT)
    return without_negative_zero(low), without_negative_zero(high)
