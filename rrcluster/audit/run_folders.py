"""Run folders on disk: what they publish, who may read them, and what stopped, killed and resumed runs cost."""

import json
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from safetensors import safe_open

from rrcluster.audit.accountants import gaussian_epsilon
from rrcluster.audit.targets import Finding, Recorder, entropy_from, refused
from rrcluster.data.arrays import from_arrays
from rrcluster.data.federated import FederatedData
from rrcluster.entropy import secure_rng
from rrcluster.errors import PrivacyError, RunFolderError
from rrcluster.privacy.accounting import epsilon
from rrcluster.privacy.cost import folder_cost
from rrcluster.privacy.ledger import read_charges
from rrcluster.privacy.reports import Reports
from rrcluster.runs.experiment import Experiment, build_experiment
from rrcluster.runs.run import Running, finish, resume, run, start
from rrcluster.settings import AFFECTS
from rrcluster.types import Release

SUBJECT = "run folder"
NUM_CLIENTS, DIMENSION, ROUNDS = 12, 4, 4


def small_experiment(path: Path, *, data_seed: int = 0, **settings: Any) -> Experiment:
    """A run of a few rounds on twelve small clients, whose data and sizes follow `data_seed`."""
    common: dict[str, Any] = {
        "num_clients": NUM_CLIENTS,
        "model": "linear",
        "algorithm": "ifca",
        "num_clusters": 2,
        "num_rounds": ROUNDS,
        "noise_multiplier": 1.0,
        "delta": 0.01,
        "sample_rate": 1.0,  # without sampling, costs are a closed form, and fast
        "out": str(path),
    }
    return build_experiment(**({"data": _clients(data_seed)} | common | settings))


def check_public_values() -> list[Finding]:
    """Two secure runs with the same releases, on other clients and cohorts: every file is equal, bit for bit.

    Deterministic: the releases are fixed, and so are the operating system's bytes. Anything that depends on raw data,
    cohorts or time shows as a difference, in binary files too. Only the owner may read checkpoint/.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        experiment = small_experiment(path, **_SECURE)
        releases = [_made_up_release(experiment) for _ in range(ROUNDS)]
        one, private = _files_of(path, releases, data_seed=0, cohort=range(3))
        two, _ = _files_of(path, releases, data_seed=1, cohort=range(2, 11))
    changed = sorted(name for name in {*one, *two} if one.get(name) != two.get(name))
    claim = "files of a secure run are functions of its releases"
    measured = f"raw data are visible in {', '.join(changed)}" if changed else f"holds, in {len(one) - 1} files"
    return [
        Finding(SUBJECT, "public values", claim, measured, not changed),
        Finding(SUBJECT, "private files", "only the owner reads checkpoint/", private or "holds", not private),
    ]


_SECURE: dict[str, Any] = {"secure": True, "private_evaluation": 0.5, "dropout": 0.3, "hostile": 0.2}


def _files_of(path: Path, releases: list[Release], *, data_seed: int, cohort: range) -> tuple[dict[str, bytes], str]:
    """The bytes of every file of a run and of its progress; and a private file that others could read, if any."""
    shutil.rmtree(path, ignore_errors=True)
    experiment = small_experiment(path, data_seed=data_seed, **_SECURE)
    probe = Recorder(experiment.plan.mechanism, cohorts=[np.array(cohort)], canned=releases)
    private, output = "", []
    with entropy_from(np.random.default_rng(0).bytes):
        running = start(replace(experiment, plan=replace(experiment.plan, mechanism=probe)))
        for progress in running.rounds():
            private = private or _readable(path / "checkpoint")
            output.append(repr(progress))
    files = {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}
    return files | {"what is shown": "".join(output).encode()}, private


def _readable(folder: Path) -> str:
    for path in (folder, *folder.rglob("*")):
        if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            return f"{path.relative_to(folder.parent)} can be read by others"
    return "" if (folder / "state.safetensors").exists() else "no checkpoint is written"


def _made_up_release(experiment: Experiment) -> Release:
    mechanism = experiment.plan.mechanism
    updates = np.full((2, mechanism.coordinates.width), 0.01)
    reports = Reports(updates, [0, 1], evaluations=np.full((2, 2), 0.6), unique=True)
    return mechanism.release(reports, rng=secure_rng())


def check_stated_cost() -> Finding:
    """Stopped, resumed or finished, a folder states the cost of its whole plan in every file.

    Deterministic: progress, summary.json, privacy.json, the result and `folder_cost` against the accountant. An edited
    statement, a truncated ledger and extra charges are refused.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        experiment = small_experiment(path)
        cost = epsilon(experiment.plan.event, num_rounds=ROUNDS, delta=0.01)
        epsilons = {"progress": _some_rounds(start(experiment), 2)}
        epsilons |= _epsilons_in(path, "when stopped")
        running = resume(path)
        epsilons["progress after resuming"] = [progress.epsilon for progress in running.rounds()]
        epsilons["result"] = [running.result().epsilon]
        epsilons |= _epsilons_in(path, "at the end")
        statements = [(where, value) for where, values in epsilons.items() for value in values]
        wrong = next((f"{where} says {value}" for where, value in statements if not _equal(value, cost)), "")
        wrong = wrong or _accepted_edit(path, Path(folder))
    claim = f"a folder costs its whole plan, {cost:.4g}, from the first round on"
    return Finding(SUBJECT, "stated cost", claim, wrong or f"holds, in {len(epsilons)} places", not wrong)


def _equal(value: float | None, due: float) -> bool:
    return value is not None and abs(value - due) <= 1e-9


def _accepted_edit(path: Path, elsewhere: Path) -> str:
    """The first edit of a folder that `folder_cost` does not notice."""
    for number, (name, edit) in enumerate(_EDITS.items()):
        copy = elsewhere / f"edited-{number}"
        shutil.copytree(path, copy)
        edit(copy)
        if not refused(lambda copy=copy: folder_cost(copy), RunFolderError):  # type: ignore[misc]
            return f"the cost of a folder with {name} is accepted"
    return ""


def _halve(*paths: Path) -> None:
    for path in paths:
        document = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps(document | {"epsilon": document["epsilon"] / 2}), encoding="utf-8")


def _charge(folder: Path, count: int) -> None:
    """Rewrite a folder's ledger to `count` charges, one per round, and delete the summary that counts them."""
    ledger = folder / "ledger.jsonl"
    first = json.loads(ledger.read_text(encoding="utf-8").splitlines()[0])
    lines = (json.dumps(first | {"round": number}) + "\n" for number in range(count))
    ledger.write_text("".join(lines), encoding="utf-8")
    (folder / "summary.json").unlink()


_EDITS: dict[str, Callable[[Path], None]] = {
    "another epsilon": lambda folder: _halve(folder / "privacy.json", folder / "summary.json"),
    "another epsilon in its summary": lambda folder: _halve(folder / "summary.json"),
    "more charges than the statement covers": lambda folder: _charge(folder, ROUNDS + 1),
    "a cut ledger": lambda folder: _charge(folder, ROUNDS - 1),
    "an emptied ledger": lambda folder: _charge(folder, 0),
}


def _epsilons_in(path: Path, when: str) -> dict[str, list[float | None]]:
    files = {name: json.loads((path / name).read_text(encoding="utf-8")) for name in ("summary.json", "privacy.json")}
    epsilons = {f"{name} {when}": [content["epsilon"]] for name, content in files.items()}
    cost = folder_cost(path)
    return epsilons | {f"folder_cost {when}": [None if cost is None else cost.epsilon]}


def check_resumed_run() -> Finding:
    """Stopped or killed and resumed: seeded runs repeat their releases, secure runs charge repeated rounds.

    Deterministic. Clients of the seeded run remember their rounds. Copies of secure runs and edited statements are
    refused.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        wrong = _resumed_seeded(path) or _resumed_secure(path) or _resumed_elsewhere(path) or _resumed_slots(path)
    claim = "resuming repeats seeded releases exactly and charges secure ones again"
    return Finding(SUBJECT, "resumed run", claim, wrong or "holds", not wrong)


def _resumed_seeded(folder: Path) -> str:
    paths = [folder / name for name in ("whole", "stopped", "killed")]
    fesem: dict[str, Any] = {"algorithm": "fesem", "hostile": 0.2}
    finish(start(small_experiment(paths[0], **fesem)))
    _some_rounds(start(small_experiment(paths[1], **fesem)), 2)
    _killed(start(small_experiment(folder / "dying", **fesem)), paths[2], after=3)
    for path in paths[1:]:
        try:
            finish(resume(path))
        except Exception as error:
            return f"a run that was {path.name} cannot be resumed ({type(error).__name__})"
        for name in ("rounds.jsonl", "models.safetensors", "ledger.jsonl"):
            if (path / name).read_bytes() != (paths[0] / name).read_bytes():
                return f"a run that was {path.name} and resumed has a different {name}"
    return ""


def _resumed_secure(folder: Path) -> str:
    """A kill after a charge, three times: four rounds and two in reserve allow six releases, and no more."""
    path = folder / "secure"
    experiment = small_experiment(path, secure=True, reserve_rounds=2)
    expected = epsilon(experiment.plan.event, num_rounds=ROUNDS + 2, delta=0.01)
    releases, state = len(_some_rounds(start(experiment), 1)), path / "checkpoint" / "state.safetensors"
    before = state.read_bytes()
    for rounds in (1, 1, 1, ROUNDS):
        state.write_bytes(before)  # the state of the round before
        releases += len(_some_rounds(resume(path), rounds))
        charged = len(read_charges(path / "ledger.jsonl"))
        if charged != releases:
            return f"{releases} secure releases were made and {charged} charged"
        if rounds == 1 and not _refuses_without(state, path):
            return "a secure run without its checkpoint is resumed"
    cost = folder_cost(path)
    if releases > ROUNDS + 2 or cost is None or cost.epsilon is None or abs(cost.epsilon - expected) > 1e-9:
        return f"{releases} secure releases were made; 6 cost {expected:.4g}, and {cost} is stated"
    return ""


def _refuses_without(state: Path, path: Path) -> bool:
    state.unlink()
    return refused(lambda: resume(path), RunFolderError)


def _resumed_elsewhere(folder: Path) -> str:
    path = folder / "bound"
    _some_rounds(start(small_experiment(path, secure=True)), 1)
    shutil.copytree(path, folder / "copy")
    if not refused(lambda: resume(folder / "copy"), PrivacyError, RunFolderError):
        return "a copy of a secure run is resumed"
    _halve(path / "privacy.json")
    return (
        "" if refused(lambda: resume(path), PrivacyError, RunFolderError) else "a run with an edited epsilon is resumed"
    )


def _resumed_slots(folder: Path) -> str:
    """Under slots a repeated secure round is the same release, charged once; without its draw it is refused."""
    path = folder / "slots"
    named_clients = replace(_clients(0), clients=tuple(f"client {number}" for number in range(NUM_CLIENTS)))
    slots: dict[str, Any] = {"participation": "schedule", "slots": 2, "secure": True}
    _some_rounds(start(small_experiment(path, data=named_clients, **slots)), 1)
    before, releases = (path / "checkpoint" / "state.safetensors").read_bytes(), []
    for _ in range(2):
        (path / "checkpoint" / "state.safetensors").write_bytes(before)
        _some_rounds(resume(path), 1)
        releases.append((path / "rounds.jsonl").read_text(encoding="utf-8").splitlines()[1])
    if releases[0] != releases[1] or len(read_charges(path / "ledger.jsonl")) != 2:
        return "a repeated round with slots is another release, or not charged once"
    (path / "checkpoint" / "state.safetensors").write_bytes(before)
    for draw_file in path.glob("checkpoint/drawn*"):
        draw_file.unlink()
    return (
        ""
        if refused(lambda: _some_rounds(resume(path), 1), PrivacyError, RunFolderError)
        else "a round with slots is repeated under fresh noise"
    )


def check_started_run() -> Finding:
    """Runs that start from another run's models state the cost of all of them, to the third generation.

    Without sampling, by the audit's own formula. A statement that omits an earlier run is refused, and so is a secure
    run that starts from a seeded one.
    """
    wrong = ""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / name for name in ("one", "two", "three")]
        before: dict[str, Any] = {}
        for count, path in enumerate(paths, start=1):
            finish(start(small_experiment(path, secure=True, noise_multiplier=3.0 + count, **before)))
            before = {"start_from": str(path)}
            expected = gaussian_epsilon(sum(ROUNDS / (3.0 + run) ** 2 for run in range(1, count + 1)) ** -0.5, 0.01)
            document = json.loads((path / "privacy.json").read_text(encoding="utf-8"))
            total = document.get("started_from", {}).get("epsilon_together", document["epsilon"])
            if not expected - 1e-6 <= total <= 1.05 * expected:
                wrong = wrong or f"epsilon_together = {total:.4g} after {count} runs, which cost {expected:.4g}"
        entry: dict[str, Any] = document["started_from"]
        for edited in ({}, entry | {"earlier": entry["earlier"][1:]}):
            text = json.dumps(document | {"started_from": edited})
            (paths[2] / "privacy.json").write_text(text, encoding="utf-8")
            if not refused(lambda: folder_cost(paths[2]), RunFolderError):
                wrong = wrong or "a statement that omits an earlier run is accepted"
        finish(start(small_experiment(Path(folder) / "seeded")))
        seeded: dict[str, Any] = {"secure": True, "start_from": str(Path(folder) / "seeded")}
        if not refused(lambda: start(small_experiment(Path(folder) / "four", **seeded)), PrivacyError):
            wrong = wrong or "a secure run starts from a seeded one"
    claim = "a run's statement includes the runs it started from"
    return Finding(SUBJECT, "started run", claim, wrong or "holds, over three runs", not wrong)


def _some_rounds(running: Running, count: int) -> list[float | None]:
    """The epsilons stated in the first rounds of a run, which is then stopped."""
    epsilons, rounds = [], running.rounds()
    for progress in rounds:
        epsilons.append(progress.epsilon)
        if len(epsilons) == count:
            break
    rounds.close()  # type: ignore[attr-defined]
    return epsilons


def _killed(running: Running, copy: Path, *, after: int) -> None:
    """The files on disk in the middle of a run, as a kill would leave them."""
    rounds = running.rounds()
    for _ in range(after):
        next(rounds)
    shutil.copytree(running.folder.path, copy)
    rounds.close()  # type: ignore[attr-defined]


def _clients(seed: int) -> FederatedData:
    rng = np.random.default_rng(seed)
    inputs = [rng.standard_normal((3 + (seed + 1) * i % 5, DIMENSION)) for i in range(NUM_CLIENTS)]
    labels = [(x[:, seed % DIMENSION] > 0).astype(np.int64) for x in inputs]
    return from_arrays(inputs, labels, num_classes=2, name="audit-folder")


_EVENT = {"type", "noise_multiplier", "sample_rate", "adjacency", "sampling"}
_RECOMPUTE = {
    *("library", "neighboring_relation", "accountant", "reason", "value_discretization_interval"),
    *(f"event{inside}" for inside in ("", ".class", ".count", ".event", ".event.class", ".event.event")),
    *("event.event.sampling_probability", "event.event.event.class", "event.event.event.noise_multiplier"),
    *("event.event.noise_multiplier", "event.event.source_dataset_size", "event.event.sample_size"),
}
_NOISE = {"noise_multiplier", "sensitivity", "noise_std", "update_clip", "count_weight", "evaluation_weight"}
_PARTICIPATION = {
    *("name", "secret", "most_participations", "slots", "slot_key", "rounds_between_participations"),
    *("coefficients", "noise_of_a_round"),
    *("towards", "towards.who", "towards.neighbours", "towards.epsilon"),
    *("noise_of_models_handed_out", "noise_of_models_handed_out.independent"),
    "noise_of_models_handed_out.chosen",
}
_EVALUATION = {
    *("sums", "clients", "sum_noise_std", "clients_noise_std", "loss_bound", "least_clients"),
    *("accuracy", "accuracy_noise_std", "loss", "loss_noise_std"),
}
_MADE_BY = {
    *("config", "rrcluster", "torch", "numpy", "device", "machine", "cpu", "mkl_cbwr", "engine", "threads"),
    *("model", "method", "start", "federation"),
}
_FEDERATION = {
    *("name", "digest", "mode", "num_members", "towards", "assumed", "noise_share_sigma", "grid_bits"),
    *("least_honest", "most_colluders"),
}
_MODEL = {"format", "model", "algorithm", "input_shape", "num_classes", "inputs"}


def _under(name: str, keys: set[str]) -> set[str]:
    return {name, *(f"{name}.{key}" for key in keys)}


# The keys that each file may contain, nested ones as a.b. All are settings, versions, costs or released values.
ALLOWED: dict[str, set[str]] = {
    "config.yaml": set(AFFECTS),
    "privacy.json": {
        *("private", "artefacts", "secure", "unit", "mechanism", "adjacency", "sampling", "released", "num_rounds"),
        *("reserve_rounds", "num_releases", "num_clients", "delta", "epsilon", "accountant", "notes", "not_covered"),
        *_under("noise", _NOISE),
        *_under("event", _EVENT),
        *_under("participation", _PARTICIPATION),
        *_under("accountants", {"accountant", "epsilon", "reason"}),
        *_under("bracket", {"least", "most", "reason"}),
        *_under("profile", {"epsilon", "delta"}),
        *_under("risk", {"at_1_percent", "at_5_percent", "advantage"}),
        "risk_in_words",
        *_under("recompute", _RECOMPUTE),
        "mu",
        *_under("initialisation", {"init", "rounds"}),
        *_under("questions", {"question", "asks", "rounds", "longest_message"}),
        *_under("questions.parts", {"part", "numbers", "longest"}),
        *_under("started_from", {"run", "what", "epsilon_together", "earlier", "earlier.num_releases"}),
        *_under("started_from.earlier.event", _EVENT),
        *_under("federation", _FEDERATION),
        *_under("audit", {"version", "commit", "code", "result", "of_this_code"}),
    },
    "ledger.jsonl": {"round", *_under("event", _EVENT), *_under("made_by", _MADE_BY)},
    "rounds.jsonl": {"round", "sizes", "denominators", "noise_std", *_under("private_evaluation", _EVALUATION)},
    "summary.json": {
        *("name", "status", "ended_by", "version", "data", "partition", "algorithm", "model", "num_clusters"),
        *("min_cluster_size", "mechanism", "epsilon", "delta", "noise_multiplier", "num_rounds", "rounds_done"),
        *("releases_charged", "secure", "seed", "sizes", "groups_found", "dead_clusters", "random_effects"),
        *_under("private_evaluation", {*_EVALUATION, "rows"}),
        *_under("gain_over_one_model", {"loss", "noise_std"}),
        *_under("groups", {"classes", "outputs", "typical", "agreement", "shares", "share_errors"}),
        *_under("groups.effects", {"column", "output", "by_group"}),
    },
    "models.safetensors": {"shared", "clustered", "layers", "encoder", *_MODEL},
    "cluster-N.safetensors": {
        *("1.weight", "1.bias", "cluster", "personal", *_MODEL),  # the layers of `linear`, and of `table-linear`
        *("low", "high", "knee", "centre", "gain", "axes", "target", "effects", "place", "weight", "base"),
    },
}


def check_public_files() -> Finding:
    """A small secure run with dropouts and hostile clients: only listed files and keys, and no seed.

    Times, counts of clients and whatever else depends on the cohort are not listed.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        run(
            data=_population(),
            num_clients=12,
            model="linear",
            algorithm="ifca",
            num_clusters=2,
            num_rounds=2,
            noise_multiplier=1.0,
            delta=0.01,
            sample_rate=1.0,
            private_evaluation=0.5,
            dropout=0.3,
            hostile=0.2,
            secure=True,
            out=str(path),
        )
        wrong = sorted(_unlisted(path))
    claim = "a secure run writes only listed files and keys"
    measured = f"not listed: {', '.join(wrong[:4])}" if wrong else f"holds, in {len(ALLOWED)} files"
    return Finding("run folder", "public files", claim, measured, not wrong)


def listed_name(file: str) -> str:
    """The list's name for a file: one entry stands for the files of all clusters."""
    return re.sub(r"^cluster-\d+\.", "cluster-N.", file)


def _unlisted(folder: Path) -> Iterator[str]:
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        listed = ALLOWED.get(listed_name(name))
        if listed is None:
            yield name
            continue
        yield from (f"{key} in {name}" for key in sorted(set(_keys(path)) - listed))
        if name in ("config.yaml", "summary.json") and _content(path)[0]["seed"] is not None:
            yield f"a seed in {name}"


def _content(path: Path) -> list[Any]:
    """The parsed documents of a file."""
    if path.suffix == ".safetensors":
        with safe_open(path, framework="np") as file:
            return [dict.fromkeys(file.keys()) | (file.metadata() or {})]
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in text.splitlines()]
    return [yaml.safe_load(text) if path.suffix == ".yaml" else json.loads(text)]


def _keys(path: Path) -> Iterator[str]:
    for document in _content(path):
        yield from _nested(document, "")


def _nested(value: Any, prefix: str) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inside in value.items():
            yield f"{prefix}{key}"
            yield from _nested(inside, f"{prefix}{key}.")
    elif isinstance(value, list):
        for inside in value:
            yield from _nested(inside, prefix)


def _population() -> FederatedData:
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal((6, 4)) for _ in range(12)]
    return from_arrays(inputs, [(x[:, 0] > 0).astype(np.int64) for x in inputs], num_classes=2, name="audit-folder")
