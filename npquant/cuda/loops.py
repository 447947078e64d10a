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
from npquant.cuda.division import DIVISOR, divisor, quotient
from npquant.cuda.target import COUNT, SIMULATED, THREADS, Kernel, Types, cuda, pointer
from npquant.cuda.vectors import ACCESS, vectors
from npquant.cuda.walk import pieces
from npquant.dtypes import NARROW
from npquant.formulas.base import formula
from npquant.layout import PER_TENSOR, Granularity, Layout
from npquant.primitives import at, each, put, store

#: Elements of a launch: their indices, and where in a channel they are, fit 32 bits.
LONGEST = 1 << 30
#: Channels of an array: that of an element is counted from that of the first of a launch.
CHANNELS = (1 << 32) - LONGEST

#: Elements of a run, below which quantizing to fewer bytes is faster if each element asks whether
#: the run has ended: else the zero point is asked for after the division. (Measured: a fifth.) Not
#: where codes are guessed: there both are there before anything is computed.
FEW = 1024

#: Bytes that a thread asks for before it computes: loads in flight hide how long they take.
IN_FLIGHT = 2 * ACCESS

_NUMBERS = int, float


#: Rows of channels side by side that a thread takes, where there are MANY or more.
ROWS, MANY = 4, 8 if SIMULATED else 64

#: How the elements of a vector share qparams: all of them, each its own ones, or as it comes.
WHOLE, BESIDE, ANY = "whole", "beside", "any"


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


class Shortcut(NamedTuple):
    """Another way to one result, where zero points are integers of each channel.

    Attributes
    ----------
    of : callable
        ``of(x, scale)``: whether dtypes are those that it is for.
    parameters, element : callable
        As of `Formula`; the element's result is (result, doubt). If any of its elements is in
        doubt, a vector is done by the formula itself.
    """

    of: Callable[[Any, Any], bool]
    parameters: Callable[..., Any]
    element: Callable[..., Any]


class Formula(NamedTuple):
    """What an op makes of its elements; x and y are tuples of arrays.

    Attributes
    ----------
    parameters : callable
        ``parameters(x, scale, zero_point, constants, y) -> p``, once a channel.
    element : callable
        ``element(values, p, constants, y) -> results``, one for each array of y.
    shortcuts : tuple of Shortcut
        Which cost less, for some dtypes.
    """

    parameters: Callable[..., Any]
    element: Callable[..., Any]
    shortcuts: tuple[Shortcut, ...] = ()


def _fill(of: Formula, width: int, runs: str) -> Callable[..., None]:
    """What computes a vector, for one size, and for how its elements share qparams.

    ``(c, left, s, z, told)``: it begins in channel `c`, of which so many elements are `left` there;
    s and z are what that channel has, or of `BESIDE` all that it touches. `told` is (u, channels,
    inner, x, values, scale, zero_point, constants, y, room): it is vector `u` of the values.
    """
    element = of.element

    @formula
    def by_rule(k: Any, p: Any, doubt: Any, told: Any) -> Any:
        u, _, _, _, values, _, _, constants, y, room = told
        put(room, u * width + k, element(each(values, u * width + k), p, constants, y))
        return doubt

    rule = _computed(of.parameters, by_rule, width, runs)
    if not of.shortcuts:
        return rule
    (_, split, guess), *_ = of.shortcuts

    @formula
    def by_guess(k: Any, p: Any, doubt: Any, told: Any) -> Any:
        u, _, _, _, values, _, _, constants, y, room = told
        result, one = guess(each(values, u * width + k), p, constants, y)
        store(room[0], u * width + k, result)
        return doubt | one

    guessed = _computed(split, by_guess, width, runs)

    @formula
    def checked(c: Any, left: Any, s: Any, z: Any, told: Any) -> Any:
        if guessed(c, left, s, z, told):
            rule(c, left, s, z, told)

    return checked  # type: ignore[no-any-return]


def _computed(
    parameters: Callable[..., Any], compute: Callable[..., Any], width: int, runs: str
) -> Callable[..., Any]:
    """`_fill` by one formula: the doubt of ``compute(k, p, doubt, told)``, of one after another."""

    @formula
    def of_one(k: Any, state: Any, told: Any) -> Any:
        p, doubt = state
        return p, compute(k, p, doubt, told)

    @formula
    def of_its_own(k: Any, state: Any, told: Any) -> Any:
        _, _, _, x, _, _, _, constants, y, _ = told
        s, z, doubt = state
        return s, z, compute(k, parameters(x, s[k], z[k], constants, y), doubt, told)

    @formula
    def of_any(k: Any, state: Any, told: Any) -> Any:
        _, channels, inner, x, _, scale, zero_point, constants, y, _ = told
        c, left, p, doubt = state
        if left == 0:
            left = inner[0]
            c = COUNT(c + COUNT(1))
            c = COUNT(0) if c == channels[0] else c
            p = parameters(x, at(scale, c), at(zero_point, c), constants, y)
        return c, COUNT(left - COUNT(1)), p, compute(k, p, doubt, told)

    one, its_own, walked = (unrolled(step, 0, width) for step in (of_one, of_its_own, of_any))

    @formula
    def whole(c: Any, left: Any, s: Any, z: Any, told: Any) -> Any:
        return one((parameters(told[3], s, z, told[7], told[8]), False), told)[1]

    @formula
    def beside(c: Any, left: Any, s: Any, z: Any, told: Any) -> Any:
        return its_own((s, z, False), told)[2]

    @formula
    def as_it_comes(c: Any, left: Any, s: Any, z: Any, told: Any) -> Any:
        return walked((c, left, parameters(told[3], s, z, told[7], told[8]), False), told)[3]

    return {WHOLE: whole, BESIDE: beside, ANY: as_it_comes}[runs]  # type: ignore[no-any-return]


def _walk(of: Formula, width: int, count: int, runs: str) -> Callable[..., None]:
    """What a thread does, by the numbers of its block and in it: `count` vectors of `width`.

    It is also compiled for the CPU, by a test.
    """
    load, scratch, store = vectors(width, count)
    parameters, element = of.parameters, of.element
    begin, qparams, channel = _rows(width, count) if runs == BESIDE else _runs(width, count)
    fill, beside = _fill(of, width, runs), runs == BESIDE

    @formula
    def walk(
        block: Any, thread: Any, n: Any, skip: Any, first: Any, channels: Any, inner: Any, x: Any,
        scale: Any, zero_point: Any, constants: Any, y: Any,
    ) -> None:  # fmt: skip
        place = skip, first, channels, inner
        i, step = begin(COUNT(block), COUNT(thread), channels, inner)
        if COUNT(COUNT(i + COUNT(COUNT(count - 1) * step)) + COUNT(width)) <= n:
            values, room = load(x, i, step), scratch(y)
            told = channels, inner, x, values, scale, zero_point, constants, y, room
            # All that is loaded is asked for before anything is computed.
            a = qparams(i, *place, scale, zero_point)
            b = c = d = a
            if count > 1 and not beside:
                b = qparams(COUNT(i + step), *place, scale, zero_point)
            if count > 2 and not beside:
                c = qparams(COUNT(i + COUNT(COUNT(2) * step)), *place, scale, zero_point)
                d = qparams(COUNT(i + COUNT(COUNT(3) * step)), *place, scale, zero_point)
            fill(*a, (0, *told))
            if count > 1:
                fill(*b, (1, *told))
            if count > 2:
                fill(*c, (2, *told))
                fill(*d, (3, *told))
            store(y, i, step, room)
            return
        for u in range(count):
            for k in range(width):
                e = COUNT(COUNT(i + COUNT(COUNT(u) * step)) + COUNT(k))
                if e < n:
                    own, _ = channel(e, *place)
                    p = parameters(x, at(scale, own), at(zero_point, own), constants, y)
                    put(y, e, element(each(x, e), p, constants, y))

    return walk


class _Places(NamedTuple):
    """Where the vectors of a thread lie, and what their channels have.

    Attributes
    ----------
    begin : callable
        ``begin(block, thread, channels, inner)``: where the first begins, and how far apart they
        are.
    qparams : callable
        ``qparams(i, skip, first, channels, inner, scale, zero_point)``: what `_fill` wants to know
        of the vector that begins at `i`.
    channel : callable
        ``channel(i, skip, first, channels, inner)``: that of an element, and what is left of it.
    """

    begin: Callable[..., Any]
    qparams: Callable[..., Any]
    channel: Callable[..., Any]


def _runs(width: int, count: int) -> _Places:
    """A block has vectors one behind the other."""
    ahead = width * THREADS

    @formula
    def begin(block: Any, thread: Any, channels: Any, inner: Any) -> Any:
        i = COUNT(COUNT(block * COUNT(ahead * count)) + COUNT(thread * COUNT(width)))
        return i, COUNT(ahead)

    @formula
    def channel(i: Any, skip: Any, first: Any, channels: Any, inner: Any) -> Any:
        place = COUNT(skip + i)
        row = quotient(place, inner)
        c = COUNT(first + row)
        c = COUNT(c - COUNT(quotient(c, channels) * channels[0]))
        return c, COUNT(inner[0] - COUNT(place - COUNT(row * inner[0])))

    @formula
    def qparams(
        i: Any, skip: Any, first: Any, channels: Any, inner: Any, scale: Any, zero_point: Any
    ) -> Any:
        c, left = channel(i, skip, first, channels, inner)
        return c, left, at(scale, c), at(zero_point, c)

    return _Places(begin, qparams, channel)


def _rows(width: int, count: int) -> _Places:
    """Of channels side by side a thread has a few rows: what their qparams come to is found once.

    `inner` is how many vectors a row has.
    """
    load = vectors(width, 1).load

    @formula
    def begin(block: Any, thread: Any, channels: Any, inner: Any) -> Any:
        v = COUNT(COUNT(block * COUNT(THREADS)) + thread)
        row = quotient(v, inner)
        beside = COUNT(COUNT(v - COUNT(row * inner[0])) * COUNT(width))
        return COUNT(COUNT(COUNT(row * COUNT(count)) * channels[0]) + beside), channels[0]

    @formula
    def channel(i: Any, skip: Any, first: Any, channels: Any, inner: Any) -> Any:
        c = COUNT(first + i)
        return COUNT(c - COUNT(quotient(c, channels) * channels[0])), COUNT(1)

    @formula
    def qparams(
        i: Any, skip: Any, first: Any, channels: Any, inner: Any, scale: Any, zero_point: Any
    ) -> Any:
        c, left = channel(i, skip, first, channels, inner)
        return c, left, *load((scale, zero_point), c, COUNT(0))

    return _Places(begin, qparams, channel)


class Map:
    """Arrays -> arrays of the same shape, one element at a time.

    Parameters
    ----------
    of : Formula
        What is made of an element.
    name : str
        What the kernel is called.
    """

    def __init__(self, of: Formula, name: str) -> None:
        self.formula, self.kernel = of, Kernel(self._make, name)

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
            shape, launches = _shape_of_launches(
                layout, x[0].size, tuple([a.dtype.itemsize for a in flat]),
                not [a for a in flat if a.pointer % ACCESS], vectors_of_them, LONGEST,
                0 if self._shortcuts(dtypes[0], kinds, dtypes[1]) else FEW,
            )  # fmt: skip
            key = (dtypes[0], kinds, precision[2], dtypes[1], *shape)
            for start, blocks, *numbers in launches:
                args = (
                    *numbers, tuple([a.argument(start) for a in read]), *told, constants,
                    tuple([a.argument(start) for a in written]),
                )  # fmt: skip
                self.kernel(blocks, THREADS, args, key, on)

    def formula_of(self, inputs: Any, qparams: Any, outputs: Any) -> Formula:
        """The formula for these dtypes."""
        shortcuts = self._shortcuts(inputs, qparams, outputs)
        return Formula(self.formula.parameters, self.formula.element, shortcuts)

    def _shortcuts(self, inputs: Any, qparams: Any, outputs: Any) -> tuple[Shortcut, ...]:
        """The one for these dtypes, if there is one: codes are of two bytes at most."""
        numbers = [k for k in qparams if isinstance(k, str)]
        if not self.formula.shortcuts or numbers or outputs[0] not in NARROW:
            return ()
        scale, zero_point = qparams
        found = [s for s in self.formula.shortcuts if s.of(inputs[0], scale)]
        return tuple(found) if zero_point.kind == "i" else ()

    def _make(
        self, inputs: Any, qparams: Any, constants: Any, outputs: Any, width: int, count: int,
        runs: str,
    ) -> tuple[Callable[..., None], Types]:  # fmt: skip
        scale, zero_point = (NUMBER_TYPES[k] if isinstance(k, str) else pointer(k) for k in qparams)
        walk = _walk(self.formula_of(inputs, qparams, outputs), width, count, runs)

        def kernel(
            n: Any, skip: Any, first: Any, channels: Any, inner: Any, x: Any, scale: Any,
            zero_point: Any, constants: Any, y: Any,
        ) -> None:  # fmt: skip
            block, thread = cuda.blockIdx.x, cuda.threadIdx.x
            walk(block, thread, n, skip, first, channels, inner, x, scale, zero_point, constants, y)

        return kernel, (
            *[types.uint32] * 3, DIVISOR, DIVISOR, types.Tuple(list(map(pointer, inputs))),
            scale, zero_point, types.Tuple([NUMBER_TYPES[k] for k in constants]),
            types.Tuple(list(map(pointer, outputs))),
        )  # fmt: skip


@lru_cache(maxsize=1024)
def _shape_of_launches(
    layout: Layout, size: int, sizes: tuple[int, ...], aligned: bool, aligned_qparams: bool,
    longest: int, few: int,
) -> tuple[tuple[int, int, str], tuple[Any, ...]]:  # fmt: skip
    """(Elements of a vector, vectors of a thread, how they share qparams), and launches.

    Of each where it begins, its blocks, and the numbers that the kernel is told.
    """
    channels, inner = layout
    width, inner = ACCESS // max(sizes), inner or size
    narrower = all(to < sizes[0] for to in sizes[1:])
    if inner < size and inner % (2 * width) == 0 and narrower:
        width *= 2  # so that what a channel's qparams come to does for more
    # A run that is launched in parts begins where the one before it ends.
    apart = size > inner > longest and inner % width
    if apart or not aligned:
        width = 1
    count = min(max(IN_FLIGHT // (width * sizes[0]), 1), 4)
    runs = WHOLE if inner % width == 0 or inner == size else ANY
    if inner < min(few, size) and narrower:
        runs = ANY
    if inner == 1 < width and channels % width == 0 and aligned_qparams:
        runs, count = BESIDE, ROWS if channels * MANY <= min(size, longest) else 1
    found = []
    for start, n, (skip, first, _, run) in _launches(layout, size, longest):
        blocks, by = -(-n // (THREADS * width * count)), divisor(run)
        if runs == BESIDE:
            across = channels // width
            blocks, by = -(-(-(-n // (channels * count)) * across) // THREADS), divisor(across)
        found.append((start, blocks, n, skip, first, divisor(channels), by))
    return (width, count, runs), tuple(found)


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
    """x, qparams -> y and perhaps a mask: see npquant.cpu.loops.Elementwise.

    `shortcuts` are those of a `Formula`, of one array of x.
    """

    def __init__(
        self,
        parameters: Callable[..., Any],
        element: Callable[..., Any],
        wide: Elementwise | None = None,
        shortcuts: tuple[Shortcut, ...] = (),
    ) -> None:
        self._wide = wide
        name = f"{parameters.__name__}_{element.__name__}"
        others = [Shortcut(s.of, *self._of_tuples(s.parameters, s.element)) for s in shortcuts]
        self.map = Map(Formula(*self._of_tuples(parameters, element), tuple(others)), name)

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

    kernel = Map(Formula(nothing, element_of), name)

    def call(*arrays: Any) -> None:
        kernel(PER_TENSOR, arrays[:-1], 0, 0, (0,), ("int32", "int32", ("int32",)), arrays[-1:])

    return call
