"""Secure rounds against the simulator: 8 daemons with 125 clients each of `fashion-mini`, noise made by the members.

    python benchmarks/federation_accuracy.py [--rounds 40] [--epsilon 4] [--seed 0]

Prints one line of JSON: accuracy of the secure federation, of the simulator with the same noise (that of all members'
shares: larger than the plan's by sqrt(members / least_honest)) and with the plan's, and of one model for all.
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

from rrcluster.experiments.setup import build_experiment
from rrcluster.federation.agreed_run import AgreedRun, close, samples_of
from rrcluster.federation.agreement import Agreement, Member
from rrcluster.federation.client_ledger import ClientLedger
from rrcluster.federation.collect import InProcess
from rrcluster.federation.daemon import Daemon
from rrcluster.federation.deployment import Deployment
from rrcluster.privacy.ledger import Ledger
from rrcluster.simulation.evaluate import evaluate

MEMBERS, HOSTED = 8, 125


class Part:
    """The clients of one member."""

    def __init__(self, store, first):
        self.store, self.first = store, first

    def client(self, client):
        return self.store.client(self.first + client)


def settings(args, **changes):
    return {
        "data": "fashion-mini",
        "num_clients": MEMBERS * HOSTED,
        "num_clusters": 4,
        "num_rounds": args.rounds,
        "epsilon": args.epsilon,
        "delta": 1e-4,
        "participation": "everybody",
        **changes,
    }


def accuracy(experiment, models):
    return evaluate(
        models,
        experiment.data,
        algorithm=experiment.algorithm,
        split=experiment.split,
        engine=experiment.engine,
    ).accuracy


def simulated(args, **changes):
    experiment = build_experiment(**settings(args, seed=args.seed, **changes))
    *_, record = experiment.rounds()
    return accuracy(experiment, record.state.average)


def federated(args):
    keys = [Ed25519PrivateKey.generate() for _ in range(MEMBERS)]
    members = tuple(Member(f"member-{i}", key.public_key().public_bytes_raw(), HOSTED) for i, key in enumerate(keys))
    experiment = build_experiment(**settings(args, secure=True))
    agreement = close(
        Agreement(
            "benchmark",
            settings(args, secure=True),
            samples_of(experiment.config),
            members,
            "secure",
            least_honest=6,
            most_colluders=1,
        )
    )
    agreed = AgreedRun.build(agreement)
    data, folder = experiment.data, Path(tempfile.mkdtemp())
    daemons = {}
    for place, key in enumerate(keys):
        rows = slice(place * HOSTED, (place + 1) * HOSTED)
        own = replace(
            data,
            sizes=data.sizes[rows],
            groups=data.groups[rows],
            test_of=data.test_of[rows],
            store=Part(data.store, place * HOSTED),
        )
        daemons[place] = Daemon(place, agreed, key, own, ClientLedger(folder / f"{place}.jsonl"), agreed.first_memory())
    deployment = Deployment(agreed, InProcess(daemons), count().__next__)
    ledger = Ledger(secure=True, limit=agreed.num_releases)
    *_, finished = deployment.experiment().rounds(ledger=ledger)
    return accuracy(experiment, finished.state.average), agreed.guarantee()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--epsilon", type=float, default=4.0)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    began = time.process_time()
    secure, statement = federated(args)
    seconds = time.process_time() - began
    noise = statement["noise_multiplier"] * math.sqrt(MEMBERS / statement["least_honest"])
    line = {
        "secure federation": secure,
        "simulator with the same noise": simulated(args, noise_multiplier=noise, epsilon=None),
        "simulator": simulated(args),
        "one model": simulated(args, algorithm="fedavg"),
        "seconds of processor time of the federation": seconds,
        "statement": statement,
    }
    print(json.dumps(line))


if __name__ == "__main__":
    main()
