"""Codes of float8, made of many integers at a time.

What makes a code of an integer works on the few bits that are left at the end, one in each lane of
32: so the bits of four are brought together first.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils

from npquant.cpu.storage import FLOAT8

#: Codes that are made together.
AT_A_TIME = 64


def codes(builder: Any, numbers: Any, kind: Any, few: bool = False) -> Any:
    """The codes of AT_A_TIME numbers, `few` or all, as `primitives._number_to_float8` has it."""
    drop, scale = FLOAT8[kind][:2]
    one, index, half, byte = ir.FloatType(), ir.IntType(32), ir.IntType(16), ir.IntType(8)
    of, ones = ir.VectorType(one, AT_A_TIME), float(scale) * 2.0 ** int(drop)

    def all_(element: Any, value: Any) -> Any:
        return ir.Constant(ir.VectorType(element, AT_A_TIME), [value] * AT_A_TIME)

    def upper_halves(vector: Any, element: Any) -> Any:
        parts = ir.VectorType(element, 2 * AT_A_TIME)
        odd = ir.Constant(ir.VectorType(index, AT_A_TIME), list(range(1, 2 * AT_A_TIME, 2)))
        vector = builder.bitcast(vector, parts)
        return builder.shuffle_vector(vector, ir.Constant(parts, ir.Undefined), odd)

    fma = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(of, [of] * 3), f"llvm.fma.v{AT_A_TIME}f32"
    )
    v = builder.load(builder.bitcast(numbers, of.as_pointer()), align=4)
    product = builder.fmul(v, all_(one, ones + float(scale)))
    rounded = builder.call(fma, [v, all_(one, -ones), product])
    # There is nothing in its lower half, and in its upper one no more than a sign above the code.
    magnitude = builder.shl(upper_halves(rounded, half), all_(half, 24 - int(drop)))
    sign = builder.and_(upper_halves(v, half), all_(half, 0x8000))
    return upper_halves(builder.or_(magnitude, sign), byte)
