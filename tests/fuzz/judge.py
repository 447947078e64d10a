"""What is wrong with what came of a case."""

import re

import numpy as np

import npquant as nq
import oracle
from calls import NEAR, STATE
from cases import assert_same
from fuzz.draw import described


def complaint(case):
    """What is wrong with this call; None if nothing is. NumPy's warnings must be errors."""
    before = {key: memory.copy() for key, memory in case.memory.items()}
    try:
        got = getattr(nq, case.name)(**case.kwargs)
    except (TypeError, ValueError) as error:
        return _refused(case, error) or _written(case, before)
    except Exception as error:
        return f"raised {error!r}"
    if case.wrong:
        return f"took a wrong {' or '.join(sorted(case.wrong))}"
    if case.unsure:
        return None
    out = case.kwargs.get("out")
    if out is not None and got is not out:
        return "returned another array than `out`"
    got = list(got) if isinstance(got, tuple) else [got]
    fused = case.name.startswith("fused")
    got += [case.kwargs[key] for key in STATE] if fused else []
    try:
        assert_same(tuple(np.asarray(y) for y in got), expected(case), case.name)
    except AssertionError as error:
        return f"differs from the oracle: {error}"
    written = ({"out"} if out is not None else set()) | (set(STATE) if fused else set())
    return _written(case, before, written)


def expected(case):
    """The results, and then the arrays that were updated in place."""
    plain = {key: value for key, value in case.plain.items() if key != "out"}
    if case.name in NEAR:  # its own bits for arrays in C order: how near they are is tested there
        got = getattr(nq, case.name)(**plain)
        return got if isinstance(got, tuple) else (got,)
    judge = getattr(oracle, case.name)
    with np.errstate(all="ignore"):
        if not case.name.startswith("fused"):
            got = judge(**plain)
            return got if isinstance(got, tuple) else (got,)
        # PyTorch observes the first axis alone.
        axis = plain["ch_axis"] if plain["per_row_fake_quant"] else 0
        x = np.moveaxis(plain["input"], axis, 0)
        got = judge(**plain | {"input": x, "ch_axis": 0})
    got = got if isinstance(got, tuple) else (got,)
    return *(np.moveaxis(y, 0, axis) for y in got), *(plain[key] for key in STATE)


def _refused(case, error):
    """What is wrong with an error."""
    names = case.wrong | case.unsure
    if not names:
        return f"refused a right call: {error!r}"
    names |= case.named
    if re.search(rf"\b({'|'.join(sorted(names))})\b", str(error)):
        return None
    return f"does not name {' or '.join(sorted(names))}: {error!r}"


def _written(case, before, written=()):
    """Which arguments have changed: none of them may, but the elements of those to be `written`."""
    for key in written:
        memory = case.memory.get(key)
        if memory is None:
            continue
        # What was there, with the elements that now are: nothing beside these may be other.
        y = case.kwargs[key]
        start = y.__array_interface__["data"][0] - memory.__array_interface__["data"][0]
        for other, old in before.items():
            if case.memory[other] is memory and y.size:
                np.ndarray(y.shape, y.dtype, old.data, start, y.strides)[...] = y
    for key, memory in case.memory.items():
        if before[key].tobytes() != memory.tobytes():
            return f"wrote to {key}, or beside it"
    return None


def report(case):
    """The call, an argument a line."""
    lines = [f"  {key} = {described(value)}" for key, value in case.kwargs.items()]
    return "\n".join((case.name, *lines, f"  wrong: {sorted(case.wrong)}"))
