"""Clients that end the process that computes them: they send nothing, no message tells of them, and the run goes on."""

from concurrent.futures import BrokenExecutor, Executor, Future

import pytest

import rrcluster as rr
from rrcluster.errors import RoundError
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


def run_on(executor, ledger=None, **changes):
    """The records of a run whose clients an executor computes."""
    experiment = rr.experiment(**(SETTINGS | changes))
    experiment.__dict__["hosts"] = Hosts(experiment.hosts.host, executor=executor)  # in place of the cached ones
    return list(experiment.rounds(ledger=ledger or Ledger(secure=changes.get("secure", False))))


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


@pytest.mark.parametrize("mechanism", ["joint", "identifier"])
def test_a_secure_round_in_which_everybody_ends_the_host_is_one_of_an_empty_cohort(mechanism):
    """Which clients these are is private; a made-up one is computed."""
    records = run_on(KilledBy(range(40)), **PRIVATE, mechanism=mechanism, secure=True)
    assert [(r.collection.incidents.dropped, r.collection.num_reports) for r in records] == [(40, 0)] * 2


@pytest.mark.parametrize("mechanism", ["joint", "identifier", "none"])
def test_a_rehearsal_ends_where_everybody_ends_the_host(mechanism):
    privacy = {"mechanism": mechanism} | (PRIVATE if mechanism != "none" else {})
    with pytest.raises(RoundError, match="round 0: processes ended for every client"):
        run_on(KilledBy(range(40)), **privacy)


class Broken(Executor):
    """Every host dies, whatever it computes."""

    def __init__(self):
        self.deaths = 0

    def submit(self, *_):
        self.deaths += 1
        future = Future()
        future.set_exception(BrokenExecutor("a host died"))
        return future


@pytest.mark.parametrize("secure", [False, True])
def test_hosts_that_die_of_a_made_up_client_too_end_the_run_uncharged(secure, tmp_path):
    executor, ledger = Broken(), Ledger(tmp_path / "ledger.jsonl", secure=secure)
    with pytest.raises(RoundError, match="even for a synthetic client: they are out of memory"):
        run_on(executor, ledger, **PRIVATE, secure=secure)
    assert not ledger.charged(0)
    assert executor.deaths < 12, "no process is started for every client"
