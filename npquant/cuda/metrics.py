"""Sums over one array or two, in float64."""

from __future__ import annotations

from npquant.cuda.sums import Total
from npquant.formulas import metrics as f

dot = Total(f.product)
total_squared_difference = Total(f.squared_difference)
total = Total(f.value)
total_magnitude = Total(f.magnitude)
