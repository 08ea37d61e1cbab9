"""Ours: the engine of `engine = auto`, or the one named, on as many hosts as there are cores."""

import sys

import numpy as np
from workload import BATCH, EPOCHS, RATE, answer, load

import rrcluster as rr
from rrcluster.engine import protocol as calls
from rrcluster.engine.pick_engine import pick_engine
from rrcluster.engine.protocol import LocalSettings
from rrcluster.engine.reference import CPU
from rrcluster.methods import METHODS
from rrcluster.models import make_model
from rrcluster.processes import cores
from rrcluster.simulation.hosts import Hosts

LOCAL = LocalSettings(RATE, EPOCHS, BATCH)


def trained(host, starts, part):
    """The sum of what some clients train, each from the first model, or from the one of least loss."""
    ids, chooses = part
    engine, cohort = host.side.engine, host.data.cohort(ids)
    chosen = calls.losses(engine, starts, cohort).argmin(axis=1) if chooses else np.zeros(len(ids), dtype=int)
    return calls.train(engine, starts[chosen], cohort, local=LOCAL, key=(0, 0)).sum(axis=0)


def main(path, name="auto"):
    inputs, targets, starts = load(path)
    data = rr.from_arrays(inputs, targets, num_classes=10)
    model, method = make_model("cnn", input_shape=(1, 28, 28), num_classes=10), METHODS["ifca"]
    engine = pick_engine(name, model=model, device=CPU)
    host = Hosts.here(data, method=method, split=method.split(model), engine=engine).host
    hosts = Hosts(host, processes=cores())

    def train(*, chooses):
        firsts = range(0, len(targets), engine.part)
        parts = [(np.arange(first, min(first + engine.part, len(targets))), chooses) for first in firsts]
        sum(hosts.map(trained, starts, parts))

    train(chooses=False)  # the processes are there, as those of the others are
    answer(lambda: train(chooses=False), lambda: train(chooses=True))


if __name__ == "__main__":
    main(*sys.argv[1:])
