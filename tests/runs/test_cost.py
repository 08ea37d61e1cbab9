"""Whatever happens to a run, no epsilon that is printed is less than what its ledger holds, or what its plan allows."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import rrcluster as rr
from rrcluster.cli import main
from rrcluster.errors import RunFolderError

SETTINGS = {
    "data": "synthetic",
    "num_clients": 40,
    "num_clusters": 2,
    "num_rounds": 6,
    "sample_rate": 1.0,  # everybody: accounted in closed form
    "local_epochs": 1,
    "noise_multiplier": 1.0,
    "delta": 1e-3,
    "device": "cpu",
    "secure": True,
    "reserve_rounds": 30,
}

STOP = """
import json, os, signal, sys
import rrcluster.cli.run_command, rrcluster.runs.run  # once, for all children
from rrcluster import cli
from rrcluster.privacy.joint import JointMechanism

release = JointMechanism.release_total

def stop(left, how, command):
    def stopping(self, *args, **kwargs):
        nonlocal left
        left -= 1
        if left == 0 and how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if left == 0:
            raise KeyboardInterrupt
        return release(self, *args, **kwargs)

    JointMechanism.release_total = stopping
    cli.main(command)

for attempt in json.loads(sys.argv[1]):
    child = os.fork()
    if child == 0:
        try:
            stop(*attempt)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
"""


def stopped(*attempts):
    """Run commands one after another, each in a process that ends before its n-th release: killed, or as by Ctrl-C."""
    subprocess.run([sys.executable, "-c", STOP, json.dumps(attempts)], capture_output=True, check=True)


def flags(folder):
    given = {**SETTINGS, "clients": 40, "clusters": 2, "rounds": 6, "out": str(folder)}
    names = [name for name in given if name not in ("num_clients", "num_clusters", "num_rounds", "secure")]
    return ["run", "--secure", *(part for name in names for part in (f"--{name.replace('_', '-')}", str(given[name])))]


def charged(folder):
    return len((folder / "ledger.jsonl").read_text().splitlines())


def cost(folder):
    """What the accountant says of the charges that the ledger holds."""
    event = json.loads((folder / "ledger.jsonl").read_text().splitlines()[0])["event"]
    budget = rr.account(
        noise_multiplier=event["noise_multiplier"],
        sample_rate=event["sample_rate"],
        delta=1e-3,
        num_rounds=charged(folder),
        num_clients=40,
        num_clusters=2,
    )
    return budget["pld"].epsilon


def printed(folder, capsys):
    """Every epsilon that the folder's files state, and those that `rrcluster report` prints."""
    stated = [json.loads((folder / "privacy.json").read_text())["epsilon"]]
    if (folder / "summary.json").exists():
        stated.append(json.loads((folder / "summary.json").read_text())["epsilon"])
    rounds = folder / "rounds.jsonl"
    stated += [line["epsilon"] for line in map(json.loads, rounds.read_text().splitlines()) if "epsilon" in line]
    assert main(["report", str(folder)]) == 0
    table = capsys.readouterr().out
    (row,) = [line for line in table.splitlines() if "IFCA" in line and re.search(r"\d\.\d", line)][:1]
    return [*stated, float(re.search(r"\d+\.\d+", row).group())]


def test_after_ctrl_c_and_crashes_every_epsilon_covers_the_ledger(tmp_path, capsys):
    folder = tmp_path / "run"
    stopped((3, "interrupt", flags(folder)), *[(2, "kill", ["run", "--resume", str(folder)])] * 4)
    assert charged(folder) > 6
    assert min(printed(folder, capsys)) >= cost(folder)


def test_a_run_that_was_stopped_costs_what_its_plan_does(tmp_path, capsys):
    folder = tmp_path / "run"
    stopped((3, "interrupt", flags(folder)))
    plan = rr.account(noise_multiplier=1.0, sample_rate=1.0, delta=1e-3, num_rounds=36, num_clients=40, num_clusters=2)[
        "pld"
    ].epsilon
    assert min(printed(folder, capsys)) == pytest.approx(plan, rel=1e-6)


@pytest.fixture
def finished(tmp_path):
    rr.run(**SETTINGS, out=str(tmp_path / "run"))
    return tmp_path / "run"


def refused(folder: Path) -> str:
    from rrcluster.privacy.cost import folder_cost

    with pytest.raises(RunFolderError) as refusal:
        folder_cost(folder)
    assert main(["report", str(folder)]) == 2
    return str(refusal.value)


def test_more_charges_than_the_statement_covers_are_refused(finished):
    ledger = finished / "ledger.jsonl"
    ledger.write_text(ledger.read_text() * 7)
    assert "ledger.jsonl: holds 42 releases, but privacy.json covers 36" in refused(finished)


def test_a_ledger_of_other_releases_is_refused(finished):
    ledger = finished / "ledger.jsonl"
    ledger.write_text(ledger.read_text().replace('"noise_multiplier": 1.0', '"noise_multiplier": 0.5'))
    assert "describe different releases" in refused(finished)


def test_a_lost_ledger_is_refused(finished):
    (finished / "ledger.jsonl").unlink()
    assert "ledger.jsonl: is missing or empty, but summary.json shows 6 released" in refused(finished)


@pytest.mark.parametrize("lost", [1, 3])
def test_a_run_that_lost_charges_of_released_rounds_is_not_begun_anew(tmp_path, lost):
    from rrcluster.runs.experiment import build_experiment
    from rrcluster.runs.run import resume, start

    folder = tmp_path / "run"
    rounds = start(build_experiment(**SETTINGS, out=str(folder))).rounds()
    for _ in range(3):
        next(rounds)
    rounds.close()
    (folder / "checkpoint" / "state.safetensors").unlink()
    kept = (folder / "ledger.jsonl").read_text().splitlines(keepends=True)[:-lost]
    (folder / "ledger.jsonl").write_text("".join(kept))
    released = (folder / "rounds.jsonl").read_text()
    with pytest.raises(RunFolderError, match=r"but summary\.json shows 3 released"):
        resume(folder)
    assert (folder / "rounds.jsonl").read_text() == released
