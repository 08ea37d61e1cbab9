"""Clients that end the process that computes them: they send nothing, no message tells of them, and the run goes on."""

from concurrent.futures import BrokenExecutor, Executor, Future

import numpy as np
import pytest

import rrcluster as rr
from rrcluster.privacy.ledger import Ledger
from rrcluster.simulation.hosts import Hosts

SETTINGS = {"data": "synthetic", "num_clients": 40, "num_clusters": 2, "num_rounds": 2, "sample_rate": 1.0}
SETTINGS |= {"engine": "reference", "device": "cpu"}
PRIVATE = {"noise_multiplier": 1.0, "delta": 1e-3}


class KilledBy(Executor):
    """Computes parts in this process; a part with one of the given clients ends its host instead."""

    def __init__(self, clients):
        self.clients, self.deaths = set(clients), 0

    def submit(self, task, *arguments):
        part, future = arguments[3], Future()
        if self.clients & set(part.ids.tolist()):
            self.deaths += 1
            future.set_exception(BrokenExecutor("a host died"))
        else:
            future.set_result(task(*arguments))
        return future


def run_on(executor, **changes):
    """The records of a run whose clients an executor computes."""
    experiment = rr.experiment(**(SETTINGS | changes))
    experiment.__dict__["hosts"] = Hosts(experiment.hosts.host, executor=executor)  # in place of the cached ones
    return list(experiment.rounds(ledger=Ledger(secure=changes.get("secure", False))))


@pytest.mark.parametrize("secure", [False, True])
def test_a_client_that_ends_its_host_shows_in_no_message(secure, tmp_path, capsys, caplog):
    """Whoever reads that a client does would read that it is there."""
    caplog.set_level("DEBUG")
    executor = KilledBy([11])
    records = run_on(executor, **PRIVATE, secure=secure, out=str(tmp_path / "run"))
    told = capsys.readouterr()
    assert executor.deaths >= 3 * 2, "its part twice, and it alone, in each round"
    assert (told.out, told.err, caplog.text) == ("", "", "")
    if not secure:
        assert [(r.collection.incidents.dropped, r.collection.num_reports) for r in records] == [(1, 39)] * 2


@pytest.mark.parametrize("mechanism", ["joint", "identifier", "none"])
def test_a_round_in_which_everybody_ends_the_host_is_one_of_an_empty_cohort(mechanism):
    privacy = {"mechanism": mechanism} | (PRIVATE if mechanism != "none" else {})
    records = run_on(KilledBy(range(40)), **privacy)
    assert [(r.collection.incidents.dropped, r.collection.num_reports) for r in records] == [(40, 0)] * 2
    gone = list(rr.experiment(**SETTINGS, **privacy, dropout=1.0).rounds(ledger=Ledger()))
    for dead, dropped in zip(records, gone, strict=True):
        np.testing.assert_array_equal(dead.release.cluster_sums, dropped.release.cluster_sums)
        np.testing.assert_array_equal(dead.release.sizes, dropped.release.sizes)
