"""A run's reports: progress after each round, summary.json (released values only), and the result.

Also clusters that nobody chooses any more, as far as released sizes can tell.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np

from rrcluster import __version__
from rrcluster.mixed.questionnaire import PAYS_AGAIN, Questionnaire
from rrcluster.mixed.questions import SMALL
from rrcluster.privacy.mechanism import SIZE_NOISE
from rrcluster.runs.experiment import Experiment
from rrcluster.server.state import ServerState
from rrcluster.settings import data_label
from rrcluster.simulation.evaluate import Evaluation
from rrcluster.types import Array, Models, NoisyEvaluation

_DEVIATIONS = 2.0  # a size below so many standard deviations of its noise is indistinguishable from zero
_ONE_CLIENT = 0.5  # so is one that rounds to no client


def dead_clusters(sizes: Array, *, size_noise_std: float | None, memory: float, weight: float = 1.0) -> list[int]:
    """The clusters whose average released size is indistinguishable from zero; none if noise would hide any cluster.

    `sizes` (k,) are running averages with `memory` over t rounds, `weight` = 1 - memory^t (1: very many). Their noise
    is that of one round, `size_noise_std`, times sqrt((1 - memory)
    (1 + memory) (2 - weight)
    weight). None: the mechanism states no noise, and no cluster is called dead. Released values alone: post-processing.
    """
    if size_noise_std is None or len(sizes) < 2:
        return []
    spread = size_noise_std * math.sqrt((1 - memory) / (1 + memory) * (2 - weight) / weight)
    limit = max(_DEVIATIONS * spread, _ONE_CLIENT)
    if 2 * limit > np.maximum(sizes, 0.0).mean():  # a cluster of half the average size would look dead too
        return []
    return [int(cluster) for cluster in np.flatnonzero(sizes < limit)]


_DIAGNOSTICS = ("accuracy", "loss", "clustering_accuracy", "worst_decile", "adjusted_rand", "clusters_alive")


@dataclass(frozen=True)
class Progress:
    """A run's progress after a round. `evaluation` is diagnostic: computed from raw client data."""

    round_index: int
    num_rounds: int
    sizes: Array  # (k,) released
    epsilon: float | None  # of the whole plan, whenever the run is stopped
    evaluation: Evaluation | None  # of this round, if due
    private_evaluation: NoisyEvaluation | None = None  # released; the average over the last rounds

    @property
    def figures(self) -> dict[str, float]:
        """All figures by name: public ones under `released/`, others under `diagnostic_not_private/`."""
        by_name = {f"released/size_{cluster}": float(size) for cluster, size in enumerate(self.sizes)}
        if self.private_evaluation is not None:
            by_name["released/accuracy"] = self.private_evaluation.accuracy
            by_name["released/loss"] = self.private_evaluation.loss
        if self.evaluation is not None:
            for name in _DIAGNOSTICS:
                by_name[f"diagnostic_not_private/{name}"] = float(getattr(self.evaluation, name))
        return by_name


@dataclass(frozen=True)
class RunResult:
    """A finished run. `evaluation` is diagnostic, None in a secure run; everything else is made of releases."""

    folder: Path  # models, statement, ledger and diagnostics; `rrcluster report` reads it
    models: Models  # as released; `load(folder)` makes PyTorch modules of them
    epsilon: float | None  # of the whole plan, at `delta`; None without privacy
    delta: float  # probability with which the epsilon bound may fail
    evaluation: Evaluation | None  # measured on raw client data: not private


def summarise(
    experiment: Experiment,
    state: ServerState | None,
    *,
    status: str,
    epsilon: float | None,
    releases_charged: int,
    evaluations: Sequence[NoisyEvaluation],
    of_start: Sequence[NoisyEvaluation] = (),
) -> dict[str, Any]:
    """The summary of a finished or stopped run; `of_start` are evaluations of its initial models."""
    config, plan = experiment.config, experiment.plan
    done = 0 if state is None else state.round_index
    before, after = judged_both(of_start, evaluations, num_rounds=plan.num_rounds)
    judged = before if state is not None and state.hands_out_start else after
    counted = state is not None and not state.sizes.empty
    return {
        "name": config.label,
        "status": status,
        "ended_by": None if status != "finished" else "rounds" if done == plan.num_rounds else "budget",
        "version": __version__,
        "data": data_label(config.data.data),
        "partition": None if config.data.whole else config.data.partition,
        "algorithm": config.method.algorithm,
        "model": config.method.model,
        "num_clusters": plan.mechanism.num_clusters,
        "min_cluster_size": config.method.min_cluster_size,
        "mechanism": config.privacy.mechanism,
        "epsilon": epsilon,
        "delta": plan.delta if plan.private else None,
        "noise_multiplier": plan.noise_multiplier,
        "num_rounds": plan.num_rounds,
        "rounds_done": done,
        "releases_charged": releases_charged,
        "secure": plan.secure,
        "seed": config.seed,
        "sizes": state.sizes.mean.tolist() if state is not None and counted else [],
        "groups_found": state.survey.num_groups if state is not None and state.survey is not None and counted else None,
        "dead_clusters": _dead(experiment, state) if state is not None and counted else [],
        "private_evaluation": None if judged is None else describe_evaluation(judged) | judged_rows(experiment),
        **learnt(experiment, state),
        **_against_start(experiment, state, before, after),
    }


def _against_start(
    experiment: Experiment, state: ServerState | None, before: NoisyEvaluation | None, after: NoisyEvaluation | None
) -> dict[str, Any]:
    """The improvement over the run's initial models, and the drift since those: from releases alone."""
    if experiment.start is None or state is None:
        return {}
    figures: dict[str, Any] = {"handed_out": "start" if state.hands_out_start else "trained"}
    earlier, form = experiment.start.summary, experiment.method.form(experiment.model)
    if form is not None:
        gain, noise = [*Questionnaire.of(form, state.learnt).gain.tolist(), 0.0, 0.0][:2]
        kept = gain >= -PAYS_AGAIN * noise
        figures = {"handed_out": "start" if kept else "trained", "judged_by": "loss", "gain": -gain, "noise_std": noise}
    elif before is not None and after is not None:
        spread = math.hypot(before.accuracy_noise_std, after.accuracy_noise_std)
        figures |= {"judged_by": "accuracy", "gain": after.accuracy - before.accuracy, "noise_std": spread}
    if before is not None and (judged := earlier.get("private_evaluation")):
        spread = math.hypot(before.accuracy_noise_std, judged["accuracy_noise_std"])
        figures["drift_of_accuracy"] = {"drift": before.accuracy - judged["accuracy"], "noise_std": spread}
    now, then = released_shares(experiment, state), _shares(experiment, earlier, experiment.start.size_noise)
    if now and then and len(now["shares"]) == len(then["shares"]) > 1:
        moved, spread = np.subtract(now["shares"], then["shares"]), np.hypot(now["noise_std"], then["noise_std"])
        figures["drift_of_shares"] = {"drift": moved.tolist(), "noise_std": spread.tolist()}
    return {"against_start": figures}


def released_shares(experiment: Experiment, state: ServerState) -> Mapping[str, Any] | None:
    """Each cluster's share of the clients, and the std of its error; None if no sizes were released."""
    mechanism = experiment.plan.mechanism
    noise = mechanism.describe().noise_per_part.get(SIZE_NOISE, 0.0) if mechanism.private else 0.0
    summary = {"sizes": [] if state.sizes.empty else state.sizes.mean} | learnt(experiment, state)
    return _shares(experiment, summary, noise)


def _shares(experiment: Experiment, summary: Mapping[str, Any], size_noise: float) -> Mapping[str, Any] | None:
    """Each cluster's share of the clients, and its std from noise and sampling, for a run with these settings.

    `size_noise` is the std of each released size.
    """
    if experiment.method.asks or not len(summary.get("sizes", ())):
        return summary.get("shares")
    sizes, memory = np.maximum(summary["sizes"], 0.0), experiment.server.memory
    sampled = sizes * (1 - experiment.config.privacy.slot_rate)
    total, rounds = max(float(sizes.sum()), 1.0), (1 + memory) / (1 - memory)  # effective length of the running mean
    return {"shares": sizes / total, "noise_std": np.sqrt((size_noise**2 + sampled) / rounds) / total}


def learnt(experiment: Experiment, state: ServerState | None) -> dict[str, Any]:
    """A questionnaire's choices: the number of clusters, and the sizes of random intercepts and slopes."""
    form = experiment.method.form(experiment.model)
    if form is None or state is None:
        return {}
    questionnaire = Questionnaire.of(form, state.learnt)
    chosen = questionnaire.facts.chosen
    if not chosen.size:
        return {}
    effects = [size if size > SMALL else 0.0 for size in chosen[1:].tolist()]
    figures: dict[str, Any] = {"num_clusters": int(chosen[0]), "random_effects": effects}
    if questionnaire.gain.size and not form.begun:
        loss, noise = questionnaire.gain.tolist()
        figures["gain_over_one_model"] = {"loss": -loss, "noise_std": noise}
    if len(questionnaire.sizes) != chosen[0] or chosen[0] == 1:  # one model after all
        return figures
    return figures | {
        "shares": {"shares": questionnaire.sizes.tolist(), "noise_std": questionnaire.size_noise.tolist()}
    }


def judged_rows(experiment: Experiment) -> dict[str, str]:
    """The rows of a private evaluation, if they are not the training rows."""
    if experiment.deployed is not None:
        return {"rows": "members'"}
    data = experiment.data
    return {"rows": "validation"} if data.validation is not None else {"rows": "test"} if data.held_out else {}


def _dead(experiment: Experiment, state: ServerState) -> list[int]:
    mechanism = experiment.plan.mechanism
    noise = mechanism.describe().noise_per_part.get(SIZE_NOISE) if mechanism.private else 0.0
    memory, weight = experiment.server.memory, state.sizes.weight
    sizes = state.sizes.mean if state.survey is None else state.sizes.mean[: state.survey.num_groups or None]
    return dead_clusters(sizes, size_noise_std=noise, memory=memory, weight=weight)


LAST_PART = 0.25  # of the rounds: a private evaluation averages over them


def describe_evaluation(evaluation: NoisyEvaluation) -> dict[str, Any]:
    """The released values and the resulting means."""
    means = ("accuracy", "accuracy_noise_std", "loss", "loss_noise_std")
    released = vars(evaluation) | {"sums": evaluation.sums.tolist()}
    return released | {name: getattr(evaluation, name) for name in means}


def read_evaluation(described: dict[str, Any]) -> NoisyEvaluation:
    """The inverse of `describe_evaluation`."""
    released = {part.name: described[part.name] for part in fields(NoisyEvaluation)}
    return NoisyEvaluation(**released | {"sums": np.array(described["sums"])})


def average(evaluations: Sequence[NoisyEvaluation], *, num_rounds: int) -> NoisyEvaluation | None:
    """The average of the last rounds' evaluations (a quarter of the run's rounds, at least one); None without any.

    Averaging is post-processing and costs nothing.
    """
    last = evaluations[-max(1, round(LAST_PART * num_rounds)) :]
    return reduce(NoisyEvaluation.plus, last) if last else None


def judged_both(
    of_start: Sequence[NoisyEvaluation], evaluations: Sequence[NoisyEvaluation], *, num_rounds: int
) -> tuple[NoisyEvaluation | None, NoisyEvaluation | None]:
    """Private evaluation of a run's initial models, over all rounds that judged them, and of its last models."""
    start = reduce(NoisyEvaluation.plus, of_start) if of_start else None
    return start, average(evaluations, num_rounds=num_rounds // 2 if of_start else num_rounds)


def accuracy_text(progress: Progress) -> str:
    """The models' accuracy after a round, as far as known."""
    private, diagnostic = progress.private_evaluation, progress.evaluation
    if private is not None:
        return private_text(private)
    return "" if diagnostic is None else diagnostic_text(diagnostic)


def private_text(evaluation: NoisyEvaluation, before: str = "") -> str:
    """A released accuracy with its error, cut to 0..1 where noise took it beyond."""
    within = min(max(evaluation.accuracy, 0.0), 1.0)
    note = ", cut" if within != evaluation.accuracy else ""
    return f"{before}{within:.1%} ± {100 * evaluation.accuracy_noise_std:.1f} (private{note})"


def diagnostic_text(evaluation: Evaluation, before_accuracy: str = "") -> str:
    """Accuracy, or the loss without accuracy; empty if no client has test samples."""
    measured = evaluation.accuracy == evaluation.accuracy
    if not measured and evaluation.loss != evaluation.loss:
        return ""
    figure = f"{before_accuracy}{evaluation.accuracy:.1%}" if measured else f"loss {evaluation.loss:.4g}"
    return f"{figure} (diagnostic, not private)"
