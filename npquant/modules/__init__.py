"""Modules: what learns or observes something as arrays pass through it."""

from npquant.modules.module import Module
from npquant.modules.observers import (
    EntropyObserver,
    HistogramObserver,
    MinMaxObserver,
    MovingAverageMinMaxObserver,
    MovingAveragePerChannelMinMaxObserver,
    MSEObserver,
    Observer,
    PercentileObserver,
    PerChannelMinMaxObserver,
)

__all__ = [
    "EntropyObserver",
    "HistogramObserver",
    "MSEObserver",
    "MinMaxObserver",
    "Module",
    "MovingAverageMinMaxObserver",
    "MovingAveragePerChannelMinMaxObserver",
    "Observer",
    "PerChannelMinMaxObserver",
    "PercentileObserver",
]
