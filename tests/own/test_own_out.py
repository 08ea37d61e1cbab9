"""What a run on a network of one's own leaves behind works in plain PyTorch, and for clients."""

import numpy as np
import pytest
import torch
from own_networks import CASES, SIZES, make

import rrcluster as rr

SETTINGS = {"num_clusters": 2, "num_rounds": 1, "mechanism": "none", "sample_rate": 1.0}


@pytest.mark.parametrize("name", ["frozen", "scaled", "recommender", "lstm", "multi-label"])
def test_models_come_back(name, rng, tmp_path):
    model, data = make(name, rng)
    module, judged, *_ = CASES[name]
    torch.manual_seed(3)
    given = module()
    rr.run(data=data, model=given, out=str(tmp_path / "run"), **judged, **SETTINGS)
    loaded = rr.load(tmp_path / "run", model=given)
    inputs, targets = data.store.client(1)
    rows = torch.as_tensor(inputs)
    arguments, named = model.task.arguments(rows)
    own = {key: value.numpy() for key, value in named.items()} if named else inputs
    plain = loaded.module(1)
    with torch.no_grad():
        expected = plain(*arguments, **named).numpy()
    assert loaded.predict(own, cluster=1) == pytest.approx(expected, abs=1e-5)
    again = module()
    again.load_state_dict(loaded.state_dict(1))
    with torch.no_grad():
        assert again.eval()(*arguments, **named).numpy() == pytest.approx(expected, abs=1e-5)
    assert rr.assign(loaded, (own, targets)) == np.asarray(rr.assign(loaded, data))[1]
    assert len(rr.personalise(loaded, data)) == len(SIZES)
