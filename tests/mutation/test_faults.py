"""The list of faults holds for the package as it is: `mutate.py` asks the tests about them."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from faults import FAULTS, SIMULATED
from mutate import FOLDERS

import npquant

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.file}: {fault.why}")
def test_fault(fault):
    """Its text stands there once, and something else would come of it."""
    text = (Path(npquant.__file__).parent / fault.file).read_text()
    assert text.count(fault.old) == 1
    assert fault.old != fault.new


def test_the_tests_that_are_asked_first():
    """All exist, with just these arguments; some need CUDA's compiler or peers to be collected."""
    names = dict.fromkeys(name for fault in FAULTS for name in fault.first)
    simulated = [name for name in names if name.startswith(SIMULATED)]
    names = [name for name in names if name not in simulated]
    if find_spec("numba_cuda") is None:
        names = [name for name in names if not name.startswith("tests/test_cuda")]
        simulated = []
    if None in map(find_spec, ("torch", "onnx", "onnxruntime")):
        names = [name for name in names if not name.startswith("tests/peers")]
    for some, where in ((names, "0"), (simulated, "1")):
        command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-n", "0", *some]
        env = os.environ | {"NUMBA_ENABLE_CUDASIM": where}
        found = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
        assert found.returncode == 0, found.stdout + found.stderr
        assert all(name in found.stdout for name in some)


def test_what_the_tests_are_copied_with():
    """Everything tracked that a test could need: or each fault would be caught by its absence."""
    command = ["git", "ls-tree", "-d", "--name-only", "HEAD"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if found.returncode:
        pytest.skip("no checkout of git")
    assert set(found.stdout.split()) - {".ci", ".github"} == set(FOLDERS)
