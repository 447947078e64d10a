"""Statistics, and the qparams that are chosen from them: a thread for each channel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types

from npquant.cpu.storage import TYPES
from npquant.cuda.arrays import device
from npquant.cuda.convert import cast
from npquant.cuda.extremes import minmax
from npquant.cuda.target import THREADS, Kernel, Types, cuda, pointer
from npquant.cuda.walk import packed
from npquant.dtypes import DType
from npquant.formulas import qparams as f
from npquant.layout import Granularity
from npquant.primitives import item, like


class Choose:
    """The range of each channel -> its scale and zero point."""

    def __init__(self, formula: Callable[..., Any]) -> None:
        self.formula = formula
        self.kernel = Kernel(self._make, formula.__name__)

    def __call__(
        self, least: Any, greatest: Any, bounds: tuple[int, int], eps: float, middle: int,
        precision: str, scale: Any, zero_point: Any,
    ) -> None:  # fmt: skip
        """Write to `scale` and `zero_point`; `precision` names the type of `eps`."""
        a, b, s, z = map(device, (least, greatest, scale, zero_point))
        if not a.size:
            return
        on = a.stream()
        b.follow(a)
        a, b = packed(a), packed(b)  # as those that were given to an observer may have gaps
        args = (
            a.size, a.argument(), b.argument(), *bounds, eps, middle, s.argument(), z.argument(),
        )  # fmt: skip
        key = (a.dtype, precision, s.dtype, z.dtype)
        self.kernel(-(-a.size // THREADS), THREADS, args, key, on)

    def _make(
        self, least: Any, precision: str, scale: Any, zero_point: Any
    ) -> tuple[Callable[..., None], Types]:
        formula = self.formula

        def kernel(
            n: Any, least: Any, greatest: Any, lo: Any, hi: Any, eps: Any, middle: Any, scale: Any,
            zero_point: Any,
        ) -> None:  # fmt: skip
            c = np.int64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
            if c < n:
                s, z = item(scale), item(zero_point)
                chosen = formula(least[c], greatest[c], lo, hi, eps, middle, s)
                scale[c] = like(chosen[0], s)
                zero_point[c] = like(chosen[1], z)

        bounds, integer = pointer(least), types.int64
        return kernel, (
            integer, bounds, bounds, integer, integer, TYPES[np.dtype(precision)], integer,
            pointer(scale), pointer(zero_point),
        )  # fmt: skip


choose_affine = Choose(f.affine_qparams)
choose_symmetric = Choose(f.symmetric_qparams)
choose_float = Choose(f.float_qparams)
choose_kept_float = Choose(f.kept_float_qparams)
choose_per_token = Choose(f.token_qparams)
choose_per_token_asymmetric = Choose(f.token_asymmetric_qparams)
choose_fbgemm = Choose(f.fbgemm_qparams)
choose_fbgemm_symmetric = Choose(f.fbgemm_symmetric_qparams)


class OfData:
    """x -> the scale and the zero point of each channel: `minmax` and a `Choose`."""

    def __init__(self, choose: Choose) -> None:
        self._choose = choose

    def __call__(
        self, granularity: Granularity, x: Any, kind: DType, bounds: tuple[int, int], eps: float,
        middle: int, precision: str, scale: Any, zero_point: Any,
    ) -> None:  # fmt: skip
        """The same of ranges that are made `kind` first."""
        least, greatest = (cast(v, kind) for v in minmax(granularity, x))
        self._choose(least, greatest, bounds, eps, middle, precision, scale, zero_point)


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
        self._formula = formula
        self.kernel = Kernel(self._make, formula.__name__)

    def __call__(self, least: Any, greatest: Any, constant: float, low: Any, high: Any) -> None:
        """Move the running range `low`, `high` towards the one that was seen."""
        a, b, u, v = map(device, (least, greatest, low, high))
        if not a.size:
            return
        args = (a.size, a.argument(), b.argument(), constant, u.argument(), v.argument())
        self.kernel(-(-a.size // THREADS), THREADS, args, (a.dtype,), a.stream())

    def _make(self, dtype: Any) -> tuple[Callable[..., None], Types]:
        formula = self._formula

        def kernel(n: Any, least: Any, greatest: Any, constant: Any, low: Any, high: Any) -> None:
            c = np.int64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
            if c < n:
                low[c] = formula(low[c], least[c], constant)
                high[c] = formula(high[c], greatest[c], constant)

        bound = pointer(dtype)
        return kernel, (types.int64, bound, bound, types.float32, bound, bound)


move = Move(f.moving_average)
step_towards = Move(f.step_towards)


def follow(granularity: Granularity, x: Any, constant: float, low: Any, high: Any) -> None:
    """`move` to the range of data, in place."""
    least, greatest = (cast(v, low.dtype) for v in minmax(granularity, x))
    move(least, greatest, constant, low, high)


class Observe:
    """x -> its running range, in place, and the scales and zero points of that."""

    def __init__(self, choose: Choose) -> None:
        self._choose = choose

    def __call__(
        self, granularity: Granularity, x: Any, constant: float, low: Any, high: Any,
        bounds: tuple[int, int], eps: float, scale: Any, zero_point: Any,
    ) -> None:  # fmt: skip
        """Move `low`, `high` towards the range of `x`, and write to `scale` and `zero_point`."""
        follow(granularity, x, constant, low, high)
        self._choose(low, high, bounds, eps, 0, "float32", scale, zero_point)


observe_fbgemm = Observe(choose_fbgemm)
observe_fbgemm_symmetric = Observe(choose_fbgemm_symmetric)
