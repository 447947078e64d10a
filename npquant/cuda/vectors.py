"""Several elements at once: accesses of 16 bytes, which the compiler does not make by itself.

Loops over elements are unrolled and their loads do not wait for each other only if they are made
before: a thread loads all it needs, computes into a scratch that becomes registers, and stores.
Plain Python here is what the simulator runs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types

from npquant.cuda.target import SIMULATED
from npquant.formulas.base import formula

if not SIMULATED:
    from numba.core import cgutils

    from npquant.cuda.target import intrinsic, overload

#: Bytes of the widest access.
ACCESS = 16


class Vectors(NamedTuple):
    """Functions for `count` vectors of `width` elements, `step` apart, of each array of a tuple.

    Attributes
    ----------
    load : callable
        ``load(arrays, i, step)``: a tuple of the elements for each array, vector after vector.
    scratch : callable
        ``scratch(arrays)``: room for as many elements of each.
    store : callable
        ``store(arrays, i, step, scratch)``: write what is in the scratch to the arrays.
    """

    load: Callable[..., Any]
    scratch: Callable[..., Any]
    store: Callable[..., None]


def moved(arrays: Any, offset: Any) -> Any:
    """An array, or each of a tuple, from an element on; `offset` is an int64."""
    if isinstance(arrays, tuple):
        return tuple(moved(a, offset) for a in arrays)
    return arrays[int(offset) :]


@cache
def vectors(width: int, count: int) -> Vectors:
    """The functions for one size."""

    def places(i: Any, step: Any) -> list[Any]:
        return [int(i) + u * int(step) + k for u in range(count) for k in range(width)]

    def load(arrays: Any, i: Any, step: Any) -> Any:
        return tuple(tuple(a[k] for k in places(i, step)) for a in arrays)

    def scratch(arrays: Any) -> Any:
        return tuple(np.empty(width * count, a.dtype) for a in arrays)

    def store(arrays: Any, i: Any, step: Any, scratch: Any) -> None:
        for a, values in zip(arrays, scratch, strict=True):
            for k, v in zip(places(i, step), values, strict=True):
                a[k] = v

    if not SIMULATED:
        scratch = _teach(width, count, load, store)
    return Vectors(load, scratch, store)


def unrolled(step: Callable[..., Any], begin: int, end: int) -> Callable[..., Any]:
    """``state = step(k, state, told)`` for each k, without a loop.

    Of a loop the compiler may leave one, and then what it indexes lies in memory.
    """
    if end - begin == 1:

        @formula
        def one(state: Any, told: Any) -> Any:
            return step(begin, state, told)

        return one
    middle = (begin + end) // 2
    first, second = unrolled(step, begin, middle), unrolled(step, middle, end)

    @formula
    def both(state: Any, told: Any) -> Any:
        return second(first(state, told), told)

    return both


def _teach(width: int, count: int, load: Any, store: Any) -> Any:
    """How two are compiled: recursively over the arrays, by intrinsics for one of them.

    The scratch is an intrinsic itself, which is returned.
    """
    size = width * count

    @intrinsic
    def load_one(context: Any, a: Any, i: Any, step: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            element = context.get_data_type(a.dtype)
            model = context.data_model_manager[a.dtype]
            found = []
            for at in _addresses(builder, args, count):
                found += _elements(context, builder, at, element, width)
            values = [model.from_data(builder, v) for v in found]
            return context.make_tuple(builder, sig.return_type, values)

        return types.UniTuple(a.dtype, size)(a, types.uint32, types.uint32), codegen

    # No overload: its memory would be that of a function that has returned.
    @intrinsic
    def scratch(context: Any, arrays: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            rooms = []
            for a in arrays:
                element = context.get_data_type(a.dtype)
                room = cgutils.alloca_once(builder, ir.ArrayType(element, size))
                rooms.append(builder.bitcast(room, element.as_pointer()))
            return context.make_tuple(builder, sig.return_type, rooms)

        return arrays(arrays), codegen

    @intrinsic
    def store_one(context: Any, a: Any, i: Any, step: Any, values: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            element = context.get_data_type(a.dtype)
            for u, at in enumerate(_addresses(builder, args, count)):
                found = [
                    builder.load(builder.gep(args[3], [_INDEX(u * width + k)]))
                    for k in range(width)
                ]
                _write(context, builder, at, found, element)
            return context.get_dummy_value()

        return types.void(a, types.uint32, types.uint32, values), codegen

    @overload(load)
    def _load(arrays, i, step):
        if len(arrays) == 1:
            return lambda arrays, i, step: (load_one(arrays[0], i, step),)
        return lambda arrays, i, step: (
            load_one(arrays[0], i, step), *load(arrays[1:], i, step),
        )  # fmt: skip

    @overload(store)
    def _store(arrays, i, step, scratch):
        if len(arrays) == 1:
            return lambda arrays, i, step, scratch: store_one(arrays[0], i, step, scratch[0])

        def store_all(arrays, i, step, scratch):
            store_one(arrays[0], i, step, scratch[0])
            store(arrays[1:], i, step, scratch[1:])

        return store_all

    return scratch


if not SIMULATED:

    @intrinsic
    def _moved_one(context: Any, a: Any, offset: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            return builder.gep(args[0], [args[1]])

        return a(a, types.int64), codegen

    @overload(moved)
    def _moved(arrays, offset):
        if not isinstance(arrays, types.BaseTuple):
            return lambda arrays, offset: _moved_one(arrays, offset)
        if len(arrays) == 1:
            return lambda arrays, offset: (_moved_one(arrays[0], offset),)
        return lambda arrays, offset: (
            _moved_one(arrays[0], offset), *moved(arrays[1:], offset),
        )  # fmt: skip


_WORD, _INDEX = ir.IntType(32), ir.IntType(64)


def _addresses(builder: Any, args: Any, count: int) -> list[Any]:
    """Where each vector begins: of a constant step, a constant number of bytes from the first."""
    pointer, i, step = args[:3]
    first = builder.gep(pointer, [builder.zext(i, _INDEX)])
    steps = [builder.mul(step, ir.Constant(step.type, u)) for u in range(count)]
    return [builder.gep(first, [builder.zext(s, _INDEX)]) for s in steps]


def _elements(context: Any, builder: Any, at: Any, element: Any, width: int) -> list[Any]:
    """The elements of one vector, loaded as words: vectors of small elements would be split."""
    size = context.get_abi_sizeof(element)
    if width * size < 4:
        return [_load_small(builder, at, k, size) for k in range(width)]
    words = []
    for first in range(0, width * size // 4, 4):
        n = min(4, width * size // 4 - first)
        vector = builder.load(_word_pointer(builder, at, first, n))
        vector.align = 4 * n
        words += [builder.extract_element(vector, _WORD(k)) for k in range(n)]
    if size == 8:
        low_high = zip(words[::2], words[1::2], strict=True)
        whole = [
            builder.or_(builder.zext(a, _INDEX), builder.shl(builder.zext(b, _INDEX), _INDEX(32)))
            for a, b in low_high
        ]
        return [builder.bitcast(w, element) for w in whole]
    if size == 4:
        return [builder.bitcast(w, element) for w in words]
    found = []
    for k in range(width):
        word, shift = words[k * size // 4], k * size % 4 * 8
        found.append(builder.trunc(builder.lshr(word, _WORD(shift)), ir.IntType(size * 8)))
    return found


def _load_small(builder: Any, at: Any, k: int, size: int) -> Any:
    value = builder.load(builder.gep(at, [_INDEX(k)]))
    value.align = size
    return value


def _write(context: Any, builder: Any, at: Any, values: list[Any], element: Any) -> None:
    """Store one vector, as words."""
    size = context.get_abi_sizeof(element)
    if len(values) * size < 4:
        for k, v in enumerate(values):
            builder.store(v, builder.gep(at, [_INDEX(k)])).align = size
        return
    words = []
    whole = ir.IntType(size * 8)
    values = [v if v.type == whole else builder.bitcast(v, whole) for v in values]
    if size == 8:
        for v in values:
            words += [builder.trunc(v, _WORD), builder.trunc(builder.lshr(v, _INDEX(32)), _WORD)]
    elif size == 4:
        words = values
    else:
        per = 4 // size
        for first in range(0, len(values), per):
            word = _WORD(0)
            for k, v in enumerate(values[first : first + per]):
                part = builder.shl(builder.zext(v, _WORD), _WORD(k * size * 8))
                word = builder.or_(word, part)
            words.append(word)
    for first in range(0, len(words), 4):
        some = words[first : first + 4]
        vector = ir.Constant(ir.VectorType(_WORD, len(some)), ir.Undefined)
        for k, word in enumerate(some):
            vector = builder.insert_element(vector, word, _WORD(k))
        builder.store(vector, _word_pointer(builder, at, first, len(some))).align = 4 * len(some)


def _word_pointer(builder: Any, at: Any, first: int, n: int) -> Any:
    base = builder.bitcast(at, _WORD.as_pointer())
    return builder.bitcast(builder.gep(base, [_INDEX(first)]), ir.VectorType(_WORD, n).as_pointer())
