"""Comparisons, verdicts and tables of a reproduction, from run folders written by hand."""

import json

import numpy as np
import pytest
from rrcluster_research.paper_figures import draw_lines_of
from rrcluster_research.paper_report import make_reproduction, write_verdicts
from rrcluster_research.paper_tables import main_tables, more_tables
from rrcluster_research.read_reproduction import (
    MeasuredCell,
    MeasuredColumn,
    MeasuredRow,
    Reproduced,
    read_reproduction,
)
from rrcluster_research.verdicts import FAILS, HOLDS, PARTLY, UNKNOWN, CellCount, compare, holm, verdict
from safetensors.numpy import save_file
from scipy.stats import ttest_rel

from rrcluster.errors import RunFolderError
from rrcluster.report.folders import read_run

CLAIM = {
    "text": "RR improves on IFCA",
    "where": "table:x",
    "mechanism": "joint",
    "pairs": [["rr", "ifca"]],
    "measure": None,
    "needs": "all",
}


def test_the_paired_test_is_students():
    """Differences 1, 2, 3 points: mean 2, standard error 1/sqrt(3), t = 2 sqrt(3) with 2 degrees of freedom."""
    worse = {0: 0.50, 1: 0.60, 2: 0.40}
    better = {0: 0.51, 1: 0.62, 2: 0.43, 9: 0.99}  # seed 9 has nothing to be paired with
    found = compare(better, worse, measure="accuracy")
    assert found.difference.mean == pytest.approx(0.02)
    assert found.difference.count == 3
    expected = ttest_rel([0.51, 0.62, 0.43], [0.50, 0.60, 0.40], alternative="greater").pvalue
    assert found.p_higher == pytest.approx(expected)
    assert found.p_higher == pytest.approx(0.0371, abs=1e-4)
    assert found.p_lower == pytest.approx(1 - expected)
    assert compare(worse, better, measure="accuracy").p_higher == pytest.approx(1 - expected)
    assert compare(worse, better, measure="loss").p_higher == pytest.approx(expected)  # lower is better
    assert compare({0: 0.5}, {0: 0.4}, measure="accuracy") is None
    assert compare({0: 0.5, 1: 0.5}, {0: 0.5, 1: 0.5}, measure="accuracy").p_higher == 0.5
    assert compare({0: 1.0, 1: 1.0}, {0: 0.5, 1: 0.5}, measure="accuracy").p_higher == 0.0


def test_holm_by_hand():
    """0.01 x 3, then max(0.03, 0.02 x 2), then max(0.04, 0.03 x 1), in the order given."""
    assert holm([0.02, 0.01, 0.03]) == pytest.approx([0.04, 0.03, 0.04])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


@pytest.mark.parametrize(
    ("counted", "needs", "expected"),
    [
        (CellCount(2, (), 0, 0), "all", UNKNOWN),
        (CellCount(2, (0.1, 0.1), 2, 0), "all", HOLDS),
        (CellCount(3, (0.1, 0.1), 2, 0), "all", PARTLY),  # a cell is not measured yet
        (CellCount(2, (0.1, 0.1), 0, 0), "all", PARTLY),  # better everywhere, but chance could do that
        (CellCount(2, (0.1, -0.1), 1, 0), "all", PARTLY),
        (CellCount(2, (0.1, -0.1), 0, 0), "all", FAILS),
        (CellCount(2, (0.0003, 0.0003), 0, 0, least=0.0005), "all", FAILS),  # 0.0 points
        (CellCount(2, (0.0003, 0.0003), 1, 0, least=0.0005), "all", PARTLY),  # but not by chance
        (CellCount(2, (0.1, -0.1), 1, 1), "some", HOLDS),
        (CellCount(2, (0.1, -0.1), 0, 0), "some", PARTLY),
        (CellCount(2, (-0.1, -0.1), 0, 2), "some", FAILS),
        (CellCount(2, (-0.1, 0.1), 0, 0), "not worse", HOLDS),
        (CellCount(2, (-0.1, 0.1), 0, 1), "not worse", PARTLY),
        (CellCount(2, (-0.1, -0.1), 0, 2), "not worse", FAILS),
    ],
)
def test_verdicts(counted, needs, expected):
    assert verdict(counted, needs) == expected


@pytest.fixture
def folder(tmp_path, run_folder):
    """Two methods at epsilon 2 under joint, three seeds; one that is refused under identifier."""
    rows = []
    for key, name, accuracy, published in (("ifca", "DP-IFCA", 0.60, 62.68), ("rr", "RR", 0.70, 65.69)):
        for seed in range(3):
            path = tmp_path / "fashion" / "eps2" / f"{key}-joint" / f"seed-{seed}"
            size = {"min_cluster_size": 20, "rebalance": "coin"} if key == "rr" else {}
            run_folder(path, accuracy=accuracy + 0.001 * seed * len(key), seed=seed, epsilon=2.0, **size)
            (path / "models.safetensors").write_bytes(b"")
        cells = {
            "eps2": {
                "identifier": {"folder": None, "reason": "refused: no proof"},
                "joint": {"folder": f"eps2/{key}-joint", "reason": None},
            }
        }
        told = {"identifier": "refused", "joint": "algorithm = ifca"}
        row = {"key": key, "name": name, "reference": False, "published": {"eps2": published}, "settings": told}
        rows.append(row | {"cells": cells})
    column = {"key": "eps2", "panel": "Balanced", "epsilon": 2.0, "mechanisms": ["identifier", "joint"], "title": None}
    about = {
        "name": "fashion",
        "title": "A table",
        "source": "table:x",
        "measure": "accuracy",
        "quick": None,
        "seeds": [0, 1, 2],
        "changes": {},
        "choices": ["T = 12"],
        "shared": "num_rounds = 12",
        "columns": [column],
        "rows": rows,
        "constant": {"eps2": [0.1, 0.1, 0.1]},
        "pairs": [["rr", "ifca", "joint"]],
        "claims": [CLAIM],
        "figures": [],
        "spotlights": [],
        "absent": {"cifar100": "cifar100 is <not> here. To get it, look."},
    }
    (tmp_path / "fashion" / "reproduction.json").write_text(json.dumps(about))
    return tmp_path / "fashion"


def test_the_table_has_three_columns_and_bold_where_intervals_allow(folder):
    main, significance = main_tables(read_reproduction(folder))
    assert main.columns == ("Method", "epsilon 2, published", "epsilon 2, identifier", "epsilon 2, joint (ours)")
    assert main.rows == (
        ("DP-IFCA", "62.68", "(1)", "60.4 ± 1.0"),
        ("RR", "65.69", "(1)", "70.2 ± 0.5"),
        ("Constant predictor", "–", "–", "10.0"),
    )
    assert main.bold == {(1, 3)}
    assert "(1) refused: no proof." in main.note
    assert significance.rows[0][:3] == ("RR against DP-IFCA", "joint", "Balanced, epsilon 2")
    assert significance.rows[0][4].startswith("+9.8 ± ")
    assert [table.title for table in more_tables(read_reproduction(folder))] == [
        "Balanced: clustering accuracy (%)",
        "Balanced: worst decile (%)",
        "Settings of the rows",
    ]


def test_a_seed_that_is_missing_is_told(folder):
    (folder / "eps2" / "rr-joint" / "seed-2" / "models.safetensors").unlink()
    (main, *_) = main_tables(read_reproduction(folder))
    assert main.rows[1][3].endswith("[2 of 3 seeds]")


def test_the_page_tells_what_is_missing_and_escapes_it(folder):
    report = make_reproduction(folder)
    page = report.page.read_text()
    assert "<strong>Not run:</strong> cifar100 is &lt;not&gt; here. To get it" in page  # the reason alone, once
    assert "\nNot run: cifar100 is <not> here. To get it" in report.table.read_text()
    assert "rrcluster reproduce fashion --seeds 0 1 2" in page
    assert "41.25" not in report.table.read_text()  # no times
    assert "T = 12" in report.table.read_text()


def test_verdicts_come_from_what_there_is(folder):
    others = {"emnist": [CLAIM | {"text": "Another"}], "fashion": [CLAIM]}
    text = write_verdicts(folder / "verdicts.md", folder.parent.iterdir(), quick=False, claims=others).read_text()
    assert "| Another | emnist: table:x | joint | none yet | not yet measured |" in text
    assert "better in 1 of 1 cells, significantly in 1, significantly worse in 0" in text
    assert "published numbers: 1 of 1 cells | holds |" in text
    text = write_verdicts(folder / "quick.md", [folder], quick=True, claims=others).read_text()
    assert text.count("not yet measured") == 2


def test_a_damaged_description_is_told(folder):
    (folder / "reproduction.json").write_text('{"columns": 3}')
    with pytest.raises(RunFolderError, match="a field is missing"):
        read_reproduction(folder)


def test_learnt_lines_come_from_the_models_of_the_runs(tmp_path, run_folder):
    def row(name, **arrays):
        run = read_run(run_folder(tmp_path / name, data="synthetic-balanced-easy", mechanism="none", epsilon=None))
        save_file(arrays, run.path / "models.safetensors")
        return MeasuredRow(name, name, False, {}, {}, {("easy", "none"): MeasuredCell({0: run}, None)})

    nothing = np.zeros(0, dtype=np.float32)
    one = row("FedAvg", shared=np.ones(2, dtype=np.float32), clustered=np.zeros((1, 0), dtype=np.float32))
    four = row("IFCA", shared=nothing, clustered=np.ones((4, 2), dtype=np.float32))
    column = MeasuredColumn("easy", "No noise", None, ("none",), "balanced, easy")
    (drawing,) = draw_lines_of(Reproduced(tmp_path, {}, (column,), (one, four)))
    assert "models of FedAvg, IFCA drawn over them, one row each for balanced, easy" in drawing.alt
    unfinished = MeasuredRow("RR", "RR", False, {}, {}, {("easy", "none"): MeasuredCell({}, None)})
    assert draw_lines_of(Reproduced(tmp_path, {}, (column,), (one, unfinished))) == []
