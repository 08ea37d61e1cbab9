"""Tables that differ in one client's rows give everybody else the same arrays, however cells are spelled and typed."""

import csv
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rrcluster.audit.targets import Finding
from rrcluster.errors import DataError
from rrcluster.rng import Rng, stream

# Spellings of cells; in each list, a type could be inferred from all cells together.
SPELLINGS = {
    "booleans": ["True", "False", "true", "FALSE"],
    "codes": ["01", "02", "10", "1"],
    "numbers": ["1", "2", "1.0", "2.50", "1e3", "-0", "+3", " 4 "],
    "missing": ["NA", "", "nan", "null", "None", "1"],
    "dates": ["2024-01-31", "2024-02-01 00:00:00", "31.01.2024"],
    "colours": ["red", "Red", " red", "rot,hell", 'a "quoted" one', "zwei\nZeilen", "größe", "日本", "é"],
    "amounts": ["1,000", "$5", "12%", "1_000"],
    "long": ["9007199254740993", "12345678901234567890", "0.1000000000000000055"],
}
ODD = ["unknown", "True", "01", "NA", "", "7", "7.5", "x", "2024-05-05", "é", "0x10", "1e400", "-", '"', "a\nb"]
NAMES = ["anna", "7", "007", "1.0", "NA", "true", "müller", "c,d", "null"]
NUMBERS = ["1", "2.5", "", " 4", "+1e2", "true"]
TIMES = ["3", "-1.5", "2024-01-31", "2024-02-01 10:30:00", "1e4", "2024-02-01T10:30:00Z"]
Rows = list[list[str]]
_HEADER = ["who", "x0", "x1", "x2", "number", "label", "held", "when"]


@dataclass(frozen=True)
class NeighbouringTables:
    """Rows of two populations that differ in one client, and public rules for their columns."""

    one: Rows
    other: Rows
    client: str  # the client that differs
    rules: dict[str, Any]


def draw_neighbours(seed: int) -> NeighbouringTables:
    """A population of a few clients, and the same without one of them or with other cells for it."""
    rng = stream(seed, "neighbouring tables")
    kinds = rng.choice(list(SPELLINGS), size=3).tolist()
    owners = rng.permutation(NAMES)[: rng.integers(3, 7)].tolist()
    others = [row for owner in owners[1:] for row in _rows(rng, kinds, owner)]
    rows = _rows(rng, kinds, owners[0])
    changed = [
        [row[0], *rng.choice(ODD, size=3).tolist(), rng.choice(NUMBERS), *row[-3:-1], rng.choice(TIMES)] for row in rows
    ]
    one, other = (rows + others, changed + others) if rng.random() < 0.7 else (rows + others, others)
    if rng.random() < 0.5:  # the client's position in the file
        one, other = one[::-1], other[::-1]
    names = [f"x{place}" for place in range(3)]
    rules: dict[str, Any] = {
        "categories": {name: _vocabulary(rng, kind) for name, kind in zip(names, kinds, strict=True)},
        "missing": dict.fromkeys(names, "filled") | {"number": "7"},
        "scale": {"number": (0, 10)},
        "classes": [0, 1],
    }
    test_rows = {"test_column": "held"} if rng.random() < 0.5 else {"test_share": 0.3, "features": [*names, "number"]}
    rules |= test_rows | {"time": "when"}
    if rng.random() < 0.5:
        rules = _of_cells(rng, rules)
    return NeighbouringTables(one, other, owners[0], rules)


def _of_cells(rng: Rng, rules: dict[str, Any]) -> dict[str, Any]:
    """The same rules with cell-by-cell encoding; each rule may be left out."""
    optional = ("missing", "scale", "time", "features", "test_share")
    rules = {name: rule for name, rule in rules.items() if name not in optional or rng.random() < 0.5}
    categories = {name: values for name, values in rules["categories"].items() if rng.random() < 0.3}
    dated = {name: ["year", "month", "weekday", "hour"] for name in rules.get("features", ()) if "x" in name}
    if rng.random() < 0.3 and dated:
        categories, rules = {}, {name: rule for name, rule in rules.items() if name != "missing"} | {"types": dated}
    return rules | {"encoding": "cells", "categories": categories}


def _rows(rng: Rng, kinds: list[str], owner: str) -> Rows:
    """One to three rows of a client: its name, cells, a number, a label, a test mark, a time."""
    cells = [[str(rng.choice(SPELLINGS[kind])) for kind in kinds] for _ in range(rng.integers(1, 4))]
    is_test = [False, *(rng.random() < 0.5 for _ in cells[1:])]
    marks = [str(rng.choice(["true", "1", "True"] if mark else ["false", "0", "FALSE"])) for mark in is_test]
    labels = rng.choice(["1", "0", "1.0"], size=len(cells)).tolist()
    return [
        [owner, *row, str(rng.choice(NUMBERS)), label, mark, str(rng.choice(TIMES))]
        for row, label, mark in zip(cells, labels, marks, strict=True)
    ]


def _vocabulary(rng: Rng, kind: str) -> list[str]:
    """Some of the spellings, all with different values."""
    spellings = {value.strip().lower(): value for value in rng.permutation(SPELLINGS[kind])[:3].tolist()}
    return [value for name, value in spellings.items() if name not in ("", "1.0", "nan", "-0")] or ["1"]


def write_csv(path: Path, rows: Rows) -> None:
    """The rows under a header."""
    with path.open("w", newline="", encoding="utf-8") as text:
        csv.writer(text, delimiter="\t" if path.suffix == ".tsv" else ",").writerows([_HEADER, *rows])


def client_arrays(source: Any, rules: dict[str, Any]) -> dict[str, list[bytes]]:
    """All arrays that training and testing read, by client name."""
    from rrcluster.data.frames import from_frame

    data = from_frame(source, "who", "label", **rules)
    tests = [data.test_sets[place] if place >= 0 else None for place in data.test_of]
    return {
        name: [
            *(part.tobytes() for part in data.store.client(client)),
            *(() if test is None else (test.inputs.tobytes(), test.targets.tobytes())),
        ]
        for client, (name, test) in enumerate(zip(data.clients, tests, strict=True))
    }


def check_tables(seed: int, *, count: int = 90) -> Finding:
    """Files and typed tables with and without one client's cells: other clients' arrays stay equal.

    Deterministic. Covers files (every cell as text) and data frames at fixed types; type conversions that a
    program made before it handed the frame over are not visible here.
    """
    changes = 0
    with tempfile.TemporaryDirectory() as folder:
        for number in range(count):
            pair = draw_neighbours(seed * count + number)
            sources = [Path(folder) / f"{name}{('.csv', '.tsv')[number % 2]}" for name in ("one", "other")]
            for path, rows in zip(sources, (pair.one, pair.other), strict=True):
                write_csv(path, rows)
            frames = [
                {name: list(cells) for name, cells in zip(_HEADER, zip(*rows, strict=True), strict=True)}
                for rows in (pair.one, pair.other)
            ]
            try:
                arrays = [client_arrays(source, pair.rules) for source in (sources if number % 3 else frames)]
            except DataError:
                changes += 1
                continue
            for by_client in arrays:
                by_client.pop(pair.client, None)
            changes += arrays[0] != arrays[1]
    measured = f"other clients' arrays change in {changes} of {count} pairs of tables" if changes else "holds"
    return Finding(
        "tables", "neighbouring tables", "a client's cells change no other client's arrays", measured, not changes
    )
