"""What a measurement was taken with: versions and the machine."""

import os
import platform
from dataclasses import dataclass
from pathlib import Path

import numba
import numpy as np

import npquant as nq


@dataclass(frozen=True)
class Environment:
    """Versions and machine.

    Attributes
    ----------
    npquant, python, numpy, numba : str
        Versions.
    threads : int
        Threads that Numba's parallel kernels may use.
    cpu : str
        The processor's name, as far as the system tells.
    cores : int
        Processors that the system counts.
    """

    npquant: str
    python: str
    numpy: str
    numba: str
    threads: int
    cpu: str
    cores: int

    @classmethod
    def here(cls) -> "Environment":
        """Describe this process."""
        return cls(
            npquant=nq.__version__,
            python=platform.python_version(),
            numpy=np.__version__,
            numba=numba.__version__,
            threads=numba.get_num_threads(),
            cpu=cpu_name(),
            cores=os.cpu_count() or 1,
        )


def cpu_name() -> str:
    """What the system calls the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        lines = []
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine() or "unknown"
