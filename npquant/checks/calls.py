"""What kernels are told: options, constants and precisions, remembered from call to call."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache, wraps
from math import prod
from typing import Any, TypeVar

import numpy as np

from npquant import dtypes, layout
from npquant.checks.numbers import axis_of, group_size_of
from npquant.dtypes import DType
from npquant.errors import in_our_words, show
from npquant.layout import Granularity
from npquant.meta import ArraySpec

#: The shapes that qparams may have.
Shapes = tuple[tuple[int, ...], ...]


class ShapesBy(Shapes):
    """The same, and what made them these, for the message of qparams that have others."""

    by = ""


T = TypeVar("T")


def option(value: Any, name: str, allowed: tuple[str, ...]) -> str:
    """One of some words."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a string, got {show(value)}{in_our_words(value, allowed)}")
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")
    return value


#: How an op comes from a value to its code.
ROUNDINGS = "reciprocal", "divide"


def divides(rounding: Any) -> bool:
    """Whether to divide by the scale, rather than to multiply by its reciprocal."""
    if type(rounding) is str and rounding == "reciprocal":
        return False
    return option(rounding, "rounding", ROUNDINGS) == "divide"


def adaround_precision(lo: int, hi: int, dtype: DType) -> str:
    """The precision of AdaRound's codes, which is that of the input and must hold them."""
    name = dtypes.precision(dtype, lo, hi)
    if name == "wide":
        exact = dtypes.exact_codes(dtype)
        raise ValueError(
            f"quant_min and quant_max must lie within {-exact}..{exact} for {dtype}, got {lo}..{hi}"
        )
    return name


#: What stays as it is, so that what was found of it still holds when it comes again. The first are
#: of these very types, and the others of these packages: what a user makes of them may change.
_PLAIN = frozenset({bool, float, int, str, tuple, type(None)})
_FIXED = np.generic, np.dtype, type, ArraySpec
_OWN = frozenset({"builtins", "numpy", "ml_dtypes", __package__.partition(".")[0]})
#: What may be a zero with a sign, of NumPy and of ml_dtypes, and of that what has none.
_NUMBERS, _UNSIGNED = (float, np.generic), (np.integer, np.bool_)


_memories: list[Any] = []
_ZEROS = object()  # what is remembered of arguments among which there are some


def _fixed(a: Any) -> bool:
    """Whether an argument stays as it is, and what equals it is the same.

    A dtype with metadata equals one without, and results would have it.
    """
    kind = a if isinstance(a, type) else type(a)
    fixed = isinstance(a, _FIXED) and kind.__module__.partition(".")[0] in _OWN
    if isinstance(a, np.dtype) and a.metadata is not None:
        return False
    return fixed or type(a) in _PLAIN


def _bare(a: Any) -> Any:
    """An argument without a dtype's metadata: a plan that is remembered has none, either."""
    return dtypes.without_metadata(a) if isinstance(a, np.dtype) else a


def _signs(args: tuple[Any, ...]) -> tuple[float, ...]:
    """The signs of the zeros among the arguments that have one."""
    return tuple([
        math.copysign(1, a)
        for a in args
        if isinstance(a, _NUMBERS) and not isinstance(a, _UNSIGNED) and a == 0
    ])  # fmt: skip


def forget() -> None:
    """Forget all that is `remembered`: for tests that put another backend in place."""
    for memory in _memories:
        memory.cache_clear()


def remembered(check: Callable[..., T]) -> Callable[..., T]:
    """`check`, run once for the same arguments: the same calls come again and again.

    Arrays are told by shape, dtype and type. Of one among the arguments, as of all that may change,
    nothing is remembered. Zeros are told by their signs too, since 0.0 and -0.0 are equal.
    """

    @lru_cache(maxsize=1024, typed=True)
    def fast(*args: Any) -> Any:
        if not all(map(_fixed, args)):
            raise TypeError  # which is not remembered
        return _ZEROS if _signs(args) else check(*args)

    @lru_cache(maxsize=1024, typed=True)
    def of_zeros(signs: tuple[float, ...], *args: Any) -> T:
        return check(*args)

    _memories.extend((fast, of_zeros))

    @wraps(check)
    def call(*args: Any) -> T:
        try:
            found: Any = fast(*args)
            return of_zeros(_signs(args), *args) if found is _ZEROS else found
        except Exception:  # an array cannot be looked up, or something is wrong: check it anew
            pass
        return check(*map(_bare, args))

    return call


# --- which elements share qparams, and the shapes that these may have ---------------------------


@remembered
def channels(shape: tuple[int, ...], axis: Any) -> tuple[Granularity, Shapes]:
    """The granularity of an axis, and the shapes that its qparams may have."""
    a = axis_of(axis, ArraySpec(shape, dtypes.float32))
    return layout.per_channel(shape, a), ((shape[a],),)


@remembered
def tokens(shape: tuple[int, ...]) -> tuple[Granularity, Shapes]:
    """The same of rows: shapes (..., 1), or flat."""
    rows = shape[:-1]
    return layout.per_token(shape), ((*rows, 1) if shape else (), (prod(rows),))


@remembered
def groups(
    shape: tuple[int, ...], group_size: Any, ndim: int | None = None, name: str = "input"
) -> tuple[Granularity, Shapes]:
    """The same of groups: shapes (..., groups of a row), or flat."""
    g = group_size_of(group_size, ArraySpec(shape, dtypes.float32), name, ndim)
    grouped = (*shape[:-1], shape[-1] // g)
    shapes = ShapesBy((grouped, (prod(grouped),)))
    shapes.by = f" for group_size {show(group_size)}"
    return layout.per_channel_group(shape, g), shapes


# --- constants ----------------------------------------------------------------------------------


def constants(lo: int, hi: int, target: DType) -> tuple[float, float, float]:
    """lo, hi, and what a NaN becomes: the integer code nearest zero, or float8's NaN."""
    return lo, hi, math.nan if target in dtypes.FLOAT8 else min(max(0, lo), hi)


def code_precision(dtype: DType, target: DType) -> str:
    """The precision in which codes are clamped: the greatest int32 is no float32."""
    return "int32" if target == np.int32 else dtypes.compute(dtype).name
