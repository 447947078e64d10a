"""What the CPU compiler is taught: number formats that Numba lacks, and the primitives.

float16, bfloat16, float8 and the sub-byte integers become Numba types that hold their bits, so a
kernel takes NumPy's and ml_dtypes' arrays as they are, and indexing one gives a value that the
primitives know how to widen and how to make.
"""

from __future__ import annotations

import operator
from typing import Any, Final

import ml_dtypes
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, models, register_model

from npquant import primitives as p
from npquant.cpu.lowered import called, overload


class Storage(types.Type):  # type: ignore[misc]
    """A number format of NumPy or ml_dtypes, held as an integer of its size."""

    def __init__(self, name: str, bits: int) -> None:
        self.bits = bits
        super().__init__(name=f"storage[{name}]")


@register_model(Storage)
class StorageModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, dmm: Any, fe_type: Storage) -> None:
        super().__init__(dmm, fe_type, ir.IntType(fe_type.bits))


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


#: The primitives with their implementations, for the CUDA compiler to be taught the same.
TAUGHT: Final[list[tuple[Any, Any]]] = []


def teach(primitive):
    """How a primitive is compiled; remembered in TAUGHT."""

    def register(implementation):
        TAUGHT.append((primitive, implementation))
        return overload(primitive)(implementation)

    return register


# --- bits -------------------------------------------------------------------------------------


def _reinterpret(result: types.Type) -> Any:
    """An intrinsic that reads the bits of a value as `result`, truncating or padding with 0."""

    @intrinsic
    def reinterpret(context: Any, v: types.Type) -> Any:
        def codegen(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> Any:
            value, to = args[0], context.get_value_type(result)
            if isinstance(value.type, (ir.FloatType, ir.DoubleType)):
                bits = 32 if isinstance(value.type, ir.FloatType) else 64
                value = builder.bitcast(value, ir.IntType(bits))
            floating = isinstance(to, (ir.FloatType, ir.DoubleType))
            width = result.bitwidth if floating else to.width
            if value.type.width > width:
                value = builder.trunc(value, ir.IntType(width))
            elif value.type.width < width:
                value = builder.zext(value, ir.IntType(width))
            return builder.bitcast(value, to) if floating else value

        return result(v), codegen

    return reinterpret


#: For each type, what reads the bits of a value as one of it.
reinterpreted: Final = {t: _reinterpret(t) for t in TYPES.values() if t != types.boolean}
_to = reinterpreted
_as_float32 = _to[types.float32]
_as_int16, _as_int32, _as_int64 = _to[types.int16], _to[types.int32], _to[types.int64]
_as_uint16, _as_uint32 = _to[types.uint16], _to[types.uint32]
_as_float16, _as_bfloat16 = _to[FLOAT16], _to[BFLOAT16]
_as_e4m3fn, _as_e5m2 = _to[E4M3FN], _to[E5M2]
_as_number = _reinterpret(FLOAT8_NUMBER)


@intrinsic
def _half_to_float32(context: Any, v: types.Type) -> Any:
    def codegen(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> Any:
        return builder.fpext(builder.bitcast(args[0], ir.HalfType()), ir.FloatType())

    return types.float32(v), codegen


@intrinsic
def _float32_to_half(context: Any, v: types.Type) -> Any:
    def codegen(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> Any:
        return builder.bitcast(builder.fptrunc(args[0], ir.HalfType()), ir.IntType(16))

    return FLOAT16(v), codegen


@called
def _bfloat16_to_float32(v: Any) -> Any:
    return _as_float32(_as_uint32(v) << np.uint32(16))


@called
def _float32_to_bfloat16(v: Any) -> Any:
    """Of a NaN that arithmetic made; one whose payload carries over needs `_any_to_bfloat16`."""
    u = _as_uint32(v)
    half = np.uint32(0x8000) if u & np.uint32(0x10000) else np.uint32(0x7FFF)  # ties to even
    return _as_bfloat16(np.uint32((u + half) >> np.uint32(16)))


@called
def _any_to_bfloat16(v: Any) -> Any:
    return _float32_to_bfloat16(v if v == v else np.float32(np.nan))


@called
def _float8_to_float32(u: Any, nan_from: Any, shift: Any, bias: Any) -> Any:
    """The bits `u` moved to float32's place, then scaled by 2**bias: exact, subnormals too."""
    magnitude = np.uint32(u & np.uint32(0x7F))
    v = _as_float32(np.uint32(magnitude << shift)) * bias
    v = v if magnitude < nan_from else np.float32(np.nan)
    return _as_float32(np.uint32(_as_uint32(v) | ((u & np.uint32(0x80)) << np.uint32(24))))


@called
def _e4m3fn_to_float32(v: Any) -> Any:
    return _float8_to_float32(_as_uint32(v), np.uint32(0x7F), np.uint32(20), np.float32(2.0**120))


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


@called
def _number_to_float8(number: Any, drop: Any, scale: Any) -> Any:
    """The bits of an integer in the range of float8; a zero keeps its sign.

    The product with 2**drop + 1 is rounded where float8's mantissa ends, as an integer has no bits
    that far down; then 2**drop times the integer goes.
    """
    v, ones = _as_float32(number), scale * np.float32(np.uint32(1) << drop)
    rounded = _llvm_fma(v, -ones, v * np.float32(ones + scale))
    magnitude = _as_float32(np.uint32(_as_uint32(rounded) << (np.uint32(24) - drop)))
    return np.uint32(_as_uint32(np.copysign(magnitude, v)) >> np.uint32(24))


# --- primitives -------------------------------------------------------------------------------

_WIDEN: Final[dict[types.Type, Any]] = {
    types.float32: lambda v: v,
    types.float64: lambda v: v,
    FLOAT16: lambda v: _half_to_float32(v),
    BFLOAT16: lambda v: _bfloat16_to_float32(v),
    E4M3FN: lambda v: _e4m3fn_to_float32(v),
    E5M2: lambda v: _e5m2_to_float32(v),
    # Sub-byte integers: the sign is the top bit of the field, whatever stands above it.
    INT4: lambda v: np.float32(np.int32(_as_int32(v) << 28) >> 28),
    INT2: lambda v: np.float32(np.int32(_as_int32(v) << 30) >> 30),
    UINT4: lambda v: np.float32(_as_int32(v) & 15),
    UINT2: lambda v: np.float32(_as_int32(v) & 3),
    **{t: lambda v: np.float64(v) for t in (types.int32, types.int64, types.uint32)},
}

_FROM_FLOAT32: Final[dict[types.Type, Any]] = {
    FLOAT16: lambda v: _float32_to_half(v),
    BFLOAT16: lambda v: _float32_to_bfloat16(v),
    E4M3FN: lambda v: _float32_to_e4m3fn(v),
    E5M2: lambda v: _float32_to_e5m2(v),
    INT4: lambda v: _to_int4(np.int32(v) & 15),
    UINT4: lambda v: _to_uint4(np.int32(v) & 15),
    INT2: lambda v: _to_int2(np.int32(v) & 3),
    UINT2: lambda v: _to_uint2(np.int32(v) & 3),
}
_to_int4, _to_uint4, _to_int2, _to_uint2 = (_to[t] for t in (INT4, UINT4, INT2, UINT2))


@teach(p.widen)
def _widen(v):
    return _WIDEN.get(v, lambda v: np.float32(v))


@teach(p.like)
def _like(v, other):
    if v == other:
        return lambda v, other: v
    if isinstance(other, Storage):
        narrow = called(_FROM_FLOAT32[other])
        if other == BFLOAT16:
            narrow = _any_to_bfloat16
        if other in SUB_BYTE:  # truncated, and so not rounded before
            return lambda v, other: narrow(p.widen(v))
        return lambda v, other: narrow(np.float32(p.widen(v)))
    cast = getattr(np, other.name)
    if isinstance(v, types.Integer):
        return lambda v, other: cast(v)  # in one rounding, from every width
    return lambda v, other: cast(p.widen(v))


@teach(p.floating)
def _floating(v):
    if isinstance(v, types.Integer):
        return lambda v: np.float32(v)
    return lambda v: v


@teach(p.rint)
def _rint(x):
    if isinstance(x, Storage):
        return lambda x: p.like(np.rint(p.widen(x)), x)
    return lambda x: np.rint(x)


@teach(p.trunc)
def _trunc(x):
    return lambda x: np.trunc(x)


@teach(p.floor)
def _floor(x):
    return lambda x: np.floor(x)


@teach(p.sqrt)
def _sqrt(x):
    return lambda x: np.sqrt(x)


@intrinsic
def _llvm_fma(context: Any, a: types.Type, b: types.Type, c: types.Type) -> Any:
    def codegen(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> Any:
        return builder.fma(*args)

    return a(a, a, a), codegen


@teach(p.fma)
def _fma(a, b, c):
    return lambda a, b, c: _llvm_fma(a, b, c)


@teach(p.at)
def _at(p, c):
    if isinstance(p, types.Array):
        return lambda p, c: p[c]
    return lambda p, c: p


@teach(p.each)
def _each(x, i):
    if isinstance(x, types.BaseTuple):
        return {
            0: lambda x, i: (),
            1: lambda x, i: (x[0][i],),
            2: lambda x, i: (x[0][i], x[1][i]),
            3: lambda x, i: (x[0][i], x[1][i], x[2][i]),
            4: lambda x, i: (x[0][i], x[1][i], x[2][i], x[3][i]),
        }[len(x)]
    return lambda x, i: x[i]


@teach(p.put)
def _put(arrays, i, values):
    if len(arrays) == 1:
        return lambda arrays, i, values: p.store(arrays[0], i, values[0])

    def put(arrays, i, values):
        p.store(arrays[0], i, values[0])
        p.put(arrays[1:], i, values[1:])

    return put


@teach(p.by_precision)
def _by_precision(v, single, double):
    if v == types.float64:
        return lambda v, single, double: double(v)
    return lambda v, single, double: single(v)


@teach(p.times)
def _times(x, s):
    if isinstance(x, types.Integer):
        return lambda x, s: p.like(x, s) * s
    return lambda x, s: x * s


@teach(p.over)
def _over(x, s):
    if isinstance(x, types.Integer):
        return lambda x, s: p.like(x, s) / s
    return lambda x, s: x / s


@teach(p.plus)
def _plus(t, z):
    if isinstance(z, types.Integer):
        return lambda t, z: t + p.like(z, t)
    return lambda t, z: t + z


@teach(p.code_of)
def _code_of(v, lo, hi, nan):
    if isinstance(lo, types.Integer):
        limit = np.float32(2.0**31)

        def code_of(v, lo, hi, nan):
            # To the ends of int32 first: they are no float32, and clamping integers is exact.
            end = np.int32(2**31 - 1) if v > 0 else np.int32(-(2**31))
            i = np.int32(v) if abs(v) < limit else end
            i = max(min(i, hi), lo)
            return i if v == v else nan

    else:

        def code_of(v, lo, hi, nan):
            u = lo if v < lo else v
            u = hi if u > hi else u
            return u if v == v else nan

    return code_of


@teach(p.narrowed)
def _narrowed(zero_point, t, other):
    if not isinstance(zero_point, types.Integer):
        return lambda zero_point, t, other: zero_point
    if (other in NARROW and other != types.int32) or other in SUB_BYTE or other in FLOAT8:
        return lambda zero_point, t, other: np.int32(zero_point)
    return lambda zero_point, t, other: p.like(zero_point, t)


_MAGIC: Final = {types.float32: np.float32(1.5 * 2**23), types.float64: np.float64(1.5 * 2**52)}


@teach(p.rounded_code)
def _rounded_code(t, zero_point, lo, hi, nan, other):
    without = isinstance(zero_point, types.NoneType)
    small = without or isinstance(zero_point, types.Integer)
    narrow = (other in NARROW and other != types.int32) or other in SUB_BYTE
    if other in FLOAT8 and small and isinstance(lo, types.Float):
        # Codes are whole numbers here, within the bounds of float8, so none is subnormal.
        _, _, of_nan = FLOAT8[other]

        def rounded_code(t, zero_point, lo, hi, nan, other):
            r = p.rint(t) if without else p.plus(p.rint(t), zero_point)
            u = lo if r < lo else r
            u = hi if u > hi else u
            return _as_number(np.float32(u) if t == t else of_nan)

        return rounded_code

    if not (narrow and small and isinstance(lo, types.Float)):
        if without:
            return lambda t, zero_point, lo, hi, nan, other: p.code_of(p.rint(t), lo, hi, nan)
        return lambda t, zero_point, lo, hi, nan, other: p.code_of(
            p.plus(p.rint(t), zero_point), lo, hi, nan
        )

    # Within 2**22 (2**51), adding `magic` rounds to nearest even, and the low bits of the sum are
    # the integer. Beyond, the sum still grows with t, and its bits with it: below any code where t
    # is negative, else above. So the bits are clamped, which takes less than to clamp t between
    # bounds that change with the zero point. Above 16 bits the result is not the code; storing it
    # drops them.
    magic, bits = _MAGIC[t], _as_int32 if t == types.float32 else _as_int64
    whole = np.int32 if t == types.float32 else np.int64

    def rounded_code(t, zero_point, lo, hi, nan, other):
        z = np.int32(0) if without else np.int32(zero_point)
        code = whole(bits(t + magic) + z)
        least, greatest = whole(bits(magic) + whole(lo)), whole(bits(magic) + whole(hi))
        code = least if code < least else code
        code = greatest if code > greatest else code
        return np.int32(code) if t == t else np.int32(nan)

    return rounded_code


@intrinsic
def _zero(context: Any, y: types.Type) -> Any:
    """A zero of the element type of `y`, without touching its memory."""

    def codegen(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> Any:
        return context.get_constant_null(sig.return_type)

    return y.dtype(y), codegen


@teach(p.item)
def _item(y):
    return lambda y: _zero(y)


@teach(p.store)
def _store(y, i, v):
    if isinstance(y, types.NoneType):
        return lambda y, i, v: None
    kind = y.dtype
    if v == kind:

        def store(y, i, v):
            y[i] = v

    elif v == FLOAT8_NUMBER:
        drop, scale, _ = FLOAT8[kind]
        back = _to[kind]

        def store(y, i, v):
            y[i] = back(_number_to_float8(v, drop, scale))

    elif isinstance(kind, Storage):
        narrow = called(_FROM_FLOAT32[kind])
        if kind in SUB_BYTE and isinstance(v, types.Integer):

            def store(y, i, v):
                y[i] = narrow(v)

            return store

        if kind in SUB_BYTE:

            def store(y, i, v):
                y[i] = narrow(p.widen(v))

            return store

        def store(y, i, v):
            y[i] = narrow(np.float32(p.widen(v)))

    elif isinstance(kind, types.Integer) and kind in NARROW:
        # By way of int32: the conversion that processors have.
        def store(y, i, v):
            y[i] = np.int32(v)

    elif isinstance(kind, types.Integer):

        def store(y, i, v):
            y[i] = np.int64(p.widen(v))

    elif isinstance(kind, types.Float):

        def store(y, i, v):
            y[i] = p.widen(v)

    else:

        def store(y, i, v):
            y[i] = v

    return store


@teach(p.key)
def _key(v):
    if isinstance(v, types.Integer):
        return lambda v: v
    bits = v.bits if isinstance(v, Storage) else v.bitwidth
    as_int, top = {
        16: (_as_int16, np.int16(2**15 - 1)),
        32: (_as_int32, np.int32(2**31 - 1)),
        64: (_as_int64, np.int64(2**63 - 1)),
    }[bits]
    sign, kind = bits - 1, type(top)

    def key(v):
        i = as_int(v)
        return kind(i ^ ((i >> sign) & top))  # Numba's arithmetic is of 64 bits

    return key


@teach(p.bits)
def _bits(v):
    if isinstance(v, types.Integer):
        return lambda v: v
    width = v.bits if isinstance(v, Storage) else v.bitwidth
    as_int = {16: _as_int16, 32: _as_int32, 64: _as_int64}[width]
    return lambda v: as_int(v)


@teach(p.of_bits)
def _of_bits(k, other):
    back = _to[other]
    return lambda k, other: back(k)


@teach(p.value)
def _value(k, other):
    if isinstance(other, types.Integer):
        return lambda k, other: k
    back, top, sign = _to[other], 2 ** (k.bitwidth - 1) - 1, k.bitwidth - 1
    return lambda k, other: back(k ^ ((k >> sign) & top))


# A float is 2**e times what its low bits say. Adding `middle` puts an integral float into the low
# bits, as an integer, with no conversion that a NaN could break.
_FLOAT_BITS = {
    types.float32: (_as_int32, np.int32, 23, 127, np.float32(1.5 * 2**23 + 127)),
    types.float64: (_as_int64, np.int64, 52, 1023, np.float64(1.5 * 2**52 + 1023)),
}


@teach(p.power_of_two)
def _power_of_two(n):
    as_int, _, width, _, middle = _FLOAT_BITS[n]
    back = _to[n]
    return lambda n: back(as_int(n + middle) << width)


def _split(v):
    """The bits of `v` less those of sqrt(1/2): the exponent, and above it where m begins."""
    as_int, kind, width, _, _ = _FLOAT_BITS[v]
    least = kind(int(np.asarray(getattr(np, v.name)(p.SQRT_HALF)).view(kind)))
    return as_int, kind, width, least, _to[v]


@teach(p.mantissa)
def _mantissa(v):
    as_int, kind, width, least, back = _split(v)
    low = kind(2**width - 1)
    return lambda v: back(kind(((as_int(v) - least) & low) + least))


@teach(p.exponent)
def _exponent(v):
    as_int, kind, width, least, _ = _split(v)
    cast = getattr(np, v.name)
    return lambda v: cast(kind(kind(as_int(v) - least) >> width))


@teach(p.masked)
def _masked(g, m):
    if isinstance(g, types.Float):
        return lambda g, m: g if m else np.copysign(np.float32(0), g)
    if g in HALVES:
        as_half, sign = _to[g], np.uint16(0x8000)
        return lambda g, m: g if m else as_half(np.uint16(_as_uint16(g) & sign))
    zero = g(0)
    return lambda g, m: g if m else zero


@teach(p.converted)
def _converted(v, other):
    if not isinstance(other, types.Integer):
        return lambda v, other: p.like(v, other)
    cast = getattr(np, other.name)
    # PyTorch converts to these by way of int64, to the rest by way of int32. To uint8 that differs
    # in float64 alone: of a float32 from 2^31 on the last eight bits are zero.
    long = other in (types.uint32, types.int64) or (other == types.uint8 and v == types.float64)
    whole, limit = (np.int64, 2.0**63) if long else (np.int32, 2.0**31)
    limit, least, zero = np.float32(limit), whole(-limit), whole(0)

    def converted(v, other):
        w = p.widen(v)
        i = whole(w) if abs(w) < limit else least
        return cast(i if w == w else zero)

    return converted


def _arithmetic(op: Any) -> None:
    """Two-byte floats compute in float32; two of one kind give their own kind, rounded once."""

    @teach(op)
    def arithmetic(a, b):
        if a in HALVES and a == b:
            return lambda a, b: p.like(op(p.widen(a), p.widen(b)), a)
        if isinstance(a, Storage) or isinstance(b, Storage):
            return lambda a, b: op(p.widen(a), p.widen(b))
        return None


for _op in (operator.add, operator.sub, operator.mul, operator.truediv):
    _arithmetic(_op)
