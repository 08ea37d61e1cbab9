"""A member's daemon as a process of its own: `python member_process.py SETTINGS PLACE SOCKET PARENT`.

The settings are a JSON object, as of `agree` in federation_lab.py. What a member adds to a secure sum, its message and
its noise share, is written down for the test alone.
"""

import json
import sys
from pathlib import Path

import numpy as np
from federation_lab import agree, daemons_of, experiment_of

from rrcluster.federation.children import stop_signals
from rrcluster.federation.messages import LONGEST_LETTER
from rrcluster.federation.secure_plan import SecurePlan
from rrcluster.federation.unix_socket import serve


def recording(function, path):
    """The same function; what it returns is also written to files, numbered from 0."""
    number = iter(range(1000))

    def recorded(*arguments):
        value = function(*arguments)
        np.save(f"{path}-{next(number)}.npy", value)
        return value

    return recorded


if __name__ == "__main__":
    settings, place, path, parent = json.loads(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
    agreement = agree(**settings)
    engine = "batched" if agreement.secure else "reference"
    daemon = daemons_of(agreement, experiment_of().data, path.parent, engine=engine)[1][place]
    mechanism = type(daemon.agreed.plan.mechanism)
    SecurePlan.noise_share = recording(SecurePlan.noise_share, path.parent / f"share-{place}")
    mechanism.sum_messages = recording(mechanism.sum_messages, path.parent / f"message-{place}")
    with stop_signals(parent) as stop:
        serve(path, daemon.answer, longest=LONGEST_LETTER, stop=stop)
