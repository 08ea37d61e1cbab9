"""The results table: one row per method, as strings for the renderers of `render.py`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rrcluster.privacy.cost import epsilon_text
from rrcluster.registry import DATASETS
from rrcluster.report.folders import DIAGNOSTIC, Run, RunGroup
from rrcluster.report.values import (
    NOTHING,
    Estimate,
    clear_best,
    delta_text,
    distinct_labels,
    estimate,
    percent,
    seconds_text,
)
from rrcluster.settings import data_label
from rrcluster.storage import printable

_CONTEXT = {
    "data": "Data",
    "partition": "Partition",
    "model": "Model",
}  # columns of settings that differ
_LABELS = {
    "accuracy": "Accuracy (%)",
    "clustering_accuracy": "Clustering accuracy (%)",
    "worst_decile": "Worst decile (%)",
    "loss": "Loss",
    "personalised_accuracy": "Personalised accuracy (%)",
    "adjusted_rand": "ARI",
    "clusters_alive": "Clusters alive",
}
_OF_CLUSTERS = ("clustering_accuracy", "adjusted_rand", "clusters_alive")  # undefined for one cluster
_RELEASED = "Private accuracy (%)"
_NO_WINNER = ("loss", "clusters_alive")


UNCOVERED_TUNING = (
    "Choosing a row by looking at this table is tuning on private data, which no epsilon here covers; "
    "`rrcluster sweep --private-select` chooses and pays for it."
)


@dataclass(frozen=True)
class TextTable:
    """A table of strings. Places are (row, column); `diagnostic` holds columns computed from raw client data."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str
    bold: frozenset[tuple[int, int]] = frozenset()
    diagnostic: frozenset[int] = frozenset()
    text_columns: frozenset[int] = frozenset({0})  # the others hold numbers and are aligned right

    def __post_init__(self) -> None:
        clean = {
            "title": printable(self.title),
            "columns": tuple(map(printable, self.columns)),
            "rows": tuple(tuple(map(printable, row)) for row in self.rows),
            "note": printable(self.note),
        }
        for name, value in clean.items():
            object.__setattr__(self, name, value)  # what run folders hold may come from anyone


def results_table(groups: Sequence[RunGroup]) -> TextTable:
    """Method, epsilon, and the diagnostics and seconds that some run has, with 95% intervals over seeds."""
    metrics = _metrics(groups)
    context = [name for name in _CONTEXT if len({str(group.first.config.get(name)) for group in groups}) > 1]
    mixed_delta, mixed_seeds = len(_deltas(groups)) > 1, len({_seeds(group) for group in groups}) > 1
    head = ["Method", *(_CONTEXT[name] for name in context)]
    columns = [*head, "epsilon", *(["delta"] if mixed_delta else []), *(["Seeds"] if mixed_seeds else [])]
    released = [_released(group) for group in groups]
    columns += [_RELEASED] if any(released) else []
    first_metric = len(columns)
    timed = any(run.seconds is not None for group in groups for run in group.runs)  # secure runs note no times
    columns += [*(_LABELS[name] for name in metrics), *(["Seconds"] if timed else [])]
    rows = []
    for group, label, judged in zip(groups, group_labels(groups), released, strict=True):
        row = [label, *(str(group.first.config.get(name, NOTHING)) for name in context), group_epsilon(group)]
        row += [delta_text(group.first.delta)] if mixed_delta else []
        row += [_seeds(group)] if mixed_seeds else []
        row += [_cell("accuracy", judged)] if any(released) else []
        row += [_cell(name, metric(group, name)) for name in metrics]
        rows.append((*row, _seconds(group)) if timed else tuple(row))
    bold = _bold(groups, metrics, first_metric)
    return TextTable(
        title=_title(groups),
        columns=tuple(columns),
        rows=tuple(rows),
        note=_note(groups, metrics, bold=bool(bold), mixed_seeds=mixed_seeds),
        bold=bold,
        diagnostic=frozenset(range(first_metric, first_metric + len(metrics))),
        text_columns=frozenset(range(len(head))),
    )


def group_labels(groups: Sequence[RunGroup]) -> tuple[str, ...]:
    """One unique label per group."""
    return distinct_labels([group.first.config for group in groups], [group.first.path.name for group in groups])


def group_epsilon(group: RunGroup) -> str:
    """The largest epsilon among the group's seeds."""
    if not group.first.private:
        return epsilon_text(None, private=False)
    spent = [run.epsilon for run in group.runs]
    return epsilon_text(None if None in spent else max(value for value in spent if value is not None))


def metric(group: RunGroup, name: str) -> Estimate | None:
    """The final value of a diagnostic over the group's seeds; None for those of clusters if there is one cluster."""
    if name in _OF_CLUSTERS and group.first.num_clusters == 1:
        return None
    return estimate(_final(run, name) for run in group.runs)


def chance_level(groups: Sequence[RunGroup]) -> float | None:
    """Accuracy of guessing, where all runs have the same known number of classes."""
    counts = {_num_classes(group.first.config) for group in groups}
    (count,) = counts if len(counts) == 1 else (None,)
    return 1 / count if count else None  # regression has no classes


def _num_classes(config: Mapping[str, object]) -> int | None:
    """Of a dataset, or as declared for a file of one's own."""
    declared = config.get("classes")
    known: int | None = DATASETS.fact(str(config.get("data")), "num_classes")
    return len(declared) if isinstance(declared, list) and declared else known


def _title(groups: Sequence[RunGroup]) -> str:
    """Settings that all runs share, such as "fashion-mini, rotation, 1000 clients, 100 rounds"."""
    words = {"data": "{}", "partition": "{}", "num_clients": "{} clients", "num_rounds": "{} rounds"}
    parts = []
    for name, form in words.items():
        values = {str(group.first.config.get(name)) for group in groups}
        if len(values) == 1 and values != {"None"}:
            value = values.pop()
            parts.append(form.format(data_label(value) if name == "data" else value))
    return ", ".join(parts) or "Results"


def _metrics(groups: Sequence[RunGroup]) -> tuple[str, ...]:
    """Accuracies, or the loss for regression, and further diagnostics that some run has."""
    has = {name: any(metric(group, name) is not None for group in groups) for name in _LABELS}
    if has["loss"] and not has["accuracy"]:
        usual: tuple[str, ...] = ("loss", "clustering_accuracy")
    else:
        usual = ("accuracy", "clustering_accuracy", "worst_decile")
    return tuple(name for name in (*usual, "personalised_accuracy", "adjusted_rand", "clusters_alive") if has[name])


def _final(run: Run, name: str) -> float | None:
    value = getattr(run.final, name) if run.final else None
    return value if value is None else float(value)


def _cell(name: str, value: Estimate | None) -> str:
    if value is None:
        return NOTHING
    forms = {"loss": ".4g", "adjusted_rand": ".2f", "clusters_alive": ".2g"}
    show = (lambda number: format(number, forms[name])) if name in forms else percent
    return show(value.mean) if value.half_width is None else f"{show(value.mean)} ± {show(value.half_width)}"


def _released(group: RunGroup) -> Estimate | None:
    """The accuracy that a single run released; a mean over several would cost more than the epsilon beside it."""
    return estimate([group.first.private_accuracy]) if len(group.runs) == 1 else None


def _seconds(group: RunGroup) -> str:
    mean = estimate(run.seconds for run in group.runs)
    return seconds_text(mean.mean if mean else None)


def _seeds(group: RunGroup) -> str:
    total = len(group.runs)
    measured = sum(run.final is not None for run in group.runs)
    return str(total) if measured in (0, total) else f"{measured} of {total}"


def _deltas(groups: Sequence[RunGroup]) -> set[float | None]:
    return {group.first.delta for group in groups if group.first.private}


def _bold(groups: Sequence[RunGroup], metrics: Sequence[str], first: int) -> frozenset[tuple[int, int]]:
    """Places of clear winners among methods with the same guarantee on the same data."""
    arenas: dict[tuple[object, ...], list[int]] = {}
    for row, group in enumerate(groups):
        config = group.first.config
        arena = (
            group_epsilon(group),
            group.first.delta,
            str(config.get("data")),
            str(config.get("partition")),
        )
        arenas.setdefault(arena, []).append(row)
    places = set()
    for rows in arenas.values():
        for column, name in enumerate(metrics):
            estimates = [(row, value) for row in rows if (value := metric(groups[row], name)) is not None]
            best = None if name in _NO_WINNER else clear_best([value for _, value in estimates])
            if best is not None:
                places.add((estimates[best][0], first + column))
    return frozenset(places)


def _note(groups: Sequence[RunGroup], metrics: Sequence[str], *, bold: bool, mixed_seeds: bool) -> str:
    sentences = [_privacy_sentence(groups), *_metric_sentences(groups, metrics)]
    counts = {len(group.runs) for group in groups}
    if counts == {1}:
        what = "run" if all(group.first.seed is None for group in groups) else "seed"  # a secure run has none
        each = " each" if len(groups) > 1 else ""
        sentences += [f"One {what}{each}, so no intervals."] if metrics else []
    else:
        over = "each method's seeds" if mixed_seeds else f"{counts.pop()} seeds"
        sentences.append(f"Mean ± 95% t-interval over {over}.")
    sentences.append(_tuning_sentence(groups))
    if bold:
        sentences.append("Bold: best at its epsilon, with an interval above all others.")
    unfinished = sum(run.status != "finished" for group in groups for run in group.runs)
    if unfinished:
        sentences.append(f"Not finished: {unfinished} of {sum(len(group.runs) for group in groups)} runs.")
    return " ".join(sentence for sentence in sentences if sentence)


def _privacy_sentence(groups: Sequence[RunGroup]) -> str:
    deltas = _deltas(groups)
    if not deltas:
        return "No privacy: nothing here has a guarantee."
    at = f" at delta = {delta_text(next(iter(deltas)))}" if len(deltas) == 1 else ""
    return f"epsilon: client-level{at}, rounded up."


def _tuning_sentence(groups: Sequence[RunGroup]) -> str:
    """Whether epsilon covers the choice of settings: only if they were selected privately."""
    private = [group for group in groups if group.first.private]
    selected = [group for group in private if group.first.privacy.get("selection")]
    covered = "The epsilon of a privately selected run includes the selection of its settings." if selected else ""
    if len(private) < 2:
        return covered
    return f"{covered} {UNCOVERED_TUNING}".strip()


def _metric_sentences(groups: Sequence[RunGroup], metrics: Sequence[str]) -> list[str]:
    released = ""
    if any(map(_released, groups)):
        released = (
            f"{_RELEASED.removesuffix(' (%)')}: noisy, released within the epsilon of its run (docs/tuning.md); none "
            "for a row of several runs, whose costs add up."
        )
    if all(run.final is None for group in groups for run in group.runs):
        return [released or "No diagnostics were written, so there is no accuracy to show."]
    if not metrics:
        return [released or "No rows were held out to test on (--test-share 0.2), so there is no accuracy to show."]
    names = [name if name == "ARI" else name.removesuffix(" (%)").lower() for name in (_LABELS[key] for key in metrics)]
    listed = _listed(names)
    sentences = [
        released,
        f"{listed[0].upper()}{listed[1:]}: {DIAGNOSTIC} (measured on raw client data).",
    ]
    chance = chance_level(groups)
    if "accuracy" in metrics and chance is not None:
        sentences.append(f"Chance level: {100 * chance:g}%.")
    if "worst_decile" in metrics:
        sentences.append("Worst decile: mean accuracy of the tenth of clients that fare worst.")
    if "personalised_accuracy" in metrics:
        sentences.append("Personalised: after each client fitted the released model to its own training rows.")
    if "adjusted_rand" in metrics:
        sentences.append("ARI: adjusted Rand index of clusters and true groups.")
    if "clusters_alive" in metrics:
        sentences.append("Clusters alive: those that some client chooses.")
    return [*sentences, *_sample_sentence(groups)]


def _listed(names: Sequence[str]) -> str:
    return " and ".join(part for part in (", ".join(names[:-1]), *names[-1:]) if part)


def _sample_sentence(groups: Sequence[RunGroup]) -> list[str]:
    """The number of evaluated clients, if they are not the whole population."""
    finals = [(run.final, run.config.get("num_clients")) for group in groups for run in group.runs]
    parts = sorted(
        {(int(final.evaluated_clients), clients) for final, clients in finals if final and final.evaluated_clients}
    )
    counts = [f"{judged:,} of {clients:,} clients" for judged, clients in parts if isinstance(clients, int)]
    return [f"Diagnostics are over {' or '.join(counts)}, the same in every run."] if counts else []
