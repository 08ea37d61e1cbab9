"""Checks that try to refute the privacy claims of the installed code, one module per claim."""

from rrcluster.registry import Entry

COMMAND = Entry(
    "audit",
    "rrcluster.audit.audit_command:main",
    "try to refute the privacy claims of the installed code; exit status 1 when one fails",
)
