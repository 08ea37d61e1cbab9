"""Names that settings take: what is unknown, what may be added, and what became of settings that are gone."""

import contextlib
import importlib
from importlib.util import find_spec
from types import SimpleNamespace

import pytest

import rrcluster as rr
from rrcluster import methods, registry
from rrcluster.cli import main
from rrcluster.errors import ConfigError
from rrcluster.models import make_model
from rrcluster.privacy.plan import PrivacyPlan
from rrcluster.registry import Entry, Registry
from rrcluster.runs.config import from_flat
from rrcluster.settings import (
    AFFECTS,
    FIELDS,
    REMOVED,
    SECTIONS,
    DataSettings,
    MethodSettings,
    PrivacySettings,
    without_removed,
)
from rrcluster.types import Coordinates


@pytest.fixture
def added():
    """Register something for one test."""
    names = []

    def add(kind, name, load, **about):
        registry.register(kind, name, load, **about)
        names.append((kind, name))

    yield add
    for kind, name in names:
        registry.KINDS[kind].unregister(name)


UNKNOWN = {
    "method": (lambda: MethodSettings(algorithm="icfa"), r"algorithm = 'icfa' is not known; did you mean .*\bifca\b"),
    "model": (lambda: MethodSettings(model="edge"), r"model = 'edge' is not known; did you mean .*\bedges\b"),
    "dataset": (lambda: DataSettings(data="emnst"), r"data = 'emnst' is not known; did you mean .*\bemnist\b"),
    "mechanism": (lambda: PrivacySettings(mechanism="join"), r"mechanism = 'join' is not known; did you mean joint"),
    "far": (
        lambda: PrivacySettings(mechanism="laplace"),
        "mechanism = 'laplace' is not known; choose one of joint, identifier, none",
    ),
    "no text": (lambda: PrivacySettings(mechanism=3), "mechanism = 3 is not known; choose one of"),
    "flat": (lambda: from_flat({"algorithm": "fedavgg"}), r"algorithm = 'fedavgg' is not known; did you mean fedavg"),
    "plan": (
        lambda: PrivacyPlan.build(
            coordinates=Coordinates(0, 1), num_clients=10, num_clusters=1, mechanism="identifer", noise_multiplier=1.0
        ),
        r"mechanism = 'identifer' is not known; did you mean identifier",
    ),
    "kind": (lambda: rr.register("engine", "mine", object()), "kind = 'engine' is not known; choose one of method"),
}


@pytest.mark.parametrize(("ask", "text"), UNKNOWN.values(), ids=UNKNOWN.keys())
def test_an_unknown_name_is_refused_with_the_near_ones(ask, text):
    with pytest.raises(ConfigError, match=text):
        ask()


@pytest.mark.parametrize("kind", registry.KINDS)
def test_every_name_loads_what_it_names(kind):
    for name in registry.KINDS[kind]:
        if name != "flower" or find_spec("flwr"):  # which has an environment of its own
            assert registry.KINDS[kind].load(name) is not None, name


@pytest.mark.parametrize("kind", registry.KINDS)
def test_a_name_can_be_registered_once_and_taken_out(kind):
    names, thing = registry.KINDS[kind], object()
    before = list(names)
    rr.register(kind, "my-own", thing, label="My own", usual_model="mlp")
    try:
        assert "my-own" in names
        assert names.load("my-own") is thing
        assert names.label("my-own") == "My own"
        assert names.fact("my-own", "usual_model") == "mlp"
        assert names.fact("my-own", "else", 7) == 7
        assert "my-own" in names.hint("x")
        for taken in ("my-own", before[0]):
            with pytest.raises(ConfigError, match=f"'{taken}' is registered already; choose another name"):
                rr.register(kind, taken, object())
    finally:
        names.unregister("my-own")
    assert list(names) == before
    names.unregister("my-own")  # once more is no mistake
    with pytest.raises(ConfigError, match="is not known"):
        names.load("my-own")


def test_what_is_not_known_is_labelled_by_its_name_and_has_no_facts():
    """Reports read folders of versions that had other names."""
    for names in registry.KINDS.values():
        assert names.label("r-dpcfl") == "r-dpcfl"
        assert names.fact("r-dpcfl", "usual_model", "linear") == "linear"


def test_labels_are_those_of_the_paper():
    labels = [registry.METHODS.label(name) for name in ("ifca", "fedavg", "mr-mtl", "local")]
    assert labels == ["IFCA", "FedAvg", "MR-MTL", "Local training"]
    assert registry.DATASETS.label("cifar10") == "CIFAR-10"
    for names in (registry.METHODS, registry.DATASETS):
        assert len({names.label(name) for name in names}) == len(list(names))


def test_a_text_is_where_to_import_from_and_a_mapping_has_it_by_name(added):
    added("model", "by-attribute", "rrcluster.errors:ConfigError")
    assert registry.MODELS.load("by-attribute") is ConfigError
    added("model", "pld", "rrcluster.privacy.accounting:ACCOUNTANTS")
    accounting = importlib.import_module("rrcluster.privacy.accounting")
    assert registry.MODELS.load("pld") is accounting.ACCOUNTANTS["pld"]


def test_a_registered_method_is_as_good_as_ours(added):
    mine = SimpleNamespace(num_clusters=lambda k: k, name="mine")
    added("method", "mine", mine, label="Mine", chooses_by_loss=True)
    assert rr.METHODS["mine"] is mine
    assert "mine" in rr.METHODS
    assert MethodSettings(algorithm="mine").algorithm == "mine"
    assert from_flat({"algorithm": "mine"}).method.algorithm == "mine"


def test_a_registered_dataset_names_its_usual_model(added):
    added("dataset", "my-digits", object(), usual_model="mlp", num_classes=10)
    assert from_flat({"data": "my-digits"}).method.model == "mlp"


def test_a_registered_mechanism_makes_plans(added):
    from rrcluster.privacy.joint import JOINT

    added("mechanism", "joint-too", JOINT)
    known = {"coordinates": Coordinates(0, 1), "num_clients": 100, "num_clusters": 2, "noise_multiplier": 1.0}
    assert PrivacyPlan.build(mechanism="joint-too", **known) == PrivacyPlan.build(mechanism="joint", **known)


def test_names_of_other_packages_are_found_when_they_are_first_asked_for(monkeypatch):
    asked = []
    theirs = Entry("theirs", 3, "Theirs")
    ours = Entry("ours", 1, "Ours")

    def entry_points(*, group):
        asked.append(group)
        found = (theirs, Entry("ours", 2, "Not ours"))
        return [SimpleNamespace(load=lambda entry=entry: entry) for entry in found]

    monkeypatch.setattr("importlib.metadata.entry_points", entry_points)
    names = Registry("thing", "rrcluster.things", (ours,))
    assert asked == []
    assert list(names) == ["ours", "theirs"]
    assert (names.load("ours"), names.load("theirs")) == (1, 3)  # nobody replaces a name of ours
    assert asked == ["rrcluster.things"]


@pytest.mark.parametrize("name", REMOVED)
def test_a_setting_that_is_gone_gives_the_way_out(name):
    with pytest.raises(ConfigError, match=f"my.yaml: setting '{name}' is gone: ") as refused:
        from_flat({name: "coin"}, source="my.yaml")
    assert REMOVED[name] in str(refused.value)
    assert name not in FIELDS


def test_folders_of_an_earlier_version_are_read_without_what_is_gone():
    old = {
        "rebalance": "auto",
        "sampling": "poisson",
        "adjacency": "add-remove",
        "identifier_loss_bound": 1.0,
        "seed": 3,
    }
    assert without_removed(old) == {"seed": 3}
    assert from_flat(without_removed(old)).seed == 3


def test_every_setting_is_declared_once_with_a_help_text_and_what_it_affects():
    from inspect import getsource

    names = [name for kind in SECTIONS.values() for name in kind.__dataclass_fields__]
    assert len(names) == len(set(names)) == len(FIELDS) == len(AFFECTS)
    assert set(AFFECTS.values()) == {"result", "place", "display"}
    for kind in SECTIONS.values():
        declared = getsource(kind).split("def __post_init__")[0]
        assert declared.count('"""') == 2 * (1 + len(kind.__dataclass_fields__)), kind


def test_facts_of_methods_and_models_say_what_they_do():
    """Facts are read before anything is loaded; here against what is loaded."""
    shallow = make_model("linear", input_shape=(4,), num_classes=3)
    deep = make_model("mlp", input_shape=(4,), num_classes=3)
    for name in methods.OURS:
        method = registry.METHODS.load(name)
        memoryless = registry.METHODS.fact(name, "memoryless")
        if memoryless is not None:
            assert method.memory_width(deep) > 0
            assert registry.METHODS.load(memoryless).memory_width(deep) == 0
        splits = registry.METHODS.fact(name, "splits_network", False)
        with pytest.raises(ConfigError, match="single layer") if splits else contextlib.nullcontext():
            usual = registry.METHODS.fact(name, "usual_model")
            method.split(method.adapt(make_model(usual, input_shape=(4,), num_classes=3) if usual else shallow))
        assert registry.METHODS.fact(name, "reads_cells", False) == method.asks
    for name in registry.MODELS:
        if (other := registry.MODELS.fact(name, "deeper")) is not None:
            assert registry.MODELS.fact(other, "deeper") is None
            assert other in registry.MODELS


@pytest.mark.parametrize(
    ("data", "method", "model"),
    [
        ("fashion-mini", "fedper", "edges-mlp"),
        ("emnist", "ifca-shared", "edges-mlp"),
        ("synthetic", "fedper", "mlp"),
        ("shakespeare", "fedper", "lstm"),
        ("fashion-mini", "fedavg", "edges"),
    ],
)
def test_the_usual_model_depends_on_the_method(data, method, model):
    assert from_flat({"data": data, "algorithm": method}).method.model == model
    assert from_flat({"data": data, "algorithm": method, "model": "linear"}).method.model == "linear"


def test_a_method_gives_way_to_its_memoryless_form_where_memory_is_not_covered():
    for mechanism, expected in (("joint", "fesem"), ("identifier", "fesem-memoryless"), ("none", "fesem")):
        config = from_flat({"algorithm": "fesem", "mechanism": mechanism})
        assert config.method.algorithm == expected
        assert config.resolved() == config


def test_a_name_of_a_distribution_that_is_not_installed_says_which(capsys, monkeypatch):
    for kind, name in (("command", "reproduce"), ("model", "cnn")):
        monkeypatch.delitem(registry.KINDS[kind]._all(), name)
        with pytest.raises(ConfigError, match=rf"'{name}' comes with rrcluster-research; install it with `pip"):
            registry.KINDS[kind].load(name)
    assert main(["reproduce"]) == 2
    assert capsys.readouterr().err.startswith("rrcluster: command = 'reproduce' comes with rrcluster-research")
