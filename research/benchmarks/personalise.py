"""What clients end up with when each fits the released model to its own data, beside what the server releases.

    python research/benchmarks/personalise.py RUN... [--clients N]

RUN are finished run folders (not secure ones): their data and models are loaded again, and nothing is released. One
line of JSON per run: mean accuracy and worst decile of the released models and of the clients' own (%), over the same
clients and test rows, and the seconds of wall clock and of processor time that personalising took.
"""

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import yaml

import rrcluster as rr
from rrcluster.data.federated import FederatedData
from rrcluster.runs.config import from_flat
from rrcluster.runs.experiment import make_experiment
from rrcluster.simulation.evaluate import evaluate, judged_clients
from rrcluster.simulation.hosts import Hosts
from rrcluster.simulation.personalise import personalised_accuracies


def main(arguments: list[str]) -> int:
    """Print one line per run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--clients", type=int, help="the first so many; default all that a run evaluates")
    options = parser.parse_args(arguments)
    for path in options.runs:
        sys.stdout.write(json.dumps({"run": path.name, **measure(path, options.clients)}) + "\n")
        sys.stdout.flush()
    return 0


def measure(path: Path, num_clients: int | None) -> dict[str, float]:
    """Released and personalised accuracies of one run."""
    settings = yaml.safe_load((path / "config.yaml").read_text())
    experiment = make_experiment(from_flat(settings, source=str(path)))
    models, data = rr.load(path).models, _first(experiment.data, num_clients)
    known = {"method": experiment.method, "engine": experiment.engine, "local": experiment.local}
    released = evaluate(models, data, split=experiment.split, **known)
    wall, processor = time.perf_counter(), time.process_time()
    ids = judged_clients(data.num_clients)
    own = np.sort(personalised_accuracies(models, ids, Hosts.here(data, split=experiment.split, **known)))
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    return {
        "clients": len(ids),
        "released": round(100 * released.accuracy, 2),
        "personalised": round(100 * float(own.mean()), 2),
        "released_worst_decile": round(100 * released.worst_decile, 2),
        "personalised_worst_decile": round(100 * float(own[: max(1, len(ids) // 10)].mean()), 2),
        "wall_s": round(wall, 1),
        "processor_s": round(processor, 1),
    }


def _first(data: FederatedData, count: int | None) -> FederatedData:
    """The population of the first so many clients."""
    return replace(data, sizes=data.sizes[:count], groups=data.groups[:count], test_of=data.test_of[:count])


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
