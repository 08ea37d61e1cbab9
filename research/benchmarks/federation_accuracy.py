"""Secure rounds against the simulator: 8 daemons with 125 clients each of `fashion-mini`, noise made by the members.

    python research/benchmarks/federation_accuracy.py federation --runs 6
    python research/benchmarks/federation_accuracy.py simulator --runs 12 --first-seed 101
    python research/benchmarks/federation_accuracy.py one-model --runs 3 --first-seed 101

Prints a line of JSON for each run. `simulator` has the noise of all members' shares, which is larger than the plan's by
sqrt(members / least_honest); `plan` is the simulator with the plan's. The runs of a federation have no seed: members
draw from the operating system. docs/privacy.md says how many runs were planned, and what came out.
"""

import argparse
import json
import math
import tempfile
import time
from dataclasses import replace
from itertools import count
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from rrcluster.federation.agreed_run import AgreedRun, close, samples_of
from rrcluster.federation.agreement import Agreement, Member
from rrcluster.federation.client_ledger import ClientLedger
from rrcluster.federation.collect import InProcess
from rrcluster.federation.daemon import Daemon
from rrcluster.federation.deployment import Deployment
from rrcluster.privacy.ledger import Ledger
from rrcluster.runs.experiment import build_experiment
from rrcluster.simulation.evaluate import evaluate

MEMBERS, HOSTED, LEAST_HONEST = 8, 125, 6
ROUNDS, EPSILON = 30, 8.0


class Part:
    """The clients of one member."""

    def __init__(self, store, first):
        self.store, self.first = store, first

    def client(self, client):
        return self.store.client(self.first + client)


def settings(**changes):
    return {
        "data": "fashion-mini",
        "num_clients": MEMBERS * HOSTED,
        "num_clusters": 4,
        "num_rounds": ROUNDS,
        "epsilon": EPSILON,
        "delta": 1e-4,
        "participation": "everybody",
        **changes,
    }


def accuracy(experiment, models):
    return evaluate(
        models,
        experiment.data,
        method=experiment.method,
        split=experiment.split,
        engine=experiment.engine,
    ).accuracy


def simulated(seed, **changes):
    experiment = build_experiment(**settings(seed=seed, **changes))
    *_, record = experiment.rounds()
    return accuracy(experiment, record.state.average)


def agreed_by(keys):
    """The agreement of all members, and an experiment with the same clients."""
    members = tuple(Member(f"member-{i}", key.public_key().public_bytes_raw(), HOSTED) for i, key in enumerate(keys))
    own = settings(secure=True)
    experiment = build_experiment(**own)
    samples = samples_of(experiment.config)
    honest = {"least_honest": LEAST_HONEST, "most_colluders": 1}
    return close(Agreement("benchmark", own, samples, members, "secure", **honest)), experiment


def federated(_):
    keys = [Ed25519PrivateKey.generate() for _ in range(MEMBERS)]
    agreement, experiment = agreed_by(keys)
    agreed = AgreedRun.build(agreement)
    data, daemons = experiment.data, {}
    with tempfile.TemporaryDirectory() as folder:
        for place, key in enumerate(keys):
            rows = slice(place * HOSTED, (place + 1) * HOSTED)
            own = replace(
                data,
                sizes=data.sizes[rows],
                groups=data.groups[rows],
                test_of=data.test_of[rows],
                store=Part(data.store, place * HOSTED),
            )
            ledger = ClientLedger(Path(folder) / f"{place}.jsonl")
            daemons[place] = Daemon(place, agreed, key, own, ledger, agreed.first_memory())
        deployment = Deployment(agreed, InProcess(daemons), count().__next__)
        ledger = Ledger(secure=True, limit=agreed.num_releases)
        *_, finished = deployment.experiment().rounds(ledger=ledger)
    return accuracy(experiment, finished.state.average)


def same_noise(seed):
    """The simulator with the noise of all members' shares."""
    guarantee = agreed_by([Ed25519PrivateKey.generate() for _ in range(MEMBERS)])[0].guarantee
    noise = guarantee["noise_multiplier"] * math.sqrt(MEMBERS / LEAST_HONEST)
    return simulated(seed, noise_multiplier=noise, epsilon=None)


SIDES = {
    "federation": federated,
    "simulator": same_noise,
    "plan": simulated,
    "one-model": lambda seed: simulated(seed, method="fedavg"),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("side", choices=SIDES)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=101)
    args = parser.parse_args()
    for number in range(args.runs):
        seed = None if args.side == "federation" else args.first_seed + number
        began = time.process_time()
        reached = SIDES[args.side](seed)
        seconds = round(time.process_time() - began)
        print(json.dumps({"side": args.side, "seed": seed, "accuracy": reached, "cpu_seconds": seconds}), flush=True)


if __name__ == "__main__":
    main()
