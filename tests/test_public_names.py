import rrcluster as rr

PUBLIC = {
    "ALGORITHMS",
    "Algorithm",
    "MECHANISMS",
    "PrivacyError",
    "PrivacyPlan",
    "UnsupportedEvent",
    "__version__",
    "account",
    "advise",
    "assign",
    "calibrate",
    "load",
    "rebalance",
    "release",
    "run",
    "simulate",
}


def test_the_public_names_are_these():
    assert set(rr.__all__) == PUBLIC


def test_every_public_name_is_there():
    for name in PUBLIC:
        assert getattr(rr, name) is not None
    assert not hasattr(rr, "nonsense")


def test_no_public_function_is_hidden_by_a_module_of_its_name():
    import importlib
    import pkgutil

    for found in pkgutil.iter_modules(rr.__path__):
        importlib.import_module(f"rrcluster.{found.name}")
    for name in ("account", "assign", "calibrate", "load", "rebalance", "release", "run", "simulate"):
        assert callable(getattr(rr, name)), name


def test_registries_hold_what_the_command_line_offers():
    from typing import get_args, get_type_hints

    from rrcluster.data.build import PARTITIONS
    from rrcluster.data.sources import SOURCES
    from rrcluster.engine.pick_engine import ENGINES
    from rrcluster.experiments.sections import DataConfig, MethodConfig, OutputConfig, PrivacyConfig
    from rrcluster.models import MODELS
    from rrcluster.privacy.accounting import ACCOUNTANTS
    from rrcluster.privacy.rules import IDENTIFIERS, REBALANCINGS

    def offered(section, name):
        return set(get_args(get_type_hints(section)[name]))

    assert offered(MethodConfig, "algorithm") == set(rr.ALGORITHMS)
    assert offered(PrivacyConfig, "mechanism") == set(rr.MECHANISMS)
    assert offered(MethodConfig, "model") == {"auto", *MODELS}
    assert offered(MethodConfig, "rebalance") == set(REBALANCINGS)
    assert offered(PrivacyConfig, "identifier") == set(IDENTIFIERS)
    assert offered(PrivacyConfig, "accountant") == set(ACCOUNTANTS)
    assert offered(DataConfig, "data") == set(SOURCES)
    assert {source.usual_model for source in SOURCES.values()} <= set(MODELS)
    assert offered(DataConfig, "partition") == set(PARTITIONS)
    assert offered(OutputConfig, "engine") == set(ENGINES)


def test_error_tree():
    from rrcluster import errors

    assert issubclass(rr.UnsupportedEvent, rr.PrivacyError)
    assert issubclass(rr.PrivacyError, errors.ConfigError)
    assert issubclass(errors.RunFolderError, ValueError)
