"""What is tried in a process of its own: `python scenarios.py NAMES SECONDS OP...`.

Numba chooses its threading layer once a process, and a fault here may end the process. So each
scenario is a function, which the tests run under each layer. Without ops it takes all of them.
"""

import contextlib
import ctypes
import functools
import itertools
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from importlib.metadata import files
from pathlib import Path

import numba
import numpy as np

import npquant as nq
from calls import CALLS, DATA, arguments, axes, fits, results
from npquant.cpu import target

target.ALONE = 0  # or threads that come late would leave nothing to try

#: The part of the seconds that are asked for, and what draws moments: .ci/run sets both.
SHARE, SEED = float(os.environ.get("SOAK_SHARE", "1")), int(os.environ.get("SOAK_SEED", "0"))

#: Larger than PARALLEL_FROM; a row is a channel, a token or a group.
SHAPE = (8, 32768)

#: A kernel takes a second to compile; test_layouts.py needs these, too. The soak tests call
#: every op.
FEW_OPS = ("quantize_per_channel", "choose_qparams", "fake_quant_per_channel_backward")
LAYERS = ("omp", "workqueue", "tbb")


def run(names, layer, seconds=0.0, ops=(), timeout=120, **env):
    """Run scenarios under a threading layer, with two threads: all is right, or this fails."""
    env = os.environ | {"NUMBA_THREADING_LAYER": layer, "NUMBA_NUM_THREADS": "2"} | env
    env["PYTHONPATH"] = os.pathsep.join([str(Path(nq.__file__).parents[1]), *sys.path])
    if layer == "tbb":  # its wheel puts the library where no loader looks
        (library,) = (f.locate() for f in files("tbb") or () if f.name == "libtbb.so.12")
        env["LD_LIBRARY_PATH"] = str(Path(library).resolve().parent)
    # Python 3.12 warns of every fork beside threads.
    python = [sys.executable, "-X", "faulthandler", "-W", "ignore::DeprecationWarning"]
    with subprocess.Popen(
        [*python, __file__, names, str(seconds * SHARE), *ops], env=env, text=True,
        start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)  # it says where it hangs
            out, err = process.communicate()
        finally:  # what it has forked may hang, too
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    # Around it there may be a word of TBB's, that it has not joined its threads before a fork.
    said = [line for line in out.splitlines() if line and not line.startswith("Unable to join")]
    right = process.returncode == 0 and said[-1:] == [f"right {layer}"]
    assert right, f"{out}{process.returncode} {err}"


# --- calls ------------------------------------------------------------------------------------


@functools.cache
def call(name):
    """The arguments of an op on a large array, and its results."""
    shape = SHAPE if fits(name, SHAPE) else (SHAPE[1] * SHAPE[0],)
    kwargs = arguments(name, shape, axes(name, shape)[0])
    return kwargs, results(name, _fresh(kwargs))


def _fresh(kwargs):
    """The same arguments; what the fused ops update is copied."""
    return {k: v if k in DATA or not isinstance(v, np.ndarray) else v.copy()
            for k, v in kwargs.items()}  # fmt: skip


def check(name):
    """Call an op again: the same bits, or this fails."""
    kwargs, expected = call(name)
    for got, wanted in zip(results(name, _fresh(kwargs)), expected, strict=True):
        got, wanted = np.ascontiguousarray(got), np.ascontiguousarray(wanted)
        if got.dtype != wanted.dtype or got.tobytes() != wanted.tobytes():
            raise AssertionError(f"{name} has other bits")


def check_all(names):
    for name in names:
        check(name)


def in_threads(n, work):
    """Run work(i) in n Python threads; raise what the first of them raised."""
    with ThreadPoolExecutor(n) as pool:
        list(pool.map(work, range(n)))


# --- scenarios --------------------------------------------------------------------------------


def threads(seconds, names):
    """Eight threads that call different ops, while their kernels run in parallel."""
    stop = time.monotonic() + seconds

    def work(i):
        names_ = random.Random(8 * SEED + i).sample(names, len(names))
        for name in itertools.cycle(names_):
            check(name)
            if time.monotonic() > stop:
                return

    check_all(names)
    in_threads(8, work)


def compiling_threads(seconds, names):
    """Eight threads that all need the same kernels first: each is compiled once."""
    compiled, compile_ = [], target._compile

    def watched(function, signature, *options):
        compiled.append((function.__name__, signature))
        return compile_(function, signature, *options)

    target._compile = watched
    in_threads(8, lambda _: check_all(names))
    if not compiled or len(set(compiled)) != len(compiled):
        raise AssertionError(compiled)


def _forked(work):
    """Run work() in a forked child; fail if it fails, is killed or hangs."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    stop = time.monotonic() + 20
    while time.monotonic() < stop:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            if status:
                raise AssertionError(f"a forked child ended with the status {status}")
            return
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    raise AssertionError("a forked child hangs")


def fork(seconds, names):
    """After a parallel kernel: os.fork, and a child of a child."""
    check_all(names)
    _forked(lambda: check_all(names))
    _forked(lambda: _forked(lambda: check_all(names)))
    check_all(names)


def pools(seconds, names):
    """After a parallel kernel: pools of four forked processes."""
    check_all(names)
    with multiprocessing.get_context("fork").Pool(4) as pool:
        pool.map(check, names * 4)
    with ProcessPoolExecutor(4, multiprocessing.get_context("fork")) as executor:
        list(executor.map(check, names * 4))
    check_all(names)


def servers(seconds, names):
    """After a parallel kernel: processes of a fork server, which may have npquant already."""
    check_all(names)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["scenarios"])
    with ProcessPoolExecutor(2, context) as executor:
        list(executor.map(check, names * 2))
    check_all(names)


def threads_and_forks(seconds, names):
    """Forks while four threads compute, and compile what no process has compiled before."""
    check_all(names)
    stop, work = threading.Event(), []
    kinds = itertools.product(nq.dtypes.BOUNDS, ["float16", "float32", "float64", "bfloat16"])

    def compute():
        while not stop.is_set():
            check_all(names)

    def compile_():
        for dtype, kind in kinds:
            if stop.is_set():
                return
            nq.quantize_per_tensor(np.ones(3, np.dtype(kind)), 0.1, 0, 0, 1, dtype)

    def child():
        x = np.ones(3, np.float16)
        if nq.convert_element_type(x, np.int8).tolist() != [1, 1, 1]:
            raise AssertionError("a child computes something else")
        check_all(names)

    with ThreadPoolExecutor(5) as pool:
        try:
            work = [pool.submit(f) for f in (compile_, compute, compute, compute, compute)]
            until = time.monotonic() + seconds
            while True:
                _forked(child)
                if time.monotonic() > until:
                    break
        finally:
            stop.set()
    for future in work:
        future.result()


def interrupts(seconds, names):
    """What Ctrl-C raises, at any moment of a call: it arrives, and what follows is right."""
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    rng, until = random.Random(SEED), time.monotonic() + seconds
    check_all(names)
    while True:
        _interrupted(lambda: check_all(names * 1000), rng.uniform(1e-4, 0.02))
        if target._parallel.locked():
            raise AssertionError("no kernel will be parallel any more")
        check_all(names)
        if time.monotonic() > until:
            break
    in_threads(2, lambda _: check_all(names))


def interrupted_compilers(seconds, names):
    """The same while kernels are compiled: the next call compiles them, in any thread."""
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    rng, until = random.Random(SEED), time.monotonic() + seconds
    x = np.arange(4, dtype=np.float32)
    kinds = [nq.dtypes.BOUNDS, ("float16", "float32", "float64", "bfloat16")]
    for dtype, kind in itertools.product(*kinds):
        if time.monotonic() > until:
            return
        data = x.astype(np.dtype(kind))

        def quantized(data=data, dtype=dtype):
            return nq.quantize_per_tensor(data, 1.0, 0, 0, 1, dtype).astype(np.float32).tolist()

        _interrupted(quantized, rng.uniform(1e-3, 0.3), may_end=True)
        for got in (quantized(), *ThreadPoolExecutor(1).map(lambda f: f(), [quantized])):
            if got != [0, 1, 1, 1]:
                raise AssertionError((dtype, kind, got))


def _interrupted(work, after, may_end=False):
    """Run work(), and interrupt it after some seconds, and again if that was lost in a callback."""
    try:
        signal.setitimer(signal.ITIMER_REAL, after, 1)
        work()
    except KeyboardInterrupt:
        return
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    if not may_end:
        raise AssertionError("no interrupt has arrived")


def nested(seconds, names):
    """Calls out of a parallel loop of the user's: in object mode, and by way of a callback."""
    check_all(names)
    count, errors = 4, []

    def one(i):
        try:
            check_all(names)
        except BaseException as error:
            errors.append(error)
        done[i] += 1

    callback = ctypes.CFUNCTYPE(None, ctypes.c_int64)(one)
    done = np.zeros(count, np.int64)

    @numba.njit(parallel=True, nogil=True)
    def called_back(n):
        for i in numba.prange(n):
            callback(i)

    @numba.njit(parallel=True)
    def in_object_mode(n):
        for i in numba.prange(n):
            with numba.objmode():
                one(i)

    called_back(count)
    in_object_mode(count)
    # Numba's workqueue ends a process in which two threads are in parallel loops of the user's.
    if numba.threading_layer() != "workqueue":
        in_threads(4, lambda i: check_all(names) if i % 2 else called_back(count))
        done[:] -= 2
    if errors or (done != 2).any():
        raise AssertionError((errors, done))


def workers(seconds, names):
    """The workers of joblib: threads, processes of its own, and forked ones."""
    import joblib

    import scenarios  # by this name a new process finds it

    check_all(names)
    for backend in ("threading", "loky", "multiprocessing"):
        parallel = joblib.Parallel(n_jobs=4, backend=backend)
        parallel(joblib.delayed(scenarios.check)(name) for name in names * 4)
    check_all(names)


def dask_workers(seconds, names):
    """Arrays of Dask's, whose chunks npquant quantizes in Dask's threads and in its processes."""
    import dask.array

    check_all(names)
    x = np.random.default_rng(0).normal(0, 3, (4 * SHAPE[0], SHAPE[1])).astype(np.float32)
    whole = dask.array.from_array(x, chunks=SHAPE)
    scales, zero_points = np.full(SHAPE[1], 0.1, np.float32), np.zeros(SHAPE[1], np.int32)
    per_channel = (scales, zero_points, 1, -8, 7, np.int8)
    works = [
        (nq.quantize_per_tensor, (0.1, 3, -8, 7, np.int8), np.int8),
        (nq.quantize_per_channel, per_channel, np.int8),
        (nq.fake_quantize_per_tensor_affine, (0.1, 3, -8, 7), np.float32),
    ]
    for op, args, dtype in works:
        expected = op(x, *args)
        chunks = whole.map_blocks(op, *args, dtype=dtype, meta=np.empty((0, 0), dtype))
        # Processes are of `spawn`, and none the more for it: two are enough.
        for scheduler, count in (("threads", 4), ("processes", 2)):
            got = chunks.compute(scheduler=scheduler, num_workers=count)
            if got.dtype != expected.dtype or got.tobytes() != expected.tobytes():
                raise AssertionError(f"{op.__name__} has other bits under {scheduler}")
    delayed = [dask.delayed(check)(name) for name in names * 4]
    dask.compute(*delayed, scheduler="threads", num_workers=4)
    check_all(names)


SCENARIOS = (
    threads, compiling_threads, nested, interrupts, interrupted_compilers, workers, dask_workers,
    fork, pools, servers, threads_and_forks,
)  # fmt: skip


def main(names, seconds, *ops):
    """Run scenarios one after the other, and say under which layer they were right."""
    known = {scenario.__name__: scenario for scenario in SCENARIOS}
    for name in names.split(","):
        known[name](float(seconds), list(ops) or list(CALLS))
    numba.get_num_threads()  # chooses the layer, if no array was large
    print("right", numba.threading_layer())


if __name__ == "__main__":
    main(*sys.argv[1:])
