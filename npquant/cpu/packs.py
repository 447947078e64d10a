"""Integers of a byte, made of four vectors of 32 bits at a time.

AVX2 has no instruction that drops the upper bits of a vector, and LLVM takes twenty others to make
bytes of four. Eight do: these bits cleared, so that nothing is clamped, then vectors packed.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from npquant.cpu.instructions import compiled_for
from npquant.cpu.storage import INT2, INT4, UINT2, UINT4

#: Elements that are made together, and those of a vector of 32 bits each.
AT_A_TIME = 32
WORDS = AT_A_TIME // 4

#: The bits that an element may have, by its type.
BITS = {types.int8: 8, types.uint8: 8, INT4: 4, UINT4: 4, INT2: 2, UINT2: 2}
#: Those that have no sign.
UNSIGNED = types.uint8, UINT4, UINT2


def pay_for(kind: Any) -> bool:
    """Whether the processor has these instructions, and none that do it at once."""
    return kind in BITS and compiled_for("avx2") and not compiled_for("avx512bw")


def codes(builder: Any, numbers: Any, kind: Any, few: bool = False) -> Any:
    """The lowest bits of AT_A_TIME integers of 32 bits, `few` of them or all."""
    words = ir.VectorType(ir.IntType(32), WORDS)
    lowest, parts = ir.Constant(words, [2 ** BITS[kind] - 1] * WORDS), []
    for k in range(0, AT_A_TIME, WORDS):
        place = builder.bitcast(builder.gep(numbers, [ir.IntType(64)(k)]), words.as_pointer())
        parts.append(builder.and_(builder.load(place, align=4), lowest))
    return packed(builder, parts, "packusdw", "packuswb")


def packed(builder: Any, parts: list[Any], to_halves: str, to_bytes: str) -> Any:
    """Bytes of vectors of 32 bits each, clamped as these instructions do."""
    for name, n in ((to_halves, 2), (to_bytes, 4)):
        of = ir.FunctionType(ir.VectorType(ir.IntType(32 // n), n * WORDS), [parts[0].type] * 2)
        pack = cgutils.get_or_insert_function(builder.module, of, f"llvm.x86.avx2.{name}")
        parts = [builder.call(pack, parts[i : i + 2]) for i in range(0, len(parts), 2)]
    (made,) = parts
    # Each half of a vector was packed by itself.
    words = ir.VectorType(ir.IntType(32), WORDS)
    made, order = builder.bitcast(made, words), ir.Constant(words, [0, 4, 1, 5, 2, 6, 3, 7])
    return builder.bitcast(builder.shuffle_vector(made, made, order), parts[0].type)
