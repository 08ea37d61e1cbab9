"""Columns of the paper's tables: populations and budgets."""

from collections.abc import Mapping, Sequence

from rrcluster.paper.study import Column, Settings


def columns(
    panels: Mapping[str, tuple[str, Settings]], epsilons: Sequence[float], *, no_noise: bool = True
) -> tuple[Column, ...]:
    """Every epsilon in every panel (key -> title and settings), each panel closed by a column without noise."""
    found = []
    for key, (title, settings) in panels.items():
        found += [
            Column(f"{key}-eps{epsilon:g}", title, epsilon, {**settings, "epsilon": epsilon}) for epsilon in epsilons
        ]
        found += [Column(f"{key}-no-noise", title, None, settings)] if no_noise else []
    return tuple(found)


def padded(*panels: Sequence[float | None], no_noise: bool = True) -> tuple[float | None, ...]:
    """Published numbers panel by panel, nothing under the columns without noise."""
    return tuple(value for panel in panels for value in (*panel, *((None,) if no_noise else ())))
