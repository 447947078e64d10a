"""Threads, parallel loops of the user's and interrupts do no harm, under any threading layer."""

import os
import signal
import subprocess
import sys
import threading
import warnings

import ml_dtypes
import numba
import numpy as np
import pytest
from numba.core.caching import NullCache

import npquant
from calls import CALLS, arguments, results
from npquant import cpu
from npquant.cpu import target
from scenarios import FEW_OPS, LAYERS, run


@pytest.mark.parametrize("layer", LAYERS[:2])
def test_threads(layer):
    run("threads,nested,interrupts", layer, 0.5, FEW_OPS)


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
    run("compiling_threads,interrupted_compilers,interrupts", layer, 10, FEW_OPS, **cache)


# --- in this process --------------------------------------------------------------------------


#: Of 320 KiB, of which CPython takes a part.
ON_A_SMALL_STACK = """
import threading
import numpy as np
import npquant as nq
x = np.random.default_rng(0).normal(size=(70, 4096)).astype(np.float32)
scale, zero_point = np.full(4096, 0.3, np.float32), np.zeros(4096, np.float32)
def gradients():
    found.append(nq.fake_quantize_learnable_per_channel_affine_backward(
        x, x, scale, zero_point, 1, -8, 7))
found = []
gradients()
threading.stack_size(320 << 10)
thread = threading.Thread(target=gradients)
thread.start()
thread.join()
(y, *sums), (v, *others) = found
assert all(map(np.array_equal, (y, *sums), (v, *others)))
print("done")
"""


def test_a_small_stack():
    """Lanes of thousands of channels are not on it."""
    done = subprocess.run([sys.executable, "-c", ON_A_SMALL_STACK], capture_output=True, text=True)
    assert done.stdout == "done\n", (done.returncode, done.stderr)


#: And of 64 KiB, which are not enough for LLVM.
COMPILED_WHERE_STACKS_ARE_SMALL = """
import threading
import numpy as np
import npquant as nq
threading.stack_size(64 << 10)
nq.adaround_regularizer(np.ones(3, np.float32), 2.0)
assert threading.stack_size() == 64 << 10
print("done")
"""


def test_kernels_are_compiled_on_a_stack_that_is_large(tmp_path):
    """However small those of new threads are, of which one compiles for the main thread."""
    command, env = [sys.executable, "-c", COMPILED_WHERE_STACKS_ARE_SMALL], dict(os.environ)
    env["NUMBA_CACHE_DIR"] = str(tmp_path)
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    assert done.stdout == "done\n", (done.returncode, done.stderr)


def test_no_call_changes_what_becomes_of_warnings(monkeypatch):
    """That is one list for all threads: what two of them put back in turn would stay changed."""
    x = np.ones(3, np.float32)

    def calls():
        for name in CALLS:
            results(name, arguments(name, (8,) if name == "determine_qparams" else (6, 8)))
        for dtype in (bool, "?", float, "<f4", int, "i1", ml_dtypes.bfloat16):
            npquant.convert_element_type(x, dtype)
            npquant.ArraySpec((3,), dtype)
        with pytest.raises(TypeError, match="dtype must be one of"):
            npquant.quantize_per_tensor(x, 1.0, 0, -8, 7, "U")

    calls()  # as Numba changes it while it compiles
    with monkeypatch.context() as patch:
        for change in ("catch_warnings", "filterwarnings", "simplefilter"):
            patch.setattr(warnings, change, None)
        calls()


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


# --- segments -----------------------------------------------------------------------------------


def _marks(begin, end, fails, marks):
    if fails <= begin:
        raise MemoryError
    for i in range(begin, end):
        marks[i] += end - begin


compiled = pytest.mark.skipif(target.DISABLE_JIT, reason="there are no threads without the JIT")


@compiled
@pytest.mark.parametrize(("n", "grain"), [(1, 1), (1, 7), (7, 7), (8, 7), (1000, 7), (3, 1)])
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_every_item_is_in_one_segment(monkeypatch, n, grain, threads):
    monkeypatch.setattr(target, "threads", lambda: threads)
    kernel = target.Kernel(_marks, "marks", _types_of_marks)
    marks = np.zeros(n + 1, np.int32)
    kernel(n, target.PARALLEL_FROM, (n, marks), ("marks",), grain)
    whole, rest = divmod(n, grain) if threads > 1 else (0, n)
    lengths = [grain] * (whole * grain) + [rest] * rest
    np.testing.assert_array_equal(marks, [*lengths, 0])


def _waits(begin, end, spins, marks, spun):
    """The first segment waits for all others, but not forever."""
    done = 0
    while begin == 0 and done < marks.size - end and spun[0] < spins:
        spun[0] += 1
        done = 0
        for i in range(end, marks.size):
            done += marks[i]
    for i in range(begin, end):
        marks[i] = 1


@compiled
def test_no_segment_waits_for_a_thread_that_is_slow():
    """Those of its share that it has not begun are done by others."""
    if min(target.threads(), numba.config.NUMBA_DEFAULT_NUM_THREADS) == 1:
        pytest.skip("there is no other thread, or no processor for it")
    ints = target.array_type(np.dtype(np.int32))
    kernel = target.Kernel(_waits, "waits", lambda key: (target.types.intp, ints, ints))
    marks, spun, spins = np.zeros(1000, np.int32), np.zeros(1, np.int32), 10**7
    kernel(1000, target.PARALLEL_FROM, (spins, marks, spun), ("waits",), 10)
    assert marks.all()
    assert spun[0] < spins


def _delays(begin, end, spins, marks, spun):
    """The first of 100 segments waits for all others, and these until it has begun."""
    marks[begin] = 1
    last, done = 100 if begin == 0 else 1, 0
    while done < last and spun[0] < spins:
        spun[0] += 1
        done = 0
        for i in range(last):
            done += marks[i]


def _meets(begin, end, spins, marks, spun):
    """Each of two segments waits until both have begun, but not forever."""
    marks[begin] = 1
    while marks[0] + marks[1] < 2 and spun[begin] < spins:
        spun[begin] += 1


@compiled
@pytest.mark.parametrize(("segment", "n", "vain"), [(_delays, 100, True), (_meets, 2, False)])
def test_whether_other_threads_were_of_use(segment, n, vain):
    """They are not where one does 99 of 100 segments; they are where each does one of two."""
    if min(target.threads(), numba.config.NUMBA_DEFAULT_NUM_THREADS) == 1:
        pytest.skip("there is no other thread, or no processor for it")
    ints = target.array_type(np.dtype(np.int32))
    kernel = target.Kernel(segment, segment.__name__, lambda key: (target.types.intp, ints, ints))
    spread, loop, entry = kernel.parallel["key",]
    marks, spun = np.zeros(n, np.int32), np.zeros(2, np.int32)
    assert spread(loop, 2, entry, n, 1, (2 * 10**9, marks, spun)) == vain
    assert spun.max() < 2 * 10**9


def test_threads_that_came_too_late_are_left_alone_for_a_while(monkeypatch):
    """Once they cost more than they saved; and then they are asked again."""
    clock, calls = [0], []  # in parts of a second that are exact: 1024

    def in_threads(*args):
        ((took, vain),) = args[-1]
        calls.append("threads")
        clock[0] += took
        return vain

    monkeypatch.setattr(target, "ALONE", 8)
    monkeypatch.setattr(target, "_alone_until", 0.0)
    monkeypatch.setattr(target, "_saved", 0.0)
    monkeypatch.setattr(target, "threads", lambda: 2)
    monkeypatch.setattr(target, "perf_counter", lambda: clock[0] / 1024)
    kernel = target.Kernel(_marks, "marks", _types_of_marks)
    kernel.serial["key",] = lambda *args: calls.append("one")
    kernel.parallel["key",] = in_threads, None, None

    def call(at, *how):
        clock[0] = at
        kernel(100, target.PARALLEL_FROM, (how,), ("key",))
        return calls.pop()

    assert call(1000, 3, False) == "threads"
    assert call(1003, 2, True) == "threads"  # of 3 saved 1 is left
    assert call(1005, 3, True) == "threads"  # none; until 1008: then 24
    assert call(1008, 3, False) == "one"
    assert call(1031, 3, False) == "one"
    assert call(1032, 500, False) == "threads"  # until 1532: 64 saved
    assert call(1532, 65, True) == "threads"  # until 1597: then 256
    assert call(1852, 3, False) == "one"
    assert call(1853, 3, True) == "threads"  # none were saved; until 1856: then 24
    assert call(1879, 3, False) == "one"
    assert call(1880, 3, False) == "threads"
    assert not calls


@compiled
@pytest.mark.parametrize("threads", [1, 2])
def test_what_a_segment_raises(monkeypatch, threads):
    """There is one error that a kernel can have: no memory for what lies between."""
    monkeypatch.setattr(target, "threads", lambda: threads)
    kernel = target.Kernel(_marks, "marks", _types_of_marks)
    marks = np.zeros(100, np.int32)
    with pytest.raises(MemoryError):
        kernel(100, target.PARALLEL_FROM, (50 if threads > 1 else 0, marks), ("marks",), 10)
    assert not target._parallel.locked()


@compiled
@pytest.mark.parametrize("name", ["adaround_init", "adaround_regularizer"])
def test_steps_count_no_references(name, monkeypatch):
    """All threads share the count: they would wait for one another at every strip."""
    getattr(npquant, name)(np.ones(target.GRAIN, np.float32), 2.0)
    kernel = getattr(cpu, name)
    kernel = kernel._kernel if name.endswith("regularizer") else kernel.__self__._runs
    monkeypatch.setattr(target.cache, "of", lambda function: NullCache())  # it keeps no text
    # Other tests may have had every second element, which rooms are made of.
    keys = [key for key in kernel._code if key[0] == np.dtype(np.float32)]
    assert keys
    for key in keys:
        code = kernel._compile(key)
        _, _, body = code.library.get_llvm_str().partition(f"@{code.fndesc.llvm_func_name}(")
        body, end, _ = body.partition("\n}")
        assert end
        assert "NRT_incref" not in body


def _types_of_marks(key):
    return target.types.intp, target.array_type(np.dtype(np.int32))
