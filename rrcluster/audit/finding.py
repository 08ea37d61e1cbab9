"""What a check says: the claim, what was measured, and whether the claim survived."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One line of the audit. `holds` is None for a measurement that is informative only."""

    subject: str  # what was audited: a mechanism, the accountants, a training run
    check: str
    claim: str
    measured: str
    holds: bool | None

    @property
    def verdict(self) -> str:
        """The answer in one word."""
        return {True: "holds", False: "FAILS", None: "informative"}[self.holds]


def failures(findings: Iterable[Finding]) -> list[Finding]:
    """The claims that did not survive."""
    return [found for found in findings if found.holds is False]
