"""Sessions for development: `nox -l` lists them, `nox -s tests-3.12` runs one."""

from pathlib import Path

import nox

nox.options.sessions = ["lint", "tests"]
nox.options.reuse_existing_virtualenvs = True

PYTHONS = ["3.11", "3.12", "3.13"]


@nox.session(python=PYTHONS)
def tests(session: nox.Session) -> None:
    """The tests, without peers; arguments after -- go to pytest."""
    session.install("-e", ".[test]")
    _pytest(session, *session.posargs)


@nox.session(python="3.11")
def peers(session: nox.Session) -> None:
    """The tests, and every combination of dtypes, beside PyTorch, ONNX and ONNX Runtime."""
    session.install("-e", ".[test,peers]")
    session.run("python", "-c", "import torch, onnx, onnxruntime")
    _pytest(session, "-m", "", "tests/peers", "tests/test_ops.py", *session.posargs)


@nox.session(python="3.11")
def soak(session: nox.Session) -> None:
    """Threads, forks and interrupts under each threading layer, and arrays of 2**31 elements."""
    session.install("-e", ".[test,soak]")
    _pytest(session, "-m", "soak", "-n", "0", *session.posargs)


@nox.session(python="3.11")
def cuda(session: nox.Session) -> None:
    """CUDA kernels: compiled, in the simulator, and on a GPU where there is one."""
    session.install("-e", ".[test,test-cuda]")
    linker = "from cuda.bindings import nvjitlink; nvjitlink.version()"
    session.run("python", "-c", f"import numba_cuda; {linker}")
    tests = sorted(map(str, Path("tests").glob("test_cuda*.py")))
    _pytest(session, "-m", "", *tests, "tests/cuda")
    _pytest(session, "-m", "", "--dist", "load", "tests/cuda", NUMBA_ENABLE_CUDASIM="1")


@nox.session(python="3.11")
def exhaustive(session: nox.Session) -> None:
    """Every float32 beside PyTorch, a quarter of an hour; arguments go to every_float.py."""
    session.install("-e", ".[test,peers]")
    cache = f"{session.create_tmp()}/numba"
    command = "python", "tests/exhaustive/every_float.py", *session.posargs
    session.run(*command, env={"NUMBA_CACHE_DIR": cache})


@nox.session(python="3.11")
def fuzz(session: nox.Session) -> None:
    """Calls at random, a million of them; arguments go to python -m fuzz."""
    session.install("-e", ".[test]")
    cache = f"{session.create_tmp()}/numba"
    env = {"PYTHONPATH": "tests", "NUMBA_CACHE_DIR": cache}
    session.run("python", "-m", "fuzz", *session.posargs, env=env)


@nox.session(python="3.11")
def mutation(session: nox.Session) -> None:
    """Deliberate faults, of which the tests must catch every one; arguments go to mutate.py."""
    session.install("-e", ".[test,test-cuda]")
    session.run("python", "tests/mutation/mutate.py", *session.posargs)


@nox.session(python="3.11")
def coverage(session: nox.Session) -> None:
    """Lines of the package that the default tests run, with compilers and without them."""
    session.install("-e", ".[test,test-cuda]")
    measure = "--cov=npquant", "--cov-report=", "--cov-fail-under=0"
    # The simulator's tests, which that one would start in a process that is not measured, follow.
    simulated = "tests/test_cuda.py::test_in_the_simulator"
    _pytest(session, *measure, "--deselect", simulated, *session.posargs)
    measure += ("--cov-append",)
    _pytest(session, *measure, "--dist", "load", "tests/cuda", NUMBA_ENABLE_CUDASIM="1")
    plain = [f"tests/test_{name}.py" for name in ("ops", "fuzz", "optim", "metrics", "observers")]
    chosen = "-m", "interpreted and not full"
    _pytest(session, *measure, *plain, *chosen, NUMBA_DISABLE_JIT="1")
    session.run("python", "-m", "coverage", "report")


@nox.session(python="3.11")
def lint(session: nox.Session) -> None:
    """Style and types."""
    session.install("-e", ".[lint]")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy")


@nox.session(python="3.11")
def docs(session: nox.Session) -> None:
    """Run the examples, and build the documentation; a warning is an error."""
    session.install("-e", ".[test,docs]")
    _pytest(session, "tests/test_docs.py")
    _pytest(session, "--doctest-glob=*.md", "docs", "README.md")
    session.run("python", "-m", "sphinx", "-W", "-q", "docs", "build/docs")


@nox.session(python="3.11")
def bench(session: nox.Session) -> None:
    """Check the asv suite, and measure beside the peers; arguments go to compare.py."""
    session.install("-e", ".[bench,peers]")
    with session.chdir("asv_benchmarks"):
        session.run("asv", "check", "-E", "existing")
    session.run("python", "asv_benchmarks/compare.py", *(session.posargs or ["--quick"]))


def _pytest(session: nox.Session, *args: str, **env: str) -> None:
    """Run pytest with a Numba cache of the session's own."""
    cache = f"{session.create_tmp()}/numba"
    session.run("python", "-m", "pytest", *args, env={"NUMBA_CACHE_DIR": cache, **env})
