"""On x86, kernels round to nearest and keep subnormal numbers, whatever the thread does.

A program may have told the processor otherwise, such as by `torch.set_flush_denormal`, or by a
library that was compiled with -ffast-math; and threads of a pool compute as each was told. So the
processor is told what IEEE 754 has by default as a kernel begins, and then what it was told before.
"""

from __future__ import annotations

import platform
from typing import Any

from llvmlite import ir
from numba.core import cgutils

#: Of x86: where its word lies, no exceptions that stop a program, to nearest, nothing flushed.
_X86, _WORD, _DEFAULT = platform.machine() in ("x86_64", "AMD64"), ir.IntType(32), 0x1F80


def begun(builder: Any) -> Any:
    """Compute as IEEE 754 has it from here on; what the thread did before, for `ended`."""
    if not _X86:
        return None
    before, default = builder.alloca(_WORD), builder.alloca(_WORD)
    builder.store(_WORD(_DEFAULT), default)
    _tell(builder, "stmxcsr", before)
    _tell(builder, "ldmxcsr", default)
    return before


def ended(builder: Any, before: Any) -> None:
    """Compute as before."""
    if before is not None:
        _tell(builder, "ldmxcsr", before)


def guarded(function: Any) -> None:
    """Have a function of LLVM begin and end so."""
    builder = ir.IRBuilder()
    builder.position_at_start(function.entry_basic_block)
    before = begun(builder)
    for block in function.blocks:
        if isinstance(block.terminator, ir.Ret):
            builder.position_before(block.terminator)
            ended(builder, before)


def _tell(builder: Any, what: str, word: Any) -> None:
    place = ir.IntType(8).as_pointer()
    of = ir.FunctionType(ir.VoidType(), [place])
    tell = cgutils.get_or_insert_function(builder.module, of, f"llvm.x86.sse.{what}")
    builder.call(tell, [builder.bitcast(word, place)])
