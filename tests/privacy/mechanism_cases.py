"""Mechanisms and adversarial rounds that several tests share."""

import numpy as np

from rrcluster.privacy.identifier import GaussianIdentifier, IdentifierMechanism, KaryIdentifier
from rrcluster.privacy.joint import JointMechanism
from rrcluster.types import Coordinates

CLIP, WEIGHT, K, B = 0.5, 0.125, 3, 4


def joint(*, shared=0, noise_multiplier=0.0, count_weight=WEIGHT, clustered=2, min_cluster_size=0, evaluation=0.0):
    return JointMechanism(
        coordinates=Coordinates(shared, clustered),
        num_clusters=K,
        update_clip=CLIP,
        count_weight=count_weight,
        noise_multiplier=noise_multiplier,
        sample_rate=0.1,
        num_clients=1000,
        size_floor=2.0,
        min_cluster_size=min_cluster_size,
        evaluation_weight=evaluation,
    )


def identifier(*, cohort, shared=0, noise_multiplier=0.0, kind="gaussian", min_cluster_size=0, clustered=2):
    return IdentifierMechanism(
        coordinates=Coordinates(shared, clustered),
        num_clusters=K,
        update_clip=CLIP,
        noise_multiplier=noise_multiplier,
        identifier=GaussianIdentifier(0.8) if kind == "gaussian" else KaryIdentifier(0.7),
        cohort_size=cohort,
        num_clients=1000,
        size_floor=2.0,
        min_cluster_size=min_cluster_size,
    )


# What a client may send: nothing, exactly the clip, far more, and things that are not vectors of numbers at all.
VALUES = {
    "zero": 0.0,
    "clip": CLIP,
    "minus clip": -CLIP,
    "huge": 50 * CLIP,
    "enormous": 1e30,
    "overflowing": 1e200,
    "nan": np.nan,
    "infinite": np.inf,
}


def update(value, width, axis=0):
    """A row with `value` on one axis."""
    row = np.zeros(width)
    row[axis % width] = value
    return row


def joint_vector(release, mechanism):
    """Everything the joint mechanism adds noise to, as one vector: shared sum, cluster sums, count row, evaluation."""
    counts = release.sizes * mechanism.count_weight
    evaluation = [] if release.evaluation is None else release.evaluation.sums * mechanism.evaluation_weight
    return np.concatenate([release.shared_sum, release.cluster_sums.ravel(), counts, evaluation])
