"""A member's daemon as a process of its own: `python member_process.py SETTINGS PLACE SOCKET PARENT`.

The settings are a JSON object: those of the experiment, and whether the server may see sums alone ("sums"). A member
of sums writes down what it adds to each of them, for the test alone: its message and its noise share.
"""

import json
import sys
from pathlib import Path

import numpy as np
from test_plain_rounds import experiment_of, federation
from test_secure_rounds import make_secure

from rrcluster.federation.flower.children import stop_signals
from rrcluster.federation.secure_plan import SecurePlan
from rrcluster.federation.unix_socket import serve
from rrcluster.federation.wire import LONGEST_LETTER


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
    sums = settings.pop("sums")
    experiment = experiment_of(**settings)
    daemons = (make_secure if sums else federation)(experiment, path.parent)[1]
    mechanism = type(daemons[place].side.mechanism)
    SecurePlan.noise_share = recording(SecurePlan.noise_share, path.parent / f"share-{place}")
    mechanism.sum_messages = recording(mechanism.sum_messages, path.parent / f"message-{place}")
    with stop_signals(parent) as stop:
        serve(path, daemons[place].answer, longest=LONGEST_LETTER, stop=stop)
