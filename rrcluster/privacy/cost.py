"""The privacy cost of a run folder, and how an epsilon is written. Everything that prints either calls these."""

import math
import os
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal
from pathlib import Path
from typing import Any

from rrcluster.errors import RunFolderError
from rrcluster.privacy.ledger import num_charged, read_charges
from rrcluster.storage import WAY_OUT, read_mapping


@dataclass(frozen=True)
class Cost:
    """What the releases of a folder cost, all that may still be made included."""

    epsilon: float | None  # None: no finite bound
    delta: float | None
    covered: int  # releases that epsilon covers
    charged: int  # releases that the ledger holds


def folder_cost(folder: Path) -> Cost | None:
    """The cost of the run in `folder`, whether it finished, was stopped, or was killed; None without privacy.

    It is that of the whole plan, as stated in privacy.json before the first release, and never that of the releases
    made so far: whoever stops a run may have looked at them (docs/privacy.md, "Stopping early"). The ledger must agree:
    RunFolderError if it holds more releases than the statement covers, or releases of another kind, or is missing where
    releases were made.
    """
    stated = read_mapping(folder / "privacy.json")
    if "private" not in stated:
        raise RunFolderError(f"{folder / 'privacy.json'}: does not say whether the run is private. {WAY_OUT}")
    if stated["private"] is False:
        return None
    covered = _covered(stated)
    charges = _charges(folder)
    charged = num_charged(charges, secure=stated.get("secure") is True)
    if covered is None or charged > covered:
        raise RunFolderError(
            f"{folder}: ledger.jsonl holds {charged} releases, but privacy.json covers {covered or 'an unknown number'}"
            f". One of the two is damaged, so the run's cost is unknown. {WAY_OUT}"
        )
    if charges and "event" in stated and charges[0]["event"] != stated["event"]:
        raise RunFolderError(
            f"{folder}: ledger.jsonl and privacy.json describe different releases. One of the two is damaged, so the "
            f"run's cost is unknown. {WAY_OUT}"
        )
    return Cost(_number(stated.get("epsilon")), _number(stated.get("delta")), covered, charged)


NO_PRIVACY = "none (no privacy)"
NO_BOUND = "no finite bound"


def epsilon_text(epsilon: float | None, *, private: bool = True) -> str:
    """Two decimals (two significant digits below 0.01), rounded up; words where there is no number."""
    if not private:
        return NO_PRIVACY
    if epsilon is None:
        return NO_BOUND
    if abs(epsilon) >= 1e9:  # says nothing any more, and has too many digits to write out
        return "more than 1e9" if epsilon > 0 else NO_BOUND
    if epsilon >= 0.01 or epsilon <= 0:
        return rounded_up(epsilon, 2)
    return f"{digits_up(epsilon, 2):f}"


def rounded_up(value: float, decimals: int) -> str:
    """A finite number with so many decimals, never less than it is."""
    return f"{Decimal(str(value)).quantize(Decimal(1).scaleb(-decimals), rounding=ROUND_CEILING):f}"


def digits_up(value: float, digits: int) -> Decimal:
    """A positive number with so many significant digits, never less than it is."""
    exact = Decimal(str(value))
    return exact.quantize(Decimal(1).scaleb(exact.adjusted() + 1 - digits), rounding=ROUND_CEILING)


def stated_participations(stated: dict[str, Any]) -> int | None:
    """How many times the stated event happens to a client at most: its releases, or with slots fewer of them."""
    described = stated.get("participation")
    if isinstance(described, dict) and "slots" in described and "selection" not in stated:
        return _whole(described.get("most_participations"))
    return _covered(stated)


def _covered(stated: dict[str, Any]) -> int | None:
    """How many releases the statement covers; a selection is one, charged as a whole, and again when repeated."""
    if "selection" in stated:
        selection = stated["selection"]
        return _whole(selection.get("charges", 1)) if isinstance(selection, dict) else None
    if "num_releases" in stated:
        return _whole(stated["num_releases"])
    rounds, reserve = _whole(stated.get("num_rounds")), _whole(stated.get("reserve_rounds", 0))  # until version 0.1
    return None if rounds is None or reserve is None else rounds + reserve


def _charges(folder: Path) -> list[dict[str, Any]]:
    path = folder / "ledger.jsonl"
    if os.path.lexists(path):
        return read_charges(path)
    if (folder / "rounds.jsonl").exists():
        raise RunFolderError(f"{path}: missing, but rounds were released; the run's cost is unknown. {WAY_OUT}")
    return []


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _number(value: object) -> float | None:
    usable = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if usable else None  # type: ignore[arg-type]
