"""The shape of the package: what is public, what is imported, what sources may not contain."""

import ast
import inspect
import os
import re
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import npquant as nq
from calls import CALLS, WITH_OUT, arguments

PACKAGE = Path(nq.__file__).parent
SOURCES = sorted(PACKAGE.rglob("*.py"))
TESTS = Path(__file__).parent
OPS = [name for name in nq.__all__ if inspect.isfunction(getattr(nq, name))]


def tree(path):
    return ast.parse(path.read_text(), str(path))


def imports(path):
    """The first part of every name that a file imports."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").split(".")[0]


def test_oracles_stand_alone():
    """What judges the library shares no code with it."""
    assert set(imports(TESTS / "oracle.py")) == {"math", "fractions", "numpy", "ml_dtypes"}
    assert set(imports(TESTS / "oracle_observers.py")) <= {"itertools", "math", "numpy", "oracle"}


def test_ops_name_no_gpu():
    """They ask `backend`."""
    for path in sorted((PACKAGE / "ops").glob("*.py")):
        assert "npquant.cuda" not in path.read_text(), path.name


def test_every_op_has_a_call():
    assert sorted(CALLS) == sorted(OPS)


def test_the_calls_name_every_argument():
    """But `out`, and dtypes of the output, that have tests of their own."""
    for name in CALLS:
        given = arguments(name, (8,) if name == "determine_qparams" else (6, 8))
        missing = [p for p in inspect.signature(getattr(nq, name)).parameters if p not in given]
        assert set(missing) <= {"out", "out_dtype", "output_dtype"}, name


def test_out_is_by_name_only_and_last():
    for name in WITH_OUT:
        last = list(inspect.signature(getattr(nq, name)).parameters.values())[-1]
        assert (last.name, last.kind, last.default) == ("out", last.KEYWORD_ONLY, None), name


def test_public_names():
    assert nq.__all__ == sorted(nq.__all__)
    assert all(hasattr(nq, name) for name in nq.__all__)


def test_what_is_imported_later_is_listed():
    assert {"adaround", "autograd", "gptq", "metrics", "modules", "optim"} <= set(dir(nq))


#: Prints the names of the loaded modules: the first part of each, and Numba's CUDA if it is there.
LOADED = """
import sys
import {}
names = {{name.split(".")[0] for name in sys.modules}}
print(*sorted(names | ({{"numba.cuda"}} & sys.modules.keys())))
"""


def loaded(modules):
    command = [sys.executable, "-c", LOADED.format(modules)]
    got = subprocess.run(command, check=True, capture_output=True, text=True, cwd=PACKAGE.parent)
    return set(got.stdout.split())


def test_import_loads_nothing_else():
    allowed = loaded("numpy, numba, ml_dtypes") | sys.stdlib_module_names | {"npquant"}
    assert loaded("npquant") - allowed == set()


def test_subpackages_are_there_when_they_are_asked_for():
    code = (
        "import sys, npquant as nq; print('npquant.modules' in sys.modules, "
        "'npquant.autograd' in sys.modules, nq.modules.MinMaxObserver.__name__, "
        "nq.metrics.sqnr.__name__)"
    )
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True,
                           cwd=PACKAGE.parent)  # fmt: skip
    assert found.stdout.split() == ["False", "False", "MinMaxObserver", "sqnr"]
    with pytest.raises(AttributeError, match="module 'npquant' has no attribute 'qint8'"):
        nq.qint8  # noqa: B018


def test_one_module_imports_numba_cuda():
    """What numba-cuda asks of NumPy it finds while that one imports it."""
    importing = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if re.search(r"^\s*(from numba\.cuda|from numba import cuda|import numba\.cuda)",
                     path.read_text(), re.MULTILINE)
    }  # fmt: skip
    assert importing == {"cuda/target.py"}


def name_of(path):
    """The dotted name of a module of the package."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def own_imports(path, names):
    """The modules of the package that a file names in imports, wherever in it these stand."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from names & {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module in names:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in names else node.module


def test_no_circle_of_imports():
    """Imports inside of functions are counted too: they are late, and not another direction."""
    names = {name_of(path): path for path in SOURCES}
    graph = {name: set(own_imports(path, names.keys())) for name, path in names.items()}
    assert graph["npquant.checks.qparams"] >= {"npquant.arrays", "npquant.cpu.checks"}
    assert "npquant.cuda" in graph["npquant.backend"]  # imported in a function
    order = list(TopologicalSorter(graph).static_order())  # raises CycleError, which names it
    assert order.index("npquant.cuda.target") < order.index("npquant.checks.arrays")


def test_import_compiles_nothing(tmp_path):
    """It is quick: kernels are compiled when they are first called."""
    env = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", "import npquant"]
    subprocess.run(command, check=True, cwd=PACKAGE.parent, env=env)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_errors_are_raised_not_asserted(path):
    """An assert vanishes under -O, and what it says is not written for users."""
    found = [node.lineno for node in ast.walk(tree(path)) if isinstance(node, ast.Assert)]
    assert found == []


def untyped_numbers(source):
    """The lines with a number that is not the argument of a type.

    Numba takes a Python float for a float64, and an int beside a float32 makes a float64 of both.
    """
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef):
            continue
        typed = {
            id(argument)
            for call in ast.walk(function)
            if isinstance(call, ast.Call) and ast.unparse(call.func).startswith(("np.", "type("))
            for argument in call.args
        }
        for node in ast.walk(function):
            number = isinstance(node, ast.Constant) and type(node.value) in (int, float)
            if number and id(node) not in typed:
                yield node.lineno


@pytest.mark.parametrize("path", sorted((PACKAGE / "formulas").glob("*.py")), ids=lambda p: p.stem)
def test_no_number_without_a_type_in_formulas(path):
    assert list(untyped_numbers(path.read_text())) == []


@pytest.mark.parametrize(
    ("expression", "wrong"),
    [("x * 0.5", 1), ("2 * x", 1), ("x * np.float32(0.5)", 0), ("type(x)(2) * x", 0)],
)
def test_untyped_numbers_are_found(expression, wrong):
    found = list(untyped_numbers(f"def f(x):\n    return {expression}\n"))
    assert len(found) == wrong


def rooms(path):
    """Each function of a file that makes rooms, and the name that it gives them."""
    for function in ast.walk(tree(path)):
        if isinstance(function, ast.FunctionDef):
            for node in function.body:
                call = node.value if isinstance(node, ast.Assign) else None
                if isinstance(call, ast.Call | ast.Tuple) and re.match(
                    r"\(?(strided\.)?room\(", ast.unparse(call)
                ):
                    yield function, ast.unparse(node.targets[0])


def test_rooms_are_lent_to_pieces_and_kept_for_all():
    """Else references were counted for each piece, or the memory given away before the last."""
    found = [pair for path in sorted((PACKAGE / "cpu").glob("*.py")) for pair in rooms(path)]
    assert len(found) == 9
    for function, name in found:
        names = [n for n in ast.walk(function) if isinstance(n, ast.Name) and n.id == name]
        assert len(names) == 3, (function.name, name)
        lines = [ast.unparse(node) for node in function.body]
        loops = [i for i, node in enumerate(function.body) if isinstance(node, ast.For | ast.While)]
        lent = [i for i, line in enumerate(lines) if line.endswith(f"lend({name})")]
        kept = [i for i, line in enumerate(lines) if line == f"keep({name})"]
        assert lent[0] < loops[0] <= loops[-1] < kept[0], (function.name, name)
