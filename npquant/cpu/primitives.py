"""What the compiler is taught of the primitives, each by Numba's types of its arguments.

An implementation gives a function, or `Instructions` where these are few: a function is compiled by
itself, which takes ten times as long.
"""

from __future__ import annotations

import operator
from typing import Any, Final

import numpy as np
from numba import types

from npquant import primitives as p
from npquant.cpu import codes
from npquant.cpu.instructions import (
    arithmetic,
    as_functions,
    as_instructions,
    cast,
    element,
    elements,
    first,
    llvm,
    nothing,
    read_as,
    stored,
    zero,
)
from npquant.cpu.lowered import called, lowered, overload
from npquant.cpu.storage import (
    BFLOAT16,
    FLOAT8,
    FLOAT8_NUMBER,
    FLOAT16,
    FROM_FLOAT32,
    HALVES,
    NARROW,
    SUB_BYTE,
    TO_FLOAT32,
    Storage,
    any_to_bfloat16,
    as_number,
    half_to_float32_alone,
)
from npquant.cpu.storage import reinterpreted as _to

_as_float32 = _to[types.float32]
_as_int16, _as_int32, _as_int64 = _to[types.int16], _to[types.int32], _to[types.int64]
_as_uint16, _as_uint32 = _to[types.uint16], _to[types.uint32]

#: The primitives with those implementations that give functions, for the CUDA compiler.
TAUGHT: Final[list[tuple[Any, Any]]] = []


def teach(primitive):
    """How a primitive is compiled; what is a function is remembered in TAUGHT.

    The compilers of both backends see `Instructions`, which know nothing of an array but its type.
    """

    def register(implementation):
        lowered(primitive)(as_instructions(implementation))
        functions = as_functions(implementation)
        TAUGHT.append((primitive, functions))
        return overload(primitive)(functions)

    return register


@called
def _number_to_float8(number: Any, drop: Any, scale: Any) -> Any:
    """The bits of an integer in the range of float8; a zero keeps its sign.

    The product with 2**drop + 1 is rounded where float8's mantissa ends, as an integer has no bits
    that far down; then 2**drop times the integer goes.
    """
    v, ones = _as_float32(number), scale * np.float32(np.uint32(1) << drop)
    rounded = p.fma(v, -ones, v * np.float32(ones + scale))
    magnitude = _as_float32(np.uint32(_as_uint32(rounded) << (np.uint32(24) - drop)))
    return np.uint32(_as_uint32(np.copysign(magnitude, v)) >> np.uint32(24))


def _widened(v):
    """The type of `widen` of a native number."""
    if v in (types.float32, types.float64):
        return v
    return types.float64 if v in (types.int32, types.int64, types.uint32) else types.float32


@teach(p.widen)
def _widen(v):
    if isinstance(v, codes.Lanes):
        return first(v)
    return TO_FLOAT32[v] if isinstance(v, Storage) else cast([v], _widened(v))


@teach(p.like)
def _like(v, other):
    if v == other:
        return first(v, other)
    if isinstance(other, Storage):
        narrow = FROM_FLOAT32[other]
        if other == BFLOAT16:
            narrow = any_to_bfloat16
        if other in SUB_BYTE:  # truncated, and so not rounded before
            return lambda v, other: narrow(p.widen(v))
        return lambda v, other: narrow(np.float32(p.widen(p.floating(v))))
    if isinstance(v, Storage):
        to = getattr(np, other.name)
        return lambda v, other: to(p.widen(v))
    return cast([v, other], other)  # in one rounding, from every width


@teach(p.floating)
def _floating(v):
    return cast([v], types.float32) if isinstance(v, types.Integer) else first(v)


@teach(p.whole)
def _whole(v):
    return cast([v], types.int64) if isinstance(v, types.Integer) else first(v)


@teach(p.rint)
def _rint(x):
    if isinstance(x, Storage):
        return lambda x: p.like(p.rint(p.widen(x)), x)
    return llvm("rint", x)


@teach(p.trunc)
def _trunc(x):
    return llvm("trunc", x)


@teach(p.floor)
def _floor(x):
    return llvm("floor", x)


@teach(p.sqrt)
def _sqrt(x):
    return llvm("sqrt", x)


@teach(p.fma)
def _fma(a, b, c):
    return llvm("fma", a, a, a)


@teach(p.at)
def _at(p, c):
    several = types.Array, types.CPointer  # a pointer in a GPU's kernel
    return element(p, c) if isinstance(p, several) else first(p, c)


@teach(p.each)
def _each(x, i):
    if isinstance(x, types.BaseTuple):
        return elements(x, i)
    return element(x, i)


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
    if isinstance(x, codes.Lanes):
        return codes.arithmetic("fmul", x, s)
    if isinstance(x, Storage) or isinstance(s, Storage):
        if isinstance(x, types.Integer):
            return lambda x, s: p.like(x, s) * s
        return lambda x, s: x * s
    return arithmetic("fmul", x, s)


@teach(p.over)
def _over(x, s):
    if isinstance(x, codes.Lanes):
        return codes.arithmetic("fdiv", x, s)
    if isinstance(x, Storage) or isinstance(s, Storage):
        if isinstance(x, types.Integer):
            return lambda x, s: p.like(x, s) / s
        return lambda x, s: x / s
    return arithmetic("fdiv", x, s)


@teach(p.plus)
def _plus(t, z):
    if isinstance(t, codes.Lanes):
        return codes.arithmetic("fadd", t, z)
    if isinstance(t, Storage) or isinstance(z, Storage):
        if isinstance(z, types.Integer):
            return lambda t, z: t + p.like(z, t)
        return lambda t, z: t + z
    return arithmetic("fadd", t, z)


@teach(p.shifted)
def _shifted(t, z, other):
    # A sum in two bytes is rounded. One loop without it is compiled, and one with it.
    if isinstance(t, Storage) and isinstance(z, Storage) and other not in FLOAT8:
        nothing = np.float32(0)
        return lambda t, z, other: t + z if p.widen(z) != nothing else t
    return lambda t, z, other: p.plus(t, z)


@teach(p.code_of)
def _code_of(v, lo, hi, nan):
    if isinstance(lo, types.Integer):
        limit = np.float32(2.0**31)

        def code_of(v, lo, hi, nan):
            # To the ends of int32 first: they are no float32, and clamping integers is exact.
            end = np.int32(2**31 - 1) if v > 0 else np.int32(-(2**31))
            i = np.int32(v) if abs(v) < limit else end
            i = hi if i > hi else i
            i = lo if i < lo else i
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
        return first(zero_point, t, other)
    if (other in NARROW and other != types.int32) or other in SUB_BYTE or other in FLOAT8:
        return cast([zero_point, t, other], types.int32)
    if isinstance(t, Storage):
        return lambda zero_point, t, other: p.like(zero_point, t)
    return cast([zero_point, t, other], t)


def _widened_alone(v):
    """What is `widen` of a value of type `v` for all but sums and products."""
    return half_to_float32_alone if v == FLOAT16 else p.widen


@teach(p.rounded_code)
def _rounded_code(t, zero_point, lo, hi, nan, other):
    if isinstance(t, codes.Lanes):
        return codes.rounded_codes(t, zero_point, lo, hi, nan, other)
    if isinstance(t, Storage):
        alone = _widened_alone(t)
        return lambda t, zero_point, lo, hi, nan, other: p.rounded_code(
            alone(t), zero_point, lo, hi, nan, other
        )
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
            return as_number(np.float32(u) if t == t else of_nan)

        return rounded_code

    if not (narrow and small and isinstance(lo, types.Float)):
        if without:
            return lambda t, zero_point, lo, hi, nan, other: p.code_of(p.rint(t), lo, hi, nan)
        return lambda t, zero_point, lo, hi, nan, other: p.code_of(
            p.plus(p.rint(t), zero_point), lo, hi, nan
        )

    # Within 2**22 (2**51), adding `magic` rounds to nearest even, and the low bits of the sum are
    # the integer. Beyond, the sum still grows with t: below any code where t is negative, else
    # above. So the sum is clamped, which takes less than to clamp t between bounds that change with
    # the zero point. Above 16 bits the result is not the code; storing it drops them.
    if t == types.float64:
        magic = np.float64(1.5 * 2**52)

        def rounded_code(t, zero_point, lo, hi, nan, other):
            code = t + magic if without else t + magic + np.float64(zero_point)
            least, greatest = magic + np.float64(lo), magic + np.float64(hi)
            code = least if code < least else code
            code = greatest if code > greatest else code
            code = code if t == t else magic + np.float64(nan)
            return np.int32(_as_int64(code))

    else:
        magic = np.float32(1.5 * 2**23)

        # Its bits grow with it, and to them a zero point is added as it is.
        def rounded_code(t, zero_point, lo, hi, nan, other):
            z = np.int32(0) if without else np.int32(zero_point)
            code = np.int32(_as_int32(t + magic) + z)
            least = np.int32(_as_int32(magic) + np.int32(lo))
            greatest = np.int32(_as_int32(magic) + np.int32(hi))
            code = least if code < least else code
            code = greatest if code > greatest else code
            return code if t == t else np.int32(nan)

    return rounded_code


@teach(p.item)
def _item(y):
    return zero(y)


@teach(p.store)
def _store(y, i, v):
    if isinstance(y, types.NoneType):
        return nothing(y, i, v)
    kind = y.dtype
    if v == kind:
        return stored(y, i, v)
    if v == FLOAT8_NUMBER:
        drop, scale, _ = FLOAT8[kind]
        back = _to[kind]

        def store(y, i, v):
            y[i] = back(_number_to_float8(v, drop, scale))

    elif isinstance(kind, Storage):
        narrow = FROM_FLOAT32[kind]
        if kind in SUB_BYTE and isinstance(v, types.Integer):

            def store(y, i, v):
                y[i] = narrow(v)

        elif kind in SUB_BYTE:

            def store(y, i, v):
                y[i] = narrow(p.widen(v))

        else:

            def store(y, i, v):
                y[i] = narrow(np.float32(p.widen(v)))

    elif isinstance(v, Storage):

        def store(y, i, v):
            p.store(y, i, p.widen(v))

    elif kind in NARROW:
        return stored(y, i, v, types.int32)  # the conversion that processors have
    elif isinstance(kind, types.Integer):
        return stored(y, i, v, _widened(v), types.int64)
    else:
        return stored(y, i, v, _widened(v))
    return store


@teach(p.key)
def _key(v):
    if isinstance(v, types.Integer):
        return first(v)
    as_int, top = {
        16: (_as_int16, np.int16(2**15 - 1)),
        32: (_as_int32, np.int32(2**31 - 1)),
        64: (_as_int64, np.int64(2**63 - 1)),
    }[v.bitwidth]
    sign, kind = v.bitwidth - 1, type(top)

    def key(v):
        i = as_int(v)
        return kind(i ^ ((i >> sign) & top))  # Numba's arithmetic is of 64 bits

    return key


@teach(p.bits)
def _bits(v):
    if isinstance(v, types.Integer):
        return first(v)
    return read_as([v], {16: types.int16, 32: types.int32, 64: types.int64}[v.bitwidth])


@teach(p.of_bits)
def _of_bits(k, other):
    return read_as([k, other], other)


@teach(p.value)
def _value(k, other):
    if isinstance(other, types.Integer):
        return first(k, other)
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
    high = kind(-(2**width))
    return lambda v: back(kind(as_int(v) - ((as_int(v) - least) & high)))


@teach(p.exponent)
def _exponent(v):
    as_int, kind, width, least, _ = _split(v)
    cast = getattr(np, v.name)
    return lambda v: cast(kind(kind(as_int(v) - least) >> width))


@teach(p.larger_number)
def _larger_number(a, b):
    return lambda a, b: a if a > b else b


@teach(p.smaller_number)
def _smaller_number(a, b):
    return lambda a, b: a if a < b else b


@teach(p.near_reciprocal)
def _near_reciprocal(v):
    return lambda v: np.float32(1) / v


@teach(p.from_one)
def _from_one(m):
    one = getattr(np, m.name)(1)
    return lambda m: (m - one) / (m + one)


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
    if other in NARROW and not long:  # storing drops the upper bits
        cast = whole
    limit, least, zero = np.float32(limit), whole(-limit), whole(0)
    alone = _widened_alone(v)

    def converted(v, other):
        w = alone(v)
        i = whole(w) if abs(w) < limit else least
        return cast(i if w == w else zero)

    return converted


def _arithmetic(op: Any) -> None:
    """Two-byte floats compute in float32; two of one kind give their own kind, rounded once."""

    @overload(op)
    def halves(a, b):
        if a in HALVES and a == b:
            return lambda a, b: p.like(op(p.widen(a), p.widen(b)), a)
        if isinstance(a, Storage) or isinstance(b, Storage):
            return lambda a, b: op(p.widen(a), p.widen(b))
        return None


for _op in (operator.add, operator.sub, operator.mul, operator.truediv):
    _arithmetic(_op)
