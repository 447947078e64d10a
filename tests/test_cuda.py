"""CUDA kernels in the simulator, and that they are the CPU's in name and signature."""

import inspect
import os
import re
import subprocess
import sys
import tomllib
import warnings
from importlib.metadata import requires
from pathlib import Path

import pytest

from npquant import cpu, cuda
from npquant.cuda import target
from twins import files, twin

TESTS = Path(__file__).parent


def test_in_the_simulator():
    """tests/cuda in a process of its own, as a process either simulates or does not.

    All of them, or the part that SIMULATOR_SLICE names, as TESTS_SLICE does: they take minutes.
    """
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
    part = os.environ.get("SIMULATOR_SLICE", "0/1")
    env = os.environ | {"NUMBA_ENABLE_CUDASIM": "1", "TESTS_SLICE": part}
    got = subprocess.run(command, cwd=TESTS, env=env, capture_output=True, text=True)
    assert got.returncode == 0, got.stdout[-10_000:] + got.stderr[-2_000:]
    assert " passed" in got.stdout


def test_the_linker_is_installed():
    """What numba-cuda asks for beside the compilers, of the same CUDA, is in `test-cuda` too."""
    project = tomllib.loads((TESTS.parent / "pyproject.toml").read_text())["project"]
    ours = project["optional-dependencies"]["test-cuda"]
    theirs = [r for r in requires("numba-cuda") if re.search(r"extra == .cu13", r)]
    linker = next(r for r in theirs if "nvjitlink" in r)
    assert re.match(r"[\w-]+", linker)[0] + "==13.*" in ours
    assert [r for r in ours if r.startswith(("nvidia", "cuda")) and not r.endswith("==13.*")] == []


@pytest.mark.parametrize("simulated", ["0", "1"])
def test_import_without_warnings(simulated):
    """NumPy 2.5 has some for numba-cuda; and a test that imports it would fail of them."""
    env = os.environ | {"NUMBA_ENABLE_CUDASIM": simulated}
    command = [sys.executable, "-W", "error", "-c", "import npquant.cuda"]
    got = subprocess.run(command, cwd=TESTS.parent, env=env, capture_output=True, text=True)
    assert got.returncode == 0, got.stderr


def test_warnings_of_numba_cuda_alone():
    """Deprecations while it is imported, and nothing else."""
    with target._numpy_of_old():
        warnings.warn("a time without a unit", DeprecationWarning, stacklevel=1)
        with pytest.raises(RuntimeWarning):
            warnings.warn("anything else", RuntimeWarning, stacklevel=1)
    with pytest.raises(DeprecationWarning):
        warnings.warn("later", DeprecationWarning, stacklevel=1)


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
