"""The joint mechanism at every weight, with evaluations and in the secure mode: the modes that a run may be in.

Each is a target of its own, so that the checks of sensitivity, noise and denominators see it. This module adds what
only some of them claim.
"""

import numpy as np

from rrcluster.audit.finding import Finding
from rrcluster.audit.neighbours import Round
from rrcluster.audit.noise_claims import SHAPE, noise_of
from rrcluster.audit.statistics import SIGNIFICANCE, correlation_p_value
from rrcluster.audit.targets import AuditSetting, Target, as_reports, identifier_target, joint_target, varied
from rrcluster.entropy import secure_rng
from rrcluster.errors import PrivacyError

EVALUATED = varied(joint_target(), "evaluation", evaluation_weight=1.5)
SECURE = varied(joint_target(), "secure", secure=True, count_weight=1.0, evaluation_weight=0.5)
VARIANTS = {
    "joint": (
        varied(joint_target(), "w = 0", count_weight=0.0),
        varied(joint_target(), "w = C", count_weight=1.0),
        varied(joint_target(), "w = 16 C", count_weight=16.0),
        EVALUATED,
        SECURE,
    ),
    "identifier": (varied(identifier_target(), "secure", secure=True),),
}
# Canaries look at sums alone: counts and evaluations, which share the noise, are as light as usual, or absent.
CANARY_RUNS = {
    "joint": ((varied(joint_target(), "secure", secure=True), "ifca"),),
    "identifier": ((varied(identifier_target(), "secure", secure=True), "fedavg"),),
}


def check_public_sizes(target: Target, *, rng: np.random.Generator) -> Finding:
    """Without a count row (w = 0) the sizes are q M / k, a public constant, for every cohort. Deterministic."""
    mechanism = target.make(AuditSetting(num_clusters=4, num_clients=50, sample_rate=0.3))
    wrong = ""
    for sizes in ((0, 0, 0, 0), (9, 0, 0, 0), (1, 2, 3, 4), (30, 30, 30, 30)):
        choices = np.repeat(np.arange(4), sizes)
        reports = as_reports(mechanism, Round(np.zeros((len(choices), 2)), choices))
        found = mechanism.release(reports, rng=target.generator(rng))
        if not np.allclose(found.sizes, 0.3 * 50 / 4, rtol=1e-12) or found.size_noise_std != 0:
            wrong = f"sizes {found.sizes.round(3).tolist()} for a cohort of {list(sizes)}"
    return Finding(target.name, "public sizes", "without counts, sizes are q M / k", wrong or "so", not wrong)


def check_secure_noise(target: Target) -> Finding:
    """Secure noise is fresh in every release, on the same data too, and no seeded generator is accepted for it."""
    mechanism = target.make(SHAPE)
    choices = np.zeros(12, dtype=np.int64)
    one, two = (noise_of(mechanism, choices, secure_rng()) for _ in range(2))

    shared = secure_rng()
    three, four = (noise_of(mechanism, choices, shared) for _ in range(2))
    pairs = ((one, two), (one, three), (three, four), (two, four))
    least = min(correlation_p_value(a, b) for a, b in pairs)
    wrong = "two releases share noise" if least < SIGNIFICANCE else ""
    try:
        noise_of(mechanism, choices, np.random.default_rng(0))
        wrong = wrong or "a seeded generator is accepted"
    except PrivacyError:
        pass
    claim = "secure noise is fresh and takes no seed"
    return Finding(target.name, "secure noise", claim, wrong or f"so (least p-value {least:.2g})", not wrong)
