"""The heat map of points behind the oracle: what is in it, and what it says of what was not measured."""

from dataclasses import dataclass

import numpy as np
import pytest
from rrcluster_research.map_figure import draw_map
from rrcluster_research.read_reproduction import MeasuredColumn, MeasuredRow


@dataclass
class Measured:
    """As much of a reproduction as the map reads."""

    columns: tuple
    rows: tuple
    measured: dict

    @property
    def panels(self):
        return tuple(dict.fromkeys(column.panel for column in self.columns))

    def values(self, row, column, mechanism, measure):
        return self.measured.get((row.key, column.key, mechanism, measure), {})


def row(key, *mechanisms, reference=False):
    return MeasuredRow(key, key.title(), reference, {}, dict.fromkeys(mechanisms, ""), {})


@pytest.fixture
def measured():
    columns = tuple(MeasuredColumn(key, "Epsilon 8", 8.0, ("identifier", "joint"), key) for key in ("even", "uneven"))
    rows = (row("ifca", "identifier", "joint"), row("coin", "joint"), row("oracle", "joint", reference=True))
    values = {
        ("oracle", "even", "joint", "accuracy"): {0: 0.84, 1: 0.86},
        ("ifca", "even", "joint", "accuracy"): {0: 0.83, 1: 0.83},
        ("ifca", "even", "identifier", "accuracy"): {0: 0.64, 2: 0.10},  # seed 2 has no oracle
        ("coin", "uneven", "joint", "accuracy"): {0: 0.70},  # no oracle there
    }
    return Measured(columns, rows, values)


def test_it_states_the_mean_gap_over_seeds_that_both_have(measured):
    (drawing,) = draw_map(measured)  # nothing is known of the worst decile
    assert drawing.name == "map-accuracy"
    assert "Ifca, identifier 20.0; Ifca 2.0." in drawing.alt  # points; coins have no oracle to be compared with
    assert "Coin" not in drawing.alt
    assert "not private" in drawing.caption


def test_nothing_measured_nothing_drawn(measured):
    assert draw_map(Measured(measured.columns, measured.rows, {})) == []
    measured.measured = {key: dict.fromkeys(by_seed, np.nan) for key, by_seed in measured.measured.items()}
    assert draw_map(measured) == []
