"""How the compiler is told of what kernels call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import extending, types
from numba.core.typing.templates import infer, infer_global, make_intrinsic_template

_OPTIONS: Any = {"no_cfunc_wrapper": True}

#: For functions that kernels call, and nobody else: no C wrapper is compiled. A loop around a call
#: is not vectorised, so what is called there is inlined.
called = extending.register_jitable(**_OPTIONS)
inlined = extending.register_jitable(**_OPTIONS, forceinline=True)


def overload(function: Callable[..., Any], **options: Any) -> Callable[[Any], Any]:
    """As Numba's, for functions that kernels call, and nobody else."""
    every: Any = {**_OPTIONS, **options}
    return extending.overload(function, jit_options=every)


def lowered(function: Callable[..., Any]) -> Callable[[Any], Any]:
    """How `function` is compiled, in LLVM's own terms.

    ``@lowered(f)`` is for ``g(typing, *types) -> signature, generate``. As Numba's `intrinsic`, but
    Python still calls `function`. An overload that only calls an intrinsic would be compiled by
    itself, in ten times the time.
    """

    def register(definition: Any) -> Any:
        template = make_intrinsic_template(function, definition, function.__name__)
        infer(template)
        infer_global(function, types.Function(template))
        return definition

    return register
