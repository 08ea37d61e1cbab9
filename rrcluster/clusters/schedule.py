"""How the k models come to differ: a schedule of the first rounds, not a release of its own.

- `independent`: all k random models compete from the first round on.
- `warm`: for `init_rounds` rounds one cluster is open and everybody trains it, which is FedAvg. Then all k models
  become copies of it, each with a small random change, and clustering begins.
- `kmeans++`: over `init_rounds` rounds clusters open one after another, and clients badly served by the open ones try
  the new one. Then all compete.
- `survey`: for `init_rounds` rounds clients answer how their updates differ; then as many clusters open as groups were
  found, k at most (clusters/survey.py).
- `auto`: a survey where it applies and noise leaves it enough to find groups, else `independent`.

Privacy: the rounds of an initialisation are rounds of the plan, released by the same mechanism and charged the same
event, so they count towards T and cost nothing extra. The rules of a round follow from its number;
what a client does is a function of its own data, of released models and of its own coins, which is all that Theorem 1
of docs/privacy.md asks for (and the soundness of `identifier`). Copying models and holding closed ones still is
post-processing of releases; the random change is public. The state is a function of releases and of the round's
number, so a resumed run continues as if it had not been interrupted.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from rrcluster.clusters.choice import ChoiceRules
from rrcluster.clusters.survey import (
    LEAST_ROUNDS,
    SHARE,
    SHORTEST_RUN,
    Place,
    place_of,
    survey_signal,
    survey_size,
    usual_rounds,
)
from rrcluster.errors import ConfigError
from rrcluster.privacy.plan import PrivacyPlan
from rrcluster.server_state import RunningMean, ServerState
from rrcluster.settings import ServerSettings
from rrcluster.types import Models, Release

NEWCOMER_POWER = 2.0  # how sharply a client's loss decides whether it tries a new cluster
AUTO_GROUP_SHARE, AUTO_LEAST_SIGNAL = 0.25, 1.2  # `auto`: a survey if a group of this share has this signal to noise
PERTURBATION = 0.1  # how far each copy of the warm model is drawn towards a random model of its own


@dataclass(frozen=True)
class Schedule:
    """The rounds that an initialisation takes, and what happens in them."""

    init: str
    num_rounds: int  # of the initialisation
    num_clusters: int

    def num_open(self, round_index: int) -> int:
        """How many clusters, the first so many, may be chosen in a round."""
        if round_index >= self.num_rounds or self.init == "survey":
            return self.num_clusters
        return 1 if self.init == "warm" else 1 + round_index * self.num_clusters // self.num_rounds

    def place(self, round_index: int) -> Place | None:
        """Where in a survey a round is; None outside of one."""
        surveys = self.init == "survey" and round_index < self.num_rounds
        return place_of(round_index, self.num_rounds) if surveys else None

    def asks(self, round_index: int) -> bool:
        """Whether clients answer a survey's question in a round, and train nothing."""
        place = self.place(round_index)
        return place is not None and place.asks

    @cached_property
    def num_questions(self) -> int:
        """Rounds in which clients answer and nothing is trained."""
        return sum(map(self.asks, range(self.num_rounds)))

    def opens_clusters(self, round_index: int) -> bool:
        """Whether clusters open as this round begins."""
        return round_index > 0 and self.num_open(round_index) != self.num_open(round_index - 1)

    def rules(self, round_index: int) -> ChoiceRules:
        """For a round of the initialisation: which clusters are open; no prices, no coins."""
        return replace(
            ChoiceRules.plain(self.num_clusters),
            num_open=self.num_open(round_index),
            newcomer_power=NEWCOMER_POWER if self.init == "kmeans++" else 0.0,
        )


def freeze_closed(release: Release, num_open: int) -> Release:
    """The release as the models take it: clusters that are not open do not move, not by noise either."""
    closed = np.arange(release.num_clusters) >= num_open
    if not closed.any():
        return release
    return replace(release, cluster_sums=np.where(closed[:, None], 0.0, release.cluster_sums))


def resolve_init(settings: ServerSettings, plan: PrivacyPlan, *, survey_applies: bool) -> ServerSettings:
    """The settings with what `init = auto` stands for, and with the rounds of a survey. Reads the plan alone."""
    init, rounds = settings.init, settings.init_rounds
    if init == "auto":
        wanted = survey_applies and settings.exploration > 0 and settings.start_from is None
        init = "survey" if wanted and usual_signal(plan, AUTO_GROUP_SHARE) >= AUTO_LEAST_SIGNAL else "independent"
    if init == "survey":
        usual = _usual_rounds(plan)  # refuses a model that is too small
        rounds = usual if rounds is None else rounds
    return replace(settings, init=init, init_rounds=rounds)


def usual_signal(plan: PrivacyPlan, share: float) -> float:
    """Signal to noise of a group of this share of the clients in a survey of the usual length; 0: none is possible."""
    mechanism = plan.mechanism
    if mechanism.num_clusters == 1 or plan.num_rounds < SHORTEST_RUN:
        return 0.0
    try:
        width, _ = survey_size(mechanism.coordinates.clustered, mechanism.num_clusters)
    except ConfigError:
        return 0.0
    clients = share * plan.sampler.expected_size
    return survey_signal(_usual_rounds(plan), clients=clients, noise=_relative_noise(plan), width=width)


def _usual_rounds(plan: PrivacyPlan) -> int:
    width, _ = survey_size(plan.mechanism.coordinates.clustered, plan.mechanism.num_clusters)
    cohort = plan.sampler.expected_size
    return usual_rounds(plan.num_rounds, cohort=cohort, noise=_relative_noise(plan), width=width)


def _relative_noise(plan: PrivacyPlan) -> float:
    return plan.mechanism.noise_std / plan.mechanism.update_clip


def make_schedule(settings: ServerSettings, *, num_rounds: int, num_clusters: int) -> Schedule:
    """The schedule of a run; ConfigError for one that does not fit into it.

    By default an initialisation takes a tenth of the run, kmeans++ at least one round per cluster, a survey what
    `resolve_init` says: a fifth of the run at most, or four rounds if that is more.
    """
    leasts = {"independent": 0, "warm": 1, "kmeans++": num_clusters, "survey": LEAST_ROUNDS}
    init = "independent" if settings.init == "auto" else settings.init
    least = leasts[init]
    share = {"independent": 0.0, "survey": SHARE}.get(init, 0.1)
    usual = min(max(int(num_rounds * share), least), num_rounds)
    rounds = usual if settings.init_rounds is None else settings.init_rounds
    if init == "independent" and rounds:
        raise ConfigError(f"init_rounds = {rounds} with init = independent, which takes no rounds; remove init_rounds.")
    if not least <= rounds < max(num_rounds, 1):
        raise ConfigError(
            f"init_rounds = {rounds} must be at least {least} for init = {init} and less than num_rounds = "
            f"{num_rounds}, which includes them; change either."
        )
    return Schedule(init, rounds, num_clusters)


def warm_start(models: Models, random_models: Models) -> Models:
    """The models as a warm phase ends: a copy of the warm one for every cluster, each drawn a little towards a random
    model of its own (public randomness)."""
    warm = models.clustered[:1]
    return Models(models.shared, (1 - PERTURBATION) * warm + PERTURBATION * random_models.clustered)


def open_clusters(state: ServerState, schedule: Schedule, models: Models) -> ServerState:
    """The state as a round begins in which clusters open: sizes released while they were closed say nothing.

    After a warm phase everything starts from `models` again.
    """
    k = schedule.num_clusters
    state = replace(state, sizes=RunningMean(np.zeros(k)))
    if schedule.init != "warm":
        return state
    velocity = Models(state.velocity.shared, np.zeros_like(models.clustered))
    return replace(state, models=models, velocity=velocity, average=models, num_averaged=0)
