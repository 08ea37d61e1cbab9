"""Federated clustering with client-level differential privacy: proved, accounted and fast.

Public names are imported when they are first used, so `import rrcluster` is instant.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rrcluster.errors import PrivacyError, UnsupportedEvent
from rrcluster.version import __version__

if TYPE_CHECKING:
    from rrcluster.data.arrays import from_arrays
    from rrcluster.data.frames import from_frame
    from rrcluster.methods import ALGORITHMS, Method
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
    from rrcluster.runs.own_server import AddOnServer as Server
    from rrcluster.runs.run import run
    from rrcluster.server.server import release
    from rrcluster.simulation.simulate import simulate

_HOMES = {
    "ALGORITHMS": "rrcluster.methods",
    "Algorithm": "rrcluster.methods:Method",
    "Method": "rrcluster.methods",
    "MECHANISMS": "rrcluster.registry",
    "NoisySum": "rrcluster.privacy.reports",
    "PrivacyPlan": "rrcluster.privacy.plan",
    "Reports": "rrcluster.privacy.reports",
    "Server": "rrcluster.runs.own_server:AddOnServer",
    "account": "rrcluster.privacy.budget",
    "advise": "rrcluster.runs.advise",
    "assign": "rrcluster.runs.load",
    "calibrate": "rrcluster.privacy.budget",
    "experiment": "rrcluster.runs.experiment:build_experiment",
    "from_arrays": "rrcluster.data.arrays",
    "from_frame": "rrcluster.data.frames",
    "from_module": "rrcluster.models.model",
    "load": "rrcluster.runs.load",
    "personalise": "rrcluster.runs.own_model",
    "rebalance": "rrcluster.privacy.rebalancing",
    "register": "rrcluster.registry",
    "release": "rrcluster.server.server",
    "run": "rrcluster.runs.run",
    "simulate": "rrcluster.simulation.simulate",
}

__all__ = [
    "ALGORITHMS",
    "MECHANISMS",
    "Method",
    "NoisySum",
    "PrivacyError",
    "PrivacyPlan",
    "Reports",
    "Server",
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
    "load",
    "personalise",
    "rebalance",
    "register",
    "release",
    "run",
    "simulate",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'rrcluster' has no attribute {name!r}")
    module, _, attribute = _HOMES[name].partition(":")
    return getattr(import_module(module), attribute or name)
