"""Random instances of the strongly convex problem that meet every assumption, and what is measured on them."""

from dataclasses import dataclass, replace

import numpy as np
from quadratic_problem import Problem, RoundSettings, play_round, setting_of
from rrcluster_research.convergence import failed_round, one_round
from rrcluster_research.lemma import Setting, identifier_error, misassignment
from scipy.optimize import brentq

from rrcluster.types import Array

TERMS = ("contraction", "own_noise", "bias", "wrong_noise", "privacy_noise")


@dataclass(frozen=True)
class Instance:
    problem: Problem
    rounds: RoundSettings
    setting: Setting
    models: Array  # (k, d) within the radius


def random_instance(rng, *, failure_probability=0.1, noise=1.0, calm=1.0):
    """Draw until all assumptions hold: identifier noise uses up most of a random share of wrong clients, data the rest.

    `noise` scales the privacy noise, `calm` < 1 lowers the allowed misassignment and the spread of the data.
    """
    while True:
        instance = _draw(rng, failure_probability, noise, calm)
        if instance is not None:
            return instance


def _draw(rng, failure_probability, noise, calm):
    base, margin = _random_problem(rng), float(rng.uniform(0.15, 0.4))
    strong, smooth, clients = base.curvature.min(), base.curvature.max(), base.group_sizes.sum()
    size = int(base.group_sizes.mean() * rng.uniform(0.2, 0.9))
    tau = calm * 10 ** rng.uniform(-1.5, -0.2) * failure_probability * size / (4 * clients)
    rounds = RoundSettings(
        min_cluster_size=size,
        server_lr=float(rng.uniform(0.3, 1)) * 2 / (strong + smooth),
        identifier_noise_multiplier=_identifier_noise(0.8 * tau, len(base.optima)),
        noise_std=noise * size * smooth * base.separations[0] * float(10 ** rng.uniform(-4, -1)),
    )
    for data_std in calm * base.data_std / 2.0 ** np.arange(30):
        problem = replace(base, data_std=data_std)
        setting = setting_of(problem, rounds, margin=margin, failure_probability=failure_probability)
        if misassignment(setting).total < tau:
            assert not failed_round(setting)
            return Instance(problem, rounds, setting, _models_within(setting.radius, problem, rng))
    return None


def _random_problem(rng):
    k, d = int(rng.integers(2, 5)), int(rng.integers(2, 21))
    strong = float(10 ** rng.uniform(-2, 1))
    smooth = strong * float(10 ** rng.uniform(0, 1))
    curvature = rng.uniform(strong, smooth, size=(k, d))
    curvature[:, 0], curvature[:, 1] = strong, smooth
    sizes = int(rng.integers(400, 1001)) + rng.integers(-2, 3, size=k)
    return Problem(rng.standard_normal((k, d)), curvature, sizes, data_std=float(10 ** rng.uniform(-2, 0)))


def _identifier_noise(error, num_clusters):
    def gap(log_noise):
        return np.log(
            identifier_error(identifier_noise_multiplier=float(np.exp(log_noise)), num_clusters=num_clusters) / error
        )

    return float(np.exp(brentq(gap, np.log(0.05), np.log(10), xtol=1e-4)))


def _models_within(radius, problem, rng):
    """Errors of up to the radius; half of the clusters err along the weakest direction, where progress is slowest."""
    errors = rng.standard_normal(problem.optima.shape)
    weakest = rng.random(len(errors)) < 0.5
    errors[weakest] = np.eye(errors.shape[1])[problem.curvature[weakest].argmin(axis=1)]
    lengths = radius * rng.uniform(0.1, 0.999, size=len(errors)) / np.linalg.norm(errors, axis=1)
    return problem.optima + errors * lengths[:, None]


def bounds_and_measured(instance, rng):
    """Per term, the corrected bound and the true value, (k,) each; and the same for the whole error."""
    bound, error = one_round(instance.setting), errors_of(instance.models, instance.problem)
    played = play_round(instance.problem, instance.models, instance.rounds, rng=rng)
    bounds = {name: np.full(len(error), getattr(bound, name)) for name in TERMS}
    bounds["contraction"] = bound.contraction * error
    measured = {name: getattr(played, name) for name in TERMS[1:]}
    measured = {"contraction": played.progress, **measured}
    return bounds, measured, errors_of(played.models, instance.problem)


def errors_of(models, problem):
    return np.linalg.norm(models - problem.optima, axis=1)
