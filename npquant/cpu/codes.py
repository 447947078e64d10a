"""Codes of a byte, of whole vectors of float32, where AVX2 is the most that a processor has.

A compiler clamps, asks for NaNs and drops bits in 32 bits each, and brings vectors together only
then. Here they come together first: what packs two vectors clamps to the bounds of the narrower
integer, and the rest is done to bytes. So a formula is given LANES elements at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import models, register_model

from npquant.cpu import packs
from npquant.cpu.borrowed import EverySecond, data_of
from npquant.cpu.fetching import prefetch
from npquant.cpu.instructions import Instructions
from npquant.cpu.lines import AHEAD, LINE, LONG
from npquant.cpu.lowered import lowered
from npquant.formulas.guesses import MIDDLE, MIDDLE_BITS

#: Elements that are done together, and bytes of what they are made of.
LANES, _SIZE = packs.AT_A_TIME, 4
_BYTE, _WORD = ir.IntType(8), ir.IntType(32)


class Lanes(types.Type):  # type: ignore[misc]
    """LANES numbers of a type."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype
        super().__init__(name=f"lanes[{dtype}]")


@register_model(Lanes)
class LanesModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, dmm: Any, fe_type: Lanes) -> None:
        super().__init__(dmm, fe_type, ir.VectorType(dmm[fe_type.dtype].get_value_type(), LANES))


_FLOATS = Lanes(types.float32)


# --- the arithmetic of lanes: what `primitives.py` teaches of them ------------------------------


def arithmetic(name: str, numbers: Any, number: Any) -> Instructions:
    """An instruction of LANES float32, each with a number."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return getattr(builder, name)(args[0], _of_all(builder, args[1]))

    return _FLOATS(numbers, types.float32), generate


def rounded_codes(t: Any, zero_point: Any, lo: Any, hi: Any, nan: Any, other: Any) -> Instructions:
    """`primitives.rounded_code` of each."""
    zero = zero_point
    if not isinstance(zero, types.NoneType):
        zero = types.float32 if isinstance(zero, types.Float) else types.int32

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        t, zero_point, *constants, _ = args
        if zero == types.float32:
            # It may be no integer: then the sum is truncated to one.
            t = _call(builder, "rint.v32f32", t)
            t = builder.fadd(t, _of_all(builder, zero_point))
            t = _call(builder, "trunc.v32f32", t)
        added = zero_point if zero == types.int32 else _WORD(0)
        return _codes_of(builder, t, added, constants, other)

    return Lanes(other)(t, zero, lo, hi, nan, other), generate


def _codes_of(builder: Any, t: Any, zero_point: Any, constants: Any, kind: Any) -> Any:
    """What `t` is rounded to, and a zero point, clamped; and what a NaN becomes."""
    # As `rounded_code` has it: within 2**22 the integer is in the low bits of the sum; beyond, the
    # sum is below any code or above. A negative one would overflow.
    total = builder.fadd(t, ir.Constant(t.type, [float(MIDDLE)] * LANES))
    words = ir.VectorType(_WORD, LANES)
    total = _call(builder, "smax.v32i32", builder.bitcast(total, words), ir.Constant(words, None))
    zero_point = _of_all(builder, builder.sub(zero_point, _WORD(int(MIDDLE_BITS))))
    parts = _parts(builder, builder.add(total, zero_point))
    pack, sign = ("packuswb", "u") if kind in packs.UNSIGNED else ("packsswb", "s")
    codes = packs.packed(builder, parts, "packssdw", pack)
    lo, hi, nan = (
        _of_all(builder, builder.trunc(builder.fptosi(number, _WORD), _BYTE))
        for number in constants
    )
    codes = _call(builder, f"{sign}max.v32i8", codes, lo)
    codes = _call(builder, f"{sign}min.v32i8", codes, hi)
    made = cgutils.alloca_once_value(builder, codes)
    with builder.if_then(_any_nan(builder, t), likely=False):
        nans = builder.sext(builder.fcmp_unordered("uno", t, t), words)
        nans = packs.packed(builder, _parts(builder, nans), "packssdw", "packsswb")
        there = builder.icmp_signed("!=", nans, ir.Constant(nans.type, None))
        builder.store(builder.select(there, nan, codes), made)
    codes = builder.load(made)
    if (bits := packs.BITS[kind]) < _BYTE.width:
        codes = builder.and_(codes, ir.Constant(codes.type, [2**bits - 1] * LANES))
    return codes


def _call(builder: Any, name: str, *args: Any) -> Any:
    of = ir.FunctionType(args[0].type, [arg.type for arg in args])
    function = cgutils.get_or_insert_function(builder.module, of, f"llvm.{name}")
    return builder.call(function, args)


def _of_all(builder: Any, number: Any) -> Any:
    """LANES numbers that are alike."""
    none = ir.Constant(ir.VectorType(number.type, LANES), ir.Undefined)
    one = builder.insert_element(none, number, _WORD(0))
    first = ir.Constant(ir.VectorType(_WORD, LANES), [0] * LANES)
    return builder.shuffle_vector(one, none, first)


def _parts(builder: Any, vector: Any) -> list[Any]:
    """As vectors of the processor."""
    n, kind = packs.WORDS, ir.VectorType(_WORD, packs.WORDS)
    return [
        builder.shuffle_vector(vector, vector, ir.Constant(kind, list(range(k, k + n))))
        for k in range(0, LANES, n)
    ]


def _any_nan(builder: Any, t: Any) -> Any:
    """Whether any is a NaN: of two vectors it is asked at once."""
    a, b, c, d = _parts(builder, t)
    found = builder.or_(*(builder.fcmp_unordered("uno", *both) for both in ((a, b), (c, d))))
    return cgutils.is_not_null(builder, builder.bitcast(found, ir.IntType(packs.WORDS)))


# --- the loop -----------------------------------------------------------------------------------


def codes_of(element: Callable[..., Any]) -> Callable[..., Any]:
    """What makes `n` codes, if LANES or more and of those that are made so, and tells if it has.

    It may be asked to fetch what comes AHEAD.
    """

    def codes(
        x: Any, at: Any, n: Any, p: Any, constants: Any, y: Any, base: Any, mask: Any, fetched: Any
    ) -> Any:
        return False

    @lowered(codes)
    def _codes(
        typing: Any, x: Any, at: Any, n: Any, p: Any, constants: Any, y: Any, base: Any, mask: Any,
        fetched: Any,
    ) -> Any:  # fmt: skip
        signature = types.boolean(
            x, types.uintp, types.intp, p, constants, y, types.uintp, mask, types.boolean
        )
        if not in_lanes(x, p, constants, y, mask):
            return signature, lambda context, builder, sig, args: cgutils.false_bit
        function = typing.resolve_value_type(element)
        made = function.get_call_type(typing, (_FLOATS, p, constants, y), {})

        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            array, at, n, p_, constants_, out, base, _, fetched = args
            of_lanes = context.get_function(function, made)

            def vector(kind: Any, place: Any) -> Any:
                return builder.bitcast(place, context.get_value_type(Lanes(kind)).as_pointer())

            def give(source: Any, to: Any) -> None:
                v = builder.load(vector(types.float32, source), align=_SIZE)
                values = of_lanes(builder, (v, p_, constants_, out))
                builder.store(builder.extract_value(values, 0), vector(y.dtype, to), align=1)

            source = builder.gep(data_of(context, builder, x, array), [at])
            to = builder.gep(data_of(context, builder, y, out), [base])
            enough = builder.icmp_signed(">=", n, n.type(LANES))
            with builder.if_then(enough):
                _each(builder, source, to, n, fetched, give)
            return enough

        return signature, generate

    return codes


def in_lanes(x: Any, p: Any, constants: Any, y: Any, mask: Any) -> bool:
    """Whether codes are made so, by the types: of float32, and of what float32 holds."""
    return (
        mask == types.none
        and isinstance(x, (types.Array, types.CPointer))
        and not isinstance(x, EverySecond)
        and x.dtype == types.float32
        and packs.pay_for(y.dtype)
        and all(isinstance(kind, types.Integer) or kind == types.float32 for kind in p)
        and all(kind == types.float32 for kind in constants)
    )


def _each(
    builder: Any, source: Any, to: Any, n: Any, fetched: Any, give: Callable[[Any, Any], None]
) -> None:
    """Have LANES of `n` elements given at a time, of the last ones some once again."""
    none, some, last = n.type(0), n.type(LANES), builder.sub(n, n.type(LANES))
    # Of a long run, vectors begin at a line of the cache, but for the first and the last one.
    to_line = builder.neg(builder.udiv(builder.ptrtoint(source, n.type), n.type(_SIZE)))
    to_line = builder.and_(to_line, n.type(LINE // _SIZE - 1))
    whole = builder.icmp_signed("==", to_line, none)
    whole = builder.or_(whole, builder.icmp_signed("<=", n, n.type(LONG)))
    first = builder.select(whole, none, builder.sub(to_line, some))
    with cgutils.for_range_slice(builder, first, n, some, n.type) as (k, _):
        k = builder.select(builder.icmp_signed("<", k, last), k, last)
        k = builder.select(builder.icmp_signed(">", k, none), k, none)
        place = builder.gep(source, [k])
        with builder.if_then(fetched):
            for line in range(0, LANES, LINE // _SIZE):
                ahead = builder.gep(place, [n.type(AHEAD + line)])
                prefetch(builder, builder.bitcast(ahead, _BYTE.as_pointer()), 3)
        give(place, builder.gep(to, [k]))
