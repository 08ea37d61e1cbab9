"""Keys, masks and envelopes: the protocol's cryptography, all of it from the library `cryptography`.

X25519 agrees on a secret between two clients, HKDF-SHA256 makes keys of it for one attempt at one round, ChaCha20
expands a key to a mask of 32-bit words, ChaCha20-Poly1305 closes the envelopes that pass through the server. A key made
here is used once: its context holds the terms, the round and the attempt.

Shamir's secret sharing of 32 bytes over the field of 2^521 - 1 elements: any `threshold` shares give the secret; fewer
are uniformly random whatever the secret is (Shamir 1979).
"""

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import islice
from math import prod

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from rrcluster.errors import ProtocolError

PRIME = 2**521 - 1
SECRET_BYTES, SHARE_BYTES = 32, 66


def split_secret(secret: bytes, points: Sequence[int], *, threshold: int) -> dict[int, int]:
    """A share for each point: values of a random polynomial of degree `threshold` - 1 whose value at 0 is the secret.

    Points are distinct and above 0; coefficients come from the operating system.
    """
    if len(secret) != SECRET_BYTES or not 1 <= threshold <= len(points):
        raise ProtocolError(
            f"a secret of {len(secret)} bytes for {len(points)} holders cannot be shared with threshold {threshold}; "
            f"it needs {SECRET_BYTES} bytes and a threshold from 1 to the number of holders."
        )
    coefficients = [secrets.randbelow(PRIME) for _ in range(threshold - 1)]
    at = np.array(points, dtype=object)
    values = 0 * at
    for coefficient in coefficients:
        values = (values + coefficient) * at  # points are small, so one reduction at the end is cheaper
    return dict(zip(points, ((values + int.from_bytes(secret)) % PRIME).tolist(), strict=True))


def combine_shares(shares: Mapping[int, int], *, threshold: int) -> bytes:
    """The secret, from the first `threshold` shares; ProtocolError if there are fewer, or they are not of 32 bytes.

    A wrong share can go unnoticed: check the secret against its owner's commitment.
    """
    if len(shares) < threshold:
        raise ProtocolError(f"{len(shares)} shares are fewer than the threshold of {threshold}.")
    enough = dict(islice(shares.items(), threshold))
    points = list(enough)
    above = prod(points)  # Lagrange at 0: prod of the other points over prod of (other - point)
    below = _products(points)
    value = sum(share * inverse for share, inverse in zip(enough.values(), _inverses(below), strict=True))
    secret = value * above % PRIME
    if secret >> 8 * SECRET_BYTES:
        raise ProtocolError("the shares of a secret are inconsistent; one of them is wrong.")
    return secret.to_bytes(SECRET_BYTES)


def _products(points: Sequence[int]) -> list[int]:
    """For each point, its product with all differences (other - point), modulo the prime.

    As many factors as fit into 64 bits are multiplied as machine numbers.
    """
    at, together = np.array(points), 63 // max(points).bit_length()
    factors = at - at[:, None]
    np.fill_diagonal(factors, at)
    ones = np.ones((len(points), -len(points) % together), dtype=np.int64)
    rows = np.hstack([factors, ones]).reshape(len(points), -1, together).prod(axis=2).tolist()
    return [prod(row) % PRIME for row in rows]


def _inverses(values: Sequence[int]) -> list[int]:
    """The inverses modulo the prime, by one inversion of their product."""
    products = [1]
    for value in values:
        products.append(products[-1] * value % PRIME)
    inverse = pow(products[-1], -1, PRIME)
    inverted = []
    for value, product in zip(reversed(values), reversed(products[:-1]), strict=True):
        inverted.append(inverse * product % PRIME)
        inverse = inverse * value % PRIME
    return inverted[::-1]


Words = NDArray[np.uint32]  # modulo 2^32
KEY_BYTES, SIGNATURE_BYTES, TAG_BYTES = 32, 64, 16
_NONCE = bytes(12)  # constant, since every key closes one envelope


def digest(*parts: bytes) -> bytes:
    """SHA-256 of the parts, each preceded by its length, so that different lists never give the same input."""
    hasher = hashlib.sha256()
    for part in parts:
        hasher.update(len(part).to_bytes(8) + part)
    return hasher.digest()


def agree(private: X25519PrivateKey, public: bytes) -> bytes:
    """The secret of two clients; used only to derive keys."""
    try:
        return private.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        raise ProtocolError("a public key cannot be used; its owner must make another.") from None


def derive_key(secret: bytes, *, purpose: bytes) -> bytes:
    """The key of two clients for one purpose, which includes the attempt, the sender and the receiver."""
    return HKDF(SHA256(), KEY_BYTES, salt=None, info=purpose).derive(secret)


def derive_two_keys(secret: bytes, *, purpose: bytes) -> tuple[bytes, bytes]:
    """Two keys for one purpose: neither reveals anything about the other, or about the secret."""
    key_pair = HKDF(SHA256(), 2 * KEY_BYTES, salt=None, info=purpose).derive(secret)
    return key_pair[:KEY_BYTES], key_pair[KEY_BYTES:]


def expand(key: bytes, width: int) -> Words:
    """(width,) words of ChaCha20 under a key with no other use."""
    stream = Cipher(algorithms.ChaCha20(key, bytes(16)), None).encryptor()
    return np.frombuffer(stream.update(_zeros(4 * width)), dtype="<u4").astype(np.uint32, copy=False)


@lru_cache(maxsize=1)
def _zeros(length: int) -> bytes:
    """Zeros to encrypt into masks: allocated once, since large allocations are slow."""
    return bytes(length)


def close(key: bytes, content: bytes) -> bytes:
    """An envelope that only the holder of the key can open, and nobody can change."""
    return ChaCha20Poly1305(key).encrypt(_NONCE, content, None)


def open_envelope(key: bytes, envelope: bytes) -> bytes:
    """The content; ProtocolError for a changed envelope, another envelope or another key."""
    try:
        return ChaCha20Poly1305(key).decrypt(_NONCE, envelope, None)
    except (InvalidTag, ValueError):
        raise ProtocolError("an envelope was altered in transit, or belongs to another round.") from None
