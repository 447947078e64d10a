"""The kernels of everything that goes element by element: a formula goes in, a kernel comes out.

The data is flat, in C order of (outer, channels, inner), with one scale and zero point a channel. A
thread takes a few vectors of 16 bytes: a division of 32 bits for each, or two, tells where in which
channel it begins; how its elements share qparams is known when it is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

from numba import types

from npquant.cpu.loops import NUMBER_TYPES
from npquant.cuda.arrays import DeviceArray, device
from npquant.cuda.target import COUNT, THREADS, Kernel, Types, cuda, pointer
from npquant.cuda.vectors import ACCESS, vectors
from npquant.cuda.walk import pieces
from npquant.formulas.base import formula
from npquant.layout import PER_TENSOR, Granularity, Layout
from npquant.primitives import at, each, put

#: Elements of a launch: their indices, and where in a channel they are, fit 32 bits.
LONGEST = 1 << 30
#: Channels of an array: that of an element is counted from that of the first of a launch.
CHANNELS = (1 << 32) - LONGEST

#: Elements of a run, below which quantizing to fewer bytes is faster if each element asks whether
#: the run has ended: else the zero point is asked for after the division. (Measured: a fifth.)
FEW = 1024

#: Bytes that a thread asks for before it computes: loads in flight hide how long they take.
IN_FLIGHT = 2 * ACCESS

_NUMBERS = int, float


#: How the elements of a vector share qparams: all of them, each its own ones, or as it comes.
WHOLE, BESIDE, ANY = "whole", "beside", "any"


class _Vector(NamedTuple):
    """What a thread does with a vector.

    Attributes
    ----------
    qparams : callable
        ``qparams(scale, zero_point, c)``: those of a vector that begins in channel `c`.
    fill : callable
        ``fill(c, left, s, z, told)``: compute a vector with what `qparams` has found; so many
        elements of channel `c` are `left` where it begins. `told` is (u, channels, inner, x,
        values, scale, zero_point, constants, y, room): it is vector `u` of the values.
    """

    qparams: Callable[..., Any]
    fill: Callable[..., None]


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


def _vector(
    parameters: Callable[..., Any], element: Callable[..., Any], width: int, runs: str
) -> _Vector:
    """The functions for one size of vectors, and for how their elements share qparams."""
    load = vectors(width, 1).load

    @formula
    def of_one(scale: Any, zero_point: Any, c: Any) -> Any:
        return at(scale, c), at(zero_point, c)

    @formula
    def of_several(scale: Any, zero_point: Any, c: Any) -> Any:
        return load((scale, zero_point), c, COUNT(0))

    @formula
    def compute(k: Any, p: Any, told: Any) -> Any:
        u, _, _, _, values, _, _, constants, y, room = told
        put(room, u * width + k, element(each(values, u * width + k), p, constants, y))
        return p

    @formula
    def compute_its_own(k: Any, qparams: Any, told: Any) -> Any:
        _, _, _, x, _, _, _, constants, y, _ = told
        s, z = qparams
        compute(k, parameters(x, s[k], z[k], constants, y), told)
        return qparams

    @formula
    def compute_and_walk(k: Any, state: Any, told: Any) -> Any:
        _, channels, inner, x, _, scale, zero_point, constants, y, _ = told
        c, left, p = state
        if left == 0:
            left = inner
            c = COUNT(c + COUNT(1))
            c = COUNT(0) if c == channels else c
            p = parameters(x, at(scale, c), at(zero_point, c), constants, y)
        compute(k, p, told)
        return c, COUNT(left - COUNT(1)), p

    of_whole, of_beside, of_any = (
        unrolled(step, 0, width) for step in (compute, compute_its_own, compute_and_walk)
    )

    @formula
    def whole(c: Any, left: Any, s: Any, z: Any, told: Any) -> None:
        of_whole(parameters(told[3], s, z, told[7], told[8]), told)

    @formula
    def beside(c: Any, left: Any, s: Any, z: Any, told: Any) -> None:
        of_beside((s, z), told)

    @formula
    def as_it_comes(c: Any, left: Any, s: Any, z: Any, told: Any) -> None:
        of_any((c, left, parameters(told[3], s, z, told[7], told[8])), told)

    return {
        WHOLE: _Vector(of_one, whole),
        BESIDE: _Vector(of_several, beside),
        ANY: _Vector(of_one, as_it_comes),
    }[runs]


def _walk(
    parameters: Callable[..., Any], element: Callable[..., Any], width: int, count: int, runs: str
) -> Callable[..., None]:
    """What a thread does, by the numbers of its block and in it: `count` vectors of `width`.

    `parameters` and `element` are those of a formula, with tuples of arrays for x and y. It is also
    compiled for the CPU, by a test.
    """
    step, last = width * THREADS, width * THREADS * (count - 1) + width
    load, scratch, store = vectors(width, count)
    qparams, fill = _vector(parameters, element, width, runs)

    @formula
    def begin(
        u: Any, i: Any, skip: Any, first: Any, channels: Any, inner: Any, scale: Any,
        zero_point: Any,
    ) -> Any:  # fmt: skip
        place = COUNT(skip + i + COUNT(u * step))
        row = COUNT(place // inner) if inner > 1 else place
        c = COUNT(first + row)
        if c >= channels:  # a division is worth a question
            c = COUNT(c % channels)
        return c, COUNT(inner - COUNT(place - row * inner)), *qparams(scale, zero_point, c)

    @formula
    def walk(
        block: Any, thread: Any, n: Any, skip: Any, first: Any, channels: Any, inner: Any, x: Any,
        scale: Any, zero_point: Any, constants: Any, y: Any,
    ) -> None:  # fmt: skip
        i = COUNT(COUNT(block) * COUNT(step * count))
        i = COUNT(i + COUNT(thread) * COUNT(width))
        if COUNT(i + COUNT(last)) <= n:
            values, room = load(x, i, COUNT(step)), scratch(y)
            place, qs = (i, skip, first, channels, inner), (scale, zero_point)
            told = channels, inner, x, values, scale, zero_point, constants, y, room
            # All that is loaded is asked for before anything is computed.
            a = begin(0, *place, *qs)
            if count > 1:
                b = begin(1, *place, *qs)
            if count > 2:
                c, d = begin(2, *place, *qs), begin(3, *place, *qs)
            fill(*a, (0, *told))
            if count > 1:
                fill(*b, (1, *told))
            if count > 2:
                fill(*c, (2, *told))
                fill(*d, (3, *told))
            store(y, i, COUNT(step), room)
            return
        for u in range(count):
            for k in range(width):
                e = COUNT(i + COUNT(u * step + k))
                if e < n:
                    row = COUNT(first + COUNT(skip + e) // inner)
                    at_c = COUNT(row % channels)
                    p = parameters(x, at(scale, at_c), at(zero_point, at_c), constants, y)
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
        self.formula = parameters, element
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
        qparams = tuple([p if isinstance(p, _NUMBERS) else device(p) for p in (scale, zero_point)])
        there = [p for p in qparams if isinstance(p, DeviceArray)]
        vectors_of_them = len(there) == 2 and not [p for p in there if p.pointer % ACCESS]
        kinds = tuple([
            p.dtype if isinstance(p, DeviceArray) else kind
            for p, kind in zip(qparams, precision, strict=False)
        ])  # fmt: skip
        told = [p.argument() if isinstance(p, DeviceArray) else p for p in qparams]
        dtypes = tuple([a.dtype for a in x]), tuple([a.dtype for a in y])
        on = x[0].stream()
        for layout, flat in pieces(granularity, x, y):
            read, written = flat[: len(x)], flat[len(x) :]
            shape, block, launches = _shape_of_launches(
                layout, x[0].size, tuple([a.dtype.itemsize for a in flat]),
                not [a for a in flat if a.pointer % ACCESS], vectors_of_them, LONGEST,
            )  # fmt: skip
            key = (dtypes[0], kinds, precision[2], dtypes[1], *shape)
            for start, n, numbers in launches:
                args = (
                    n, *numbers, tuple([a.argument(start) for a in read]), *told, constants,
                    tuple([a.argument(start) for a in written]),
                )  # fmt: skip
                self.kernel(-(-n // block), THREADS, args, key, on)

    def _make(
        self, inputs: Any, qparams: Any, constants: Any, outputs: Any, width: int, count: int,
        runs: str,
    ) -> tuple[Callable[..., None], Types]:  # fmt: skip
        scale, zero_point = (NUMBER_TYPES[k] if isinstance(k, str) else pointer(k) for k in qparams)
        walk = _walk(*self.formula, width, count, runs)

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


@lru_cache(maxsize=1024)
def _shape_of_launches(
    layout: Layout, size: int, sizes: tuple[int, ...], aligned: bool, aligned_qparams: bool,
    longest: int,
) -> tuple[tuple[int, int, str], int, tuple[Any, ...]]:  # fmt: skip
    """(Elements of a vector, vectors of a thread, how they share qparams), of a block; launches."""
    channels, inner = layout
    width, inner = ACCESS // max(sizes), inner or size
    # A run that is launched in parts begins where the one before it ends.
    apart = size > inner > longest and inner % width
    if apart or not aligned:
        width = 1
    count = min(max(IN_FLIGHT // (width * sizes[0]), 1), 4)
    runs = WHOLE if inner % width == 0 or inner == size else ANY
    if inner < min(FEW, size) and all(to < sizes[0] for to in sizes[1:]):
        runs = ANY
    if inner == 1 < width and channels % width == 0 and aligned_qparams:
        runs = BESIDE
    return (width, count, runs), THREADS * width * count, tuple(_launches(layout, size, longest))


def _launches(
    layout: Layout, size: int, longest: int
) -> Iterator[tuple[int, int, tuple[int, ...]]]:
    """Yield (start, n, (skip, first, channels, inner)) for parts of at most `longest` elements."""
    channels, inner = layout
    inner = inner or size
    if channels > CHANNELS:
        raise ValueError(f"input must have at most {CHANNELS} channels, got {channels}")
    if inner <= longest:
        for start in range(0, size, longest):
            row = start // inner
            place = start - row * inner, row % channels, channels, inner
            yield start, min(longest, size - start), place
        return
    for row in range(size // inner):  # parts of a run
        for start in range(row * inner, (row + 1) * inner, longest):
            n = min(longest, (row + 1) * inner - start)
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
