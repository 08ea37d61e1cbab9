"""Repeats the random checks of an audit of correct code with one seed after another, and counts alarms.

As a program: `python tests/audit/false_alarms.py 0 100` tries the seeds 0 to 99 and prints a line for each.
"""

import sys
import time

from rrcluster.audit.suite import Step, audit_steps
from rrcluster.audit.targets import failures

# Checks that give the same answer for every seed, or that no chance can make fail.
SAME_FOR_EVERY_SEED = {
    "sensitivity",
    "invalid reports",
    "odd rows",
    "release function",
    "message norm",
    "public sizes",
    "evaluation sensitivity",
    "evaluation scale",
    "ledger",
    "ledger rules",
    "discretion",
    "histories",
    "post-processing",
    "entropy",
    "public files",
    "public values",
    "stated cost",
    "resumed run",
    "stated budget",
    "refusals",
    "selection cost",
}


def random_steps(seed: int) -> list[Step]:
    """Every check of an audit, of every mechanism and mode, that chance has a part in."""
    accountants = {step.check for step in audit_steps() if step.subject == "accountants"}
    return [step for step in audit_steps(seed=seed) if step.check not in SAME_FOR_EVERY_SEED | accountants]


def alarms(seed: int) -> list[str]:
    """What correct code is accused of under this seed."""
    found = [finding for step in random_steps(seed) for finding in step.findings()]
    return [f"{finding.subject}, {finding.check}: {finding.measured}" for finding in failures(found)]


def main(first: int, end: int) -> None:
    """Print the alarms of every seed."""
    for seed in range(first, end):
        began = time.process_time()
        raised = alarms(seed)
        print(f"seed {seed}: {len(raised)} alarms {raised or ''} ({time.process_time() - began:.0f} s)", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
