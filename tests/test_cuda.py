"""CUDA kernels in the simulator, and that they are the CPU's in name and signature."""

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

from npquant import cpu, cuda
from twins import files, twin

TESTS = Path(__file__).parent


def test_in_the_simulator():
    """tests/cuda in a process of its own, as a process either simulates or does not."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n",
        "2",
        "--dist",
        "load",
        "-p",
        "no:cacheprovider",
        "cuda",
    ]
    env = os.environ | {"NUMBA_ENABLE_CUDASIM": "1"}
    got = subprocess.run(command, cwd=TESTS, env=env, capture_output=True, text=True)
    assert got.returncode == 0, got.stdout[-10_000:] + got.stderr[-2_000:]
    assert " passed" in got.stdout


@pytest.mark.parametrize("name", cpu.__all__)
def test_twins(name):
    """Same file, same name, same arguments."""
    ours, theirs = twin(name), getattr(cpu, name)
    assert getattr(cuda, name) is ours
    assert parameters(ours) == parameters(theirs)


def test_every_kernel_has_a_file():
    assert sorted(files()) == sorted(cpu.__all__)


def parameters(function):
    found = inspect.signature(function).parameters.values()
    return [(p.name, p.kind, p.default) for p in found]
