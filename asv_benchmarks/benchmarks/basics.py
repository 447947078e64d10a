"""What every other figure leans on: the time of an import, and of a plain copy."""

from __future__ import annotations

import numpy as np


class Imports:
    """A new process that imports npquant, and one that imports what npquant must import."""

    params = ("npquant", "numba")
    param_names = ("package",)

    def timeraw_import(self, package: str) -> str:
        return f"import {package}"


class Control:
    """`np.copyto`: if this changed, the machine did, not npquant."""

    params = (16, 1 << 20)
    param_names = ("size",)

    def setup(self, size: int) -> None:
        self.source = np.random.default_rng(0).standard_normal(size, np.float32)
        self.copy = self.source.copy()

    def time_copyto(self, size: int) -> None:
        np.copyto(self.copy, self.source)
