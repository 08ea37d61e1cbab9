"""What a method is called in tables and figures, from its settings alone."""

from collections.abc import Mapping, Sequence
from typing import Any

from rrcluster.report.notation import value_text
from rrcluster.report.run_files import number

ALGORITHM_NAMES = {
    "fedavg": "FedAvg",
    "fedprox": "FedProx",
    "fedper": "FedPer",
    "ifca": "IFCA",
    "fesem": "FeSEM",
    "fedcam": "FedCAM",
    "fedcam-fesem": "FedCAM (by distance)",
    "fesem-last": "FeSEM (last layer)",
    "ifca-shared": "IFCA (shared base)",
    "mr-mtl": "MR-MTL",
    "local": "Local training",
    "oracle": "Oracle",
}
INIT_NAMES = {"warm": " + warm start", "kmeans++": " + k-means++"}
EXPLORING = frozenset({"ifca", "ifca-shared", "fedcam"})
# Settings that say where a run was made, how often and how closely watched, not what was run.
UNRELATED = frozenset(
    {
        "name",
        "seed",
        "seeds",
        "out",
        "device",
        "engine",
        "data_folder",
        "evaluate_every",
        "tensorboard",
        "keep_checkpoint",
    }
)
_MAX_DIFFERENCES = 3


def method_label(config: Mapping[str, Any]) -> str:
    """The method of a run, as in "DP-IFCA", "IFCA + shrinkage" or "RR-Cluster (IFCA), B=15".

    Exploration and initialisation are named where there are clusters to tell apart: without them a method is the
    published one.

    "DP-" stands before a base method under any mechanism but `none`; RR-Cluster is private unless it says otherwise.
    An algorithm without a display name keeps the name it was registered under.
    """
    name = str(config.get("algorithm", "unknown method"))
    base = ALGORITHM_NAMES.get(name, name)
    private = str(config.get("mechanism", "none")) != "none"
    rebalance, size = config.get("rebalance", "none"), number(config.get("min_cluster_size", 0))
    explored = INIT_NAMES.get(str(config.get("init")), "")
    explored += " + exploration" if config.get("exploration") and name in EXPLORING else ""
    if rebalance in ("coin", "exact", "auto") and size is not None and size > 0:
        return f"RR-Cluster ({base}), B={size:g}{explored}" + ("" if private else ", no privacy")
    prefixed = f"DP-{base}" if private else base
    return f"{prefixed} + shrinkage{explored}" if rebalance == "shrinkage" else f"{prefixed}{explored}"


def settings_key(config: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Equal for runs that differ in their seed, name or place only."""
    return tuple(sorted((key, repr(value)) for key, value in config.items() if key not in UNRELATED))


def distinct_labels(configs: Sequence[Mapping[str, Any]], folders: Sequence[str]) -> tuple[str, ...]:
    """One label per method, no two alike: methods of the same name also say where their settings differ.

    Methods that differ in nothing, or in too much to say, are told apart by folder, and at last by number.
    """
    plain = [method_label(config) for config in configs]
    labels = []
    for label, config, folder in zip(plain, configs, folders, strict=True):
        peers = [other for other, name in zip(configs, plain, strict=True) if name == label]
        labels.append(label if len(peers) == 1 else f"{label} [{_difference(config, peers) or folder}]")
    return tuple(
        label if labels.count(label) == 1 else f"{label} #{labels[: place + 1].count(label)}"
        for place, label in enumerate(labels)
    )


def differing(configs: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Names of the settings that are not the same in all of `configs`, in the order they are first met."""
    names = dict.fromkeys(key for config in configs for key in config if key not in UNRELATED)
    return tuple(name for name in names if len({repr(config.get(name)) for config in configs}) > 1)


def _difference(config: Mapping[str, Any], peers: Sequence[Mapping[str, Any]]) -> str:
    names = differing(peers)
    if len(names) > _MAX_DIFFERENCES:
        return ""
    return ", ".join(f"{name}={value_text(config.get(name))}" for name in names)
