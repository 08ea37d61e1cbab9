"""What several runs cost together."""

import json

import pytest

import rrcluster as rr
from rrcluster.cli import main
from rrcluster.errors import PrivacyError, RunFolderError
from rrcluster.privacy.accounting import epsilon
from rrcluster.privacy.composition import account_runs, account_together, check_composable
from rrcluster.privacy.events import FixedSize, KaryChoice, PoissonGaussian, RepeatAndSelect
from rrcluster.privacy.ledger import describe, read_event
from rrcluster.privacy.statement import statement
from rrcluster.types import Coordinates

FIRST, SECOND = PoissonGaussian(1.0, 0.1), PoissonGaussian(1.5, 0.2)


def by_name(rows):
    return {row.accountant: row.epsilon for row in rows}


def test_equal_events_are_one_longer_run():
    together = by_name(account_together(((FIRST, 20), (FIRST, 10)), delta=1e-4))
    for accountant, value in together.items():
        assert value == epsilon(FIRST, num_rounds=30, delta=1e-4, accountant=accountant)


def test_different_events_compose_as_dp_accounting_composes_them():
    import dp_accounting as dp
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.rdp import RdpAccountant

    found = by_name(account_together(((FIRST, 20), (SECOND, 10)), delta=1e-4))
    for name, accountant, precision in (("pld", PLDAccountant(), 1e-3), ("rdp", RdpAccountant(), 1e-6)):
        for event, count in ((FIRST, 20), (SECOND, 10)):
            sampled = dp.PoissonSampledDpEvent(event.sample_rate, dp.GaussianDpEvent(event.noise_multiplier))
            accountant.compose(sampled, count)
        assert found[name] == pytest.approx(accountant.get_epsilon(1e-4), abs=precision)
        alone = [epsilon(e, num_rounds=t, delta=1e-4, accountant=name) for e, t in ((FIRST, 20), (SECOND, 10))]
        assert max(alone) < found[name] < sum(alone)


def test_distributions_on_different_grids_are_moved_up_never_down():
    """Almost the same event, so that the answer is known, on grids that differ by a factor."""
    from rrcluster.privacy import composition as together

    class Coarse(PoissonGaussian):
        def loss_distribution(self, *, coarse):
            return super().loss_distribution(coarse=True)

    found = together._pld_epsilon([(FIRST, 5), (Coarse(1.0, 0.1), 5)], 1e-4)
    exact = epsilon(FIRST, num_rounds=10, delta=1e-4)
    assert exact <= found < exact + 0.01


def test_a_selection_composes_by_rdp_alone():
    selected = RepeatAndSelect(FIRST, 10, 5.0, "geometric")
    pld, rdp = account_together(((selected, 1), (SECOND, 5)), delta=1e-4)
    assert pld.epsilon is None
    assert "Renyi DP only" in pld.reason
    assert rdp.epsilon > epsilon(selected, num_rounds=1, delta=1e-4, accountant="rdp")


def test_different_relations_and_new_kinds_of_event_are_refused():
    fixed = FixedSize(1.0, 10, 100)
    with pytest.raises(PrivacyError, match=r"different neighbouring relations \(add-remove and replace-one\)"):
        check_composable([(FIRST, 1), (fixed, 1)])

    class New(PoissonGaussian):
        pass

    with pytest.raises(PrivacyError, match="how New composes"):
        check_composable([(New(1.0, 0.1), 1)])


FIXED = FixedSize(1.0, 10, 100, KaryChoice(0.8, 4))


@pytest.mark.parametrize("event", [FIRST, FixedSize(1.0, 10, 100), FIXED, RepeatAndSelect(FIXED, 9, 5.0, "geometric")])
def test_an_event_is_read_back_as_it_was_written(event, tmp_path):
    written = json.loads(json.dumps(describe(event)))
    assert read_event(written, tmp_path) == event
    for broken in (None, {}, written | {"type": "New"}, written | {"extra": 1}, written | {"noise_multiplier": "x"}):
        with pytest.raises(RunFolderError, match="its event is damaged"):
            read_event(broken, tmp_path)


def write_run(folder, **changes):
    settings = {"coordinates": Coordinates(0, 1), "num_clusters": 2, "num_clients": 100, "sample_rate": 0.1}
    settings |= {"num_rounds": 10, "noise_multiplier": 1.0, "delta": 1e-3, "update_clip": 1.0}
    plan = rr.PrivacyPlan.build(**settings | changes)
    folder.mkdir()
    (folder / "privacy.json").write_text(json.dumps(statement(plan)))
    return plan


def test_runs_together_from_their_folders(tmp_path, capsys):
    one = write_run(tmp_path / "one")
    write_run(tmp_path / "two", num_rounds=5, reserve_rounds=2)
    together = account_runs([tmp_path / "one", tmp_path / "two"])
    assert by_name(together.rows)["pld"] == one.epsilon(num_rounds=17)  # the reserve is part of the plan
    assert together.epsilon == one.epsilon(num_rounds=17)
    folders = [str(tmp_path / name) for name in ("one", "two")]
    assert main(["account", *folders, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["epsilon"] == together.epsilon
    assert [run["releases"] for run in answer["runs"]] == [10, 7]
    assert main(["account", *folders, "--delta", "1e-4"]) == 0
    told = capsys.readouterr()
    assert "together, by pld" in told.out
    assert "2 runs on the same clients" in told.out
    assert main(["account", folders[0]]) == 0
    assert "One run: add-remove" in capsys.readouterr().out
    assert "Seeded runs among them: not private" in told.err


def test_runs_that_cannot_be_added_up_are_refused(tmp_path, capsys):
    write_run(tmp_path / "one")
    write_run(tmp_path / "delta", delta=1e-4)
    write_run(tmp_path / "none", mechanism="none", noise_multiplier=None)
    write_run(tmp_path / "identifier", mechanism="identifier")
    (tmp_path / "empty").mkdir()
    for other, reason in (
        ("one", "named twice"),
        ("delta", "different deltas"),
        ("none", "without privacy"),
        ("identifier", "different neighbouring relations"),
        ("empty", "missing"),
    ):
        assert main(["account", str(tmp_path / "one"), str(tmp_path / other)]) == 2
        assert reason in capsys.readouterr().err
