"""A step of training with one scale: see a range, choose qparams, and fake quantize with them."""

from __future__ import annotations

from typing import Any

from npquant.cuda.convert import cast
from npquant.cuda.fake_quantize import fake_quantize_per_tensor
from npquant.cuda.qparams import (
    Choose,
    Observe,
    choose_fbgemm,
    choose_fbgemm_symmetric,
    observe_fbgemm,
    observe_fbgemm_symmetric,
)
from npquant.dtypes import Precision, int32, int64
from npquant.layout import PER_TENSOR, Granularity


class Fused:
    """x -> its running range and qparams, in place, and x fake quantized."""

    def __init__(self, observe: Observe, choose: Choose) -> None:
        self._observe, self._choose = observe, choose

    def __call__(
        self, granularity: Granularity, x: Any, observing: bool, constant: float, low: Any,
        high: Any, bounds: tuple[int, int], eps: float, scale: Any, zero_point: Any,
        precision: Precision, y: Any, mask: Any,
    ) -> None:  # fmt: skip
        """Move `low`, `high` if `observing`; `precision` is that of `Elementwise`."""
        if observing:
            self._observe(granularity, x, constant, low, high, bounds, eps, scale, zero_point)
        else:
            self._choose(low, high, bounds, eps, 0, "float32", scale, zero_point)
        # As a float32 it may be 2**31, which no int32 holds.
        z = zero_point if zero_point.dtype == int32 else cast(zero_point, int64)
        fake_quantize_per_tensor(PER_TENSOR, x, scale, z, (*bounds, 0), precision, y, mask)


fused_fbgemm = Fused(observe_fbgemm, choose_fbgemm)
fused_fbgemm_symmetric = Fused(observe_fbgemm_symmetric, choose_fbgemm_symmetric)
