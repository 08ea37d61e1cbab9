"""Equal seeded runs leave equal bytes, and what could make them differ is in the fingerprint."""

import json
import subprocess
import sys

import pytest
from safetensors import safe_open

import rrcluster as rr
from rrcluster.errors import PrivacyError
from rrcluster.runs import fingerprint
from rrcluster.runs.config import from_flat
from rrcluster.runs.experiment import make_experiment
from rrcluster.runs.run import finish, resume, start


def test_models_of_equal_runs_are_equal_byte_for_byte(tiny, tmp_path):
    tiny |= {"num_rounds": 1, "sample_rate": 1.0}  # accounted in closed form, in both processes
    one = rr.run(**tiny | {"out": str(tmp_path / "one")}).folder
    code = "import json, sys, rrcluster as rr; rr.run(**json.loads(sys.argv[1]))"
    settings = json.dumps(tiny | {"out": str(tmp_path / "two")})
    subprocess.run([sys.executable, "-c", code, settings], check=True, timeout=120, capture_output=True)
    first, second = ((path / "models.safetensors").read_bytes() for path in (one, tmp_path / "two"))
    assert first == second
    with safe_open(one / "models.safetensors", framework="np") as file:
        assert list(file.metadata())
        assert file.get_tensor("clustered").shape[0] == 4
    assert rr.load(one).num_clusters == 4


@pytest.mark.parametrize("what", ["cpu", "mkl_cbwr"])
def test_a_round_is_not_repeated_on_another_processor_or_code_path(tiny, tmp_path, monkeypatch, what):
    rounds = start(make_experiment(from_flat(tiny))).rounds()
    next(rounds)
    rounds.close()
    (tmp_path / "run" / "checkpoint" / "state.safetensors").unlink()
    if what == "cpu":
        monkeypatch.setattr(fingerprint, "_cpu", lambda: "another")
    else:
        monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    with pytest.raises(PrivacyError, match=rf"different setup \({what}: "):
        finish(resume(tmp_path / "run"))
