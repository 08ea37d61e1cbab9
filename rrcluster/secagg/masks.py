"""Keys, masks and envelopes: what of the protocol is cryptography, all of it by the library `cryptography`.

X25519 agrees on a secret between two clients, HKDF-SHA256 makes keys of it for one attempt at one round, ChaCha20
expands a key to a mask of 32-bit words, ChaCha20-Poly1305 closes the envelopes that pass through the server. A key
made here is used once: its context holds the terms, the round and the attempt.
"""

import hashlib
from functools import lru_cache

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from rrcluster.errors import ProtocolError

Words = NDArray[np.uint32]  # arithmetic on them is modulo 2^32
KEY_BYTES, SIGNATURE_BYTES, TAG_BYTES = 32, 64, 16
_NONCE = bytes(12)  # every key closes one envelope


def digest(*parts: bytes) -> bytes:
    """SHA-256 of the parts, each preceded by its length, so that no two lists of parts are confused."""
    whole = hashlib.sha256()
    for part in parts:
        whole.update(len(part).to_bytes(8) + part)
    return whole.digest()


def agree(private: X25519PrivateKey, public: bytes) -> bytes:
    """The secret that two clients share; no key itself, keys are derived from it."""
    try:
        return private.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        raise ProtocolError("a public key cannot be used; its owner must make another.") from None


def derive_key(secret: bytes, *, purpose: bytes) -> bytes:
    """The key of two clients for one purpose, which names the attempt, and who sends to whom."""
    return HKDF(SHA256(), KEY_BYTES, salt=None, info=purpose).derive(secret)


def derive_two_keys(secret: bytes, *, purpose: bytes) -> tuple[bytes, bytes]:
    """Two keys for one purpose: neither says anything about the other, nor about the secret."""
    both = HKDF(SHA256(), 2 * KEY_BYTES, salt=None, info=purpose).derive(secret)
    return both[:KEY_BYTES], both[KEY_BYTES:]


def expand(key: bytes, width: int) -> Words:
    """(width,) words of ChaCha20 under a key that is used for nothing else."""
    stream = Cipher(algorithms.ChaCha20(key, bytes(16)), None).encryptor()
    return np.frombuffer(stream.update(_zeros(4 * width)), dtype="<u4").astype(np.uint32, copy=False)


@lru_cache(maxsize=1)
def _zeros(length: int) -> bytes:
    """What every mask is the encryption of: made once, since large blocks of memory are slow to get."""
    return bytes(length)


def close(key: bytes, content: bytes) -> bytes:
    """An envelope that only the holder of the key can open, and nobody can change."""
    return ChaCha20Poly1305(key).encrypt(_NONCE, content, None)


def open_envelope(key: bytes, envelope: bytes) -> bytes:
    """The content; ProtocolError where the envelope was changed, or is another one, or the key is."""
    try:
        return ChaCha20Poly1305(key).decrypt(_NONCE, envelope, None)
    except (InvalidTag, ValueError):
        raise ProtocolError("an envelope was changed on its way, or is of another round.") from None
