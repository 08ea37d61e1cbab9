"""Mistakes written into the package's own files are caught by the check that is said to catch them."""

import pytest
from edit_lab import EDITS, Lab


@pytest.fixture(scope="module")
def lab():
    made = Lab()
    yield made
    made.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", EDITS)
def test_a_mistake_in_the_code_is_caught(name, lab):
    mistake = EDITS[name]
    assert mistake.check in {check for _, check, _ in lab.failures(mistake)}
