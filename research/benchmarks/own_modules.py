"""Users' networks: `ours`, by the engine that `auto` picks, or `plain`, a loop in two processes.

The plain loop has one thread a process, channels-last weights and images, half of the clients each, their data
preloaded. Usage: own_modules.py ours|plain NAME, driven as contenders.answer says ("train"); `bench.py modules`
compares.
"""

import multiprocessing
import os
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn

from rrcluster.engine.protocol import LocalSettings

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.contenders import answer

CLIENTS, SAMPLES = 50, 40
PROCESSES, EDGES = 2, "edges (ours)"
WARM = 3  # seconds
LOCAL = LocalSettings(local_lr=0.05, local_epochs=2, batch_size=20)


class Residual(nn.Module):
    """Two convolutions beside an identity."""

    def __init__(self, width):
        super().__init__()
        self.first, self.second = (nn.Conv2d(width, width, 3, padding=1) for _ in range(2))
        self.norm = nn.GroupNorm(4, width)

    def forward(self, images):
        return torch.relu(images + self.second(torch.relu(self.norm(self.first(images)))))


class Encoder(nn.Module):
    """A default transformer layer (dropout 0.1) and a linear one."""

    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), nn.Linear(32, 4)

    def forward(self, sequence):
        return self.head(self.layer(sequence).mean(1))


class Lstm(nn.Module):
    """Classifies a sequence by its last state."""

    def __init__(self, inputs=32, width=32):
        super().__init__()
        self.lstm, self.head = nn.LSTM(inputs, width, batch_first=True), nn.Linear(width, 4)

    def forward(self, sequence):
        return self.head(self.lstm(sequence)[0][:, -1])


def convolutions():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.GroupNorm(4, 16),
        nn.ReLU(),
        nn.MaxPool2d(4),
        nn.Flatten(),
        nn.Linear(16 * 16, 4),
    )


def resnet():
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4)]
    return nn.Sequential(nn.Conv2d(3, 16, 3, stride=2), Residual(16), Residual(16), *head)


def dense(inputs, first, second):
    return nn.Sequential(nn.Linear(inputs, first), nn.ReLU(), nn.Linear(first, second), nn.ReLU(), nn.Linear(second, 4))


def embedding():
    return nn.Sequential(nn.Embedding(500, 16), nn.Flatten(), nn.Linear(16 * 12, 32), nn.ReLU(), nn.Linear(32, 4))


# name -> module, shape of a sample, ids up to (0: numbers)
MODULES = {
    "GroupNorm CNN": (convolutions, (1, 16, 16), 0),
    "transformer encoder": (Encoder, (12, 32), 0),
    "LSTM": (Lstm, (12, 32), 0),
    "embedding": (embedding, (12,), 500),
    "small ResNet": (resnet, (3, 32, 32), 0),  # images like CIFAR's
    "large LSTM": (partial(Lstm, 64, 128), (20, 64), 0),
    "large dense": (partial(dense, 256, 256, 128), (256,), 0),
    "very large dense": (partial(dense, 784, 512, 512), (784,), 0),
}
LARGE = ("large LSTM", "large dense", "very large dense")  # computed one client at a time
CONVOLUTIONS = ("GroupNorm CNN", "small ResNet")


def workload(name):
    """Module, inputs (clients, samples, ...), targets, whether inputs are ids."""
    rng = np.random.default_rng(0)
    torch.manual_seed(0)
    if name == EDGES:
        from rrcluster.models import make_model

        shape, ids, clients = (1, 28, 28), 0, 100
        module = make_model("edges", input_shape=shape, num_classes=4).module
    else:
        make, shape, ids = MODULES[name]
        module, clients = make(), CLIENTS
    size = (clients, SAMPLES, *shape)
    inputs = rng.integers(ids, size=size) if ids else rng.normal(size=size).astype(np.float32)
    return module, inputs, rng.integers(4, size=size[:2]), ids > 0


def ours(name):
    import rrcluster as rr
    from rrcluster.engine.pick_engine import pick_engine
    from rrcluster.engine.reference import CPU
    from rrcluster.methods import METHODS
    from rrcluster.models import fitted, make_model
    from rrcluster.simulation.hosts import Hosts

    module, inputs, targets, ids = workload(name)
    data = rr.from_arrays(inputs, targets, num_classes=4, ids=ids)
    if name == EDGES:
        model = make_model("edges", input_shape=data.input_shape, num_classes=4)
        start = model.init(rng=np.random.default_rng(0))
    else:
        model = fitted(rr.from_module(module), data)
        start = model.given
    engine, method = pick_engine("auto", model=model, device=CPU), METHODS["fedavg"]
    host = Hosts.here(data, method=method, split=method.split(model), engine=engine).host
    hosts, everybody = Hosts(host, processes=PROCESSES), np.arange(len(inputs))
    parts = [everybody[first : first + engine.part] for first in range(0, len(inputs), engine.part)]

    def train():
        sum(hosts.map(trained, start, parts))

    train()
    if name != EDGES:  # start the processes, as those of the plain loop are running
        until, seen = time.perf_counter() + WARM, set()
        while time.perf_counter() < until or len(seen) < PROCESSES:
            train()
            seen |= set(hosts.map(who, None, parts))
    answer(train, train)


def who(*_):
    """The process that computes a part; on a busy machine one of them may still be starting."""
    return os.getpid()


def trained(host, start, ids):
    """The sum of some clients' updates."""
    from rrcluster.engine import protocol as calls

    zeros, cohort = np.zeros(len(ids), dtype=int), host.data.cohort(ids)
    return calls.changes(host.side.engine, start[None], zeros, cohort, local=LOCAL, key=(1, 2)).sum(axis=0)


def work(name, which, jobs, results):
    torch.set_num_threads(1)
    module, inputs, targets, _ = workload(name)
    clients = range(which, len(inputs), PROCESSES)
    data, answers = ({i: torch.from_numpy(values[i]) for i in clients} for values in (inputs, targets))
    if module_takes_images := inputs.ndim == 5:
        module = module.to(memory_format=torch.channels_last)
    start = [part.detach().clone() for part in module.parameters()]
    optimiser, loss_of = torch.optim.SGD(module.parameters(), lr=LOCAL.local_lr), nn.CrossEntropyLoss()

    def train(i):
        with torch.no_grad():
            for parameter, value in zip(module.parameters(), start, strict=True):
                parameter.copy_(value)
        for _ in range(LOCAL.local_epochs):
            for chosen in torch.randperm(len(answers[i])).split(LOCAL.batch_size):
                optimiser.zero_grad(set_to_none=True)
                batch = data[i][chosen]
                batch = batch.contiguous(memory_format=torch.channels_last) if module_takes_images else batch
                loss_of(module(batch), answers[i][chosen]).backward()
                optimiser.step()
        return torch.cat([part.detach().reshape(-1) for part in module.parameters()])

    results.put(0)
    while jobs.get() is not None:
        results.put(sum(train(i) for i in clients).numpy())


def plain(name):
    context = multiprocessing.get_context("spawn")
    jobs, results = [context.Queue() for _ in range(PROCESSES)], context.Queue()
    for which, queue in enumerate(jobs):
        context.Process(target=work, args=(name, which, queue, results), daemon=True).start()

    def collect():
        return sum(results.get() for _ in range(PROCESSES))

    def train():
        for queue in jobs:
            queue.put("train")
        collect()

    collect()
    train()
    answer(train, train)


if __name__ == "__main__":
    {"ours": ours, "plain": plain}[sys.argv[1]](sys.argv[2])
