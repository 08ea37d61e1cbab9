"""What a table or figure of the paper is: cells, what is published in them, and the runs that answer each."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

IDENTIFIER, JOINT, NO_NOISE = "identifier", "joint", "none"
Settings = Mapping[str, Any]  # of `rrcluster.experiments.config`, flat
Answer = Settings | str  # how a row is run under a mechanism, or why it is not


@dataclass(frozen=True)
class Column:
    """One column: a population and a budget. `epsilon` None is the column without noise."""

    key: str  # fit for a folder
    panel: str
    epsilon: float | None
    settings: Settings
    title: str | None = None  # default: the budget

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """What can be run here."""
        return (NO_NOISE,) if self.epsilon is None else (IDENTIFIER, JOINT)


@dataclass(frozen=True)
class Row:
    """One method. `published` holds a number per column (None: the paper has none), or nothing at all.

    `reference` rows (the oracle) set a bound and are never compared or printed in bold.
    """

    key: str
    name: str
    answers: Mapping[str, Answer]  # by mechanism; one that is not named is not asked for
    published: tuple[float | None, ...] = ()
    reference: bool = False


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper as comparisons: in every cell, is the first row of a pair better than the second?

    `needs` some: it is enough that one cell shows it; not worse: that no cell shows the opposite.
    """

    text: str
    where: str  # in the paper
    mechanism: str
    pairs: tuple[tuple[str, str], ...]  # (better, worse) rows
    measure: str | None = None  # default: that of the study
    needs: Literal["all", "some", "not worse"] = "all"


@dataclass(frozen=True)
class Quick:
    """The small version: settings that change, columns and rows that stay, and what that does to the answer."""

    settings: Settings
    columns: tuple[str, ...]
    rows: tuple[str, ...]
    words: str
    seeds: tuple[int, ...] = (0, 1)
    answers: Mapping[str, Settings] = field(default_factory=dict)  # by mechanism, over what the rows say


@dataclass(frozen=True)
class Spotlight:
    """The cells whose cluster sizes and confusion are drawn, side by side."""

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
    choices: tuple[str, ...]  # what the paper leaves open, with our choice
    quick: Quick
    measure: str = "accuracy"  # of a diagnostic
    pairs: tuple[tuple[str, str, str], ...] = ()  # (row, base row, mechanism), tested for significance in every cell
    claims: tuple[Claim, ...] = ()
    figures: tuple[str, ...] = ("epsilon", "worst-decile")
    spotlights: tuple[Spotlight, ...] = ()
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    by_model: Mapping[str, Settings] = field(default_factory=dict)  # of runs with that network, over `settings`
    by_budget: Mapping[str, Mapping[float | None, Settings]] = field(default_factory=dict)
    """Of a whole table that is asked for with that network, over `by_model`: by the column's epsilon."""
    choices_by_model: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # in place of `choices`

    def row(self, key: str) -> Row:
        """The row of that key."""
        return next(row for row in self.rows if row.key == key)

    def published(self, row: Row, column: Column) -> float | None:
        """The number in a cell of the paper's table."""
        keys = [column.key for column in self.columns]
        return dict(zip(keys, row.published, strict=True))[column.key] if row.published else None
