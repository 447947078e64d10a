"""Bfloat16, made of many float32 at a time.

Some processors have an instruction for it, which takes subnormal numbers for zeros. Else the halves
of a word tell whether the upper one is rounded up, and those of two vectors are in one each, with
one instruction of AVX-512. Without it that takes more than it saves.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils

from npquant.cpu.instructions import compiled_for

#: Elements that are made together.
AT_A_TIME = 32
_HALF = AT_A_TIME // 2
#: Classes of float32: NaNs, quiet and signaling, and subnormal numbers.
_OTHERS = 0x01 | 0x80 | 0x20


class _BFloat(ir.Type):  # type: ignore[misc]
    """LLVM's own type, which llvmlite has no name for."""

    def _to_string(self) -> str:
        return "bfloat"


def pays() -> bool:
    """Whether the processor has an instruction that takes halves of two vectors."""
    return compiled_for("avx512bw")


def codes(builder: Any, numbers: Any, kind: Any, few: bool = False) -> Any:
    """AT_A_TIME float32 as bfloat16, as `storage._float32_to_bfloat16` makes each.

    Where `few` hold something, the others are anything, and nothing may be decided by them.
    """
    if few or not (compiled_for("avx512bf16") and compiled_for("avx512dq")):
        return _by_halves(builder, numbers)
    word, some = ir.IntType(32), ir.VectorType(ir.FloatType(), _HALF)
    flags, both = ir.VectorType(ir.IntType(1), _HALF), ir.VectorType(_BFloat(), AT_A_TIME)

    def call(name: str, result: Any, *args: Any) -> Any:
        of = ir.FunctionType(result, [arg.type for arg in args])
        function = cgutils.get_or_insert_function(builder.module, of, f"llvm.x86.{name}.512")
        return builder.call(function, args)

    place = builder.bitcast(numbers, some.as_pointer())
    first, second = (builder.load(builder.gep(place, [word(k)]), align=4) for k in range(2))
    others = builder.or_(
        *(call("avx512.fpclass.ps", flags, v, word(_OTHERS)) for v in (first, second))
    )
    others = builder.bitcast(others, ir.IntType(_HALF))
    made = cgutils.alloca_once(builder, ir.VectorType(ir.IntType(16), AT_A_TIME))
    with builder.if_else(cgutils.is_not_null(builder, others), likely=False) as (then, otherwise):
        with then:
            builder.store(_by_halves(builder, numbers), made)
        with otherwise:
            at_once = call("avx512bf16.cvtne2ps2bf16", both, second, first)
            builder.store(builder.bitcast(at_once, made.type.pointee), made)
    return builder.load(made)


def _by_halves(builder: Any, numbers: Any) -> Any:
    """As `codes`, of any numbers, by instructions for integers."""
    half = ir.IntType(16)
    halves, both = ir.VectorType(half, AT_A_TIME), ir.VectorType(half, 2 * AT_A_TIME)
    words = builder.load(builder.bitcast(numbers, both.as_pointer()), align=4)

    def every_second(first: int) -> Any:
        places = list(range(first, 2 * AT_A_TIME, 2))
        order = ir.Constant(ir.VectorType(ir.IntType(32), AT_A_TIME), places)
        return builder.shuffle_vector(words, ir.Constant(both, ir.Undefined), order)

    def all_(value: int) -> Any:
        return ir.Constant(halves, [value] * AT_A_TIME)

    # More than half of the last place goes up, and half if that makes it even.
    lower, upper = every_second(0), every_second(1)
    half_way = builder.sub(all_(0x8000), builder.and_(upper, all_(1)))
    up = builder.icmp_unsigned(">", lower, half_way)
    return builder.select(up, builder.add(upper, all_(1)), upper)
