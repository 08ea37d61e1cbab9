"""`rrcluster federation` from settings to models, in folders as operators have them; daemons are threads here."""

import dataclasses
import json
import stat
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from federation_lab import deal_falsely
from folder_lab import HONEST, REHEARSAL, SECURE, do, enrolled, listening, short_folder, signed

from rrcluster.audit.run_folders import ALLOWED, _unlisted
from rrcluster.cli import main
from rrcluster.errors import ConfigError, DataError
from rrcluster.federation import readiness
from rrcluster.federation.certificates import make_authority
from rrcluster.federation.client_ledger import ClientLedger, cost_together
from rrcluster.federation.commands.serve import RoundReport
from rrcluster.federation.federation_folder import FederationFolder
from rrcluster.federation.member_folder import MemberFolder
from rrcluster.privacy.cost import epsilon_text
from rrcluster.runs.experiment import build_experiment
from rrcluster.runs.load import load
from rrcluster.settings import ColumnSettings


@pytest.fixture
def base():
    with short_folder() as folder:
        yield folder


def fails(capsys, text, *arguments):
    capsys.readouterr()
    assert main(["federation", *map(str, arguments)]) == 2
    assert text in capsys.readouterr().err


def test_without_a_word_on_participation_no_epsilon_rests_on_secret_cohorts(base, capsys):
    plain = {name: value for name, value in REHEARSAL.items() if name not in ("participation", "sample_rate")}
    for place, (given, expected) in enumerate([({}, "everybody"), ({"sample_rate": 0.5}, None)]):
        (base / "settings.yaml").write_text(yaml.safe_dump(plain | given))
        do("init", base / f"trial-{place}", base / "settings.yaml", "--mode", "plain")
        settings = FederationFolder(base / f"trial-{place}").draft()["settings"]
        assert settings.get("participation") == expected
        assert ("participation = everybody" in "".join(capsys.readouterr())) == (expected is not None)


def test_a_secure_training_from_settings_to_models(base, capsys):
    trial = signed(base, {**REHEARSAL, **SECURE}, *HONEST)
    members = [base / f"m{place}" for place in range(3)]
    with listening(members):
        do("serve", trial, "--transport", "local", "--members", base, "--quiet")
        assert main(["federation", "check", str(trial)]) in (0, 1)
        checked = capsys.readouterr().out
        assert main(["federation", "check", str(members[2])]) in (0, 1)
        checked += capsys.readouterr().out
    assert "ok    daemon           answers" in checked
    run = trial / "run"
    stated = json.loads((run / "privacy.json").read_text())
    assert stated["adjacency"] == "zero-out"
    assert [claim["neighbours"] for claim in stated["participation"]["towards"]] == ["zero-out"] * 2
    assert stated["federation"]["towards"].startswith("the server and observers of the models, but not the members")
    assert stated["participation"]["towards"][1]["epsilon"] > 1.4 * stated["epsilon"]  # with one share of two
    assert not any("server is trusted" in note for note in stated["notes"])
    agreed = json.loads((trial / "agreement.json").read_text())["guarantee"]
    assert (
        (stated["epsilon"], stated["num_releases"])
        == (agreed["epsilon"], agreed["num_releases"])
        == (
            pytest.approx(agreed["epsilon"]),
            4,
        )
    )
    assert not (run / "diagnostics.jsonl").exists()
    assert [entry for entry in _unlisted(run) if "in cluster-" not in entry] == []  # layers of another model
    assert set(stated) <= ALLOWED["privacy.json"]
    capsys.readouterr()
    assert main(["account", str(run), "--json"]) == 0  # what it costs beside other runs: under its own relation
    assert json.loads(capsys.readouterr().out)["adjacency"] == "zero-out"
    released = load(run)
    for member in members:
        np.testing.assert_array_equal(load(member / "released").models.clustered, released.models.clustered)
    capsys.readouterr()
    do("status", trial, "--json")
    told = json.loads(capsys.readouterr().out)
    assert (told["round"], told["releases charged"], told["finished"]) == ("2 of 2", 2, True)
    assert told["answered it"] == ["m0", "m1", "m2"]
    do("status", members[0], "--json")
    assert json.loads(capsys.readouterr().out)["attempts joined"] == 2
    do("client", members[1], "--fetch", "--out", base / "table.csv", "--personalise", base / "own.safetensors")
    assert len((base / "table.csv").read_text().splitlines()) == 13
    (members[2] / "released" / "models.safetensors").unlink()  # as if it had been away
    again = ["serve", trial, "--transport", "local", "--members", base]
    with listening(members[2:]):
        assert main(["federation", *map(str, again), "--seconds", "1"]) == 2
        told = capsys.readouterr().err
        assert "1 of 3 members have the models" in told
        assert "m0, m1 do not have the models yet; start their daemons, then serve again" in told
        do(*again, "--without", "m0", "m1")
    assert (members[2] / "released" / "models.safetensors").exists()
    assert len((run / "ledger.jsonl").read_text().splitlines()) == 2


def test_a_plain_rehearsal_is_the_simulators_and_goes_on_after_it_was_stopped(base, monkeypatch):
    settings, counts = {**REHEARSAL, "num_rounds": 3}, (3, 5, 4)
    trial = signed(base, settings, "--mode", "plain", counts=counts)
    members = [base / f"m{place}" for place in range(3)]
    from rrcluster.runs import progress as loggers

    stopped, update = [], loggers.ProgressBar.update

    def stop_once(self, done):
        update(self, done)
        if not stopped:
            stopped.append(done)
            raise KeyboardInterrupt

    monkeypatch.setattr(loggers.ProgressBar, "update", stop_once)
    serve = ["federation", "serve", str(trial), "--transport", "local", "--members", str(base), "--quiet"]
    with listening(members, engine="reference"):
        with pytest.raises(SystemExit):
            main(serve)
        assert main(serve) == 0
    *_, record = build_experiment(**settings, num_clients=sum(counts), engine="reference").rounds()
    np.testing.assert_array_equal(
        load(trial / "run").models.clustered.astype(np.float32), record.state.average.clustered.astype(np.float32)
    )
    assert "answered" not in FederationFolder(trial).status()  # who takes part in a sampled cohort is a secret


def test_what_needs_no_model_imports_no_torch(base):
    """Keys, requests and refusals are there at once."""
    member, trial = str(base / "m0"), str(base / "trial")
    (base / "settings.yaml").write_text(yaml.safe_dump(OWN))
    commands = [
        (["init", trial, str(base / "settings.yaml"), *HONEST], 0),
        (["enrol", member, "--name", "m0", "--clients", "9"], 0),
        (["enrol", trial, "--accept", f"{member}/request.json"], 0),
        (["client", member], 2),
        (["serve", trial], 2),
        (["status", member], 2),
    ]
    code = (
        f"import sys; from rrcluster.cli import main; "
        f"assert all(main(['federation', *arguments]) == status for arguments, status in {commands}); "
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_member_that_spoils_a_round_is_named_and_can_be_left_out(base, capsys, monkeypatch):
    trial = signed(base, {**REHEARSAL, **SECURE, "num_rounds": 1}, *HONEST)
    serve = ["serve", trial, "--transport", "local", "--members", base, "--quiet"]
    fails(capsys, "without = m9 is not a member; members are m0, m1, m2", *serve, "--without", "m1", "m9")
    deal_falsely(monkeypatch, 1)
    with listening([base / f"m{place}" for place in range(3)]):
        fails(capsys, "m1 sent its neighbours shares that contradict its commitment", *serve)
        do(*serve, "--without", "m1")
    assert len((trial / "run" / "ledger.jsonl").read_text().splitlines()) == 2  # the first one is charged too
    ledgers = [(base / f"m{place}" / "ledger.jsonl").read_text() for place in range(3)]
    assert [ledger.count('"round"') for ledger in ledgers] == [2, 1, 2]


def test_secrets_are_their_owners_alone(base):
    trial = enrolled(base, {**REHEARSAL, **SECURE}, *HONEST)
    secret = [trial / "server" / name for name in ("ca.key", "server.key")]
    secret += [base / "m0" / name for name in ("identity.key", "node.key")]
    assert {stat.S_IMODE(path.stat().st_mode) for path in secret} == {0o600}
    assert stat.S_IMODE((base / "m0").stat().st_mode) == stat.S_IMODE((trial / "server").stat().st_mode) == 0o700
    public = [path for path in trial.iterdir() if path.is_file()] + [base / "m0" / "request.json"]
    assert not any(b"PRIVATE" in path.read_bytes() for path in public)


def test_what_was_not_signed_is_not_served(base, capsys):
    trial = enrolled(base, {**REHEARSAL, **SECURE}, *HONEST)
    serve = ["serve", trial, "--transport", "local", "--members", base]
    fails(capsys, "the roster is still open", *serve)
    do("init", trial, "--close")
    fails(capsys, "m0, m1, m2 have not signed", *serve)
    fails(capsys, "nothing is signed yet", "client", base / "m0")
    fails(capsys, "trial/identity.key: cannot be read", "client", trial)
    fails(capsys, "consent.json: is missing", "enrol", trial, "--consent", base / "m0" / "consent.json")
    fails(capsys, "the roster is closed", "enrol", trial, "--accept", base / "m0" / "request.json")
    do("enrol", base / "m0", "--agree", trial / "agreement.json", "--yes")
    forged = json.loads((base / "m0" / "consent.json").read_text()) | {"name": "m1"}
    (base / "forged.json").write_text(json.dumps(forged))
    fails(capsys, "m1 has not signed", "enrol", trial, "--consent", base / "forged.json")
    for place in (1, 2):
        do("enrol", base / f"m{place}", "--agree", trial / "agreement.json", "--yes")
    do("enrol", trial, "--consent", *(base / f"m{place}" / "consent.json" for place in range(3)))
    fails(
        capsys,
        "0 of 3 members answer with their signature, and 2 are needed; start the daemons of m0, m1, m2 (",
        *serve,
        "--seconds",
        "1",
    )


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda facts: facts["settings"].update(noise_multiplier=0.5), "the agreement states epsilon"),
        (lambda facts: facts["settings"].update(reserve_rounds=50), "the agreement states epsilon"),
        (lambda facts: facts["settings"].update(update_clip=4.0), "the agreement states "),
        (lambda facts: facts["guarantee"].update(epsilon=0.1), "the agreement states epsilon"),
        (lambda facts: facts["guarantee"].update(adjacency="add-remove"), "the agreement states adjacency"),
        (lambda facts: facts["guarantee"].pop("delta"), "the agreement states delta"),
        (lambda facts: facts.update(least_honest=3), "the agreement states epsilon_towards_members"),
        (lambda facts: facts["members"][0].update(num_clients=11), "and the roster has 31"),
        (lambda facts: facts["members"][0].update(name="other"), "is not what request.json asked for"),
        (lambda facts: facts["members"].pop(0) and facts["settings"].update(num_clients=20), "do not sign it"),
        (lambda facts: facts.update(version="0.0.1"), "all sides need the same version"),
        (lambda facts: facts["settings"].update(start_from="/srv/run"), "start_from is a folder of one machine"),
        (lambda facts: facts["settings"].update(data="/etc/passwd.csv"), "an agreement contains no path"),
        (lambda facts: facts["settings"].update(out="/tmp/x"), "each decides for itself"),
        (lambda facts: facts["settings"].update(dropout=0.5), "are real"),
        (lambda facts: facts["settings"].update(secure=False, seed=0), "set secure: true"),
        (lambda facts: facts["settings"].update(algorithm="oracle"), "reference point"),
        (lambda facts: facts["settings"].update(mystery=1), "has no setting 'mystery'"),
        (lambda facts: facts["samples"]["columns"].update(mystery=1), "has no rule 'mystery'"),
        (lambda facts: facts["samples"]["columns"].update(features=["x"], target="y"), "declare classes"),
        (
            lambda facts: facts["samples"]["columns"].update(features=["x"], target="y", classes=[0, 1]),
            "give other samples",
        ),
        (lambda facts: facts["settings"].update(num_rounds="2"), "num_rounds"),
    ],
)
def test_an_operator_does_not_sign_what_does_not_hold(signed_once, change, text, capsys):
    facts = json.loads((signed_once / "trial" / "agreement.json").read_text())
    change(facts)
    path = signed_once / "changed.json"
    path.write_text(json.dumps(facts))
    before = (signed_once / "m0" / "consent.json").read_bytes()
    fails(capsys, text, "enrol", signed_once / "m0", "--agree", path, "--yes")
    assert (signed_once / "m0" / "consent.json").read_bytes() == before


@pytest.fixture(scope="module")
def signed_once():
    with short_folder() as folder:
        signed(folder, {**REHEARSAL, **SECURE}, *HONEST)
        yield folder


def test_a_daemon_serves_only_what_its_operator_signed(signed_once, capsys):
    """A changed agreement in the member's own folder is found out by the signature."""
    path = signed_once / "m1" / "agreement.json"
    whole = path.read_text()
    facts = json.loads(whole)
    facts["settings"]["noise_multiplier"] = 0.01
    path.write_text(json.dumps(facts))
    try:
        fails(capsys, "m1 has not signed these settings", "client", signed_once / "m1")
    finally:
        path.write_text(whole)
    (signed_once / "m1" / "identity.key").chmod(0o644)
    fails(capsys, "may be read by others", "client", signed_once / "m1")
    (signed_once / "m1" / "identity.key").chmod(0o600)


@pytest.mark.parametrize(
    ("settings", "options", "text"),
    [
        ({"data": None}, HONEST, "the settings need data: members"),
        ({"data": "members"}, HONEST, "list features (feature columns) and target"),
        ({"data": "members", "secure": False}, ["--mode", "plain"], "whom seeded noise does not protect"),
        ({"data": "patients.csv"}, HONEST, "an agreement contains no path"),
        ({"mechanism": "identifier"}, ["--mode", "secure"], "needs --least-honest"),
        ({"device": "cuda"}, HONEST, "each decides for itself"),
        ({"data": "members", "features": ["age"], "target": "sick"}, HONEST, "declare classes"),
        ({"data": "members", "features": ["age"], "target": "sick", "client": "who"}, HONEST, "matter of each member"),
        ({"features": ["age"]}, HONEST, "is a dataset with samples of its own"),
    ],
)
def test_settings_that_members_cannot_honour_are_refused(base, settings, options, text, capsys):
    given = {name: value for name, value in ({**REHEARSAL, **SECURE} | settings).items() if value is not None}
    if given.get("data") == "members":
        del given["samples_per_client"]
    (base / "settings.yaml").write_text(yaml.safe_dump(given))
    fails(capsys, text, "init", base / "trial", base / "settings.yaml", *options)


OWN = {
    "data": "members",
    "num_clusters": 2,
    "num_rounds": 2,
    "noise_multiplier": 1.0,
    "delta": 1e-3,
    "local_epochs": 1,
    **SECURE,
    "features": ["age", "ward"],
    "target": "sick",
    "classes": ["no", "yes"],
    "categories": ["ward=a,b"],
    "scale": ["age=0,100"],
}


def write_patients(path, names, *, seed=0):
    rng = np.random.default_rng(seed)
    rows = ["patient,age,ward,sick"]
    for name in names:
        rows += [f"{name},{rng.integers(100)},{'ab'[rng.integers(2)]},{['no', 'yes'][rng.integers(2)]}" for _ in "123"]
    path.write_text("\n".join(rows) + "\n")


def test_members_bring_their_own_tables_and_clients_join_leave_and_withdraw(base, monkeypatch, capsys):
    """Between rounds the daemon is started on other data: numbers stay with their clients, and nobody's is reused."""
    from rrcluster.privacy.joint import JointMechanism

    trial = signed(base, OWN, *HONEST, counts=(5, 5, 5))
    members = [base / f"m{place}" for place in range(3)]
    senders, own = [], JointMechanism.sum_messages
    monkeypatch.setattr(
        JointMechanism,
        "sum_messages",
        lambda self, reports: senders.append(sorted(map(int, reports.client_ids))) or own(self, reports),
    )
    columns = ColumnSettings(client="patient")
    serve = ["serve", trial, "--transport", "local", "--members", base, "--quiet"]
    write_patients(base / "patients.csv", ["p1", "p2", "p3"])
    from rrcluster.runs import progress as loggers

    monkeypatch.setattr(loggers.ProgressBar, "update", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with listening(members, data=str(base / "patients.csv"), columns=columns), pytest.raises(SystemExit):
        main(["federation", *map(str, serve)])
    assert sorted(senders) == [[0, 1, 2], [5, 6, 7], [10, 11, 12]]
    monkeypatch.undo()
    senders.clear()
    monkeypatch.setattr(
        JointMechanism,
        "sum_messages",
        lambda self, reports: senders.append(sorted(map(int, reports.client_ids))) or own(self, reports),
    )
    write_patients(base / "patients.csv", ["p2", "p3", "p9"])  # p1 left, p9 is new
    with listening(members, data=str(base / "patients.csv"), columns=columns):
        do("client", members[1], "--withdraw", "p2")  # while the daemon runs
        do(*serve)
    assert sorted(senders) == [[1, 2, 3], [7, 8], [11, 12, 13]]
    write_patients(base / "patients.csv", [f"q{number}" for number in range(3)])
    fails(capsys, "those that left included, and 5 were enrolled", "client", members[0], "--data",
          base / "patients.csv", "--client-column", "patient")  # fmt: skip
    fails(capsys, "never hosted a client of that name", "client", members[0], "--withdraw", "nobody")


@pytest.mark.parametrize("word", ["refused", "nothing"])
def test_a_plain_training_whose_members_go_away_charges_no_more_and_goes_on_when_they_are_back(
    base, monkeypatch, capsys, word
):
    """After the first round two of three daemons answer no more: rounds of noise would spend the budget on nothing."""
    from rrcluster.federation import daemon, unix_socket
    from rrcluster.federation.messages import Letter

    settings = {**REHEARSAL, "num_rounds": 3, "participation": "everybody", "reserve_rounds": 1, "secure": True}
    settings.pop("sample_rate")
    trial = signed(base, settings, "--mode", "plain", counts=(3, 5, 4))
    members = [base / f"m{place}" for place in range(3)]
    answer, trained, cut = daemon.Daemon.answer, [], True

    def away(self, content):
        trained.append(self.place) if b'"train"' in content[:2000] else None
        if not cut or self.place == 0 or trained.count(self.place) < 2:
            return answer(self, content)
        if word == "refused":
            return Letter("refused").encode()
        raise unix_socket.ProtocolError("gone")  # the connection breaks

    monkeypatch.setattr(daemon.Daemon, "answer", away)
    serve = ["federation", "serve", str(trial), "--transport", "local", "--members", str(base), "-q", "--seconds", "3"]
    ledger = trial / "run" / "ledger.jsonl"
    with listening(members, engine="reference"):
        assert main(serve) == 2
        assert len(ledger.read_text().splitlines()) == 1
        assert "1 of 3 members take part, and 2 were agreed on" in capsys.readouterr().err
        assert main(serve) == 2  # and again, as long as they are away
        assert len(ledger.read_text().splitlines()) == 1
        cut = False
        assert main(serve) == 0
    assert len(ledger.read_text().splitlines()) == 3
    assert all((member / "released" / "models.safetensors").exists() for member in members)


def test_a_schedule_of_real_members_is_refused(base, capsys):
    """Slots go by number, and members number their clients in order: without one, others would have other slots."""
    for changes in ({"participation": "schedule", "slots": 3}, {"slots": 3}):
        settings = {name: value for name, value in OWN.items() if name != "participation"} | changes
        (base / "settings.yaml").write_text(yaml.safe_dump(settings))
        fails(capsys, "assigns slots by number", "init", base / "scheduled", base / "settings.yaml", "--mode", "plain")


def test_a_members_types_are_declared_too(base, capsys):
    """A Parquet file whose kinds a program made of all rows: one client's cell would move this member's others."""
    pandas = pytest.importorskip("pandas")
    settings = {name: value for name, value in OWN.items() if name != "types"}
    trial = signed(base, settings, *HONEST, counts=(5, 5, 5))
    write_patients(base / "patients.csv", ["p1", "p2", "p3"])
    pandas.read_csv(base / "patients.csv").to_parquet(base / "patients.parquet")
    data = ["--data", base / "patients.parquet", "--client-column", "patient"]
    fails(capsys, "types were taken from the table", "client", base / "m0", *data)
    assert trial.exists()
    columns = ColumnSettings(client="patient", types=("age=number",))
    with listening([base / "m0"], data=str(base / "patients.parquet"), columns=columns) as (daemon,):
        assert daemon.data.num_clients == 3


def test_arrays_and_functions_are_data_too_if_they_look_as_agreed(base, capsys, monkeypatch):
    settings = {name: value for name, value in OWN.items() if name not in ("features", "target", "classes",
                                                                           "categories", "scale")}  # fmt: skip
    trial = signed(base, settings, *HONEST, "--input-shape", "4", "--num-classes", "2", counts=(5, 5, 5))
    rng = np.random.default_rng(0)
    arrays = {"inputs": rng.normal(size=(9, 4)), "targets": rng.integers(2, size=9), "clients": np.repeat([4, 7, 2], 3)}
    np.savez(base / "own.npz", **arrays)
    (base / "site_data.py").write_text(
        "import numpy as np\nimport rrcluster as rr\n\n"
        "def patients():\n    return rr.from_arrays([np.ones((3, 4))] * 2, [np.arange(3) % 2] * 2, num_classes=2)\n\n"
        "def twins():\n    from dataclasses import replace\n    return replace(patients(), clients=('a', 'a'))\n"
    )
    monkeypatch.chdir(base)
    with listening([base / "m0"], data=str(base / "own.npz")) as (daemon,):
        assert daemon.data.num_clients == 3
        assert daemon.data.clients == ("2", "4", "7")
    with listening([base / "m1"], data="site_data:patients") as (daemon,):
        assert daemon.data.num_clients == 2
    np.savez(base / "wide.npz", **(arrays | {"inputs": np.ones((9, 5))}))
    np.savez(base / "short.npz", **(arrays | {"clients": np.zeros(2)}))
    np.savez(base / "objects.npz", **(arrays | {"inputs": np.array([{}] * 9)}))
    (base / "odd.npz").write_bytes(b"no arrays")
    for name, text in {
        "wide.npz": "input_shape = (5,), but the agreement says (4,)",
        "short.npz": "of one length",
        "objects.npz": "of plain arrays",
        "odd.npz": "of plain arrays",
        "site_data:nobody": "cannot be imported",
        "site_data:twins": "one name stands for one person",
        "site_data": "neither a file",
        "table.csv": "the agreement has no rules for tables",
    }.items():
        fails(capsys, text, "client", base / "m2", "--data", name)
    assert FederationFolder(trial).agreement().samples.input_shape == (4,)


def test_a_lost_ledger_another_authority_and_odd_names_are_refused(base, capsys):
    signed(base, OWN, *HONEST, counts=(5, 5, 5))
    write_patients(base / "patients.csv", ["p1", "p\x85 2"])  # a mark that some take for the end of a line
    with listening([base / "m0"], data=str(base / "patients.csv"), columns=ColumnSettings(client="patient")) as (own,):
        do("client", base / "m0", "--withdraw", "p\x85 2")
        assert own.withdrawn() == {1}
        (base / "m0" / "withdrawn.txt").write_text("p1\nsomebody\n")
        with pytest.raises(DataError, match="a name belongs to no client"):
            own.withdrawn()
    (base / "m1" / "ledger.jsonl").unlink()
    daemon = ["client", base / "m1", "--data", base / "patients.csv", "--client-column", "patient"]
    fails(capsys, "no line of the training that was signed", *daemon)
    assert main(["federation", "check", str(base / "m1")]) == 1
    assert "no line of the training that was signed" in capsys.readouterr().out
    make_authority(base / "m2", base, name="another", hosts=["localhost"])
    with pytest.raises(ConfigError, match="not the certificate of the agreement's authority"):
        MemberFolder(base / "m2").check_authority(base / "m2" / "ca.pem")
    MemberFolder(base / "m2").check_authority(base / "trial" / "ca.pem")
    assert main(["federation", "check", str(base / "m2")]) == 1
    assert "not the certificate of the agreement" in capsys.readouterr().out


def test_a_daemon_is_started_again_on_what_it_was_given(base, monkeypatch):
    from rrcluster.federation.commands import member as federation_client

    folder = MemberFolder.create(base / "m", name="m", num_clients=3, lifetime=None)
    command = federation_client.ClientCommand(base / "m", data="p.csv", client_column="who", engine="batched")
    assert federation_client._options(folder, command) == command
    again = federation_client._options(folder, federation_client.ClientCommand(base / "m", device="cpu"))
    assert again == dataclasses.replace(command, device="cpu")
    assert federation_client._options(folder, federation_client.ClientCommand(base / "m")) == again


def test_a_second_training_of_the_same_clients_adds_up_and_ends_at_the_lifetime_budget(base, capsys):
    members = [base / f"m{place}" for place in range(3)]

    def train(trial):
        with listening(members):
            do("serve", trial, "--transport", "local", "--members", base, "--quiet")

    def next_agreement(name):
        do("init", base / name, base / "settings.yaml", *HONEST, "--name", name)
        do("enrol", base / name, "--accept", *(member / "request.json" for member in members))
        do("init", base / name, "--close")
        capsys.readouterr()
        return base / name

    train(signed(base, {**REHEARSAL, **SECURE, "noise_multiplier": 4.0}, *HONEST, lifetime=9.0))
    second = next_agreement("second")
    for member in members:
        do("enrol", member, "--agree", second / "agreement.json", "--yes")
        do("enrol", second, "--consent", member / "consent.json")
    text = capsys.readouterr().err
    train(second)
    (cost, again) = ClientLedger(members[0] / "ledger.jsonl")._costs.values()
    assert cost.event == again.event
    once, twice, three_times = (cost_together([cost] * number) for number in (1, 2, 3))
    assert once < twice < three_times
    assert f"epsilon = {epsilon_text(twice)}" in text
    third = next_agreement("third")
    MemberFolder(members[0]).change_settings(lifetime_epsilon=twice * 1.01)
    expected = f"cost epsilon = {epsilon_text(three_times)} together, above the lifetime budget of"
    fails(capsys, expected, "enrol", members[0], "--agree", third / "agreement.json", "--yes")


def test_check_refuses_eight_single_clients_and_says_what_would_help(base, capsys):
    settings = {
        "data": "members",
        "features": [f"x{number}" for number in range(30)],
        "target": "y",
        "classes": [0, 1],
        "num_clusters": 1,
        "algorithm": "fedavg",
        "epsilon": 4,
        "delta": 0.01,
        "num_rounds": 100,
        **SECURE,
    }
    trial = enrolled(
        base, settings, "--mode", "secure", "--least-honest", "6", "--most-colluders", "1", counts=(1,) * 8
    )
    do("init", trial, "--close")
    capsys.readouterr()
    assert main(["federation", "check", str(trial), "--json"]) == 1
    lines = {line["what"]: line for line in json.loads(capsys.readouterr().out)}
    assert not lines["signal to noise"]["passed"]
    detail = lines["signal to noise"]["detail"]
    assert detail.startswith("hopeless: a cluster of 8 clients has 0.89 over the run, and in one round 0.99 noise stds")
    assert "takes about 17 clients at least" in detail
    assert "--client-column" in detail
    assert not lines["consents"]["passed"]
    assert all(lines[name]["passed"] for name in ("certificates", "keys", "disk", "guarantee", "digest", "version"))


def test_check_names_what_is_not_in_order_and_the_way_out(signed_once, monkeypatch, capsys):
    monkeypatch.setattr(readiness.shutil, "disk_usage", lambda _: SimpleNamespace(free=2**27))
    monkeypatch.setattr(readiness, "certificate_days", lambda _: 12.0)
    capsys.readouterr()
    assert main(["federation", "check", str(signed_once / "trial"), "--json"]) == 1
    lines = {line["what"]: line["detail"] for line in json.loads(capsys.readouterr().out) if not line["passed"]}
    expected = {
        "certificates": "ends in 12 days",
        "disk": "128 MiB are free; free at least 256 MiB",
        "signal to noise": "hopeless",
    }
    assert set(lines) == set(expected)
    assert all(text in lines[what] for what, text in expected.items())


def served(trial, base, *options):
    return main(["federation", "serve", *map(str, (trial, "--transport", "local", "--members", base, *options))])


def stop_after(monkeypatch, rounds):
    """The server is stopped by hand after so many rounds."""
    from rrcluster.runs import progress as loggers

    def stop(_, done):
        if done.round_index + 1 == rounds:
            raise KeyboardInterrupt

    monkeypatch.setattr(loggers.ProgressBar, "update", stop)


@pytest.mark.parametrize("old", [False, True])
def test_a_federation_whose_checkpoint_is_lost_or_an_old_copy_is_refused(base, capsys, monkeypatch, old):
    trial = signed(base, {**REHEARSAL, **SECURE, "num_rounds": 4}, *HONEST)
    state = trial / "run" / "checkpoint" / "state.safetensors"
    copies = []
    with listening([base / f"m{place}" for place in range(3)]):
        for rounds in (1, 3):
            stop_after(monkeypatch, rounds)
            with pytest.raises(SystemExit):
                served(trial, base)
            copies.append(state.read_bytes())
        released = (trial / "run" / "rounds.jsonl").read_bytes()
        if old:
            state.write_bytes(copies[0])
        else:
            state.unlink()
        monkeypatch.undo()
        capsys.readouterr()
        assert served(trial, base) == 2
        assert "is lost, or an old copy" in capsys.readouterr().err
        assert (trial / "run" / "rounds.jsonl").read_bytes() == released


def test_a_round_that_fails_after_its_charge_is_given_up_after_three_times(base, capsys, monkeypatch):
    from rrcluster.errors import ProtocolError
    from rrcluster.federation import collect

    def failing(*_, charge, **__):
        charge()
        raise ProtocolError("the sum cannot be unmasked.")

    trial = signed(base, {**REHEARSAL, **SECURE, "reserve_rounds": 6}, *HONEST)
    whole = collect.secure_sum
    monkeypatch.setattr(collect, "secure_sum", failing)
    with listening([base / f"m{place}" for place in range(3)]):
        statuses = []
        for options in ([], [], [], [], ["--again"]):
            try:
                statuses.append(served(trial, base, *options))
            except SystemExit as ended:
                statuses.append(ended.code)
        assert statuses == [2, 2, 3, 3, 3]
        assert "charged 3 times and failed each time" in capsys.readouterr().err
        charges = (trial / "run" / "ledger.jsonl").read_text().splitlines()
        assert len(charges) == 4, "the fourth start charged nothing"
        monkeypatch.setattr(collect, "secure_sum", whole)
        assert served(trial, base, "--again") == 0
    said = capsys.readouterr().err
    assert "warning: round 1: 4 of 6 releases in reserve are used." in said
    assert said.count("in reserve are used") == 1
    assert "round 1/2: 3 members, sizes " in said
    assert "round 2/2: 3 members, sizes " in said


def test_serve_says_a_line_a_round_and_warns_of_thin_rounds_and_members_that_are_gone(capsys):
    plan = SimpleNamespace(num_rounds=9, num_releases=9, reserve_rounds=0, sampler=SimpleNamespace(expected_size=100.0))
    running = SimpleNamespace(experiment=SimpleNamespace(plan=plan), releases_charged=1)
    came = [["north", "south"], ["south"], []]
    folder = SimpleNamespace(status=lambda: {"answered": came[running.releases_charged - 1]})
    report = RoundReport(running, folder, public=True, quiet=False)
    for t, sizes in enumerate([(60.0, 41.0), (30.0, 11.0), (3.0, -2.0)]):
        running.releases_charged = t + 1
        report(t, {f"released/size_{place}": size for place, size in enumerate(sizes)})
    assert capsys.readouterr().err.splitlines() == [
        "round 1/9: 2 members, sizes 60 41",
        "round 2/9: 1 members, sizes 30 11",
        "warning: round 2: thin: its released sizes add up to 41, and 100 clients are expected.",
        "warning: round 2: no answer any more from north.",
        "round 3/9: 0 members, sizes 3 -2",
        "warning: round 3: empty: its released sizes add up to 1, and 100 clients are expected.",
        "warning: round 3: no answer any more from south.",
    ]
