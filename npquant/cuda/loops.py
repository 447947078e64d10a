"""The kernels of everything that goes element by element: a formula goes in, a kernel comes out.

The data is flat, in C order of (outer, channels, inner), with one scale and zero point a channel. A
thread takes a few vectors of 16 bytes and walks from channel to channel as it goes: one division
of 32 bits for each vector tells where it begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numba import types

from npquant.cpu.loops import NUMBER_TYPES
from npquant.cuda.arrays import DeviceArray, device
from npquant.cuda.target import THREADS, Kernel, Types, cuda, pointer
from npquant.cuda.vectors import ACCESS, vectors
from npquant.cuda.walk import pieces
from npquant.formulas.base import formula
from npquant.layout import PER_TENSOR, Granularity, Layout
from npquant.primitives import at, each, put

#: Elements of a launch: their indices, and where in a channel they are, fit 32 bits.
LONGEST = 1 << 30
#: Channels of an array: that of an element is counted from that of the first of a launch.
CHANNELS = (1 << 32) - LONGEST

#: Bytes that a thread asks for before it computes: loads in flight hide how long they take.
IN_FLIGHT = 2 * ACCESS

_count = np.uint32  # Numba makes 64 bits of a sum of two of 32


def _walk(
    parameters: Callable[..., Any], element: Callable[..., Any], width: int, count: int
) -> Callable[..., None]:
    """What a thread does, by the numbers of its block and in it: `count` vectors of `width`.

    `parameters` and `element` are those of a formula, with tuples of arrays for x and y. It is also
    compiled for the CPU, by a test.
    """
    step, last = width * THREADS, width * THREADS * (count - 1) + width
    load, scratch, store = vectors(width, count)[2:]

    @formula
    def walk(
        block: Any, thread: Any, n: Any, skip: Any, first: Any, channels: Any, inner: Any, x: Any,
        scale: Any, zero_point: Any, constants: Any, y: Any,
    ) -> None:  # fmt: skip
        i = _count(_count(block) * _count(step * count))
        i = _count(i + _count(thread) * _count(width))
        if _count(i + _count(last)) <= n:
            values, room = load(x, i, _count(step)), scratch(y)
            for u in range(count):
                place = _count(skip + i + _count(u * step))
                row = _count(place // inner)
                left = _count(inner - _count(place - row * inner))
                c = _count(_count(first + row) % channels)
                p = parameters(x, at(scale, c), at(zero_point, c), constants, y)
                for k in range(width):
                    if left == 0:
                        left = inner
                        c = _count(c + _count(1))
                        c = _count(0) if c == channels else c
                        p = parameters(x, at(scale, c), at(zero_point, c), constants, y)
                    left = _count(left - _count(1))
                    put(room, u * width + k, element(each(values, u * width + k), p, constants, y))
            store(y, i, _count(step), room)
            return
        for u in range(count):
            for k in range(width):
                e = _count(i + _count(u * step + k))
                if e < n:
                    c = _count(_count(first + _count(skip + e) // inner) % channels)
                    p = parameters(x, at(scale, c), at(zero_point, c), constants, y)
                    put(y, e, element(each(x, e), p, constants, y))

    return walk


class Map:
    """Arrays -> arrays of the same shape, one element at a time.

    Parameters
    ----------
    parameters : callable
        ``parameters(x, scale, zero_point, constants, y) -> p``, once a channel.
    element : callable
        ``element(x, p, constants, y) -> results``, one for each array of y.
    name : str
        What the kernel is called.
    """

    def __init__(
        self, parameters: Callable[..., Any], element: Callable[..., Any], name: str
    ) -> None:
        self._parameters, self._element = parameters, element
        self.kernel = Kernel(self._make, name)

    def __call__(
        self, granularity: Granularity, inputs: tuple[Any, ...], scale: Any, zero_point: Any,
        constants: tuple[Any, ...], precision: tuple[Any, Any, tuple[str, ...]],
        outputs: tuple[Any, ...],
    ) -> None:  # fmt: skip
        """Run over `inputs`; `precision` names the types of numbers among the qparams."""
        x, y = tuple(map(device, inputs)), tuple(map(device, outputs))
        if not x[0].size:
            return
        qparams, kinds = [], []
        for p, kind in ((scale, precision[0]), (zero_point, precision[1])):
            a = p if isinstance(p, (int, float)) else device(p)
            qparams.append(a if isinstance(a, (int, float)) else a.argument())
            kinds.append(kind if isinstance(a, (int, float)) else a.dtype)
        dtypes = tuple([a.dtype for a in x]), tuple([a.dtype for a in y])
        on = x[0].stream()
        for layout, flat in pieces(granularity, x, y):
            read, written = flat[: len(x)], flat[len(x) :]
            width, count = _shape_of_threads(flat, layout)
            block = THREADS * width * count
            key = (dtypes[0], tuple(kinds), precision[2], dtypes[1], width, count)
            for start, n, numbers in _launches(layout, x[0].size):
                args = (
                    n, *numbers, tuple([a.argument(start) for a in read]), *qparams, constants,
                    tuple([a.argument(start) for a in written]),
                )  # fmt: skip
                self.kernel(-(-n // block), THREADS, args, key, on)

    def _make(
        self, inputs: Any, qparams: Any, constants: Any, outputs: Any, width: int, count: int
    ) -> tuple[Callable[..., None], Types]:
        scale, zero_point = (NUMBER_TYPES[k] if isinstance(k, str) else pointer(k) for k in qparams)
        walk = _walk(self._parameters, self._element, width, count)

        def kernel(
            n: Any, skip: Any, first: Any, channels: Any, inner: Any, x: Any, scale: Any,
            zero_point: Any, constants: Any, y: Any,
        ) -> None:  # fmt: skip
            block, thread = cuda.blockIdx.x, cuda.threadIdx.x
            walk(block, thread, n, skip, first, channels, inner, x, scale, zero_point, constants, y)

        return kernel, (
            *[types.uint32] * 5, types.Tuple(list(map(pointer, inputs))), scale, zero_point,
            types.Tuple([NUMBER_TYPES[k] for k in constants]),
            types.Tuple(list(map(pointer, outputs))),
        )  # fmt: skip


def _shape_of_threads(arrays: list[DeviceArray], layout: Layout) -> tuple[int, int]:
    """The elements of a vector, and the vectors of a thread."""
    sizes = [a.dtype.itemsize for a in arrays]
    width, size = ACCESS // max(sizes), arrays[0].size
    inner = layout.inner or size
    # A run that is launched in parts begins where the one before it ends.
    apart = size > inner > LONGEST and inner % width
    if apart or any(a.pointer % ACCESS for a in arrays):
        width = 1
    return width, min(max(IN_FLIGHT // (width * sizes[0]), 1), 4)


def _launches(layout: Layout, size: int) -> Iterator[tuple[int, int, tuple[int, ...]]]:
    """Yield (start, n, (skip, first, channels, inner)) for parts of at most LONGEST elements."""
    channels, inner = layout
    inner = inner or size
    if channels > CHANNELS:
        raise ValueError(f"input must have at most {CHANNELS} channels, got {channels}")
    if inner <= LONGEST:
        for start in range(0, size, LONGEST):
            row = start // inner
            place = start - row * inner, row % channels, channels, inner
            yield start, min(LONGEST, size - start), place
        return
    for row in range(size // inner):  # parts of a run
        for start in range(row * inner, (row + 1) * inner, LONGEST):
            n = min(LONGEST, (row + 1) * inner - start)
            yield start, n, (0, row % channels, channels, n)


class Elementwise:
    """x, qparams -> y and perhaps a mask: see npquant.cpu.loops.Elementwise."""

    def __init__(
        self,
        parameters: Callable[..., Any],
        element: Callable[..., Any],
        wide: Elementwise | None = None,
    ) -> None:
        self._wide = wide
        name = f"{parameters.__name__}_{element.__name__}"
        self.map = Map(*self._of_tuples(parameters, element), name)

    def _of_tuples(self, parameters: Any, element: Any) -> tuple[Any, Any]:
        """The formula, of tuples of arrays."""

        @formula
        def parameters_of(x: Any, scale: Any, zero_point: Any, constants: Any, y: Any) -> Any:
            return parameters(x[0], scale, zero_point, constants, y[0])

        @formula
        def element_of(values: Any, p: Any, constants: Any, y: Any) -> Any:
            return element(values[0], p, constants, y[0])

        return parameters_of, element_of

    def __call__(
        self,
        granularity: Granularity,
        x: Any,
        scale: Any,
        zero_point: Any,
        constants: tuple[Any, Any, Any],
        precision: tuple[str, str, str],
        y: Any,
        mask: Any = None,
        given: bool = False,
    ) -> None:
        """Run over `x`; whether `y` was `given` makes no difference here."""
        if precision[2] == "wide" and self._wide is not None:
            self._wide(granularity, x, scale, zero_point, constants, precision, y, mask)
            return
        outputs = (y,) if mask is None else (y, mask)
        kinds = precision[0], precision[1], (precision[2],) * 3
        self.map(granularity, (x,), scale, zero_point, constants, kinds, outputs)


class ElementwiseOfSeveral(Elementwise):
    """The same for several arrays of one shape: x is a tuple of them, and one of their elements."""

    def _of_tuples(self, parameters: Any, element: Any) -> tuple[Any, Any]:
        @formula
        def parameters_of(x: Any, scale: Any, zero_point: Any, constants: Any, y: Any) -> Any:
            return parameters(x, scale, zero_point, constants, y[0])

        @formula
        def element_of(values: Any, p: Any, constants: Any, y: Any) -> Any:
            return element(values, p, constants, y[0])

        return parameters_of, element_of

    def __call__(  # type: ignore[override]
        self, granularity: Granularity, inputs: tuple[Any, ...], scale: Any, zero_point: Any,
        constants: tuple[Any, Any, Any], precision: tuple[str, str, str], y: Any,
    ) -> None:  # fmt: skip
        """Run over `inputs`."""
        kinds = precision[0], precision[1], (precision[2],) * 3
        self.map(granularity, inputs, scale, zero_point, constants, kinds, (y,))


@formula
def nothing(x: Any, scale: Any, zero_point: Any, constants: Any, y: Any) -> Any:
    """The parameters of what has none."""
    return scale


def mapped(element: Callable[..., Any], name: str) -> Callable[..., None]:
    """A kernel of arrays of one shape, the last of them the output, without qparams.

    ``element(x, y)`` is the result for one element of each of the others, a tuple.
    """

    @formula
    def element_of(values: Any, p: Any, constants: Any, y: Any) -> Any:
        return (element(values, y[0]),)

    kernel = Map(nothing, element_of, name)

    def call(*arrays: Any) -> None:
        kernel(PER_TENSOR, arrays[:-1], 0, 0, (0,), ("int32", "int32", ("int32",)), arrays[-1:])

    return call
