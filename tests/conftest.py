"""Settings of the test run: peers and CUDA are tested where they are installed."""

import os
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import settings

settings.register_profile("npquant", deadline=None, derandomize=True, max_examples=50)
#: --hypothesis-profile=long: more of them, and others each time.
settings.register_profile("long", deadline=None, max_examples=500)
settings.load_profile("npquant")

#: What tests/peers and tests/exhaustive import. The extra `peers` installs them; .ci/run fails if
#: one is missing.
PEERS = ("torch", "onnx", "onnxruntime")

#: What tests/cuda and test_cuda*.py import: the extra `test-cuda`, that .ci/run asks for as well.
CUDA = ("numba_cuda",)


@pytest.fixture(autouse=True, scope="session")
def _threads_are_always_asked():
    """Or what is tested in threads would now and then be computed by one alone."""
    from npquant.cpu import target

    target.ALONE = 0


@pytest.fixture
def one_thread():
    """Kernels are computed by one thread: the parallel form of one takes seconds to compile."""
    import numba

    before = numba.get_num_threads()
    numba.set_num_threads(1)
    yield
    numba.set_num_threads(before)


@pytest.fixture
def repeated_at_once(monkeypatch):
    """On a GPU the second of equal calls is what the first has come to, and not the fourth."""
    from npquant.cuda import again

    monkeypatch.setattr(again, "FIRST", 0)
    monkeypatch.setattr(again, "ALIKE", 1)


@pytest.fixture
def in_segments(monkeypatch):
    """What threads do, without compiling it: from `in_segments(length)` on, segments in any order.

    It returns a list, to which the name and the begin of each segment are added.
    """
    import numpy as np

    from npquant.cpu.target import Kernel

    whole, rng, begins = Kernel.__call__, np.random.default_rng(0), []

    def cut(length):
        def call(self, n, size, args, key, grain=None):
            whole(self, 0, 0, args, key)  # compiles
            for begin in rng.permutation(range(0, n, length)).tolist():
                self.serial[key](begin, min(n, begin + length), *args)
                begins.append((self.name, begin))

        monkeypatch.setattr(Kernel, "__call__", call)
        return begins

    return cut


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave alone the tests of what is missing here; the report's header says what."""
    name, folder = collection_path.name, collection_path.parent.name
    if name in ("peers", "exhaustive"):
        left = bool(_missing(PEERS))
    elif "cuda" in (name, folder):
        where = ["on a GPU"]
        if not name.startswith("test_on_gpu"):
            where.append("in the simulator")
        left = _cuda_runs() not in where
    else:
        # In the simulator nothing is compiled.
        left = name.startswith("test_cuda") and _cuda_runs() in ("", "in the simulator")
    return left or None


@pytest.hookimpl(trylast=True)  # when -m and -k have chosen
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of all tests that would run one in n, the k-th part of them, where TESTS_SLICE is k/n.

    In which part one is depends on its name alone.
    """
    k, _, n = os.environ.get("TESTS_SLICE", "0/1").partition("/")
    chosen = [i for i in items if crc32(i.nodeid.encode()) % int(n) == int(k)]
    if len(chosen) < len(items):
        config.hook.pytest_deselected(items=sorted(set(items) - set(chosen), key=items.index))
        items[:] = chosen


def pytest_report_header() -> list[str]:
    """Say whether the peers are there, and where CUDA kernels run."""
    peers, numba_cuda = (", ".join(_missing(names)) for names in (PEERS, CUDA))
    return [
        f"peers: {'not tested, missing ' + peers if peers else 'tested'}",
        f"cuda: {'not tested, missing ' + numba_cuda if numba_cuda else _HEADER[_cuda_runs()]}",
    ]


_HEADER = {
    "on a GPU": "tested on a GPU, compiled, and in the simulator",
    "in the simulator": "tested in the simulator",
    "nowhere": "tested compiled, and in the simulator",
}


@cache
def _cuda_runs() -> str:
    """Where this process runs CUDA kernels; an empty word if it cannot even compile them."""
    if _missing(CUDA):
        return ""
    from npquant.cuda.target import SIMULATED, cuda

    if SIMULATED:
        return "in the simulator"
    return "on a GPU" if cuda.is_available() else "nowhere"


def _missing(names: tuple[str, ...]) -> list[str]:
    return [name for name in names if find_spec(name) is None]
