"""The run folder and the agreement of a federation, edited: every command that quotes its epsilon refuses them."""

import json
import shutil

import pytest
from folder_lab import HONEST, REHEARSAL, SECURE, do, listening, short_folder, signed

from rrcluster.cli import main


@pytest.fixture(scope="module", params=["secure", "plain"])
def trained(request):
    settings, options = ({**REHEARSAL, **SECURE}, HONEST) if request.param == "secure" else (REHEARSAL, [])
    with short_folder() as base:
        trial = signed(base, settings, *(options or ["--mode", "plain"]))
        with listening([base / f"m{place}" for place in range(3)]):
            do("serve", trial, "--transport", "local", "--members", base, "--quiet")
        yield base


def commands(base):
    trial = base / "trial"
    return {
        "status": ["federation", "status", str(trial)],
        "report": ["report", str(trial / "run"), "--table-only"],
        "account": ["account", str(trial / "run")],
        "serve again": ["federation", "serve", str(trial), "--transport", "local", "--members", str(base), "--quiet"],
    }


def edited(path, **changes):
    content = json.loads(path.read_text())
    for name, value in changes.items():
        content[name] = value(content[name]) if callable(value) else value
    path.write_text(json.dumps(content))


def half(value):
    return value / 2


EDITS = {
    "epsilon": ("privacy.json", lambda run: edited(run / "privacy.json", epsilon=half)),
    "delta": ("privacy.json", lambda run: edited(run / "privacy.json", delta=half)),
    "relation": ("privacy.json", lambda run: edited(run / "privacy.json", adjacency="replace-one")),
    "members": (
        "privacy.json",
        lambda run: edited(
            run / "privacy.json",
            participation=lambda about: (
                about | {"towards": [about["towards"][0], about["towards"][1] | {"epsilon": 1}]}
            ),
        ),
    ),
    "emptied ledger": ("ledger.jsonl", lambda run: (run / "ledger.jsonl").write_text("")),
    "summary": ("summary.json", lambda run: edited(run / "summary.json", epsilon=half)),
}


@pytest.mark.parametrize("name", EDITS)
def test_an_edited_run_folder_is_refused_by_every_command(trained, capsys, name, tmp_path):
    file, edit = EDITS[name]
    run = trained / "trial" / "run"
    shutil.copytree(run, tmp_path / "whole")
    edit(run)
    try:
        for command, arguments in commands(trained).items():
            capsys.readouterr()
            assert (command, main(arguments)) == (command, 2)
            error = capsys.readouterr().err
            assert f"{run}/" in error
            assert file in error
    finally:
        shutil.rmtree(run)
        shutil.copytree(tmp_path / "whole", run)


def test_a_run_folder_that_agrees_is_refused_by_no_command(trained, capsys):
    for command, arguments in list(commands(trained).items())[:3]:
        assert (command, main(arguments)) == (command, 0)


def test_an_agreement_that_states_another_epsilon_is_not_quoted(trained, capsys):
    path = trained / "trial" / "agreement.json"
    whole = path.read_bytes()
    edited(path, guarantee=lambda stated: stated | {"epsilon": 1.0})
    try:
        assert main(["federation", "status", str(trained / "trial")]) == 2
        assert "the agreement states epsilon = 1.0, and its settings give" in capsys.readouterr().err
    finally:
        path.write_bytes(whole)
