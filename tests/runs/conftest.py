import pytest

TINY = {
    "data": "fashion-mini",
    "num_clients": 60,
    "max_samples": 20,  # instead of 667, whose features would be most of the work
    "num_rounds": 4,
    "sample_rate": 0.5,
    "local_epochs": 1,
    "noise_multiplier": 1.0,
    "delta": 1e-3,
    "evaluate_every": 2,
    "device": "cpu",
}


@pytest.fixture
def tiny(tmp_path):
    """Settings of a run that takes a second."""
    return TINY | {"out": str(tmp_path / "run")}
