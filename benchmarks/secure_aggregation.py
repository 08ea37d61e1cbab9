"""What a secure aggregation costs: processor time of one client and of the server, bytes, at n clients and d x k words.

    python benchmarks/secure_aggregation.py [--clients 100 1000] [--parameters 7850 26010] [--gone 0.1]

All clients run in this process, one after the other. Training is not included; the noise share is.
"""

import argparse
import json
import time
from collections import defaultdict

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from rrcluster.privacy.discrete import discrete_gaussian
from rrcluster.secagg.secure_client import Attempt, SecureClient
from rrcluster.secagg.secure_server import secure_sum
from rrcluster.secagg.terms import Terms

SIGMA = 2**17  # grid steps of one noise share


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
    clients = [SecureClient(attempt, place, key) for place, key in enumerate(keys)]
    _ = terms.neighbourhoods
    seconds, sizes = defaultdict(float), defaultdict(int)
    left = set(range(0, num_clients, max(int(1 / gone), 1))) if gone else set()
    rng = np.random.default_rng(0)
    values = rng.integers(-(2**20), 2**20, size=width)
    shares = discrete_gaussian(SIGMA, width)  # warms up
    in_clients = 0.0

    def ask(stage, messages):
        nonlocal in_clients
        answers = {}
        for place, message in messages.items():
            if stage == "mask" and place in left:
                continue
            began = time.process_time()
            client = clients[place]
            if stage == "advertise":
                answers[place] = client.advertise()
            elif stage == "mask":
                started = time.process_time()
                noisy = values + (discrete_gaussian(SIGMA, width) if place < 20 else shares)
                seconds["noise"] += (time.process_time() - started) / 19
                answers[place] = client.mask(message, noisy)
                in_clients_mask = time.process_time() - started
                del in_clients_mask
            else:
                answers[place] = getattr(client, stage)(message)
            spent = time.process_time() - began
            in_clients += spent
            seconds[stage] += spent / len(messages)
        sizes["share"] = 148 * terms.neighbourhood_size
        sizes["mask"] = 4 * width
        sizes["reveal"] = 66 * terms.neighbourhood_size
        return answers

    began = time.process_time()
    secure_sum(attempt, ask, charge=lambda: None)
    server = time.process_time() - began - in_clients
    noise = seconds.pop("noise")
    return {
        "clients": num_clients,
        "width": width,
        "neighbours": terms.neighbourhood_size,
        "gone": len(left),
        "client_ms": {stage: round(1e3 * spent, 1) for stage, spent in seconds.items()},
        "noise_share_ms": round(1e3 * noise, 1),
        "server_s": round(server, 2),
        "kib_up": round(sum(sizes.values()) / 1024, 1),
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
