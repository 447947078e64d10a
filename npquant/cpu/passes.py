"""Which of Numba's passes npquant's own functions go through.

Those left out rewrite what these have not: `with` blocks, closures, loops over tuples, expressions
of whole arrays, functions to be inlined before their types are known. They take a twentieth of the
time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from numba.core import typed_passes, untyped_passes
from numba.core.compiler import Compiler
from numba.core.compiler_machinery import PassManager

NEEDLESS = frozenset({
    untyped_passes.WithLifting,
    untyped_passes.InlineClosureLikes,
    untyped_passes.RewriteSemanticConstants,
    untyped_passes.RewriteDynamicRaises,
    untyped_passes.MakeFunctionToJitFunction,
    untyped_passes.InlineInlinables,
    untyped_passes.FindLiterallyCalls,
    untyped_passes.LiteralUnroll,
    untyped_passes.LiteralPropagationSubPipelinePass,
    typed_passes.InlineOverloads,
    typed_passes.NopythonRewrites,
    typed_passes.NoPythonSupportedFeatureValidation,
    typed_passes.DumpParforDiagnostics,
})  # fmt: skip

_every = Compiler.define_pipelines


def _needed(compiler: Any) -> list[Any]:
    """The pass managers of a function, those of npquant's own without what is needless."""
    managers: list[Any] = _every(compiler)
    if not compiler.state.func_id.modname.startswith("npquant."):
        return managers
    needed = PassManager("npquant")
    needed.passes = [p for p in managers[0].passes if p[0] not in NEEDLESS]
    needed.finalize()
    return [needed]


@contextlib.contextmanager
def needed_passes() -> Iterator[None]:
    """Compile so; the compiler's lock is held."""
    Compiler.define_pipelines = _needed  # type: ignore[method-assign]
    try:
        yield
    finally:
        Compiler.define_pipelines = _every  # type: ignore[method-assign]
