"""Realistic mistakes in a mechanism, each planted by a subclass or by replacing one function of its module."""

from dataclasses import replace

import numpy as np

from rrcluster.audit.targets import GivenAssignment, identifier_target, joint_target, recast
from rrcluster.privacy.clip import clip_to_grid, grid_step, norms
from rrcluster.privacy.events import FixedSize
from rrcluster.privacy.identifier import IdentifierMechanism, KaryIdentifier
from rrcluster.privacy.joint import JointMechanism
from rrcluster.privacy.rebalancing import rebalance
from rrcluster.privacy.reports import check_reports
from rrcluster.privacy.sampling import FixedSizeSampler, PoissonSampler
from rrcluster.privacy.sums import cluster_sums

JOINT, IDENTIFIER = "rrcluster.privacy.joint.", "rrcluster.privacy.identifier."


def silent(mechanism, reports):
    """The release without its noise."""
    quiet = replace(mechanism, noise_multiplier=0.0)
    return super(type(mechanism), quiet).release(reports, rng=np.random.default_rng(0))


def quantity(choices, k):
    """Raw counts, from whatever was reported."""
    usable = [int(c) for c in np.asarray(choices).ravel() if 0 <= c < k and c == int(c)]
    return np.bincount(np.array(usable, dtype=np.int64), minlength=k)


# Noise


class CountWeightForgotten(JointMechanism):
    @property
    def sensitivity(self):
        return self.update_clip


class VarianceForStd(JointMechanism):
    @property
    def noise_std(self):
        return (self.noise_multiplier * self.sensitivity) ** 2


class NoiseSkippedWhenEmpty(JointMechanism):
    def release(self, reports, *, rng):
        made, exact = super().release(reports, rng=rng), silent(self, reports)
        empty = quantity(reports.choices, self.num_clusters) == 0
        return replace(made, cluster_sums=np.where(empty[:, None], exact.cluster_sums, made.cluster_sums))


class NoiseDividedByCohort(JointMechanism):
    def release(self, reports, *, rng):
        made, exact = super().release(reports, rng=rng), silent(self, reports)
        smaller = (made.cluster_sums - exact.cluster_sums) / max(len(reports.choices), 1)
        return replace(made, cluster_sums=exact.cluster_sums + smaller)


class ExactCounts(JointMechanism):
    def release(self, reports, *, rng):
        made, exact = super().release(reports, rng=rng), silent(self, reports)
        return replace(made, sizes=exact.sizes)


class OneNoiseForAllClusters(JointMechanism):
    def release(self, reports, *, rng):
        made, exact = super().release(reports, rng=rng), silent(self, reports)
        return replace(made, cluster_sums=exact.cluster_sums + (made.cluster_sums - exact.cluster_sums)[:1])


class SameNoiseAgain(JointMechanism):
    def release(self, reports, *, rng):
        return super().release(reports, rng=np.random.default_rng(42))


class NoiseFromElsewhere(JointMechanism):
    def release(self, reports, *, rng):
        return super().release(reports, rng=np.random.default_rng())


def laplace_noise(count, *, noise_std, step, exact, rng):
    return rng.laplace(scale=noise_std / step / np.sqrt(2), size=count)


def half_precision_noise(count, *, noise_std, step, exact, rng):
    return (noise_std * rng.standard_normal(count)).astype(np.float16).astype(np.float64) / step


class StatedStdFromCohort(JointMechanism):
    def release(self, reports, *, rng):
        made = super().release(reports, rng=rng)
        return replace(made, sum_noise_std=made.sum_noise_std / max(len(reports.choices), 1))


# Clipping


def grid(values, update_clip):
    with np.errstate(all="ignore"):
        return np.clip(np.nan_to_num(values / grid_step(update_clip)), -1e15, 1e15).astype(np.int64)


def no_clip(updates, *, update_clip, known=None):
    return grid(updates, update_clip)


def clip_largest_coordinate(updates, *, update_clip, known=None):
    largest = np.abs(updates).max(axis=1, keepdims=True, initial=1e-300)
    return grid(updates * np.minimum(1, update_clip / largest), update_clip)


def clip_parts(updates, *, update_clip, known=None):
    parts = np.split(updates, [2], axis=1)
    return np.hstack([clip_to_grid(part, update_clip=update_clip) for part in parts])


def clip_by_the_length_of_the_identifier(updates, *, update_clip, known=None):
    """The printed clipping line: it divides by max(1, ||s|| / C) where ||s|| = 1."""
    return grid(updates * update_clip, update_clip)


def clip_to_one(updates, *, update_clip, known=None):
    return clip_to_grid(updates, update_clip=1.0) * int(grid_step(1.0) / grid_step(update_clip))


def weigh_by_data_size(updates, *, update_clip, known=None):
    data = 1 + np.arange(len(updates)) % 3
    return np.trunc(clip_to_grid(updates, update_clip=update_clip) * (data / max(data.mean(), 1))[:, None]).astype(int)


def clip_the_sum(messages, assignment, *, num_clusters, bound):
    sums = cluster_sums(messages, assignment, num_clusters=num_clusters).astype(float)
    lengths = np.linalg.norm(sums, axis=1, keepdims=True)
    return sums * np.minimum(1, bound / np.maximum(lengths, 1e-300))


def float_clip(updates, *, update_clip, known=None):
    """max(1, norm / C) in float: a NaN passes every comparison."""
    size = norms(updates)[:, None]
    return updates / np.maximum(1.0, size / update_clip) / grid_step(update_clip)


# Reports


def unchecked(reports, **rest):
    found = check_reports(reports, **rest)
    if not isinstance(reports.updates, np.ndarray):
        return found
    return replace(found, updates=reports.updates, valid=np.ones(len(reports.updates), dtype=bool))


def invalid_counted(reports, **rest):
    found = check_reports(reports, **rest)
    return replace(found, valid=np.ones(len(found.valid), dtype=bool))


def repeats_kept(reports, **rest):
    return check_reports(replace(reports, client_ids=None), **rest)


def refused_loudly(reports, **rest):
    found = check_reports(reports, **rest)
    if not found.valid.all():
        raise ValueError(f"client {found.valid.argmin()} sent a report that cannot be used")
    return found


class InvalidDropped(IdentifierMechanism):
    def release(self, reports, *, rng):
        found = check_reports(reports, width=self.coordinates.width, num_clusters=self.num_clusters)
        smaller = replace(self, cohort_size=int(found.valid.sum()))
        usable = replace(
            reports, updates=found.updates[found.valid], choices=found.choices[found.valid], client_ids=None
        )
        return super(InvalidDropped, smaller).release(usable, rng=rng)


# Denominators and rebalancing


class ExactDenominators(JointMechanism):
    def release(self, reports, *, rng):
        made = super().release(reports, rng=rng)
        return replace(made, denominators=np.maximum(quantity(reports.choices, self.num_clusters), 1.0))


class RebalancedFromRawCounts(JointMechanism):
    def release(self, reports, *, rng):
        k, choices = self.num_clusters, np.asarray(reports.choices)
        least, usable = min(self.min_cluster_size, len(choices) // k), (choices >= 0).all() and (choices < k).all()
        if self.min_cluster_size and usable:
            moved = self.rule(choices, num_clusters=k, min_cluster_size=least, rng=rng)
            reports = replace(reports, destinations=moved)
        return super().release(reports, rng=rng)

    rule = staticmethod(rebalance)


def literal_rule(assignment, *, num_clusters, min_cluster_size, rng):
    """The paper's: "large" is B or more, and movers are drawn from all members of large clusters."""
    sizes = np.bincount(assignment, minlength=num_clusters)
    slots = np.repeat(np.arange(num_clusters), np.maximum(min_cluster_size - sizes, 0))
    donors = np.flatnonzero(sizes[assignment] >= min_cluster_size)
    moved = assignment.copy()
    if len(donors) >= len(slots):
        moved[rng.choice(donors, size=len(slots), replace=False)] = slots
    return moved


class LiteralRule(RebalancedFromRawCounts):
    rule = staticmethod(literal_rule)


# Identifiers


class NoiseForOneClip(IdentifierMechanism):
    @property
    def sensitivity(self):
        return self.update_clip


class IdentifierSensitivityOne(IdentifierMechanism):
    @property
    def event(self):
        fold = self.identifier.noise_multiplier**-2 + self.noise_multiplier**-2
        return FixedSize(fold**-0.5, self.cohort_size, self.num_clients)


class IdentifiersNotAccounted(IdentifierMechanism):
    @property
    def event(self):
        return FixedSize(self.noise_multiplier, self.cohort_size, self.num_clients)


def answering(assign):
    """The mechanism whose identifiers answer otherwise than its event says, unless the audit has fixed the answers."""

    class Answers:
        def __init__(self, own):
            self.own = own

        def assign(self, choices, valid, *, num_clusters, rng):
            return assign(self.own, choices, valid, num_clusters=num_clusters, rng=rng)

    class Other(IdentifierMechanism):
        def release(self, reports, *, rng):
            if isinstance(self.identifier, GivenAssignment):
                return super().release(reports, rng=rng)
            other = replace(recast(self, IdentifierMechanism), identifier=Answers(self.identifier))
            return other.release(reports, rng=rng)

    return Other


def the_choice_itself(own, choices, valid, *, num_clusters, rng):
    return choices


def keeps_more(own, choices, valid, *, num_clusters, rng):
    assert isinstance(own, KaryIdentifier)
    kept = rng.random(len(choices)) < 0.3
    return np.where(kept, choices, own.assign(choices, valid, num_clusters=num_clusters, rng=rng))


class SizesFromRawChoices(IdentifierMechanism):
    def release(self, reports, *, rng):
        made = super().release(reports, rng=rng)
        return replace(made, sizes=quantity(reports.choices, self.num_clusters).astype(float))


# Sampling


def with_sampler(kind, draw):
    """The mechanism with another way of drawing: draw(the sampler it had, population, rng, what was drawn before)."""

    class Sampler:
        def __init__(self, own):
            self.own, self.before = own, []

        def draw(self, population, *, rng, round_index=0):
            self.before.append(np.sort(draw(self.own, population, rng, self.before)))
            return self.before[-1]

    class Other(kind):
        @property
        def sampler(self):
            return Sampler(super().sampler)

    return Other


def fixed_size(own, population, rng, before):
    return FixedSizeSampler(round(own.expected_size), population).draw(population, rng=rng)


def truncated(own, population, rng, before):
    return rng.permutation(own.draw(population, rng=rng))[: round(own.expected_size)]


def too_often(own, population, rng, before):
    return PoissonSampler(1.1 * own.sample_rate, population).draw(population, rng=rng)


def rested(own, population, rng, before):
    """Clients of the last round rest, and others take their place: the right rate, the wrong law."""
    last = before[-1] if before else np.zeros(0, dtype=int)
    fresh = np.setdiff1d(np.arange(population), last)
    rate = own.sample_rate / (1 - own.sample_rate)
    return fresh[rng.random(len(fresh)) < rate]


def households(own, population, rng, before):
    pairs = rng.random(population // 2) < own.sample_rate
    return np.flatnonzero(np.repeat(pairs, 2))


def with_replacement(own, population, rng, before):
    return rng.integers(population, size=own.cohort_size)


def poisson_for_fixed(own, population, rng, before):
    return PoissonSampler(own.cohort_size / population, population).draw(population, rng=rng)


def joint(kind=JointMechanism, **patches):
    return joint_target(kind), {JOINT + name: value for name, value in patches.items()}


def identifier(kind=IdentifierMechanism, flavour="gaussian", **patches):
    return identifier_target(flavour, kind), {IDENTIFIER + name: value for name, value in patches.items()}


# name -> (the check that must catch it, the mechanism with the bug, functions to replace)
PLANTED = {
    "count weight missing in the sensitivity": ("noise scale", *joint(CountWeightForgotten)),
    "variance taken for the std": ("noise scale", *joint(VarianceForStd)),
    "noise skipped for empty clusters": ("noise scale", *joint(NoiseSkippedWhenEmpty)),
    "noise divided by the cohort size": ("noise scale", *joint(NoiseDividedByCohort)),
    "counts without noise": ("noise scale", *joint(ExactCounts)),
    "one noise vector for all clusters": ("noise law", *joint(OneNoiseForAllClusters)),
    "Laplace noise of the same variance": ("noise law", *joint(grid_noise=laplace_noise)),
    "noise in float16": ("noise law", *joint(grid_noise=half_precision_noise)),
    "noise stream reused": ("noise reuse", *joint(SameNoiseAgain)),
    "noise not from the given generator": ("noise reuse", *joint(NoiseFromElsewhere)),
    "stated noise std from the cohort": ("denominators", *joint(StatedStdFromCohort)),
    "no clip": ("sensitivity", *joint(clip_to_grid=no_clip)),
    "clip after the sum": (
        "sensitivity",
        *joint(
            clip_to_grid=no_clip,
            cluster_sums=lambda *a, **k: clip_the_sum(*a, **k, bound=0.5 / grid_step(0.5)),
        ),
    ),
    "clip by the largest coordinate": ("sensitivity", *joint(clip_to_grid=clip_largest_coordinate)),
    "shared and clustered parts clipped apart": ("sensitivity", *joint(clip_to_grid=clip_parts)),
    "clip by the identifier's norm, as printed": (
        "sensitivity",
        *joint(clip_to_grid=clip_by_the_length_of_the_identifier),
    ),
    "clip to 1 instead of C": ("sensitivity", *joint(clip_to_grid=clip_to_one)),
    "means weighted by data size after the clip": ("sensitivity", *joint(clip_to_grid=weigh_by_data_size)),
    "NaN passes": ("sensitivity", *joint(check_reports=unchecked, clip_to_grid=float_clip)),
    "NaN passes (identifier)": ("sensitivity", *identifier(check_reports=unchecked, clip_to_grid=float_clip)),
    "no clip (identifier)": ("sensitivity", *identifier(clip_to_grid=no_clip)),
    "a hostile report raises": ("invalid reports", *joint(check_reports=refused_loudly)),
    "invalid reports counted": ("invalid reports", *joint(check_reports=invalid_counted)),
    "second report of one id kept": ("invalid reports", *joint(check_reports=repeats_kept)),
    "invalid reports dropped, the cohort shrinks": ("invalid reports", *identifier(InvalidDropped)),
    "exact counts in denominators": ("denominators", *joint(ExactDenominators)),
    "exact counts in denominators, by the noise scale": ("distinguishing, scale", *joint(ExactDenominators)),
    "rebalancing from raw counts": ("sensitivity", *joint(RebalancedFromRawCounts)),
    "the paper's donor rule from raw counts": ("sensitivity", *joint(LiteralRule)),
    "noise for C where 2C is needed": ("noise scale", *identifier(NoiseForOneClip)),
    "noise for C where 2C is needed, by attack": (
        "distinguishing, projection",
        *identifier(NoiseForOneClip),
    ),
    "identifier sensitivity 1 for sqrt 2": ("identifier noise", *identifier(IdentifierSensitivityOne)),
    "identifiers not accounted": ("identifier noise", *identifier(IdentifiersNotAccounted)),
    "choices not privatised": ("identifier noise", *identifier(answering(the_choice_itself))),
    "choices not privatised, by attack": ("distinguishing, projection", *identifier(answering(the_choice_itself))),
    "k-ary response keeps more than it says": ("identifier noise", *identifier(answering(keeps_more), "kary")),
    "sizes from raw choices": ("sensitivity", *identifier(SizesFromRawChoices)),
    "fixed-size cohort under a Poisson account": ("sampler", *joint(with_sampler(JointMechanism, fixed_size))),
    "Poisson cohort truncated to its expectation": ("sampler", *joint(with_sampler(JointMechanism, truncated))),
    "sample rate 10% too high": ("sampler", *joint(with_sampler(JointMechanism, too_often))),
    "clients rest after a round": ("sampler", *joint(with_sampler(JointMechanism, rested))),
    "clients sampled in pairs": ("sampler", *joint(with_sampler(JointMechanism, households))),
    "sampled with replacement": ("sampler", *identifier(with_sampler(IdentifierMechanism, with_replacement))),
    "Poisson cohort under a fixed-size account": (
        "sampler",
        *identifier(with_sampler(IdentifierMechanism, poisson_for_fixed)),
    ),
}
