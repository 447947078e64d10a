"""The list of faults holds for the package as it is: `mutate.py` asks the tests about them."""

from pathlib import Path

import pytest
from faults import FAULTS

import npquant

TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.file}: {fault.why}")
def test_fault(fault):
    """Its text stands there once, something else would come of it, and its tests exist."""
    text = (Path(npquant.__file__).parent / fault.file).read_text()
    assert text.count(fault.old) == 1
    assert fault.old != fault.new
    for name in fault.first:
        file, named, test = name.partition("::")
        source = (TESTS.parent / file).read_text()
        assert not named or f"def {test.partition('[')[0]}(" in source, name
