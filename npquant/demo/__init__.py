"""The main job on real data: a trained network, quantized in every way, and what that costs.

The command ``npquant demo`` prints what `run` returns. The data and the network are described in
``data/README.md``; ``examples/train_digits.py`` trained it.
"""

from npquant.demo.evaluate import Report, Row, run

__all__ = ["Report", "Row", "run"]
