"""AdaRound to the end: the loss, and layers whose rounding is learned.

Nagel et al., "Up or Down? Adaptive Rounding for Post-Training Quantization", 2020.
"""

from npquant.adaround.layers import Conv2d, Gram, Grid, Linear
from npquant.adaround.loss import AdaroundLoss
from npquant.adaround.optimize import Rounded, RoundingReport, optimize_rounding

__all__ = [
    "AdaroundLoss",
    "Conv2d",
    "Gram",
    "Grid",
    "Linear",
    "Rounded",
    "RoundingReport",
    "optimize_rounding",
]
