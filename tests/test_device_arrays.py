"""Arrays on a GPU without what they need: an error that says so, and only when one is met."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

import npquant as nq
from npquant.modules import MinMaxObserver


class OnGPU:
    """What any library's array on a GPU shows."""

    __cuda_array_interface__ = {  # noqa: RUF012 (an attribute, as libraries have it)
        "shape": (3,), "typestr": "<f4", "data": (4096, False), "version": 3, "strides": None,
    }  # fmt: skip


WITHOUT_NUMBA_CUDA = """
import sys
sys.meta_path[:] = [f for f in sys.meta_path if type(f).__name__ != "NumbaCudaFinder"]
sys.modules.update(dict.fromkeys(("numba_cuda", {}), None))
sys.path.insert(0, {!r})
import numpy as np
import npquant as nq
from test_device_arrays import OnGPU
try:
    {}
except (ModuleNotFoundError, AttributeError) as error:
    print(error)
"""


@pytest.mark.parametrize("missing", ["cuda", "numba.cuda"])
@pytest.mark.parametrize(
    ("use", "words"),
    [
        ("import npquant.cuda", ""),
        ("nq.cuda.to_device", "npquant.cuda cannot be imported: "),
        (
            "nq.quantize_per_tensor(OnGPU(), 0.1, 0, -128, 127, np.int8)",
            "input is an array on a GPU: ",
        ),
    ],
)
def test_numba_cuda_is_missing(missing, use, words):
    """As where the extras are not installed, with Numba's own numba.cuda or without any."""
    code = WITHOUT_NUMBA_CUDA.format(repr(missing), str(Path(__file__).parent), use)
    env = os.environ | {"NUMBA_ENABLE_CUDASIM": "0"}
    command = [sys.executable, "-W", "ignore", "-c", code]
    got = subprocess.run(command, capture_output=True, text=True, env=env, check=True)
    assert got.stdout.startswith(words + "npquant.cuda needs numba-cuda: pip install '.[cuda")
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    extras = re.findall(r"'\.\[(\w+)\]'", got.stdout)
    assert extras == ["cuda13", "cuda12"]
    assert set(extras) <= project["optional-dependencies"].keys()
    page = (Path(__file__).parents[1] / "docs" / "cuda.md").read_text()
    assert f"pip install '.[{extras[0]}]'" in page, "as long as nothing is released"


def test_managed_memory_is_numpys():
    """Numba's arrays there are both: NumPy's, and with the signs of one on a GPU."""

    class Managed(np.ndarray):
        __cuda_ndarray__ = True

    v, weight = np.linspace(0.5, 2, 4, dtype=np.float32), np.array([1.5], np.float32)
    for x, w in ((v.view(Managed), 1.5), (v, weight.view(Managed))):
        found = nq.adaround_regularizer_backward(x, 2.0, w)
        assert type(found) is np.ndarray
        assert (found == nq.adaround_regularizer_backward(v, 2.0, 1.5)).all()
    observer = MinMaxObserver()
    observer.min_val, observer.max_val = (np.array(v, np.float32).view(Managed) for v in (-1, 2))
    scale, _ = observer.calculate_qparams()
    assert (type(scale), scale[0]) == (np.ndarray, np.float32(3 / 255))


def test_an_array_of_the_host_is_none():
    """A tensor of PyTorch on the CPU, and any other object, are refused as ever."""

    class Tensor:
        is_cuda = False
        __dlpack_device__ = staticmethod(lambda: (1, 0))

    for value in (Tensor(), object(), "text"):
        with pytest.raises(TypeError, match="input must be"):
            nq.quantize_per_tensor(value, 0.1, 0, -128, 127, np.int8)
