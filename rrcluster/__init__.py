"""Federated clustering with client-level differential privacy: proved, accounted and fast.

Public is what `__all__` lists, and nothing else: every module of the package is internal and may change.
Public names are imported when they are first used, so `import rrcluster` is instant.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rrcluster.errors import PrivacyError, UnsupportedEvent
from rrcluster.version import __version__

if TYPE_CHECKING:
    from rrcluster.data import load_dataset, load_federated
    from rrcluster.data.arrays import from_arrays, from_rows
    from rrcluster.data.frames import from_frame
    from rrcluster.methods import METHODS, Clients, Method, Tools
    from rrcluster.models.model import from_module
    from rrcluster.privacy.budget import account, calibrate
    from rrcluster.privacy.plan import PrivacyPlan
    from rrcluster.privacy.rebalancing import rebalance
    from rrcluster.privacy.reports import NoisySum, Reports
    from rrcluster.registry import MECHANISMS, register
    from rrcluster.runs.advise import advise
    from rrcluster.runs.experiment import build_experiment as experiment
    from rrcluster.runs.load import assign, load
    from rrcluster.runs.own_model import personalise
    from rrcluster.runs.own_server import Server
    from rrcluster.runs.run import run
    from rrcluster.runs.sweep import sweep
    from rrcluster.server.choice import ChoiceRules
    from rrcluster.server.server import release
    from rrcluster.simulation.simulate import simulate
    from rrcluster.types import Coordinates

_HOMES = {
    "ALGORITHMS": "rrcluster.methods:METHODS",  # their earlier names
    "Algorithm": "rrcluster.methods:Method",
    "ChoiceRules": "rrcluster.server.choice",
    "Clients": "rrcluster.methods",
    "Coordinates": "rrcluster.types",
    "METHODS": "rrcluster.methods",
    "Method": "rrcluster.methods",
    "MECHANISMS": "rrcluster.registry",
    "NoisySum": "rrcluster.privacy.reports",
    "PrivacyPlan": "rrcluster.privacy.plan",
    "Reports": "rrcluster.privacy.reports",
    "Server": "rrcluster.runs.own_server",
    "Tools": "rrcluster.methods",
    "account": "rrcluster.privacy.budget",
    "advise": "rrcluster.runs.advise",
    "assign": "rrcluster.runs.load",
    "calibrate": "rrcluster.privacy.budget",
    "experiment": "rrcluster.runs.experiment:build_experiment",
    "from_arrays": "rrcluster.data.arrays",
    "from_frame": "rrcluster.data.frames",
    "from_module": "rrcluster.models.model",
    "from_rows": "rrcluster.data.arrays",
    "load": "rrcluster.runs.load",
    "load_dataset": "rrcluster.data",
    "load_federated": "rrcluster.data",
    "personalise": "rrcluster.runs.own_model",
    "rebalance": "rrcluster.privacy.rebalancing",
    "register": "rrcluster.registry",
    "release": "rrcluster.server.server",
    "run": "rrcluster.runs.run",
    "simulate": "rrcluster.simulation.simulate",
    "sweep": "rrcluster.runs.sweep",
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
    return getattr(import_module(module), attribute or name)
