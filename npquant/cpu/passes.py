"""What of Numba's work npquant's own functions need.

Passes are left out that rewrite what these have not: `with` blocks, closures, loops over tuples,
expressions of whole arrays, functions to be inlined before their types are known. They take a
twentieth of the time. So is the pass that copies a function's code, with types, for whoever prints
it: a compiled function would keep that as long as it lives, and it is half of its entry in the
cache. And what several functions call is compiled once, whatever options of theirs
it does not inherit: a kernel releases the GIL, and what it calls has no such option.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from numba.core import typed_passes, untyped_passes
from numba.core.compiler import Compiler
from numba.core.compiler_machinery import PassManager
from numba.core.targetconfig import ConfigStack
from numba.core.typing.templates import _OverloadFunctionTemplate as Overload

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
    typed_passes.AnnotateTypes,
})  # fmt: skip

#: The options that a function has of the one that calls it (`CPUTargetOptions.finalize`).
INHERITED = ("nrt", "fastmath", "error_model", "forceinline")

_every, _for_each_caller = Compiler.define_pipelines, Overload._get_impl


def _needed(compiler: Any) -> list[Any]:
    """The pass managers of a function, those of npquant's own without what is needless."""
    managers: list[Any] = _every(compiler)
    if not compiler.state.func_id.modname.startswith("npquant."):
        return managers
    needed = PassManager("npquant")
    needed.passes = [p for p in managers[0].passes if p[0] not in NEEDLESS]
    needed.finalize()
    return [needed]


def _shared(overload: Any, args: Any, kws: Any) -> Any:
    """What implements an overload for these types, found by the options that matter to it."""
    flags = ConfigStack.top_or_none()
    if flags is None:  # another thread's question, of which nothing is compiled
        return _for_each_caller(overload, args, kws)
    shared = type(flags)()
    for name in INHERITED:
        setattr(shared, name, getattr(flags, name))
    with ConfigStack().enter(shared):
        return _for_each_caller(overload, args, kws)


@contextlib.contextmanager
def needed_work() -> Iterator[None]:
    """Compile so; the compiler's lock is held."""
    Compiler.define_pipelines = _needed  # type: ignore[method-assign]
    Overload._get_impl = _shared  # type: ignore[method-assign]
    try:
        yield
    finally:
        Compiler.define_pipelines = _every  # type: ignore[method-assign]
        Overload._get_impl = _for_each_caller  # type: ignore[method-assign]
