"""What an operations team needs: figures, health, copies that cannot be spent twice, verbs, words for other readers."""

import json
import shutil
import socket
import stat
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import yaml
from folder_lab import HONEST, REHEARSAL, SECURE, do, listening, short_folder, signed
from network_lab import free_port
from prometheus_client.parser import text_string_to_metric_families

from rrcluster.cli import main
from rrcluster.errors import ConfigError, PrivacyError
from rrcluster.federation import children
from rrcluster.federation.agreement import Agreement
from rrcluster.federation.client_ledger import ledger_of
from rrcluster.federation.commands.sheet import sheet_text
from rrcluster.federation.federation_folder import METRICS, FederationFolder
from rrcluster.federation.member_folder import MemberFolder
from rrcluster.federation.metrics import _HELP, metrics_text, show_figures

DEPLOY = Path(__file__).parents[2] / "deploy"


@pytest.fixture
def base():
    with short_folder() as path:
        yield path


def serve(base):
    return main(["federation", "serve", str(base / "trial"), "--transport", "local", "--members", str(base), "-q"])


def parsed(text):
    """Name -> value, as Prometheus' own library reads it."""
    families = list(text_string_to_metric_families(text))
    assert all(family.type == "gauge" and family.documentation for family in families)
    return {sample.name: sample.value for family in families for sample in family.samples}


def asked(path, target):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(20)
        connection.connect(str(path))
        connection.sendall(f"GET {target} HTTP/1.1\r\nHost: member\r\n\r\n".encode())
        answer = b""
        while part := connection.recv(4096):
            answer += part
    head, _, body = answer.decode().partition("\r\n\r\n")
    return int(head.split()[1]), body


def fails(capsys, text, *arguments):
    capsys.readouterr()
    assert main(["federation", *map(str, arguments)]) == 2
    assert text in capsys.readouterr().err


def test_server_and_daemons_show_figures_that_prometheus_reads(base, capsys):
    trial = signed(base, {**REHEARSAL, **SECURE}, *HONEST)
    with listening([base / f"m{place}" for place in range(3)]):
        own = base / "m1" / "daemon.sock"
        assert asked(own, "/health") == (200, "ok\n")
        assert asked(own, "/identity.key") == (404, "")
        assert serve(base) == 0
        status, text = asked(own, "/metrics")
    assert status == 200
    member = parsed(text)
    assert member == {
        "rrcluster_up": 1, "rrcluster_rounds_planned": 2, "rrcluster_attempts_allowed": 4,
        "rrcluster_attempts_joined": 2, "rrcluster_refused": 0,
    }  # fmt: skip
    file = trial / "server" / METRICS
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    server = parsed(file.read_text())
    assert abs(server.pop("rrcluster_last_message_seconds") - time.time()) < 600
    assert abs(server.pop("rrcluster_last_release_seconds") - time.time()) < 600
    sizes = json.loads((trial / "run" / "rounds.jsonl").read_text().splitlines()[-1])["sizes"]
    assert server.pop("rrcluster_released_size") == pytest.approx(sum(sizes))
    assert server == {
        "rrcluster_up": 1, "rrcluster_rounds_planned": 2, "rrcluster_rounds_done": 2, "rrcluster_releases_allowed": 4,
        "rrcluster_releases_charged": 2, "rrcluster_reserve_left": 2, "rrcluster_finished": 1,
        "rrcluster_expected_size": 30, "rrcluster_members": 3, "rrcluster_members_needed": 2,
        "rrcluster_members_connected": 3,
    }  # fmt: skip


def fetched(port, target):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{target}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, ""


def test_serve_shows_its_figures_to_prometheus_on_the_loopback_interface(tmp_path):
    file, port = tmp_path / METRICS, free_port()
    with show_figures(port, file):
        assert fetched(port, "/metrics") == (404, "")  # no message yet
        file.write_text(metrics_text({"up": 1.0, "rounds_done": 2}))
        status, text = fetched(port, "/metrics")
        assert (status, parsed(text)) == (200, {"rrcluster_up": 1, "rrcluster_rounds_done": 2})
        assert fetched(port, "/health") == (200, "ok\n")
        assert fetched(port, "/server.key") == (404, "")
        with pytest.raises(ConfigError, match="this port cannot be used"), show_figures(port, file):
            pass
        with pytest.raises(ConfigError, match="this port cannot be used"), show_figures(65536, file):
            pass
    with pytest.raises(OSError, match="refused"):
        fetched(port, "/health")
    with show_figures(None, file):
        pass


def test_who_asks_for_figures_and_goes_leaves_no_traceback(tmp_path, capfd):
    file, port = tmp_path / "figures", free_port()
    file.write_bytes(bytes(5 * 10**7))  # more than fits in buffers
    with show_figures(port, file):
        with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
            connection.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            assert connection.recv(10)
        time.sleep(0.5)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("secure", [False, True])
def test_where_cohorts_are_secret_no_figure_tells_who_was_in_one_or_when(base, secure):
    settings = {**REHEARSAL, "participation": "poisson", "secure": secure}
    trial = signed(base, settings, "--mode", "plain")
    with listening([base / f"m{place}" for place in range(3)], engine="reference"):
        assert serve(base) == 0
        _, text = asked(base / "m0" / "daemon.sock", "/metrics")
    assert set(parsed(text)) == {"rrcluster_up", "rrcluster_rounds_planned", "rrcluster_attempts_allowed"}
    server = parsed((trial / "server" / METRICS).read_text())
    assert server["rrcluster_rounds_done"] == 2
    assert not {name for name in server if "connected" in name or name.endswith("_seconds")}


def test_alerts_are_about_figures_that_are_shown():
    (group,) = yaml.safe_load((DEPLOY / "alerts.yaml").read_text())["groups"]
    names = {f"rrcluster_{name}" for name in _HELP}
    used = set()
    for rule in group["rules"]:
        words = "".join(mark if mark.isalnum() or mark == "_" else " " for mark in rule["expr"]).split()
        used |= {word for word in words if word.startswith("rrcluster_")}
        assert set(rule) <= {"alert", "expr", "for", "annotations"}
    assert {"rrcluster_released_size", "rrcluster_reserve_left"} <= used <= names


def test_three_members_take_six_files_and_twelve_commands(base, capsys):
    """The secure training of docs/federation.md: all that is typed, on all machines, and carried between them."""
    (base / "settings.yaml").write_text(yaml.safe_dump({**REHEARSAL, **SECURE}))
    trial, names, typed, carried = base / "trial", ["m0", "m1", "m2"], 0, 0
    do("init", trial, base / "settings.yaml", "--least-honest", "2", "--most-colluders", "0")
    for name in names:
        do("join", base / name, "--name", name, "--clients", "10")
        shutil.copy(base / name / "request.json", base / f"{name}.json")
        carried += 1
    do("accept", trial, *(base / f"{name}.json" for name in names), "--close")
    assert "ok    guarantee" in (said := capsys.readouterr().out), said
    for name in names:
        shutil.copy(trial / "agreement.json", base / "agreement.json")
        carried += 1
        do("sign", base / name, base / "agreement.json", "--yes")
        assert (base / name / "ca.pem").read_text() == (trial / "ca.pem").read_text()
    assert FederationFolder(trial).missing_consents(FederationFolder(trial).agreement()) == names
    table, program = base / "clusters.csv", [sys.executable, "-m", "rrcluster", "federation", "client", base / "m2"]
    with listening([base / "m0", base / "m1"]):
        daemon = subprocess.Popen([*program, "--engine", "batched", "--out", table], stderr=subprocess.DEVNULL)
        try:
            deadline = time.monotonic() + 120
            while not (base / "m2" / "daemon.sock").exists() and time.monotonic() < deadline:
                time.sleep(0.1)
            assert serve(base) == 0
        finally:
            daemon.terminate()
            daemon.wait()
    assert len(table.read_text().splitlines()) == 11
    typed = 1 + 3 + 1 + 3 + 3 + 1  # init, join, accept, sign, client, serve
    assert (typed, carried) == (12, 6)
    assert FederationFolder(trial).missing_consents(FederationFolder(trial).agreement()) == []


def test_consents_are_asked_of_daemons_and_those_that_never_signed_are_named(base, capsys):
    trial = signed(base, {**REHEARSAL, **SECURE}, *HONEST)
    shutil.rmtree(trial / "consents")
    with listening([base / "m0", base / "m1"]):
        fails(capsys, "m2 have not signed", "serve", trial, "--transport", "local", "--members", base)
        do("accept", trial, base / "m2" / "consent.json")
        assert (
            main(["federation", "serve", str(trial), "--transport", "local", "--members", str(base), "--seconds", "5"])
            == 2
        )
    assert (trial / "run" / "models.safetensors").exists(), "m2 does not have them"


def test_a_restored_member_takes_no_part_in_what_it_signed_and_its_cost_counts(base, capsys):
    signed(base, {**REHEARSAL, **SECURE}, *HONEST)
    do("backup", base / "m0", base / "copy")  # before anything was joined
    with listening([base / f"m{place}" for place in range(3)]):
        assert serve(base) == 0
    shutil.rmtree(base / "m0")
    fails(capsys, "could be spent twice; give --nothing-signed-since", "restore", base / "copy", base / "m0")
    do("restore", base / "copy", base / "m0", "--nothing-signed-since")
    assert stat.S_IMODE((base / "m0" / "identity.key").stat().st_mode) == 0o600
    assert stat.S_IMODE((base / "m0").stat().st_mode) == stat.S_IMODE((base / "copy").stat().st_mode) == 0o700
    folder = MemberFolder(base / "m0")
    digest, ledger = folder.agreement().digest, ledger_of(folder)
    assert ledger.joined(digest) == 1  # so that its cost is in every sum
    with pytest.raises(PrivacyError, match="restored copy, and takes no part"):
        ledger.join(digest, 0, 99, limit=4)
    fails(capsys, "restored before; two folders with one budget", "restore", base / "copy", base / "twin")
    assert not (base / "twin").exists()


def test_a_moved_folder_goes_on_elsewhere_and_not_here(base, capsys):
    signed(base, {**REHEARSAL, **SECURE}, *HONEST)
    with listening([base / "m1"]):
        pass
    do("backup", base / "m1", base / "copy", "--move")
    fails(capsys, "was moved by `backup --move`", "client", base / "m1")
    fails(capsys, "was moved already", "backup", base / "m1", base / "again")
    fails(capsys, "exists already", "restore", base / "copy", base / "m2")
    do("restore", base / "copy", base / "new")
    folder = MemberFolder(base / "new")
    ledger_of(folder).join(folder.agreement().digest, 0, 0, limit=4)
    do("backup", base / "trial", base / "server", "--move")
    fails(capsys, "was moved by `backup --move`", "serve", base / "trial", "--transport", "local", "--members", base)


def test_a_damaged_copy_or_none_is_refused_and_a_server_that_was_restored_releases_no_round_again(base, capsys):
    trial = signed(base, {**REHEARSAL, **SECURE}, *HONEST)
    do("backup", base / "m0", base / "copy")
    (base / "copy" / "ledger.jsonl").write_text("")
    fails(capsys, "missing or damaged", "restore", base / "copy", base / "other")
    fails(capsys, "is not a complete copy", "restore", base / "m0", base / "other")
    fails(capsys, "is not the folder of a federation", "backup", base, base / "other")
    assert not (base / "other").exists()
    checkpoint = trial / "run" / "checkpoint"
    checkpoint.mkdir(parents=True)
    (checkpoint / "state.safetensors").write_bytes(b"private")
    do("backup", trial, base / "server")
    assert not (base / "server" / "run" / "checkpoint").exists(), "an old state would repeat rounds"
    assert (base / "server" / "server" / "ca.key").exists()


def test_a_sheet_says_what_the_agreement_says_and_no_other(base, tmp_path):
    trial = signed(base, {**REHEARSAL, **SECURE}, *HONEST)
    agreement = Agreement.read(trial / "agreement.json")
    text = sheet_text(agreement)
    assert agreement.digest.hex() in text
    for said in ("3 members", "30 clients", "2 rounds, 4 attempts", "**", "zero", "has to be true"):
        assert said in text
    assert "{" not in text
    facts = json.loads((trial / "agreement.json").read_text())
    facts["guarantee"]["epsilon"] /= 2
    (tmp_path / "forged.json").write_text(json.dumps(facts))
    with pytest.raises(ConfigError, match="the agreement states epsilon"):
        sheet_text(Agreement.read(tmp_path / "forged.json"))


def test_a_plain_sheet_says_that_the_server_is_trusted(base):
    trial = signed(base, REHEARSAL, "--mode", "plain")
    text = sheet_text(Agreement.read(trial / "agreement.json"))
    assert "**The server is trusted**" in text
    assert "seeded and protects nobody" in text
    assert "{" not in text


def test_a_long_log_is_put_aside(tmp_path, monkeypatch):
    monkeypatch.setattr(children, "_LONGEST_LOG", 100)
    (tmp_path / "gate.log").write_text("x" * 200)
    process = children.start_module("this", log=tmp_path / "gate.log")
    assert process.wait(60) == 0
    assert (tmp_path / "gate.log.1").read_text() == "x" * 200
    assert "Zen" in (tmp_path / "gate.log").read_text()
    assert stat.S_IMODE((tmp_path / "gate.log").stat().st_mode) == 0o600
