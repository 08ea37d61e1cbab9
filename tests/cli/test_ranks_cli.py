"""Two real processes over gloo, as torchrun would start them."""

import os
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest
from safetensors.numpy import load_file

import rrcluster as rr

TINY = [
    *("--clients", "41", "--rounds", "3", "--sample-rate", "0.3", "--local-epochs", "1", "--samples-per-client", "20"),
    *("--noise-multiplier", "1", "--delta", "1e-3", "--device", "cpu", "--engine", "reference"),
]
LONG = ["--clients", "400", *TINY[2:], "--evaluate-every", "1000"]  # its rounds take a while
MAIN = "from rrcluster.cli import main; raise SystemExit(main())"
BROKEN = (
    "from rrcluster.engine.reference import ReferenceEngine\n"
    "from rrcluster.errors import DataError\n"
    "def train(*a, **b): raise DataError('no data here; get it.')\n"
    f"ReferenceEngine.train = train\n{MAIN}"
)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def launch(arguments, cwd, codes=(MAIN, MAIN)):
    common = {
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "OMP_NUM_THREADS": "1",
        "RRCLUSTER_RANK_TIMEOUT": "60",
    }
    return [
        subprocess.Popen(
            [sys.executable, "-c", code, *arguments],
            cwd=cwd,
            env=os.environ | common | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, code in enumerate(codes)
    ]


def finish(ranks):
    told = [rank.communicate(timeout=180) for rank in ranks]
    return [rank.returncode for rank in ranks], told


def same_models(one, two):
    first, second = (load_file(folder / "models.safetensors") for folder in (one, two))
    return all(np.array_equal(first[name], second[name]) for name in ("shared", "clustered"))


def test_two_ranks_make_the_models_of_one_and_only_rank_0_speaks(tmp_path):
    ranks = launch(["run", *TINY, "--out", "two"], tmp_path)
    names = [flag.removeprefix("--").replace("-", "_") for flag in TINY[::2]]
    settings = dict(zip(names, (_value(text) for text in TINY[1::2]), strict=True))
    settings |= {"num_clients": settings.pop("clients"), "num_rounds": settings.pop("rounds")}
    rr.run(**settings, out=str(tmp_path / "one"))
    status, ((out, _), (silent_out, silent_err)) = finish(ranks)
    assert status == [0, 0]
    assert same_models(tmp_path / "one", tmp_path / "two")
    rounds = [(tmp_path / name / "rounds.jsonl").read_bytes() for name in ("one", "two")]
    assert rounds[0] == rounds[1]
    assert "DP-IFCA" in out
    assert silent_out == silent_err == ""


def _value(text):
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def test_a_rank_that_fails_ends_all_with_one_error(tmp_path):
    quick = [*TINY[:8], "--mechanism", "none", *TINY[14:], "--out", "run"]
    ranks = launch(["run", *quick], tmp_path, codes=(MAIN, BROKEN))
    status, ((_, told), (_, silent)) = finish(ranks)
    assert status == [2, 2]
    assert told.splitlines()[-1] == "rrcluster run: rank 1 failed: no data here; get it."
    assert silent == ""


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_is_killed_ends_the_others(tmp_path, victim):
    ranks = launch(["run", *LONG, "--rounds", "300", "--out", "run"], tmp_path)
    try:
        await_rounds(tmp_path / "run", 2)
    finally:
        ranks[victim].kill()
        status, told = finish(ranks)
    assert status[1 - victim] == 2
    if victim == 1:
        assert "rank 1 is gone" in told[0][1].splitlines()[-1]


@pytest.mark.slow
def test_an_interrupted_run_is_resumed_on_two_ranks(tmp_path):
    whole, _ = finish(launch(["run", *LONG, "--rounds", "40", "--out", "whole"], tmp_path))
    ranks = launch(["run", *LONG, "--rounds", "40", "--out", "parts"], tmp_path)
    await_rounds(tmp_path / "parts", 3)
    for rank in ranks:  # as Ctrl-C does: the whole process group hears it
        rank.send_signal(signal.SIGINT)
    status, told = finish(ranks)
    assert "rrcluster run --resume parts" in told[0][1]
    resumed, _ = finish(launch(["run", "--resume", "parts"], tmp_path))
    assert (whole, status[0], resumed) == ([0, 0], 130, [0, 0])
    assert same_models(tmp_path / "whole", tmp_path / "parts")


@pytest.mark.slow
def test_mistakes_and_other_commands_are_told_once(tmp_path):
    for arguments, expected in [
        (["run", "--clientz", "5"], "clientz"),
        (["sweep", "grid.yaml"], "only `rrcluster run`"),
        (["run", "--secure"], "without torchrun"),
    ]:
        status, ((_, told), (_, silent)) = finish(launch(arguments, tmp_path))
        assert (status, silent) == ([2, 2], "")
        assert expected in told


def await_rounds(folder, count):
    for _ in range(1200):
        if (folder / "rounds.jsonl").exists() and len((folder / "rounds.jsonl").read_text().splitlines()) >= count:
            return
        time.sleep(0.1)
    raise AssertionError("no round was finished within two minutes")
