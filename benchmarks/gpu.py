"""What benchmarks/README.md says of rounds, ratios and the sweep on a GPU, measured again.

    python benchmarks/gpu.py [rounds] [plain] [sweep]

rounds  milliseconds of a round of workload W (FedAvg), of IFCA with k = 4, and of IFCA with the default network; and
        the seconds from the start of this process to the end of its first round
plain   local training stacked, beside a plain loop over the clients with cuDNN on the same GPU
sweep   144 runs x 100 rounds (IFCA, cnn) stacked; start NVIDIA's multi-process service before

Needs fashion-mnist (`rrcluster data get fashion-mnist`) and a CUDA device.
"""

import os
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from rrcluster.data import from_arrays
from rrcluster.engine import calls
from rrcluster.engine.batched.batched_engine import BatchedEngine
from rrcluster.engine.protocol import LocalSettings
from rrcluster.experiments.config import from_flat
from rrcluster.experiments.executors import stacked
from rrcluster.experiments.grid import jobs, read_grid
from rrcluster.experiments.setup import make_experiment
from rrcluster.experiments.sweep import Going
from rrcluster.models import make_model
from rrcluster.simulation.simulate import simulate

W = {"data": "fashion-mnist", "delta": 1e-3, "noise_multiplier": 1.0, "num_rounds": 70, "device": "cuda"}
WARM = 20  # rounds
SWEEP = {
    "data": "fashion-mnist",
    "model": "cnn",
    "algorithm": "ifca",
    "device": "cuda",
    "num_rounds": 100,
    "evaluate_every": 10,
    "delta": 1e-3,
    "seeds": [0, 1],
    "epsilon": [2.0, 4.0, 8.0],
    "min_cluster_size": [0, 5, 10, 20],
    "update_clip": [0.1, 0.2, 0.3],
    "local_lr": [0.03, 0.05],
}
PLAIN = (  # model, shape of a sample, clients, batch
    ("cifar-cnn", (3, 32, 32), 100, 20),
    ("lstm", (80,), 30, 20),
    ("lstm", (80,), 300, 20),  # ten runs of 30
)
SAMPLES, LOOPED = 100, 4  # of a client; clients of the plain loop


def rounds():
    for algorithm, model, k in (("fedavg", "cnn", 1), ("ifca", "cnn", 4), ("ifca", "edges", 4)):
        it = make_experiment(from_flat({**W, "algorithm": algorithm, "model": model, "num_clusters": k}))
        seconds = []
        for record in simulate(
            data=it.data,
            model=it.model,
            algorithm=it.algorithm,
            plan=it.plan,
            engine=it.engine,
            streams=it.streams,
            local=it.local,
            server=it.server,
        ):
            seconds.append(record.seconds)
            if model == "cnn" and k == 1 and record.round_index == 0:
                print(f"first round {since_start():.1f} s after the start of the process")
        print(f"{algorithm}, {model}, k = {k}: {1e3 * np.median(seconds[WARM:]):.2f} ms a round", flush=True)


def since_start():
    """Seconds since this process was started; Linux alone tells."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")


def plain():
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
    work()  # compiles, records
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


def sweep():
    with tempfile.TemporaryDirectory() as folder:
        out, began, first, done = Path(folder), time.perf_counter(), None, 0
        todo = jobs(read_grid({**SWEEP, "out": folder}, source="benchmark", out=out))
        for step in stacked(todo):
            if isinstance(step, Going):
                first, done = first or time.perf_counter(), done + 1
            elif step.reason:
                print(step.job.name, step.reason)
        now = time.perf_counter()
        print(f"{len(todo)} runs, {done} rounds: {now - first:.1f} s after the first round, {now - began:.1f} s in all")


def main(*parts):
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    for part in parts or ("rounds", "plain", "sweep"):
        {"rounds": rounds, "plain": plain, "sweep": sweep}[part]()


if __name__ == "__main__":
    main(*sys.argv[1:])
