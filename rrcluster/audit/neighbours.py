"""Adversarial neighbouring rounds: what hostile clients send, around every size at which a rule might switch."""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from rrcluster.audit.targets import Mechanism
from rrcluster.clusters.rebalancing import coin_transition, flip_coins
from rrcluster.rng import Streams, client_uniforms
from rrcluster.types import Array

B = 4
CRITICAL_SIZES = (0, B - 1, B, B + 1)


@dataclass(frozen=True)
class Round:
    """The reports of one cohort."""

    updates: Any
    choices: Any
    destinations: Any = None
    evaluations: Any = None


@dataclass(frozen=True)
class Neighbours:
    """A round, its neighbours by what distinguishes them, and the noisy assignment that `identifier` gives to all."""

    round: Round
    others: dict[str, Round]
    assignment: Array


def hostile_rows(width: int, clip: float) -> dict[str, Array]:
    """Updates a client may send: nothing, the clip, far more, in one coordinate or in all, and not numbers at all."""
    axis, dense = np.eye(width)[0], np.ones(width) / np.sqrt(width)
    halves = np.where(np.arange(width) % 2, 1.0, -1.0) / np.sqrt(width)
    return {
        "zero": 0.0 * axis,
        "C": clip * axis,
        "-C": -clip * axis,
        "50C": 50 * clip * axis,
        "50C in every coordinate": 50 * clip * dense * np.sqrt(width),
        "50C, both signs": -50 * clip * halves,
        "1e30": 1e30 * axis,
        "overflow": 1e200 * dense,
        "NaN": np.where(axis > 0, np.nan, 0.0),
        "infinity": np.where(axis > 0, np.inf, clip),
        "-infinity everywhere": np.full(width, -np.inf),
    }


def add_remove(mechanism: Mechanism, *, coins: bool) -> Iterator[Neighbours]:
    """Cohorts around every critical size, then one client more, in every cluster, with every hostile update.

    Other clients' coins stay as they are (they are keyed by client id); the newcomer's sends it to any block. Where all
    sizes are different or all equal, every hostile update is tried; elsewhere the clip against the others' signs.
    """
    k, hostile = mechanism.num_clusters, hostile_rows(mechanism.coordinates.width, mechanism.update_clip)
    for sizes in itertools.product(CRITICAL_SIZES, repeat=k):
        choices = np.repeat(np.arange(k), sizes)
        to = _coins(choices, k) if coins else choices
        for signs in (-np.ones(k), np.where(np.arange(k) % 2, 1.0, -1.0)):
            updates = signs[choices][:, None] * hostile["C"]
            others = {
                f"sizes {sizes}, one more in {cluster} sending {name}": Round(
                    np.vstack([updates, hostile[name]]),
                    np.append(choices, cluster),
                    np.append(to, (cluster + 1) % k) if coins else None,
                )
                for name, cluster in itertools.product(_tried(sizes, hostile), range(k))
            }
            yield Neighbours(Round(updates, choices, to if coins else None), others, choices)


def replace_one(mechanism: Mechanism) -> Iterator[Neighbours]:
    """Assignments around every critical size, then one client of every cluster sends something else."""
    k, least = mechanism.num_clusters, mechanism.min_cluster_size
    hostile = hostile_rows(mechanism.coordinates.width, mechanism.update_clip)
    for sizes in itertools.product(CRITICAL_SIZES, repeat=k):
        if sum(sizes) < max(k * least, 1):
            continue
        assignment = np.repeat(np.arange(k), sizes)
        for client in np.unique(assignment, return_index=True)[1]:
            updates, choices = np.tile(hostile["-C"], (len(assignment), 1)), assignment.copy()
            choices[client] = (assignment[client] + 1) % k
            others = {
                f"sizes {sizes}, client {client} sending {name} for C": Round(_with(updates, client, row), choices)
                for name, row in ((name, hostile[name]) for name in _tried(sizes, hostile))
            }
            yield Neighbours(Round(_with(updates, client, hostile["C"]), assignment), others, assignment)


def _tried(sizes: tuple[int, ...], hostile: dict[str, Array]) -> Iterable[str]:
    return hostile if len(set(sizes)) in (1, len(sizes)) and sizes == tuple(sorted(sizes)) else ("C", "-C")


def _with(updates: Array, client: int, row: Array) -> Array:
    return np.vstack([updates[:client], row, updates[client + 1 :]])


def _coins(choices: Array, num_clusters: int) -> Array:
    """Destinations by coins that were made public before the round, from sizes of an earlier one."""
    earlier = np.linspace(0.5 * B, 2.5 * B, num_clusters)
    draws = client_uniforms(Streams(0).client_key("coin", 0), np.arange(len(choices)))[:, 0]
    return flip_coins(choices, coin_transition(earlier, min_cluster_size=B), uniforms=draws)
