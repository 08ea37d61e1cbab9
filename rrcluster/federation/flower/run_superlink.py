"""`python -m rrcluster.federation.flower.run_superlink PARENT ...`: Flower's SuperLink, until the parent ends."""

import os
import signal
import sys

from flwr.superlink.cli import flower_superlink

from rrcluster.federation.children import watch_parent

if __name__ == "__main__":
    parent = int(sys.argv.pop(1))
    watch_parent(parent, lambda: os.kill(os.getpid(), signal.SIGTERM))
    flower_superlink()
