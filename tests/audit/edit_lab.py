"""Applies planted edits to copies of the package, and runs the audit of each copy in a process of its own.

As a program it prints one line per mistake: `python tests/audit/edit_lab.py [part of a name ...]`.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import yaml

PACKAGE = Path(__file__).parents[2] / "rrcluster"


class Mistake(NamedTuple):
    """What `check` must catch: in `file`, `old` became `new`."""

    check: str
    file: str
    old: str
    new: str


_PLANTED = yaml.safe_load(Path(__file__).with_name("planted_edits.yaml").read_text(encoding="utf-8"))
GROUPS: dict[str, dict[str, Mistake]] = {
    group: {name: Mistake(**edit) for name, edit in edits.items()} for group, edits in _PLANTED.items()
}
EDITS = {name: mistake for group in GROUPS.values() for name, mistake in group.items()}

SECONDS = "600"  # for one audit

# The step of the audit that a finding comes from, where it has another name.
STEP_OF = {
    "noise scale": "noise",
    "noise law": "noise",
    "private files": "public values",
    "identifier noise": "identifiers",
    "end to end, canaries": "canaries",
    "masks": "secure sums",
    "own networks, trial": "own networks",
    "centres": "questions",
    **dict.fromkeys(("slots", "trained cohorts", "correlation, exact"), "participation"),
}

# Loads what the package needs, once; then, for every folder it is told, a fork imports the copy in there and runs the
# checks of the name expected, until one fails; all checks where no name is.
PROGRAM = """
import json, os, signal, sys, traceback
import dp_accounting, numpy, safetensors.numpy, scipy.optimize, scipy.special, scipy.stats, torch, yaml
import dp_accounting.pld.privacy_loss_distribution, dp_accounting.rdp
torch.set_num_threads(1)

def audit(folder, step_name, expected):
    os.chdir(folder)
    sys.path.insert(0, folder)
    from rrcluster.audit.suite import audit_steps
    failed = []
    for step in audit_steps():
        if step_name not in ("", step.check):
            continue
        failed += [found for found in step.findings() if found.holds is False]
        if any(expected == found.check for found in failed):
            break
    return [[found.subject, found.check, found.measured] for found in failed]

for line in sys.stdin:
    folder, step_name, expected = json.loads(line)
    child = os.fork()
    if child == 0:
        signal.alarm(int(sys.argv[1]))  # a copy that does not end
        try:
            found = audit(folder, step_name, expected)
        except BaseException:
            found = [["audit", "cannot be run", traceback.format_exc()[-300:]]]
        with open(os.path.join(folder, "found.json"), "w") as file:
            json.dump(found, file)
        os._exit(0)
    _, ended = os.waitpid(child, 0)
    if ended:
        with open(os.path.join(folder, "found.json"), "w") as file:
            json.dump([["audit", "does not end", f"status {ended}"]], file)
    print("done", flush=True)
"""


def planted_text(mistake: Mistake) -> str:
    """The file with the mistake in it. The text that it replaces must be there, once."""
    text = (PACKAGE / mistake.file).read_text(encoding="utf-8")
    if text.count(mistake.old) != 1:
        raise ValueError(
            f"{mistake.file} has changed: {mistake.old!r} is there {text.count(mistake.old)} times, not once"
        )
    return text.replace(mistake.old, mistake.new)


class Lab:
    """Audits copies of the package with one mistake each."""

    def __init__(self) -> None:
        """Start the process that the audits are forked from."""
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        environment["OMP_NUM_THREADS"] = "1"
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", PROGRAM, SECONDS], env=environment, cwd="/", **pipes
        )

    def failures(self, mistake: Mistake, *, everything: bool = False) -> list[tuple[str, str, str]]:
        """(subject, check, measured) of what the check that is expected to catch it refutes; or the whole audit."""
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(PACKAGE, Path(folder) / "rrcluster")
            (Path(folder) / "rrcluster" / mistake.file).write_text(planted_text(mistake), encoding="utf-8")
            steps = ["", ""] if everything else [STEP_OF.get(mistake.check, mistake.check), mistake.check]
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.write(json.dumps([folder, *steps]) + "\n")
            self._process.stdin.flush()
            self._process.stdout.readline()
            return [tuple(row) for row in json.loads((Path(folder) / "found.json").read_text())]

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def main(parts: list[str]) -> None:
    """Print what catches each mistake."""
    lab = Lab()
    everything = "--all" in parts
    parts = [part for part in parts if part != "--all"]
    for name, mistake in EDITS.items():
        if parts and not any(part in name for part in parts):
            continue
        found = lab.failures(mistake, everything=everything)
        checks = sorted({check for _, check, _ in found})
        verdict = "caught" if mistake.check in checks else "OTHER" if checks else "MISSED"
        shown = next((row for row in found if row[1] == mistake.check), found[0] if found else ("", "", ""))
        print(f"{verdict:7} {name} | {mistake.check} | {', '.join(checks)} | {shown[0]}: {shown[2][:160]}", flush=True)
    lab.close()


if __name__ == "__main__":
    main(sys.argv[1:])
