"""What a secure aggregation costs: processor time of one client and of the server, bytes, at n clients and d x k words.

    python research/benchmarks/secure_aggregation.py [--clients 100 1000] [--parameters 7850 26010] [--gone 0.1]

All clients run in this process, one after the other. Training is not included; the noise share is. A client's time is
the mean over those that answered a stage; the server's is that of all it does, from `advertise` to the sum.
"""

import argparse
import json
import time
from collections import defaultdict
from dataclasses import astuple

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from rrcluster.federation.secagg.masks import KEY_BYTES
from rrcluster.federation.secagg.secure_client import AdvertisedKeys, Attempt, RevealedShares, SecureClient
from rrcluster.federation.secagg.secure_server import secure_sum
from rrcluster.federation.secagg.terms import Terms
from rrcluster.privacy.discrete import discrete_gaussian

SIGMA = 2**17  # grid steps of one noise share


def size_of(answer):
    """Bytes of what a client sends in a stage, without the names that a letter adds."""
    match answer:
        case AdvertisedKeys():
            return sum(map(len, astuple(answer)))
        case RevealedShares():
            return KEY_BYTES * (len(answer.seeds) + len(answer.keys))
        case dict():
            return sum(map(len, answer.values()))
        case np.ndarray():
            return answer.nbytes
    return len(answer)


class Clients:
    """Answer every stage, some of them up to `mask`, and count time and bytes."""

    def __init__(self, attempt, keys, left):
        self.clients = [SecureClient(attempt, place, key) for place, key in enumerate(keys)]
        self.values = np.random.default_rng(0).integers(-(2**20), 2**20, size=attempt.terms.width)
        self.left, self.seconds, self.bytes = left, defaultdict(float), defaultdict(float)
        self.total = 0.0

    def ask(self, stage, messages):
        places = [place for place in messages if stage != "mask" or place not in self.left]
        answers, before = {}, self.seconds["noise"]
        began = time.process_time()
        for place in places:
            answers[place] = self.answer(stage, place, messages[place])
        spent = time.process_time() - began
        self.total += spent
        self.seconds[stage] = (spent - self.seconds["noise"] + before) / len(places)
        self.bytes[stage] = sum(map(size_of, answers.values())) / len(places)
        if stage == "mask":
            self.seconds["noise"] /= len(places)
        return answers

    def answer(self, stage, place, message):
        client = self.clients[place]
        if stage == "advertise":
            return client.advertise()
        if stage != "mask":
            return getattr(client, stage)(message)
        client.open(message)
        began = time.process_time()
        noisy = self.values + discrete_gaussian(SIGMA, len(self.values))
        self.seconds["noise"] += time.process_time() - began
        return client.mask(noisy, task_digest=b"benchmark")


def measure(num_clients, width, gone):
    keys = [Ed25519PrivateKey.generate() for _ in range(num_clients)]
    terms = Terms.for_clients(
        tuple(key.public_key().public_bytes_raw() for key in keys),
        settings=b"benchmark",
        width=width,
        least_survivors=int(num_clients * 0.8),
        most_colluders=num_clients // 20,
    )
    attempt = Attempt(terms, 0, 0)
    _ = terms.neighbourhoods, discrete_gaussian(SIGMA, width)  # what is made once for all rounds
    clients = Clients(attempt, keys, set(range(0, num_clients, round(1 / gone))) if gone else set())
    began = time.process_time()
    secure_sum(attempt, clients.ask, charge=lambda: None, blame=lambda *_: None, task_digest=b"benchmark")
    server = time.process_time() - began - clients.total
    return {
        "clients": num_clients,
        "width": width,
        "neighbours": terms.neighbourhood_size,
        "gone": len(clients.left),
        "client_ms": {stage: round(1e3 * spent, 1) for stage, spent in clients.seconds.items()},
        "client_ms_in_all": round(1e3 * sum(clients.seconds.values()), 1),
        "server_s": round(server, 2),
        "kib_up": round(sum(clients.bytes.values()) / 1024, 1),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=[100])
    parser.add_argument("--parameters", type=int, nargs="+", default=[7850])
    parser.add_argument("--clusters", type=int, default=4)
    parser.add_argument("--gone", type=float, default=0.1)
    args = parser.parse_args()
    for num_clients in args.clients:
        for parameters in args.parameters:
            width = args.clusters * (parameters + 1) + 2
            print(json.dumps(measure(num_clients, width, args.gone)), flush=True)


if __name__ == "__main__":
    main()
