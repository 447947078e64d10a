"""Statistics, and the qparams that are chosen from them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types

from npquant.cpu.channels import parts
from npquant.cpu.checks import one_reversed
from npquant.cpu.extremes import few, minmax, range_of, ranges
from npquant.cpu.lowered import called
from npquant.cpu.rooms import local
from npquant.cpu.storage import TYPES
from npquant.cpu.target import GRAIN, Kernel, Types, array_type, compiled, renamed
from npquant.cpu.walk import plain
from npquant.dtypes import DType, float32
from npquant.formulas import qparams as f
from npquant.layout import Granularity
from npquant.primitives import item, like

Array = np.ndarray[Any, Any]


#: Rows at most whose ranges wait on the stack, and channels at most whose ranges are kept.
ON_STACK, RANGES_KEPT = 512, 1 << 15


class Choose:
    """The range of each channel -> its scale and zero point."""

    def __init__(self, formula: Callable[..., Any]) -> None:
        @called
        def put(
            c: Any, least: Any, greatest: Any, lo: Any, hi: Any, eps: Any, middle: Any, scale: Any,
            zero_point: Any,
        ) -> Any:  # fmt: skip
            """Write what channel `c` has; return it as it was chosen."""
            chosen = formula(least, greatest, lo, hi, eps, middle, item(scale))
            scale[c] = like(chosen[0], item(scale))
            zero_point[c] = like(chosen[1], item(zero_point))
            return chosen

        def channels(
            begin: Any, end: Any, least: Any, greatest: Any, lo: Any, hi: Any, eps: Any,
            middle: Any, scale: Any, zero_point: Any,
        ) -> None:  # fmt: skip
            for c in range(np.uintp(begin), np.uintp(end)):
                put(c, least[c], greatest[c], lo, hi, eps, middle, scale, zero_point)

        #: For kernels that do more than this.
        self.put, self.segment = put, called(channels)
        choose = self.segment

        def in_order(
            least: Any, greatest: Any, lo: Any, hi: Any, eps: Any, middle: Any, scale: Any,
            zero_point: Any,
        ) -> Any:  # fmt: skip
            """The same, unless a least value exceeds its greatest; then nothing is written."""
            if one_reversed(least, greatest):
                return False
            choose(0, least.size, least, greatest, lo, hi, eps, middle, scale, zero_point)
            return True

        def of_data(
            channels: Any, inner: Any, x: Any, lo: Any, hi: Any, eps: Any, middle: Any, scale: Any,
            zero_point: Any,
        ) -> None:  # fmt: skip
            """The same of data, of which there are `few`."""
            for c in range(channels):
                least, greatest = range_of(x, c, channels, inner)
                put(c, least, greatest, lo, hi, eps, middle, scale, zero_point)

        self.formula, name = formula, formula.__name__
        self._kernel = Kernel(channels, name, _signature)
        self.in_order = compiled(renamed(in_order, f"{name}_in_order"), lambda k: _signature(*k))
        self.of_data = compiled(renamed(of_data, f"{name}_of_data"), _of_data_signature)
        #: Of rows, by whether they are folded: for kernels that do more, and of `few` elements.
        self.some_rows = {short: _rows_by(find, put) for short, find in ranges.items()}
        self.of_rows = {
            short: compiled(
                renamed(_however_many(some_rows), f"{name}_of_rows_{short}"), _of_data_signature
            )
            for short, some_rows in self.some_rows.items()
        }

    def __call__(
        self, least: Array, greatest: Array, bounds: tuple[int, int], eps: float, middle: int,
        precision: str, scale: Array, zero_point: Array,
    ) -> None:  # fmt: skip
        """Write to `scale` and `zero_point`; `precision` names the type of `eps`."""
        n = least.size
        lo, hi = bounds
        key = (least.dtype, precision, scale.dtype, zero_point.dtype)
        if n < GRAIN:  # which leaves nothing to decide
            choose = self._kernel.serial[key]
            choose(0, n, least, greatest, lo, hi, eps, middle, scale, zero_point)
        else:
            args = (least, greatest, lo, hi, eps, middle, scale, zero_point)
            self._kernel(n, n, args, key)


def _rows_by(find: Callable[..., Any], put: Callable[..., Any]) -> Callable[..., Any]:
    """What chooses for ON_STACK rows at most that follow one another, and finds their ranges."""

    def some_rows(
        begin: Any, end: Any, inner: Any, x: Any, lo: Any, hi: Any, eps: Any, middle: Any,
        scale: Any, zero_point: Any,
    ) -> None:  # fmt: skip
        least, greatest = local(ON_STACK, item(x)), local(ON_STACK, item(x))
        find(x, begin, end - begin, inner, least, greatest, 0)
        base = np.uintp(begin)
        for k in range(np.uintp(end - begin)):
            put(base + k, least[k], greatest[k], lo, hi, eps, middle, scale, zero_point)

    return called(some_rows)  # type: ignore[no-any-return]


def _however_many(some_rows: Callable[..., Any]) -> Callable[..., Any]:
    """The same of any number of rows."""

    def of_rows(
        rows: Any, inner: Any, x: Any, lo: Any, hi: Any, eps: Any, middle: Any, scale: Any,
        zero_point: Any,
    ) -> None:  # fmt: skip
        for begin in range(0, rows, ON_STACK):
            end = min(begin + ON_STACK, rows)
            some_rows(begin, end, inner, x, lo, hi, eps, middle, scale, zero_point)

    return of_rows


def _signature(least: Any, precision: str, scale: Any, zero_point: Any) -> Types:
    bounds, eps = array_type(least), TYPES[np.dtype(precision)]
    integer = types.int64
    return (bounds, bounds, integer, integer, eps, integer,
            array_type(scale), array_type(zero_point))  # fmt: skip


def _of_data_signature(key: Any) -> Types:
    x, _, *numbers = _signature(*key)
    return types.intp, types.intp, x, *numbers


class OfData:
    """x -> the scale and the zero point of each channel: `minmax` and a `Choose`."""

    def __init__(self, choose: Choose) -> None:
        self._choose, self.of_data, self.of_rows = choose, choose.of_data, choose.of_rows

    def __call__(
        self, granularity: Granularity, x: Array, kind: DType, bounds: tuple[int, int], eps: float,
        middle: int, precision: str, scale: Array, zero_point: Array,
    ) -> None:  # fmt: skip
        """The same of ranges that are made `kind` first."""
        rest, most = (bounds, eps, middle, precision), _most(x)
        if granularity.channels <= most:
            least, greatest = _range_as(granularity, x, kind)
            self._choose(least, greatest, *rest, scale, zero_point)
            return
        for part, (v,) in parts(granularity, (x,), most):
            s, z = part.room(scale), part.room(zero_point)
            self(part.granularity, v, kind, *rest, s, z)
            part.put(scale, s)
            part.put(zero_point, z)


def _most(x: Array) -> int:
    """Channels whose ranges are kept: fewer of long numbers, and where qparams may wait, too."""
    return RANGES_KEPT if plain(x) and x.itemsize <= 4 else max(1, RANGES_KEPT // 2)


def _range_as(granularity: Granularity, x: Array, kind: DType) -> tuple[Array, Array]:
    """`minmax`, of this dtype."""
    least, greatest = minmax(granularity, x)
    if least.dtype != kind:
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):  # of signalling NaNs
            least, greatest = least.astype(kind), greatest.astype(kind)
    return least, greatest


choose_affine = Choose(f.affine_qparams)
choose_symmetric = Choose(f.symmetric_qparams)
choose_float = Choose(f.float_qparams)
choose_kept_float = Choose(f.kept_float_qparams)
choose_per_token = Choose(f.token_qparams)
choose_per_token_asymmetric = Choose(f.token_asymmetric_qparams)
choose_fbgemm = Choose(f.fbgemm_qparams)
choose_fbgemm_symmetric = Choose(f.fbgemm_symmetric_qparams)

qparams_per_token = OfData(choose_per_token)
qparams_per_token_asymmetric = OfData(choose_per_token_asymmetric)


class Move:
    """Bounds that were seen -> running bounds, in place.

    Parameters
    ----------
    formula : callable
        ``formula(running, seen, constant) -> running``.
    """

    def __init__(self, formula: Callable[..., Any]) -> None:
        def channels(
            begin: Any, end: Any, least: Any, greatest: Any, constant: Any, low: Any, high: Any
        ) -> None:
            for c in range(np.uintp(begin), np.uintp(end)):
                low[c] = formula(low[c], least[c], constant)
                high[c] = formula(high[c], greatest[c], constant)

        def signature(dtype: Any) -> Types:
            bound = array_type(dtype)
            return bound, bound, types.float32, bound, bound

        self._kernel = Kernel(channels, formula.__name__, signature)

    def __call__(
        self, least: Array, greatest: Array, constant: float, low: Array, high: Array
    ) -> None:
        """Move the running range `low`, `high` towards the one that was seen."""
        args = (least, greatest, constant, low, high)
        self._kernel(least.size, least.size, args, (least.dtype,))


move = Move(f.moving_average)
step_towards = Move(f.step_towards)


def follow(granularity: Granularity, x: Array, constant: float, low: Array, high: Array) -> None:
    """`move` to the range of data, in place."""
    most = _most(x)
    if granularity.channels <= most:
        move(*_range_as(granularity, x, low.dtype), constant, low, high)
        return
    for part, (v,) in parts(granularity, (x,), most):
        some = part.values
        move(*_range_as(part.granularity, v, low.dtype), constant, low[some], high[some])


@called
def moved(c: Any, least: Any, greatest: Any, constant: Any, low: Any, high: Any) -> None:
    """As `move`, of one channel of data of any dtype."""
    low[c] = f.moving_average(low[c], like(least, low[c]), constant)
    high[c] = f.moving_average(high[c], like(greatest, high[c]), constant)


class Observe:
    """x -> its running range, in place, and the scales and zero points of that: a step of training.

    It is `follow` and a `Choose` one after another, of small arrays in one kernel.
    """

    def __init__(self, choose: Choose) -> None:
        put = choose.put

        def channels(
            begin: Any, end: Any, channels: Any, inner: Any, x: Any, constant: Any, low: Any,
            high: Any, lo: Any, hi: Any, eps: Any, scale: Any, zero_point: Any,
        ) -> None:  # fmt: skip
            for c in range(begin, end):
                least, greatest = range_of(x, c, channels, inner)
                moved(c, least, greatest, constant, low, high)
                put(c, low[c], high[c], lo, hi, eps, 0, scale, zero_point)

        self._kernel = Kernel(channels, f"observe_{choose.formula.__name__}", _observe_signature)
        self._choose = choose

    def __call__(
        self, granularity: Granularity, x: Array, constant: float, low: Array, high: Array,
        bounds: tuple[int, int], eps: float, scale: Array, zero_point: Array,
    ) -> None:  # fmt: skip
        """Move `low`, `high` towards the range of `x`, and write to `scale` and `zero_point`."""
        channels, inner, _ = granularity
        if few(granularity, x.size) and x.flags.carray:
            lo, hi = bounds
            run = self._kernel.serial[x.dtype, scale.dtype, zero_point.dtype]
            run(0, channels, channels, inner, x, constant, low, high, lo, hi, eps, scale,
                zero_point)  # fmt: skip
            return
        follow(granularity, x, constant, low, high)
        self._choose(low, high, bounds, eps, 0, "float32", scale, zero_point)


def _observe_signature(x: Any, scale: Any, zero_point: Any) -> Types:
    bound, integer = array_type(float32), types.int64
    return (types.intp, types.intp, array_type(x), types.float32, bound, bound, integer, integer,
            types.float32, array_type(scale), array_type(zero_point))  # fmt: skip


observe_fbgemm = Observe(choose_fbgemm)
observe_fbgemm_symmetric = Observe(choose_fbgemm_symmetric)
