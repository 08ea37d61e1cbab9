import rrcluster as rr

PUBLIC = {
    "MECHANISMS",
    "METHODS",
    "ChoiceRules",
    "Clients",
    "Coordinates",
    "Method",
    "NoisySum",
    "PrivacyError",
    "PrivacyPlan",
    "RRClusterClassifier",
    "RRClusterRegressor",
    "Reports",
    "Server",
    "Tools",
    "UnsupportedEvent",
    "__version__",
    "account",
    "advise",
    "assign",
    "calibrate",
    "experiment",
    "from_arrays",
    "from_frame",
    "from_module",
    "from_rows",
    "load",
    "load_dataset",
    "load_federated",
    "personalise",
    "rebalance",
    "register",
    "release",
    "run",
    "simulate",
    "sweep",
}


def test_the_public_names_are_these():
    assert set(rr.__all__) == PUBLIC


def test_every_public_name_is_there():
    for name in PUBLIC:
        assert getattr(rr, name) is not None
    assert not hasattr(rr, "nonsense")
    assert (rr.Algorithm, rr.ALGORITHMS) == (rr.Method, rr.METHODS)  # their earlier names


def test_no_public_function_is_hidden_by_a_module_of_its_name():
    import importlib
    import pkgutil

    for found in pkgutil.iter_modules(rr.__path__):
        importlib.import_module(f"rrcluster.{found.name}")
    for name in ("account", "assign", "calibrate", "load", "rebalance", "register", "release", "run", "simulate"):
        assert callable(getattr(rr, name)), name


def test_registries_hold_what_the_command_line_offers():
    from typing import get_args, get_type_hints

    from rrcluster_research.deep_networks import NETWORKS

    from rrcluster import registry
    from rrcluster.data.build import PARTITIONS
    from rrcluster.data.catalogue import SOURCES
    from rrcluster.methods import OURS
    from rrcluster.models import OURS as MODELS
    from rrcluster.privacy.accounting import ACCOUNTANTS
    from rrcluster.privacy.identifier import IDENTIFIERS
    from rrcluster.settings import DataSettings, PrivacySettings, ServerSettings

    def offered(section, name):
        return set(get_args(get_type_hints(section)[name]))

    assert set(registry.METHODS) == set(rr.METHODS) == set(OURS)
    assert set(registry.MECHANISMS) == set(rr.MECHANISMS) == {"joint", "identifier", "none"}
    assert set(registry.MODELS) == set(MODELS) | set(NETWORKS)
    assert set(registry.DATASETS) == set(SOURCES)
    assert all(OURS[name].chooses_by_loss == registry.METHODS.fact(name, "chooses_by_loss", False) for name in OURS)
    assert offered(PrivacySettings, "identifier") == set(IDENTIFIERS)
    assert offered(PrivacySettings, "accountant") == set(ACCOUNTANTS)
    assert offered(DataSettings, "partition") == set(PARTITIONS)
    assert offered(ServerSettings, "init") == {"auto", "independent", "survey"}


def test_error_tree():
    from rrcluster import errors

    assert issubclass(rr.UnsupportedEvent, rr.PrivacyError)
    assert issubclass(rr.PrivacyError, errors.ConfigError)
    assert issubclass(errors.RunFolderError, ValueError)
