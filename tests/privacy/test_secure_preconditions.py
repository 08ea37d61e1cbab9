"""What a secure run's statement rests on is checked: fresh cohorts, one report per client, nothing in error texts."""

from dataclasses import replace

import numpy as np
import pytest

import rrcluster as rr
from rrcluster.cli import main
from rrcluster.client import ClientSide
from rrcluster.data.arrays import from_rows
from rrcluster.entropy import SecureStreams, secure_rng
from rrcluster.errors import ConfigError, PrivacyError, RoundError, RunFolderError
from rrcluster.methods import Method
from rrcluster.methods.method import train_from_cluster
from rrcluster.privacy.mechanism import MechanismKind
from rrcluster.runs.config import from_flat
from rrcluster.runs.run import finish, resume, start
from rrcluster.simulation.simulate import SimulatedClients
from rrcluster.types import Coordinates

COMMON = {"num_clusters": 2, "num_clients": 40, "sample_rate": 0.5, "num_rounds": 3, "noise_multiplier": 1.0}


def plan(mechanism="joint", width=3):
    settings = COMMON | {"mechanism": mechanism, "secure": True, "delta": 1e-3}
    return rr.PrivacyPlan.build(coordinates=Coordinates(0, width), **settings)


@pytest.mark.parametrize("mechanism", ["joint", "identifier"])
def test_the_sampler_of_a_secure_plan_refuses_a_seeded_generator(mechanism):
    with pytest.raises(PrivacyError, match="this generator is seeded"):
        plan(mechanism).sampler.draw(40, rng=np.random.default_rng(0))
    assert len(plan(mechanism).sampler.draw(40, rng=secure_rng())) <= 40


@pytest.mark.parametrize("mechanism", ["joint", "identifier"])
def test_a_secure_release_needs_client_ids_or_the_callers_word(mechanism):
    made, reports = plan(mechanism), (np.zeros((4, 3)), [0, 1, 0, 1])
    with pytest.raises(PrivacyError, match="needs client_ids"):
        rr.release(*reports, plan=made, rng=secure_rng())
    rr.release(*reports, plan=made, rng=secure_rng(), unique=True)
    rr.release(*reports, plan=made, rng=secure_rng(), client_ids=[1, 2, 3, 4])


def test_secure_runs_write_no_tensorboard_events():
    with pytest.raises(ConfigError, match="carry the time of every round"):
        from_flat({"secure": True, "tensorboard": True})


@pytest.fixture
def tiny(tmp_path):
    settings = {"data": "synthetic", "local_epochs": 1, "delta": 1e-3, "device": "cpu"}
    return COMMON | settings | {"out": str(tmp_path / "run")}


def failing(self, guidance, charge):
    raise MemoryError(f"cannot allocate an array of shape ({len(self.hosts.host.data.sizes)}, 7)")


def test_an_error_in_a_secure_round_says_nothing_of_the_cohort(tiny, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(SimulatedClients, "collect", failing)
    with pytest.raises(RoundError, match="the reason is withheld") as refusal:
        rr.run(**tiny, secure=True)
    assert "shape" not in str(refusal.value)
    assert refusal.value.__context__ is None
    flags = ["--data", "synthetic", "--clients", "40", "--noise-multiplier", "1", "--rounds", "3", "--delta", "1e-3"]
    assert main(["run", "--secure", *flags, "--out", str(tmp_path / "other")]) == 2
    told = capsys.readouterr()
    assert "withheld" in told.err
    assert "shape" not in told.err + told.out


def test_an_error_in_a_seeded_round_is_told(tiny, monkeypatch):
    monkeypatch.setattr(SimulatedClients, "collect", failing)
    with pytest.raises(MemoryError, match="shape"):
        rr.run(**tiny)


def test_a_client_with_unusable_samples_sends_nothing_in_a_secure_run(rng):
    inputs, targets = rng.normal(size=(80, 4)).astype(np.float32), rng.normal(size=80).astype(np.float32)
    inputs[10] = np.nan  # of client 5
    data = from_rows(inputs, targets, np.arange(0, 81, 2), num_classes=0)
    assert np.flatnonzero(~data.usable(np.arange(40))).tolist() == [5]
    from rrcluster.engine.reference import ReferenceEngine
    from rrcluster.methods import METHODS
    from rrcluster.models import make_model

    model = make_model("linear", input_shape=(4,), num_classes=0)
    arguments = {"data": data, "model": model, "method": METHODS["ifca"], "engine": ReferenceEngine(model)}
    rounds = list(rr.simulate(**arguments, plan=plan(width=model.num_parameters), streams=SecureStreams()))
    assert len(rounds) == 3


def test_a_client_whose_computation_fails_is_left_out_and_the_round_goes_on(tiny, monkeypatch):
    honest, answered = ClientSide.answer, set()

    def answer(self, guidance, clients, keys):
        ids = clients.cohort.clients.tolist()
        if 3 in ids:
            raise IndexError("client 3: value 17.3 out of range")
        answered.update(ids)
        return honest(self, guidance, clients, keys)

    monkeypatch.setattr(ClientSide, "answer", answer)
    assert rr.run(**(tiny | {"sample_rate": 1.0}), secure=True, processes=1).models.num_clusters == 2
    assert answered == set(range(40)) - {3}


def test_plan_ledger_and_streams_are_of_one_kind(tiny):
    from rrcluster.privacy.ledger import Ledger

    secure, seeded = rr.experiment(**tiny, secure=True), rr.experiment(**tiny)
    with pytest.raises(PrivacyError, match="all be secure or all seeded"):
        next(secure.rounds(ledger=Ledger()))
    with pytest.raises(PrivacyError, match="all be secure or all seeded"):
        next(replace(seeded, streams=SecureStreams()).rounds())
    with pytest.raises(PrivacyError, match="charges a repeated round once"):
        next(secure.rounds(ledger=Ledger(secure=True, stored=True)))


def test_replaced_parts_of_a_secure_run_are_checked_as_given_ones_are(rng, tmp_path):
    inputs, targets = rng.normal(size=(12, 6, 4)), rng.integers(2, size=(12, 6))
    targets[0, :2] = 0, 1
    declared, counted = (rr.from_arrays(inputs, targets, num_classes=classes) for classes in (2, None))
    secure = rr.experiment(
        data=declared, num_clients=12, num_clusters=2, num_rounds=2, noise_multiplier=1.0, delta=0.01, secure=True,
        accountant="rdp", out=str(tmp_path / "run"),
    )  # fmt: skip
    with pytest.raises(ConfigError, match="num_classes were counted"):
        rr.run(replace(secure, data=counted))
    with pytest.raises(PrivacyError, match="needs exact noise"):
        replace(secure.plan, mechanism=replace(secure.plan.mechanism, exact_noise=False))
    assert list(tmp_path.iterdir()) == []


def test_a_ledger_without_a_limit_does_not_lengthen_the_plan(tiny):
    from rrcluster.privacy.ledger import Ledger

    plan = rr.experiment(**tiny).plan
    limited = rr.experiment(**tiny, max_epsilon=plan.epsilon(num_rounds=1) * 1.001)
    assert len(list(limited.rounds(ledger=Ledger()))) == 1


def test_a_mechanism_without_exact_noise_is_no_secure_one():
    from rrcluster import registry
    from rrcluster.privacy.joint import JOINT

    def inexact(given):
        return lambda noise: replace(JOINT.maker(given)(noise), exact_noise=False)

    rr.register("mechanism", "inexact", MechanismKind("inexact", inexact, rebalancing="coin"))
    try:
        with pytest.raises(PrivacyError, match="needs exact noise"):
            plan("inexact")
    finally:
        registry.MECHANISMS.unregister("inexact")


def test_a_run_whose_statement_was_edited_is_not_resumed(tiny, tmp_path):
    rounds = start(rr.experiment(**tiny)).rounds()
    next(rounds)
    rounds.close()
    path = tmp_path / "run" / "privacy.json"
    path.write_text(path.read_text().replace('"delta": 0.001', '"delta": 0.0001'))
    with pytest.raises(RunFolderError, match=r"has delta = 0\.001, and privacy\.json gives 0\.0001"):
        resume(tmp_path / "run")


def test_data_of_ones_own_needs_a_declared_number_of_clients_to_be_secure(tiny):
    data = replace(rr.experiment(**tiny).data, name="mine")
    given = {name: value for name, value in tiny.items() if name not in ("num_clients", "data")}
    with pytest.raises(ConfigError, match="a public constant that you declare"):
        rr.experiment(**given, data=data, secure=True)


def test_a_name_of_ours_is_not_taken_over(tiny):
    with pytest.raises(ConfigError, match="a built-in name"):
        rr.experiment(**(tiny | {"algorithm": Method("ifca")}))


def test_a_charged_round_is_not_repeated_with_another_method_of_the_same_name(tiny, tmp_path):
    def local(models, clients, clusters, *, tools):
        return train_from_cluster(models, clients, clusters, tools=tools)

    rounds = start(rr.experiment(**(tiny | {"algorithm": Method("mine", chooses_by_loss=True)}))).rounds()
    next(rounds)
    rounds.close()
    for path in (tmp_path / "run" / "checkpoint").glob("*.safetensors"):
        path.unlink()
    rr.experiment(
        **(tiny | {"algorithm": Method("mine", chooses_by_loss=True, local=local), "out": str(tmp_path / "x")})
    )
    with pytest.raises(PrivacyError, match="method: "):
        finish(resume(tmp_path / "run"))
