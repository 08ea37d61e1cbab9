"""One client's half of a secure aggregation (Bonawitz et al. 2017, with its consistency round), for one attempt.

Five stages, each once and in this order; anything unexpected is a `ProtocolError`, after which the object is of no use
and the client is out of the round:

    advertise() -> keys                two fresh public keys, signed
    share(keys) -> envelopes           a share of each of its two secrets for every neighbour
    mask(envelopes, values) -> words   the values, hidden from all who were told something else
    sign(survivors) -> signature       one list, ever
    reveal(signatures) -> shares       of a survivor's seed or of a missing client's key, never both

The server is not trusted: it passes messages on. What a client checks, and the lemma that follows, is in terms.py.
"""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from rrcluster.errors import ProtocolError
from rrcluster.secagg.masks import (
    KEY_BYTES,
    SIGNATURE_BYTES,
    Words,
    agree,
    close,
    derive_key,
    digest,
    expand,
    open_envelope,
)
from rrcluster.secagg.shamir import SECRET_BYTES, SHARE_BYTES, split_secret
from rrcluster.secagg.terms import Terms

_STAGES = ("advertise", "share", "mask", "sign", "reveal")


@dataclass(frozen=True)
class AdvertisedKeys:
    """The public keys of one client for one attempt, signed by its identity."""

    mask_key: bytes
    envelope_key: bytes
    signature: bytes


@dataclass(frozen=True)
class RevealedShares:
    """What one client reveals of its neighbours: a share of the seed of each survivor, of the key of each other."""

    seeds: Mapping[int, int] = field(repr=False)
    keys: Mapping[int, int] = field(repr=False)


@dataclass(frozen=True)
class Attempt:
    """One attempt at one round under some terms: what keys and signatures are bound to."""

    terms: Terms
    round_index: int
    number: int

    @property
    def context(self) -> bytes:
        """Different for every attempt of every round of every federation."""
        return digest(self.terms.digest, self.round_index.to_bytes(8), self.number.to_bytes(8))

    def signed_keys(self, place: int, mask_key: bytes, envelope_key: bytes) -> bytes:
        """What a client signs of its keys."""
        return digest(b"keys", self.context, place.to_bytes(4), mask_key, envelope_key)

    def has_signed_keys(self, place: int, keys: AdvertisedKeys) -> bool:
        """Whether these are keys that the identity at this place has signed for this attempt."""
        sizes = tuple(map(len, (keys.mask_key, keys.envelope_key, keys.signature)))
        message = self.signed_keys(place, keys.mask_key, keys.envelope_key)
        fitting = sizes == (KEY_BYTES, KEY_BYTES, SIGNATURE_BYTES)
        return fitting and check_signature(self.terms.identities[place], keys.signature, message)

    def signed_survivors(self, survivors: Sequence[int]) -> bytes:
        """What a client signs of the list of survivors."""
        return digest(b"survivors", self.context, *(place.to_bytes(4) for place in survivors))

    def mask_purpose(self, one: int, other: int, task_digest: bytes) -> bytes:
        """Names the mask of a pair of clients, whichever of them asks, and what both were told (models, say).

        Two clients that were told different things have different masks, which never cancel: a server that tells
        some clients one thing and some another unmasks nothing.
        """
        low, high = sorted((one, other))
        return digest(b"mask", self.context, low.to_bytes(4), high.to_bytes(4), task_digest)

    def envelope_purpose(self, sender: int, receiver: int) -> bytes:
        """Names an envelope."""
        return digest(b"envelope", self.context, sender.to_bytes(4), receiver.to_bytes(4))


def check_signature(identity: bytes, signature: bytes, message: bytes) -> bool:
    """Whether the owner of this identity has signed this message."""
    try:
        Ed25519PublicKey.from_public_bytes(identity).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


class SecureClient:
    """The client's state in one attempt. It is kept in memory only: a client that dies has dropped out."""

    def __init__(self, attempt: Attempt, place: int, identity: Ed25519PrivateKey) -> None:
        """Nothing is drawn yet. ProtocolError if the identity is not the one enrolled at this place."""
        if attempt.terms.identities[place] != identity.public_key().public_bytes_raw():
            raise ProtocolError(f"the identity key is not the one enrolled for client {place}; enrol again.")
        self.attempt, self._terms, self.place, self._identity = attempt, attempt.terms, place, identity
        self._next = 0
        self._mask_key, self._envelope_key = X25519PrivateKey.generate(), X25519PrivateKey.generate()
        self._seed = secrets.token_bytes(SECRET_BYTES)
        self._keys: dict[int, AdvertisedKeys] = {}
        self._secrets: dict[int, bytes] = {}  # neighbour -> what its envelopes and ours are closed with keys of
        self._held: dict[int, tuple[int, int]] = {}  # sender -> shares of its seed and of its key
        self._survivors: tuple[int, ...] = ()

    @property
    def neighbours(self) -> tuple[int, ...]:
        """Who may hold this client's shares; the client itself is one of them."""
        return self._terms.neighbourhoods[self.place]

    def advertise(self) -> AdvertisedKeys:
        """Two fresh public keys, signed by the client's identity."""
        self._enter("advertise")
        mask, envelope = (key.public_key().public_bytes_raw() for key in (self._mask_key, self._envelope_key))
        signature = self._identity.sign(self.attempt.signed_keys(self.place, mask, envelope))
        self._keys[self.place] = AdvertisedKeys(mask, envelope, signature)
        return self._keys[self.place]

    def share(self, keys: Mapping[int, AdvertisedKeys]) -> dict[int, bytes]:
        """An envelope for each neighbour that advertised keys. Keys of others are ignored.

        Raises if a neighbour's keys were not signed by its identity, or if fewer than `threshold` can hold shares.
        """
        self._enter("share")
        own = self._keys[self.place]
        self._keys = {place: keys[place] for place in self.neighbours if place in keys and place != self.place}
        for place, advertised in self._keys.items():
            self._check_keys(place, advertised)
        self._keys[self.place] = own
        holders, threshold = sorted(self._keys), self._terms.threshold
        if len(holders) < threshold:
            raise ProtocolError(f"{len(holders)} neighbours are here, fewer than the threshold of {threshold}.")
        points = [place + 1 for place in holders]
        seeds = split_secret(self._seed, points, threshold=threshold)
        mask_keys = split_secret(self._mask_key.private_bytes_raw(), points, threshold=threshold)
        self._held[self.place] = seeds[self.place + 1], mask_keys[self.place + 1]
        others = [place for place in holders if place != self.place]
        self._secrets = {place: agree(self._envelope_key, self._keys[place].envelope_key) for place in others}
        return {
            place: close(
                derive_key(self._secrets[place], purpose=self.attempt.envelope_purpose(self.place, place)),
                seeds[place + 1].to_bytes(SHARE_BYTES) + mask_keys[place + 1].to_bytes(SHARE_BYTES),
            )
            for place in others
        }

    def mask(self, envelopes: Mapping[int, bytes], values: NDArray[np.int64], *, task_digest: bytes) -> Words:
        """The values modulo 2^32, hidden by a mask of one's own and one with each neighbour that sent an envelope.

        `task_digest` is of what the server said that the values depend on.
        """
        self._enter("mask")
        if values.shape != (self._terms.width,) or values.dtype.kind != "i":
            raise ProtocolError(f"values must be {self._terms.width} whole numbers, as agreed.")
        for sender, envelope in envelopes.items():
            if sender not in self._secrets:
                raise ProtocolError("an envelope is from somebody who is no neighbour, or advertised no keys.")
            purpose = self.attempt.envelope_purpose(sender, self.place)
            content = open_envelope(derive_key(self._secrets[sender], purpose=purpose), envelope)
            if len(content) != 2 * SHARE_BYTES:
                raise ProtocolError("an envelope holds something else than two shares.")
            self._held[sender] = int.from_bytes(content[:SHARE_BYTES]), int.from_bytes(content[SHARE_BYTES:])
        if len(self._held) < self._terms.threshold:
            raise ProtocolError(
                f"{len(self._held)} neighbours shared their secrets, fewer than the threshold of "
                f"{self._terms.threshold}."
            )
        words = values.astype(np.uint32) + expand(self._seed, self._terms.width)
        for place in self._held:
            if place != self.place:
                purpose = self.attempt.mask_purpose(self.place, place, task_digest)
                secret = agree(self._mask_key, self._keys[place].mask_key)
                pairwise = expand(derive_key(secret, purpose=purpose), self._terms.width)
                (np.add if self.place < place else np.subtract)(words, pairwise, out=words)
        return words

    def sign(self, survivors: Sequence[int]) -> bytes:
        """A signature on the list of those whose masked values arrived. It signs one list per attempt."""
        self._enter("sign")
        self._survivors = tuple(survivors)
        self._terms.check_survivors(self._survivors)
        if self.place not in self._survivors:
            raise ProtocolError("this client is not among the survivors, so it has nothing to sign.")
        if not set(self._survivors).intersection(self.neighbours) <= set(self._held):
            raise ProtocolError("a survivor among the neighbours never shared its secrets.")
        return self._identity.sign(self.attempt.signed_survivors(self._survivors))

    def reveal(self, signatures: Mapping[int, bytes]) -> RevealedShares:
        """Shares that unmask the sum of the survivors, once `quorum` of them have signed the same list."""
        self._enter("reveal")
        message, quorum = self.attempt.signed_survivors(self._survivors), self._terms.quorum
        signed = 0
        for place in self._survivors:
            signature = signatures.get(place)
            signed += signature is not None and check_signature(self._terms.identities[place], signature, message)
            if signed == quorum:
                break
        if signed < quorum:
            raise ProtocolError(f"{signed} survivors signed the list that this client signed, not {quorum}.")
        held, self._held = self._held, {}
        alive = set(self._survivors)
        return RevealedShares(
            seeds={place: seed for place, (seed, _) in held.items() if place in alive},
            keys={place: key for place, (_, key) in held.items() if place not in alive},
        )

    def _enter(self, stage: str) -> None:
        """Each stage once and in order; a stage that raised cannot be tried again."""
        expected, self._next = self._next, len(_STAGES)
        if expected >= len(_STAGES) or _STAGES[expected] != stage:
            raise ProtocolError(f"{stage} is out of order or was asked twice; the client leaves this attempt.")
        self._next = expected + 1

    def _check_keys(self, place: int, advertised: AdvertisedKeys) -> None:
        if not self.attempt.has_signed_keys(place, advertised):
            raise ProtocolError(f"the keys of client {place} are not signed by its identity for this attempt.")
