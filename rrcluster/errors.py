"""The errors that callers can handle.

    ValueError
     +-- RRClusterError
          +-- ConfigError       a setting that cannot be used; the message names the way out
          |    +-- PrivacyError a combination that would void the stated guarantee
          |    |    +-- UnsupportedEvent   an event this accountant cannot account
          +-- DataError         a missing, damaged or unusable data file
          |    +-- UnfitRows    rows of a table with a cell that the rule of its column does not take
          +-- ProtocolError     a message of a secure aggregation that must not be answered
          +-- RoundError        a round failed; in a secure run a reason that may depend on private data is withheld
          +-- RunFolderError    a run folder that cannot be written, read or resumed
          +-- WorkerError       a worker process that died or failed

Every message names the value, the bound it breaks and the way out. None contains a raw client value.
"""

from typing import Any


class RRClusterError(ValueError):
    """Base of every error that rrcluster raises on purpose."""


class ConfigError(RRClusterError):
    """A setting is out of range or does not fit the others."""


class PrivacyError(ConfigError):
    """The requested combination would void the stated guarantee; never a warning."""


class UnsupportedEvent(PrivacyError):
    """This accountant has no sound bound for this event under this adjacency and sampling."""


class DataError(RRClusterError):
    """A data file is missing, damaged or has the wrong content."""


class UnfitRows(DataError):
    """Cells of a column do not fit its rule. `rows` marks all of them, `rule` is the message without the row."""

    def __init__(self, text: str, *, column: str = "", rule: str = "", rows: Any = None) -> None:
        """`rows`: (rows,) booleans."""
        super().__init__(text)
        self.column, self.rule, self.rows = column, rule, rows


class ProtocolError(RRClusterError):
    """A secure aggregation cannot continue: a message is missing, out of order or not as agreed."""


class RoundError(RRClusterError):
    """A round failed. In a secure run a reason that may depend on private data is withheld."""


class RunFolderError(RRClusterError):
    """A run folder cannot be written, read or resumed."""


class WorkerError(RRClusterError):
    """A worker process could not be started, died or failed; no other is left running."""


class NotDeclared(UserWarning):
    """A constant was counted from the clients' data, which a secure run refuses, or cells hold what no rule names."""


def install_extra(extra: str) -> str:
    """How to install an optional extra, as part of a sentence; the package is on no index."""
    return f"run `pip install '.[{extra}]'` in the folder of rrcluster's sources"
