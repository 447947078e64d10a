"""The docstrings of the public names: complete by numpydoc's rules, and their examples run."""

import doctest
import importlib
from pathlib import Path

import pytest
from numpydoc.docscrape import get_doc_object
from numpydoc.validate import ERROR_MSGS, validate

import npquant as nq

#: The rules of numpydoc: all but GL01, which wants the summary on the line below the quotes.
RULES = set(ERROR_MSGS) - {"GL01"}

NAMES = nq.__all__
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


def section(name, title):
    """Return a section of the docstring of a public name."""
    return get_doc_object(getattr(nq, name))[title]


def examples(found):
    """Return the examples in a module or in one of its functions, each to run by itself."""
    return [test for test in doctest.DocTestFinder().find(found, globs={}) if test.examples]


@pytest.mark.parametrize("name", NAMES)
def test_docstring_is_complete(name):
    assert [e for e in validate(f"npquant.{name}")["errors"] if e[0] in RULES] == []


@pytest.mark.parametrize(("module", "name"), [pytest.param(m, n, id=n) for m, n in OWN])
def test_docstring_of_a_module_is_complete(module, name):
    """Classes with their methods, which need no more than a summary and their sections."""
    found = getattr(module, name)
    methods = [
        m
        for m in dir(found)
        if isinstance(found, type) and m[0] != "_" and callable(getattr(found, m))
    ]
    for part in ("", *(f".{m}" for m in methods)):
        rules = RULES - ({"SA01", "EX01", "ES01"} if part else {"SA01", "ES01"})
        full = f"{module.__name__}.{name}{part}"
        assert [e for e in validate(full)["errors"] if e[0] in rules] == [], full


@pytest.mark.parametrize("name", NAMES)
def test_docstring_names_its_errors(name):
    assert [error.type for error in section(name, "Raises")] == ["TypeError", "ValueError"]


@pytest.mark.parametrize("name", NAMES)
def test_docstring_names_the_op_of_pytorch(name):
    notes = " ".join(section(name, "Notes"))
    assert any(words in notes for words in PYTORCH)


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
