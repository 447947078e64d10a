"""A step of training: see a range, choose qparams, and fake quantize with them.

Of a small array with one scale it is one kernel, and of one whose rows have a scale each: some rows
are looked at, and fake quantized while a cache still holds them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from npquant.cpu.extremes import range_of, range_of_run
from npquant.cpu.fake_quantize import fake_quantize_per_tensor, per_channel
from npquant.cpu.loops import NUMBER_TYPES
from npquant.cpu.lowered import called
from npquant.cpu.qparams import (
    Choose,
    Observe,
    choose_fbgemm,
    choose_fbgemm_symmetric,
    moved,
    observe_fbgemm,
    observe_fbgemm_symmetric,
)
from npquant.cpu.strided import overlap
from npquant.cpu.target import GRAIN, Kernel, Types, array_type, compiled, renamed
from npquant.dtypes import EXACT32, Precision, affine_precision, bool_, float32, int32
from npquant.formulas import fake_quantize as f
from npquant.layout import PER_TENSOR, Granularity
from npquant.primitives import like, store

Array = np.ndarray[Any, Any]

#: What became of an array.
DONE, REST, OVERLAP = 0, 1, 2


@called
def overlapping(x: Any, low: Any, high: Any, scale: Any, zero_point: Any) -> Any:
    """Whether any of the arrays that are updated shares memory with another one, or with `x`."""
    found = overlap(low, high) | overlap(low, scale) | overlap(high, scale) | overlap(zero_point, x)
    for a in (low, high, scale):
        found |= overlap(a, zero_point) | overlap(a, x)
    return found


class Fused:
    """x -> its running range and qparams, in place, and x fake quantized."""

    def __init__(self, observe: Observe, choose: Choose) -> None:
        put = choose.put

        def whole(
            x: Any, observing: Any, constant: Any, low: Any, high: Any, lo: Any, hi: Any, eps: Any,
            scale: Any, zero_point: Any, least_code: Any, greatest_code: Any, y: Any, mask: Any,
        ) -> Any:  # fmt: skip
            """DONE; REST if `y` is not written, as the zero point is too large for float32; or
            OVERLAP, and nothing is written.
            """
            if overlapping(x, low, high, scale, zero_point):
                return OVERLAP
            if observing:
                least, greatest = range_of(x, 0, 1, x.size)
                moved(0, least, greatest, constant, low, high)
            chosen = put(0, low[0], high[0], lo, hi, eps, 0, scale, zero_point)
            if abs(chosen[1]) > EXACT32:
                return REST
            constants = least_code, greatest_code, 0
            p = f.affine(x, scale[0], like(chosen[1], least_code), constants, y)
            for k in range(np.uintp(x.size)):
                value, inside = f.fake_quantize_per_tensor(x[k], p, constants, y)
                store(y, k, value)
                store(mask, k, inside)
            return DONE

        choose_rows, quantize_rows = choose.segment, per_channel.rule

        def rows(
            begin: Any, end: Any, channels: Any, inner: Any, x: Any, observing: Any, constant: Any,
            low: Any, high: Any, lo: Any, hi: Any, eps: Any, scale: Any, zero_point: Any,
            least_code: Any, greatest_code: Any, y: Any, mask: Any,
        ) -> Any:  # fmt: skip
            """Items (row): DONE; or OVERLAP, and nothing is written."""
            if overlapping(x, low, high, scale, zero_point):
                return OVERLAP
            some = max(1, GRAIN // inner)
            for first in range(begin, end, some):
                stop = min(first + some, end)
                for c in range(first, stop if observing else first):
                    least, greatest = range_of_run(x, c * inner, inner)
                    moved(c, least, greatest, constant, low, high)
                choose_rows(first, stop, low, high, lo, hi, eps, 0, scale, zero_point)
                quantize_rows(first * inner, stop * inner, 0, 0.0, 0.0, 0, channels, inner, x,
                              scale, zero_point, least_code, greatest_code, 0, y,
                              mask)  # fmt: skip
            return DONE

        name = f"{choose.formula.__name__}_fused"
        self.whole = compiled(renamed(whole, name), lambda key: _signature(*key))
        self.rows = Kernel(rows, f"{name}_rows", _rows_signature)
        self._observe, self._choose = observe, choose

    def __call__(
        self, granularity: Granularity, x: Array, observing: bool, constant: float, low: Array,
        high: Array, bounds: tuple[int, int], eps: float, scale: Array, zero_point: Array,
        precision: Precision, y: Array, mask: Array | None,
    ) -> None:  # fmt: skip
        """Move `low`, `high` if `observing`; `precision` is that of `Elementwise`."""
        if observing:
            self._observe(granularity, x, constant, low, high, bounds, eps, scale, zero_point)
        else:
            self._choose(low, high, bounds, eps, 0, "float32", scale, zero_point)
        self.quantize(x, bounds, scale, zero_point, precision, y, mask)

    def quantize(
        self, x: Array, bounds: tuple[int, int], scale: Array, zero_point: Array,
        precision: Precision, y: Array, mask: Array | None,
    ) -> None:  # fmt: skip
        """What is left to do once there are qparams."""
        z = int(zero_point.item())
        if z > EXACT32 or z < -EXACT32:
            precision = affine_precision(x.dtype, *bounds, z)
        fake_quantize_per_tensor(PER_TENSOR, x, scale.item(), z, (*bounds, 0), precision, y, mask)


def _signature(x: Any, zero_point: Any, code: str, unmasked: bool) -> Types:
    bound, integer, number = array_type(float32), types.int64, NUMBER_TYPES[code]
    mask = types.none if unmasked else array_type(bool_)
    return (
        array_type(x), types.boolean, types.float32, bound, bound, integer, integer, types.float32,
        bound, array_type(zero_point), number, number, array_type(x), mask,
    )  # fmt: skip


def _rows_signature(x: Any, code: str, unmasked: bool) -> Types:
    return types.intp, types.intp, *_signature(x, int32, code, unmasked)


fused_fbgemm = Fused(observe_fbgemm, choose_fbgemm)
fused_fbgemm_symmetric = Fused(observe_fbgemm_symmetric, choose_fbgemm_symmetric)
