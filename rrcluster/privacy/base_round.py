"""One fixed-size round on its whole cohort, before sampling: the replace-one profile and RDP of each kind of event."""

from functools import partial

import numpy as np

from rrcluster.privacy import by_loss, profiles
from rrcluster.privacy.events import FixedSizeByLoss, FixedSizeGaussian, FixedSizeKary

FixedSizeEvent = FixedSizeGaussian | FixedSizeKary | FixedSizeByLoss


def base_profile(event: FixedSizeEvent) -> profiles.Profile:
    """Delta as a function of epsilon, identifiers and updates together."""
    z = event.noise_multiplier
    if isinstance(event, FixedSizeKary):
        p, k = event.keep_probability, event.num_clusters
        return partial(profiles.kary_gaussian_delta, noise_multiplier=z, keep_probability=p, num_clusters=k)
    if isinstance(event, FixedSizeByLoss):
        return partial(
            by_loss.by_loss_gaussian_delta,
            noise_multiplier=z,
            rule=event.rule,
            identifier_epsilon=event.identifier_epsilon,
            num_clusters=event.num_clusters,
        )
    return partial(profiles.gaussian_delta, noise_multiplier=z)


def identifier_rdp(event: FixedSizeEvent) -> profiles.Rdp:
    """RDP of the identifiers alone, as a function of the order; 0 where they are folded into the Gaussian."""
    if isinstance(event, FixedSizeKary):
        return partial(profiles.kary_rdp, keep_probability=event.keep_probability, num_clusters=event.num_clusters)
    if isinstance(event, FixedSizeByLoss):
        rule, epsilon, k = event.rule, event.identifier_epsilon, event.num_clusters
        return partial(by_loss.by_loss_rdp, rule=rule, identifier_epsilon=epsilon, num_clusters=k)
    return lambda orders: np.zeros_like(np.asarray(orders, dtype=np.float64))


def base_rdp(event: FixedSizeEvent) -> profiles.Rdp:
    """RDP of identifiers and updates together: the sum, by adaptive composition."""
    identifiers = identifier_rdp(event)
    return lambda orders: profiles.gaussian_rdp(orders, event.noise_multiplier) + identifiers(orders)


def identifier_loss(event: FixedSizeEvent) -> float:
    """Largest privacy loss of one identifier; 0 where identifiers are folded into the Gaussian."""
    if isinstance(event, FixedSizeKary):
        return profiles.kary_loss(event.keep_probability, event.num_clusters)
    if isinstance(event, FixedSizeByLoss):
        return by_loss.largest_loss(event.rule, event.identifier_epsilon, event.num_clusters)
    return 0.0
