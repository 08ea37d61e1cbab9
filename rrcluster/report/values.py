"""Numbers of a report: read from files that may hold anything, averaged over seeds, and written for a reader.

An epsilon is never rounded down.

Labels of methods in tables and figures, made from their settings alone.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Decimal
from typing import Any, TypeVar

from rrcluster.privacy.cost import digits_up, epsilon_text
from rrcluster.registry import METHODS
from rrcluster.settings import AFFECTS

INIT_NAMES = {"survey": " + survey"}
# Settings in which runs of one method may differ: seed, place, and additional output.
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
    """The participation, if it is not a secret sample of all clients: ", everybody" or ", schedule of 10 slots"."""
    name, slots = str(config.get("participation", "poisson")), config.get("slots")
    return "" if name == "poisson" else f", {name}" + (f" of {value_text(slots)} slots" if slots else "")


def expected_cohort(config: Mapping[str, Any]) -> float | None:
    """Expected number of clients in a round; None if the settings do not determine it."""
    rate, clients = number(config.get("sample_rate")), number(config.get("num_clients"))
    if rate is None or clients is None:
        return None
    share = 1.0 if config.get("participation") in ("schedule", "everybody") else rate
    return share * clients / (number(config.get("slots")) or 1.0)


def least_size(config: Mapping[str, Any]) -> float:
    """The minimum cluster size B of a run that rebalances; 0 for others.

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
    """Names of the settings that differ among `configs`, in order of appearance."""
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


Point = TypeVar("Point")


def number(value: object) -> float | None:
    """A finite number, or None for anything else (missing, null, NaN, infinite, not a number)."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def numbers(value: object) -> tuple[float, ...]:
    """The numbers of a list, NaN for other entries; () for anything but a list."""
    if not isinstance(value, list):
        return ()
    return tuple(math.nan if number(entry) is None else float(entry) for entry in value)


def thinned(points: Sequence[Point], *, most: int) -> Sequence[Point]:
    """At most so many points, evenly, the last among them."""
    step = -(-len(points) // most) or 1
    return points[(len(points) - 1) % step :: step]


CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A mean over `count` seeds with the half width of its 95% t-interval (None for a single seed)."""

    mean: float
    half_width: float | None
    count: int

    @property
    def low(self) -> float:
        """Lower end of the interval; the mean itself when there is none."""
        return self.mean - (self.half_width or 0.0)

    @property
    def high(self) -> float:
        """Upper end of the interval; the mean itself when there is none."""
        return self.mean + (self.half_width or 0.0)


def estimate(values: Iterable[float | None]) -> Estimate | None:
    """Mean and t-interval of the values that are not None; None if there are none.

    Half width: t(0.975, n - 1) s / sqrt(n), with the sample standard deviation s (n - 1 in its denominator).
    """
    present = [value for value in values if value is not None]
    n = len(present)
    if n == 0:
        return None
    mean = math.fsum(present) / n
    if n == 1:
        return Estimate(mean, None, 1)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in present) / (n - 1))
    return Estimate(mean, _quantile(n - 1) * deviation / math.sqrt(n), n)


def clear_best(estimates: list[Estimate]) -> int | None:
    """The index of the largest mean if its interval lies above all others, else None.

    None also with fewer than two estimates, or if one of them has no interval.
    """
    if len(estimates) < 2 or any(entry.half_width is None for entry in estimates):
        return None
    best = max(range(len(estimates)), key=lambda place: estimates[place].mean)
    others = [entry.high for place, entry in enumerate(estimates) if place != best]
    return best if estimates[best].low > max(others) else None


def _quantile(degrees: int) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(degrees, (1 + CONFIDENCE) / 2))


NOTHING = "–"


def epsilon_name(epsilon: float) -> str:
    """The same as short as a label needs it: 4 for 3.99993, 5.24 for 5.2341."""
    text = epsilon_text(epsilon)
    return text.rstrip("0").rstrip(".") if "." in text else text


def delta_text(delta: float | None) -> str:
    """A power of ten where it is one: 1e-4, 2.5e-5; six digits, rounded up."""
    if delta is None:
        return NOTHING
    mantissa, exponent = f"{digits_up(delta, 6):.6e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}"


def percent(share: float | None) -> str:
    """A share as a percentage with one decimal, without its sign."""
    return NOTHING if share is None else f"{100 * share:.1f}"


def seconds_text(seconds: float | None) -> str:
    """Whole seconds from 100 on, tenths below."""
    if seconds is None:
        return NOTHING
    return f"{seconds:.0f}" if seconds >= 100 else f"{seconds:.1f}"


def value_text(value: object) -> str:
    """A setting as a reader would write it."""
    if value is None:
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, (list, tuple)):
        return ", ".join(value_text(entry) for entry in value) or NOTHING
    if isinstance(value, dict):
        present = {str(key): entry for key, entry in value.items() if entry is not None}
        return "; ".join(f"{words(name)}: {field_text(name, entry)}" for name, entry in present.items()) or NOTHING
    return str(value)


def field_text(name: str, value: object) -> str:
    """The value of a named field; bounds are rounded to the safe side."""
    figure = number(value)
    if figure is not None and name == "delta":
        return f"{digits_up(figure, 3).normalize():g}"
    if figure is not None and name == "least":
        return str(Decimal(str(figure)).quantize(Decimal("0.01"), rounding=ROUND_FLOOR))
    if figure is not None and (name == "most" or name.startswith("epsilon")):
        return epsilon_text(figure)
    return value_text(value)


def words(name: str) -> str:
    """A field's name as words: noise_multiplier -> noise multiplier."""
    return name.replace("_", " ").strip()


def dead_text(clusters: object) -> str:
    """A warning of clusters that released sizes say are empty; empty without any."""
    dead = [str(cluster) for cluster in clusters if isinstance(cluster, int)] if isinstance(clusters, list) else []
    if not dead:
        return ""
    which = f"cluster {dead[0]} looks" if len(dead) == 1 else f"clusters {', '.join(dead)} look"
    return (
        f"By the released sizes {which} empty: hardly a client chooses that model, and it holds little but noise. Use "
        "fewer clusters (-k), or another --init."
    )


def effects_text(summary: Mapping[str, Any]) -> str:
    """The choices of mixed effects; empty for other runs."""
    effects, clusters = summary.get("random_effects"), summary.get("num_clusters")
    if not isinstance(effects, list) or len(effects) != 2 or not all(isinstance(size, float) for size in effects):
        return ""
    models = "One model for all" if clusters == 1 else f"{clusters} clusters of clients, by their mean columns"
    if not any(effects):
        return f"{models}; clients' own effects did not help."
    of = "it" if clusters == 1 else "their cluster's"
    text = f"{models}; clients differ from {of} by {effects[0]:.2g} in the intercept and {effects[1]:.2g} in a slope."
    gain = summary.get("gain_over_one_model")
    loss, noise = (number(gain.get(name)) for name in ("loss", "noise_std")) if isinstance(gain, dict) else (None, None)
    if loss is None or noise is None:
        return text
    how = f"{loss:.3g} ± {noise:.1g} less than under one model (released)"
    return f"{text} On rows left out, with each client's difference clipped, their mean loss is {how}."


def groups_text(summary: Mapping[str, Any]) -> str:
    """The findings of a survey; empty for a run without one."""
    groups, clusters = summary.get("groups_found"), summary.get("num_clusters")
    if not isinstance(groups, int) or not isinstance(clusters, int):
        return ""
    if not groups:
        return f"The survey could not tell groups by clients' first updates, so all {clusters} clusters were opened."
    closed = f"; {clusters - groups} of {clusters} clusters stay closed" if groups < clusters else ""
    return f"The survey found {groups} group{'' if groups == 1 else 's'}{closed}."


def start_text(started_from: object) -> str:
    """The total cost of a run and the one it started from; empty without one."""
    what = started_from.get("what") if isinstance(started_from, dict) else None
    return what if isinstance(what, str) else ""


def again_text(summary: Mapping[str, Any]) -> str:
    """The improvement over a run's initial models, and drift since; empty for other runs."""
    figures = summary.get("against_start")
    if not isinstance(figures, Mapping):
        return ""
    kept = figures.get("handed_out") == "start"
    handed = "those that the run went on from, unchanged" if kept else "those trained further"
    if "gain" not in figures:
        return f"Handed out: {handed}. Nothing judged whether they are better; --private-evaluation 0.25 pays for it."
    scale, unit = (100, " points") if figures["judged_by"] == "accuracy" else (1, "")
    word = "less loss on rows left out" if figures["judged_by"] == "loss" else "more private accuracy"
    said = f"Handed out: {handed}. Training gave {_plus_minus(figures, 'gain', scale)}{unit} {word}."
    if isinstance(drift := figures.get("drift_of_accuracy"), Mapping):
        said += f" Private accuracy of the earlier models, since their run: {_plus_minus(drift, 'drift', 100)} points."
    if isinstance(drift := figures.get("drift_of_shares"), Mapping):
        pairs = zip(drift["drift"], drift["noise_std"], strict=True)
        moves = [_plus_minus({"drift": move, "noise_std": noise}, "drift", 100) for move, noise in pairs]
        said += f" Clusters' shares of the clients moved by {', '.join(moves)} points."
    return said


def _plus_minus(figures: Mapping[str, Any], name: str, scale: float) -> str:
    digits = 1 if scale > 1 else 4
    return f"{scale * figures[name]:+.{digits}f} ± {scale * figures['noise_std']:.{digits}f}"
