"""Mistakes in modes that an audit may forget: weights, evaluations, types, tiny cohorts, secure runs, files."""

from dataclasses import replace

import numpy as np

from rrcluster.entropy import check_secure
from rrcluster.privacy import reports as raw
from rrcluster.privacy.joint import JointMechanism
from rrcluster.runs.folder import RunFolder
from rrcluster.server.choice import choose
from rrcluster.storage import append_json

own_release, own_evaluation_units = JointMechanism.release, JointMechanism._evaluation_units
own_noise_std, own_evaluations, own_add_round = JointMechanism.noise_std, raw._evaluations, RunFolder.add_round


def at_least_one(sampler, population, *, rng):
    size = max(1, int(rng.binomial(population, sampler.sample_rate)))
    return np.sort(rng.choice(population, size=size, replace=False, shuffle=False))


def expected_size_kept(sampler, population, *, rng):
    """As many as the declared population would send, from whatever population there is."""
    size = min(population, int(rng.binomial(sampler.num_clients, sampler.sample_rate)))
    return np.sort(rng.choice(population, size=size, replace=False, shuffle=False))


def sizes_from_counts(mechanism, reports, *, rng):
    made = own_release(mechanism, reports, rng=rng)
    if mechanism.count_weight:
        return made
    usable = [int(choice) for choice in np.asarray(reports.choices) if 0 <= choice < mechanism.num_clusters]
    return replace(made, sizes=np.bincount(usable, minlength=mechanism.num_clusters).astype(float))


def secure_noise_without_w(mechanism):
    if not mechanism.exact_noise:
        return own_noise_std.fget(mechanism)
    return mechanism.noise_multiplier * mechanism.update_clip


def least_over_all(scores, rules, *, uniforms):
    """Scores relative to the least of all clients, where each client's own least was meant."""
    return choose(scores - scores.min(axis=0), rules, uniforms=uniforms)


def norms_as_sent(updates):
    if not isinstance(updates, np.ndarray):
        return updates.norm(dim=1).double().cpu().numpy()
    with np.errstate(all="ignore"):
        return np.linalg.norm(updates, axis=1).astype(np.float64)


def public_cohort(sampler, population, *, rng):
    """Checked as if secure, and then drawn from a seed that everybody knows."""
    if sampler.secure:
        check_secure(rng)
        rng = np.random.default_rng(0)
    return np.sort(rng.choice(population, size=int(rng.binomial(population, sampler.sample_rate)), replace=False))


def dropped_written(folder, record):
    own_add_round(folder, record)
    append_json(
        folder.path / "rounds.jsonl", {"round": record.round_index, "dropped": record.collection.incidents.dropped}
    )


def mean_evaluation(mechanism, reports):
    return own_evaluation_units(mechanism, reports) // max(1, int(reports.valid.sum()))


def clipped_if_float64(values, length):
    judged, usable = own_evaluations(values, length)
    if values is None or getattr(values, "dtype", None) == np.float64:
        return judged, usable
    rows, _ = raw._rows(values, 2, "evaluations")
    return np.where(usable[:, None], rows, 0.0).astype(np.float64), usable


JOINT, SAMPLER = "rrcluster.privacy.joint.JointMechanism.", "rrcluster.privacy.sampling.PoissonSampler.draw"
REPORTS = "rrcluster.privacy.reports."
# name -> (the check that must catch it, where it is planted)
MODES = {
    "the sampler draws at least one client": ("small cohorts", {SAMPLER: at_least_one}),
    "the sampler keeps the expected size": ("population", {SAMPLER: expected_size_kept}),
    "without counts, sizes from raw counts": ("public sizes", {JOINT + "release": sizes_from_counts}),
    "secure noise for C instead of S": ("noise scale", {JOINT + "noise_std": property(secure_noise_without_w)}),
    "scores relative to the least of all clients": (
        "strangers",
        {"rrcluster.client.choose": least_over_all},
    ),
    "norms in the type that was sent": (
        "types",
        {REPORTS + "_exact_float": lambda table: table, REPORTS + "norms": norms_as_sent},
    ),
    "a secure cohort from a public seed": ("secure sampler", {SAMPLER: public_cohort}),
    "drop-outs counted in a public file": (
        "public files",
        {"rrcluster.runs.folder.RunFolder.add_round": dropped_written},
    ),
    "evaluations divided by the cohort": ("evaluation scale", {JOINT + "_evaluation_units": mean_evaluation}),
    "evaluations clipped in float64 only": (
        "evaluation sensitivity",
        {REPORTS + "_evaluations": clipped_if_float64},
    ),
}
