"""Plausible run folders, written by hand: no run is made."""

import json
import math
from pathlib import Path

import pytest
import yaml

import rrcluster as rr
from rrcluster.privacy.accounting import epsilon as epsilon_of
from rrcluster.privacy.events import RepeatAndSelect
from rrcluster.privacy.ledger import describe
from rrcluster.privacy.statement import statement
from rrcluster.types import Coordinates

CONFUSION = [[0, 250, 0, 0], [250, 0, 0, 0], [0, 0, 150, 0], [0, 0, 100, 250]]  # 90% on the best matching
SEEDED = "NOT PRIVATE: seeded noise can be subtracted by whoever has the seed. Research only."


def write_run(
    folder: Path,
    *,
    accuracy: float | None = 0.75,
    num_rounds: int = 12,
    status: str = "finished",
    summary: dict | None = None,
    privacy: dict | None = None,
    cost: float | None = None,
    **settings,
) -> Path:
    """Write the folder of one run; `accuracy` None leaves the diagnostics out, further keywords change settings.

    Its noise is that of everybody in every round, which is accounted in no time, and costs `cost` or the epsilon asked
    for; `privacy` changes what is stated.
    """
    config = {
        "name": None,
        "data": "fashion-mini",
        "partition": "rotation",
        "num_clients": 1000,
        "num_clusters": 4,
        "sample_rate": 0.1,
        "num_rounds": num_rounds,
        "algorithm": "ifca",
        "mechanism": "joint",
        "rebalance": "none",
        "min_cluster_size": 0,
        "epsilon": 4.0,
        "delta": 1e-4,
        "noise_multiplier": None,
        "update_clip": 0.2,
        "model": "linear",
        "seed": 0,
        **settings,
    }
    folder.mkdir(parents=True, exist_ok=True)
    private = config["mechanism"] != "none"
    k = 1 if config["algorithm"] == "fedavg" else config["num_clusters"]
    selected = "selection" in (privacy or {})
    stated = _statement(config, cost or config["epsilon"], selected) if private else NONE
    stated = stated | {"private": bool((privacy or {}).get("secure"))} | (privacy or {})
    epsilon = stated["epsilon"]
    rounds = [_round(t, k) for t in range(num_rounds)]
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    (folder / "privacy.json").write_text(json.dumps(stated))
    (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in rounds))
    charges = [{"round": t, "event": stated.get("event")} for t in range(1 if selected else num_rounds)]
    (folder / "ledger.jsonl").write_text("".join(json.dumps(line) + "\n" for line in charges))
    if accuracy is not None:
        lines = [_diagnostics(t, accuracy * (1 - 0.5 / (t + 1)), k) for t in range(2, num_rounds - 1, 3)]
        lines.append(_diagnostics(num_rounds - 1, accuracy, k))
        (folder / "diagnostics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = {
        "name": "run",
        "status": status,
        "epsilon": epsilon,
        "seed": config["seed"],
        "num_clusters": k,
        "num_rounds": num_rounds,
        "rounds_done": num_rounds,
        "releases_charged": num_rounds,
        "version": "0.1.0",
    }
    (folder / "summary.json").write_text(json.dumps({**done, **(summary or {})}))
    return folder


def write_demo(folder: Path) -> Path:
    """Three methods, one seed each."""
    write_run(folder / "dp-fedavg", algorithm="fedavg", accuracy=0.58)
    write_run(folder / "dp-ifca", accuracy=0.70)
    write_run(folder / "rr-cluster", rebalance="coin", min_cluster_size=15, accuracy=0.75)
    return folder


def _round(t: int, k: int) -> dict:
    sizes = [100 / k + 3 * math.sin(t + j) - (28 if j == 2 else 0) for j in range(k)]  # cluster 2 goes negative
    return {"round": t, "sizes": sizes, "denominators": [25.0] * k, "noise_std": [0.01] * k}


def _diagnostics(t: int, accuracy: float, k: int) -> dict:
    shares = {"accuracy": accuracy, "loss": 1 - accuracy, "clustering_accuracy": 0.9, "worst_decile": accuracy - 0.1}
    tables = {"group_accuracy": [accuracy] * 4, "choice_sizes": [250] * 4, "confusion": CONFUSION if k == 4 else []}
    return {"round": t, **shares, **tables, "seconds": 41.25}


NONE = {"private": False, "epsilon": None, "accountants": [], "artefacts": "NOT PRIVATE: no noise."}


def _statement(config: dict, cost: float, selected: bool) -> dict:
    plan = rr.PrivacyPlan.build(
        coordinates=Coordinates(0, 10),
        sample_rate=1.0,
        epsilon=cost,
        num_clients=1000,
        **{name: config[name] for name in ("mechanism", "num_rounds", "delta", "num_clusters")},
    )
    shown = ("adjacency", "sampling", "num_rounds", "num_clients", "delta", "epsilon", "accountant", "event")
    stated = statement(plan)
    stated = {name: stated[name] for name in ("private", *shown, "noise", "accountants")}
    stated["num_clients"] = config["num_clients"]
    if selected:
        event = RepeatAndSelect(plan.event, plan.num_rounds, 10.0, "geometric")
        cost = epsilon_of(event, num_rounds=1, delta=plan.delta, accountant="rdp")
        stated |= {"event": describe(event), "epsilon": cost, "accountant": "rdp", "accountants": []}
        config |= {"epsilon": None, "noise_multiplier": plan.noise_multiplier}
    return stated | {
        "unit": "client",
        "released": ["noisy sums", f"{config['num_clusters']} noisy sizes"],
        "notes": ["The server is trusted."],
        "not_covered": ["Choosing settings by looking at private data."],
        "artefacts": SEEDED,
    }


@pytest.fixture(scope="session")
def run_folder():
    return write_run


@pytest.fixture
def demo(tmp_path):
    return write_demo(tmp_path / "demo")


@pytest.fixture
def figures(monkeypatch):
    """Every figure that is drawn, after its layout, in order; its files are empty."""
    laid_out = []

    def capture(figure, kind, *_, **__):
        if kind == "png":
            figure.draw_without_rendering()
            laid_out.append(figure)
        return b"<svg></svg>"

    monkeypatch.setattr("rrcluster.report.drawing._render", capture)
    return laid_out
