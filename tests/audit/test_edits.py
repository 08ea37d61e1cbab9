"""Mistakes written into the package's own files are caught by the check that is said to catch them."""

import pytest
from edit_lab import EDITS, Lab

BROKEN = tuple(
    f"stopped by {kind}" for kind in ("NameError", "AttributeError", "TypeError", "ImportError", "IndexError")
)


@pytest.fixture(scope="module")
def lab():
    made = Lab()
    yield made
    made.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", EDITS)
def test_a_mistake_in_the_code_is_caught(name, lab):
    mistake = EDITS[name]
    refuted = lab.failures(mistake)
    assert mistake.check in {check for _, check, _ in refuted}
    stops = [measured for *_, measured in refuted if measured.startswith(BROKEN)]
    assert not stops, "a mistake, not code that does not run"
