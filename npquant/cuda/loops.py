"""The kernels of everything that goes element by element: a formula goes in, a kernel comes out.

The data is flat, in C order of (outer, channels, inner), with one scale and zero point a channel.
What a thread does is in elements.py; here is which kernel data come to, and in how many launches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

from numba import types

from npquant.cpu.loops import NUMBER_TYPES
from npquant.cuda.arrays import DeviceArray, device
from npquant.cuda.division import DIVISOR, divisor
from npquant.cuda.elements import ANY, BESIDE, BLOCK, WHOLE, Formula, Shortcut, body
from npquant.cuda.target import SIMULATED, Kernel, Types, cuda, pointer
from npquant.cuda.vectors import ACCESS
from npquant.cuda.walk import in_memory_order, pieces, ready_to_copy
from npquant.dtypes import NARROW, Precision
from npquant.formulas.base import formula
from npquant.layout import PER_TENSOR, Granularity, Layout

#: Elements of a launch: their indices, and where in a channel they are, fit 32 bits.
LONGEST = 1 << 30
#: Channels of an array: that of an element is counted from that of the first of a launch.
CHANNELS = (1 << 32) - LONGEST

#: Elements of a run, below which quantizing to fewer bytes is faster if each element asks whether
#: the run has ended: else the zero point is asked for after the division. (Measured: a fifth.) Not
#: where codes are guessed: there both are there before anything is computed.
FEW = 1024

#: Bytes that a thread asks for of an array before it computes, for loads in flight hide how long
#: they take; and where results are as large as elements of a WORD or more. (Measured.)
IN_FLIGHT, IN_FLIGHT_OF_WORDS, WORD = 2 * ACCESS, ACCESS, 4

_NUMBERS = int, float

#: Rows of channels side by side that a thread takes, where there are MANY or more.
ROWS, MANY = 4, 8 if SIMULATED else 64
#: The same where results are narrower, and at most how many channels: what these come to costs
#: more, and lies in registers, of which more threads each have fewer. (Measured: a fifth.)
NARROWER_ROWS, NARROWER_WIDTH = 8, 4


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
                self.kernel(blocks, BLOCK, args, key, on)

    def ready(
        self, x: tuple[DeviceArray, ...], precision: tuple[Any, Any, tuple[str, ...]],
        y: tuple[DeviceArray, ...],
    ) -> None:  # fmt: skip
        """Compile what a call per tensor would launch, of a formula without qparams' arrays."""
        there = [*x, *y]
        if not x[0].size:
            return
        sizes = tuple([a.dtype.itemsize for a in there])
        if in_memory_order(PER_TENSOR, there) is None:
            for a in there:
                if not a.contiguous:
                    ready_to_copy(a)
            there = [a for a in there if a.contiguous]  # copies of others are aligned
        aligned = not [a for a in there if a.pointer % ACCESS]
        layout = Layout(PER_TENSOR.channels, PER_TENSOR.inner)
        dtypes = tuple([a.dtype for a in x]), tuple([a.dtype for a in y])
        shape, _ = _shape_of_launches(layout, x[0].size, sizes, aligned, False, LONGEST, FEW)
        self.kernel.ready((dtypes[0], precision[:2], precision[2], dtypes[1], *shape))

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
        walk = body(self.formula_of(inputs, qparams, outputs), width, count, runs)

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
    asked = IN_FLIGHT if narrower or sizes[0] < WORD else IN_FLIGHT_OF_WORDS
    count = min(max(asked // (width * sizes[0]), 1), 4)
    runs = WHOLE if inner % width == 0 or inner == size else ANY
    if inner < min(few, size) and narrower:
        runs = ANY
    beside = min(width, NARROWER_WIDTH) if narrower else width
    if inner == 1 < beside and channels % beside == 0 and aligned_qparams:
        runs, width, rows = BESIDE, beside, NARROWER_ROWS if narrower else ROWS
        count = rows if channels * MANY <= min(size, longest) else 1
    found = []
    for start, n, (skip, first, _, run) in _launches(layout, size, longest):
        blocks, by = -(-n // (BLOCK * width * count)), divisor(run)
        if runs == BESIDE:
            across = channels // width
            blocks, by = -(-(-(-n // (channels * count)) * across) // BLOCK), divisor(across)
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
        precision: Precision,
        y: Any,
        mask: Any = None,
        given: bool = False,
    ) -> None:
        """Run over `x`; whether `y` was `given` makes no difference here."""
        if precision.code == "wide" and self._wide is not None:
            self._wide(granularity, x, scale, zero_point, constants, precision, y, mask)
            return
        outputs = (y,) if mask is None else (y, mask)
        kinds = precision.scale, precision.zero_point, (precision.code,) * 3
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
        constants: tuple[Any, Any, Any], precision: Precision, y: Any,
    ) -> None:  # fmt: skip
        """Run over `inputs`."""
        kinds = precision.scale, precision.zero_point, (precision.code,) * 3
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
