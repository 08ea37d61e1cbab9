"""The server: everything it decides in a round, and the loop over rounds. Simulator and federation run this same code.

    guidance = server.tell(state)                                     # models, prices, coins: made of releases
    collected = collect(guidance, charge)                               # the simulator computes, a federation asks
    state, release = server.finish(state, guidance, collected, rng=...) # the only line that sees raw values

A simulation and a federation differ in `collect` alone.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import numpy as np

from rrcluster.entropy import SecureStreams, StreamSource
from rrcluster.errors import PrivacyError, RoundError, RunFolderError
from rrcluster.mixed.answers import TableQuestion
from rrcluster.mixed.questionnaire import Questionnaire, handed_out
from rrcluster.mixed.questions import Form
from rrcluster.privacy.ledger import Ledger
from rrcluster.privacy.mechanism import SummingMechanism
from rrcluster.privacy.plan import PrivacyPlan
from rrcluster.privacy.rebalancing import coin_transition
from rrcluster.privacy.reports import MessageSum, NoisySum, Reports
from rrcluster.rng import Rng
from rrcluster.server.choice import PRICE, TEMPERATURE, ChoiceRules, crowding_prices, fading
from rrcluster.server.state import ServerState, advance, lengthened, only_first, smooth_sizes
from rrcluster.server.survey import Place, Schedule, Survey, SurveyQuestion, freeze_closed, make_schedule, survey_size
from rrcluster.settings import ServerSettings
from rrcluster.types import Array, Models, Release

# The content of a round: the exact sum of messages; single reports, where the mechanism needs them; a noisy sum.
Collected = MessageSum | Reports | NoisySum


@dataclass(frozen=True)
class Guidance:
    """The server's guidance for the clients of a round. Made of releases, settings and public randomness: public."""

    round_index: int
    models: Models  # to choose among, and to train from
    average: Models  # models for private evaluation: those that would be released now, or the run's initial ones
    rules: ChoiceRules
    question: SurveyQuestion | TableQuestion | None = None  # in rounds of a survey or a questionnaire

    @property
    def vectors(self) -> Array:
        """(k, d_s + d_c) one model per row, in the order of reports: shared coordinates, then the cluster's own."""
        return self.models.rows

    def choose(self, losses: Any, *, rng: Rng) -> tuple[Array, Array]:
        """(n,) choices and (n,) destinations from losses (n, k), as `ChoiceRules.choose` explains."""
        return self.rules.choose(losses, rng=rng)


@dataclass(frozen=True)
class RoundServer:
    """The server's half of a round. It has no memory of its own: the state, made of releases, is an argument."""

    plan: PrivacyPlan
    settings: ServerSettings
    explores: bool  # whether clients choose by loss, which exploration prices and softens
    first_models: Callable[[], Models]  # k models from random numbers alone
    form: Form | None = None  # the questions, if the run is a questionnaire

    def __post_init__(self) -> None:
        if self.schedule.survey_rounds:  # refuses a schedule that does not fit
            survey_size(self.plan.mechanism.coordinates.clustered, self.plan.mechanism.num_clusters)

    @cached_property
    def schedule(self) -> Schedule:
        """The rounds that the initialisation takes."""
        return make_schedule(self.settings, num_rounds=self.plan.num_rounds)

    def first_state(self) -> ServerState:
        """The state before the first round, from random numbers alone."""
        return ServerState.fresh(self.first_models())

    def tell(self, state: ServerState) -> Guidance:
        """Guidance for this round's clients: models, prices and coins, from sizes released earlier.

        Prices are zero and nobody moves before the first release. In a survey's rounds clients get a question instead.
        """
        question: SurveyQuestion | TableQuestion | None = None
        place = self.schedule.place(state.round_index)
        if self.form is not None:
            question = Questionnaire.of(self.form, state.learnt).question(state.round_index)
        elif place is not None and (place.asks or self._num_found(state)):
            question = self._survey(state).question(place.stage, self._answer_scale)
        start = state.start if state.judges_start(state.round_index, self.plan.num_rounds) else None
        return Guidance(state.round_index, state.models, start or state.average, self._rules(state), question)

    def finish(
        self, state: ServerState, guidance: Guidance, collected: Collected, *, rng: Rng
    ) -> tuple[ServerState, Release]:
        """Release the collected reports or sum, and move the models. The input is raw unless noisy; the result is not.

        The round must be charged already: `run_rounds` checks it.
        """
        t, mechanism = state.round_index, self.plan.mechanism
        if guidance.round_index != t:
            raise PrivacyError(
                f"the guidance is of round {guidance.round_index}, the state of round {t}; use tell(state)."
            )
        if isinstance(collected, NoisySum):
            release = mechanism.release_sum(collected)
        elif isinstance(collected, MessageSum):
            release = cast(SummingMechanism, mechanism).release_total(collected, rng=rng)  # this line and the next
        else:
            release = mechanism.release(collected, rng=rng)  # are the only ones that see raw values
        place = self.schedule.place(t)
        if self.form is not None:
            return self._after_table_question(self.form, state, release), release
        if place is not None and place.asks:
            return self._after_question(state, release, place), release
        found = self._num_found(state)
        sizes = release.sizes if found is None else only_first(release.sizes, found)
        state = replace(state, sizes=state.sizes.updated(sizes, memory=self.settings.memory))
        if release.size_noise_std > 0:
            used = found or mechanism.num_clusters
            release = smooth_sizes(release, state.sizes, guidance.rules.transition, mechanism, num_used=used)
        if state.survey is not None:
            lost, rounds = self.schedule.num_questions, self.plan.num_rounds
            release = lengthened(release, mechanism, num_rounds=rounds, lost=lost, found=found is not None)
        release = freeze_closed(release, guidance.rules.num_open or mechanism.num_clusters)
        state = advance(state, release, settings=self.settings, num_rounds=self.plan.num_rounds)
        return (state if found is None else state.with_open(found)), release

    def _rules(self, state: ServerState) -> ChoiceRules:
        t, mechanism = state.round_index, self.plan.mechanism
        found = self._num_found(state)
        if self.schedule.asks(t) or found is not None:
            return replace(ChoiceRules.plain(mechanism.num_clusters), num_open=found)
        strength = self.settings.exploration * fading(t, self.plan.num_rounds) if self.explores else 0.0
        if state.sizes.empty:
            return replace(ChoiceRules.plain(mechanism.num_clusters), temperature=TEMPERATURE * strength)
        least = mechanism.min_cluster_size if mechanism.flips_coins else 0
        return ChoiceRules(
            prices=PRICE * strength * crowding_prices(state.sizes.mean),
            temperature=TEMPERATURE * strength,
            transition=coin_transition(state.sizes.mean, min_cluster_size=least),
        )

    def _num_found(self, state: ServerState) -> int | None:
        """The number of groups found by a survey; None without one, while it asks, and if it could not tell."""
        asks = self.schedule.asks(state.round_index)  # until then, centres are candidates, and may be more than k
        return None if asks or state.survey is None else state.survey.num_groups or None

    def _survey(self, state: ServerState) -> Survey:
        return state.survey or Survey.begin(state.models.clustered[0], self.plan.mechanism.num_clusters)

    @property
    def _answer_scale(self) -> float:
        clip = self.plan.mechanism.update_clip
        return clip if math.isfinite(clip) else 1.0

    def _after_table_question(self, form: Form, state: ServerState, release: Release) -> ServerState:
        """The state after a round of a questionnaire: the facts from its answers, and the resulting models."""
        questionnaire = Questionnaire.of(form, state.learnt).updated(
            state.round_index,
            release.shared_sum / self._answer_scale,
            float(release.sizes.sum()),
            noise=release.sum_noise_std / self._answer_scale,
            count_noise=release.size_noise_std,
            expected=self.plan.sampler.expected_size,
        )
        models = handed_out(form, questionnaire.facts)
        return replace(
            state, models=models, average=models, learnt=questionnaire.tensors(), round_index=state.round_index + 1
        )

    def _after_question(self, state: ServerState, release: Release, place: Place) -> ServerState:
        """The state after a round of answers: models stay, until the clusters of groups start from one."""
        scale, mechanism = self._answer_scale, self.plan.mechanism
        survey = self._survey(state).updated(
            place,
            release.cluster_sums[0] / scale,
            noise=release.sum_noise_std / scale,
            num_clusters=mechanism.num_clusters,
        )
        state = replace(state, survey=survey, round_index=state.round_index + 1)
        if not place.last or place.stage != "centres" or not survey.num_groups:
            return state
        same = np.tile(survey.start, (mechanism.num_clusters, 1))
        return replace(state, models=Models(state.models.shared, same), average=Models(state.models.shared, same))


class Charge:
    """The charge of one attempt at a round: on disk when the call returns, and made once however often it is called."""

    def __init__(self, ledger: Ledger, round_index: int, plan: PrivacyPlan) -> None:
        """Start uncharged."""
        self._ledger, self._round_index, self.made = ledger, round_index, False
        self._event = plan.event if plan.private else None

    def __call__(self) -> None:
        """Record the charge, before anything of the round is revealed."""
        if not self.made:
            self._ledger.charge(self._round_index, self._event)
            self.made = True


Collect = Callable[[Guidance, Charge], Collected]


@dataclass(frozen=True)
class FinishedRound:
    """One round: its release, and the state after it. Public."""

    round_index: int
    state: ServerState
    release: Release


def run_rounds(
    server: RoundServer, collect: Collect, *, state: ServerState, ledger: Ledger, streams: StreamSource
) -> Iterator[FinishedRound]:
    """Round after round until the plan's last one, or until plan or ledger allow no more releases.

    `collect` asks the clients of a round and charges it before anything is revealed; PrivacyError if it did not. Ledger
    and streams must be of the plan's kind: the cost of a repeated round depends on it.
    """
    plan = server.plan
    if ledger.secure != plan.secure or isinstance(streams, SecureStreams) != plan.secure:
        raise PrivacyError("plan, ledger and streams must all be secure or all seeded; build them from one plan.")
    if ledger.repeats_exactly and plan.secure and not plan.stores_rounds:
        raise PrivacyError(
            "the ledger charges a repeated round once, and this plan repeats it with fresh noise, which is a new "
            "release; make the ledger with stored=plan.stores_rounds."
        )
    while state.round_index < plan.num_rounds and ledger.affords(state.round_index, limit=plan.num_releases):
        t = state.round_index
        state, release = attempt_round(server, collect, state, Charge(ledger, t, plan), streams("release", t))
        yield FinishedRound(t, state, release)


def attempt_round(
    server: RoundServer,
    collect: Collect,
    state: ServerState,
    charge: Charge,
    rng: Rng,
) -> tuple[ServerState, Release]:
    """One round: guidance, collection, release, and the state after it."""
    return (_discreet_attempt if server.plan.secure else _attempt)(server, collect, state, charge, rng)


def _attempt(
    server: RoundServer, collect: Collect, state: ServerState, charge: Charge, rng: Rng
) -> tuple[ServerState, Release]:
    guidance = server.tell(state)
    collected = collect(guidance, charge)
    if not charge.made:
        raise PrivacyError(
            f"round {state.round_index} was collected but not charged; collect must call charge() first."
        )
    return server.finish(state, guidance, collected, rng=rng)


def _discreet_attempt(
    server: RoundServer, collect: Collect, state: ServerState, charge: Charge, rng: Rng
) -> tuple[ServerState, Release]:
    """As `_attempt`, for secure runs: errors say only that a round failed.

    Their text may depend on the cohort: a failed allocation reveals its size, a reader's error the client. Errors about
    budget and disk, and a RoundError of `collect`, do not, and pass unchanged.
    """
    try:
        return _attempt(server, collect, state, charge, rng)
    except (PrivacyError, RunFolderError, RoundError):
        raise
    except Exception:  # any error: it must not become the context of the error below
        pass
    raise RoundError(
        "a round failed; the reason is withheld because it may depend on private data. Resume the run; if it fails "
        "again, rehearse without secure on public data, or lower capacity."
    )


def release(
    updates: Any,
    choices: Any,
    *,
    plan: PrivacyPlan,
    rng: Rng,
    destinations: Any = None,
    client_ids: Any = None,
    evaluations: Any = None,
    unique: bool = False,
) -> Release:
    """The private release of one round, for a federated system that has its own server: arrays in, `Release` out.

    `updates` (n, d_s + d_c) and `choices` (n,) are the raw reports of a cohort drawn by `plan.sampler`; numpy or torch.
    `destinations` (n,) are where the coins sent them, for plans with B above 0; `evaluations` (n, 2) are pairs
    (accuracy, share of the loss bound), for plans with `private_evaluation`. Charge your own budget first: one call
    costs one `plan.event`. A secure plan draws its noise from the operating system and needs
    `rng=rrcluster.entropy.secure_rng()` and client ids (or `unique`, where the transport guarantees one report per
    client); calling it twice on one round is two releases.
    """
    reports = Reports(updates, choices, destinations, client_ids, evaluations, unique)
    return plan.mechanism.release(reports, rng=rng)
