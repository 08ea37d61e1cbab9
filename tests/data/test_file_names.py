"""The end of a file's name says how its columns are separated."""

import pytest

from rrcluster.data.frames import load_table
from rrcluster.settings import ColumnSettings

ROWS = [
    ("who", "a", "label"),
    *((f"c{number // 3}", str(number), "yes" if number % 2 else "no") for number in range(9)),
]


@pytest.mark.parametrize(
    ("name", "separator"), [("x.csv", ","), ("x.tsv", "\t"), ("my.tsv.csv", ","), ("my.csv.tsv", "\t"), ("x.TSV", "\t")]
)
def test_the_last_ending_counts(name, separator, tmp_path):
    (tmp_path / name).write_text("\n".join(separator.join(row) for row in ROWS) + "\n")
    columns = ColumnSettings(client="who", target="label", classes=("no", "yes"))
    assert load_table(str(tmp_path / name), columns=columns).num_clients == 3
