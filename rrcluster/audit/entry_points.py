"""What others call directly: the function `release`, and one client's message."""

import itertools
import math

import numpy as np

from rrcluster.audit.finding import Finding
from rrcluster.audit.neighbours import Round, hostile_rows
from rrcluster.audit.noise_claims import GRID_BITS
from rrcluster.audit.targets import AuditSetting, Target, as_reports, claimed_sensitivity, noised, plan_of
from rrcluster.privacy.reports import Reports
from rrcluster.server import release

_SHAPE = AuditSetting(noise_multiplier=1.0, shared=2)
_SAID = (None, (1.0, 1.0), (0.0, 0.0), (50.0, -50.0), (np.nan, 0.5), ("text", 1e300))


def check_release_function(target: Target) -> Finding:
    """`rrcluster.release` is the mechanism's own release: with the same reports and draws, the same numbers.

    Deterministic. A client that reports twice counts once there too.
    """
    mechanism = target.make(_SHAPE)
    plan = plan_of(_SHAPE, mechanism=mechanism.name)
    width = mechanism.coordinates.width
    updates, choices, ids = np.full((4, width), 0.1), np.array([0, 1, 2, 2]), np.array([5, 6, 7, 7])
    draws = [np.random.default_rng(0) for _ in range(3)]
    given = release(updates, choices, plan=plan, rng=draws[0], client_ids=ids)
    own = plan.mechanism.release(Reports(updates, choices, client_ids=ids), rng=draws[1])
    once = plan.mechanism.release(Reports(updates[:3], choices[:3], client_ids=ids[:3]), rng=draws[2])
    same = np.array_equal(noised(given, mechanism), noised(own, mechanism))
    wrong = "" if same else "the same reports are released otherwise"
    if not np.array_equal(noised(given, mechanism), noised(once, mechanism)):
        wrong = "a client that reports twice counts twice"
    return Finding(target.name, "release function", "release() is the mechanism's release", wrong or "so", not wrong)


def check_message_norm(target: Target) -> Finding:
    """One client's message, whatever it is made of, is at most S long, in whole numbers; messages add up to the sum.

    Deterministic and exact.
    """
    mechanism = target.make(AuditSetting(noise_multiplier=1.0, shared=2))
    step = 2.0 ** (math.floor(math.log2(mechanism.update_clip)) - GRID_BITS)
    bound, longest = (claimed_sensitivity(mechanism) / step) ** 2, 0
    said = _SAID[1:] if mechanism.evaluation_weight else _SAID[:1]
    rows = hostile_rows(mechanism.coordinates.width, mechanism.update_clip).values()
    for row, judged, choice in itertools.product(rows, said, (0, 2, -1)):
        message = mechanism.message(row, choice, destination=1, evaluation=judged)
        longest = max(longest, sum(int(part) ** 2 for part in message.tolist()))
    updates = np.full((3, mechanism.coordinates.width), 0.1)
    cohort = as_reports(mechanism, Round(updates, np.array([0, 1, 1])))
    judged = [None] * 3 if cohort.evaluations is None else cohort.evaluations
    parts = [mechanism.message(updates[i], cohort.choices[i], evaluation=judged[i]) for i in range(3)]
    adds_up = np.array_equal(np.sum(parts, axis=0), mechanism.sum_messages(cohort))
    holds = longest <= bound and adds_up
    measured = f"{math.sqrt(longest / bound):.6f} of it" if adds_up else "messages do not add up to the sum"
    return Finding(target.name, "message norm", "a message is at most S long", measured, holds)
