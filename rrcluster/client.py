"""The clients' half of a round: choose, flip the coin, evaluate, train, report; for simulator and federation.

It is written for many clients at once, so that an engine can batch them, and treats every client alone: a report
depends on the client's own data, memory and draws and on the server's guidance, on nothing else. Theorem 1 of
docs/privacy.md requires this.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rrcluster.data.federated import Cohort
from rrcluster.engine import protocol
from rrcluster.engine.protocol import Engine
from rrcluster.entropy import StreamSource
from rrcluster.methods.coordinate_split import Split
from rrcluster.methods.method import Clients, Method, Tools
from rrcluster.mixed.answers import TableQuestion
from rrcluster.models.probe import check_ids
from rrcluster.privacy.mechanism import Mechanism
from rrcluster.privacy.rebalancing import flip_coins
from rrcluster.privacy.reports import Reports, as_numpy, join_reports
from rrcluster.rng import client_uniforms
from rrcluster.server.choice import choose
from rrcluster.server.server import Guidance
from rrcluster.settings import LocalSettings
from rrcluster.types import Array, Models

Key = tuple[int, int]


@dataclass(frozen=True)
class ClientKeys:
    """Keys for the clients' draws in a round; combined with a client's number, each draw is its own."""

    batches: Key
    choice: Key
    coin: Key

    @classmethod
    def of_round(cls, streams: StreamSource, round_index: int) -> "ClientKeys":
        """The keys of a round: from the run's seed, or fresh from the operating system."""
        return cls(*(streams.client_key(name, round_index) for name in ("batches", "choice", "coin")))


@dataclass(frozen=True)
class ClientSide:
    """The client's program. All of it is public except the data it is applied to."""

    method: Method
    split: Split
    engine: Engine
    local: LocalSettings
    mechanism: Mechanism

    @property
    def alone(self) -> bool:
        """Whether every client is computed by itself, so that no bit can depend on the others in a batch."""
        return bool(getattr(self.mechanism, "exact_noise", False))

    @property
    def tools(self) -> Tools:
        """Tools for evaluation, which draws no random numbers."""
        return Tools(self.split, self.engine, self.local, key=(0, 0))

    def answer(self, guidance: Guidance, clients: Clients, keys: ClientKeys) -> tuple[Reports, Array]:
        """Reports of these clients, and their memory afterwards, (n, m). Both are private."""
        ids, rules = clients.cohort.clients, guidance.rules
        tools = Tools(self.split, self.engine, self.local, key=keys.batches)
        answers = None
        if guidance.question is not None:
            choices, answers = self._answer_question(guidance, clients, tools)
        else:
            draws = client_uniforms(keys.choice, ids, guidance.models.num_clusters if rules.uses_chance else 0)
            choices = choose(self.method.scores(guidance.models, clients, tools=tools), rules, uniforms=draws)
        destinations = None
        if self.mechanism.flips_coins:
            coins = client_uniforms(keys.coin, ids)[:, 0]
            destinations = flip_coins(choices, rules.transition, uniforms=coins)
        evaluations = own_evaluations(
            guidance.average,
            clients.cohort,
            loss_bound=self.mechanism.loss_bound,
            method=self.method,
            tools=tools,
        )
        if answers is not None:
            return Reports(answers, choices, destinations, ids, evaluations), clients.memory
        clusters = choices if destinations is None else destinations
        trained = self.method.local(guidance.models, clients, clusters, tools=tools)
        return Reports(trained.updates, choices, destinations, ids, evaluations), trained.memory

    def answer_singly(
        self, guidance: Guidance, ids: Array, clients: Callable[[Array], Clients], keys: ClientKeys
    ) -> tuple[Reports, Array]:
        """`answer` for each of these clients by itself, with data and memory from `clients`: for secure runs.

        Guarantee: no bit of an answer depends on who else takes part. Arithmetic on many clients at once rounds by
        their number, by their sizes and by a client's place among them; because of one client, others could choose
        differently between models whose losses a server makes equal to the last bit. A client whose computation fails
        sends nothing: a round that one client's data can abort would reveal that client's presence, uncharged.
        """
        answers = []
        for client in np.split(ids, len(ids)) if len(ids) else ():
            try:
                alone = clients(client)
                check_ids(self.engine.model, alone.cohort)
                answers.append(self.answer(guidance, alone, keys))
            except Exception:  # any error; one that is no single client's fault recurs below
                continue
        answers = answers or [self.answer(guidance, clients(ids[:0]), keys)]
        reports, rows = zip(*answers, strict=True)
        return join_reports(reports), np.concatenate(rows)

    def _answer_question(self, guidance: Guidance, clients: Clients, tools: Tools) -> tuple[Array, Array | None]:
        """(n,) choices in a survey round, and (n, d_s + d_c) answers that travel as updates; None: train."""
        question, width = guidance.question, self.mechanism.coordinates
        assert question is not None
        if isinstance(question, TableQuestion):
            cohort = clients.cohort
            scale = self.mechanism.update_clip if self.mechanism.private else 1.0
            return np.zeros(len(cohort.clients), dtype=np.int64), scale * question.answers(cohort, alone=self.alone)
        same = Models(guidance.models.shared, question.start[None])
        only_cluster = np.zeros(len(clients.cohort.clients), dtype=np.int64)
        updates = as_numpy(self.method.local(same, clients, only_cluster, tools=tools).updates)
        choices, answers = question.answer(updates[:, width.shared :])
        if answers is None:
            return choices, None
        padded = np.zeros((len(answers), width.width), dtype=np.float32)  # as wide as updates
        padded[:, width.shared : width.shared + answers.shape[1]] = answers
        return choices, padded


def own_evaluations(
    models: Models, cohort: Cohort, *, loss_bound: float | None, method: Method, tools: Tools
) -> Array | None:
    """(n, 2) accuracy, and loss in units of the loss bound, of each client's own best model on its own samples.

    These are the two numbers in [0, 1] that travel inside a report. A client evaluates the models that would be
    released if the run stopped now (`ServerState.average`): they are made of earlier releases alone, so Theorem 1 of
    docs/privacy.md covers the evaluation. It picks the model of least loss on its own samples and reports that model's
    accuracy and clipped loss on its test samples, if the population has any (`FederatedData.judged`), else on the same
    samples. A client without samples to evaluate on reports 1/2 for both.

    None without a loss bound: then nothing is evaluated. 1/2 is zero in a message; an infinite or invalid loss is
    reported as the bound, or a model's failures would drop out of the mean. The mechanism clips.
    """
    if loss_bound is None:
        return None
    best = method.final_scores(models, cohort, tools=tools).argmin(axis=1)
    population = cohort.population
    places, judged = (np.arange(len(best)), None) if population is None else population.judged(cohort.clients)
    judged, evaluations = judged or cohort, np.full((len(best), 2), 0.5)
    if not len(places):
        return evaluations
    loss, accuracy = protocol.measure(tools.engine, tools.split.vectors(models), judged)
    rows, best = np.arange(len(places)), best[places]
    share = np.nan_to_num(loss[rows, best] / loss_bound, nan=1.0, posinf=1.0)
    evaluations[places] = np.where(judged.sizes[:, None] > 0, np.stack([accuracy[rows, best], share], axis=1), 0.5)
    return evaluations
