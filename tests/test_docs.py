"""The docstrings of the public names: complete by numpydoc's rules, and their examples run."""

import doctest
import importlib
import inspect
from pathlib import Path

import numpy as np
import pytest
from numpydoc.docscrape import get_doc_object
from numpydoc.validate import ERROR_MSGS, validate

import npquant as nq
import npquant.autograd as ag
import npquant.modules as npq
from npquant.formulas import elementary
from npquant.primitives import SQRT_HALF

#: The rules of numpydoc: all but GL01, which wants the summary on the line below the quotes.
RULES = set(ERROR_MSGS) - {"GL01"}
#: What a method need not have, and methods of modules that need none of it.
OF_METHODS = ("SA01", "EX01", "ES01")
OF_THE_BASE = {"forward", "load_state_dict", "state_dict", "extra_repr"}

NAMES = nq.__all__
TAPE_METHODS = [f"Tape.{name}" for name in ("apply", "gradient", "record", "watch")]
#: The modules and observers, without what they are made from.
KINDS = [n for n in npq.__all__ if n not in ("FakeQuantizeBase", "Module", "Observer")]
#: What has every section that numpydoc knows.
COMPLETE = {
    "npquant": NAMES,
    "npquant.autograd": [*ag.__all__, *TAPE_METHODS],
    "npquant.modules": KINDS,
}
#: Of these, what raises a TypeError and a ValueError. `relu` and `sigmoid` refuse types alone.
RAISING = {
    **COMPLETE,
    "npquant.autograd": [
        name
        for name in ag.__all__
        if inspect.isfunction(getattr(ag, name)) and name not in ("call", "relu", "sigmoid")
    ],
}
ROOT = Path(nq.__file__).parents[1]
#: The modules with examples.
MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in sorted(ROOT.glob("npquant/**/*.py"))
    if ">>> " in path.read_text()
]

#: What is public in a module of its own.
OTHERS = {
    "npquant.adaround": [
        "AdaroundLoss",
        "Conv2d",
        "Gram",
        "Grid",
        "Linear",
        "Rounded",
        "RoundingReport",
        "optimize_rounding",
    ],
    "npquant.gptq": ["gptq"],
    "npquant.metrics": ["cosine", "max_code_difference", "mse", "sqnr"],
    "npquant.optim": ["SGD", "Adam"],
}
OWN = [
    (importlib.import_module(module), name) for module, names in OTHERS.items() for name in names
]

#: How Notes say what an op corresponds to; ops that PyTorch lacks say so.
PYTORCH = ("``torch.", "PyTorch has no such")


def each(names):
    """A test of each name in a module, as in `COMPLETE`."""
    params = [pytest.param(m, n, id=n) for m, found in names.items() for n in found]
    return pytest.mark.parametrize(("module", "name"), params)


def errors(name, without=()):
    """What numpydoc finds wrong with a docstring, but for the rules `without` which it may be."""
    rules = RULES - {*without}
    return [e for e in validate(name)["errors"] if e[0] in rules]


def methods(found):
    """The names of the public methods of a class; none of a function."""
    public = [m for m in dir(found) if m[0] != "_" and callable(getattr(found, m))]
    return public if isinstance(found, type) else []


def section(found, title):
    """Return a section of the docstring of a public object."""
    return get_doc_object(found)[title]


def examples(found):
    """Return the examples in a module or in one of its functions, each to run by itself."""
    return [test for test in doctest.DocTestFinder().find(found, globs={}) if test.examples]


@pytest.mark.parametrize(
    ("of", "numbers"),
    [
        ("sigmoid, float32", elementary._SIGMOID_32),
        ("sigmoid, float64", elementary._SIGMOID_64),
        ("`2**r`, float32", elementary._EXP2_32),
        ("`2**r`, float64", elementary._EXP2_64),
        ("logarithm, float32", (elementary._ATANH_32, ())),
        ("logarithm, float64", elementary._ATANH_64),
        ("init, float32", elementary._LOGIT_32),
    ],
)
def test_coefficients_are_those_of_the_code(of, numbers):
    page = (ROOT / "docs/numerics.md").read_text()
    rows = [line.split(" | ", 1)[1] for line in page.splitlines() if line.startswith(f"| {of} |")]
    found = [float.fromhex(cell) for row in rows for cell in row.strip(" |").split(" | ")]
    assert found == [float(v) for v in np.hstack([numbers[0], *numbers[1]])]


def test_constants_are_those_of_the_code():
    page, ln2 = (ROOT / "docs/numerics.md").read_text(), elementary._LN2
    for start, number in (
        ("`ln 2` is `T` of ", ln2),
        ("`1 / ln 2` of ", elementary._TWO_PER_LN2 / 2),
        ("`c` is ", SQRT_HALF),
    ):
        shown = page.split(start)[1].split()[0].rstrip(".,")
        assert float.fromhex(shown) == number


@each(COMPLETE)
def test_docstring_is_complete(module, name):
    assert errors(f"{module}.{name}") == []


@pytest.mark.parametrize(("module", "name"), [pytest.param(m, n, id=n) for m, n in OWN])
def test_docstring_of_a_module_is_complete(module, name):
    """Classes with their methods, which need no more than a summary and their sections."""
    full = f"{module.__name__}.{name}"
    assert errors(full, ("SA01", "ES01")) == []
    for method in methods(getattr(module, name)):
        assert errors(f"{full}.{method}", OF_METHODS) == [], method


@pytest.mark.parametrize("name", KINDS)
def test_docstring_of_a_method_is_complete(name):
    """But of those that the base explains."""
    for method in {*methods(getattr(npq, name))} - OF_THE_BASE:
        assert errors(f"npquant.modules.{name}.{method}", OF_METHODS) == [], method


@each(RAISING)
def test_docstring_names_its_errors(module, name):
    raises = section(getattr(importlib.import_module(module), name), "Raises")
    assert [error.type for error in raises] == ["TypeError", "ValueError"]


@pytest.mark.parametrize("name", NAMES)
def test_docstring_names_the_op_of_pytorch(name):
    notes = " ".join(section(getattr(nq, name), "Notes"))
    assert any(words in notes for words in PYTORCH)


@pytest.mark.parametrize("name", KINDS)
def test_docstring_names_the_module_of_pytorch(name):
    notes = " ".join(section(getattr(npq, name), "Notes"))
    assert ("``torch.ao.quantization." in notes) != ("PyTorch has no such" in notes)


@pytest.mark.parametrize("name", NAMES)
def test_numbers_are_annotated_as_they_are_documented(name):
    """Or a checker of types refuses NumPy's, and arrays of one element."""
    function = getattr(nq, name)
    annotated = inspect.signature(function).parameters
    for parameter in section(function, "Parameters"):
        for of in parameter.name.split(", "):
            if parameter.type.startswith(("int or array of one", "float or array of one")):
                assert annotated[of].annotation in ("IntLike", "FloatLike", "Array", "Any"), of


@pytest.mark.parametrize("name", NAMES)
def test_docstring_has_an_example_that_uses_it(name):
    (test,) = examples(getattr(nq, name))
    assert f"nq.{name}" in "".join(example.source for example in test.examples)


@pytest.mark.parametrize("module", MODULES)
def test_examples_give_what_they_show(module):
    report, found = [], examples(importlib.import_module(module))
    assert found
    for test in found:
        doctest.DocTestRunner(verbose=False).run(test, out=report.append)
    assert "".join(report) == ""
