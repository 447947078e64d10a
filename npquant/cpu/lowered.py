"""Functions that are told to the compiler in LLVM's own terms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import types
from numba.core.typing.templates import infer, infer_global, make_intrinsic_template


def lowered(function: Callable[..., Any]) -> Callable[[Any], Any]:
    """How `function` is compiled: ``@lowered(f)`` on ``g(typing, *types) -> signature, generate``.

    As Numba's `intrinsic`, but Python still calls `function`. An overload that only calls an
    intrinsic would be compiled by itself, in ten times the time.
    """

    def register(definition: Any) -> Any:
        template = make_intrinsic_template(function, definition, function.__name__)
        infer(template)
        infer_global(function, types.Function(template))
        return definition

    return register
