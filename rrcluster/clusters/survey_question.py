"""The clients' half of a survey (clusters/survey.py): what is asked, and the answer to it.

An answer is a function of the client's own update and of what the server has told, of length at most the clip.
"""

import math
from dataclasses import dataclass
from functools import cache
from itertools import combinations_with_replacement, permutations

import numpy as np

from rrcluster.types import Array

COUNT_WEIGHT = 0.7  # of the count beside a centre's sum


@dataclass(frozen=True)
class SurveyQuestion:
    """What clients are asked in a round of a survey. Public."""

    stage: str  # a name of PARTS
    start: Array  # (d_c,) the model that all train from
    basis: Array  # (m, r) directions of sketches that are looked at
    centres: Array  # (g, r)
    scale: float  # length of the longest answer: the clip

    def answer(self, updates: Array) -> tuple[Array, Array | None]:
        """(n,) choices and (n, length) answers of clients whose updates from `start` are (n, d_c); None: train."""
        sketches = sketch(updates, len(self.basis))
        points = np.zeros((len(sketches), self.basis.shape[1]))
        for client, own in enumerate(sketches):  # one by one: a product of several rows is rounded differently
            points[client] = own @ self.basis
        points = directions(points)
        nearest = np.zeros(len(points), dtype=np.int64)
        if self.stage in ("centres", "start"):
            nearest = (points[:, None] * directions(self.centres)[None]).sum(axis=2).argmax(axis=1)
        if self.stage == "start":
            return nearest, None
        answers = (
            _counted(points, nearest, len(self.centres)) if self.stage == "centres" else _MOMENTS[self.stage](points)
        )
        answers[~np.isfinite(updates).all(axis=1)] = np.nan  # the mechanism makes it the zero message, count included
        return np.zeros_like(nearest), self.scale * answers


def sketch(updates: Array, width: int) -> Array:
    """(n, width) of length 1: every coordinate of an update is added, with a sign, to one of the numbers.

    Which number and which sign is fixed and public (a count sketch). The sketch of zero is zero.
    """
    order, signs = _hashes(updates.shape[1], width)
    values = np.nan_to_num(np.asarray(updates, dtype=np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    values = values / np.maximum(np.abs(values).max(axis=1, keepdims=True, initial=0.0), 1e-300)  # squares fit
    signed = np.zeros((len(values), -(-values.shape[1] // width) * width))
    signed[:, : values.shape[1]] = values[:, order] * signs
    return directions(signed.reshape(len(values), signed.shape[1] // width, width).sum(axis=1))


def directions(vectors: Array) -> Array:
    """(n, r) of length 1; zero stays zero."""
    lengths = np.sqrt((vectors**2).sum(axis=1, keepdims=True))
    return np.asarray(np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 1e-12))


@cache
def _hashes(num_coordinates: int, width: int) -> tuple[Array, Array]:
    """An order of the coordinates, every width-th of which goes to one number, and their signs."""
    if num_coordinates <= width:  # few coordinates are their own sketch
        return np.arange(num_coordinates), np.ones(num_coordinates)
    rng = np.random.default_rng([num_coordinates, width])
    return rng.permutation(num_coordinates), rng.choice([-1.0, 1.0], size=num_coordinates)


def _spread(points: Array) -> Array:
    first, second, weights = pairs(points.shape[1])
    return np.asarray(points[:, first] * points[:, second] * weights)


def _skew(points: Array) -> Array:
    places, weights = triples(points.shape[1])
    return np.asarray(np.prod([points[:, place] for place in places.T], axis=0) * weights)


def _counted(points: Array, nearest: Array, num_centres: int) -> Array:
    """(n, g (1 + r)) a one and the point, in the place of the nearest centre."""
    one = np.full((len(points), 1), COUNT_WEIGHT)
    answers = np.zeros((len(points), num_centres, 1 + points.shape[1]))
    answers[np.arange(len(points)), nearest] = np.concatenate([one, points], axis=1) / math.hypot(1, COUNT_WEIGHT)
    return answers.reshape(len(points), num_centres * (1 + points.shape[1]))


_MOMENTS = {"spread": _spread, "skew": _skew}  # of length at most 1, as centres' answers are


@cache
def pairs(r: int) -> tuple[Array, Array, Array]:
    """Places of a symmetric (r, r) array on and above the diagonal, and weights that keep its length."""
    first, second = np.triu_indices(r)
    return first, second, np.where(first == second, 1.0, math.sqrt(2))


@cache
def triples(r: int) -> tuple[Array, Array]:
    """The same for a symmetric (r, r, r) array."""
    places = np.array(list(combinations_with_replacement(range(r), 3)))
    return places, np.sqrt([len(set(permutations(place))) for place in places.tolist()])
