"""What a secure run leaves behind: files and keys on a list, so that every addition is a decision."""

import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from safetensors import safe_open

from rrcluster.audit.targets import Finding
from rrcluster.data.arrays import from_arrays
from rrcluster.data.federated import FederatedData
from rrcluster.runs.run import run
from rrcluster.settings import AFFECTS

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


# By file: every key that may be in it, nested ones as a.b. All are settings, versions, costs or released values.
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
        *_under("recompute", _RECOMPUTE),
        "mu",
        *_under("initialisation", {"init", "rounds"}),
        *_under("questions", {"question", "asks", "rounds", "longest_message"}),
        *_under("questions.parts", {"part", "numbers", "longest"}),
        *_under("started_from", {"run", "what", "epsilon_together", "earlier", "earlier.num_releases"}),
        *_under("started_from.earlier.event", _EVENT),
        *_under("federation", _FEDERATION),
    },
    "ledger.jsonl": {"round", *_under("event", _EVENT), *_under("made_by", _MADE_BY)},
    "rounds.jsonl": {"round", "sizes", "denominators", "noise_std", *_under("private_evaluation", _EVALUATION)},
    "summary.json": {
        *("name", "status", "ended_by", "version", "data", "partition", "algorithm", "model", "num_clusters"),
        *("min_cluster_size", "mechanism", "epsilon", "delta", "noise_multiplier", "num_rounds", "rounds_done"),
        *("releases_charged", "secure", "seed", "sizes", "groups_found", "dead_clusters", "random_effects"),
        *_under("private_evaluation", _EVALUATION),
    },
    "models.safetensors": {"shared", "clustered", "layers", *_MODEL},
    "cluster-N.safetensors": {"1.weight", "1.bias", "cluster", "personal", *_MODEL},  # the layers of `linear`
}


def check_public_files() -> Finding:
    """A small secure run with dropouts and hostile clients: only files and keys on the list, and no seed.

    Times, counts of clients and whatever else depends on the cohort are not on the list.
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
    claim = "a secure run's files hold what is on the list"
    measured = f"not on it: {', '.join(wrong[:4])}" if wrong else f"so, in {len(ALLOWED)} files"
    return Finding("run folder", "public files", claim, measured, not wrong)


def listed_name(file: str) -> str:
    """The name under which a file is on the list: one entry stands for the files of all clusters."""
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
    """The documents of a file."""
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
