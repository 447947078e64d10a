"""Every kernel of the CPU beside its CUDA twin: the same arguments, every bit, in place too."""

import ml_dtypes
import numpy as np
import pytest

import every_kernel
from calls import CALLS
from every_kernel import EVERYTHING, NUMPYS, OPTIMIZERS
from layouts import LAYOUTS
from twins import Both, installed

SOME = ("Fortran", "reversed", "every second", "unaligned")
by_layout = pytest.mark.parametrize(
    "layout", [pytest.param(k, marks=() if k == "unaligned" else pytest.mark.full) for k in SOME]
)

#: float32 is what all other tests take.
DTYPES = (np.float16, ml_dtypes.bfloat16, np.float64)


@pytest.fixture(autouse=True)
def both():
    """The CPU's kernels, each followed by its twin and a comparison."""
    both = Both()
    with installed(both):
        yield
    assert both.called


@pytest.mark.parametrize("what", [name for name in EVERYTHING if name not in NUMPYS])
def test_kernels(what):
    EVERYTHING[what]()


@by_layout
@pytest.mark.parametrize("name", CALLS)
def test_layouts(name, layout):
    every_kernel.op(name, lay=LAYOUTS[layout])


@by_layout
@pytest.mark.parametrize("rule", OPTIMIZERS)
def test_layouts_of_optimizers(rule, layout):
    every_kernel.optimizer(OPTIMIZERS[rule], lay=LAYOUTS[layout])


@pytest.mark.parametrize("layout", ["Fortran", "every second"])
@pytest.mark.parametrize("rule", OPTIMIZERS)
def test_float64_of_optimizers(rule, layout):
    every_kernel.optimizer(OPTIMIZERS[rule], np.float64, LAYOUTS[layout])


@pytest.mark.parametrize(
    "dtype",
    [
        pytest.param(d, id=np.dtype(d).name, marks=() if d is np.float16 else pytest.mark.full)
        for d in DTYPES
    ],
)
@pytest.mark.parametrize("name", [name for name in CALLS if name != "determine_qparams"])
def test_dtypes(name, dtype):
    every_kernel.op(name, dtype)
