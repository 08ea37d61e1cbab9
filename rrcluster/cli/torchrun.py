"""Whether torchrun started this process."""

import os

_NAMES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def torchrun_rank() -> int | None:
    """This process's rank among several; None for a single process."""
    if any(name not in os.environ for name in _NAMES):
        return None
    try:
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    except ValueError:
        return None
    return rank if 0 <= rank < size and size > 1 else None
