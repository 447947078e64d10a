"""Do the tests fail when the package is wrong? One deliberate fault after another, in a copy of it.

    python tests/mutation/mutate.py                # all of them
    python tests/mutation/mutate.py --only NaN     # those whose file or description has this in it
    python tests/mutation/mutate.py --sample 9 --first   # some at random, quickly

For each fault of `faults.py`, a temporary copy of the package gets it, and the default tests run
with `-x`: first those most likely to fail, then, if they pass, all of them. A fault that no test
notices survives, and then a test is missing. The unharmed copy must pass the first ones, or nothing
would be learned from a failure. The working tree is left alone. Most of the time one core compiles:
`--jobs 2` asks two faults at a time, each in a copy of its own.
"""

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue

from faults import FAULTS, SIMULATED
from tqdm import tqdm

ROOT = Path(__file__).parents[2]

#: What the tests need beside them.
FOLDERS = ("npquant", "tests", "docs", "examples", "asv_benchmarks")

#: How pytest ends where every test that was asked for is deselected.
NONE_RAN = 5

#: Seconds after which a run is taken to hang, which a fault may well do.
PATIENCE = 1800


class Copy:
    """The package and its tests in a directory of their own."""

    def __init__(self, place):
        self.place = Path(place)
        # Not the test of the faults: it would see that the package has one.
        ignore = shutil.ignore_patterns("__pycache__", "mutation")
        for name in FOLDERS:
            shutil.copytree(ROOT / name, self.place / name, ignore=ignore)
        for name in ("pyproject.toml", "README.md"):
            shutil.copy(ROOT / name, self.place)

    def passes(self, *args):
        """Whether these tests pass here, of which all or none are of the simulator.

        Kernels that other faults left as they are need not be compiled anew: the cache is of the
        sources that they were made of.
        """
        environment = os.environ | {
            "PYTHONPATH": str(self.place),
            "NUMBA_CACHE_DIR": str(self.place / "numba-cache"),
            "NUMBA_ENABLE_CUDASIM": str(int(any(a.startswith(SIMULATED) for a in args))),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *args]
        try:
            run = subprocess.run(command, cwd=self.place, env=environment, timeout=PATIENCE,
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip
        except subprocess.TimeoutExpired:
            return False
        if run.returncode > 1 or run.returncode < 0:
            # Not a failed test: an import that fails, or a crash, catches a fault as well. But
            # tests that are not there would catch every one.
            text = run.stdout.decode()
            if run.returncode == NONE_RAN or "not found:" in text:
                sys.exit(f"there are no such tests: {' '.join(args)}\n{text}")
        return run.returncode == 0


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="faults with this in their file or description")
    parser.add_argument("--sample", type=int, help="this many of them, at random")
    parser.add_argument("--seed", type=int, help="draw the same again")
    parser.add_argument("--first", action="store_true", help="ask the first tests alone")
    parser.add_argument("--trust", action="store_true", help="do not try the unharmed copy")
    parser.add_argument("--jobs", type=int, default=1, help="so many faults at a time")
    options = parser.parse_args(argv)
    chosen = [f for f in FAULTS if options.only in f"{f.file}: {f.why}"]
    if not chosen:
        parser.error(f"no fault has {options.only!r} in its file or description")
    if options.sample is not None:
        seed = random.randrange(10**6) if options.seed is None else options.seed
        print(f"seed {seed}")
        chosen = random.Random(seed).sample(chosen, min(options.sample, len(chosen)))

    for fault in FAULTS:  # all of them, whatever is chosen: the list shall not rot
        times = (ROOT / "npquant" / fault.file).read_text().count(fault.old)
        if times != 1 or fault.old == fault.new:
            sys.exit(f"{fault.file} has this {times} times: {fault.old!r}")

    copies = SimpleQueue()

    def survives(fault):
        copy = copies.get()
        file = copy.place / "npquant" / fault.file
        right = file.read_text()
        file.write_text(right.replace(fault.old, fault.new))
        try:
            return copy.passes("-n", "0", *fault.first) and (options.first or copy.passes())
        finally:
            file.write_text(right)
            copies.put(copy)

    survivors = []
    with ExitStack() as stack:
        for _ in range(options.jobs):
            copy = Copy(stack.enter_context(tempfile.TemporaryDirectory()))
            copies.put(copy)
        asked = dict.fromkeys(test for fault in chosen for test in fault.first)
        there = [test for test in asked if test.startswith(SIMULATED)]
        here = [test for test in asked if test not in there]
        for some in () if options.trust else (here, there):
            if some and not copy.passes("-n", "2", *some):
                sys.exit("the tests fail without any fault")
        pool = stack.enter_context(ThreadPoolExecutor(options.jobs))
        asked = zip(chosen, pool.map(survives, chosen), strict=True)
        for fault, survived in tqdm(asked, total=len(chosen), unit="fault"):
            if survived:
                survivors.append(fault)
                tqdm.write(f"survives: {fault.file}: {fault.why}")
    print(f"caught {len(chosen) - len(survivors)} of {len(chosen)}")
    for fault in survivors:
        print(
            f"survived: {fault.file}: {fault.why}: {fault.old.strip()!r} -> {fault.new.strip()!r}"
        )
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
