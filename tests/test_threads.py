"""Threads and forks do no harm, under the threading layer that forgives least."""

import os
import subprocess
import sys

CODE = """
import os, threading
import numpy as np
import npquant as nq

x = np.random.default_rng(0).normal(size=1 << 18).astype(np.float32)
expected = nq.fake_quantize_per_tensor_affine(x, 0.1, 0, -8, 7)
wrong = []

def work():
    for _ in range(20):
        y = nq.fake_quantize_per_tensor_affine(x, 0.1, 0, -8, 7)
        if not np.array_equal(y, expected):
            wrong.append(y)

threads = [threading.Thread(target=work) for _ in range(8)]
for t in threads:
    t.start()
for t in threads:
    t.join()
child = os.fork()
if child == 0:
    work()
    os._exit(len(wrong))
assert os.waitpid(child, 0)[1] == 0
assert not wrong
print("done")
"""


def test_threads_and_a_fork_under_workqueue():
    """Two of its parallel regions at once would end the process."""
    env = os.environ | {"NUMBA_THREADING_LAYER": "workqueue", "NUMBA_NUM_THREADS": "2"}
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", CODE], env=env, text=True,
                         capture_output=True, check=False)  # fmt: skip
    assert (run.returncode, run.stdout) == (0, "done\n"), run.stderr
