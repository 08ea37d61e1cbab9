"""What one round cost in bytes, and how far its updates stood out of the noise. Diagnostics: both follow raw reports.

Bytes of one client are public, a function of settings; a round's follow from how many clients took part, which under
Poisson sampling is private.
"""

import math
from dataclasses import dataclass

import numpy as np

from rrcluster.methods import Method
from rrcluster.privacy.plan import PrivacyPlan
from rrcluster.privacy.reports import MessageSum, Reports
from rrcluster.simulation.simulate import RoundRecord
from rrcluster.types import Array

NUMBER = 4  # bytes of a float32 coordinate, and of a choice


@dataclass(frozen=True)
class RoundMeasures:
    """Diagnostics of one round. Computed from raw reports: not private."""

    bytes_down: int  # to all clients sampled
    bytes_up: int  # from all that reported
    signal_to_noise: tuple[float, ...] | None  # per cluster; None without noise
    shared_signal_to_noise: float | None  # None without noise or without shared coordinates


def measure_round(record: RoundRecord, *, plan: PrivacyPlan, algorithm: Method) -> RoundMeasures | None:
    """The measures of a round; None where nothing raw is kept, as in a secure run."""
    raw = record.collection
    if raw.honest is None:
        return None
    down, up = client_bytes(plan, algorithm)
    shared, clustered = signal_to_noise(raw.honest, plan=plan)
    return RoundMeasures(down * (raw.num_reports + raw.incidents.dropped), up * raw.num_reports, clustered, shared)


def client_bytes(plan: PrivacyPlan, algorithm: Method) -> tuple[int, int]:
    """(down, up) bytes of one client in one round: models as float32, no guidance, no protocol. Public.

    Down: the shared coordinates and all k clusters', since a client has to compare them; the oracle's client needs
    its own alone. With private evaluation, the averaged models that it judges too. Up: one update and one choice where
    there is one to make, where the coin sent it, and two numbers of evaluation. All mechanisms trust the server with
    raw reports, so they send the same. Local training sends nothing.
    """
    if not algorithm.reports:
        return 0, 0
    mechanism = plan.mechanism
    coordinates, k = mechanism.coordinates, mechanism.num_clusters
    compared = k if algorithm.compares_models else 1
    judged = mechanism.loss_bound is not None
    models = coordinates.shared + compared * coordinates.clustered
    words = (1 if k > 1 else 0) + (1 if mechanism.flips_coins else 0) + (2 if judged else 0)
    down = NUMBER * (models + (coordinates.shared + k * coordinates.clustered if judged else 0))
    return down, NUMBER * (coordinates.width + words)


def signal_to_noise(
    collected: MessageSum | Reports, *, plan: PrivacyPlan
) -> tuple[float | None, tuple[float, ...] | None]:
    """(shared, per cluster) norm of the sum of clipped updates over the expected norm of the noise on it.

    Sums and means have the same ratio. Updates count where the client's coin sent them, or where it chose: what noisy
    identifiers or exact rebalancing make of the choices is left aside, and so are hostile clients' reports.
    """
    clipped = plan.mechanism.clipped_sums(collected)
    if clipped is None:
        return None, None
    shared, sums = clipped
    noise_std = plan.mechanism.noise_std
    ratios = _ratio(np.linalg.norm(sums, axis=1), noise_std, sums.shape[1])
    alone = _ratio(np.linalg.norm(shared[None], axis=1), noise_std, len(shared))
    return (float(alone[0]) if len(shared) else None), tuple(float(ratio) for ratio in ratios)


def expected_norm(noise_std: float, width: int) -> float:
    """E ||N(0, noise_std^2 I_width)||, which tends to noise_std sqrt(width)."""
    if width == 0:
        return 0.0
    from scipy.special import gammaln

    return noise_std * math.sqrt(2) * math.exp(float(gammaln((width + 1) / 2) - gammaln(width / 2)))


def _ratio(signal: Array, noise_std: float, width: int) -> Array:
    noise = expected_norm(noise_std, width)
    return np.asarray(signal / noise if noise > 0 else np.zeros_like(signal))
