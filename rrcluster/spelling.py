"""Spelling of a table's cells as text: each by its own value, whatever the other cells are.

Programs give a column one type, inferred from all of its rows, so one client's cell could change the text of everybody
else's: 1 becomes 1.0 beside a missing value, "01" a number beside other numbers. Rules for columns therefore see this
text instead of types.
"""

import re
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

# unless declared otherwise
MISSING = frozenset({"", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "NULL", "null", "None"})
_BOOLEANS = frozenset({"true", "false"})
_DECIMAL = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?")  # others, such as 007 and 1e3, are codes where values are names
_MIDNIGHT = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2})[ T]00:00:00(\.0+)?")


def spelling(value: Any) -> str | None:
    """A cell, category or class as text, by its value alone; None for a missing one (None, NaN).

    Guarantees: 1, 1.0 and "1" are one value, and so are true and "True", or a date and its midnight; the width of a
    number's type and whether others are missing change nothing. Text loses the space around it.

    >>> [spelling(value) for value in (1, 1.0, "1.00", " 007", True, "TRUE", float("nan"))]
    ['1', '1', '1', '007', 'true', 'true', None]
    """
    if value is None or value != value:  # NaN differs from itself
        return None
    if not isinstance(value, (str, bool, int, float, Decimal)):
        value = value.item() if hasattr(value, "item") else str(value)  # numpy numbers, dates
    if isinstance(value, float):
        text = str(int(value)) if value.is_integer() else _shortest(value)
    else:
        text = (format(value, "f") if isinstance(value, Decimal) else str(value)).strip()
    if text.lower() in _BOOLEANS:
        return text.lower()
    if _DECIMAL.fullmatch(text):
        text = text.rstrip("0").rstrip(".") if "." in text else text
        return "0" if text == "-0" else text
    midnight = _MIDNIGHT.fullmatch(text)
    return midnight[1] if midnight else text


def instant(text: str) -> datetime | None:
    """The instant of an ISO date or time, in universal time; None for other text."""
    try:
        moment = datetime.fromisoformat(text)
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        return None


def _shortest(value: float) -> str:
    """The shortest text of a number in its narrowest type, so that 0.1 is one value in all types."""
    import numpy as np

    with np.errstate(over="ignore"):
        narrow = next((kind(value) for kind in (np.float16, np.float32) if float(kind(value)) == value), value)
    return str(narrow)
