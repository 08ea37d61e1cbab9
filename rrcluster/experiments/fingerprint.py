"""What a release depends on beside the round: settings, versions and machine. It is written with every charge.

A seeded round that is run again must make the identical release: the noise is the same, so two different releases would
differ by raw values alone. The ledger compares these fingerprints before it lets a charged round be repeated.
"""

import hashlib
import json
import platform
from typing import TYPE_CHECKING, Any

from rrcluster.experiments.config import RunConfig
from rrcluster.settings import AFFECTS

if TYPE_CHECKING:
    from rrcluster.engine.protocol import Engine


def fingerprint(config: RunConfig, engine: "Engine") -> dict[str, Any]:
    """Settings as one digest, and everything else by name, so that an error can say what changed."""
    import numpy as np
    import torch

    from rrcluster.engine.distributed import DistributedEngine
    from rrcluster.engine.pick_engine import describe, pick_device
    from rrcluster.version import __version__

    device = pick_device(config.output.device).type
    settings = {name: value for name, value in config.flat().items() if AFFECTS[name] == "result"}
    ranks = {"ranks": list(engine.machines)} if isinstance(engine, DistributedEngine) else {}
    return ranks | {
        "config": hashlib.blake2b(json.dumps(settings, sort_keys=True).encode(), digest_size=8).hexdigest(),
        "rrcluster": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "device": device,
        "machine": f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}",
        "engine": describe(engine),
        "threads": torch.get_num_threads(),
    }
