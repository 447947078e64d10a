"""Sums over one array or two, in float64."""

from __future__ import annotations

from npquant.cuda.reduce import Total
from npquant.formulas import metrics as f

product = Total(f.product)
squared_difference = Total(f.squared_difference)
value = Total(f.value)
magnitude = Total(f.magnitude)
