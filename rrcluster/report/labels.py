"""Labels of methods in tables and figures, made from their settings alone."""

from collections.abc import Mapping, Sequence
from typing import Any

from rrcluster.registry import METHODS
from rrcluster.report.values import epsilon_name, number, value_text
from rrcluster.settings import AFFECTS

INIT_NAMES = {"survey": " + survey"}
# What runs of one method may differ in: their seed, where they are made and what is written beside the result.
NOT_METHOD = frozenset({name for name, affected in AFFECTS.items() if affected != "result"} | {"seed"})
_MAX_DIFFERENCES = 3


def method_label(config: Mapping[str, Any]) -> str:
    """The method of a run, such as "DP-IFCA" or "RR-Cluster (IFCA), B=15".

    A method without exploration and initialisation is the published one; where it has them, the label says so. "DP-"
    precedes a base method under any mechanism but `none`. RR-Cluster is private unless its label says otherwise.
    """
    name = str(config.get("algorithm", "unknown method"))
    base = METHODS.label(name)
    private = str(config.get("mechanism", "none")) != "none"
    init = str(config.get("init"))
    explores = config.get("exploration") and init != "survey" and METHODS.fact(name, "chooses_by_loss")
    suffix = INIT_NAMES.get(init, "") + (" + exploration" if explores else "")
    suffix += participation_label(config) if private else ""
    if size := least_size(config):
        return f"RR-Cluster ({base}), B={size:g}{suffix}" + ("" if private else ", no privacy")
    return f"DP-{base}{suffix}" if private else f"{base}{suffix}"


def participation_label(config: Mapping[str, Any]) -> str:
    """Who takes part, where it is not a secret sample of all clients: ", everybody" or ", schedule of 10 slots"."""
    name, slots = str(config.get("participation", "poisson")), config.get("slots")
    return "" if name == "poisson" else f", {name}" + (f" of {value_text(slots)} slots" if slots else "")


def expected_cohort(config: Mapping[str, Any]) -> float | None:
    """How many clients a round is expected to have; None where the settings do not say."""
    rate, clients = number(config.get("sample_rate")), number(config.get("num_clients"))
    if rate is None or clients is None:
        return None
    share = 1.0 if config.get("participation") in ("schedule", "everybody") else rate
    return share * clients / (number(config.get("slots")) or 1.0)


def least_size(config: Mapping[str, Any]) -> float:
    """The least cluster size B of a run that rebalances; 0 for others.

    Version 0.1 had a setting `rebalance`: with `none` or `shrinkage` nobody moved, whatever B was.
    """
    moves = config.get("rebalance", "auto") in ("auto", "coin", "exact")
    return max(0.0, number(config.get("min_cluster_size")) or 0.0) if moves else 0.0


def settings_key(config: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Equal for runs that differ in their seed, name or place only."""
    return tuple(sorted((key, repr(value)) for key, value in config.items() if key not in NOT_METHOD))


def distinct_labels(configs: Sequence[Mapping[str, Any]], folders: Sequence[str]) -> tuple[str, ...]:
    """One unique label per method: methods of the same name also list the settings in which they differ.

    Methods that differ in no setting, or in too many to list, get the name of their folder, and if needed a number.
    """
    plain = [method_label(config) for config in configs]
    labels = []
    for label, config, folder in zip(plain, configs, folders, strict=True):
        peers = [other for other, name in zip(configs, plain, strict=True) if name == label]
        labels.append(label if len(peers) == 1 else f"{label}{_difference(config, peers) or f' [{folder}]'}")
    return tuple(
        label if labels.count(label) == 1 else f"{label} #{labels[: place + 1].count(label)}"
        for place, label in enumerate(labels)
    )


def differing(configs: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Names of the settings that are not the same in all of `configs`, in order of appearance."""
    names = dict.fromkeys(key for config in configs for key in config if key not in NOT_METHOD)
    return tuple(name for name in names if len({repr(config.get(name)) for config in configs}) > 1)


def _difference(config: Mapping[str, Any], peers: Sequence[Mapping[str, Any]]) -> str:
    names = differing(peers)
    if len(names) > _MAX_DIFFERENCES:
        return ""
    target = number(config.get("epsilon")) if "epsilon" in names else None
    others = [f"{name}={value_text(config.get(name))}" for name in names if name != "epsilon" or target is None]
    epsilon = "" if target is None else f", epsilon {epsilon_name(target)}"
    return epsilon + (f" [{', '.join(others)}]" if others else "")
