"""The server's half of a secure aggregation: pass messages on, and unmask the sum. It holds no secret of its own.

    keys = ask("advertise")  ->  envelopes = ask("share")  ->  words = ask("mask")  ->  signatures = ask("sign")
    charge()  ->  shares = ask("reveal")  ->  the sum

`ask(stage, messages)` sends each client its message and returns the answers that came by the deadline: a transport over
a network, or a loop over clients in this process. Who does not answer a stage is out of the attempt.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from rrcluster.errors import ProtocolError
from rrcluster.secagg.masks import Words, agree, derive_key, expand
from rrcluster.secagg.secure_client import AdvertisedKeys, Attempt, RevealedShares, check_signature
from rrcluster.secagg.shamir import PRIME, combine_shares

Ask = Callable[[str, Mapping[int, Any]], Mapping[int, Any]]  # stage, place -> message; place -> answer
Envelopes = Mapping[int, Mapping[int, bytes]]


def secure_sum(attempt: Attempt, ask: Ask, *, charge: Callable[[], None], task_digest: bytes) -> NDArray[np.int64]:
    """The sum of the survivors' values, as whole numbers from -2^31 to 2^31 - 1.

    `task_digest` is of what all of them were told in stage `mask`. Who signs wrongly, has a key that nobody can use, or
    does not send every neighbour its envelope is left out here: passed on, that would make others leave.

    `charge` is called before anybody is asked to reveal: from then on the server may know the sum. ProtocolError, and
    no charge, where too few are left to be unmasked; the next attempt has new keys and new noise.
    """
    terms = attempt.terms
    advertised = ask("advertise", dict.fromkeys(range(terms.num_clients)))
    keys = {place: own for place, own in advertised.items() if attempt.has_signed_keys(place, own) and _usable(own)}
    shown = {place: _among(keys, terms.neighbourhoods[place]) for place in keys}
    shared = ask("share", shown)
    delivered = deliver({place: own for place, own in shared.items() if {*own, place} == set(shown[place])})
    masked = ask("mask", delivered)
    alive = survivors(attempt, masked)
    signed, message = ask("sign", dict.fromkeys(alive, alive)), attempt.signed_survivors(alive)
    signatures = {place: own for place, own in signed.items() if check_signature(terms.identities[place], own, message)}
    if len(signatures) < terms.quorum:
        raise ProtocolError(f"{len(signatures)} survivors signed, fewer than the {terms.quorum} that a list needs.")
    charge()
    revealed = ask("reveal", dict.fromkeys(signatures, signatures))
    return unmask(
        attempt,
        masked,
        alive=alive,
        keys=keys,
        delivered=delivered,
        revealed=revealed,
        task_digest=task_digest,
    )


def deliver(sent: Envelopes) -> dict[int, dict[int, bytes]]:
    """The envelopes by receiver; who sent none is out of the attempt and receives none."""
    return {
        receiver: {sender: envelopes[receiver] for sender, envelopes in sent.items() if receiver in envelopes}
        for receiver in sent
    }


def survivors(attempt: Attempt, masked: Mapping[int, Words]) -> tuple[int, ...]:
    """Those whose words are of the agreed length and type; ProtocolError if they are too few to be unmasked."""
    width = attempt.terms.width
    fitting = (place for place, words in masked.items() if words.shape == (width,) and words.dtype == np.uint32)
    alive = tuple(sorted(fitting))
    attempt.terms.check_survivors(alive)
    return alive


def unmask(
    attempt: Attempt,
    masked: Mapping[int, Words],
    *,
    alive: tuple[int, ...],
    keys: Mapping[int, AdvertisedKeys],
    delivered: Envelopes,
    revealed: Mapping[int, RevealedShares],
    task_digest: bytes,
) -> NDArray[np.int64]:
    """The sum of the values of those `alive`, from their words and the shares revealed.

    `delivered` says who had whose envelope, hence whose pairwise masks are in whose words. ProtocolError if fewer than
    `threshold` holders revealed a share of a secret that is needed, or if shares do not fit.
    """
    terms, total = attempt.terms, np.zeros(attempt.terms.width, dtype=np.uint32)
    seeds = {holder: shares.seeds for holder, shares in revealed.items()}
    mask_keys = {holder: shares.keys for holder, shares in revealed.items()}
    for place in alive:
        total += masked[place]
        total -= expand(_secret(attempt, place, seeds), terms.width)
    missing = {sender for receiver in alive for sender in delivered[receiver]} - set(alive)
    for place in sorted(missing):
        private = X25519PrivateKey.from_private_bytes(_secret(attempt, place, mask_keys))
        if private.public_key().public_bytes_raw() != keys[place].mask_key:
            raise ProtocolError("the shares of a key do not fit the key that was advertised.")
        for survivor in set(terms.neighbourhoods[place]).intersection(alive):
            if place in delivered[survivor]:  # its words hold the mask of this pair, and nobody's cancel it
                secret = agree(private, keys[survivor].mask_key)
                key = derive_key(secret, purpose=attempt.mask_purpose(place, survivor, task_digest))
                pairwise = expand(key, terms.width)
                (np.add if place < survivor else np.subtract)(total, pairwise, out=total)
    return total.astype(np.int32).astype(np.int64)


def _usable(keys: AdvertisedKeys) -> bool:
    """Whether a secret can be agreed on with either key: not so with a few that belong to small groups."""
    probe = X25519PrivateKey.generate()
    try:
        for key in (keys.mask_key, keys.envelope_key):
            agree(probe, key)
    except ProtocolError:
        return False
    return True


def _secret(attempt: Attempt, place: int, shares: Mapping[int, Mapping[int, int]]) -> bytes:
    given = {
        holder + 1: shares[holder][place]
        for holder in attempt.terms.neighbourhoods[place]
        if holder in shares and 0 <= shares[holder].get(place, -1) < PRIME
    }
    return combine_shares(given, threshold=attempt.terms.threshold)


def _among(keys: Mapping[int, AdvertisedKeys], places: tuple[int, ...]) -> dict[int, AdvertisedKeys]:
    return {place: keys[place] for place in places if place in keys}
