"""How the k models come to differ: what happens in the first rounds, never a release of its own.

- `independent`: all k random models compete from the first round on.
- `survey`: for `init_rounds` rounds clients answer how their updates differ; then as many clusters open as groups were
  found, k at most (server/survey.py).
- `auto`: a survey where it applies and noise leaves it enough to find groups, else `independent`.

Privacy: the rounds of a survey are rounds of the plan, released by the same mechanism and charged the same event, so
they count towards T and cost nothing extra. What is asked in a round follows from its number; what a client does is a
function of its own data, of released models and of its own coins, which is all that Theorem 1 of docs/privacy.md asks
for (and the soundness of `identifier`). Holding closed clusters still is post-processing of releases.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from rrcluster.errors import ConfigError
from rrcluster.privacy.plan import PrivacyPlan
from rrcluster.server.survey import (
    LEAST_ROUNDS,
    SHARE,
    SHORTEST_RUN,
    Place,
    place_of,
    survey_signal,
    survey_size,
    usual_rounds,
)
from rrcluster.settings import ServerSettings
from rrcluster.types import Release

AUTO_GROUP_SHARE, AUTO_LEAST_SIGNAL = 0.25, 1.2  # `auto`: a survey if a group of this share has this signal to noise


@dataclass(frozen=True)
class Schedule:
    """The first rounds of a run: those of a survey, or none."""

    survey_rounds: int = 0

    def place(self, round_index: int) -> Place | None:
        """Where in a survey a round is; None outside of one."""
        return place_of(round_index, self.survey_rounds) if round_index < self.survey_rounds else None

    def asks(self, round_index: int) -> bool:
        """Whether clients answer a survey's question in a round, and train nothing."""
        place = self.place(round_index)
        return place is not None and place.asks

    @cached_property
    def num_questions(self) -> int:
        """Rounds in which clients answer and nothing is trained."""
        return sum(map(self.asks, range(self.survey_rounds)))


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


def make_schedule(settings: ServerSettings, *, num_rounds: int) -> Schedule:
    """The schedule of a run; ConfigError for one that does not fit into it.

    A survey takes as many rounds as `resolve_init` says: a fifth of the run at most, or four rounds if that is more.
    """
    if settings.init != "survey":
        if settings.init_rounds:
            raise ConfigError(
                f"init_rounds = {settings.init_rounds} with init = {settings.init}, which takes no rounds by itself; "
                "remove init_rounds, or use init = survey."
            )
        return Schedule()
    usual = min(max(int(num_rounds * SHARE), LEAST_ROUNDS), num_rounds)
    rounds = usual if settings.init_rounds is None else settings.init_rounds
    if not LEAST_ROUNDS <= rounds < max(num_rounds, 1):
        raise ConfigError(
            f"init_rounds = {rounds} must be at least {LEAST_ROUNDS} for init = survey and less than num_rounds = "
            f"{num_rounds}, which includes them; change either."
        )
    return Schedule(rounds)
