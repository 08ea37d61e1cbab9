"""More than a thousand damaged files, every reader: a named error, or a result that the reader documents as valid."""

import gzip
import json
import random
import shutil
import struct

import numpy as np
import pytest
from corruption import BYTES, lie, resize, retype

import rrcluster as rr
from rrcluster.data import sources as files
from rrcluster.data.images import BUNDLE, load_fashion_mini
from rrcluster.errors import ConfigError, DataError, RRClusterError, RunFolderError
from rrcluster.privacy import calibrate
from rrcluster.privacy.cost import folder_cost
from rrcluster.privacy.ledger import Ledger
from rrcluster.report import make_report
from rrcluster.report.folders import find_runs
from rrcluster.report.page import render_page
from rrcluster.report.tables import results_table, to_csv, to_html, to_latex, to_markdown
from rrcluster.runs.config import RunConfig, from_flat
from rrcluster.runs.experiment import make_experiment
from rrcluster.runs.folder import RunFolder, _keep_rounds_before
from rrcluster.runs.run import resume, start

SETTINGS = {
    "data": "synthetic",
    "num_clients": 40,
    "num_rounds": 3,
    "sample_rate": 0.5,
    "local_epochs": 1,
    "noise_multiplier": 1.0,
    "delta": 1e-3,
    "device": "cpu",
    "keep_checkpoint": True,
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run that kept its checkpoint."""
    folder = tmp_path_factory.mktemp("fuzz") / "run"
    rr.run(**SETTINGS, out=str(folder))
    running = start(make_experiment(from_flat(SETTINGS | {"out": str(folder.parent / "other")})))
    rounds = running.rounds()
    next(rounds), next(rounds)
    rounds.close()
    shutil.copytree(folder.parent / "other" / "checkpoint", folder / "checkpoint", dirs_exist_ok=True)
    return folder


@pytest.fixture
def copy(run, tmp_path):
    return shutil.copytree(run, tmp_path / "run")


def damaged(path, kinds, cases):
    """Write `cases` damaged versions of a file in its place, yielding the number of each."""
    whole = path.read_bytes()
    for case in range(cases):
        rng = random.Random(f"{path.name} {case}")
        path.write_bytes(rng.choice(kinds)(whole, rng))
        yield case
    path.write_bytes(whole)


def test_idx_files(tmp_path):
    values = np.arange(5 * 7 * 3, dtype=np.uint8).reshape(5, 7, 3)
    for name in ("plain", "small.gz"):
        path = tmp_path / name
        content = struct.pack(">HBB3I", 0, 8, 3, *values.shape) + values.tobytes()
        path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        for _ in damaged(path, (*BYTES, resize), 100):
            try:
                found = files.read_idx(path, shape=(None, 7, 3))
            except DataError:
                continue
            assert found.dtype == np.uint8  # valid: the values alone differ, which only a checksum can tell
            assert found.shape[1:] == (7, 3)


def test_a_small_file_that_declares_terabytes_costs_nothing(tmp_path):
    header = b"\0\0\x08\x03" + b"\xff\xff\xff\xff" * 3
    for name, content in (("plain", header), ("bomb", gzip.compress(header + b"\0" * 100_000))):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match="at most"):
            files.read_idx(tmp_path / name)


def test_the_bundle(tmp_path):
    path = tmp_path / BUNDLE.name
    shutil.copy(BUNDLE, path)
    for case in damaged(path, BYTES, 40):
        with pytest.raises(DataError, match=r"damaged|not the bundle it should be"):
            load_fashion_mini(path)
        assert case < 40


def test_config_files(copy):
    for _ in damaged(copy / "config.yaml", BYTES, 150):
        try:
            _, config = RunFolder.open(copy)
        except RRClusterError:
            continue
        assert isinstance(config, RunConfig)


def test_checkpoints(copy):
    whole, _ = RunFolder(copy).load_state()
    refused = 0
    for _ in damaged(copy / "checkpoint" / "state.safetensors", (*BYTES, lie), 150):
        try:
            state, _ = RunFolder(copy).load_state()
        except RunFolderError:
            refused += 1
            continue
        assert (state.models.clustered == whole.models.clustered).all()  # valid: the damage is in no value
        assert state.round_index == whole.round_index
    assert refused > 130


def test_models(copy):
    inputs = np.zeros((2, 20), dtype=np.float32)
    for _ in damaged(copy / "models.safetensors", (*BYTES, lie), 150):
        try:
            models = rr.load(copy)
        except (RunFolderError, ConfigError):  # damaged, or under a name that nobody has registered
            continue
        assert models.predict(inputs, cluster=0).shape == (2, 1)  # valid: weights may differ, their shapes may not


def test_ledgers(copy):
    path = copy / "ledger.jsonl"
    made_by = json.loads(path.read_text().splitlines()[0])["made_by"]
    for _ in damaged(path, (*BYTES, retype), 150):
        try:
            ledger = Ledger(path, made_by=made_by)
            folder_cost(copy)
        except (RunFolderError, rr.PrivacyError):
            continue
        assert ledger.num_charged >= 3  # valid: no charge of a released round is ever lost


def test_rounds_when_a_run_is_resumed(copy):
    path = copy / "rounds.jsonl"
    for _ in damaged(path, (*BYTES, retype), 60):
        try:
            _keep_rounds_before(path, 2)
        except RunFolderError:
            continue
        assert path.read_text(encoding="utf-8").count("\n") <= 3


@pytest.mark.parametrize("name", ["config.yaml", "privacy.json", "summary.json", "rounds.jsonl", "diagnostics.jsonl"])
def test_report_inputs(copy, name, tmp_path):
    kinds = BYTES if name == "config.yaml" else (*BYTES, retype, retype)
    for _ in damaged(copy / name, kinds, 80):
        try:
            groups = find_runs([copy])
            table = results_table(groups)
        except RunFolderError:
            continue
        for form in (to_csv, to_html, to_latex, to_markdown):
            assert form(table)
        assert render_page(groups, table=table, drawings=(), out=tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["config.yaml", "privacy.json", "summary.json", "rounds.jsonl", "diagnostics.jsonl"])
def test_whole_reports(copy, name, tmp_path):
    for case in damaged(copy / name, (retype, *BYTES), 15):
        try:
            make_report(copy, tmp_path / str(case))
        except (RunFolderError, ConfigError):
            assert not (tmp_path / str(case)).exists()


def test_the_cache_of_multipliers(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    settings = {"epsilon": 4.0, "delta": 1e-3, "num_rounds": 3, "sample_rate": 1.0}  # in closed form: quick
    whole = rr.calibrate(**settings)
    for _ in damaged(calibrate.cache_file(), (*BYTES, retype), 60):
        found = rr.calibrate(**settings)
        assert whole <= found < 1.02 * whole  # a damaged memory is forgotten, or costs hardly less than the target


def test_a_resumed_run_with_an_edited_config_is_refused(run, tmp_path):
    """Regression: more noise from the checkpoint on would have been accounted as if it had always been there."""
    folder = shutil.copytree(run.parent / "other", tmp_path / "other")
    config = folder / "config.yaml"
    config.write_text(config.read_text().replace("noise_multiplier: 1.0", "noise_multiplier: 9.0"))
    with pytest.raises(RunFolderError, match=r"config\.yaml: has noise_multiplier = 9\.0, and privacy\.json"):
        next(resume(folder).rounds())
