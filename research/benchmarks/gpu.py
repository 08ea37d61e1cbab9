"""What research/benchmarks/README.md says of a GPU, measured again, beside the bounds we set ourselves.

    python research/benchmarks/gpu.py [SECTION ...] [--turns N] [--device cuda]

rounds  milliseconds of a round: workload W (FedAvg), IFCA with k = 4 by the cnn and by the default network, ten slots

        beside Poisson cohorts, and everybody in every round; they take turns

equal   the largest difference of a model between this device and the CPU after 20 seeded rounds
plain   local training stacked, beside a plain loop over the clients with cuDNN on the same GPU
sweep   seconds of whole commands: 24 runs of edges and 144 of the cnn, 100 rounds each; start NVIDIA's multi-process

        service before

table   seconds of `rrcluster reproduce fashion`, 630 runs

Needs fashion-mnist (`rrcluster data get fashion-mnist`) and a CUDA device.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch
import yaml
from torch.nn.functional import cross_entropy

from rrcluster.data.arrays import from_arrays
from rrcluster.engine import protocol as calls
from rrcluster.engine.batched.batched_engine import BatchedEngine
from rrcluster.engine.protocol import LocalSettings
from rrcluster.models import make_model
from rrcluster.runs.config import from_flat
from rrcluster.runs.experiment import make_experiment
from rrcluster.simulation.simulate import simulate

W = {"data": "fashion-mnist", "delta": 1e-3, "noise_multiplier": 1.0}
WARM, TIMED = 20, 50  # rounds of a turn
STARTED = []  # end of this process's first round
EDGES = {"algorithm": "ifca", "model": "edges", "num_clusters": 4}
ROUNDS = {  # name -> settings, most milliseconds
    "W (FedAvg, cnn)": ({"algorithm": "fedavg", "model": "cnn", "num_clusters": 1}, 3.5),
    "IFCA, cnn, k = 4": ({"algorithm": "ifca", "model": "cnn", "num_clusters": 4}, 5.5),
    "IFCA, edges, k = 4": (EDGES, 1.5),
    "IFCA, edges, B = 20, Poisson": ({**EDGES, "min_cluster_size": 20}, None),
    "IFCA, edges, B = 20, ten slots": (
        {**EDGES, "min_cluster_size": 20, "participation": "schedule", "slots": 10},
        None,
    ),
    "everybody, FedAvg, cnn": ({"algorithm": "fedavg", "model": "cnn", "participation": "everybody"}, 25),
}
COMMON = {"data": "fashion-mnist", "algorithm": "ifca", "num_rounds": 100, "evaluate_every": 10, "delta": 1e-3}
COMMON |= {"seeds": [0, 1], "epsilon": [2.0, 4.0, 8.0], "min_cluster_size": [0, 5, 10, 20]}
SWEEPS = {  # name -> grid, most seconds
    "24 runs of edges": ({**COMMON, "model": "edges"}, 8),
    "144 runs of cnn": (
        {**COMMON, "model": "cnn", "update_clip": [0.1, 0.2, 0.3], "local_lr": [0.03, 0.05]},
        60,
    ),
}
PLAIN = (  # model, shape of a sample, clients, batch
    ("cifar-cnn", (3, 32, 32), 100, 20),
    ("lstm", (80,), 30, 20),
    ("lstm", (80,), 300, 20),  # ten runs of 30
)
SAMPLES, LOOPED = 100, 4  # samples of a client; clients of the plain loop


def said(name, figure, unit, most):
    bound = "" if most is None else f"  at most {most:g}{'' if figure <= most else ', MISSED'}"
    print(f"{name:36} {figure:8.3g} {unit}{bound}", flush=True)


def seconds_of_rounds(settings, count, device):
    """Seconds of each of `count` rounds, and the models at the end; prints the time to this process's first round."""
    experiment = make_experiment(from_flat({**W, **settings, "num_rounds": count, "device": device}))
    records = simulate(
        data=experiment.data,
        model=experiment.model,
        method=experiment.method,
        plan=experiment.plan,
        engine=experiment.engine,
        streams=experiment.streams,
        local=experiment.local,
        server=experiment.server,
    )
    seconds = []
    for record in records:
        if not STARTED:
            STARTED.append(since_start())
            said("start of the process to first round", STARTED[0], "s", None)
        seconds.append(record.seconds)
    return np.array(seconds), record.state.models.rows


def since_start():
    """Seconds since this process started; Linux only."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")


def rounds(turns, device):
    medians = {name: [] for name in ROUNDS}
    for _ in range(turns):
        for name, (settings, _) in ROUNDS.items():
            seconds, _ = seconds_of_rounds(settings, WARM + TIMED, device)
            medians[name].append(1e3 * np.median(seconds[WARM:]))
    for name, (_, most) in ROUNDS.items():
        said(name, np.median(medians[name]), f"ms ({min(medians[name]):.2f} to {max(medians[name]):.2f})", most)
    slots, poisson = (np.median(medians[f"IFCA, edges, B = 20, {kind}"]) for kind in ("ten slots", "Poisson"))
    said("ten slots / Poisson", slots / poisson, "", 1.1)
    if device == "cuda":
        said("peak device memory", torch.cuda.max_memory_allocated() / 2**30, "GB", None)


def equal(_, device):
    for name in ("W (FedAvg, cnn)", "IFCA, edges, k = 4"):
        models = [seconds_of_rounds({**ROUNDS[name][0], "precision": "float32"}, 20, on)[1] for on in (device, "cpu")]
        said(f"difference, {name}", np.abs(models[0] - models[1]).max(), "", None)


def plain(*_):
    rng = np.random.default_rng(0)
    for name, shape, clients, batch in PLAIN:
        ids, classes = name == "lstm", 80 if name == "lstm" else 10
        inputs = [rng.integers(80, size=(SAMPLES, *shape)) if ids else rng.normal(size=(SAMPLES, *shape))] * clients
        targets = [rng.integers(classes, size=SAMPLES)] * clients
        data = from_arrays(inputs, targets, num_classes=classes, ids=ids)
        model = make_model(name, input_shape=shape, num_classes=classes)
        cohort, local = data.cohort(np.arange(clients)), LocalSettings(0.05, 1, batch)
        engine = BatchedEngine(model, torch.device("cuda"), model.clients_at_once, precision="tf32")
        vectors, chosen = model.init(rng=rng)[None], np.zeros(clients, dtype=np.int64)
        ours = best(partial(calls.changes, engine, vectors, chosen, cohort, local=local, key=(0, 0)))
        looped = best(partial(plain_loop, model.module.cuda(), cohort, batch)) * clients / LOOPED
        print(f"{name}, {clients} clients: {1e3 * ours:.1f} ms, plain loop {1e3 * looped:.0f} ms: {looped / ours:.1f}x")


def best(work):
    work()  # compiles and records
    seconds = []
    for _ in range(3):
        torch.cuda.synchronize()
        began = time.perf_counter()
        work()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def plain_loop(module, cohort, batch):
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    inputs, targets = (torch.as_tensor(values[:LOOPED], device="cuda") for values in (cohort.inputs, cohort.targets))
    optimiser = torch.optim.SGD(module.parameters(), lr=0.05)
    for client in range(LOOPED):
        for first in range(0, SAMPLES, batch):
            part = slice(first, first + batch)
            optimiser.zero_grad()
            cross_entropy(module(inputs[client, part]), targets[client, part]).backward()
            optimiser.step()


def whole(name, most, *command):
    """Seconds of one of our commands."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "rrcluster", *command], check=True, stdout=subprocess.DEVNULL)
    said(name, time.perf_counter() - began, "s", most)


def sweep(turns, device):
    for name, (grid, most) in SWEEPS.items():
        for _ in range(turns):
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "grid.yaml"
                path.write_text(yaml.safe_dump({**grid, "device": device}))
                whole(name, most, "sweep", str(path), "--out", str(Path(folder) / "runs"))


def table(_, device):
    with tempfile.TemporaryDirectory() as folder:
        whole("reproduce fashion", 150, "reproduce", "fashion", "--device", device, "--out", folder)


SECTIONS = {"rounds": rounds, "equal": equal, "plain": plain, "sweep": sweep, "table": table}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sections", nargs="*", help=", ".join(SECTIONS))
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--device", default="cuda")
    asked = parser.parse_args()
    device = torch.cuda.get_device_name() if asked.device == "cuda" else asked.device
    print(f"{device}, torch {torch.__version__}")
    for name in asked.sections or SECTIONS:
        SECTIONS[name](asked.turns, asked.device)


if __name__ == "__main__":
    main()
