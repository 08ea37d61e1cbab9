"""The server's half of a secure aggregation: pass messages on, and unmask the sum. It has no secret of its own.

    keys = ask("advertise")  ->  envelopes = ask("share")  ->  words = ask("mask")  ->  signatures = ask("sign")
    charge()  ->  opened shares = ask("reveal")  ->  the sum

`ask(stage, messages)` sends each client its message and returns the answers that came by the deadline: a transport over
a network, or a loop over clients in this process. A client that does not answer a stage is out of the attempt.

`blame(place, fault)` names a client that violated the protocol, whatever the others say. A *holder* is blamed where it
reveals a key that does not open its share, although it confirmed with its words that it could open it. A *dealer* is
blamed where its shares, as sent, do not give the secret that it committed to.
"""

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from rrcluster.errors import ProtocolError
from rrcluster.federation.secagg import secure_client
from rrcluster.federation.secagg.masks import Words, agree, combine_shares, derive_key, expand
from rrcluster.federation.secagg.secure_client import OF_KEY, OF_SEED, AdvertisedKeys, Attempt, RevealedShares

Ask = Callable[[str, Mapping[int, Any]], Mapping[int, Any]]  # stage, place -> message; place -> answer
Blame = Callable[[int, str], None]
Envelopes = Mapping[int, Mapping[int, bytes]]


def secure_sum(
    attempt: Attempt, ask: Ask, *, charge: Callable[[], None], blame: Blame, task_digest: bytes
) -> NDArray[np.int64]:
    """The sum of the survivors' values, as integers from -2^31 to 2^31 - 1.

    `task_digest` covers the task of stage `mask`. Clients with a wrong signature, an unusable key or a missing envelope
    are left out here: forwarding those would make others leave.

    `charge` is called before anybody is asked to reveal: from then on the server may know the sum. ProtocolError, and
    no charge, where too few are left to be unmasked; the next attempt has new keys and new noise. After the charge the
    sum is lost where fewer than `threshold` holders of a secret reveal true shares, or a dealer sent false ones.
    """
    terms = attempt.terms
    advertised = ask("advertise", dict.fromkeys(range(terms.num_clients)))
    usable = {place for place, reply in advertised.items() if attempt.has_signed_keys(place, reply) and _usable(reply)}
    keys = _of(usable, advertised, blame, "advertised invalid keys, or keys not signed for this attempt")
    visible_keys = {place: _among(keys, terms.neighbourhoods[place]) for place in keys}
    shared = ask("share", visible_keys)
    complete = {place for place, reply in shared.items() if set(reply) == set(visible_keys[place])}
    sent = _of(complete, shared, blame, "did not send an envelope for each neighbour")
    words = ask("mask", deliver(sent))
    complete = {place for place, reply in words.items() if reply.shape == (terms.width,) and reply.dtype == np.uint32}
    masked = _of(complete, words, blame, "sent words of another length or type than agreed")
    alive = tuple(sorted(masked))
    terms.check_survivors(alive)
    signed, text = ask("sign", dict.fromkeys(alive, alive)), attempt.signed_survivors(alive)
    agreeing = {
        place for place, reply in signed.items() if secure_client.check_signature(terms.identities[place], reply, text)
    }
    signatures = _of(agreeing, signed, blame, "signed another list of survivors")
    if len(signatures) < terms.quorum:
        raise ProtocolError(f"{len(signatures)} survivors signed, fewer than the {terms.quorum} that a list needs.")
    charge()
    revealed = ask("reveal", dict.fromkeys(signatures, signatures))
    return unmask(attempt, masked, keys=keys, sent=sent, revealed=revealed, blame=blame, task_digest=task_digest)


def _of(fitting: set[int], answers: Mapping[int, Any], blame: Blame, fault: str) -> dict[int, Any]:
    """The valid answers; a client with an invalid one is blamed, and out of the attempt."""
    for place in sorted(set(answers) - fitting):
        blame(place, fault)
    return {place: reply for place, reply in answers.items() if place in fitting}


def deliver(sent: Envelopes) -> dict[int, dict[int, bytes]]:
    """The envelopes by receiver; a client that sent none is out of the attempt and receives none."""
    return {
        receiver: {sender: row[receiver] for sender, row in sent.items() if receiver in row and sender != receiver}
        for receiver in sent
    }


def unmask(
    attempt: Attempt,
    masked: Mapping[int, Words],
    *,
    keys: Mapping[int, AdvertisedKeys],
    sent: Envelopes,
    revealed: Mapping[int, RevealedShares],
    blame: Blame,
    task_digest: bytes,
) -> NDArray[np.int64]:
    """The sum of the values behind these words, unmasked with the opened shares.

    `sent` says which clients exchanged envelopes, and so which pairwise masks are in the words. ProtocolError if fewer
    than `threshold` holders gave a true share of a needed secret, or if its dealer sent false ones.
    """
    terms, total = attempt.terms, np.zeros(attempt.terms.width, dtype=np.uint32)
    missing = {dealer for dealer, row in sent.items() if dealer not in masked and not masked.keys().isdisjoint(row)}
    halves = dict.fromkeys(sorted(masked), OF_SEED) | dict.fromkeys(sorted(missing), OF_KEY)
    shares = _open_revealed(halves, sent, revealed, blame)
    secrets = _combine_all(attempt, halves, shares, keys, blame)
    for place, words in masked.items():
        _, seed_mask = attempt.expand_seed(place, secrets[place])
        total += words
        total -= expand(seed_mask, terms.width)
    for place in sorted(missing):
        private = X25519PrivateKey.from_private_bytes(secrets[place])
        # its words contain the mask of this pair, which no other words cancel
        for survivor in masked.keys() & sent[place].keys():
            secret = agree(private, keys[survivor].mask_key)
            key = derive_key(secret, purpose=attempt.mask_purpose(place, survivor, task_digest))
            (np.add if place < survivor else np.subtract)(total, expand(key, terms.width), out=total)
    return total.astype(np.int32).astype(np.int64)


def _open_revealed(
    halves: Mapping[int, slice], sent: Envelopes, revealed: Mapping[int, RevealedShares], blame: Blame
) -> dict[int, dict[int, int]]:
    """For each dealer the shares of one secret by point, as sent; `halves` says which secret is needed."""
    shares: dict[int, dict[int, int]] = {dealer: {} for dealer in halves}
    liars = set()
    for dealer, half in halves.items():
        for holder in sent[dealer].keys() & revealed.keys():
            openers = revealed[holder].seeds if half == OF_SEED else revealed[holder].keys
            try:
                shares[dealer][holder + 1] = secure_client.open_share(
                    openers.get(dealer, b""), sent[dealer][holder][half]
                )
            except ProtocolError:
                liars.add(holder)
    for holder in sorted(liars):
        blame(holder, "revealed a key that does not open the shares it was sent")
    return shares


def _combine_all(
    attempt: Attempt,
    halves: Mapping[int, slice],
    shares: Mapping[int, Mapping[int, int]],
    keys: Mapping[int, AdvertisedKeys],
    blame: Blame,
) -> dict[int, bytes]:
    """The secret of each dealer. All shares are as sent, so an inconsistent one is the dealer's fault."""
    secrets: dict[int, bytes] = {}
    for dealer, half in halves.items():
        if len(shares[dealer]) < attempt.terms.threshold:
            raise ProtocolError(f"{len(shares[dealer])} shares are fewer than the {attempt.terms.threshold} needed.")
        with contextlib.suppress(ProtocolError):
            secret = combine_shares(shares[dealer], threshold=attempt.terms.threshold)
            if _is_committed(attempt, dealer, keys[dealer], half, secret):
                secrets[dealer] = secret
    liars = sorted(set(halves) - set(secrets))
    for dealer in liars:
        blame(dealer, "sent its neighbours shares that contradict its commitment")
    if liars:
        raise ProtocolError(f"the shares of {len(liars)} clients contradict their commitments.")
    return secrets


def _is_committed(attempt: Attempt, dealer: int, keys: AdvertisedKeys, half: slice, secret: bytes) -> bool:
    """Whether a dealer's commitment, or its public key, belongs to this secret."""
    if half == OF_SEED:
        return attempt.expand_seed(dealer, secret)[0] == keys.commitment
    return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw() == keys.mask_key


def _usable(keys: AdvertisedKeys) -> bool:
    """Whether both keys can be used for key agreement, unlike the few that belong to small groups."""
    probe = X25519PrivateKey.generate()
    try:
        for key in (keys.mask_key, keys.envelope_key):
            agree(probe, key)
    except ProtocolError:
        return False
    return True


def _among(keys: Mapping[int, AdvertisedKeys], places: tuple[int, ...]) -> dict[int, AdvertisedKeys]:
    return {place: keys[place] for place in places if place in keys}
