"""What npquant knows about dtypes: which are inputs, which are targets, and their bounds."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple

import ml_dtypes
import numpy as np

from npquant.errors import in_our_words, show

DType = np.dtype[Any]

float16: Final = np.dtype(np.float16)
bfloat16: Final = np.dtype(ml_dtypes.bfloat16)
float32: Final = np.dtype(np.float32)
int8: Final = np.dtype(np.int8)
int32: Final = np.dtype(np.int32)
int64: Final = np.dtype(np.int64)
float64: Final = np.dtype(np.float64)
bool_: Final = np.dtype(np.bool_)
float8_e4m3fn: Final = np.dtype(ml_dtypes.float8_e4m3fn)
float8_e5m2: Final = np.dtype(ml_dtypes.float8_e5m2)

#: What can be quantized, and what codes can be turned back into.
FLOATS: Final = frozenset({float16, bfloat16, float32, float64})

#: What NumPy's BLAS multiplies, and what sums and training are in.
SINGLE_AND_DOUBLE: Final[frozenset[DType]] = frozenset({float32, float64})

#: Integer inputs, taken where PyTorch takes them.
INTEGERS: Final = frozenset(
    np.dtype(t) for t in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64")
)

REALS: Final = FLOATS | INTEGERS

FLOAT8: Final = frozenset({float8_e4m3fn, float8_e5m2})

#: What can be quantized to, with the least and the greatest code.
BOUNDS: Final[dict[DType, tuple[int, int]]] = {
    np.dtype(np.uint8): (0, 255),
    int8: (-128, 127),
    np.dtype(np.uint16): (0, 65535),
    np.dtype(np.int16): (-32768, 32767),
    int32: (-(2**31), 2**31 - 1),
    np.dtype(ml_dtypes.int4): (-8, 7),
    np.dtype(ml_dtypes.uint4): (0, 15),
    np.dtype(ml_dtypes.int2): (-2, 1),
    np.dtype(ml_dtypes.uint2): (0, 3),
    float8_e4m3fn: (-448, 448),
    float8_e5m2: (-57344, 57344),
}

#: Of those integers, of one byte or two.
NARROW: Final = frozenset(BOUNDS) - FLOAT8 - {int32}

#: Pairs of dtypes of scales and zero points as they mostly come: of codes, of what is learned, of
#: float64, and of any floats, with zero points of the same dtype or integers.
Pairs = tuple[tuple[Any, Any], ...]
CODES: Final[Pairs] = ((float32, int32),)
LEARNED: Final[Pairs] = ((float32, float32),)
DOUBLE: Final[Pairs] = ((float64, int64), (float64, float64))
KEPT: Final = (
    CODES + LEARNED + DOUBLE + tuple((s, z) for s in (float16, bfloat16) for z in (int32, s))
)

#: The dtypes in which scales are used, by their own.
IN_THEIR_OWN: Final[Mapping[DType, DType]] = {}
IN_FLOAT32: Final[Mapping[DType, DType]] = dict.fromkeys(FLOATS, float32)
IN_FLOAT64: Final[Mapping[DType, DType]] = dict.fromkeys(FLOATS, float64)

#: Integers up to here, and their differences, are exact in float32 and in float64.
EXACT32, EXACT64 = 2**23, 2**52


def names(dtypes: Any) -> str:
    """The names of `dtypes`, for messages."""
    return ", ".join(sorted(d.name for d in dtypes))


def refuse_others(found: DType, name: str, allowed: Collection[DType], hint: str = "") -> None:
    """Raise a TypeError unless the dtype of an array is among the `allowed`."""
    if found not in allowed:
        several = "a dtype among" if len(allowed) > 1 else "the dtype"
        raise TypeError(f"{name} must have {several} {names(allowed)}, got {found}{hint}")


def one_of(dtype: Any, name: str, taken: Collection[DType]) -> DType:
    """`dtype` as one of those that are taken."""
    found = canonical(dtype, name, taken)
    if found not in taken:
        raise TypeError(f"{name} must be one of {names(taken)}, got {found}")
    return found


def canonical(dtype: Any, name: str, taken: Iterable[DType] = REALS) -> DType:
    """`dtype` as a native NumPy dtype, or a TypeError that names the argument and what it takes."""
    try:
        return _NATIVE[dtype]
    except Exception:  # another spelling of it, or no dtype at all, nor even hashable
        pass
    try:
        if any(dtype is abstract for abstract in _ABSTRACT):  # some of NumPy's versions warn alone
            raise TypeError
        found = native_order(np.dtype(dtype))
    except Exception:  # of many kinds: NumPy parses strings as Python, and asks objects
        raise TypeError(
            f"{name} must be a NumPy dtype, such as {names(taken)}, "
            f"got {show(dtype)}{in_our_words(dtype, [d.name for d in taken])}"
        ) from None
    if dtype is None:
        raise TypeError(f"{name} must be a NumPy dtype, got None")
    return found


def without_metadata(dtype: DType) -> DType:
    """`dtype` without what NumPy lets a user add to one, and does not compare."""
    return _NATIVE.get(dtype, dtype)


def native_order(dtype: DType) -> DType:
    """`dtype` in the order of bytes of this machine; some of NumPy's have none, as its strings."""
    try:
        native: DType = dtype.newbyteorder("=")
    except TypeError:
        return dtype
    return native


def exact_codes(dtype: DType) -> int:
    """Up to where the precision that data of `dtype` are computed in holds codes, either sign."""
    return EXACT64 if dtype == float64 else EXACT32


def target(dtype: Any) -> DType:
    """`dtype` as one that can be quantized to."""
    try:
        return _TARGETS[dtype]
    except Exception:  # as in `canonical`
        pass
    return one_of(dtype, "dtype", BOUNDS)


def integer_target(dtype: Any) -> DType:
    """`dtype` as one of codes that are integers."""
    found = target(dtype)
    if found in FLOAT8:
        raise TypeError(f"dtype must be a dtype of integers, got {found}")
    return found


def of_tokens(dtype: Any) -> DType:
    """`dtype` as the one of codes whose qparams are chosen per token, as in PyTorch."""
    found = target(dtype)
    if found != int8:
        raise TypeError(f"dtype must be int8, the only one PyTorch has here, got {found}")
    return found


def floating(dtype: Any, name: str) -> DType:
    """`dtype` as one of the four floating dtypes."""
    try:
        return _FLOATING[dtype]
    except Exception:  # as in `canonical`
        pass
    return one_of(dtype, name, FLOATS)


def compute(dtype: DType) -> DType:
    """The precision in which values of `dtype` are computed: float32 up to float32."""
    return float64 if dtype == float64 else float32


def precision(dtype: DType, lo: int, hi: int, z: int | float = 0) -> str:
    """The precision of codes: that of the input, while it holds them and their differences."""
    exact = exact_codes(dtype)
    if lo < -exact or hi > exact or not -exact <= z <= exact:
        return "wide"
    return "float64" if dtype == float64 else "float32"


class Precision(NamedTuple):
    """In what an elementwise op computes, by name: a scale, a zero point, and codes."""

    scale: str
    zero_point: str
    #: Of the bounds of codes, too; "wide" where they are too large for the rule of others.
    code: str


def affine_precision(dtype: DType, lo: int, hi: int, z: int | float = 0) -> Precision:
    """That of a float32 scale, and of a zero point that is a code."""
    code = precision(dtype, lo, hi, z)
    return Precision("float32", code, code)


def _spelled(dtypes: Iterable[DType]) -> dict[Any, DType]:
    """np.int8, np.dtype("int8") and "int8" hash differently; this runs on every call."""
    return {key: d for d in dtypes for key in (d, d.type, d.name)}


_NATIVE, _TARGETS, _FLOATING = map(_spelled, ({*REALS, *BOUNDS, bool_}, BOUNDS, FLOATS))


#: NumPy's classes of dtypes, which stand for none.
_ABSTRACT = (
    np.generic, np.number, np.integer, np.signedinteger, np.unsignedinteger, np.inexact,
    np.floating, np.complexfloating, np.flexible, np.character,
)  # fmt: skip


def promote(a: DType, b: DType) -> DType:
    """The dtype of a + b for floating dtypes: two different two-byte ones meet in float32."""
    if a == b:
        return a
    return float64 if float64 in (a, b) else float32


def summed(dtype: DType) -> DType:
    """The dtype of sums that become those of `dtype` by `round_once`."""
    return float32 if dtype == float32 else float64


def round_once(x: np.ndarray[Any, Any], dtype: DType) -> np.ndarray[Any, Any]:
    """float64 to `dtype` in one rounding; ml_dtypes goes to bfloat16 by way of float32."""
    if x.dtype == dtype:
        return x
    with np.errstate(over="ignore", invalid="ignore"):
        if dtype != bfloat16:
            return x.astype(without_metadata(dtype))
        near = x.astype(np.float32)
    bits = near.view(np.int32)
    # To odd, so that the rounding to bfloat16 is the only one: step back over what was passed.
    bits -= np.abs(near) > np.abs(x)
    bits |= (near != x) & np.isfinite(near)
    return near.astype(bfloat16)
