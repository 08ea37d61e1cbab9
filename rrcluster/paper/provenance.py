"""Where a result comes from: command, version, commit, machine and time, in a file beside the tables."""

import os
import platform
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path


def provenance(arguments: Sequence[str], *, seconds: float, num_runs: int, taken: int = 0) -> str:
    """A short Markdown page. `seconds` is the time of this call for its own `num_runs`; `taken` runs were copied."""
    from rrcluster.version import __version__

    lines = {
        "command": f"`{shlex.join(['rrcluster', *arguments])}`",
        "version": f"rrcluster {__version__}, commit {_commit() or 'unknown'}",
        "machine": _machine(),
        "time": f"{seconds:.0f} s for {num_runs} runs made by this call",
    }
    if taken:
        lines["taken over"] = f"{taken} runs copied from tables beside this one (see their about.md)"
    return "".join(f"- {name}: {value}\n" for name, value in lines.items())


def _commit() -> str | None:
    """The commit of the package's checkout, marked if files were changed; None without one.

    `RRCLUSTER_COMMIT` comes first, for files that were copied without their history.
    """
    root = Path(__file__).parents[2]
    if "RRCLUSTER_COMMIT" in os.environ or not (root / ".git").exists():
        return os.environ.get("RRCLUSTER_COMMIT")
    try:
        ask = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
        return subprocess.run(ask, capture_output=True, text=True, check=True, timeout=10).stdout.strip() or None
    except (OSError, subprocess.SubprocessError):
        return None


def _machine() -> str:
    """Architecture, cores and accelerator; no names of machines or people."""
    import torch

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    device = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    return f"{platform.system()} {platform.machine()}, {cores} cores{device}, torch {torch.__version__}"
