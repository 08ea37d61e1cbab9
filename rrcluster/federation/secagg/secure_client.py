"""One client's half of a secure aggregation (Bonawitz et al. 2017, with its consistency round), for one attempt.

Six steps, each once and in this order; anything unexpected is a `ProtocolError`, after which the object is of no use
and the client is out of the round:

    advertise() -> keys                two fresh public keys, signed
    share(keys) -> envelopes           a share of each of its two secrets for every neighbour
    open(envelopes) -> places          of those whose envelope cannot be opened: with any of them the client leaves
    mask(values) -> words              the values, hidden from all who were told something else
    sign(survivors) -> signature       one list, ever
    reveal(signatures) -> keys         that open a share of a survivor's seed or of a missing client's key, never both

Nobody can lie about a share that it holds: the server has passed on the envelope, so a client reveals the key that
opens it. A client is committed to its mask key by the public one, and to its seed by a commitment, both signed.

The server is not trusted: it passes messages on. What a client checks, and the lemma that follows, is in terms.py.
"""

import contextlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from rrcluster.errors import ProtocolError
from rrcluster.federation.secagg import masks
from rrcluster.federation.secagg.masks import KEY_BYTES, SIGNATURE_BYTES, Words, digest
from rrcluster.federation.secagg.terms import Terms

_STAGES = ("advertise", "share", "open", "mask", "sign", "reveal")
_HALF = masks.SHARE_BYTES + masks.TAG_BYTES
ENVELOPE_BYTES = 2 * _HALF
OF_SEED, OF_KEY = slice(_HALF), slice(_HALF, None)  # the halves of an envelope, each closed with its own key


@dataclass(frozen=True)
class AdvertisedKeys:
    """One client's public keys for one attempt and its commitment to its seed, signed by its identity."""

    mask_key: bytes
    envelope_key: bytes
    commitment: bytes
    signature: bytes


@dataclass(frozen=True)
class RevealedShares:
    """Keys to shares sent to one client: of each survivor's seed, and of every other client's mask key."""

    seeds: Mapping[int, bytes] = field(repr=False)
    keys: Mapping[int, bytes] = field(repr=False)


@dataclass(frozen=True)
class Attempt:
    """One attempt at one round under some terms: the context of keys and signatures."""

    terms: Terms
    round_index: int
    number: int

    @property
    def context(self) -> bytes:
        """A digest that differs between attempts, rounds and federations."""
        return digest(self.terms.digest, self.round_index.to_bytes(8), self.number.to_bytes(8))

    def signed_keys(self, place: int, mask_key: bytes, envelope_key: bytes, commitment: bytes) -> bytes:
        """The bytes that a client signs: its keys and its commitment."""
        return digest(b"keys", self.context, place.to_bytes(4), mask_key, envelope_key, commitment)

    def has_signed_keys(self, place: int, keys: AdvertisedKeys) -> bool:
        """Whether the identity at this place has signed these keys for this attempt."""
        sizes = tuple(map(len, (keys.mask_key, keys.envelope_key, keys.commitment, keys.signature)))
        message = self.signed_keys(place, keys.mask_key, keys.envelope_key, keys.commitment)
        fitting = sizes == (KEY_BYTES, KEY_BYTES, KEY_BYTES, SIGNATURE_BYTES)
        return fitting and check_signature(self.terms.identities[place], keys.signature, message)

    def signed_survivors(self, survivors: Sequence[int]) -> bytes:
        """The bytes that a client signs: the list of survivors."""
        return digest(b"survivors", self.context, *(place.to_bytes(4) for place in survivors))

    def mask_purpose(self, one: int, other: int, task_digest: bytes) -> bytes:
        """Names the mask of a pair of clients, in either order, together with their task (models, for example).

        Two clients with different tasks have different masks, which never cancel: a server that sends different tasks
        unmasks nothing.
        """
        low, high = sorted((one, other))
        return digest(b"mask", self.context, low.to_bytes(4), high.to_bytes(4), task_digest)

    def envelope_purpose(self, sender: int, receiver: int) -> bytes:
        """Names an envelope."""
        return digest(b"envelope", self.context, sender.to_bytes(4), receiver.to_bytes(4))

    def expand_seed(self, place: int, seed: bytes) -> tuple[bytes, bytes]:
        """(commitment, key of the mask) of a seed.

        The commitment hides the seed and its mask, since HKDF is a pseudorandom function and the seed 32 random bytes;
        nobody can find two seeds with the same one (SHA-256). It is useless in another attempt, or to another client.
        """
        return masks.derive_two_keys(seed, purpose=digest(b"seed", self.context, place.to_bytes(4)))


@lru_cache(maxsize=2**12)  # the server, and members that share a process, check the same ones
def check_signature(identity: bytes, signature: bytes, message: bytes) -> bool:
    """Whether the owner of this identity has signed this message."""
    try:
        Ed25519PublicKey.from_public_bytes(identity).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def close_shares(keys: tuple[bytes, bytes], shares: tuple[int, int]) -> bytes:
    """An envelope: a share of a seed and one of a mask key, each closed with its own key."""
    return b"".join(
        masks.close(key, share.to_bytes(masks.SHARE_BYTES)) for key, share in zip(keys, shares, strict=True)
    )


def open_share(key: bytes, half: bytes) -> int:
    """The share in half an envelope; ProtocolError if this is not its key."""
    content = masks.open_envelope(key, half)
    if len(content) != masks.SHARE_BYTES:
        raise ProtocolError("an envelope does not contain two shares.")
    return int.from_bytes(content)


class SecureClient:
    """The client's state in one attempt, in memory only: a client that dies has dropped out."""

    def __init__(self, attempt: Attempt, place: int, identity: Ed25519PrivateKey) -> None:
        """Start without secrets. ProtocolError if the identity is not the one enrolled at this place."""
        if attempt.terms.identities[place] != identity.public_key().public_bytes_raw():
            raise ProtocolError(f"the identity key is not the one enrolled for client {place}; enrol again.")
        self.attempt, self._terms, self.place, self._identity = attempt, attempt.terms, place, identity
        self._next = 0
        self._mask_key, self._envelope_key = X25519PrivateKey.generate(), X25519PrivateKey.generate()
        self._seed = secrets.token_bytes(masks.SECRET_BYTES)
        self._keys: dict[int, AdvertisedKeys] = {}
        self._secrets: dict[int, bytes] = {}  # neighbour -> shared secret from which envelope keys are derived
        # sender -> keys that open the shares of its seed and of its mask key
        self._held: dict[int, tuple[bytes, bytes]] = {}
        self._survivors: tuple[int, ...] = ()

    @property
    def neighbours(self) -> tuple[int, ...]:
        """Clients that may hold this client's shares, itself included."""
        return self._terms.neighbourhoods[self.place]

    def advertise(self) -> AdvertisedKeys:
        """Two fresh public keys and a commitment to the seed, signed by the client's identity."""
        self._enter("advertise")
        mask, envelope = (key.public_key().public_bytes_raw() for key in (self._mask_key, self._envelope_key))
        commitment, _ = self.attempt.expand_seed(self.place, self._seed)
        signature = self._identity.sign(self.attempt.signed_keys(self.place, mask, envelope, commitment))
        self._keys[self.place] = AdvertisedKeys(mask, envelope, commitment, signature)
        return self._keys[self.place]

    def share(self, keys: Mapping[int, AdvertisedKeys]) -> dict[int, bytes]:
        """An envelope for each neighbour that advertised keys, and for the client itself. Keys of others are ignored.

        Raises if a neighbour's keys were not signed by its identity, or if fewer than `threshold` can hold shares.
        """
        self._enter("share")
        own_keys = self._keys[self.place]
        self._keys = {place: keys[place] for place in self.neighbours if place in keys and place != self.place}
        for place, advertised in self._keys.items():
            self._check_keys(place, advertised)
        self._keys[self.place] = own_keys
        holders, threshold = sorted(self._keys), self._terms.threshold
        if len(holders) < threshold:
            raise ProtocolError(f"{len(holders)} neighbours are here, fewer than the threshold of {threshold}.")
        points = [place + 1 for place in holders]
        seeds = masks.split_secret(self._seed, points, threshold=threshold)
        mask_keys = masks.split_secret(self._mask_key.private_bytes_raw(), points, threshold=threshold)
        others = [place for place in holders if place != self.place]
        self._secrets = {place: masks.agree(self._envelope_key, self._keys[place].envelope_key) for place in others}
        self._secrets[self.place] = secrets.token_bytes(KEY_BYTES)
        self._held[self.place] = self._envelope_keys(self.place, self.place)
        return {
            place: close_shares(self._envelope_keys(self.place, place), (seeds[place + 1], mask_keys[place + 1]))
            for place in holders
        }

    def open(self, envelopes: Mapping[int, bytes]) -> tuple[int, ...]:
        """The senders whose envelope lacks two shares. If there are any, the client leaves: the server may omit them.

        Raises if an envelope is from nobody who could have sent one, or if fewer than `threshold` sent one.
        """
        self._enter("open")
        if not set(envelopes) <= set(self._secrets):
            raise ProtocolError("an envelope is from a client that is not a neighbour, or advertised no keys.")
        for sender, envelope in envelopes.items():
            of_seed, of_key = self._envelope_keys(sender, self.place)
            with contextlib.suppress(ProtocolError):
                open_share(of_seed, envelope[OF_SEED])
                open_share(of_key, envelope[OF_KEY])
                self._held[sender] = of_seed, of_key
        unopened = tuple(sender for sender in envelopes if sender not in self._held)
        if unopened:
            self._next = len(_STAGES)
        elif len(self._held) < self._terms.threshold:
            raise ProtocolError(
                f"{len(self._held)} neighbours shared their secrets, fewer than the threshold of "
                f"{self._terms.threshold}."
            )
        return unopened

    def mask(self, values: NDArray[np.int64], *, task_digest: bytes) -> Words:
        """The values modulo 2^32, hidden by the client's own mask and one with each neighbour that sent an envelope.

        `task_digest` covers the task on which the values depend.
        """
        self._enter("mask")
        if values.shape != (self._terms.width,) or values.dtype.kind != "i":
            raise ProtocolError(f"values must be {self._terms.width} whole numbers, as agreed.")
        _, own_mask = self.attempt.expand_seed(self.place, self._seed)
        words = values.astype(np.uint32) + masks.expand(own_mask, self._terms.width)
        for place in self._held:
            if place != self.place:
                purpose = self.attempt.mask_purpose(self.place, place, task_digest)
                secret = masks.agree(self._mask_key, self._keys[place].mask_key)
                pairwise = masks.expand(masks.derive_key(secret, purpose=purpose), self._terms.width)
                (np.add if self.place < place else np.subtract)(words, pairwise, out=words)
        return words

    def sign(self, survivors: Sequence[int]) -> bytes:
        """A signature on the list of clients whose masked values arrived. It signs one list per attempt."""
        self._enter("sign")
        self._survivors = tuple(survivors)
        self._terms.check_survivors(self._survivors)
        if self.place not in self._survivors:
            raise ProtocolError("this client is not among the survivors, so it signs nothing.")
        if not set(self._survivors).intersection(self.neighbours) <= set(self._held):
            raise ProtocolError("a survivor among the neighbours never shared its secrets.")
        return self._identity.sign(self.attempt.signed_survivors(self._survivors))

    def reveal(self, signatures: Mapping[int, bytes]) -> RevealedShares:
        """The keys to the shares that unmask the survivors' sum, once `quorum` of them have signed the same list."""
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
        shares, self._held = self._held, {}
        alive = set(self._survivors)
        return RevealedShares(
            seeds={place: of_seed for place, (of_seed, _) in shares.items() if place in alive},
            keys={place: of_key for place, (_, of_key) in shares.items() if place not in alive},
        )

    def _envelope_keys(self, sender: int, receiver: int) -> tuple[bytes, bytes]:
        """The keys for both halves of an envelope between this client and a neighbour, or itself."""
        neighbour = sender if receiver == self.place else receiver
        return masks.derive_two_keys(self._secrets[neighbour], purpose=self.attempt.envelope_purpose(sender, receiver))

    def _enter(self, stage: str) -> None:
        """Enter a stage, each once and in order; a stage that raised cannot be retried."""
        expected, self._next = self._next, len(_STAGES)
        if expected >= len(_STAGES) or _STAGES[expected] != stage:
            raise ProtocolError(f"{stage} is out of order or repeated; the client leaves this attempt.")
        self._next = expected + 1

    def _check_keys(self, place: int, advertised: AdvertisedKeys) -> None:
        if not self.attempt.has_signed_keys(place, advertised):
            raise ProtocolError(f"the keys of client {place} are not signed by its identity for this attempt.")
