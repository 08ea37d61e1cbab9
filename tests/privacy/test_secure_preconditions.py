"""What a secure run's statement rests on is checked: fresh cohorts, one report per client, nothing in error texts."""

import numpy as np
import pytest

import rrcluster as rr
from rrcluster.cli import main
from rrcluster.data.rows import from_rows
from rrcluster.entropy import SecureStreams, secure_rng
from rrcluster.errors import ConfigError, PrivacyError, RoundError
from rrcluster.experiments.config import from_flat
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
    raise MemoryError(f"cannot allocate an array of shape ({len(self.data.sizes)}, 7)")


def test_an_error_in_a_secure_round_says_nothing_of_the_cohort(tiny, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(SimulatedClients, "collect", failing)
    with pytest.raises(RoundError, match="the reason is withheld") as refusal:
        rr.run(**tiny, secure=True)
    assert "shape" not in str(refusal.value)
    assert refusal.value.__suppress_context__
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
    from rrcluster.methods import ALGORITHMS
    from rrcluster.models import make_model

    model = make_model("linear", input_shape=(4,), num_classes=0)
    arguments = {"data": data, "model": model, "algorithm": ALGORITHMS["ifca"], "engine": ReferenceEngine(model)}
    rounds = list(rr.simulate(**arguments, plan=plan(width=model.num_parameters), streams=SecureStreams()))
    assert len(rounds) == 3
