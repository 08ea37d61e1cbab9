"""Plays by speaking role, on a table the test writes; on the real one where it is."""

import gzip
import hashlib
import pickle
from dataclasses import replace

import numpy as np
import pytest

from rrcluster.data.build import load_federated
from rrcluster.data.catalogue import SOURCES
from rrcluster.data.shakespeare import VOCABULARY, Role, Windows, by_role, load_shakespeare, parse_plays
from rrcluster.data.sources import Unexpected, locate
from rrcluster.errors import ConfigError, DataError

TABLE = b"play\tspeaker\tspeech\tline\nA\tX\t1\tab\nA\tY\t2\tc!\nA\tX\t3\td\nB\tX\t1\tz\n"


def spelled(ids):
    return "".join(VOCABULARY[i] for i in ids)


def test_the_vocabulary():
    assert len(VOCABULARY) == len(set(VOCABULARY)) == 80
    assert sorted(VOCABULARY) == list(VOCABULARY)


def test_roles_by_hand():
    roles = parse_plays(TABLE)
    assert [(role.play, role.speaker, spelled(role.text)) for role in roles] == [
        ("A", "X", "ab\nd\n"),
        ("A", "Y", "c!\n"),
        ("B", "X", "z\n"),
    ]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "the columns play"),
        (b"a\tb\n", "the columns play"),
        (TABLE + b"A\tX\tonly three\n", "4 columns of ASCII in row 6"),
        (TABLE + b"A\tX\t1\tsha$l\n", "characters of the vocabulary in row 6"),
        (TABLE + "A\tX\t1\té\n".encode(), "4 columns of ASCII in row 6"),
        (TABLE + b"\n", "4 columns of ASCII in row 6"),
    ],
)
def test_tables_that_do_not_fit(content, expected):
    with pytest.raises(Unexpected, match=expected):
        parse_plays(content)


def test_windows_by_hand():
    part = Windows(np.arange(85, dtype=np.uint8) % 80, 10)
    assert part.count == 5
    assert part.inputs()[4].tolist() == [*range(4, 80), 0, 1, 2, 3]
    assert part.targets().tolist() == [0, 1, 2, 3, 4]
    fewer = Windows(np.arange(280, dtype=np.uint8) % 80, 4)
    assert fewer.starts().tolist() == [0, 50, 100, 150]
    assert fewer.inputs().shape == (4, 80)


@pytest.fixture
def roles(rng):
    """Ten roles of 400 to 4,000 characters."""
    return tuple(Role("play", f"role {i}", rng.integers(80, size=400 * (i + 1)).astype(np.uint8)) for i in range(10))


def test_a_population_of_roles(roles, rng):
    data = by_role("plays", roles, num_clients=5, rng=rng, most_windows=(1000, 200))
    assert (data.num_classes, data.input_shape, data.num_groups) == (80, (80,), 0)
    assert data.test_of.tolist() == [0, 1, 2, 3, 4]
    cohort = data.cohort([0, 1, 2, 3, 4])
    assert cohort.inputs.dtype == cohort.targets.dtype == np.int64
    lengths = {len(role.text): role.text for role in roles}
    for client in range(5):
        text = next(t for t in lengths.values() if np.array_equal(t[:80], cohort.inputs[client, 0]))
        cut = len(text) * 4 // 5
        size = int(data.sizes[client])
        assert len(text) >= 1000
        assert size == min(1000, cut - 80)
        assert cohort.targets[client, 0] == text[80]
        assert not cohort.inputs[client, size:].any()
        tests = data.test_sets[client]
        assert len(tests.targets) == len(tests.inputs) == min(200, len(text) - cut - 80)
        assert tests.inputs[0].tolist() == text[cut : cut + 80].tolist()
        assert tests.targets[0] == text[cut + 80]
    assert np.array_equal(pickle.loads(pickle.dumps(data)).cohort([3]).inputs, data.cohort([3]).inputs)


def test_roles_without_enough_text(roles, rng):
    with pytest.raises(ConfigError, match="num_clients = 9 is more than the 8 roles with at least 1000 characters"):
        by_role("plays", roles, num_clients=9, rng=rng)
    with pytest.raises(
        ConfigError, match="least_characters = 400 leaves a part without a window; ask for at least 401"
    ):
        by_role("plays", roles, num_clients=2, least_characters=400, rng=rng)
    least = by_role(
        "plays", (Role("a", "b", np.zeros(401, dtype=np.uint8)),), num_clients=1, least_characters=401, rng=rng
    )
    assert len(least.test_sets[0].targets) == 1


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A table that the catalogue knows as the real one."""
    rows = [f"Play\tROLE {i % 3}\t{i}\tTo be, or not to be: line {i}" for i in range(300)]
    content = "\n".join(["play\tspeaker\tspeech\tline", *rows, ""]).encode()
    path = tmp_path / "shakespeare_plays.tsv.gz"
    path.write_bytes(gzip.compress(content))
    (file,) = SOURCES["shakespeare"].files
    known = replace(file, sha256=hashlib.sha256(content).hexdigest(), bytes=len(content))
    monkeypatch.setitem(SOURCES, "shakespeare", replace(SOURCES["shakespeare"], files=(known,)))
    return path


def test_load_federated_by_role(small):
    data = load_federated("shakespeare", num_clients=3, seed=0, folder=small.parent)
    assert data.num_clients == 3
    assert spelled(data.cohort([0]).inputs[0, 0]).startswith("To be, or not to be: line ")


@pytest.mark.parametrize("partition", ["rotation", "dirichlet", "label-flip"])
def test_plays_are_divided_by_role_only(partition):
    with pytest.raises(ConfigError, match=f"'{partition}' cannot divide shakespeare; choose one of role"):
        load_federated("shakespeare", num_clients=3, seed=0, partition=partition)
    with pytest.raises(ConfigError, match="'role' cannot divide fashion-mini; choose one of rotation"):
        load_federated("fashion-mini", num_clients=3, seed=0, partition="role")


def test_damaged_tables_are_named(small):
    good = small.read_bytes()
    content = gzip.decompress(good)
    contents = {
        "damaged": good[:-20],
        "sha256": content[:-40] + b"x" + content[-39:],
        "columns": content[:-3] + b"\n\n\n",
        "at most": content + b"more",
        "4 columns": b"play\tspeaker\tspeech\tline\nonly one",
    }
    for expected, bad in contents.items():
        small.write_bytes(bad)
        with pytest.raises(DataError, match=expected) as error:
            load_shakespeare(small.parent)
        assert str(small) in str(error.value)
        assert "jlansner/Shakespeare" in str(error.value)


def test_the_real_plays():
    try:
        locate("shakespeare")
    except DataError as missing:
        pytest.skip(f"needs the real file: {missing}")
    roles = load_shakespeare()
    assert len(roles) == 1382
    assert len({role.play for role in roles}) == 37
    assert [sum(len(role.text) >= least for role in roles) for least in (1000, 2000, 5000)] == [638, 447, 265]
    assert len(np.unique(np.concatenate([role.text for role in roles]))) == 70  # 69 and the newline
    data = load_federated("shakespeare", partition="role", num_clients=300, seed=0)
    assert (data.sizes.min() >= 720, data.sizes.max()) == (True, 2000)
    assert min(len(test.targets) for test in data.test_sets) >= 120


def test_the_same_table_is_parsed_once_and_its_texts_cannot_be_changed():
    table = b"play\tspeaker\tspeech\tline\nA\tFOOL\t1\tHo ho\nA\tFOOL\t2\tHa\n"
    (role,) = parse_plays(table)
    assert parse_plays(bytes(bytearray(table)))[0] is role
    with pytest.raises(ValueError, match="read-only"):
        role.text[0] = 1
    (other,) = parse_plays(table.replace(b"FOOL", b"KING"))
    assert (other.speaker, role.speaker) == ("KING", "FOOL")
