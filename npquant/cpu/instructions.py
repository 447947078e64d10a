"""Primitives that are a few instructions, in LLVM's own terms.

Each function here takes Numba's types of the arguments of a primitive and gives `Instructions` of
it. To Numba, a function of Python is typed, lowered and optimized by itself, in ten milliseconds,
which is ten times as long.
"""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.registry import cpu_target

#: The signature, and what generates the instructions: ``generate(context, builder, sig, args)``.
Instructions = tuple[Any, Callable[..., Any]]


def compiled_for(feature: str) -> bool:
    """Whether the processor that kernels are compiled for has what LLVM calls so."""
    return f"+{feature}" in cpu_target.target_context.codegen()._tm_features.split(",")


def first(*kinds: Any) -> Instructions:
    """The first argument."""
    return kinds[0](*kinds), lambda context, builder, sig, args: args[0]


def nothing(*kinds: Any) -> Instructions:
    """None, of whatever arguments."""
    return types.none(*kinds), lambda context, builder, sig, args: context.get_dummy_value()


def zero(y: Any) -> Instructions:
    """A zero of the element type of `y`, without touching its memory."""
    return y.dtype(y), lambda context, builder, sig, args: context.get_constant_null(y.dtype)


def cast(kinds: list[Any], result: Any) -> Instructions:
    """The first argument as a number of another native type."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return context.cast(builder, args[0], kinds[0], result)

    return result(*kinds), generate


def read_as(kinds: list[Any], result: Any) -> Instructions:
    """The bits of the first argument, read as `result`, truncated or padded with 0."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        value, to = args[0], context.get_value_type(result)
        if isinstance(value.type, (ir.FloatType, ir.DoubleType)):
            bits = 32 if isinstance(value.type, ir.FloatType) else 64
            value = builder.bitcast(value, ir.IntType(bits))
        floating = isinstance(to, (ir.FloatType, ir.DoubleType))
        width = result.bitwidth if floating else to.width
        if value.type.width > width:
            value = builder.trunc(value, ir.IntType(width))
        elif value.type.width < width:
            value = builder.zext(value, ir.IntType(width))
        return builder.bitcast(value, to) if floating else value

    return result(*kinds), generate


def llvm(name: str, *kinds: Any) -> Instructions:
    """What LLVM has a name for."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        kind = args[0].type
        of = ir.FunctionType(kind, [kind] * len(args))
        return builder.call(builder.module.declare_intrinsic(f"llvm.{name}", [kind], of), args)

    return kinds[0](*kinds), generate


def arithmetic(name: str, a: Any, b: Any) -> Instructions:
    """An instruction of two floats, in the wider type of both; an integer takes the other's."""
    wider = max(a, b, key=lambda kind: (isinstance(kind, types.Float), kind.bitwidth))
    return wider(wider, wider), lambda context, builder, sig, args: getattr(builder, name)(*args)


def _index(i: Any) -> Any:
    return types.intp if i.signed else types.uintp


def element(x: Any, i: Any) -> Instructions:
    """x[i]"""
    signature = x.dtype(x, _index(i))

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return context.get_function(operator.getitem, signature)(builder, args)

    return signature, generate


def elements(x: Any, i: Any) -> Instructions:
    """Element `i` of every array of a tuple."""
    result = types.Tuple([a.dtype for a in x])

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        found = []
        for kind, array in zip(x, cgutils.unpack_tuple(builder, args[0]), strict=True):
            get = context.get_function(operator.getitem, kind.dtype(kind, _index(i)))
            found.append(get(builder, (array, args[1])))
        return context.make_tuple(builder, result, found)

    return result(x, _index(i)), generate


def stored(y: Any, i: Any, v: Any, *by: Any) -> Instructions:
    """y[i] = v, which becomes a number of the types `by` on its way, one after another."""
    signature = types.none(y, _index(i), y.dtype)

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        array, index, value = args
        for a, b in pairwise([v, *by, y.dtype]):
            value = context.cast(builder, value, a, b)
        context.get_function(operator.setitem, signature)(builder, (array, index, value))
        return context.get_dummy_value()

    return types.none(y, _index(i), v), generate


def as_functions(implementation: Callable[..., Any]) -> Callable[..., Any]:
    """What an implementation gives where that is a function, for `overload`."""

    @functools.wraps(implementation)
    def functions(*kinds: Any) -> Any:
        made = implementation(*kinds)
        return None if isinstance(made, tuple) else made

    return functions


def as_instructions(implementation: Callable[..., Any]) -> Any:
    """What an implementation gives where that is `Instructions`, for `lowered`."""

    def found(typing: Any, *kinds: Any) -> Any:
        made = implementation(*kinds)
        return made if isinstance(made, tuple) else None

    instructions: Any = found  # which Numba asks for the names of its arguments
    typing = inspect.Parameter("typing", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = inspect.signature(implementation).parameters.values()
    instructions.__signature__ = inspect.Signature([typing, *names])
    return instructions
