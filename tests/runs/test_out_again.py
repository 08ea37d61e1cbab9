"""What a run produced, outside of this package: plain PyTorch modules and files, ONNX, and a table of clients."""

import csv
import json
import stat

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

import rrcluster as rr
from rrcluster import registry
from rrcluster.data.arrays import at_most, from_arrays
from rrcluster.data.build import load_federated
from rrcluster.errors import ConfigError, PrivacyError, RunFolderError


def own_module():
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))


def population():
    rng = np.random.default_rng(0)
    inputs = [rng.normal(size=(8, 5)) for _ in range(40)]
    return from_arrays(inputs, [(x[:, 0] > 0).astype(int) for x in inputs], num_classes=2, name="own-clients")


@pytest.fixture
def own_run(tmp_path):
    """A run that trained a module of the user's own, as another process would find it."""
    rr.run(
        data=population(),
        model=own_module(),
        num_clusters=2,
        num_rounds=2,
        sample_rate=0.5,
        noise_multiplier=1.0,
        delta=1e-3,
        device="cpu",
        out=str(tmp_path / "own"),
    )
    registry.MODELS.unregister("Sequential")
    return tmp_path / "own"


def test_plain_pytorch_loads_the_file_of_every_cluster(own_run):
    models = rr.load(own_run, model=own_module())
    inputs = torch.randn(7, 5)
    for cluster in range(2):
        plain = own_module()
        plain.load_state_dict(load_file(own_run / f"cluster-{cluster}.safetensors"))
        with torch.no_grad():
            outputs = plain(inputs)
            assert torch.equal(outputs, models.module(cluster)(inputs))
        assert np.allclose(outputs, models.predict(inputs.numpy(), cluster=cluster), atol=1e-6)
    assert not models.module(0).training
    assert not torch.equal(models.state_dict(0)["0.weight"], models.state_dict(1)["0.weight"])


def test_a_module_is_a_copy(own_run):
    models = rr.load(own_run, model=own_module())
    changed = models.module(0)
    with torch.no_grad():
        changed[0].weight.zero_()
    models.state_dict(0)["2.bias"].zero_()
    assert models.module(0)[0].weight.abs().sum() > 0
    assert models.module(0)[2].bias.abs().sum() > 0


def test_a_network_of_ones_own_must_be_given_and_be_the_same(own_run):
    with pytest.raises(ConfigError, match=r"user's network, 'Sequential'.*rr\.load\(run, model=module\)"):
        rr.load(own_run)
    other = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 2))
    with pytest.raises(ConfigError, match=r"has 0\.weight \(6, 5\) where the run trained 0\.weight \(4, 5\)"):
        rr.load(own_run, model=other)
    with pytest.raises(ConfigError, match=r"no further layer where the run trained 2\.weight"):
        rr.load(own_run, model=nn.Sequential(nn.Linear(5, 4)))


def test_a_method_of_ones_own_must_be_registered(tiny):
    folder = rr.run(**tiny | {"algorithm": rr.Method("mine", chooses_by_loss=True)}).folder
    registry.METHODS.unregister("mine")
    with pytest.raises(ConfigError, match="user's method, 'mine'; register it first"):
        rr.load(folder)


def test_personal_layers_are_zero_and_named(tiny):
    folder = rr.run(**tiny | {"algorithm": "fedper", "model": "edges-mlp"}).folder
    models = rr.load(folder)
    state = load_file(folder / "cluster-0.safetensors")
    assert models.personal_layers
    assert set(models.personal_layers) < set(state)
    for name, values in state.items():
        assert (values.abs().sum() == 0) == (name in models.personal_layers), name
    with safe_open(folder / "cluster-0.safetensors", framework="np") as file:
        assert json.loads(file.metadata()["personal"]) == models.personal_layers


@pytest.mark.parametrize("method", ["fedavg", "ifca-shared", "fedcam"])
def test_shared_and_clustered_parts_are_put_together(tiny, method):
    folder = rr.run(**tiny | {"algorithm": method, "model": "edges-mlp"}).folder
    models = rr.load(folder)
    inputs = np.random.default_rng(0).normal(size=(3, 1, 28, 28)).astype(np.float32)
    names = {path.name for path in folder.glob("cluster-*")}
    assert names == {f"cluster-{cluster}.safetensors" for cluster in range(models.num_clusters)}
    for cluster in range(models.num_clusters):
        with torch.no_grad():
            outputs = models.module(cluster)(torch.as_tensor(inputs)).numpy()
        assert np.allclose(outputs, models.predict(inputs, cluster=cluster), atol=1e-5)


def test_onnx_computes_what_the_module_computes(own_run, tmp_path):
    pytest.importorskip("onnx", reason="ONNX files need rrcluster[onnx]")
    pytest.importorskip("onnxscript", reason="ONNX files need rrcluster[onnx]")
    onnxruntime = pytest.importorskip("onnxruntime", reason="to run the file that was written")
    models = rr.load(own_run, model=own_module())
    path = models.onnx(1, tmp_path / "cluster.onnx")
    session = onnxruntime.InferenceSession(path)
    inputs = np.random.default_rng(0).normal(size=(9, 5)).astype(np.float32)
    (outputs,) = session.run(None, {session.get_inputs()[0].name: inputs})
    assert np.allclose(outputs, models.predict(inputs, cluster=1), atol=1e-5)


def test_onnx_without_the_package_says_what_to_install(own_run, tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ConfigError, match=r"pip install '.\[onnx\]'"):
        rr.load(own_run, model=own_module()).onnx(0, tmp_path / "cluster.onnx")


def test_a_cluster_that_is_not_there_is_refused(own_run):
    models = rr.load(own_run, model=own_module())
    for ask in (models.module, models.state_dict):
        with pytest.raises(ConfigError, match=r"cluster = 2 must lie in 0\.\.1"):
            ask(2)


def tiny_population():
    """The clients of a run with the settings of `tiny`."""
    return at_most(load_federated("fashion-mini", num_clients=60, seed=0), 20)


def test_assignment_is_a_table_with_margins(tiny, tmp_path):
    folder = rr.run(**tiny).folder
    models, data = rr.load(folder), tiny_population()
    table = rr.assign(models, data)
    assert len(table) == 60
    assert len(table) == 60
    assert (table.client == np.arange(60)).all()
    assert (table == np.asarray(table)).all()
    client = data.cohort(np.array([5]))
    losses = []
    for cluster in range(4):
        outputs = torch.as_tensor(models.predict(client.inputs[0], cluster=cluster))
        losses.append(float(nn.functional.cross_entropy(outputs, torch.as_tensor(client.targets[0]))))
    best, second = sorted(losses)[:2]
    assert table[5] == int(np.argmin(losses))
    assert table.margin[5] == pytest.approx(second - best, abs=1e-5)
    with (table.write_csv(tmp_path / "table.csv")).open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["cluster"]) for row in rows] == list(table)
    assert float(rows[5]["margin"]) == pytest.approx(second - best, abs=1e-4)
    assert stat.S_IMODE((tmp_path / "table.csv").stat().st_mode) == 0o600


def test_one_cluster_has_no_margin(tiny, tmp_path):
    models = rr.load(rr.run(**tiny | {"algorithm": "fedavg"}).folder)
    table = rr.assign(models, tiny_population())
    assert np.isnan(table.margin).all()
    assert table.write_csv(tmp_path / "table.csv").read_text().splitlines()[1] == "0,0,"


def test_the_table_is_never_written_into_a_run_folder(tiny, tmp_path):
    folder = rr.run(**tiny).folder
    table = rr.assign(rr.load(folder), tiny_population())
    (tmp_path / "link").symlink_to(folder)
    for target in (folder / "table.csv", folder / "new" / "table.csv", tmp_path / "link" / "table.csv"):
        with pytest.raises(PrivacyError, match=r"inside the run folder.*private"):
            table.write_csv(target)
    assert not list(folder.rglob("*.csv"))


def test_a_table_as_a_frame(tiny):
    pytest.importorskip("pandas", reason="to_frame needs pandas")
    table = rr.assign(rr.load(rr.run(**tiny).folder), tiny_population())
    assert list(table.to_frame().columns) == ["client", "cluster", "margin"]


def test_a_folder_without_models_is_named(tmp_path):
    with pytest.raises(RunFolderError, match=r"no models\.safetensors"):
        rr.load(tmp_path, model=own_module())


def test_the_command_line_writes_the_table_where_it_is_told(tiny, tmp_path, capsys):
    from rrcluster.cli import main

    folder = rr.run(**tiny).folder
    before = {path.name for path in folder.iterdir()}
    assert main(["assign", str(folder), "--out", str(tmp_path / "table.csv")]) == 0
    table = rr.assign(rr.load(folder), tiny_population())
    rows = (tmp_path / "table.csv").read_text().splitlines()
    assert [int(row.split(",")[1]) for row in rows[1:]] == list(table)
    assert main(["assign", str(folder), "--clients", "5", "--out", str(tmp_path / "few.csv")]) == 0
    assert len((tmp_path / "few.csv").read_text().splitlines()) == 6
    capsys.readouterr()
    assert main(["assign", str(folder), "--json"]) == 0
    assert [row["cluster"] for row in json.loads(capsys.readouterr().out)] == list(table)
    for arguments, reason in (
        ([str(folder), "--out", str(folder / "table.csv")], "inside the run folder"),
        ([str(folder)], "give one of --out"),
        ([str(tmp_path), "--out", str(tmp_path / "x.csv")], "no run here"),
        (["--out", str(tmp_path / "x.csv")], "needs a run folder first"),
        ([str(folder), "--data", "shakespeare", "--out", str(tmp_path / "x.csv")], ""),
    ):
        assert main(["assign", *arguments]) == 2, arguments
        errors = capsys.readouterr().err
        assert reason in errors
        assert "Traceback" not in errors
    assert {path.name for path in folder.iterdir()} == before
    assert not (tmp_path / "x.csv").exists()
