"""Which settings of a plan may stand together; what would void the guarantee is refused with its reason."""

from rrcluster import checks
from rrcluster.errors import ConfigError, PrivacyError
from rrcluster.privacy.clip import check_clip, check_sums_fit

MAX_ROUNDS = 1_000_000
IDENTIFIERS = ("gaussian", "kary", "exponential", "permute-and-flip", "projection")
REBALANCINGS = ("none", "exact", "coin", "shrinkage", "auto")

# The law each mechanism samples by, and the relation it protects. Settings may assert these, not contradict them.
SAMPLING = {"joint": "poisson", "identifier": "fixed-size", "none": "fixed-size"}
ADJACENCY = {"joint": "add-remove", "identifier": "replace-one"}

_REFUSED = {
    ("joint", "exact"): "exact rebalancing reads raw counts, and under add-remove one client then moves up to 3C of "
    "the sums instead of C (Theorem 2); use rebalance = coin, or mechanism = identifier",
    ("identifier", "coin"): "clients choose before identifiers are privatised, so a coin could not act on what is "
    "released; use rebalance = exact, or mechanism = joint",
    ("none", "coin"): "without privacy the exact rule needs no coins; use rebalance = exact",
    ("none", "shrinkage"): "shrinkage weighs means by their noise, and there is none; use rebalance = none or exact",
}


def resolve_rebalance(mechanism: str, rebalance: str, min_cluster_size: int) -> str:
    """The rebalancing that `auto` stands for, and a refusal of what would void the guarantee or mean nothing.

    auto: none when B = 0, otherwise coin under `joint` and exact elsewhere.
    """
    checks.one_of(REBALANCINGS, rebalance=rebalance)
    checks.count(min_cluster_size=min_cluster_size, at_least=0)
    if rebalance == "auto":
        if min_cluster_size == 0:
            return "none"
        return "coin" if mechanism == "joint" else "exact"
    if (mechanism, rebalance) in _REFUSED:
        raise PrivacyError(f"rebalance = {rebalance} with mechanism = {mechanism}: {_REFUSED[mechanism, rebalance]}.")
    if rebalance in ("none", "shrinkage") and min_cluster_size > 0:
        raise ConfigError(
            f"min_cluster_size (B) = {min_cluster_size} has no effect with rebalance = {rebalance}; set B to 0, or "
            "rebalance to auto."
        )
    return rebalance


def check_delta(delta: float, num_clients: int) -> None:
    """Refuse delta > 1/M: publishing one random client's data outright would satisfy it."""
    checks.positive(delta=delta)
    if delta > 1 / num_clients:
        raise PrivacyError(
            f"delta = {delta:g} is more than 1/num_clients = {1 / num_clients:g}: publishing one random client's data "
            f"outright would satisfy it. Use at most {1 / (10 * num_clients):g} (1/(10 M))."
        )


def check_assertions(mechanism: str, sampling: str | None, adjacency: str | None) -> None:
    """Refuse a sampling law or a relation that is not the mechanism's own."""
    own = SAMPLING[mechanism]
    if sampling is not None and sampling != own:
        raise PrivacyError(
            f"sampling = {sampling} does not belong to mechanism = {mechanism}, whose guarantee is for {own} cohorts; "
            "leave sampling out, or choose the mechanism that has it (joint: poisson, identifier: fixed-size)."
        )
    if adjacency is not None and adjacency != ADJACENCY.get(mechanism):
        raise PrivacyError(
            f"adjacency = {adjacency} is not what mechanism = {mechanism} protects "
            f"({ADJACENCY.get(mechanism, 'nothing')}); joint: add-remove, identifier: replace-one."
        )


def check_sizes(
    *,
    num_clients: int,
    num_clusters: int,
    min_cluster_size: int,
    sample_rate: float,
    num_rounds: int,
    update_clip: float,
) -> None:
    """Refuse numbers that are out of range, or that leave no room for the clusters asked for."""
    checks.count(num_clients=num_clients)
    checks.rate(sample_rate=sample_rate)
    if checks.count(num_rounds=num_rounds) > MAX_ROUNDS:
        raise ConfigError(f"num_rounds = {num_rounds} is more than {MAX_ROUNDS}, the most that is accounted.")
    check_clip(update_clip)
    check_sums_fit(num_clients, largest=update_clip, update_clip=update_clip)
    if checks.count(num_clusters=num_clusters) > num_clients:
        raise ConfigError(f"num_clusters (k) = {num_clusters} is more than num_clients = {num_clients}; lower k.")
    _check_room(num_clusters, min_cluster_size, sample_rate * num_clients)


def _check_room(num_clusters: int, min_cluster_size: int, expected_cohort: float) -> None:
    if num_clusters * min_cluster_size > expected_cohort:
        raise ConfigError(
            f"min_cluster_size (B) = {min_cluster_size} needs {num_clusters * min_cluster_size} clients for "
            f"{num_clusters} clusters, but a cohort has {expected_cohort:g}; lower B to at most "
            f"{int(expected_cohort // num_clusters)} or raise sample_rate."
        )
