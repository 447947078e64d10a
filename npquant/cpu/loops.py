"""The loops of every elementwise kernel: a formula goes in, a kernel comes out.

The data is flat, in C order of (outer, channels, inner), with one scale and zero point a channel.
Where `inner` is long, what belongs to a channel is made once and its run of `inner` elements
follows (`runs`); of groups and the like, where it is some multiple of 32, what is asked before a
vectorised loop is asked once for all runs (`blocks`). Where it is short, elements and channels go
side by side (`periods`), so that channels-last images and the last axis of a linear layer are
vectorised too.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic, register_jitable

from npquant.cpu import table
from npquant.cpu.storage import overload
from npquant.cpu.target import GRAIN, PARALLEL_FROM, Kernel, Types, array_type
from npquant.formulas.quantize import SURE
from npquant.cpu.walk import pieces, plain
from npquant.layout import PER_TENSOR, Granularity
from npquant.primitives import at, each, store

Array = np.ndarray[Any, Any]
_is_carray, _dtype_of = attrgetter("flags.carray"), attrgetter("dtype")

#: Runs shorter than this are done side by side.
SHORT = 16
#: Runs up to LONG of a multiple of BLOCK elements have a loop without a rest.
BLOCK, LONG = 32, 512
#: Longer ones begin at a line of the cache, as vectors that lie in two take twice as long to load.
LINE = 64
_OF_BLOCKS = np.uintp(2**64 - BLOCK)
#: A shorter period than this is repeated up to it.
LEAST_PERIOD = 256
#: Elements of a row that are done together, so that what belongs to them stays in the first cache;
#: and of how many rows, so that memory is read in order nevertheless.
NEAR, AT_ONCE = 1024, 32

#: The types of numbers among the qparams and of constants.
NUMBERS: dict[str, Any] = {
    "int32": types.int32,
    "float32": types.float32,
    "float64": types.float64,
    "wide": types.float64,
}


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
    """

    _guesses = None

    def __init__(
        self,
        parameters: Callable[..., Any],
        element: Callable[..., Any],
        wide: Elementwise | None = None,
        work: int = 1,
    ) -> None:
        def runs(
            begin: Any, end: Any, first: Any, channels: Any, inner: Any, x: Any,
            scale: Any, zero_point: Any, lo: Any, hi: Any, nan: Any, y: Any, mask: Any,
        ) -> None:  # fmt: skip
            if begin == end:  # of nothing there may be no channels to divide by
                return
            constants = lo, hi, nan
            row = (first + begin) // inner
            skip = (first + begin) - row * inner
            c = row % channels
            while begin < end:
                m = min(inner - skip, end - begin)
                if m > LONG:
                    m = to_line(x, begin) or m
                p = parameters(x, at(scale, c), at(zero_point, c), constants, y)
                # An unsigned index is not checked for wrap-around, so the loop is vectorised.
                base = np.uintp(begin)
                for k in range(np.uintp(m)):
                    value, inside = element(each(x, base + k), p, constants, y)
                    store(y, base + k, value)
                    store(mask, base + k, inside)
                begin += m
                skip += m
                if skip == inner:
                    skip = 0
                    c = c + 1 if c + 1 < channels else 0

        def blocks(
            begin: Any, end: Any, first: Any, channels: Any, inner: Any, x: Any,
            scale: Any, zero_point: Any, lo: Any, hi: Any, nan: Any, y: Any, mask: Any,
        ) -> None:  # fmt: skip
            """Items (row): whole runs."""
            constants = lo, hi, nan
            length = np.uintp(inner) & _OF_BLOCKS  # so the compiler knows
            c = (first // inner + begin) % channels
            for row in range(np.uintp(begin), np.uintp(end)):
                p = parameters(x, at(scale, c), at(zero_point, c), constants, y)
                base = row * length
                for k in range(length):
                    value, inside = element(each(x, base + k), p, constants, y)
                    store(y, base + k, value)
                    store(mask, base + k, inside)
                c = c + 1 if c + 1 < channels else 0

        def periods(
            begin: Any, end: Any, first: Any, channels: Any, inner: Any, x: Any,
            scale: Any, zero_point: Any, lo: Any, hi: Any, nan: Any, y: Any, mask: Any,
        ) -> None:  # fmt: skip
            constants = lo, hi, nan
            kind = parameters(x, scale[0], zero_point[0], constants, y)
            columns = table.empty(kind)
            period = _repeated(channels * inner)
            start = begin - (first + begin) % period  # of the period that `begin` lies in
            for part in range(0, period, table.ROWS):
                rows = min(table.ROWS, period - part)
                table.fill(columns, part, rows, parameters, x, scale, zero_point,
                           channels, inner, constants, y)  # fmt: skip
                for top in range(start + part, end, AT_ONCE * period):
                    for row in range(0, rows, NEAR):
                        stop = min(row + NEAR, rows) - row
                        for i in range(top + row, min(top + AT_ONCE * period, end), period):
                            above, below = max(begin - i, 0), min(end - i, stop)
                            base, at_row = np.uintp(i + above), np.uintp(row + above)
                            for k in range(np.uintp(max(below - above, 0))):
                                p = table.take(columns, at_row + k, kind)
                                value, inside = element(each(x, base + k), p, constants, y)
                                store(y, base + k, value)
                                store(mask, base + k, inside)

        name = f"{parameters.__name__}_{element.__name__}"
        self._wide, self._work = wide, work
        self._runs = Kernel(runs, f"{name}_runs", _signature, work)
        self._blocks = Kernel(blocks, f"{name}_blocks", _signature, work)
        self._periods = Kernel(periods, f"{name}_periods", _signature, work)

    def run(
        self,
        granularity: Granularity,
        x: Array,
        scale: Any,
        zero_point: Any,
        constants: tuple[Any, Any, Any],
        precision: tuple[str, str, str],
        y: Array,
        mask: Array | None = None,
    ) -> None:
        """Run over `x`.

        `scale` and `zero_point` are numbers, or arrays of one a channel. `constants` are lo, hi
        and what a NaN becomes. `precision` names the types of a scale and of a zero point that
        are numbers, and of the constants; "wide" of the latter is for codes too large for it.
        """
        n = x.size
        if n * self._work < PARALLEL_FROM and x.flags.carray and y.flags.carray:
            # A small array leaves little to decide, and no time for it.
            if type(scale) is float:
                types_, channels, inner = precision, 1, n
            else:
                types_ = scale.dtype, zero_point.dtype, precision[2]
                channels, inner, _ = granularity
            if inner >= SHORT or n <= LEAST_PERIOD:
                entry = self._runs.serial.get((x.dtype, y.dtype, types_, mask is None))
                if entry is not None:
                    lo, hi, nan = constants
                    if x.ndim != 1:
                        x, y = x.ravel(), y.ravel()
                        mask = None if mask is None else mask.ravel()
                    entry(0, n, 0, channels, inner, x, scale, zero_point, lo, hi, nan, y, mask)
                    return
        if precision[2] == "wide" and self._wide is not None:
            self._wide.run(granularity, x, scale, zero_point, constants, precision, y, mask)
            return
        if plain(x) and plain(y) and (mask is None or plain(mask)):
            channels, inner, _ = granularity
            x, y = x.reshape(n), y.reshape(n)
            mask = None if mask is None else mask.reshape(n)
            self._flat(channels, inner or n, 0, x, scale, zero_point, constants, precision, y, mask)
            return
        for layout, first, (u, v, w) in pieces(granularity, (x,), (y, mask)):
            channels, inner = layout
            self._flat(
                channels, inner or n, first, u, scale, zero_point, constants, precision, v, w
            )

    def _flat(
        self, channels: int, inner: int, first: int, x: Any, scale: Any, zero_point: Any,
        constants: tuple[Any, Any, Any], precision: tuple[str, str, str], y: Array,
        mask: Array | None = None,
    ) -> None:  # fmt: skip
        n = y.size
        if n == 0:
            return
        kernel, items, grain = self._runs, n, GRAIN
        types_: tuple[Any, ...] = precision
        if type(scale) is np.ndarray:
            types_ = (scale.dtype, zero_point.dtype, precision[2])
            if inner < SHORT and n > LEAST_PERIOD and _periodic(channels, inner, n):
                kernel, grain = self._periods, _grain(channels * inner)
            elif inner <= LONG and not (inner % BLOCK or first % inner or n % inner):
                kernel, items, grain = self._blocks, n // inner, GRAIN // inner
        if (
            self._guesses is not None
            and inner >= LONG // 4
            and type(scale) is np.ndarray
            and scale.dtype == np.float64
            and x.dtype == np.float32
            and y.dtype in (np.int8, np.uint8, np.int16)
        ):
            kernel, items, grain = self._guesses, n, GRAIN
        args = (first, channels, inner, x, scale, zero_point, *constants, y, mask)
        dtypes = x.dtype if type(x) is np.ndarray else tuple([a.dtype for a in x])
        kernel(items, n, args, (dtypes, y.dtype, types_, mask is None), grain)


class Guessed(Elementwise):
    """An op whose codes float32 knows where PyTorch's rule is float64, but for a few near ties.

    Parameters
    ----------
    parameters, element : callable
        As of `Elementwise`.
    split, guess : callable
        The same of float32 data and a float64 scale; ``guess(...) -> (code, rest)``, and codes are
        sure where the rest is below `SURE`.
    """

    def __init__(
        self, parameters: Callable[..., Any], element: Callable[..., Any],
        split: Callable[..., Any], guess: Callable[..., Any],
    ) -> None:  # fmt: skip
        super().__init__(parameters, element)

        def guesses(
            begin: Any, end: Any, first: Any, channels: Any, inner: Any, x: Any,
            scale: Any, zero_point: Any, lo: Any, hi: Any, nan: Any, y: Any, mask: Any,
        ) -> None:  # fmt: skip
            """As `runs`, in pieces: one that holds a code that is not sure is done once more."""
            constants = lo, hi, nan
            while begin < end:
                row = (first + begin) // inner
                m = min((row + 1) * inner - first - begin, end - begin, LONG)
                m = to_line(x, begin) or m if m == LONG else m
                c = row % channels
                base, far = np.uintp(begin), np.int32(0)
                p = split(x, scale[c], zero_point[c], constants, y)
                for k in range(np.uintp(m)):
                    code, rest = guess(x[base + k], p, constants, y)
                    store(y, base + k, code)
                    far = max(far, rest)
                if far >= SURE:
                    p_ = parameters(x, scale[c], zero_point[c], constants, y)
                    for k in range(np.uintp(m)):
                        code, _ = element(x[base + k], p_, constants, y)
                        store(y, base + k, code)
                begin += m

        self._guesses = Kernel(guesses, f"{split.__name__}_{guess.__name__}", _signature)

    def _kernel(self, x: Any, types_: Any, y: Array, inner: int) -> Kernel:
        wide = types_[0] == np.float64 and x.dtype == np.float32
        guessed = wide and inner >= LONG // 4 and y.dtype in GUESSED
        return self._guesses if guessed else self._runs


class ElementwiseOfSeveral(Elementwise):
    """The same for several arrays of one shape: x is a tuple of them, and one of their elements."""

    def run(  # type: ignore[override]
        self, granularity: Granularity, inputs: tuple[Array, ...], scale: Any, zero_point: Any,
        constants: tuple[Any, Any, Any], precision: tuple[str, str, str], y: Array,
    ) -> None:  # fmt: skip
        """Run over `inputs`."""
        n = y.size
        if n * self._work < PARALLEL_FROM and y.flags.carray and all(map(_is_carray, inputs)):
            channels, inner, _ = granularity
            inner = inner or n
            if inner >= SHORT or n <= LEAST_PERIOD:
                arrays = type(scale) is np.ndarray
                types_ = (scale.dtype, zero_point.dtype, precision[2]) if arrays else precision
                entry = self._runs.serial[tuple(map(_dtype_of, inputs)), y.dtype, types_, True]
                if y.ndim != 1:
                    inputs, y = tuple(map(np.ndarray.ravel, inputs)), y.ravel()
                lo, hi, nan = constants
                entry(0, n, 0, channels, inner, inputs, scale, zero_point, lo, hi, nan, y, None)
                return
        for (channels, inner), first, (*x, v) in pieces(granularity, inputs, (y,)):
            self._flat(
                channels, inner or n, first, tuple(x), scale, zero_point, constants, precision, v
            )


def to_line(x: Any, i: Any) -> int:
    """How many elements from `i` on lie before a line of the cache begins: of `x`, or its first."""
    return 0


@intrinsic
def _to_line(context: Any, x: Any, i: Any) -> Any:
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        array, i = args
        size = context.get_abi_sizeof(context.get_data_type(x.dtype))
        data = context.make_array(x)(context, builder, array).data
        place = builder.add(builder.udiv(builder.ptrtoint(data, i.type), i.type(size)), i)
        return builder.and_(builder.neg(place), i.type(LINE // size - 1))

    return types.intp(x, types.intp), codegen


@overload(to_line)
def _of_to_line(x, i):
    if isinstance(x, types.BaseTuple):
        return lambda x, i: _to_line(x[0], i)  # type: ignore[call-arg]
    return lambda x, i: _to_line(x, i)  # type: ignore[call-arg]


def _signature(x: Any, y: Any, qparams: tuple[Any, Any, Any], unmasked: bool) -> Types:
    """The types of a kernel: `qparams` are those of the scale, the zero point, the constants."""
    scale, zero_point, code = (
        NUMBERS[kind] if isinstance(kind, str) else array_type(kind) for kind in qparams
    )
    mask = types.none if unmasked else array_type(np.dtype(np.bool_))
    data = types.Tuple(_array_types(*x)) if isinstance(x, tuple) else array_type(x)
    return (
        types.intp, types.intp, types.intp, data, scale, zero_point,
        code, code, code, array_type(y), mask,
    )  # fmt: skip


def _periodic(channels: int, inner: int, size: int) -> bool:
    """Whether a period comes around often enough to be worth a table."""
    return inner == 1 or 4 * channels * inner <= size


def _grain(period: int) -> int:
    """Elements of a parallel segment of `periods`: each makes a table of its own."""
    return max(GRAIN, min(16 * period, 1 << 20))


@register_jitable
def _repeated(period: Any) -> Any:
    """A multiple of `period` that is no shorter than LEAST_PERIOD."""
    return (LEAST_PERIOD + period - 1) // period * period if period < LEAST_PERIOD else period


def flat_map(segment: Callable[..., None], name: str) -> Callable[..., None]:
    """A kernel of arrays of one shape, the last of them the output, without qparams."""
    kernel = Kernel(segment, name, _array_types)

    def call(*arrays: Array) -> None:
        n = arrays[0].size
        if n < PARALLEL_FROM and all(map(_is_carray, arrays)):
            entry = kernel.serial[tuple(map(_dtype_of, arrays))]
            entry(0, n, *(arrays if arrays[0].ndim == 1 else map(np.ndarray.ravel, arrays)))
            return
        if n and all(map(plain, arrays)):
            kernel(n, n, tuple([a.reshape(n) for a in arrays]), tuple([a.dtype for a in arrays]))
        elif n:
            for _, _, flat in pieces(PER_TENSOR, arrays[:-1], arrays[-1:]):
                m = flat[0].size
                kernel(m, m, tuple(flat), tuple([a.dtype for a in flat]))

    return call


def _array_types(*dtypes: Any) -> Types:
    return tuple(array_type(d) for d in dtypes)
