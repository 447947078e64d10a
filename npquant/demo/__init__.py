"""The main job on real data: a trained network, quantized in every way, and what that costs.

The command ``npquant demo`` prints what `run` returns, ``npquant demo --train`` what `run_training`
does. The data and the network are described in
``data/README.md``; ``examples/train_digits.py`` trained it.
"""

from npquant.demo.evaluate import Report, Row, run
from npquant.demo.train import TrainReport, TrainRow, run_training

__all__ = ["Report", "Row", "TrainReport", "TrainRow", "run", "run_training"]
