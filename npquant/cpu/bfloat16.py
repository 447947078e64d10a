"""Bfloat16, made of many float32 at a time.

The halves of a word tell whether the upper one is rounded up, and those of two vectors are in one
each, with one instruction of AVX-512. Without it that takes more than it saves.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from npquant.cpu.instructions import compiled_for

#: Elements that are made together.
MANY = 32


def pays() -> bool:
    """Whether the processor has this instruction."""
    return compiled_for("avx512bw")


def codes(builder: Any, numbers: Any, kind: Any) -> Any:
    """MANY float32 as bfloat16, as `storage._float32_to_bfloat16` makes each."""
    half = ir.IntType(16)
    halves, both = ir.VectorType(half, MANY), ir.VectorType(half, 2 * MANY)
    words = builder.load(builder.bitcast(numbers, both.as_pointer()), align=4)

    def every_second(first: int) -> Any:
        order = ir.Constant(ir.VectorType(ir.IntType(32), MANY), list(range(first, 2 * MANY, 2)))
        return builder.shuffle_vector(words, ir.Constant(both, ir.Undefined), order)

    def all_(value: int) -> Any:
        return ir.Constant(halves, [value] * MANY)

    # More than half of the last place goes up, and half if that makes it even.
    lower, upper = every_second(0), every_second(1)
    half_way = builder.sub(all_(0x8000), builder.and_(upper, all_(1)))
    up = builder.icmp_unsigned(">", lower, half_way)
    return builder.select(up, builder.add(upper, all_(1)), upper)
