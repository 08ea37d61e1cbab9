"""A cohort in parts: slices that depend on the cohort alone, in which every client stands once."""

import numpy as np
import pytest

from rrcluster.errors import PrivacyError
from rrcluster.simulation.clients import ClientMemory
from rrcluster.simulation.hosts import parts_of


@pytest.mark.parametrize(("size", "lengths"), [(1, [1] * 7), (3, [3, 3, 1]), (7, [7]), (100, [7])])
def test_parts_hold_every_client_once_with_what_it_remembers(size, lengths):
    ids = np.array([3, 8, 11, 12, 40, 41, 97])
    memory = ClientMemory(1, {8: np.ones(1), 41: np.zeros(1), 50: np.ones(1)})
    parts = parts_of(ids, memory, size)
    assert [len(part.ids) for part in parts] == lengths
    assert np.concatenate([part.ids for part in parts]).tolist() == ids.tolist()
    assert sorted(client for part in parts for client in part.memory.rows) == [8, 41]


def test_an_empty_cohort_is_one_empty_part():
    assert [part.ids.tolist() for part in parts_of(np.zeros(0, dtype=np.int64), ClientMemory(0), 8)] == [[]]


def test_a_client_that_stands_in_a_cohort_twice_is_refused():
    """Parts are summed apart, so nothing after this would notice that it counts twice."""
    with pytest.raises(PrivacyError, match="holds a client twice") as refusal:
        parts_of(np.array([5, 873, 9, 873]), ClientMemory(0), 3)
    assert "873" not in str(refusal.value)
