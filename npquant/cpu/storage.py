"""Number formats that Numba lacks.

float16, bfloat16, float8 and the sub-byte integers become Numba types that hold their bits, so a
kernel takes NumPy's and ml_dtypes' arrays as they are, and indexing one gives a value that the
primitives know how to widen and how to make.
"""

from __future__ import annotations

import platform
from typing import Any, Final

import ml_dtypes
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, models, register_model

from npquant.cpu.instructions import compiled_for, read_as
from npquant.cpu.lowered import called


class Storage(types.Type):  # type: ignore[misc]
    """A number format of NumPy or ml_dtypes, held as an integer of as many bits."""

    def __init__(self, name: str, bits: int) -> None:
        self.bitwidth = bits
        super().__init__(name=f"storage[{name}]")


@register_model(Storage)
class StorageModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, dmm: Any, fe_type: Storage) -> None:
        super().__init__(dmm, fe_type, ir.IntType(fe_type.bitwidth))


FLOAT16: Final = Storage("float16", 16)
BFLOAT16: Final = Storage("bfloat16", 16)
E4M3FN: Final = Storage("float8_e4m3fn", 8)
E5M2: Final = Storage("float8_e5m2", 8)
INT4, UINT4, INT2, UINT2 = (Storage(n, 8) for n in ("int4", "uint4", "int2", "uint2"))
#: A code of float8 that waits for its bits: an integer as a float32, and of a NaN the number whose
#: bits in float8 are those of NaN.
FLOAT8_NUMBER: Final = Storage("float8_number", 32)

SUB_BYTE: Final = (INT4, UINT4, INT2, UINT2)
HALVES: Final = (FLOAT16, BFLOAT16)
NARROW: Final = (types.int8, types.uint8, types.int16, types.uint16, types.int32)

#: The Numba type of each dtype that a kernel can meet.
TYPES: Final[dict[np.dtype[Any], types.Type]] = {
    np.dtype(np.float16): FLOAT16,
    np.dtype(ml_dtypes.bfloat16): BFLOAT16,
    np.dtype(ml_dtypes.float8_e4m3fn): E4M3FN,
    np.dtype(ml_dtypes.float8_e5m2): E5M2,
    np.dtype(ml_dtypes.int4): INT4,
    np.dtype(ml_dtypes.uint4): UINT4,
    np.dtype(ml_dtypes.int2): INT2,
    np.dtype(ml_dtypes.uint2): UINT2,
    np.dtype(np.bool_): types.boolean,
    **{
        np.dtype(name): getattr(types, name)
        for kind in ("int", "uint", "float")
        for name in (f"{kind}{bits}" for bits in (8, 16, 32, 64))
        if name not in ("float8", "float16")
    },
}


def _reinterpret(result: types.Type) -> Any:
    """An intrinsic that reads the bits of a value as `result`."""

    @intrinsic
    def reinterpret(context: Any, v: types.Type) -> Any:
        return read_as([v], result)

    return reinterpret


#: For each type, what reads the bits of a value as one of it.
reinterpreted: Final = {t: _reinterpret(t) for t in TYPES.values() if t != types.boolean}
_to = reinterpreted
_as_float32 = _to[types.float32]
_as_int8, _as_int32 = _to[types.int8], _to[types.int32]
_as_uint16, _as_uint32 = _to[types.uint16], _to[types.uint32]
_as_float16, _as_bfloat16 = _to[FLOAT16], _to[BFLOAT16]
_as_e4m3fn, _as_e5m2 = _to[E4M3FN], _to[E5M2]
as_number = _reinterpret(FLOAT8_NUMBER)


def _knows_halves() -> bool:
    """Whether the processor converts float16: for others LLVM calls what no process has."""
    return platform.machine() not in ("x86_64", "AMD64") or compiled_for("f16c")


def _half_widened(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> Any:
    if _knows_halves():
        return builder.fpext(builder.bitcast(args[0], ir.HalfType()), ir.FloatType())
    word, real = ir.IntType(32), ir.FloatType()
    h = builder.zext(args[0], word)
    magnitude = builder.and_(h, word(0x7FFF))
    there = builder.shl(magnitude, word(13))  # with an exponent that is 112 less
    number = builder.bitcast(builder.fmul(builder.bitcast(there, real), real(2.0**112)), word)
    quiet = builder.select(builder.icmp_unsigned(">", magnitude, word(0x7C00)),
                           word(0x7FC00000), word(0x7F800000))  # fmt: skip
    finite = builder.icmp_unsigned("<", magnitude, word(0x7C00))
    number = builder.select(finite, number, builder.or_(there, quiet))
    sign = builder.shl(builder.and_(h, word(0x8000)), word(16))
    return builder.bitcast(builder.or_(number, sign), real)


def _half_narrowed(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> Any:
    if _knows_halves():
        return builder.bitcast(builder.fptrunc(args[0], ir.HalfType()), ir.IntType(16))
    word, real = ir.IntType(32), ir.FloatType()
    v = builder.bitcast(args[0], word)
    a = builder.and_(v, word(0x7FFFFFFF))
    # As in `_round_float8`.
    last = builder.lshr(a, word(13))
    normal = builder.add(builder.add(a, word(0xFFF - (112 << 23))), builder.and_(last, word(1)))
    low = builder.bitcast(builder.fadd(builder.bitcast(a, real), real(0.5)), word)
    low = builder.sub(low, builder.bitcast(real(0.5), word))
    subnormal = builder.icmp_unsigned("<", a, word(113 << 23))
    h = builder.select(subnormal, low, builder.lshr(normal, word(13)))
    h = builder.select(builder.icmp_unsigned("<", h, word(0x7C00)), h, word(0x7C00))
    payload = builder.or_(builder.and_(last, word(0x1FF)), word(0x7E00))
    h = builder.select(builder.icmp_unsigned(">", a, word(0x7F800000)), payload, h)
    sign = builder.and_(builder.lshr(v, word(16)), word(0x8000))
    return builder.trunc(builder.or_(h, sign), ir.IntType(16))


def _bfloat16_widened(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> Any:
    bits = builder.zext(args[0], ir.IntType(32))
    return builder.bitcast(builder.shl(bits, bits.type(16)), ir.FloatType())


@intrinsic
def _half_to_float32(context: Any, v: types.Type) -> Any:
    return types.float32(v), _half_widened


@intrinsic
def half_to_float32_alone(context: Any, v: types.Type) -> Any:
    """The same number, which the compiler does not know to have been a float16.

    It would round, compare and convert float16 instead, one by one: few processors have
    instructions for that.
    """

    def codegen(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> Any:
        bits = builder.bitcast(_half_widened(context, builder, sig, args), ir.IntType(32))
        return builder.bitcast(builder.and_(bits, bits.type(0xFFFFE000)), ir.FloatType())

    return types.float32(v), codegen


@intrinsic
def _float32_to_half(context: Any, v: types.Type) -> Any:
    return FLOAT16(v), _half_narrowed


@called
def _float32_to_bfloat16(v: Any) -> Any:
    """Of a NaN that arithmetic made; one whose payload carries over needs `any_to_bfloat16`."""
    u = _as_uint32(v)
    half = np.uint32(0x8000) if u & np.uint32(0x10000) else np.uint32(0x7FFF)  # ties to even
    return _as_bfloat16(np.uint32((u + half) >> np.uint32(16)))


@called
def any_to_bfloat16(v: Any) -> Any:
    return _float32_to_bfloat16(v if v == v else np.float32(np.nan))


@called
def _e4m3fn_to_float32(v: Any) -> Any:
    """As a float16 whose exponent is 8 less, which processors widen, subnormal or not."""
    u = np.uint16((np.int16(_as_int8(v)) << 7) & 0xBF80)
    u = np.uint16(u ^ np.uint16(0x4180)) if (u & np.uint16(0x3F80)) == np.uint16(0x3F80) else u
    return _half_to_float32(_as_float16(u)) * np.float32(256)


@called
def _e5m2_to_float32(v: Any) -> Any:
    return _half_to_float32(_as_float16(np.uint16(_as_uint16(v) << np.uint16(8))))


@called
def _round_float8(v: Any, drop: Any, bias: Any, least_normal: Any, magic: Any) -> Any:
    """|v| rounded to a float8 grid, as its bits: `drop` mantissa bits go, ties to even."""
    a = np.uint32(_as_uint32(v) & np.uint32(0x7FFFFFFF))
    half = np.uint32((np.uint32(1) << (drop - np.uint32(1))) - np.uint32(1))
    half = np.uint32(half - (bias << drop))
    normal = np.uint32(np.uint32(a + half + ((a >> drop) & np.uint32(1))) >> drop)
    # Below the normals the grid is even: adding `magic` lets the hardware round onto it.
    low = np.uint32(_as_uint32(_as_float32(a) + magic) - _as_uint32(magic))
    return low if a < least_normal else normal


@called
def _float32_to_e4m3fn(v: Any) -> Any:
    u = _round_float8(v, np.uint32(20), np.uint32(120 << 3), np.uint32(121 << 23),
                      np.float32(2.0**14))  # fmt: skip
    u = u if u < np.uint32(0x7E) else np.uint32(0x7E)
    u = u if v == v else np.uint32(0x7F)
    return _as_e4m3fn(np.uint32(u | ((_as_uint32(v) >> np.uint32(24)) & np.uint32(0x80))))


@called
def _float32_to_e5m2(v: Any) -> Any:
    u = _round_float8(v, np.uint32(21), np.uint32(112 << 2), np.uint32(113 << 23),
                      np.float32(2.0**7))  # fmt: skip
    u = u if u < np.uint32(0x7C) else np.uint32(0x7C)
    u = u if v == v else np.uint32(0x7F)
    return _as_e5m2(np.uint32(u | ((_as_uint32(v) >> np.uint32(24)) & np.uint32(0x80))))


#: Of float8: how many bits of a float32 go, what brings exponents to its own, and the number that
#: stands for NaN.
FLOAT8: Final = {
    E4M3FN: (np.uint32(20), np.float32(2.0**-120), np.float32(480)),
    E5M2: (np.uint32(21), np.float32(2.0**-112), np.float32(1.75 * 2**16)),
}

#: What makes a float32 of each format: functions or `Instructions`.
TO_FLOAT32: Final[dict[types.Type, Any]] = {
    FLOAT16: (types.float32(FLOAT16), _half_widened),
    BFLOAT16: (types.float32(BFLOAT16), _bfloat16_widened),
    E4M3FN: lambda v: _e4m3fn_to_float32(v),
    E5M2: lambda v: _e5m2_to_float32(v),
    # Sub-byte integers: the sign is the top bit of the field, whatever stands above it.
    INT4: lambda v: np.float32(np.int32(_as_int32(v) << 28) >> 28),
    INT2: lambda v: np.float32(np.int32(_as_int32(v) << 30) >> 30),
    UINT4: lambda v: np.float32(_as_int32(v) & 15),
    UINT2: lambda v: np.float32(_as_int32(v) & 3),
}

#: What makes each of a float32; of an integer too, if it has less than a byte.
FROM_FLOAT32: Final[dict[types.Type, Any]] = {
    FLOAT16: _float32_to_half,
    BFLOAT16: _float32_to_bfloat16,
    E4M3FN: _float32_to_e4m3fn,
    E5M2: _float32_to_e5m2,
    INT4: called(lambda v: _to_int4(np.int32(v) & 15)),
    UINT4: called(lambda v: _to_uint4(np.int32(v) & 15)),
    INT2: called(lambda v: _to_int2(np.int32(v) & 3)),
    UINT2: called(lambda v: _to_uint2(np.int32(v) & 3)),
}
_to_int4, _to_uint4, _to_int2, _to_uint2 = (_to[t] for t in (INT4, UINT4, INT2, UINT2))
