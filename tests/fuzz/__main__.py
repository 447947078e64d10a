"""Calls at random, by the million: each is right, or an error that names what is wrong.

    PYTHONPATH=tests python -m fuzz                          # a million cases, seed 0
    PYTHONPATH=tests python -m fuzz --first 500000 --count 500000
    PYTHONPATH=tests python -m fuzz --seed 3 --first 77 --count 1      # one of them, told in full
    PYTHONPATH=tests python -m fuzz --large                  # as if all arrays were large
    PYTHONPATH=tests python -m fuzz --long --count 100000    # arrays as long as those in use

A case is made of the seed and its number alone, so a run may be cut into several, on as many
machines. `--state` names a file that remembers how far a run has come, and goes on from there.
"""

import argparse
import faulthandler
import json
import platform
import sys
import time
import warnings
from collections import Counter
from pathlib import Path

import ml_dtypes
import numba
import numpy as np
from tqdm import tqdm

import npquant as nq
from fuzz.generate import MANY, NAMES, case
from fuzz.judge import complaint, report
from fuzz.large import as_if_large

#: Cases between two entries in the file of --state; a case that takes longer than this many seconds
#: hangs, and is told with the stack.
STEP, PATIENCE = 1000, 600


def main(argv=None):
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="the number of the first case")
    parser.add_argument("--count", type=int, default=1_000_000, help="how many cases")
    parser.add_argument("--few", action="store_true", help="few dtypes, which compile soon")
    parser.add_argument("--large", action="store_true", help="as if all arrays were large")
    parser.add_argument("--long", action="store_true", help="arrays as long as those in use")
    parser.add_argument("--state", type=Path, help="remember how far it came, and go on there")
    options = parser.parse_args(argv)
    if options.first < 0 or options.count < 1 or options.seed < 0:
        parser.error("--first and --seed must not be negative, --count must be positive")

    if options.large:
        as_if_large()
    run = [options.seed, options.first, options.count, options.few, options.large, options.long]
    state = {"run": run, "next": options.first, "wrong": 0, "found": []}
    if options.state and options.state.exists():
        state = json.loads(options.state.read_text())
        if state["run"] != run:
            parser.error(f"--state is of another run: {state['run']}")
    warnings.simplefilter("error")  # NumPy's are failures

    began, last = time.monotonic(), options.first + options.count
    for first in tqdm(range(state["next"], last, STEP), unit="k"):
        faulthandler.dump_traceback_later(PATIENCE, exit=True)
        stop = min(first + STEP, last)
        for index in range(first, stop):
            try:
                drawn = case(options.seed, index, every_dtype=not options.few, long=options.long)
            except Exception as error:
                state["found"].append(f"no call was drawn: {error!r}")
                tqdm.write(f"case {index}: {state['found'][-1]}")
                continue
            state["wrong"] += bool(drawn.wrong)
            said = complaint(drawn)
            if said or options.count == 1:
                tqdm.write(f"case {index}: {said}\n{report(drawn)}")
            if said:
                state["found"].append(f"{drawn.name}: {said}"[:200])
        state["next"] = stop
        if options.state:
            options.state.write_text(json.dumps(state))
    faulthandler.cancel_dump_traceback_later()

    found = state["found"]
    print(f"npquant {nq.__version__}, numpy {np.__version__}, numba {numba.__version__}, "
          f"ml_dtypes {ml_dtypes.__version__}, Python {platform.python_version()}")  # fmt: skip
    print(f"seed {options.seed}, cases {options.first:,}..{last - 1:,} ({options.count:,}) of "
          f"{len(NAMES)} ops in {1 if options.few else MANY} sets of dtypes each, "
          f"{'as if large, ' if options.large else ''}{'long, ' if options.long else ''}"
          f"{time.monotonic() - began:.0f} s")  # fmt: skip
    print(f"wrong arguments in {state['wrong']:,}; complaints: {len(found)}")
    for said, times in Counter(found).most_common():
        print(f"{times:6d}  {said}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
