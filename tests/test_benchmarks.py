"""The benchmarks: which cells there are, what peers compute, what is judged and written down."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numba
import numpy as np
import pytest

import npquant as nq

sys.path.insert(0, str(Path(nq.__file__).parents[1] / "asv_benchmarks"))
import compare
import first_call
import goals
import revision
import tables
from benchmarks import cases, plain

MATRIX = cases.star(compare.SPECS, whole=True)

#: A plain expression leaves a mask and zero points out, or there is none.
ROUGHLY = (
    "fused_moving_avg_obs_fake_quant_cachemask",
    "choose_qparams_symmetric",
    "choose_qparams_per_token",
    "determine_qparams",
)
ONE_OF_A_GRAIN = "^tensor, transposed|^64 channels, (middle|last)|^token, Fortran|groups of 32"
SMALL = {
    str(case): case
    for spec in cases.SPECS
    if spec.op not in ROUGHLY
    for case in spec.product("", ONE_OF_A_GRAIN, [64])
}


@pytest.fixture(autouse=True)
def _as_it_was():
    """Benchmarks set threads, and switch PyTorch's autograd off: tests beside them need it."""
    torch = importlib.import_module("torch") if importlib.util.find_spec("torch") else None
    before, threads = numba.get_num_threads(), torch and torch.get_num_threads()
    yield
    numba.set_num_threads(before)
    if torch:
        torch.set_grad_enabled(True)
        torch.set_num_threads(threads)


# --- cells ------------------------------------------------------------------------------------


def test_every_op_is_there():
    ops = {name for name in nq.__all__ if name.islower() and callable(getattr(nq, name))}
    assert {spec.op for spec in cases.SPECS} == ops


def test_a_usual_run_is_part_of_the_matrix():
    assert compare.cases.star(compare.SPECS, whole=False).keys() < MATRIX.keys()


def test_every_layout_dtype_and_size_is_measured():
    for spec in compare.SPECS:
        mine = [case for case in MATRIX.values() if case.op == spec.op]
        assert {case.kind for case in mine} == set(spec.layouts)
        assert {case.dtype for case in mine} == set(spec.dtypes)
        assert len({tables.count(case.size) for case in mine}) >= len(spec.sizes)


@pytest.mark.parametrize("size", [*cases.SIZES, 4096])
@pytest.mark.parametrize("name", cases.LAYOUTS)
def test_layouts_have_their_size(name, size):
    layout = cases.LAYOUTS[name](size)
    assert 0.7 * size < np.prod(layout.shape) <= size
    if size >= 1 << 16:
        assert tables.count(int(np.prod(layout.shape))) == tables.count(size)


@pytest.mark.parametrize("name", cases.GROUPS)
def test_one_element_is_a_group(name):
    (spec,) = (s for s in cases.SPECS if s.op == "dequantize_per_channel_group")
    case = spec.cell("int8 -> float32", name, 1)
    assert case.call(case.inputs())().shape == (1, 1)


@pytest.mark.parametrize(
    ("name", "strides"),
    [
        ("tensor, Fortran", (4, 128)),
        ("tensor, channels last", (512, 4, 128, 32)),
        ("tensor, transposed", (32, 1024, 4)),
        ("tensor, strided", (256, 8)),
    ],
)
def test_data_lie_as_they_are_said_to(name, strides):
    for array in ("x", "codes", "mask"):
        data = getattr(cases.Inputs(cases.LAYOUTS[name](1024), "float32", "int8"), array)
        assert data.strides == tuple(s * data.itemsize // 4 for s in strides)
        assert len(np.unique(data)) > 1


def test_any_cell_can_be_asked_for():
    options = ["--op", "^quantize_per_channel$", "--dtype", "uint8", "--layout", "middle"]
    found = compare.parsed([*options, "--size", "16,1024"]).cells
    assert {case.dtype for case in found} == {"float32 -> uint8"}
    assert {case.layout.shape for case in found} == {
        (4, 64, 4), (16, 3, 21), (2, 256, 2), (2, 4, 2), (2, 3, 2),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("op", "moved", "written"),
    [
        ("quantize_per_tensor", 1.25, 0.25),
        ("fake_quantize_per_tensor_affine_cachemask_backward", 2.25, 1),
        ("MinMaxObserver", 1, 0),  # which gives back what it observed
        ("SGD", 5, 0),  # and updates in place
        ("Adam", 7, 0),
        ("AdaroundStep", 9, 0),
    ],
)
def test_bytes_that_must_move(op, moved, written):
    """In arrays of the size of the data."""
    (case,) = compare.parsed(["--op", f"^{op}$", "--layout", "^tensor$", "--size", "1024"]).cells
    inputs = case.inputs()
    result = case.call(inputs)()
    found = case.moved(inputs, result), case.written(inputs, result)
    assert found == (moved * inputs.x.nbytes, written * inputs.x.nbytes)


@pytest.mark.parametrize("op", ["BareDispatch", "determine_qparams"])
def test_ops_without_large_arrays_stay_small(op):
    cells = compare.parsed(["--op", f"^{op}$", "--dtype", "float32"]).cells
    assert {case.size for case in cells} == {16}


# --- peers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", SMALL.values(), ids=SMALL)
def test_plain_expressions_compute_the_op(case):
    inputs = case.inputs()
    expected = plain.EXPRESSIONS[case.op](plain.Plain(case, inputs))
    got = case.call(inputs)()
    expected = expected if isinstance(expected, tuple) else (expected,)
    for ours, theirs in zip(cases.arrays(got), expected, strict=True):
        theirs = np.asarray(theirs).reshape(ours.shape)
        close = np.isclose(ours.astype(float), theirs.astype(float), rtol=1e-3, atol=1e-3)
        assert close.mean() > 0.97, case  # a tie may round the other way


# --- goals ------------------------------------------------------------------------------------


def row(op="fake_quantize_per_tensor_affine", size=1 << 20, **more):
    return {
        "name": op, "op": op, "dtype": "float32", "layout": "tensor", "shape": str(size),
        "size": size, "grain": "tensor", "order": "", "wide": False, "work": False, "itemsize": 4,
        "npquant": 150.0, "copy": 100.0, "peers": {}, "absent": {},
    } | more  # fmt: skip


BEYOND, IN_CACHE = "copy, 64 Mi", "copy, in cache"


@pytest.mark.parametrize(
    ("goal", "cell", "target"),
    [
        (IN_CACHE, {}, 1.5),
        (IN_CACHE, {"size": 3 * 349525, "grain": "channel"}, 1.5),
        (IN_CACHE, {"size": 1 << 16}, 2.5),
        (IN_CACHE, {"grain": "group"}, 2.5),
        (IN_CACHE, {"dtype": "float16"}, 2.5),
        (IN_CACHE, {"order": "strided"}, 2.5),
        (IN_CACHE, {"size": 1 << 10}, None),
        (IN_CACHE, {"size": 1 << 26}, None),
        (BEYOND, {"size": 1 << 26}, 1.1),
        (BEYOND, {"size": 1 << 26, "itemsize": 1}, 1.25),
        (BEYOND, {"size": 1 << 26, "order": "strided"}, None),
        (BEYOND, {"size": 1 << 26, "op": "choose_qparams"}, None),
        (BEYOND, {"size": 1 << 26, "op": "adaround_regularizer_backward"}, 1.1),
        ("copy, learnable backward", {}, None),
        ("copy, learnable backward", {"op": "fake_quantize_learnable_x_backward"}, 1.5),
        ("threads", {"npquant": 150.0}, 1 / goals.NOISE),
        ("threads", {"npquant": 250.0}, 1.8),
        ("the call", {"size": 1 << 10}, 2.5),
        ("the call", {"size": 1 << 16}, None),
    ],
)
def test_targets(goal, cell, target):
    assert goals.GOALS[goal].target(row(**cell)) == target


def test_the_ratio_to_the_copy_is_of_the_same_kind_of_memory():
    assert goals.to_copy(row()) == 1.5
    assert goals.to_copy(row(**{"npquant out": 120.0})) == 1.2
    assert goals.to_copy(row(**{"copy new": 200.0})) == 0.75


def test_a_peer_that_keeps_its_memory_is_compared_with_a_call_that_has_memory():
    cell = row(**{"npquant out": 100.0, "peers": {"onnxruntime": 120.0, "numpy": 165.0}})
    assert goals.peer(cell, "onnxruntime") == 1.2
    assert goals.best(cell) == "numpy"
    assert goals.to_best(cell) == 1.1


def test_misses():
    peers = {"torch": 1500.0, "onnxruntime": 140.0}
    missed = [name for name, goal in goals.GOALS.items() if goal.missed(row(peers=peers))]
    assert missed == ["any peer", "PyTorch's fake quantize"]
    better = {"torch": 3000.0, "onnxruntime": 151.0}
    assert not any(goal.missed(row(peers=better)) for goal in goals.GOALS.values())


def test_a_worse_row_is_further_away():
    goal = goals.GOALS["any peer"]
    rows = [row(peers={"torch": us}) for us in (140.0, 70.0, 160.0)]
    assert tables.judged(goal, rows) == (rows, [rows[1], rows[0]])


GROWING = """
from functools import partial
import numpy as np
import compare

def call(temporaries):
    return [np.ones(2 << 20, np.uint8) for _ in range(1 + temporaries)].pop()

call(4)  # and leaves free memory behind
print(*(compare.beyond_results(partial(call, n), 2 << 20) for n in (0, 3)))
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux tells")
def test_memory_beyond_the_results_is_seen():
    """In a process of its own: here, other tests have left memory in any state."""
    run = subprocess.run(
        [sys.executable, "-c", GROWING], cwd=Path(compare.__file__).parent, check=True,
        env=os.environ | {"PYTHONPATH": str(Path(nq.__file__).parents[1])},
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    nothing, temporaries = map(int, run.stdout.split())
    assert nothing < 1 << 20
    assert 5 << 20 < temporaries < 7 << 20


# --- a machine that others use, too -------------------------------------------------------------


def test_which_cells_were_disturbed():
    """By a copy that took longer than the same bytes elsewhere, whatever npquant took."""
    alike = [row(copy=100.0, npquant=n, **{"bytes moved": 1000}) for n in (90.0, 900.0)]
    slow = row(copy=160.0, **{"bytes moved": 1250})
    large = row(copy=300.0, **{"bytes moved": 2000})
    call, slow_call = (row(size=1, dispatch=t, copy=9.0, **{"bytes moved": 5}) for t in (0.1, 0.2))
    rows = [*alike, slow, large, call, slow_call]
    assert [r for r in rows if goals.disturbed(r, rows)] == [slow, slow_call]
    late = [row(copy=c, **{"bytes moved": 1000}) for c in [100.0] * 2 + [240.0] * 4]
    assert sum(goals.disturbed(r, late) for r in late) == 4


def test_disturbed_cells_are_measured_again(tmp_path, monkeypatch):
    """The measurement in which the machine was less slow stays, also if npquant took longer."""
    figures = tmp_path / "figures.json"
    names = [str(case) for case in compare.parsed(["--op", "^adaround_soft$"]).cells]
    assert len(names) > 6
    taken = dict.fromkeys(names, 0)
    paces = {names[1]: [2.0, 1.5, 1.5, 3.0], names[4]: [3.0, 1.2]}

    def measure(case, *rest):
        name, turn = str(case), taken[str(case)]
        taken[name] += 1
        copy = 1000 * paces.get(name, [1.0])[turn]
        return row(case.op, case.size, name=name, copy=copy, npquant=turn + 1.0) | {
            "bytes moved": 1000, "dtype": case.dtype, "layout": case.kind,
        }  # fmt: skip

    monkeypatch.setattr(compare, "measure", measure)
    ask = ["--op", "^adaround_soft$", "--peers", "none", "--json", str(figures)]
    assert compare.main(ask) == 0
    assert set(taken.values()) == {1}
    assert compare.main([*ask, "--again", "3"]) == 0
    assert [taken[name] for name in names[:6]] == [1, 4, 1, 1, 2, 1]
    kept = {row["name"]: row for row in json.loads(figures.read_text())["rows"]}
    assert list(kept) == names
    assert [kept[names[i]]["npquant"] for i in (0, 1, 4)] == [1.0, 2.0, 2.0]


# --- runs -------------------------------------------------------------------------------------


def test_a_run_is_resumed_and_written_down(tmp_path, monkeypatch, capsys):
    figures = tmp_path / "figures.json"
    ask = ["--op", "^quantize_per_tensor$", "--peers", "numpy", "--seconds", "0"]
    assert compare.main([*ask, "--size", "16", "--json", str(figures)]) == 0
    both = [*ask, "--size", "16,1024", "--json", str(figures)]
    assert compare.main(both) == 0
    found = json.loads(figures.read_text())
    assert [row["size"] for row in found["rows"]] == [16, 1024]
    assert all(row["npquant"] > 0 and row["peers"]["numpy"] > 0 for row in found["rows"])

    monkeypatch.setattr(compare, "measure", None)  # all is there: nothing is measured again
    assert compare.main(both) == 0
    capsys.readouterr()
    figures.write_text(json.dumps(found | {"about": found["about"] | {"CPU": "another"}}))
    with pytest.raises(SystemExit, match="its CPU differ"):
        compare.main(both)
    monkeypatch.setattr(compare, "revision", lambda: "0.1.0 (another)")
    figures.write_text(json.dumps(found))
    with pytest.raises(SystemExit, match="its npquant differ"):
        compare.main(both)

    figures.write_text(json.dumps(found))
    (tmp_path / "docs").mkdir()
    for name in ("README.md", "docs/performance.md"):
        (tmp_path / name).write_text(f"before\n{tables.BEGIN}old\n{tables.END}\nafter\n")
    tables.write(figures, tmp_path)
    for name in ("README.md", "docs/performance.md"):
        text = (tmp_path / name).read_text()
        assert text.startswith(f"before\n{tables.BEGIN}")
        assert text.endswith(f"{tables.END}\nafter\n")
        assert "old" not in text and "`quantize_per_tensor`" in text  # noqa: PT018
    assert "| 1 Ki |" in (tmp_path / "docs/performance-tables.md").read_text()


def test_the_commit_is_named_where_there_is_one(tmp_path, monkeypatch):
    """Not that of a checkout in which npquant is installed."""
    module = tmp_path / "npquant" / "__init__.py"
    module.parent.mkdir()
    module.write_text("")
    monkeypatch.setattr(nq, "__file__", str(module))
    assert revision.revision() == nq.__version__

    def git(*args):
        who = "-c", "user.name=n", "-c", "user.email=e"
        done = subprocess.run(["git", *who, *args], cwd=tmp_path, capture_output=True, check=True)
        return done.stdout.decode().strip()

    git("init")
    git("commit", "--allow-empty", "-m", "of something else")
    assert revision.revision() == nq.__version__
    git("add", ".")
    git("commit", "-m", "npquant")
    commit = git("rev-parse", "--short", "HEAD")
    assert revision.revision() == f"{nq.__version__} ({commit})"
    module.write_text("edited")
    assert revision.revision() == f"{nq.__version__} ({commit}-dirty)"


FIRST = """
from types import SimpleNamespace
import first_call
import numba
from numba.np.ufunc import parallel

found = []
case = SimpleNamespace(inputs=dict, call=lambda inputs: call)
call = lambda: found.append(parallel._is_initialized)
first_call.CASES = {"it": case}
first_call.first_call("it")
print(found, numba.config.NUMBA_NUM_THREADS)
"""


def test_a_first_call_starts_the_threads_that_are_asked_for(monkeypatch):
    """They are part of what it costs."""
    run, asked = subprocess.run, []

    def in_its_place(command, *, env, **options):
        asked.append(run([sys.executable, "-c", FIRST], env=env, text=True, **options).stdout)
        return SimpleNamespace(stdout="{}")

    monkeypatch.setattr(subprocess, "run", in_its_place)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    for threads in (1, 2):
        assert first_call.in_new_process("it", threads, "cache") == {}
    assert asked == ["[False, False] 1\n", "[False, False] 2\n"]


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        (["--threads", "0"], "--threads must be"),
        (["--peers", "tensorflow"], "--peers must be of"),
        (["--op", "no such op"], "no cell matches"),
        (["--again", "-1"], "--again must be"),
    ],
)
def test_refused_arguments(argument, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        compare.parsed(argument)
    assert message in capsys.readouterr().err
