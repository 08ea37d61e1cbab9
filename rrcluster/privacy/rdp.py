"""Renyi DP of one round, by events' dominating pairs.

dp-accounting's bounds for sampled Gaussians; Wang et al. 2019, Theorem 9, where the choice costs too. Sampling
is never charged more than no sampling.
"""

import contextlib
import logging
from collections.abc import Iterator, Sequence

import numpy as np

from rrcluster.privacy import profiles
from rrcluster.privacy.events import FixedSize, PoissonGaussian
from rrcluster.privacy.profiles import Array

WHOLE_ORDERS = (*range(2, 129), 160, 192, 256, 384, 512)


def poisson_rdp(event: PoissonGaussian) -> tuple[Sequence[float], Array]:
    """Mironov, Talwar, Zhang 2019 (arXiv 1908.10530), by dp-accounting."""
    import dp_accounting as dp

    sampled = dp.PoissonSampledDpEvent(event.sample_rate, dp.GaussianDpEvent(event.noise_multiplier))
    return _by_dp_accounting(sampled, dp.NeighboringRelation.ADD_OR_REMOVE_ONE, event.noise_multiplier)


def fixed_size_rdp(event: FixedSize) -> tuple[Sequence[float], Array]:
    """Wang et al. 2019: Theorem 27 for a Gaussian base, by dp-accounting; Theorem 9 where the choice costs too.

    dp-accounting does not double the sensitivity under replace-one, and our multiplier is relative to the replace-one
    sensitivity already, so it goes in unchanged.
    """
    if not event.choice.is_free:
        orders, rdp = theorem_9_rdp(event)
        return orders, np.asarray(np.minimum(rdp, _base(event)(np.array(orders))))
    import dp_accounting as dp

    gaussian = dp.GaussianDpEvent(event.noise_multiplier)
    sampled = dp.SampledWithoutReplacementDpEvent(event.num_clients, event.cohort_size, gaussian)
    return _by_dp_accounting(sampled, dp.NeighboringRelation.REPLACE_ONE, event.noise_multiplier)


def theorem_9_rdp(event: FixedSize) -> tuple[Sequence[float], Array]:
    """Wang et al. 2019, Theorem 9: valid for any base round, and loose."""
    return WHOLE_ORDERS, profiles.fixed_size_rdp(WHOLE_ORDERS, _base(event), event.sample_rate)


def _base(event: FixedSize) -> profiles.Rdp:
    """RDP of choice and updates together, on the whole cohort: the sum, by adaptive composition."""
    return lambda orders: profiles.gaussian_rdp(orders, event.noise_multiplier) + event.choice.rdp(orders)


def _by_dp_accounting(sampled: object, relation: object, noise_multiplier: float) -> tuple[Sequence[float], Array]:
    """An order whose series does not converge, or that comes out negative by rounding, is dropped."""
    import dp_accounting as dp

    orders = dp.rdp.rdp_privacy_accountant.DEFAULT_RDP_ORDERS
    with _without_convergence_warnings():
        rdp = dp.rdp.RdpAccountant(orders, relation).compose(sampled).rdp
    sound = np.where(rdp >= 0, rdp, np.inf)  # NaN is not >= 0
    return orders, np.asarray(np.minimum(sound, profiles.gaussian_rdp(orders, noise_multiplier)))


@contextlib.contextmanager
def _without_convergence_warnings() -> Iterator[None]:
    """dp-accounting says when it leaves out an order; leaving one out only makes the bound looser."""

    def keep(record: logging.LogRecord) -> bool:
        return "failed to converge" not in str(record.msg)

    logger = logging.getLogger("absl")
    logger.addFilter(keep)
    try:
        yield
    finally:
        logger.removeFilter(keep)
