"""What observers of a histogram share, whichever bins it has."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from npquant import backend, dtypes
from npquant.arrays import beside, full, on_host
from npquant.errors import show, warn
from npquant.layout import Granularity
from npquant.modules.module import Array, hosted, key_of
from npquant.modules.observers.base import Observer, extremes, kept


class BinnedObserver(Observer):
    """Counts beside the range of what was counted, all of it in NumPy."""

    _settings = (*Observer._settings, "bins")
    _travelling = ()

    bins: int
    histogram: Array

    def _check_options(self) -> None:
        super()._check_options()
        if self.dtype in dtypes.FLOAT8:
            raise TypeError(f"dtype must be one of evenly spaced codes, got {self.dtype}")

    def _check_together(self) -> None:
        super()._check_together()
        bins = self.histogram.shape[-1]
        if bins != self.bins:
            raise ValueError(
                f"bins must be {bins}, as many as histogram has, until reset_min_max_vals(), "
                f"got {show(self.bins)}"
            )

    def _check_counts(self, prefix: str, state: Mapping[str, Array]) -> None:
        """Counts are of what was seen, and the extremes of counted values are finite."""
        counts, least, greatest = state["histogram"], state["min_val"], state["max_val"]
        name = key_of(prefix, "histogram")
        if not ((counts >= 0) & (counts < math.inf)).all():
            worst = counts.max() if counts.min() >= 0 else counts.min()
            raise ValueError(f"{name} must have finite counts, none of them negative, got {worst}")
        sums = counts.sum(axis=-1, dtype=np.float64)
        if not (sums < 2.0**63).all():
            raise ValueError(f"{name} must have counts whose sum an int64 holds, got {sums.max()}")
        nothing = (least == math.inf) & (greatest == -math.inf)
        if not (nothing | np.isfinite(least) & np.isfinite(greatest)).all():
            raise ValueError(
                f"{key_of(prefix, 'min_val')} must be finite, as max_val, or inf and that -inf "
                f"where nothing was seen, got {show(least)} and {show(greatest)}"
            )
        if (seen := counts[nothing]).any():
            raise ValueError(
                f"{name} must have no counts where nothing was seen, got {seen.sum():g} of them"
            )


def finite_extremes(granularity: Granularity, x: Array) -> tuple[Array, Array]:
    """The extremes of what is finite; +inf and -inf where nothing is. No NaN is let in.

    They are looked at, so they come to NumPy.
    """
    least, greatest = map(hosted, extremes(granularity, x))
    if np.isnan(least).any():
        raise ValueError("x must not have a NaN, which has no bin")
    if np.isinf(least).any() or np.isinf(greatest).any():
        warn("x has infinities, which are not observed")
        least, greatest = map(hosted, kept(*backend.of(x).minmax_finite(granularity, x)))
    return least, greatest


def counted(
    count: str, granularity: Granularity, x: Array, low: Array, high: Array, counts: Array
) -> None:
    """Let the backend of `x` count it by the kernel of this name, and add to `counts`, of NumPy."""
    run = getattr(backend.of(x), count)
    if isinstance(x, np.ndarray):
        run(granularity, x, low, high, counts)
    else:
        there = full(x, counts.shape, counts.dtype, 0)
        run(granularity, x, beside(x, low), beside(x, high), there)
        counts += on_host(there)
