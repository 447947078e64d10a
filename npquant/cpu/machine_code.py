"""Kernels become machine code, of whole vectors; the functions that are only parts of them do not.

Numba makes machine code of every function that a kernel calls, though nobody runs it: the kernel
has it inlined.

And LLVM makes vectors of 256 bits for all of Intel's processors with AVX-512, as the first of them
slowed down where they were longer. Ice Lake and later ones do not, and do twice as much at a time.

It also addresses arrays by the register that held a function's frame once, if none is needed. What
is read so comes from memory a quarter slower: perhaps it is taken for the stack, of which nothing
need be brought ahead. So there is a frame, but on Zen.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from llvmlite.binding import Linkage
from numba.core.codegen import JITCodeLibrary
from numba.core.registry import cpu_target

from npquant.cpu import ieee
from npquant.cpu.lines import FRAMED

#: What Ice Lake and later ones have, and Zen from the fourth on, for which LLVM does so anyway.
_LATER = "+avx512vbmi2"
_WRAPPER = "_ZN7cpython"  # as the function that Python calls begins, of any kernel
_FULL_WIDTH, _FRAME = '"prefer-vector-width"="512"', '"frame-pointer"="all"'


class _Kernel(JITCodeLibrary):  # type: ignore[misc]
    """A function in vectors as long as the processor has."""

    full_width = True

    def add_ir_module(self, ir_module: Any) -> None:
        full_width = self.full_width and _LATER in self._codegen._tm_features.split(",")
        wanted = [_FULL_WIDTH] * full_width + [_FRAME] * FRAMED
        for function in ir_module.functions:
            if function.blocks and function.name.startswith(_WRAPPER):
                ieee.guarded(function)
            # As of any set: `add` of these knows the names of LLVM's own attributes alone.
            set.update(function.attributes, wanted)
        super().add_ir_module(ir_module)

    def _optimize_functions(self, ll_module: Any) -> None:
        """As Numba does it, but not of declarations, which would take as long."""
        ll_module.data_layout = self._codegen._data_layout
        for function in ll_module.functions:
            if not function.is_declaration:
                passes, builder = self._codegen._function_pass_manager()
                passes.run(function, builder)

    def _finalize_final_module(self) -> None:
        """Keep to itself what was not inlined.

        Numba counts names of functions anew in every process. Of kernels that two of them have
        cached, one would otherwise call a part of the other, whose name is the same.
        """
        for function in self._final_module.functions:
            if function.linkage == Linkage.linkonce_odr and not function.is_declaration:
                function.linkage = Linkage.internal
        super()._finalize_final_module()


class _Part(_Kernel):
    """A function in the compiler's own language, to be linked into kernels."""

    def __init__(self, codegen: Any, name: str) -> None:
        super().__init__(codegen, name)
        self._no_engine = SimpleNamespace(set_env=lambda name, env: None)

    @property
    def codegen(self) -> Any:
        """What is told where Python's globals are, for machine code that needs them."""
        return self._no_engine

    def get_pointer_to_function(self, name: str) -> int:
        """Null, which says that there is no such function."""
        self._ensure_finalized()
        return 0

    def _finalize_final_module(self) -> None:
        self._finalized = True


@contextlib.contextmanager
def machine_code_of(kernel: str, full_width: bool) -> Iterator[None]:
    """Machine code is made of the function of this name alone; the compiler's lock is held."""
    codegen = cpu_target.target_context.codegen()

    def library(name: str) -> Any:
        made = (_Kernel if name == kernel else _Part)(codegen, name)
        made.full_width = full_width
        return made

    codegen.create_library = library
    try:
        yield
    finally:
        del codegen.create_library
