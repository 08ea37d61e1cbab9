"""The command line as a person meets it; where no process of its own is needed, in this one, which saves seconds."""

import contextlib
import io
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from rrcluster.cli import main

TINY = [
    *("--clients", "60", "--max-samples", "20", "--rounds", "4", "--sample-rate", "0.5", "--local-epochs", "1"),
    *("--noise-multiplier", "1", "--delta", "1e-3", "--device", "cpu"),
]


def rrcluster(*arguments, cwd="."):
    """Run a command in this process: its exit status and what it wrote."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.chdir(cwd), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = main(list(arguments))
        except SystemExit as stop:
            status = stop.code or 0
    return SimpleNamespace(returncode=status, stdout=out.getvalue(), stderr=err.getvalue())


def rrcluster_process(*arguments, cwd=None):
    return subprocess.run(
        [sys.executable, "-c", "from rrcluster.cli import main; raise SystemExit(main())", *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        timeout=120,
    )


def test_help_answers_at_once_and_lists_the_commands():
    began = resource.getrusage(resource.RUSAGE_CHILDREN)
    answer = rrcluster_process("--help")
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)  # processor time: others may keep the processor busy
    assert ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime < 0.5
    assert answer.returncode == 0
    for word in ("run", "sweep", "account", "audit", "theory", "data", "assign", "report", "Start here"):
        assert word in answer.stdout


@pytest.mark.parametrize("command", ["run", "sweep", "account", "audit", "theory", "data", "assign", "report"])
def test_every_command_explains_itself(command):
    answer = rrcluster(command, "--help")
    assert answer.returncode == 0
    assert "--json" in answer.stdout


def test_run_help_uses_the_documented_flags():
    text = rrcluster("run", "--help-all").stdout
    for flag in (
        *("--data", "--partition", "--clients", "--clusters", "-k", "--sample-rate", "--rounds", "--algorithm"),
        *("--mechanism", "-B", "--size-floor", "--epsilon", "--delta", "--noise-multiplier"),
        *("--update-clip", "--count-weight", "--local-lr", "--local-epochs", "--batch-size", "--server-lr", "--model"),
        *("--seed", "--seeds", "--device", "--out", "--resume", "--tensorboard", "--json", "--dry-run"),
        *("--secure", "--reserve-rounds", "--max-epsilon"),
    ):
        assert flag in text, flag


def test_switches_say_what_they_do():
    assert "Do not open the page" in " ".join(rrcluster("watch", "--help").stdout.split())
    assert "Exploration of the run" in " ".join(rrcluster("advise", "--help-all").stdout.split())
    assert "rrcluster run --data clients.csv" in rrcluster("--help").stdout


def test_a_run_that_noise_leaves_nothing_says_so(tmp_path):
    answer = rrcluster_process("run", *TINY, "--noise-multiplier", "50", "-q", "--out", "here", cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    assert "signal-to-noise ratio" in answer.stderr


def test_a_run_prints_a_table_and_names_its_folder(tmp_path):
    answer = rrcluster_process("run", *TINY, "--out", "here", cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    assert "DP-IFCA" in answer.stdout
    assert "diagnostic, not private" in answer.stdout
    assert "for research only" in answer.stderr
    for step in ("rrcluster report here", "rrcluster assign here --out", 'rrcluster.load("here").module(0)'):
        assert step in answer.stderr
    assert (tmp_path / "here" / "models.safetensors").exists()


def test_a_secure_run_shows_no_diagnostics_and_is_not_marked(tmp_path):
    answer = rrcluster("run", *TINY, "--secure", "--reserve-rounds", "1", "--out", "here", cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    assert "exact noise from the operating system" in answer.stderr
    for word in ("research", "NOT PRIVATE", "seed", "accuracy"):
        assert word not in answer.stderr
    assert "No diagnostics were written" in " ".join(answer.stdout.split())
    assert not (tmp_path / "here" / "diagnostics.jsonl").exists()
    assert rrcluster("report", "here", cwd=tmp_path).returncode == 0
    page = (tmp_path / "here" / "report.html").read_text()
    assert "NOT PRIVATE" not in page
    assert "no seed was used" in page
    assert "discrete Gaussian" in page


def test_json_is_json_and_nothing_else(tmp_path):
    answer = rrcluster("run", *TINY, "--out", "here", "--json", cwd=tmp_path)
    (told,) = json.loads(answer.stdout)
    assert told["rounds_done"] == 4
    assert "accuracy" in told["diagnostic_not_private"]
    assert answer.stderr == ""


def test_yaml_then_flags(tmp_path):
    (tmp_path / "mine.yaml").write_text("num_clients: 60\nnum_rounds: 9\nnoise_multiplier: 1.0\ndelta: 1e-3\n")
    answer = rrcluster("run", "mine.yaml", "--rounds", "2", "--sample-rate", "0.5", "--dry-run", "--json", cwd=tmp_path)
    told = json.loads(answer.stdout)
    assert told["expected_cohort"] == 30
    assert (told["init"], told["init_rounds"]) == ("independent", 0)
    assert told["noise_multiplier"] == 1.0
    assert told["epsilon"] > 0
    assert told["seconds_per_round"] > 0
    assert not (tmp_path / "runs").exists()


def test_seeds_get_folders_of_their_own(tmp_path):
    answer = rrcluster("run", *TINY, "--seeds", "3", "5", "--out", "here", cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    assert {path.name for path in (tmp_path / "here").iterdir()} == {"seed-3", "seed-5"}
    assert "±" in answer.stdout


def test_report_writes_what_it_says(tmp_path):
    rrcluster("run", *TINY, "--out", "runs/one", cwd=tmp_path)
    answer = rrcluster("report", "runs/one", "--json", cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    assert "Method" in json.dumps(json.loads(answer.stdout))
    for name in ("report.html", "table.csv", "table.tex", "figures"):
        assert (tmp_path / "runs" / "one" / name).exists()


def test_account_gives_the_documented_multipliers():
    common = ("--epsilon", "2", "--delta", "1e-3", "--sample-rate", "0.1", "--rounds", "100", "--json")
    joint = json.loads(rrcluster("account", "--mechanism", "joint", *common).stdout)
    by_name = {row["accountant"]: row for row in joint["rows"]}
    assert by_name["pld"]["noise_multiplier"] == pytest.approx(1.674, abs=0.003)
    identifier = json.loads(rrcluster("account", "--mechanism", "identifier", *common).stdout)
    by_name = {row["accountant"]: row for row in identifier["rows"]}
    assert by_name["rdp"]["noise_multiplier"] == pytest.approx(3.385, abs=0.003)
    assert by_name["pld"]["noise_multiplier"] == pytest.approx(1.813, abs=0.003)
    assert by_name["paper"]["noise_multiplier"] is None
    assert "2.22" in by_name["paper"]["reason"] or "2.23" in by_name["paper"]["reason"]


def test_data_list_and_check():
    told = {row["name"] for row in json.loads(rrcluster("data", "list", "--json").stdout)}
    assert {"fashion-mini", "fashion-mnist", "synthetic"} <= told
    assert "rrcluster data get NAME" in rrcluster("data", "list", "--folder", "/nowhere").stderr
    assert rrcluster("data", "check", "fashion-mini").returncode == 0
    missing = rrcluster("data", "check", "fashion-mnist", "--folder", "/nowhere")
    assert missing.returncode == 1
    assert "rrcluster data get fashion-mnist" in missing.stderr


BAD = {
    "unknown command": (["rum"], "command = 'rum' is not known; did you mean run\\?"),
    "unknown flag": (["run", "--epsilom", "3"], "--epsilom is not an option; did you mean --epsilon\\? See"),
    "not a number": (["run", "--epsilon", "much"], "--epsilon much should be a number. See"),
    "not whole": (["run", "--rounds", "1.5"], "--rounds 1.5 should be a whole number. See"),
    "a table as settings": (["run", "x.csv"], "x.csv is a table, .*; give it as --data x.csv"),
    "unknown choice": (["run", "--mechanism", "laplace"], "laplace.*joint"),
    "impossible B": (["run", "-B", "30"], "B\\) = 30 needs 120 clients for 4 clusters, but a cohort has 100; lower B"),
    "delta": (["run", "--delta", "0.01"], "delta = 0.01 is more than 1/num_clients"),
    "missing data": (["run", "--data", "fashion-mnist", "--data-folder", "nowhere"], "nowhere.*rrcluster data get"),
    "missing yaml": (["run", "nothing.yaml"], "nothing.yaml: no such file"),
    "resume nothing": (["run", "--resume", "nothing"], "nothing: no run here"),
    "resume with settings": (["run", "--resume", "x", "--epsilon", "3"], "takes all settings from the run folder"),
    "unwritable": (["run", *TINY, "--out", "/proc/none/here"], "/proc/none/here: cannot be written.*--out"),
    "report nothing": (["report"], "needs at least one run folder"),
    "report no run": (["report", "."], "no run"),
    "account none": (["account", "--mechanism", "none"], "it has no epsilon"),
    "audit what": (["audit", "--mechanism", "none"], "none.*joint"),
    "audit method": (
        ["audit", "--algorithm", "fedsgd"],
        "algorithm = 'fedsgd' is not known .did you mean 'fed.*choose one of",
    ),
    "data unknown": (["data", "get", "mnist3d"], "mnist3d.*choose one of"),
    "data unnamed": (["data", "check"], "needs the name of a dataset"),
    "secure with a seed": (["run", "--secure", "--seed", "3"], "run: secure .* takes no seed"),
    "secure without noise": (["run", "--secure", "--mechanism", "none"], "adds no noise"),
    "low ceiling": (["run", *TINY, "--max-epsilon", "0.001"], "less than one round costs.*raise it"),
    "a flag that is gone": (["run", "--sampling", "fixed-size"], "sampling"),
    "a setting that is gone": (["run", "old.yaml"], "setting 'sampling' is gone: every mechanism has its own sampling"),
    "damaged yaml": (["run", "damaged.yaml"], "damaged.yaml: cannot be read as YAML"),
    "truncated data": (["run", "--data", "fashion-mnist", "--data-folder", "truncated"], "train-images"),
}


@pytest.mark.parametrize(("arguments", "text"), BAD.values(), ids=BAD.keys())
def test_bad_usage_is_one_line_with_the_way_out(arguments, text, tmp_path):
    (tmp_path / "damaged.yaml").write_text("{unclosed")
    (tmp_path / "old.yaml").write_text("sampling: fixed-size\n")
    (tmp_path / "truncated").mkdir()
    for name in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        (tmp_path / "truncated" / f"{name}-ubyte.gz").write_bytes(b"\x1f\x8b\x08\x00")
    answer = rrcluster(*arguments, cwd=tmp_path)
    assert answer.returncode == 2
    first = answer.stderr.splitlines()[0]
    assert re.search(text, first), first
    assert "Traceback" not in answer.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "damaged.yaml",
        "old.yaml",
        "truncated",
    ]  # nothing half-written


def test_a_mistake_ends_a_process_with_status_2_and_no_traceback(tmp_path):
    answer = rrcluster_process("run", "--resume", "nothing", cwd=tmp_path)
    assert answer.returncode == 2
    assert answer.stderr.startswith("rrcluster run: nothing: no run here")
    assert len(answer.stderr.splitlines()) == 1


EARLY = {
    "B": (["-B", "30"], "lower B"),
    "delta": (["--delta", "0.01"], "more than 1/num_clients"),
    "two budgets": (["--epsilon", "2", "--noise-multiplier", "1"], "give exactly one of epsilon"),
    "taken folder": (["--out", "taken"], "taken already holds a run"),
    "taken name": (["--name", "mine"], "already holds a run"),
}


@pytest.mark.parametrize(("arguments", "text"), EARLY.values(), ids=EARLY.keys())
def test_what_needs_no_torch_is_refused_before_it_is_imported(arguments, text, tmp_path):
    for folder in ("taken", "runs/mine"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "config.yaml").write_text("")
    code = (
        "import sys\nfrom rrcluster.cli import main\nstatus = main()\n"
        "sys.exit(3 if 'torch' in sys.modules or 'scipy' in sys.modules else status)"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code, "run", *arguments], capture_output=True, text=True, cwd=tmp_path, timeout=60
    )
    assert answer.returncode == 2
    assert text in answer.stderr


def test_help_names_types_and_no_none():
    text = rrcluster("run", "--help").stdout
    assert "{None}" not in text
    assert "--epsilon FLOAT" in text


def test_default_runs_do_not_collide_and_a_stopped_sweep_of_seeds_goes_on(tmp_path, monkeypatch):
    """In one process: imports of torch would take longer than the runs."""
    from rrcluster.cli import main
    from rrcluster.runs import run

    monkeypatch.chdir(tmp_path)
    few = [*TINY, "--rounds", "1", "--quiet"]
    assert main(["run", *few]) == 0
    assert main(["run", *few]) == 0
    first = tmp_path / "runs" / "fashion-mini-ifca-joint-noise1"
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == [first.name, f"{first.name}-2"]

    honest, begun = run.start, []

    def start(experiment):
        begun.append(experiment.config.seed)
        if len(begun) == 2:
            raise KeyboardInterrupt
        return honest(experiment)

    monkeypatch.setattr(run, "start", start)
    assert main(["run", *few, "--seeds", "0", "1", "2"]) == 130
    third = tmp_path / "runs" / f"{first.name}-3"
    assert [path.name for path in third.iterdir()] == ["seed-0"]
    before = (third / "seed-0" / "ledger.jsonl").stat().st_mtime_ns
    assert main(["run", *few, "--seeds", "0", "1", "2"]) == 0
    assert begun == [0, 1, 1, 2]  # seed 0 was not run again
    assert sorted(path.name for path in third.iterdir()) == ["seed-0", "seed-1", "seed-2"]
    assert (third / "seed-0" / "ledger.jsonl").stat().st_mtime_ns == before
    assert main(["run", *few, "--seeds", "0", "1", "--local-lr", "0.1"]) == 0  # other settings, other folder
    assert (tmp_path / "runs" / f"{first.name}-4" / "seed-1").exists()


def test_ctrl_c_outside_of_a_run_ends_without_a_traceback(monkeypatch, capsys):
    from rrcluster.cli import main, report_command

    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(report_command, "main", interrupted)
    assert main(["report", "x"]) == 130
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("moment", [0.05, 0.2, 0.6, 1.5])
def test_ctrl_c_at_any_moment_ends_without_a_traceback(moment, tmp_path):
    code = "import sys\nfrom rrcluster.cli import main\nprint('up', flush=True)\nsys.exit(main())"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "run", *TINY, "--rounds", "4000", "--out", "here"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert process.stdout.readline() == "up\n"
    time.sleep(moment)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in errors


def test_completion_is_printed_for_a_command():
    printed = rrcluster("run", "--tyro-print-completion", "bash")
    assert printed.returncode == 0
    assert all(option in printed.stdout for option in ("--epsilon", "--resume", "--start-from"))
    gone = rrcluster("--install-completion", "bash")
    assert (gone.returncode, gone.stdout) == (2, "")
    assert "--tyro-print-completion" in gone.stderr


def test_torchrun_is_answered_with_what_replaces_it(monkeypatch, tmp_path):
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    refused = rrcluster("run", *TINY, cwd=tmp_path)
    assert refused.returncode == 2
    assert refused.stderr.startswith("rrcluster run: runs share no work among torchrun's ranks")
    assert "--processes" in refused.stderr
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_leaves_a_run_that_can_be_resumed(tmp_path):
    command = [sys.executable, "-c", "from rrcluster.cli import main; raise SystemExit(main())"]
    everybody = ["--sample-rate", "1"]  # accounted in closed form
    arguments = ["run", *TINY, *everybody, "--rounds", "4000", "--out", "here", "--evaluate-every", "10000"]
    process = subprocess.Popen(
        [*command, *arguments],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    rounds = tmp_path / "here" / "rounds.jsonl"
    for _ in range(1200):
        if rounds.exists() and rounds.read_text().count("\n") >= 2:
            break
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "rrcluster run --resume here" in errors
    assert "Traceback" not in errors
    assert json.loads((tmp_path / "here" / "summary.json").read_text())["status"] == "stopped"
    config = tmp_path / "here" / "config.yaml"
    done = len(rounds.read_text().splitlines())
    assert (tmp_path / "here" / "checkpoint" / "state.safetensors").exists()
    assert "num_rounds: 4000" in config.read_text()
    assert len((tmp_path / "here" / "ledger.jsonl").read_text().splitlines()) >= done


def test_a_terminal_shows_what_a_run_waits_for(monkeypatch, capsys):
    from rrcluster.cli.terminal import waiting

    with waiting("Importing PyTorch"):
        pass
    assert capsys.readouterr().err == ""  # in a pipe the first line is a result, or an error
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    with waiting("Importing PyTorch"):
        pass
    assert "Importing PyTorch ..." in capsys.readouterr().err


def test_the_list_of_datasets_fits_80_columns(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("rich.console.Console.is_terminal", True)
    assert main(["data", "list"]) == 0
    shown = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    assert max(map(len, shown.splitlines())) <= 80
