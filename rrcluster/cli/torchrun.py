"""Whether torchrun started this process, and as which of how many."""

import os

_NAMES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def place() -> tuple[int, int] | None:
    """(rank, number of ranks), None where there is only this process."""
    if any(name not in os.environ for name in _NAMES):
        return None
    try:
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    except ValueError:
        return None
    return (rank, size) if 0 <= rank < size and size > 1 else None


def silent() -> bool:
    """Whether this process leaves all talking to rank 0."""
    found = place()
    return found is not None and found[0] > 0
