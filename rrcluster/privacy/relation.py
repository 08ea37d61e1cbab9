"""Sensitivities: how far one client can move a sum, under its mechanism's relation. No other module computes one.

- `joint`, add-remove: one client joins or leaves. It contributes a message of norm at most S, so sums move by S.
- `identifier`, replace-one: one client's data is replaced by other data.
"""

import math

# Longest (accuracy - 1/2, loss - 1/2) with both in [0, 1]: centred, the pair is half as long as it would be otherwise.
EVALUATION_BOUND = math.hypot(0.5, 0.5)


def joint_sensitivity(*, update_clip: float, count_weight: float, evaluation_weight: float) -> float:
    """L2 sensitivity of the joint sum: per client (shared, destination x clustered, choice x w, u x evaluation).

    Add-remove: sqrt(C^2 + w^2 + u^2 b^2), whatever blocks a message occupies (Theorem 1 of docs/privacy.md); b is
    `EVALUATION_BOUND`, the longest centred evaluation, and u = 0 where nothing is evaluated.
    """
    return math.hypot(update_clip, count_weight, evaluation_weight * EVALUATION_BOUND)


def update_sensitivity(*, update_clip: float) -> float:
    """L2 sensitivity under replace-one of all sums together when the assignment of clients to clusters is fixed: 2C.

    The changed client stays in its block (the assignment is a function of noisy identifiers and coins that are
    conditioned on), so (shared, clustered) moves by at most 2C.
    """
    return 2 * update_clip


def identifier_sensitivity() -> float:
    """L2 sensitivity under replace-one of a one-hot identifier, which turns into another: sqrt(2), not 1.

    Under add-remove the list of identifiers has another length: the two laws have disjoint supports and no noise helps.
    """
    return math.sqrt(2)
