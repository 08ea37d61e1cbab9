"""A member's daemon as a process of its own: `python member_process.py SETTINGS PLACE SOCKET PARENT`.

The settings are a JSON object: those of the experiment, and whether the server may see sums alone ("sums").
"""

import json
import sys
from pathlib import Path

from test_plain_rounds import experiment_of, federation
from test_secure_rounds import make_secure

from rrcluster.federation.flower.children import stop_signals
from rrcluster.federation.unix_socket import serve
from rrcluster.federation.wire import LONGEST_LETTER

if __name__ == "__main__":
    settings, place, path, parent = json.loads(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
    sums = settings.pop("sums")
    experiment = experiment_of(**settings)
    daemons = (make_secure if sums else federation)(experiment, path.parent)[1]
    with stop_signals(parent) as stop:
        serve(path, daemons[place].answer, longest=LONGEST_LETTER, stop=stop)
