"""Runs whose results are recorded: digests of everything that a reader of a run folder sees.

    python tests/recorded/recorded_runs.py            compare with digests.json: a line per run that differs
    python tests/recorded/recorded_runs.py --write    record again
    python tests/recorded/recorded_runs.py -k own     only runs with "own" in their name

Bits depend on the processor and on the libraries, so digests are compared where both are those they were recorded with.
One thread: how many there are is no part of what is recorded.
"""

import os

os.environ["OMP_NUM_THREADS"] = "1"

import argparse
import contextlib
import hashlib
import json
import logging
import re
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
import torch
import yaml
from torch import nn

import rrcluster as rr
from rrcluster import entropy
from rrcluster.cli import main as command_line

HERE = Path(__file__).parent
DIGESTS = HERE / "digests.json"
sys.path.insert(0, str(HERE.parent / "federation"))

TINY = {
    "data": "fashion-mini",
    "num_clients": 60,
    "max_samples": 20,
    "num_clusters": 4,
    "num_rounds": 6,
    "sample_rate": 0.5,
    "local_epochs": 1,
    "noise_multiplier": 1.0,
    "delta": 1e-3,
    "evaluate_every": 3,
    "device": "cpu",
}
NO_NOISE = {"mechanism": "none", "noise_multiplier": None}
SEEDED = {
    "default": {"num_rounds": 12},
    "coins": {"min_cluster_size": 4, "init": "independent"},
    "evaluated": {"private_evaluation": 0.25, "init": "independent"},
    "survey": {"num_rounds": 20, "init": "survey", "num_clients": 300, "noise_multiplier": 0.3},
    "everybody": {"participation": "everybody"},
    "schedule": {"participation": "schedule", "slots": 3, "num_rounds": 9},
    "identifier": {"mechanism": "identifier", "min_cluster_size": 4},
    "none": NO_NOISE,
    "none, rebalanced": NO_NOISE | {"min_cluster_size": 4},
    "faults": {"dropout": 0.2, "hostile": 0.2},
    "personalised": {"personalise": True, "num_rounds": 3},
    "cnn": {"model": "cnn", "num_rounds": 3},
    "dirichlet": {"partition": "dirichlet", "concentration": 0.3},
    "survey, everybody": {"num_rounds": 16, "init": "survey", "num_clients": 200, "participation": "everybody"},
    "fesem, identifier": {"algorithm": "fesem-memoryless", "mechanism": "identifier", "min_cluster_size": 4},
    "fedcam, everybody": {"algorithm": "fedcam", "participation": "everybody", "min_cluster_size": 4},
    "fedper, schedule": {
        "algorithm": "fedper",
        "participation": "schedule",
        "slots": 2,
        "model": "mlp",
        "num_rounds": 4,
    },
    "k-ary identifier": {"mechanism": "identifier", "identifier": "kary"},
    "synthetic": {"data": "synthetic", "max_samples": None, "init": "independent"},
    "local": {"algorithm": "local", "mechanism": "none", "noise_multiplier": None, "num_rounds": 2},
}
METHODS = ("fedavg", "fedprox", "fesem", "fedcam", "fedper", "mr-mtl", "oracle", "ifca-shared", "fesem-memoryless")
OWN = {
    "num_clusters": 2,
    "num_rounds": 4,
    "sample_rate": 0.5,
    "local_epochs": 1,
    "noise_multiplier": 1.0,
    "delta": 1e-2,
    "device": "cpu",
    "init": "independent",
}


def table(num_clients=24):
    rng = np.random.default_rng(0)
    who = np.repeat(np.arange(num_clients), rng.integers(3, 9, size=num_clients))
    x = rng.normal(size=(len(who), 2)).round(3)
    yes = (x[:, 0] > 0) ^ (who % 2 == 1)
    return {
        "who": [f"c{number}" for number in who],
        "a": x[:, 0].tolist(),
        "b": x[:, 1].tolist(),
        "colour": [("red", "blue", "green")[number % 3] for number in range(len(who))],
        "label": np.where(yes, "yes", "no").tolist(),
    }


def csv_settings(folder):
    columns = table()
    lines = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
    (folder / "clients.csv").write_text("\n".join(lines) + "\n")
    roles = {"client": "who", "target": "label", "classes": ["no", "yes"], "categories": {"colour": ["red", "blue"]}}
    return OWN | roles | {"data": str(folder / "clients.csv"), "test_share": 0.3, "scale": {"a": (-3, 3)}}


class Perceptron(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(784, 12), nn.Linear(12, 10)

    def forward(self, x):
        return self.last(torch.relu(self.first(x.flatten(1))))


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Conv2d(1, 3, 5, stride=3), nn.Linear(192, 10)

    def forward(self, x):
        return self.last(torch.relu(self.first(x.view(-1, 1, 28, 28))).flatten(1))


def own_module(module):
    def run(folder):
        torch.manual_seed(0)
        rr.run(**TINY | {"model": module(), "num_rounds": 3, "out": folder / "run"})

    return run


def own_method(folder):
    from rrcluster.methods import Method

    def distance_to_zero(models, clients, *, tools):
        sizes = clients.cohort.sizes[:, None]
        return (sizes * np.arange(1, models.num_clusters + 1) % 5).astype(float)

    rr.register("method", "by-size", Method("by-size", scores=distance_to_zero), label="By size")
    rr.run(**TINY | {"algorithm": "by-size", "out": folder / "run"})


def own_csv(folder):
    rr.run(**csv_settings(folder), out=folder / "run")


def arrays(folder):
    rng = np.random.default_rng(1)
    inputs = [rng.normal(size=(5, 3)) for _ in range(30)]
    targets = [x @ [1.0, -1.0, 0.5] for x in inputs]
    data = rr.from_arrays(inputs, targets, num_classes=0, name="numbers")
    rr.run(**OWN | {"data": data, "out": folder / "run"})


@contextlib.contextmanager
def fixed_entropy():
    real, rng = entropy.os.urandom, np.random.default_rng(5)
    entropy.os.urandom = rng.bytes
    try:
        yield
    finally:
        entropy.os.urandom = real


def secure_csv(folder):
    with fixed_entropy():
        settings = csv_settings(folder) | {"secure": True, "num_clients": 30, "reserve_rounds": 1, "test_share": 0.0}
        rr.run(**settings, out=folder / "run")


def secure_images(folder):
    settings = {name: value for name, value in TINY.items() if name != "evaluate_every"}
    with fixed_entropy():
        rr.run(**settings | {"secure": True, "min_cluster_size": 4, "out": folder / "run"})


def secure_module(folder):
    torch.manual_seed(0)
    settings = {name: value for name, value in TINY.items() if name != "evaluate_every"}
    with fixed_entropy():
        rr.run(**settings | {"secure": True, "model": Perceptron(), "num_rounds": 2, "out": folder / "run"})


def secure_identifier(folder):
    settings = {name: value for name, value in TINY.items() if name != "evaluate_every"}
    settings |= {"mechanism": "identifier", "min_cluster_size": 4, "secure": True}
    with fixed_entropy():
        rr.run(**settings | {"out": folder / "run"})


def secure_schedule(folder):
    settings = {name: value for name, value in TINY.items() if name != "evaluate_every"}
    settings |= {"participation": "schedule", "slots": 3, "num_rounds": 9}
    with fixed_entropy():
        rr.run(**settings | {"secure": True, "out": folder / "run"})


def sweep(folder):
    grid = TINY | {
        "algorithm": ["fedavg", "ifca", "fedcam"],
        "seed": [0, 1],
        "num_rounds": 3,
        "out": str(folder / "run"),
    }
    (folder / "grid.yaml").write_text(yaml.safe_dump(grid))
    assert command_line(["sweep", str(folder / "grid.yaml"), "-q"]) == 0


def csv_sweep(folder):
    settings = csv_settings(folder)
    rr.sweep(settings | {"algorithm": ["ifca", "fedavg"], "out": str(folder / "run")}, processes=1)


def resumed_schedule(folder):
    resumed(folder, participation="schedule", slots=3, num_rounds=9)


def resumed(folder, **changes):
    class Stop(Exception):
        pass

    def stop(round_index, figures):
        if round_index == 3:
            raise Stop

    with contextlib.suppress(Stop):
        rr.run(**TINY | (changes or {"algorithm": "fesem"}) | {"out": folder / "run"}, on_round=stop)
    rr.run(resume=folder / "run")


def federation(mode):
    def run(folder):
        from federation_lab import SECURE, agree, daemons_of, deployed_rounds, experiment_of

        from rrcluster.federation.collect import InProcess

        with fixed_entropy() if mode == "secure" else contextlib.nullcontext():
            agreement = agree(mode=mode)
            agreed, daemons = daemons_of(agreement, experiment_of(**(SECURE if mode == "secure" else {})).data, folder)
            lines = []
            for record in deployed_rounds(agreed, InProcess(daemons)):
                parts = (record.release.sizes, record.release.cluster_sums, record.state.models.clustered)
                lines += [hashlib.sha256(np.ascontiguousarray(part).tobytes()).hexdigest() for part in parts]
        (folder / "run").mkdir()
        (folder / "run" / "rounds.json").write_text(json.dumps(lines))

    return run


def server_loop(folder):
    from rrcluster.privacy.plan import PrivacyPlan
    from rrcluster.types import Coordinates

    settings = {"noise_multiplier": 1.0, "num_rounds": 3, "delta": 1e-3, "sample_rate": 0.5}
    plan = PrivacyPlan.build(coordinates=Coordinates(1, 4), num_clients=40, num_clusters=2, **settings)
    rng = np.random.default_rng(0)
    with rr.Server(plan, rng.normal(size=(2, 5)), folder=folder / "run", seed=0) as server:
        while not server.finished:
            ids = server.cohort()
            server.finish(rng.normal(size=(len(ids), 5)), rng.integers(2, size=len(ids)), client_ids=ids)


def seeded(settings):
    return lambda folder: rr.run(**TINY | settings | {"out": folder / "run"})


RUNS = {name: seeded(settings) for name, settings in SEEDED.items()}
RUNS |= {name: seeded({"algorithm": name}) for name in METHODS}
RUNS |= {
    "own csv": own_csv,
    "own arrays, regression": arrays,
    "own module": own_module(Perceptron),
    "own convolutions": own_module(Convolutions),
    "own method": own_method,
    "secure, own csv": secure_csv,
    "secure, images, coins": secure_images,
    "secure, schedule": secure_schedule,
    "secure, own module": secure_module,
    "secure, identifier": secure_identifier,
    "sweep": sweep,
    "sweep, own csv": csv_sweep,
    "resumed": resumed,
    "resumed, schedule": resumed_schedule,
    "federation, plain": federation("plain"),
    "federation, secure": federation("secure"),
    "rr.Server": server_loop,
}

LEFT_OUT = {"lock", "index.html", "report.html", "report.json", "table.csv", "table.tex"}
VARYING = {"seconds", "elapsed", "made_by", "time", "rrcluster", "audit"}  # keys of values that are not results


def digests(folder):
    """sha256 of every file below `folder`, without what says when, where and by which version it was made."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_dir() or path.name in LEFT_OUT or "checkpoint" in path.parts or "tensorboard" in path.parts:
            continue
        content = path.read_bytes()
        if path.suffix in (".json", ".jsonl"):
            documents = (
                [json.loads(line) for line in content.splitlines()]
                if path.suffix == ".jsonl"
                else [json.loads(content)]
            )
            content = json.dumps([without(document) for document in documents], sort_keys=True).encode()
        elif path.suffix == ".yaml":
            content = json.dumps(without(yaml.safe_load(content)), sort_keys=True, default=str).encode()
        content = re.sub(rb"/[^\s\"]*/(run|clients\.csv)\b", rb"\1", content)
        content = re.sub(rb"\| [0-9.]+ \|\n", b"|\n", content)  # seconds, the last column of a table
        found[str(path.relative_to(folder))] = hashlib.sha256(content).hexdigest()[:16]
    return found


def without(value):
    if isinstance(value, dict):
        return {name: without(part) for name, part in value.items() if name not in VARYING}
    return [without(part) for part in value] if isinstance(value, list) else value


def machine():
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {"cpu": names[0] if names else "", "torch": torch.__version__, "numpy": np.__version__}


def record(name):
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(), contextlib.redirect_stdout(sys.stderr):
        warnings.simplefilter("ignore")
        RUNS[name](Path(folder))
        return digests(Path(folder) / "run")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true")
    parser.add_argument("-k", default="")
    options = parser.parse_args()
    torch.set_num_threads(1)
    recorded = json.loads(DIGESTS.read_text()) if DIGESTS.exists() else {"machine": machine(), "runs": {}}
    if recorded["machine"] != machine() and not options.write:
        print(f"recorded on {recorded['machine']}, this is {machine()}: nothing is compared")
        return 0
    wrong = 0
    for name in RUNS:
        if options.k not in name:
            continue
        found = record(name)
        if options.write:
            recorded["runs"][name] = found
            continue
        expected = recorded["runs"].get(name, {})
        different = sorted(file for file in found.keys() | expected.keys() if found.get(file) != expected.get(file))
        wrong += bool(different)
        print(f"{'DIFFERS' if different else 'same   '} {name}  {' '.join(different)}", flush=True)
    if options.write:
        DIGESTS.write_text(json.dumps(recorded | {"machine": machine()}, indent=1, sort_keys=True) + "\n")
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
