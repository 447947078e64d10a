"""Modules: what learns or observes something as arrays pass through it."""

from npquant.modules.adaround import AdaroundFakeQuantizer
from npquant.modules.fake_quantize import (
    FakeQuantize,
    FakeQuantizeBase,
    FusedMovingAvgObsFakeQuantize,
)
from npquant.modules.learnable import LearnableFakeQuantize
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
    "AdaroundFakeQuantizer",
    "EntropyObserver",
    "FakeQuantize",
    "FakeQuantizeBase",
    "FusedMovingAvgObsFakeQuantize",
    "HistogramObserver",
    "LearnableFakeQuantize",
    "MSEObserver",
    "MinMaxObserver",
    "Module",
    "MovingAverageMinMaxObserver",
    "MovingAveragePerChannelMinMaxObserver",
    "Observer",
    "PerChannelMinMaxObserver",
    "PercentileObserver",
]
