"""AdaRound: a weight rounded down, and what V adds to it; and the regularizer that decides V."""

from __future__ import annotations

from npquant.cpu.loops import Elementwise, ElementwiseOfSeveral
from npquant.cpu.sums import Total
from npquant.formulas import adaround as f

adaround_init = Elementwise(
    f.rounding, f.adaround_init, work=4, steps=(f.init_fraction, f.init_undecided)
).run
adaround_soft = ElementwiseOfSeveral(
    f.rounding, f.adaround_soft, work=4, steps=(f.soft_up, f.soft_value)
).run
adaround_soft_backward = ElementwiseOfSeveral(
    f.rounding, f.adaround_soft_backward, work=4, steps=(f.soft_sigmoid, f.soft_slope)
).run
adaround_hard = ElementwiseOfSeveral(f.rounding, f.adaround_hard).run
adaround_codes = ElementwiseOfSeveral(f.rounding, f.adaround_codes).run

adaround_regularizer = Total(
    f.adaround_regularizer, (f.regularizer_decided, f.regularizer_log2, f.regularizer_term)
)
adaround_regularizer_backward = Elementwise(
    f.regularizing,
    f.adaround_regularizer_backward,
    work=4,
    steps=(f.slope_sigmoid, f.slope_leaning, f.slope_log2, f.slope),
).run
