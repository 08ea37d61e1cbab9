"""Networks that people bring: a cohort's training by the engine that `auto` picks, beside a plain PyTorch loop.

The plain loop is what one writes first: one module, `torch.optim.SGD`, one client after another, one thread. The two
take turns, round by round, in one process; the figure is the median of the ratios.
Run it from the folder research: `python -m benchmarks.own_modules`.
"""

import platform
import statistics
import time
from functools import partial

import numpy as np
import torch
from torch import nn

import rrcluster as rr
from rrcluster.engine import protocol as calls
from rrcluster.engine.pick_engine import pick_engine
from rrcluster.engine.protocol import LocalSettings
from rrcluster.engine.reference import CPU, ReferenceEngine
from rrcluster.models import fitted

CLIENTS, SAMPLES, ROUNDS = 50, 40, 5
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
    """The class of a sequence by its last state."""

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
    "small ResNet": (resnet, (3, 32, 32), 0),  # images as CIFAR's
    "large LSTM": (partial(Lstm, 64, 128), (20, 64), 0),
    "large dense": (partial(dense, 256, 256, 128), (256,), 0),
    "very large dense": (partial(dense, 784, 512, 512), (784,), 0),
}
LARGE = ("large LSTM", "large dense", "very large dense")  # computed one client at a time
CONVOLUTIONS = ("GroupNorm CNN", "small ResNet")


def plain_loop(module, start, cohort):
    """(n, d) the trained models."""
    trained = []
    for inputs, targets in zip(torch.as_tensor(cohort.inputs), torch.as_tensor(cohort.targets), strict=True):
        nn.utils.vector_to_parameters(torch.as_tensor(start), module.parameters())
        optimiser = torch.optim.SGD(module.parameters(), lr=LOCAL.local_lr)
        for _ in range(LOCAL.local_epochs):
            for batch in torch.randperm(len(targets)).split(LOCAL.batch_size):
                optimiser.zero_grad()
                nn.functional.cross_entropy(module(inputs[batch]), targets[batch]).backward()
                optimiser.step()
        trained.append(nn.utils.parameters_to_vector(module.parameters()).detach().numpy())
    return np.stack(trained)


def seconds(function, *arguments):
    began = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - began


def main():
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    print(f"{platform.machine()}, torch {torch.__version__}, {CLIENTS} clients x {SAMPLES} samples")
    print(f"{'module':20} {'parameters':>10} {'engine':22} {'difference':>10} {'ratio':>6}   plain loop / ours")
    for name, (make, shape, ids) in MODULES.items():
        size = (CLIENTS, SAMPLES, *shape)
        inputs = rng.integers(ids, size=size) if ids else rng.normal(size=size)
        data = rr.from_arrays(inputs, rng.integers(4, size=size[:2]), num_classes=4, ids=ids > 0)
        model, cohort = fitted(rr.from_module(make()), data), data.cohort(np.arange(CLIENTS))
        engine = pick_engine("auto", model=model, device=CPU)
        start, module = model.given, make()

        def ours(engine=engine, start=start, cohort=cohort):
            return calls.changes(engine, start[None], np.zeros(CLIENTS, dtype=int), cohort, local=LOCAL, key=(1, 2))

        reference = ours(ReferenceEngine(model))
        difference = np.abs(ours() - reference).max()
        ratios = [seconds(plain_loop, module, start, cohort) / seconds(ours) for _ in range(ROUNDS)]
        print(
            f"{name:20} {model.num_parameters:10,} {engine.described:22} {difference:10.1e} "
            f"{statistics.median(ratios):6.2f}"
        )


if __name__ == "__main__":
    main()
