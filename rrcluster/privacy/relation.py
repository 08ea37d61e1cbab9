"""Sensitivities: how far one client can move a sum, for each neighbouring relation. No other module computes one.

Adjacency:
- add-remove: one client joins or leaves. A client contributes a message of norm at most S, so sums move by S.
- replace-one: one client's data is replaced by other data. Two messages of the same client, at most 2 S apart, less
  when they must lie in different blocks.

W-infinity below is the smallest t such that the two pre-noise laws can be coupled with all differences at most t: the
right notion of sensitivity when the query is itself random. By joint convexity of Renyi and hockey-stick divergences,
Gaussian noise of std s then dominates with multiplier s / W-infinity.
"""

import math

from rrcluster.errors import ConfigError
from rrcluster.privacy.events import ADD_REMOVE, REPLACE_ONE

# Longest (accuracy - 1/2, loss - 1/2) with both in [0, 1]: centred, the pair is half as long as it would be otherwise.
EVALUATION_BOUND = math.hypot(0.5, 0.5)


def joint_sensitivity(
    *,
    update_clip: float,
    count_weight: float,
    adjacency: str,
    evaluation_weight: float = 0.0,
    has_shared: bool = False,
    num_clusters: int = 2,
) -> float:
    """L2 sensitivity of the joint sum: per client (shared, destination x clustered, choice x w, u x evaluation).

    Add-remove: sqrt(C^2 + w^2 + u^2 b^2), whatever blocks the message occupies (Theorem 1 of docs/privacy.md); b is
    `EVALUATION_BOUND`, the longest centred evaluation, and u = 0 where nothing is evaluated.
    Replace-one: two messages with updates in one block are at most 2C apart; in two blocks sqrt(2) C, and the count
    moves by sqrt(2) w only if the choice changes. The update's block follows the choice except for coins, so every
    combination of the two is allowed for: sqrt(4 C^2 + 2 w^2) when shared coordinates or coins tie the blocks together,
    max(2C, sqrt(2 (C^2 + w^2))) otherwise. Two evaluations are at most 2 u b apart, in coordinates of their own.
    """
    c, w, ub = update_clip, count_weight, evaluation_weight * EVALUATION_BOUND
    if adjacency == ADD_REMOVE:
        return math.hypot(c, w, ub)
    if adjacency == REPLACE_ONE:
        if num_clusters == 1:
            return math.hypot(2 * c, 2 * ub)
        sums = math.sqrt(4 * c**2 + 2 * w**2) if has_shared else max(2 * c, math.sqrt(2 * (c**2 + w**2)))
        return math.hypot(sums, 2 * ub)
    raise ConfigError(f"adjacency = {adjacency!r} is not known; choose {ADD_REMOVE} or {REPLACE_ONE}.")


def update_sensitivity(*, update_clip: float, adjacency: str) -> float:
    """L2 sensitivity of all sums together when the assignment of clients to clusters is fixed.

    Replace-one: the changed client stays in its block (the assignment is a function of noisy identifiers and coins that
    are conditioned on), so (shared, clustered) moves by at most 2C. Add-remove: C.
    """
    return {ADD_REMOVE: 1.0, REPLACE_ONE: 2.0}[adjacency] * update_clip


def identifier_sensitivity(*, adjacency: str) -> float:
    """L2 sensitivity of a one-hot identifier. Replace-one turns one one-hot into another: sqrt(2), not 1.

    Under add-remove the list of identifiers has another length: the two laws have disjoint supports and no noise helps.
    """
    if adjacency != REPLACE_ONE:
        raise ConfigError("a list of per-client identifiers has no finite sensitivity under add-remove; use `joint`.")
    return math.sqrt(2)
