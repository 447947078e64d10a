"""Steps of the optimizers on the simulated device: the bits of the CPU's."""

import numpy as np
import pytest
from numba import config

if not config.ENABLE_CUDASIM:
    pytest.skip("needs the simulator: NUMBA_ENABLE_CUDASIM=1", allow_module_level=True)

from simulated import both

from npquant import cpu
from npquant.cuda import optim

#: The numbers of each, and how many arrays it updates.
STEPS = {
    "sgd": ((0.1, 0.0), 1),
    "sgd_decayed": ((0.1, 0.01), 1),
    "sgd_momentum": ((0.1, 0.0, 0.9), 2),
    "sgd_momentum_decayed": ((0.1, 0.01, 0.9), 2),
    "adam": ((0.1, 0.999, 0.001, -0.01, 0.5, 1e-8), 3),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "lay", [np.copy, lambda x: x.copy().T, lambda x: np.repeat(x, 2, 1)[:, ::2]]
)
@pytest.mark.parametrize("name", STEPS)
def test_steps(name, lay, dtype):
    numbers, several = STEPS[name]
    r = np.random.default_rng(0)
    gradient, *arrays = (lay(r.normal(size=(7, 23)).astype(dtype)) for _ in range(1 + several))
    arrays[-1][...] = np.abs(arrays[-1])  # the mean of squares
    call = lambda kernel, inputs, outputs: kernel(*inputs, tuple(outputs), numbers)
    both(getattr(cpu.optim, name), getattr(optim, name), [gradient], arrays, call)
