"""Forked processes compute, whatever their parent and its threads have done."""

import pytest

from scenarios import FEW_OPS, LAYERS, run


def test_forks_after_a_parallel_kernel():
    """OpenMP kills a forked child that opens a parallel region."""
    run("fork,pools,threads_and_forks", "omp", 0.5, FEW_OPS)


def test_forks_under_workqueue():
    run("fork", "workqueue", 0, FEW_OPS)


@pytest.mark.soak
@pytest.mark.parametrize("layer", LAYERS)
def test_forks_and_every_op(layer):
    run("fork,pools,servers", layer, timeout=600)


@pytest.mark.soak
@pytest.mark.parametrize("layer", LAYERS)
def test_forks_while_threads_compile(layer, tmp_path):
    """A child would wait forever for the compiler's lock."""
    run("threads_and_forks", layer, 10, FEW_OPS, NUMBA_CACHE_DIR=str(tmp_path))
