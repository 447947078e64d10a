"""Threads, parallel loops of the user's and interrupts do no harm, under any threading layer."""

import os
import signal
import threading

import numba
import pytest

from npquant.cpu import target
from scenarios import run

#: A parallel kernel takes seconds to compile; test_layouts.py needs these, too. The soak tests call
#: every op.
FEW = ("quantize_per_channel", "choose_qparams", "fake_quant_per_channel_backward")
LAYERS = ("omp", "workqueue", "tbb")


@pytest.mark.parametrize("layer", LAYERS[:2])
def test_threads(layer):
    run("threads,nested,interrupts", layer, 0.5, FEW)


@pytest.mark.soak
@pytest.mark.parametrize("layer", LAYERS)
def test_every_op_in_threads(layer):
    run("threads", layer, 30, timeout=600)


@pytest.mark.soak
@pytest.mark.parametrize("layer", LAYERS)
def test_every_op_in_workers(layer):
    """Of a parallel loop, of joblib and of Dask: threads and processes."""
    run("nested,workers,dask_workers", layer, timeout=600)


@pytest.mark.soak
@pytest.mark.parametrize("layer", LAYERS)
def test_threads_and_interrupts_before_anything_is_compiled(layer, tmp_path):
    cache = {"NUMBA_CACHE_DIR": str(tmp_path)}
    run("compiling_threads,interrupted_compilers,interrupts", layer, 10, FEW, **cache)


# --- in this process --------------------------------------------------------------------------


def test_numba_is_asked_for_its_threads_without_a_lock(monkeypatch):
    """Numba's function has one that an interrupt can leave locked; the next thread would hang."""
    before = target.threads()
    monkeypatch.setattr(numba, "get_num_threads", pytest.fail)
    assert target.threads() == before
    numba.set_num_threads(1)
    try:
        assert target.threads() == 1
    finally:
        numba.set_num_threads(before)


def test_threads_that_need_a_kernel_compile_it_once():
    compiled, entries, barrier = [], {}, threading.Barrier(4)

    def compile_(key):
        compiled.append(key)
        return f"entry of {key}"

    def work():
        barrier.wait()
        got.append(target._once(entries, "key", compile_))

    got = []
    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert (compiled, got) == (["key"], ["entry of key"] * 4)


def test_the_compiler_is_not_interrupted():
    """The interrupt arrives at once; the kernel is there for the next call."""
    entries, go_on = {}, threading.Event()

    def compile_(key):
        # Again if need be: Python misses one that comes just before it begins to wait.
        for _ in range(10):
            os.kill(os.getpid(), signal.SIGINT)
            if go_on.wait(6):
                return "entry"
        raise AssertionError("the interrupt did not arrive")

    # A shell starts what runs in its background with interrupts ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            target._once(entries, "key", compile_)
    finally:
        signal.signal(signal.SIGINT, before)
    assert not entries
    go_on.set()
    assert target._once(entries, "key", pytest.fail) == "entry"


def test_what_the_compiler_raises():
    def compile_(key):
        raise ZeroDivisionError(key)

    with pytest.raises(ZeroDivisionError, match="key"):
        target._once({}, "key", compile_)


def test_a_call_out_of_the_compiler():
    """The thread that holds the compiler's lock would wait for another that compiles."""
    with target.global_compiler_lock:
        assert target._once({}, "key", lambda key: threading.current_thread()) is (
            threading.main_thread()
        )


def test_no_thread_can_be_started(monkeypatch):
    """When the interpreter ends, or there are too many."""

    def refuse(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert target._once({}, "key", lambda key: "entry") == "entry"
