"""What the server's half of a round costs by the number of clusters and of parameters: release, noise, checkpoint.

Every point is a process of its own: a cohort of ten reports, mechanism joint, one release, and the state of the next
round written down as a checkpoint would be. Processor time of one thread, and the peak memory of the process. Usage:
server_sizes.py [--secure]. Results: docs/results/scaling/study.md.
"""

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CLUSTERS = [(k, 10_000) for k in (1, 4, 16, 64, 256, 1_000)]
PARAMETERS = [(4, d) for d in (100_000, 1_000_000, 10_000_000)]
COHORT = 10


def measure(k, d, secure):
    """One line of the table."""
    import numpy as np

    import rrcluster as rr
    from rrcluster.entropy import secure_rng
    from rrcluster.runs.folder import RunFolder
    from rrcluster.server.state import ServerState, advance
    from rrcluster.settings import ServerSettings
    from rrcluster.simulation.clients import ClientMemory
    from rrcluster.types import Coordinates, Models

    settings = {"noise_multiplier": 1.0, "num_rounds": 10, "delta": 1e-8, "secure": secure}
    plan = rr.PrivacyPlan.build(coordinates=Coordinates(0, d), num_clients=1_000_000, num_clusters=k, **settings)
    rng = np.random.default_rng(0)
    updates, choices = rng.normal(size=(COHORT, d)).astype(np.float32), np.arange(COHORT) % k
    before = time.process_time()
    drawn = secure_rng() if secure else rng
    release = rr.release(updates, choices, plan=plan, rng=drawn, unique=True)
    first = ServerState.fresh(Models(np.zeros(0), np.zeros((k, d))))
    state = advance(first, release, settings=ServerSettings(), num_rounds=10)
    spent = time.process_time() - before
    with tempfile.TemporaryDirectory() as name:
        folder = RunFolder(Path(name))
        (Path(name) / "checkpoint").mkdir()
        folder.save_state(state, ClientMemory(0))
        size = sum(path.stat().st_size for path in Path(name).rglob("*.safetensors"))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"| {k:,} | {d:,} | {spent:.2f} | {peak:.2f} | {size / 2**20:,.1f} |", flush=True)


def main():
    secure = "--secure" in sys.argv
    print(
        "| clusters | parameters | release (s of processor time) | peak memory (GB) | checkpoint (MB) |\n|"
        + " --- |" * 5
    )
    for k, d in CLUSTERS + PARAMETERS:
        command = [sys.executable, __file__, str(k), str(d), *(["--secure"] if secure else [])]
        subprocess.run(command, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[1:] if word.isdigit()]
    measure(*numbers, "--secure" in sys.argv) if numbers else main()
