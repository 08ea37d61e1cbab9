"""Shamir's secret sharing of 32 bytes over the field of 2^521 - 1 elements.

Any `threshold` shares give the secret; fewer are uniformly random whatever the secret is (Shamir 1979).
"""

import secrets
from collections.abc import Mapping, Sequence
from itertools import islice
from math import prod

import numpy as np

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
        values = (values + coefficient) * at  # points are small: reducing once at the end is cheaper than every time
    return dict(zip(points, ((values + int.from_bytes(secret)) % PRIME).tolist(), strict=True))


def combine_shares(shares: Mapping[int, int], *, threshold: int) -> bytes:
    """The secret, from the first `threshold` shares; ProtocolError if there are fewer, or they are not of 32 bytes.

    A wrong share can go unnoticed: check the secret against what its owner is committed to.
    """
    if len(shares) < threshold:
        raise ProtocolError(f"{len(shares)} shares are fewer than the threshold of {threshold}.")
    chosen = dict(islice(shares.items(), threshold))
    points = list(chosen)
    above = prod(points)  # Lagrange at 0: prod of the other points over prod of (other - point)
    below = _products(points)
    value = sum(share * inverse for share, inverse in zip(chosen.values(), _inverses(below), strict=True))
    secret = value * above % PRIME
    if secret >> 8 * SECRET_BYTES:
        raise ProtocolError("the shares of a secret do not fit together; somebody sent a wrong one.")
    return secret.to_bytes(SECRET_BYTES)


def _products(points: Sequence[int]) -> list[int]:
    """Of each point its product with all differences (other - point), modulo the prime.

    As many factors as 64 bits hold are multiplied as machine numbers.
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
