"""AdaRound: a weight rounded down, and what V adds to it; and the regularizer that decides V."""

from __future__ import annotations

from npquant.cuda.loops import Elementwise, ElementwiseOfSeveral
from npquant.cuda.sums import Total
from npquant.formulas import adaround as f

adaround_init = Elementwise(f.rounding, f.adaround_init)
adaround_soft = ElementwiseOfSeveral(f.rounding, f.adaround_soft)
adaround_soft_backward = ElementwiseOfSeveral(f.rounding, f.adaround_soft_backward)
adaround_hard = ElementwiseOfSeveral(f.rounding, f.adaround_hard)
adaround_codes = ElementwiseOfSeveral(f.rounding, f.adaround_codes)

adaround_regularizer = Total(f.adaround_regularizer)
adaround_regularizer_backward = Elementwise(f.regularizing, f.adaround_regularizer_backward)
