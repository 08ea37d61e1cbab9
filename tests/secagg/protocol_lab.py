"""Clients of a secure aggregation in this process, some of which stop answering at a stage."""

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from rrcluster.federation.secagg.secure_client import Attempt, SecureClient
from rrcluster.federation.secagg.secure_server import secure_sum
from rrcluster.federation.secagg.terms import Terms

WIDTH = 7


def identities(count):
    return [Ed25519PrivateKey.from_private_bytes(number.to_bytes(32)) for number in range(1, count + 1)]


def public(keys):
    return tuple(key.public_key().public_bytes_raw() for key in keys)


def terms_for(count, *, colluders=1, survivors=None, width=WIDTH, reach=None):
    least = survivors or colluders + 2
    return Terms(b"settings", public(identities(count)), width, least, colluders, reach)


class Lab:
    """`gone` maps a stage to the places that do not answer it, nor anything after."""

    def __init__(self, terms, values, *, gone=None, round_index=0, number=0, told=None):
        self.attempt = Attempt(terms, round_index, number)
        self.clients = [
            SecureClient(self.attempt, place, key) for place, key in enumerate(identities(terms.num_clients))
        ]
        self.values, self.gone, self.charged, self.said = values, gone or {}, [], []
        self.left = set()
        self.told = told or {}  # what a client was told, where it differs from what the others were
        self.blamed = {}

    def ask(self, stage, messages):
        self.left |= set(self.gone.get(stage, ()))
        answers = {place: self.answer(stage, place, messages[place]) for place in messages if place not in self.left}
        self.said.append((stage, answers))
        return answers

    def answer(self, stage, place, message):
        client = self.clients[place]
        if stage == "advertise":
            return client.advertise()
        if stage == "mask":
            assert client.open(message) == ()
            return client.mask(self.values[place], task_digest=self.told.get(place, b"models"))
        return getattr(client, stage)(message)

    def total(self):
        return secure_sum(
            self.attempt,
            self.ask,
            charge=lambda: self.charged.append(len(self.said)),
            blame=self.blamed.__setitem__,
            task_digest=b"models",
        )


def values_for(count, *, seed=0, width=WIDTH):
    return np.random.default_rng(seed).integers(-(2**20), 2**20, size=(count, width))
