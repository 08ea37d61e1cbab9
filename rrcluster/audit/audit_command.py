"""`rrcluster audit`: checks the installed code's privacy claims. Exit status 1 when one fails."""

import contextlib
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal

from rrcluster.cli.terminal import parse, print_json, print_whole, say

if TYPE_CHECKING:
    from rrcluster.audit.targets import Finding


LEFT_TO_TESTS = (
    "Left to the test suite: transports, TLS and units (tests/federation), hostile servers and agreements "
    "(tests/federation/test_hostile_*), members in a ring (tests/secagg), kills of processes "
    "(tests/runs/test_crashes.py, tests/federation/test_kills.py), frames with types "
    "(tests/data/test_neighbouring_tables.py), a GPU (tests/engine)."
)


@dataclass(frozen=True)
class AuditCommand:
    """Audit the privacy claims of the installed code: sensitivity, noise, sampling, accounting, ledger.

    Every check tries to refute a claim. Exit status 0 when all claims hold, 1 when one fails. What each check can and
    cannot catch is in docs/threat-model.md. Example:

    rrcluster audit --mechanism joint
    """

    mechanism: Literal["joint", "identifier", "all"] = "all"
    """What to audit."""
    algorithm: str = "ifca"
    """Federated method of the training runs under audit."""
    seed: int = 0
    """Seed of the audit's own randomness."""
    deep: bool = False
    """Also repeat random checks with further seeds, train every method and send more canaries (minutes)."""
    json: bool = False
    """Print the findings as JSON."""


def main(arguments: list[str]) -> int:
    """Run the audit, print its findings and return the exit status."""
    command = parse(AuditCommand(), arguments, prog="rrcluster audit")
    from rrcluster.audit.suite import audit_steps
    from rrcluster.audit.targets import failures
    from rrcluster.runs.fingerprint import remember_audit

    began = time.perf_counter()
    steps = audit_steps(
        mechanism=command.mechanism,
        method=command.algorithm,
        seed=command.seed,
        deep=command.deep,
    )
    findings: list[Finding] = []
    for number, step in enumerate(steps, start=1):
        if not command.json:
            say(f"[{number}/{len(steps)}] {step.subject}: {step.check}")
        findings += step.findings()
    failed = failures(findings)
    checked = f"{len(findings)} findings, {command.mechanism} mechanisms" + (", deep" if command.deep else "")
    with contextlib.suppress(OSError):
        remember_audit(f"{len(failed)} claims fail ({checked})" if failed else f"all claims hold ({checked})")
    if command.json:
        rows = [asdict(finding) | {"verdict": finding.verdict} for finding in findings]
        print_json({"holds": not failed, "findings": rows})
    else:
        _print(findings, seconds=time.perf_counter() - began)
    return 1 if failed else 0


def _print(findings: "list[Finding]", *, seconds: float) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table(title="Audit of the installed code")
    for name in ("audited", "check", "claim", "measured", "verdict"):
        table.add_column(name, overflow="fold")
    for finding in findings:
        colour = {True: "green", False: "bold red", None: "yellow"}[finding.holds]
        verdict = f"[{colour}]{finding.verdict}[/{colour}]"
        table.add_row(finding.subject, finding.check, finding.claim, finding.measured, verdict)
    print_whole(table)
    failed = sum(finding.holds is False for finding in findings)
    console.print(
        f"{failed} of {len(findings)} claims FAIL: do not trust an epsilon of this installation."
        if failed
        else f"No claim was refuted in {seconds:.0f} s. What that does and does not show: docs/threat-model.md.",
        highlight=False,
    )
    console.print(LEFT_TO_TESTS, highlight=False)
    console.print("Per-round epsilons are at delta 1e-4, without sampling; mu is that of Gaussian DP.", highlight=False)
