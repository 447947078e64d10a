"""Kernels become machine code; the functions that are only parts of them do not.

Numba makes machine code of every function that a kernel calls, though nobody runs it: the kernel
has it inlined.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from numba.core.codegen import JITCodeLibrary
from numba.core.registry import cpu_target


class _Part(JITCodeLibrary):  # type: ignore[misc]
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
def parts_of(kernel: str) -> Iterator[None]:
    """Machine code is made of the function of this name alone; the compiler's lock is held."""
    codegen = cpu_target.target_context.codegen()
    create = codegen.create_library

    def library(name: str) -> Any:
        return create(name) if name == kernel else _Part(codegen, name)

    codegen.create_library = library
    try:
        yield
    finally:
        del codegen.create_library
