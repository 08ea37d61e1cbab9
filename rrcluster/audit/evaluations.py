"""Private evaluation: what a client says about models moves the release by its share at most, whatever it says."""

from collections.abc import Iterator

import numpy as np

from rrcluster.audit.containers import type_casts
from rrcluster.audit.finding import Finding
from rrcluster.audit.neighbours import Round
from rrcluster.audit.sensitivity import ROUNDING, released_quietly, shift
from rrcluster.audit.targets import AuditSetting, Mechanism, Target, claimed_sensitivity

_SAID = {
    "the best": (1.0, 1.0),
    "the worst": (0.0, 0.0),
    "out of range": (50.0, -50.0),
    "far out of range": (6e4, 6e4),
    "beyond float16": (-1e30, 1e30),
    "NaN": (np.nan, 0.5),
    "infinity": (np.inf, -np.inf),
}
_COHORTS = (0, 1, 7, 40)


def check_evaluation_sensitivity(target: Target) -> Finding:
    """One client more, saying anything in any type: the whole message stays within sqrt(C^2 + w^2 + u^2/2).

    Deterministic. Values in and out of range, and no numbers at all, in every type and container.
    """
    mechanism = target.make(AuditSetting(noise_multiplier=0.0))
    worst, where = 0.0, ""
    for label, one, two in _neighbours(mechanism):
        moved = shift(mechanism, released_quietly(mechanism, one), released_quietly(mechanism, two))
        if moved > worst:
            worst, where = moved, label
    ratio = worst / claimed_sensitivity(mechanism)
    holds = ratio <= 1 + ROUNDING
    shown = f"{ratio:.6f} of it" if holds else f"{ratio:.4g} times it: {where}"
    claim = "with an evaluation of any type, one client moves at most sqrt(C^2 + w^2 + u^2/2)"
    return Finding(target.name, "evaluation sensitivity", claim, shown, holds)


def check_evaluation_scale(target: Target) -> Finding:
    """An evaluation counts the same in every cohort, and stated stds and floors are the same for every cohort.

    Deterministic: n clients that say (1, 0) move the row by n halves of u, whoever else there is.
    """
    mechanism = target.make(AuditSetting(noise_multiplier=0.0, size_floor=3.0))
    loud = target.make(AuditSetting(size_floor=3.0))
    wrong, stated = "", set()
    for count in _COHORTS:
        choices = np.arange(count) % mechanism.num_clusters
        said = np.tile([1.0, 0.0], (count, 1))
        cohort = Round(np.zeros((count, mechanism.coordinates.width)), choices, evaluations=said)
        release = released_quietly(mechanism, cohort)
        if release is None or release.evaluation is None:
            wrong = f"no evaluation is released with {count} clients"
            continue
        if not np.allclose(release.evaluation.sums, np.array([0.5, -0.5]) * count, rtol=1e-6, atol=1e-9):
            wrong = f"{count} clients move it by {release.evaluation.sums.tolist()}, not by {count} halves"
        noisy = released_quietly(loud, cohort)
        judged = None if noisy is None else noisy.evaluation
        if judged is not None:
            stated.add((judged.sum_noise_std, judged.clients_noise_std, judged.loss_bound, judged.least_clients))
            if not np.isclose(judged.clients, noisy.sizes.sum(), rtol=1e-9):  # type: ignore[union-attr]
                wrong = "its number of clients is not the sum of released sizes"
    wrong = wrong or ("" if len(stated) == 1 else "stated stds or floors depend on the cohort")
    claim = "an evaluation weighs the same in every cohort"
    return Finding(target.name, "evaluation scale", claim, wrong or "so", not wrong)


def _neighbours(mechanism: Mechanism) -> Iterator[tuple[str, Round, Round]]:
    """Four clients, and one more that sends the clip and says something, in every type; all of one container."""
    updates = np.zeros((5, mechanism.coordinates.width))
    updates[:, 0] = mechanism.update_clip
    choices = np.array([0, 1, 2, 0, 1])
    for said, pair in _SAID.items():
        rows = np.vstack([np.tile([0.75, 0.25], (4, 1)), pair])
        for kind, cast in type_casts().items():
            with np.errstate(all="ignore"):
                whole = cast(rows)
            others = Round(updates[:4], choices[:4], evaluations=whole[:4])
            yield f"{said} as {kind}", others, Round(updates, choices, evaluations=whole)
