"""Elementwise kernels: formulas go in, what runs them comes out, whatever the layout.

The loops are in `segments.py`, for runs of elements that share their parameters, and in
`periods.py`, where those are short.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from math import prod
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from numba import types

from npquant.cpu import strided, table
from npquant.cpu.lines import LONG
from npquant.cpu.lowered import called
from npquant.cpu.periods import periods_of, periods_past_of
from npquant.cpu.segments import (
    BLOCK,
    OF_BLOCKS,
    apart_of,
    blocks_of,
    runs_apart_past_of,
    runs_of,
    strips_of,
)
from npquant.cpu.target import (
    GRAIN,
    PARALLEL_FROM,
    Either,
    Kernel,
    Later,
    Types,
    array_type,
    array_types,
)
from npquant.cpu.walk import (
    PIECE,
    Piece,
    contiguous,
    flattened,
    pieces,
    plain,
    seen_at_once,
    turned_to_memory,
)
from npquant.dtypes import FLOAT8, DType, Precision, bfloat16, bool_, compute, float16
from npquant.layout import Granularity, dense_strides

Array = np.ndarray[Any, Any]

#: Runs shorter than this are done side by side, but of FEW elements, which are not worth a table.
SHORT, FEW = table.RUN, 256
#: Lengths that have a loop of their own: a compiler that knows the length leaves nothing of the
#: loop, and groups of 32 take half as long; but twice as long where all is rounded to float16.
_LENGTHS = 16, 32
_TWO_BYTES = float16.itemsize

#: Results of PAST bytes, which no cache keeps, are written past them all where arrays are given for
#: them; two bytes in groups of less than RUN_PAST are not, which took up to twice as long.
PAST, RUN_PAST = 1 << 25, 64

#: What stands for an array in keys where a view tells how it lies.
_dtype = attrgetter("dtype")

#: How many qparams `runs` looks at, and the bounds of zero points, where all is checked before.
_NO_LOOK = 0, 0.0, 0.0

#: The types of numbers among the qparams and of constants.
NUMBER_TYPES: dict[str, Any] = {
    "int32": types.int32,
    "float32": types.float32,
    "float64": types.float64,
    "wide": types.float64,
}


def number_type(dtype: DType) -> Any:
    """The type of a number that data of `dtype` are computed with."""
    return NUMBER_TYPES[compute(dtype).name]


def past_pays(x: DType, y: DType, inner: int) -> bool:
    """Whether to write large results `y` of `x`, in runs of `inner`, past the caches.

    What is narrower than the data gains nothing, and what takes longer to compute than to move, two
    bytes of two or in short groups and bfloat16 of float8, takes longer.
    """
    if y.itemsize == _TWO_BYTES:
        short = 0 < inner < RUN_PAST and inner % BLOCK == 0
        if short or x.itemsize == _TWO_BYTES or (x in FLOAT8 and y == bfloat16):
            return False
    return y.itemsize >= x.itemsize


class Taking(NamedTuple):
    """How a kernel takes data that lie so."""

    kernel: Kernel
    #: How many items there are, and how many of them are a parallel segment.
    items: int
    grain: int
    #: What the kernel is told before the data, and what stands for an array in its key.
    told: tuple[Any, ...]
    key: Callable[[Array], Any]


class Elementwise:
    """x, qparams -> y and perhaps a mask, one element at a time: the kernel is `run`.

    A method is called with less ado than an object.

    Parameters
    ----------
    parameters : callable
        ``parameters(x, scale, zero_point, constants, y) -> p``, once a channel.
    element : callable
        ``element(x, p, constants, y) -> (value, inside)``.
    wide : Elementwise, optional
        The same op for codes that its precision does not hold.
    work : int
        What an element costs, as a `Kernel` has it.
    steps : tuple of callable, optional
        The same as `element`, as of `in_steps`, where each waits for the one before: long runs go
        through them strip by strip. What all share are the parameters and the constants; what is
        between has the type of these.
    """

    def __init__(
        self,
        parameters: Callable[..., Any],
        element: Callable[..., Any],
        wide: Elementwise | None = None,
        work: int = 1,
        steps: tuple[Callable[..., Any], ...] = (),
    ) -> None:
        self._formula, self._steps, self._wide, self._work = (
            (parameters, element), steps, wide, work,
        )  # fmt: skip
        name, both = f"{parameters.__name__}_{element.__name__}", self._formula

        def kernel(
            segment: Callable[[], Any], of: str, signature: Callable[..., Types] = _RUNS,
            full_width: bool = True,
        ) -> Kernel:  # fmt: skip
            return Later(segment, f"{name}_{of}", signature, work, full_width)

        self._runs = kernel(lambda: self._segment(False), "runs")
        self._runs_past = kernel(lambda: self._segment(True), "runs_past", full_width=bool(steps))
        self._runs_apart = kernel(lambda: apart_of(self.rule), "runs_apart", _RUNS_APART)
        self._runs_apart_past = kernel(
            lambda: runs_apart_past_of(*both), "runs_apart_past", _RUNS_APART, full_width=False
        )
        any_blocks = kernel(lambda: blocks_of(*both, OF_BLOCKS), "blocks")
        self._blocks, self._blocks_past = {OF_BLOCKS: any_blocks}, {}
        for n in _LENGTHS:
            of_length = kernel(partial(blocks_of, *both, n), f"blocks_{n}")
            self._blocks[n] = Either(_in_halves, any_blocks, of_length)
            past = partial(blocks_of, *both, n, past=True)
            self._blocks_past[n] = kernel(past, f"blocks_{n}_past", full_width=False)
        self._blocks_apart = kernel(
            lambda: apart_of(self.rule_of_blocks, of_rows=True), "blocks_apart", _RUNS_APART
        )
        self._periods = kernel(lambda: periods_of(*both), "periods", _PERIODS)
        self._periods_past = kernel(
            lambda: periods_past_of(*both), "periods_past", _PERIODS, full_width=False
        )
        self._periods_apart = kernel(
            lambda: apart_of(called(periods_of(*both))), "periods_apart", _PERIODS_APART
        )

    def _segment(self, past: bool) -> Callable[..., Any]:
        """What does runs."""
        parameters, element = self._formula
        if self._steps:
            return strips_of(parameters, self._steps, past)
        return runs_of(parameters, element, past)

    @cached_property
    def rule(self) -> Any:
        """The loops over runs, for kernels that do more than this."""
        return called(self._segment(False))

    @cached_property
    def rule_of_blocks(self) -> Any:
        """The same of whole runs."""
        return called(blocks_of(*self._formula, OF_BLOCKS))

    def shortcut(
        self, which: Callable[..., bool], name: str, runs: Callable[..., Any],
        blocks: Callable[..., Any] | None = None, past: Callable[..., Any] | None = None,
    ) -> None:  # fmt: skip
        """Let other segments do what ``which(*key)`` says: runs, whole ones, and past the caches.

        Whole runs of a length that has a loop of its own stay what they were.
        """

        def first(
            segment: Callable[..., Any], of: str, other: Kernel, full_width: bool = True
        ) -> Kernel:
            kernel = Kernel(segment, f"{name}_{of}", _RUNS, self._work, full_width)
            return Either(which, kernel, other)

        self._runs = first(runs, "runs", self._runs)
        if blocks is not None:
            self._blocks[OF_BLOCKS] = first(blocks, "blocks", self._blocks[OF_BLOCKS])
        if past is not None:
            self._runs_past = first(past, "runs_past", self._runs_past, full_width=False)

    def run(
        self,
        granularity: Granularity,
        x: Array,
        scale: Any,
        zero_point: Any,
        constants: tuple[Any, Any, Any],
        precision: Precision,
        y: Array,
        mask: Array | None = None,
        given: bool = False,
    ) -> None:
        """Run over `x`.

        `scale` and `zero_point` are numbers, or arrays of one a channel. `constants` are lo, hi
        and what a NaN becomes. `precision` names the types of a scale and of a zero point that
        are numbers, and of the constants; "wide" of the latter is for codes too large for it. Where
        `y` was `given`, large results are written past the caches.
        """
        n = x.size
        if not x.flags.c_contiguous:
            granularity, (x, y, mask) = turned_to_memory(granularity, (x, y, mask))
            if n <= PIECE and y.flags.carray:
                x = contiguous(x)
        large = given and mask is None and y.nbytes >= PAST
        past = large and past_pays(x.dtype, y.dtype, granularity.inner)
        within = not past and strided.written_over(y, x)
        if n * self._work < PARALLEL_FROM and x.flags.carray and y.flags.carray and not within:
            # A small array leaves little to decide, and no time for it.
            types_: Any = precision
            if type(scale) is float:
                channels, inner = 1, n
            else:
                types_ = scale.dtype, zero_point.dtype, precision.code
                channels, inner, _ = granularity
            if inner == n or ((inner >= SHORT or n <= FEW) and not self._whole(inner, n)):
                entry = self._runs.serial.get((x.dtype, y.dtype, types_, mask is None))
                if entry is not None:
                    lo, hi, nan = constants
                    entry(0, n, 0, 0.0, 0.0, 0, channels, inner, x, scale, zero_point, lo, hi, nan,
                          y, mask)  # fmt: skip
                    return
        if precision.code == "wide" and self._wide is not None:
            self._wide.run(granularity, x, scale, zero_point, constants, precision, y, mask, given)
            return
        if plain(x) and plain(y) and (mask is None or plain(mask)):
            channels, inner, _ = granularity
            views = strided.views((y, mask, x), plain) if within else None
            piece = Piece(channels, inner or n, views=views)
            self._flat(piece, n, x, scale, zero_point, constants, precision, y, mask, past)
            return
        for piece, (u, v, w), (s, z) in pieces(granularity, (x,), (y, mask), (scale, zero_point)):
            m = v.size if piece.views is None else n
            # Where `v` is no longer than a room, it may be one, which is read again.
            self._flat(piece, m, u, s, z, constants, precision, v, w, past and m > PIECE)

    def in_one_call(
        self, granularity: Granularity, n: int, code: str, past: bool = False, repeats: int = 0
    ) -> tuple[Kernel, int, int, int]:
        """What does contiguous arrays of `n` elements in one call: its items, repeats, and grain.

        Its serial form looks at the qparams first. With `past`, it writes past the caches where
        runs are long.
        """
        if code == "wide" and self._wide is not None:
            return self._wide.in_one_call(granularity, n, code, past, repeats)
        channels, inner, _ = granularity
        return self._way(n, channels, inner or n, repeats, past)

    def _way(
        self, n: int, channels: int, inner: int, repeats: int, past: bool, first: int = 0,
        apart: bool = False,
    ) -> tuple[Kernel, int, int, int]:  # fmt: skip
        """What does `n` elements from `first` on: its items, repeats, and grain."""
        if repeats or (inner < SHORT and n > FEW):
            period = channels * inner
            periods = self._periods_past if past else self._periods
            kernel = self._periods_apart if apart else periods
            return kernel, n, repeats or -(-(first + n) // period), _grain(period, n)
        if (blocks := self._whole(inner, n, past, apart)) and first % inner == 0:
            return blocks, n // inner, 0, GRAIN // inner
        if apart:
            return self._runs_apart_past if past else self._runs_apart, n, 0, GRAIN
        return self._runs_past if past else self._runs, n, 0, GRAIN

    def _whole(self, inner: int, n: int, past: bool = False, apart: bool = False) -> Kernel | None:
        """What does `n` elements in whole runs of `inner`, if they are several, and of blocks."""
        if not 0 < inner < n or inner > LONG or inner % BLOCK or n % inner:
            return None
        if apart:
            return None if past else self._blocks_apart
        if past:
            return self._blocks_past.get(inner)
        return self._blocks[inner if inner in _LENGTHS else OF_BLOCKS]

    def _flat(
        self, piece: Piece, n: int, x: Any, scale: Any, zero_point: Any,
        constants: tuple[Any, Any, Any], precision: Precision, y: Array,
        mask: Array | None = None, past: bool = False,
    ) -> None:  # fmt: skip
        if n == 0:
            return
        kernel, items, grain, told, key = self._taking(piece, n, past)
        types_: Any = precision
        if type(scale) is np.ndarray:
            types_ = scale.dtype, zero_point.dtype, precision.code
        args = (*told, x, scale, zero_point, *constants, y, mask)
        dtypes = key(x) if type(x) is np.ndarray else tuple(map(key, x))
        kernel(items, n, args, (dtypes, y.dtype, types_, mask is None), grain)

    def _taking(self, piece: Piece, n: int, past: bool = False) -> Taking:
        """How `n` elements are taken that are cut so."""
        channels, inner, repeats, first, views = piece
        # Past the caches go results that are flat, of data that are not.
        if apart := views is not None:
            past = past and not views.rows[0, 0, 0] and bool(views.rows[2:, 0, 0].any())
        kernel, items, repeats, grain = self._way(n, channels, inner, repeats, past, first, apart)
        cut = (channels, inner, repeats) if repeats else (channels, inner)
        if views is None:
            return Taking(kernel, items, grain, (*_NO_LOOK, first, *cut), strided.key)
        grain = max(grain, views.piece * items // n)
        return Taking(kernel, items, grain, (views.rows, cut), _dtype)

    def of_data_apart(
        self, granularity: Granularity, code: str, data: tuple[strided.Lying, ...], target: DType,
        masked: bool,
    ) -> tuple[Taking, Callable[[Array], Array]] | None:  # fmt: skip
        """How one kernel takes aligned data that lie so, not all dense, and as what it is given.

        Results are new, and in C order. None where it is not one kernel.
        """
        if code == "wide" and self._wide is not None:
            return self._wide.of_data_apart(granularity, code, data, target, masked)
        shape, *_ = data[0]
        axes = tuple(range(len(shape)))
        flat = [
            (shape, dense_strides(shape, axes, d.itemsize), d.itemsize) for d in (target, bool_)
        ]
        results = flat if masked else [flat[0], None]
        seen = seen_at_once(granularity, 2, *results, *data)
        if seen is None:
            return None
        piece, _ = seen  # in C order, as the results are
        as_given = strided.forward if piece.views else flattened
        return self._taking(piece, prod(shape)), as_given


class ElementwiseOfSeveral(Elementwise):
    """The same for several arrays of one shape: x is a tuple of them, and one of their elements."""

    def run(  # type: ignore[override]
        self, granularity: Granularity, inputs: tuple[Array, ...], scale: Any, zero_point: Any,
        constants: tuple[Any, Any, Any], precision: Precision, y: Array,
    ) -> None:  # fmt: skip
        """Run over `inputs`."""
        n, outputs = y.size, (y, None)
        for piece, (*x, v, _), (s, z) in pieces(granularity, inputs, outputs, (scale, zero_point)):
            m = v.size if piece.views is None else n
            self._flat(piece, m, tuple(x), s, z, constants, precision, v)


def _in_halves(x: Any, y: Any, qparams: tuple[Any, Any, Any], unmasked: bool) -> bool:
    """Of float16 with scales of float16."""
    return isinstance(x, np.dtype) and x.base == float16 and bool(qparams[0] == float16)


def _signature(x: Any, y: Any, qparams: tuple[Any, Any, Any], unmasked: bool) -> Types:
    """The types of a kernel: `qparams` are those of the scale, the zero point, the constants."""
    scale, zero_point, code = (
        NUMBER_TYPES[kind] if isinstance(kind, str) else array_type(kind) for kind in qparams
    )
    mask = types.none if unmasked else array_type(bool_)
    data = types.Tuple(array_types(*x)) if isinstance(x, tuple) else array_type(x)
    return (
        types.intp, types.intp, types.intp, data, scale, zero_point,
        code, code, code, array_type(y), mask,
    )  # fmt: skip


def _looking(signature: Callable[..., Types]) -> Callable[..., Types]:
    """The types of a kernel that looks at qparams first."""
    look = types.intp, types.float64, types.float64
    return lambda *key: look + signature(*key)


def _periods_signature(*key: Any) -> Types:
    return types.intp, *_signature(*key)


def _apart(signature: Callable[..., Types], cut: int) -> Callable[..., Types]:
    """The types of a kernel that takes views where others take where a piece begins.

    What cuts the data into channels is one argument of it, of so many numbers.
    """

    def with_views(*key: Any) -> Types:
        return strided.VIEWS, types.UniTuple(types.intp, cut), *signature(*key)[1 + cut :]

    return with_views


_RUNS, _RUNS_APART = _looking(_signature), _apart(_signature, 2)
_PERIODS, _PERIODS_APART = _looking(_periods_signature), _apart(_periods_signature, 3)


def _grain(period: int, size: int) -> int:
    """Elements of a parallel segment of `periods`: each makes a table of its own.

    Unless a period comes around some times, that is no more than what belongs to its elements.
    """
    return GRAIN if size < 4 * period else max(GRAIN, min(16 * period, 1 << 20))
