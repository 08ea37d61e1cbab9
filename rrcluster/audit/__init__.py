"""Audits: tests on the installed code that would have caught a privacy mistake. What each can catch: docs/audit.md."""
