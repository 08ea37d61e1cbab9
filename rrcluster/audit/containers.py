"""Updates and evaluations in every container and type: a client stays within its sensitivity and moves nobody's row."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from rrcluster.audit.sensitivity import ROUNDING, Round, released_quietly, shift
from rrcluster.audit.targets import AuditSetting, Finding, Mechanism, Target, claimed_sensitivity, given
from rrcluster.rng import Rng
from rrcluster.types import Array

_WIDE = AuditSetting(noise_multiplier=0.0, clustered=300)
_ASSIGNMENT = np.array([0, 1, 2, 0, 1])


def check_types(target: Target, *, rng: Rng) -> Finding:
    """Updates of every floating-point type and container, above the clip: one client moves the sensitivity at most.

    Eight random directions and three lengths each, so that a norm computed in a short type is caught.
    """
    mechanism = given(target.make(_WIDE), _ASSIGNMENT)
    shown, holds = _worst_shift(mechanism, _long_rows(mechanism, rng))
    return Finding(target.name, "types", "the sensitivity holds for every type of update", shown, holds)


def _worst_shift(mechanism: Mechanism, neighbours: Iterator[tuple[str, Round, Round]]) -> tuple[str, bool]:
    """(the largest shift, relative to the claimed sensitivity, in words; whether it is within the claim)."""
    worst, where = 0.0, ""
    for label, one, two in neighbours:
        moved = shift(mechanism, released_quietly(mechanism, one), released_quietly(mechanism, two))
        if moved > worst:
            worst, where = moved, label
    ratio = worst / claimed_sensitivity(mechanism)
    holds = ratio <= 1 + ROUNDING
    return (f"{ratio:.6f} of it" if holds else f"{ratio:.6g} times it: {where}"), holds


def check_odd_rows(target: Target) -> Finding:
    """One odd row, choice or type in a container: the other clients' contributions stay the same.

    Deterministic. The odd client is the last; it is in cluster 1: the others' clusters must stay as they are.
    """
    mechanism = given(target.make(AuditSetting(noise_multiplier=0.0)), _ASSIGNMENT)
    width = mechanism.coordinates.width
    good = np.full((4, width), mechanism.update_clip / (2 * width))
    base = released_quietly(mechanism, Round([*good, np.zeros(width)], [0, 1, 2, 0, -1]))
    wrong = ""
    for name, cohort in _odd(good).items():
        release = released_quietly(mechanism, cohort)
        if shift(mechanism, base, release) > claimed_sensitivity(mechanism) * (1 + ROUNDING):
            wrong = f"{name}: more than one client's share moves"
        elif base is None or release is None or not np.allclose(base.cluster_sums[::2], release.cluster_sums[::2]):
            wrong = f"{name}: clusters move in which it is not"
    claim = "an odd row moves nobody else's contribution"
    return Finding(target.name, "odd rows", claim, wrong or "so", not wrong)


def _long_rows(mechanism: Mechanism, rng: Rng) -> Iterator[tuple[str, Round, Round]]:
    width, clip = mechanism.coordinates.width, mechanism.update_clip
    for trial in range(8):
        direction = rng.standard_normal(width)
        direction *= clip / np.linalg.norm(direction)
        for times in (1.0, 3.0, 400.0):
            rows = np.vstack([np.tile(-direction, (4, 1)), direction * times])
            for kind, cast in type_casts().items():
                whole = cast(rows)
                replaced = cast(np.vstack([rows[:4], -rows[4:]]))
                removed = replaced if hasattr(mechanism, "identifier") else whole[:4]
                label = f"{times:g} C as {kind}, direction {trial}"
                yield label, Round(removed, _ASSIGNMENT[: len(removed)]), Round(whole, _ASSIGNMENT)


def type_casts() -> dict[str, Callable[[Array], Any]]:
    """By name: an (n, d) float64 array in every type and container that a caller may have."""
    import torch

    return {
        "float64": lambda rows: rows,
        "float32": lambda rows: rows.astype(np.float32),
        "float16": lambda rows: rows.astype(np.float16),
        "torch float32": lambda rows: torch.as_tensor(rows).float(),
        "torch float16": lambda rows: torch.as_tensor(rows).half(),
        "torch bfloat16": lambda rows: torch.as_tensor(rows).bfloat16(),
        "objects": lambda rows: rows.astype(object),
        "a list of float16 rows": lambda rows: [*rows.astype(np.float16)],
        "a list of tensors": lambda rows: [torch.as_tensor(row).bfloat16() for row in rows],
    }


def _odd(good: Array) -> dict[str, Round]:
    """Four good rows and one that is not, in containers that give all rows one type."""
    import torch

    width, choices = good.shape[1], [0, 1, 2, 0, 1]
    huge = np.vstack([good, np.full(width, 1e30)])
    listed: dict[str, Any] = {
        "text": "text",
        "nothing": None,
        "a longer row": np.zeros(width + 1),
        "a single number": 1.0,
        "whole numbers": np.arange(width),
        "truth values": np.ones(width, dtype=bool),
        "complex numbers": np.full(width, 1 + 1j),
        "a mapping": {"update": 1.0},
        "float16": np.full(width, 6e4, dtype=np.float16),
        "a tensor": torch.full((width,), float("nan")),
        "whole numbers beyond 64 bits": [2**70] * width,
    }
    kinds = {f"a list with {name}": Round([*good, row], choices) for name, row in listed.items()}
    mixed = np.empty((5, width), dtype=object)
    mixed[:4], mixed[4] = good, "text"
    return kinds | {
        "objects with text": Round(mixed, choices),
        "texts": Round(np.vstack([good, np.ones(width)]).astype(str), choices),
        "complex numbers": Round(np.vstack([good, np.full(width, 1j)]), choices),
        "an outlier": Round(huge, choices),
        "an outlier in float32": Round(huge.astype(np.float32), choices),
        "choices with a text": Round(huge, [0, 1, 2, 0, "one"]),
        "choices as texts": Round(huge, np.array([0, 1, 2, 0, "x"])),
        "choices of float64 with NaN": Round(huge, np.array([0, 1, 2, 0, np.nan])),
        "choices with an object": Round(huge, [0, 1, 2, 0, {}]),
    }


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
    """One more client with any evaluation of any type: its message stays within sqrt(C^2 + w^2 + u^2/2).

    Deterministic. Values in and out of range, and no numbers at all, in every type and container.
    """
    mechanism = target.make(AuditSetting(noise_multiplier=0.0))
    shown, holds = _worst_shift(mechanism, _neighbours(mechanism))
    claim = "with an evaluation of any type, one client moves at most sqrt(C^2 + w^2 + u^2/2)"
    return Finding(target.name, "evaluation sensitivity", claim, shown, holds)


def check_evaluation_scale(target: Target) -> Finding:
    """An evaluation counts the same in every cohort, and stated stds and floors are the same for every cohort.

    Deterministic: n clients that report (1, 0) move the row by n u / 2 in every cohort.
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
    """Four clients, and one more at the clip with an evaluation, in every type; all in one container."""
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
