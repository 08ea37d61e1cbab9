"""Runs with public slots and correlated noise: resumed, killed, and refused where their noise is lost."""

import json
import shutil

import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file, save_file

import rrcluster as rr
from rrcluster.errors import ConfigError, DataError, PrivacyError, RunFolderError
from rrcluster.privacy.sampling import PoissonSampler
from rrcluster.runs.config import from_flat
from rrcluster.runs.experiment import make_experiment
from rrcluster.runs.folder import _digest
from rrcluster.runs.run import finish, resume, start


@pytest.fixture
def slotted(tiny):
    """Settings of a small run with two slots."""
    small = {"data": "synthetic", "num_clients": 40, "num_clusters": 2, "accountant": "rdp"}
    return tiny | small | {"participation": "schedule", "slots": 2}


def secured(settings):
    return {name: value for name, value in settings.items() if name != "evaluate_every"} | {"secure": True}


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def stopped(settings, rounds=2, *, losing=0):
    """A run stopped after so many rounds; the last `losing` of them are not in its checkpoint, as after a kill."""
    running = start(make_experiment(from_flat(settings)))
    made, checkpoint = running.rounds(), running.folder.path / "checkpoint" / "state.safetensors"
    for _ in range(rounds - losing):
        next(made)
    running.folder.save_state(running.state, running._memory, running._past)
    saved = checkpoint.read_bytes()
    for _ in range(losing):
        next(made)
    after = running.state
    made.close()
    checkpoint.write_bytes(saved)
    return running.folder.path, after


def rewritten(path, change):
    """A private file with other tensors and a digest that fits them."""
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"sha256": _digest(tensors)})


def test_clients_of_a_table_are_in_slots_by_name_so_that_one_who_leaves_moves_nobody(monkeypatch):
    drawn, draw = [], PoissonSampler.draw
    monkeypatch.setattr(PoissonSampler, "draw", lambda *args, **more: drawn.append(draw(*args, **more)) or drawn[-1])

    def cohorts(names):
        rows = {"id": np.repeat(names, 2), "x": np.arange(2.0 * len(names)), "y": np.tile([0, 1], len(names))}
        data = rr.from_frame(rows, client="id", target="y", classes=[0, 1])
        made = rr.experiment(
            data=data, num_clusters=2, num_rounds=4, participation="schedule", slots=2,
            noise_multiplier=0.02, delta=1e-3, accountant="rdp",
        )  # fmt: skip
        for record in made.rounds():
            members = drawn[-1]
            assert record.collection.num_reports == len(members)
            assert record.release.sizes.sum() == pytest.approx(len(members), abs=2)  # none is taken for a stranger
            yield {data.clients[client] for client in members}

    names = [f"client-{number:02d}" for number in range(40)]
    whole, without = list(cohorts(names)), list(cohorts(names[1:]))
    assert [cohort - {names[0]} for cohort in whole] == without
    assert all(without)


def arrays(names=(), *, rows=False, count=40):
    """A population of two rows per client."""
    inputs = np.linspace(0, 1, 2 * count, dtype=np.float32)[:, None]
    targets = np.tile([0, 1], count)
    if rows:
        return rr.from_rows(inputs, targets, np.arange(0, 2 * count + 1, 2), num_classes=2, names=names)
    return rr.from_arrays(inputs.reshape(count, 2, 1), targets.reshape(count, 2), num_classes=2, names=names)


SCHEDULED = {
    "num_clusters": 2, "num_clients": 40, "num_rounds": 4, "participation": "schedule", "slots": 2,
    "noise_multiplier": 0.02, "delta": 1e-3, "accountant": "rdp", "secure": True,
}  # fmt: skip


@pytest.mark.parametrize("rows", [False, True])
def test_a_secure_schedule_of_arrays_needs_names(rows):
    with pytest.raises(PrivacyError, match=r"to slots by name.*have none.*names=\[\.\.\.\] to from_arrays"):
        rr.experiment(data=arrays(rows=rows), **SCHEDULED)
    names = [f"client-{number}" for number in range(40)]
    made = rr.experiment(data=arrays(names, rows=rows), **SCHEDULED)
    assert made.data.clients == tuple(names)
    nameless = rr.experiment(data=arrays(rows=rows), **SCHEDULED | {"participation": "everybody", "slots": None})
    with pytest.raises(PrivacyError, match="to slots by name"):
        next(rr.simulate(
            data=nameless.data, model=made.model, method=made.method, plan=made.plan, engine=made.engine,
            streams=made.streams,
        ))  # fmt: skip


@pytest.mark.parametrize("names", [["a"] * 40, ["a"], list(range(40))])
def test_names_of_arrays_are_distinct_texts_one_per_client(names):
    with pytest.raises(DataError, match="names must be 40 texts"):
        arrays(names)


def test_a_stopped_run_resumes_to_the_same_models(slotted, tmp_path):
    whole = rr.run(**(slotted | {"out": str(tmp_path / "whole")}))
    for losing in (0, 1):
        settings = slotted | {"out": str(tmp_path / f"stopped-{losing}")}
        folder, _ = stopped(settings, 3, losing=losing)
        resumed = finish(resume(folder))
        assert (resumed.models.clustered == whole.models.clustered).all()
        assert [line["round"] for line in lines(folder / "ledger.jsonl")] == [0, 1, 2, 3]
        for name in ("rounds.jsonl", "privacy.json"):
            assert (folder / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.parametrize("rounds", [1, 2])
def test_a_secure_round_is_repeated_byte_for_byte_and_charged_once(slotted, rounds):
    folder, lost = stopped(secured(slotted), rounds + 1, losing=1)
    released = (folder / "rounds.jsonl").read_bytes()
    running = resume(folder)
    made = running.rounds()
    assert next(made).round_index == rounds
    assert (folder / "rounds.jsonl").read_bytes() == released
    assert (running.state.models.clustered == lost.models.clustered).all()
    made.close()
    finish(resume(folder))
    assert [line["round"] for line in lines(folder / "ledger.jsonl")] == [0, 1, 2, 3]
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["ended_by"], summary["releases_charged"]) == ("rounds", 4)


def test_the_first_secure_round_is_repeated_on_the_models_it_was_made_with(slotted):
    running = start(make_experiment(from_flat(secured(slotted))))
    made = running.rounds()
    next(made)
    first = running.state
    made.close()
    (running.folder.path / "checkpoint" / "state.safetensors").unlink()
    again = resume(running.folder.path)
    next(again.rounds())
    assert (again.state.models.clustered == first.models.clustered).all()


def test_a_round_that_was_drawn_and_not_charged_is_charged_when_repeated(slotted, monkeypatch):
    running = start(make_experiment(from_flat(secured(slotted))))
    made = running.rounds()
    next(made)
    with monkeypatch.context() as patch:
        patch.setattr("rrcluster.privacy.ledger.append_line", _no_disk)
        with pytest.raises(RunFolderError, match="was not released"):
            next(made)
    folder = running.folder.path
    drawn = load_file(folder / "checkpoint" / "drawn.safetensors")
    assert len(lines(folder / "ledger.jsonl")) == 1
    resumed = resume(folder)
    rounds = resumed.rounds()
    next(rounds)
    sizes = np.array(lines(folder / "rounds.jsonl")[1]["sizes"])
    counts = drawn["total"][-4:-2] / resumed.experiment.plan.mechanism.count_units
    assert np.allclose(sizes, counts, rtol=0, atol=0)
    assert len(lines(folder / "ledger.jsonl")) == 2
    rounds.close()


def _no_disk(*_):
    raise OSError(28, "No space left on device")


def test_a_charged_round_whose_draw_is_lost_is_refused(slotted):
    folder, _ = stopped(secured(slotted), 3, losing=1)
    (folder / "checkpoint" / "drawn.safetensors").unlink()
    with pytest.raises(PrivacyError, match=r"round 2 was charged, and the noise .* is lost .* start a new run"):
        finish(resume(folder))


def test_an_older_checkpoint_is_refused(slotted):
    """A backup of checkpoint/ from two rounds ago: the rounds since were charged, and would get fresh noise."""
    running = start(make_experiment(from_flat(secured(slotted))))
    made, checkpoint = running.rounds(), running.folder.path / "checkpoint"
    next(made)
    saved = {name: (checkpoint / name).read_bytes() for name in ("state.safetensors", "drawn.safetensors")}
    next(made)
    next(made)
    made.close()
    for name, content in saved.items():
        (checkpoint / name).write_bytes(content)
    with pytest.raises(RunFolderError, match="an old copy: it has 1 rounds, and round 2 was charged"):
        finish(resume(running.folder.path))


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("loss", ["lost", "of another round", "of another shape", "damaged"])
def test_lost_or_changed_noise_is_refused(slotted, secure, loss):
    folder, _ = stopped(secured(slotted) if secure else slotted)
    path = folder / "checkpoint" / "state.safetensors"
    if loss == "damaged":
        content = bytearray(path.read_bytes())
        content[-3] ^= 1
        path.write_bytes(bytes(content))
        with pytest.raises(RunFolderError, match="damaged"):
            resume(folder)
        return

    def change(tensors):
        if loss == "lost":
            del tensors["noise.vectors"], tensors["noise.round"]
        elif loss == "of another round":
            tensors["noise.round"] -= 1
        else:
            tensors["noise.vectors"] = np.zeros((2, 3))

    rewritten(path, change)
    with pytest.raises(PrivacyError, match="missing from checkpoint" if loss == "lost" else "another round or shape"):
        finish(resume(folder))


@pytest.mark.parametrize("change", [{"slots": 3}, {"slot_key": "other"}])
def test_slots_and_key_may_not_change(slotted, change):
    folder, _ = stopped(slotted | {"num_rounds": 6, "slots": 4})
    settings = yaml.safe_load((folder / "config.yaml").read_text())
    (folder / "config.yaml").write_text(yaml.safe_dump(settings | change))
    with pytest.raises((PrivacyError, RunFolderError), match=r"settings have changed|states another|has slots = 3"):
        resume(folder)


def test_slots_by_hand_are_refused_with_the_reason(slotted):
    with pytest.raises(ConfigError, match=r"slots = \[0, 1, 0\] should be whole number.*may depend on data"):
        from_flat(slotted | {"slots": [0, 1, 0]})


def test_a_kept_checkpoint_holds_no_noise(slotted):
    rr.run(**(secured(slotted) | {"keep_checkpoint": True}))
    checkpoint = from_flat(slotted).folder / "checkpoint"
    assert not (checkpoint / "drawn.safetensors").exists()
    assert not [name for name in load_file(checkpoint / "state.safetensors") if name.startswith("noise")]


def test_noise_is_private_on_disk_and_gone_at_the_end(slotted):
    folder, _ = stopped(secured(slotted))
    assert (folder / "checkpoint").stat().st_mode & 0o777 == 0o700
    assert (folder / "checkpoint" / "drawn.safetensors").stat().st_mode & 0o777 == 0o600
    finish(resume(folder))
    assert not (folder / "checkpoint").exists()
    told = json.loads((folder / "privacy.json").read_text())
    assert any("checkpoint/ holds noise of the last rounds" in note for note in told["notes"])
    assert told["participation"]["slots"] == 2
    shutil.rmtree(folder)


@pytest.mark.parametrize("settings", [{"slots": 2, "participation": "schedule"}, {"participation": "everybody"}])
def test_other_participations_run_with_coins_evaluation_and_memory(tiny, tmp_path, settings):
    common = tiny | settings | {"model": "linear", "num_clusters": 2, "num_rounds": 3}
    common |= {"max_samples": 8, "evaluate_every": 3}
    run = rr.run(**common, private_evaluation=0.25, min_cluster_size=4)
    assert np.isfinite(run.models.clustered).all()
    personal = rr.run(**(common | {"algorithm": "mr-mtl", "out": str(tmp_path / "personal")}))
    assert np.isfinite(personal.models.shared).all()
