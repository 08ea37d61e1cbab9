"""The study of real people's tables, on the bundled one: few clients' worth of methods, end to end."""

import json
from itertools import product

import numpy as np
import pytest
from rrcluster_research import natural_study
from rrcluster_research.natural_report import draw_figure, make_page
from rrcluster_research.natural_study import CONTENDERS, ONE, OURS, Part, hurt_by_chance, parts_of, read_cells

from rrcluster.cli import main


def test_hurt_by_chance_counts_coins():
    right, other = np.array([1, 1, 0, 0, 1], dtype=bool), np.array([1, 0, 1, 1, 1], dtype=bool)
    outcomes = [sum(coins) for coins in product((-1, 1), repeat=3)]
    assert hurt_by_chance(right, other) == pytest.approx(np.mean([total < 0 for total in outcomes]))
    two = hurt_by_chance(right[1:3], other[1:3])
    assert two == pytest.approx(0.25)  # both coins against it; a tie hurts nobody
    assert hurt_by_chance(right, right) == 0.0


def test_parts_have_one_seed_of_all_first_and_few_seeds_of_most_methods():
    plan = parts_of(("wages", "counties", "star"), tuple(CONTENDERS), ())
    seeds = [part.seed for part, _ in plan]
    assert seeds == [*sorted(seeds[: -2 * 5]), *[1] * 2 * 5]
    assert dict(plan)[Part("counties", "newest", None, 0)] == ("constant", "local", "one-no-noise", "default-no-noise")
    assert (Part("wages", "random", 4.0, 4), (ONE, OURS)) in plan
    last = dict(plan[-2 * 5 :])
    assert "known" in last[Part("star", "random", 1.0, 1)]
    assert set(last[Part("counties", "random", 1.0, 1)]) == {"personalised", "fedper", "mr-mtl", "ifca"}
    assert not any(part.table == "star" and part.rows == "newest" for part, _ in plan)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    out = tmp_path_factory.mktemp("natural")
    rows = ["one", "default", "known", "constant", "default-no-noise"]
    assert main(["reproduce", "natural", "--quick", "--rows", *rows, "--out", str(out), "-q"]) == 0
    return out


@pytest.mark.slow
def test_the_default_is_above_one_model_on_the_bundled_table(measured):
    cells = read_cells(measured / "natural" / "natural.json")
    own = {(cell.rows, cell.epsilon, cell.method): cell for cell in cells}
    assert len(cells) == len(own) == 2 * (2 + 2 * 3)
    for rows, epsilon in product(("random", "newest"), (4.0, 1.0)):
        ours = own[rows, epsilon, "default"]
        assert ours.accuracy > own[rows, epsilon, "one"].accuracy + 5
        assert ours.gain == pytest.approx(ours.accuracy - own[rows, epsilon, "one"].accuracy)
        assert ours.hurt < ours.hurt_by_chance < ours.helped
    assert own["random", 4.0, "known"].clusters == 2
    assert own["random", None, "default-no-noise"].accuracy > 83
    assert own["random", None, "constant"].accuracy < 60


@pytest.mark.slow
def test_the_page_and_the_figure_are_made_of_the_numbers_alone(measured):
    file = measured / "natural" / "natural.json"
    cells = read_cells(file)
    page = (measured / "natural.md").read_text(encoding="utf-8")
    assert page == make_page(cells, test_share=0.3, figure="natural/natural.png")
    ours = next(cell for cell in cells if (cell.rows, cell.epsilon, cell.method) == ("random", 4.0, OURS))
    assert f"| {ours.accuracy:.1f} |" in page
    assert "wages" in draw_figure(cells).alt
    assert (measured / "natural" / "natural.png").stat().st_size > 5000


@pytest.mark.slow
def test_what_is_measured_already_is_not_measured_again(measured, monkeypatch):
    monkeypatch.setattr(natural_study, "_rows_right", None)  # would fail if it were called
    before = (measured / "natural" / "natural.json").read_bytes()
    assert main(["reproduce", "natural", "--quick", "--rows", "one", "default", "--out", str(measured), "-q"]) == 0
    assert (measured / "natural" / "natural.json").read_bytes() == before
    assert json.loads(before)["delta"] == 1e-4


@pytest.mark.parametrize("wrong", [["--rows", "fedprox"], ["--tables", "log-wages"], ["--tables", "emnist"]])
def test_unknown_rows_and_tables_are_refused(wrong, tmp_path, capsys):
    assert main(["reproduce", "natural", *wrong, "--out", str(tmp_path)]) == 2
    assert wrong[1] in capsys.readouterr().err
