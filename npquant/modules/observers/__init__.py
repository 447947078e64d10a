"""Observers: they watch arrays pass, and choose qparams from what they saw.

An observer keeps statistics in float32 and returns its input untouched. Those with PyTorch's names
have its bits; the percentile, squared-error and entropy observers count values in a histogram that
does not depend on the order in which the values came, so that observers of parts can be merged.
"""

from npquant.modules.observers.base import (
    EPS,
    FLOAT_QPARAMS,
    PER_CHANNEL,
    PER_TENSOR,
    Observer,
)
from npquant.modules.observers.counting import EntropyObserver, MSEObserver, PercentileObserver
from npquant.modules.observers.histogram import HistogramObserver
from npquant.modules.observers.ranges import (
    MinMaxObserver,
    MovingAverageMinMaxObserver,
    MovingAveragePerChannelMinMaxObserver,
    PerChannelMinMaxObserver,
)

__all__ = [
    "EPS",
    "FLOAT_QPARAMS",
    "PER_CHANNEL",
    "PER_TENSOR",
    "EntropyObserver",
    "HistogramObserver",
    "MSEObserver",
    "MinMaxObserver",
    "MovingAverageMinMaxObserver",
    "MovingAveragePerChannelMinMaxObserver",
    "Observer",
    "PerChannelMinMaxObserver",
    "PercentileObserver",
]
