"""A table or figure of the paper as data: its columns and rows, the published numbers, and the settings to run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

IDENTIFIER, JOINT, NO_NOISE = "identifier", "joint", "none"
Settings = Mapping[str, Any]  # flat, of `rrcluster.runs.config`
Answer = Settings | str  # the settings of a row under a mechanism, or why it is not run


@dataclass(frozen=True)
class Column:
    """One column: a population and a budget. `epsilon` None is the column without noise."""

    key: str  # valid as a folder name
    panel: str
    epsilon: float | None
    settings: Settings
    title: str | None = None  # default: the budget
    answers: Mapping[str, Settings] = field(default_factory=dict)  # by mechanism, in place of values in the rows

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """The mechanisms that can run in this column."""
        return (NO_NOISE,) if self.epsilon is None else (IDENTIFIER, JOINT)


@dataclass(frozen=True)
class Row:
    """One method. `published` has a number per column (None where the paper has none), or is empty.

    `reference` rows (the oracle) set a bound and are never compared or printed in bold.
    """

    key: str
    name: str
    answers: Mapping[str, Answer]  # by mechanism; a mechanism that is missing is not run
    published: tuple[float | None, ...] = ()
    reference: bool = False


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper as comparisons: in every cell, is the first row of a pair better than the second?

    `needs` = all: in every cell; some: in at least one; not worse: the opposite in none.
    """

    text: str
    where: str  # in the paper
    mechanism: str
    pairs: tuple[tuple[str, str], ...]  # (better, worse) rows
    measure: str | None = None  # default: that of the study
    needs: Literal["all", "some", "not worse"] = "all"


@dataclass(frozen=True)
class Quick:
    """The small version of a study: changed settings, remaining columns and rows, and their description."""

    settings: Settings
    columns: tuple[str, ...]
    rows: tuple[str, ...]
    words: str
    seeds: tuple[int, ...] = (0, 1)
    answers: Mapping[str, Settings] = field(default_factory=dict)  # by mechanism, in place of values in the rows


@dataclass(frozen=True)
class Spotlight:
    """Cells whose cluster sizes and confusion tables are drawn side by side."""

    column: str
    cells: tuple[tuple[str, str], ...]  # (row, mechanism)


@dataclass(frozen=True)
class Study:
    """One NAME of `rrcluster reproduce`."""

    name: str
    title: str
    source: str  # label of the table or figure in the paper
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    settings: Settings  # of all runs
    choices: tuple[str, ...]  # details that the paper does not state, and our choice
    quick: Quick
    measure: str = "accuracy"  # of a diagnostic
    pairs: tuple[tuple[str, str, str], ...] = ()  # (row, base row, mechanism), tested for significance in every cell
    claims: tuple[Claim, ...] = ()
    figures: tuple[str, ...] = ("epsilon", "worst-decile")
    spotlights: tuple[Spotlight, ...] = ()
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    by_model: Mapping[str, Settings] = field(default_factory=dict)
    """Of runs with that network, in place of values in `settings`."""
    by_budget: Mapping[str, Mapping[float | None, Settings]] = field(default_factory=dict)
    """By network and epsilon, in place of values in `by_model`, if the whole table is run with that network."""
    choices_by_model: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # in place of `choices`

    def row(self, key: str) -> Row:
        """The row of that key."""
        return next(row for row in self.rows if row.key == key)

    def published(self, row: Row, column: Column) -> float | None:
        """The number in a cell of the paper's table."""
        keys = [column.key for column in self.columns]
        return dict(zip(keys, row.published, strict=True))[column.key] if row.published else None


def columns(
    panels: Mapping[str, tuple[str, Settings]], epsilons: Sequence[float], *, no_noise: bool = True
) -> tuple[Column, ...]:
    """A column per panel (key -> title and settings) and epsilon; the last one of each panel is without noise."""
    every_column: list[Column] = []
    for key, (title, settings) in panels.items():
        every_column += [
            Column(f"{key}-eps{epsilon:g}", title, epsilon, {**settings, "epsilon": epsilon}) for epsilon in epsilons
        ]
        every_column += [Column(f"{key}-no-noise", title, None, settings)] if no_noise else []
    return tuple(every_column)


def padded(*panels: Sequence[float | None]) -> tuple[float | None, ...]:
    """Published numbers of all panels, with None for the columns without noise."""
    return tuple(value for panel in panels for value in (*panel, None))
