"""Evaluation of models: measured on raw client data (a diagnostic), or reported by sampled clients.

The diagnostic is never part of a release. Its protocol: each client picks the model with the least loss on its own
*training* data; its accuracy is that model's on the client's test set (its group's, or its own). Means are over all
clients that have test samples; of a population of more than 10,000, over 2,000 drawn once, the same in every round and
run, so that the cost does not grow with the population. Where a population has no true groups, the clustering accuracy
is NaN and there are no group accuracies.

What one round cost in bytes, and how far its updates stood out of the noise. Diagnostics: both follow raw reports.

Bytes of one client are public, a function of settings; a round's follow from how many clients took part, which under
Poisson sampling is private.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rrcluster.data.federated import FederatedData
from rrcluster.engine import protocol
from rrcluster.engine.protocol import Engine, LocalSettings, Question
from rrcluster.methods.coordinate_split import Split
from rrcluster.methods.method import Method
from rrcluster.privacy.plan import PrivacyPlan
from rrcluster.privacy.reports import MessageSum, Reports
from rrcluster.rng import stream
from rrcluster.simulation.clients import ClientMemory
from rrcluster.simulation.hosts import Host, Hosts, Part
from rrcluster.simulation.simulate import RoundRecord
from rrcluster.types import Array, Models

FEW_SETS = 16  # test sets, that many clients share
_CLIENTS_AT_ONCE, _SAMPLES_AT_ONCE = 512, 2**16  # whichever is reached first
_PERSONAL_CLIENTS, _PERSONAL_SAMPLES, _PERSONAL_AT_ONCE = 200, 500, 200
_ALL_UP_TO, _OF_LARGER = 10_000, 2_000


@dataclass(frozen=True)
class Evaluation:
    """Diagnostics of one set of models. Computed from raw client data: not private."""

    accuracy: float  # mean over clients; NaN for regression
    loss: float  # mean over clients
    clustering_accuracy: float  # under the best one-to-one matching of clusters to groups; NaN without groups
    worst_decile: float  # mean accuracy of the worst tenth of clients
    group_accuracy: tuple[float, ...]  # mean over the clients of each true group
    choice_sizes: tuple[int, ...]  # clients per chosen cluster
    confusion: tuple[tuple[int, ...], ...] = ()  # clients by chosen cluster (rows) and true group; empty without groups
    evaluated_clients: int | None = None  # number of clients evaluated; None: the whole population
    best_decile: float = math.nan  # mean accuracy of the best tenth of clients
    median: float = math.nan  # median accuracy over clients
    cluster_accuracy: tuple[float, ...] = ()  # mean over the clients that choose each cluster; NaN where nobody does
    adjusted_rand: float = math.nan  # agreement of clusters and groups beyond chance; NaN without groups
    personalised_accuracy: float | None = None  # mean over clients' final models; None: not measured
    personalised_worst_decile: float | None = None  # the same for the worst tenth of clients
    clusters_alive: int = 0  # clusters chosen by at least one client; the others are dead


def evaluate(
    models: Models,
    data: FederatedData,
    *,
    method: Method,
    split: Split,
    engine: Engine,
    local: LocalSettings | None = None,
    memory: ClientMemory | None = None,
    hosts: Hosts | None = None,
) -> Evaluation:
    """Evaluate models on every client of the population, or on those of `judged_clients`.

    Where clients end up with their own models (`method.personal`), each first computes its own from its memory; then
    the first 200 clients are tested, on 500 test samples each, since nothing can be shared between them. `hosts` hold
    the population; without them, this process does.
    """
    hosts = hosts or Hosts.here(data, method=method, split=split, engine=engine, local=local)
    ids = judged_clients(data.num_clients, personal=method.personal and not method.asks)
    choices = np.concatenate([scores.argmin(axis=1) for scores in _scores(models, ids, hosts)])
    if method.personal:
        loss, accuracy = _own_models(models, choices, ids, hosts, memory or ClientMemory(0))
    else:
        loss, accuracy = _cluster_models(split.vectors(models), choices, data.test_of[ids], data, hosts)
    groups, sizes = data.groups[ids], np.bincount(choices, minlength=models.num_clusters)
    tested = data.test_of[ids] >= 0  # clients without test rows are in no mean
    ordered = np.sort(accuracy[tested])
    tenth = max(1, len(ordered) // 10)
    return Evaluation(
        accuracy=_mean(accuracy[tested]),
        loss=_mean(loss[tested]),
        clustering_accuracy=clustering_accuracy(choices, groups, models.num_clusters, data.num_groups),
        worst_decile=_mean(ordered[:tenth]),
        group_accuracy=tuple(_mean(accuracy[tested & (groups == group)]) for group in range(data.num_groups)),
        confusion=tuple(map(tuple, confusion(choices, groups, models.num_clusters, data.num_groups).tolist())),
        evaluated_clients=None if len(ids) == data.num_clients else len(ids),
        choice_sizes=tuple(int(size) for size in sizes),
        best_decile=_mean(ordered[-tenth:]),
        median=float(np.median(ordered)) if len(ordered) else math.nan,
        cluster_accuracy=tuple(
            _mean(accuracy[tested & (choices == cluster)]) for cluster in range(models.num_clusters)
        ),
        adjusted_rand=adjusted_rand(choices, groups, models.num_clusters, data.num_groups),
        clusters_alive=int((sizes > 0).sum()),
    )


def judged_clients(num_clients: int, *, personal: bool = False) -> Array:
    """Sorted ids of the evaluated clients: all, 2,000 of more than 10,000, or the first 200 if `personal`.

    The 2,000 are drawn under a separate seed: the same for every run on a population of this size.
    """
    if personal:
        return np.arange(min(num_clients, _PERSONAL_CLIENTS))
    if num_clients <= _ALL_UP_TO:
        return np.arange(num_clients)
    return np.sort(stream(0, "evaluation").choice(num_clients, size=_OF_LARGER, replace=False))


def score_all(models: Models, data: FederatedData, *, method: Method, split: Split, engine: Engine) -> Array:
    """(M, k) how badly each cluster suits every client of the population, without exploration."""
    hosts = Hosts.here(data, method=method, split=split, engine=engine)
    return np.concatenate(list(_scores(models, np.arange(data.num_clients), hosts)))


def _scores(models: Models, ids: Array, hosts: Hosts) -> Iterator[Array]:
    return hosts.map(_score_part, models, np.array_split(ids, -(-len(ids) // _CLIENTS_AT_ONCE)))


def _score_part(host: Host, models: Models, ids: Array) -> Array:
    return host.side.method.final_scores(models, host.data.cohort(ids), tools=host.side.tools)


def _cluster_models(
    vectors: Array, choices: Array, test_of: Array, data: FederatedData, hosts: Hosts
) -> tuple[Array, Array]:
    """Loss and accuracy (n,) of each client's chosen model on its test set; NaN for clients without one."""
    losses, accuracies = (np.full(len(choices), np.nan) for _ in range(2))
    plan = _few_sets(choices, test_of) if len(data.test_sets) <= FEW_SETS else _many_sets(choices, test_of, data)
    for (owners, *_), (loss, accuracy) in zip(plan, hosts.map(_judge, vectors, plan), strict=True):
        losses[owners], accuracies[owners] = loss, accuracy
    return losses, accuracies


# places of owners; models (m,), test sets (p,), and for each owner one of m x p
Judged = tuple[Array, Array, Array, Array]


def _few_sets(choices: Array, test_of: Array) -> list[Judged]:
    """Batches by test set, where many clients share one: only models that one of them has chosen."""
    plan = []
    for place in np.unique(test_of[test_of >= 0]).tolist():
        owners = np.flatnonzero(test_of == place)
        chosen, back = np.unique(choices[owners], return_inverse=True)
        plan.append((owners, chosen, np.array([place]), back))
    return plan


def _many_sets(choices: Array, test_of: Array, data: FederatedData) -> list[Judged]:
    """Batches by cluster, where test sets are about as many as clients: as many in one call as memory allows.

    A set that several clients of a cluster share is evaluated once for all of them.
    """
    longest = int(data.tests.sizes.max(initial=1))  # the others are padded to it
    at_once, plan = max(1, min(_CLIENTS_AT_ONCE, _SAMPLES_AT_ONCE // max(longest, 1))), []
    for cluster in np.unique(choices[test_of >= 0]).tolist():
        members = np.flatnonzero((choices == cluster) & (test_of >= 0))
        sets = np.unique(test_of[members])
        for places in np.array_split(sets, -(-len(sets) // at_once)):
            owners = members[np.isin(test_of[members], places)]
            plan.append((owners, np.array([cluster]), places, np.searchsorted(places, test_of[owners])))
    return plan


def _judge(host: Host, vectors: Array, part: Judged) -> tuple[Array, Array]:
    """Loss and accuracy of every owner: of several models on one test set, or of one model on several."""
    _, chosen, places, back = part
    engine, data = host.side.engine, host.data
    if len(data.test_sets) <= FEW_SETS:
        loss, accuracy = protocol.test(engine, vectors[chosen], data.test_sets[places[0]])
        return loss[back], accuracy[back]
    measured = protocol.measure(engine, vectors[chosen], data.tests.cohort(places))
    return measured.loss[back, 0], measured.accuracy[back, 0]


def _own_models(models: Models, choices: Array, ids: Array, hosts: Hosts, memory: ClientMemory) -> tuple[Array, Array]:
    """Loss and accuracy of each client's own model on the first samples of its test set."""
    places = np.array_split(np.arange(len(ids)), -(-len(ids) // _PERSONAL_AT_ONCE))
    parts = [(Part(ids[part], memory.of(ids[part].tolist())), choices[part]) for part in places]
    answers = list(hosts.map(_judge_own, models, parts))
    return np.concatenate([loss for loss, _ in answers]), np.concatenate([accuracy for _, accuracy in answers])


def _judge_own(host: Host, models: Models, part: tuple[Part, Array]) -> tuple[Array, Array]:
    (clients, choices), side, data = part, host.side, host.data
    assert side.method.own_models is not None  # of personal methods alone
    own = side.method.own_models(models, clients.memory.recall(data.cohort(clients.ids)), choices, tools=side.tools)
    most = None if side.method.asks else _PERSONAL_SAMPLES
    return judge_own(side.engine, own, data.test_of[clients.ids], data, apart=side.method.asks, most=most)


def judge_own(
    engine: Engine, vectors: Array, test_of: Array, data: FederatedData, *, apart: bool, most: int | None = None
) -> tuple[Array, Array]:
    """Loss and accuracy (n,) of each client's own model (n, d) on its test set; NaN for clients without one.

    On its first `most` samples, set by set; or, where nearly every client has a set of its own, client by client
    (`apart`).
    """
    loss, accuracy = np.full(len(test_of), np.nan), np.full(len(test_of), np.nan)
    if apart:
        tested = np.flatnonzero(test_of >= 0)
        questions = [Question(vectors[[row]], data.tests.cohort(test_of[[row]])) for row in tested]
        for row, answer in zip(tested, engine.measure(questions), strict=True):
            loss[row], accuracy[row] = answer.loss[0, 0], answer.accuracy[0, 0]
        return loss, accuracy
    for place in np.unique(test_of[test_of >= 0]).tolist():
        mine, tests = np.flatnonzero(test_of == place), data.test_sets[place]
        loss[mine], accuracy[mine] = protocol.test(engine, vectors[mine], tests if most is None else tests.first(most))
    return loss, accuracy


def _mean(values: Array) -> float:
    return float(values.mean()) if len(values) else float("nan")


def clustering_accuracy(choices: Array, groups: Array, num_clusters: int, num_groups: int) -> float:
    """Share of clients in the cluster matched to their group, under the best one-to-one matching.

    Clients of surplus clusters, which no group is matched to, count as wrong. NaN where there are no groups.
    """
    if not num_groups:
        return float("nan")
    from scipy.optimize import linear_sum_assignment  # takes a moment to import, and accounting has done it

    table = confusion(choices, groups, num_clusters, num_groups)
    rows, columns = linear_sum_assignment(-table)
    return float(table[rows, columns].sum() / len(choices))


def confusion(choices: Array, groups: Array, num_clusters: int, num_groups: int) -> Array:
    """(k, groups) clients by chosen cluster and true group; no rows where there are no groups."""
    table = np.zeros((num_clusters if num_groups else 0, num_groups), dtype=np.int64)
    if num_groups:
        np.add.at(table, (choices, groups), 1)
    return table


def adjusted_rand(choices: Array, groups: Array, num_clusters: int, num_groups: int) -> float:
    """The adjusted Rand index (Hubert and Arabie 1985): 1 for equal partitions, 0 on average for random ones.

    (agreeing pairs - expected) / (most possible - expected), from the contingency table. 1 where both partitions put
    all clients together, or both put each alone: they are equal. NaN where there are no groups.
    """
    if not num_groups:
        return float("nan")
    table = confusion(choices, groups, num_clusters, num_groups)
    together = _pairs(table).sum()
    by_cluster, by_group = _pairs(table.sum(axis=1)).sum(), _pairs(table.sum(axis=0)).sum()
    expected = by_cluster * by_group / max(_pairs(np.array(float(len(choices)))), 1.0)
    most = (by_cluster + by_group) / 2
    return 1.0 if most == expected else float((together - expected) / (most - expected))


def _pairs(counts: Array) -> Array:
    return np.asarray(counts * (counts - 1) / 2)


NUMBER = 4  # bytes of a float32 coordinate, and of a choice


@dataclass(frozen=True)
class RoundMeasures:
    """Diagnostics of one round. Computed from raw reports: not private."""

    bytes_down: int  # to all clients sampled
    bytes_up: int  # from all that reported
    signal_to_noise: tuple[float, ...] | None  # per cluster; None without noise
    shared_signal_to_noise: float | None  # None without noise or without shared coordinates


def measure_round(record: RoundRecord, *, plan: PrivacyPlan, method: Method) -> RoundMeasures | None:
    """The measures of a round; None if no raw reports were retained, as in a secure run."""
    raw = record.collection
    if raw.honest is None:
        return None
    down, up = client_bytes(plan, method)
    shared, clustered = signal_to_noise(raw.honest, plan=plan)
    return RoundMeasures(down * (raw.num_reports + raw.incidents.dropped), up * raw.num_reports, clustered, shared)


def client_bytes(plan: PrivacyPlan, method: Method) -> tuple[int, int]:
    """(down, up) bytes of one client in one round: models as float32, no guidance, no protocol. Public.

    Down: the shared coordinates and all k clusters', which a client has to compare; the oracle's client needs only its
    own. With private evaluation, also the averaged models. Up: an update, a choice if there is one, the coin's
    destination, and two numbers of evaluation. All mechanisms trust the server with raw reports, so they send the same.
    Local training sends nothing.
    """
    if not method.reports:
        return 0, 0
    mechanism = plan.mechanism
    coordinates, k = mechanism.coordinates, mechanism.num_clusters
    compared = k if method.compares_models else 1
    judged = mechanism.loss_bound is not None
    models = coordinates.shared + compared * coordinates.clustered
    words = (1 if k > 1 else 0) + (1 if mechanism.flips_coins else 0) + (2 if judged else 0)
    down = NUMBER * (models + (coordinates.shared + k * coordinates.clustered if judged else 0))
    return down, NUMBER * (coordinates.width + words)


def signal_to_noise(
    collected: MessageSum | Reports, *, plan: PrivacyPlan
) -> tuple[float | None, tuple[float, ...] | None]:
    """(shared, per cluster) norm of the sum of clipped updates over the expected norm of the noise on it.

    Sums and means have the same ratio. Updates count in the cluster of the coin or the choice: noisy identifiers, exact
    rebalancing and hostile reports are ignored.
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
