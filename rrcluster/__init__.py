"""Federated clustering with client-level differential privacy: proved, accounted and fast.

The public interface is `__all__`: every module of the package is internal and may change. Public names are imported on
first use, so `import rrcluster` is instant.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rrcluster.errors import PrivacyError, UnsupportedEvent

__version__ = "0.2.0.dev0"

if TYPE_CHECKING:
    from rrcluster.data.arrays import from_arrays, from_rows
    from rrcluster.data.build import load_dataset, load_federated
    from rrcluster.data.frames import from_frame
    from rrcluster.methods import METHODS, Clients, Method, Tools
    from rrcluster.models.model import from_module
    from rrcluster.privacy.budget import account, calibrate
    from rrcluster.privacy.plan import PrivacyPlan
    from rrcluster.privacy.rebalancing import rebalance
    from rrcluster.privacy.reports import NoisySum, Reports
    from rrcluster.registry import MECHANISMS, register
    from rrcluster.runs.advise import advise
    from rrcluster.runs.estimator import RRClusterClassifier, RRClusterRegressor
    from rrcluster.runs.experiment import build_experiment as experiment
    from rrcluster.runs.load import assign, load, personalise
    from rrcluster.runs.own_server import Server
    from rrcluster.runs.run import run
    from rrcluster.runs.sweep import sweep
    from rrcluster.server.choice import ChoiceRules
    from rrcluster.server.server import release
    from rrcluster.simulation.simulate import simulate
    from rrcluster.types import Coordinates

_MODULES = {
    "data.arrays": ("from_arrays", "from_rows"),
    "data.build": ("load_dataset", "load_federated"),
    "data.frames": ("from_frame",),
    "methods": ("METHODS", "Clients", "Method", "Tools"),
    "models.model": ("from_module",),
    "privacy.budget": ("account", "calibrate"),
    "privacy.plan": ("PrivacyPlan",),
    "privacy.rebalancing": ("rebalance",),
    "privacy.reports": ("NoisySum", "Reports"),
    "registry": ("MECHANISMS", "register"),
    "runs.advise": ("advise",),
    "runs.estimator": ("RRClusterClassifier", "RRClusterRegressor"),
    "runs.load": ("assign", "load", "personalise"),
    "runs.own_server": ("Server",),
    "runs.run": ("run",),
    "runs.sweep": ("sweep",),
    "server.choice": ("ChoiceRules",),
    "server.server": ("release",),
    "simulation.simulate": ("simulate",),
    "types": ("Coordinates",),
}
_HOMES = {name: f"{module}:{name}" for module, names in _MODULES.items() for name in names} | {
    "experiment": "runs.experiment:build_experiment",
    "ALGORITHMS": "methods:METHODS",  # their earlier names
    "Algorithm": "methods:Method",
}

__all__ = [
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
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'rrcluster' has no attribute {name!r}")
    module, _, attribute = _HOMES[name].partition(":")
    return getattr(import_module(f"rrcluster.{module}"), attribute)
