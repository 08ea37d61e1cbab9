"""The privacy cost of a run folder, recomputed, and the formatting of an epsilon: used wherever either is printed.

Nothing in a folder is signed. Recomputing finds files that were edited, lost, or restored from another day; it does not
find a consistent change of all of them.

Files are read in an order that is consistent while a run is writing them.
"""

import math
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from decimal import ROUND_CEILING, Decimal
from functools import cached_property
from pathlib import Path
from typing import Any

from rrcluster.errors import RunFolderError
from rrcluster.privacy.events import Event
from rrcluster.privacy.ledger import describe, read_charges, read_event
from rrcluster.registry import MECHANISMS
from rrcluster.settings import REMOVED, PrivacySettings, ServerSettings
from rrcluster.storage import MAX_BYTES, WAY_OUT, open_plain, parse_json, read_json_lines, read_mapping

ALIKE = 1e-6  # relative difference that another machine's or library's arithmetic may cause
_NEGLIGIBLE = 1e-12  # absolute: rounding errors of the smallest deltas, far below 1e-10


@dataclass(frozen=True)
class RunFiles:
    """The contents of these files, and values derived from a single one."""

    folder: Path
    stated: Mapping[str, Any]
    config: Mapping[str, Any]  # empty in a folder of `rr.Server`
    summary: Mapping[str, Any]  # empty until the run ends
    released: tuple[int, str]  # number of rounds, and the file that shows the most
    charges: list[dict[str, Any]]

    @classmethod
    def read(cls, folder: Path) -> "RunFiles":
        """Read the files, the ledger last."""
        stated = read_mapping(folder / "privacy.json")
        paths = [folder / name for name in ("config.yaml", "summary.json")]
        config, summary = (read_mapping(path) if os.path.lexists(path) else {} for path in paths)
        released = max((count, name) for name, count in _released(folder, summary).items())
        ledger = folder / "ledger.jsonl"
        return cls(folder, stated, config, summary, released, read_charges(ledger) if os.path.lexists(ledger) else [])

    @cached_property
    def settings(self) -> PrivacySettings | None:
        """The privacy settings; None if missing, from version 0.1, or for an unknown mechanism."""
        known = self.config.get("mechanism", "joint") in MECHANISMS and not self.config.keys() & REMOVED.keys()
        if not self.config or not known:
            return None
        names = [setting.name for setting in fields(PrivacySettings) if setting.name in self.config]
        try:
            return PrivacySettings(**{name: self.config[name] for name in names})
        except (TypeError, ValueError) as error:
            raise self.refusal("config.yaml", f"cannot be used ({' '.join(str(error).split())})") from error

    @property
    def selected(self) -> bool:
        """Whether the run is the outcome of a private selection, which was charged as a whole."""
        return "selection" in self.stated

    @property
    def among_members(self) -> Mapping[str, Any] | None:
        """The statement of a federation whose members make the noise; None for any other run."""
        about = self.stated.get("federation")
        return about if isinstance(about, Mapping) and about.get("mode") == "secure" else None

    @property
    def delta(self) -> Any:
        """The accountant's delta; a secure federation's statement adds the chance that colluders are neighbours."""
        return self.stated.get("delta") if self.among_members is None else self.config.get("delta")

    def refusal(self, name: str, what: str) -> RunFolderError:
        """The error that names a file, the problem and the way out."""
        return RunFolderError(f"{self.folder / name}: {what}, so the run's cost is unknown. {WAY_OUT}")

    def check(self, name: str, found: Any, due: Any, *, by: str) -> None:
        """Refuse a file with another value than the one computed by `by`."""
        different = _difference("", found, due)
        if different is not None:
            where, value, other = different
            raise self.refusal(name, f"has {where} = {value!r:.60}, and {by} gives {other!r:.60}")


def _released(folder: Path, summary: Mapping[str, Any]) -> dict[str, int]:
    """The number of released rounds, by every file that shows it."""
    path = folder / "rounds.jsonl"
    lines = read_json_lines(path, damaged="stop") if os.path.lexists(path) else []
    return {
        "summary.json": _whole(summary.get("rounds_done")),
        "models.safetensors": int((folder / "models.safetensors").exists()),
        "checkpoint/": _checkpoint_round(folder / "checkpoint" / "state.safetensors"),
        "rounds.jsonl": max((_whole(line.get("round")) + 1 for line in lines), default=0),
    }


def _checkpoint_round(path: Path) -> int:
    """The round of a checkpoint; 0 where there is none, or it is not readable."""
    try:
        with os.fdopen(open_plain(path, os.O_RDONLY), "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = parse_json(file.read(min(length, MAX_BYTES)).decode())
            file.seek(header["numbers"]["data_offsets"][0], os.SEEK_CUR)
            return int.from_bytes(file.read(8), "little")
    except (OSError, ValueError, LookupError, TypeError):
        return 0


def _difference(name: str, found: Any, due: Any) -> tuple[str, Any, Any] | None:
    """(name, found, due) of the first value that differs. Values that one side lacks are not compared."""
    parts: list[tuple[str, Any, Any]] = []
    if isinstance(due, Mapping) and isinstance(found, Mapping):
        names = [key for key in due if key in found and key != "reason"]  # texts differ between versions
        parts = [(f"{name}.{key}".lstrip("."), found[key], due[key]) for key in names]
    elif isinstance(due, list) and isinstance(found, list):
        parts = [(name, *pair) for pair in zip(found, due, strict=False)]
    elif not _alike(found, due):
        return name, found, due
    return next((different for each in parts if (different := _difference(*each)) is not None), None)


def _alike(found: Any, due: Any) -> bool:
    if isinstance(due, float) and not math.isfinite(due):
        return found is None or bool(found == due)  # JSON has no infinity
    if isinstance(found, (int, float)) and isinstance(due, (int, float)):
        return math.isclose(found, due, rel_tol=ALIKE, abs_tol=_NEGLIGIBLE)
    return bool(found == due)


def _whole(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0


_LEAST_SHARE = 0.97  # least share of its target that calibrated noise costs

Part = tuple[Event, int]  # an event, and its number of repetitions


@dataclass(frozen=True)
class Cost:
    """The cost of a folder's releases, including those that may still be made."""

    folder: Path
    epsilon: float | None  # None: no finite bound
    delta: float
    covered: int  # releases covered by epsilon
    charged: int  # releases in the ledger
    part: Part  # the most that one client takes part in; with slots fewer rounds than releases
    adjacency: str  # a federation's may differ from its event's (zero-out)
    secure: bool
    selected: bool  # the outcome of a private selection
    started_from: str | None  # the run whose models it started from
    earlier: tuple[Part, ...]  # the cost of those models


def folder_cost(folder: Path) -> Cost | None:
    """The cost of the run in `folder`, whether finished, stopped or killed; None without privacy.

    It is that of the whole plan, never of the releases made so far: whoever stops a run may have looked at them
    (docs/privacy.md, "Stopping early"). It is computed from the event, by the stated accountant. RunFolderError where a
    file disagrees: a number of privacy.json or summary.json, a setting of config.yaml, or the ledger, which has a
    charge for every released round. A folder in use is consistent at every instant, because a round is charged before
    it is released, and the ledger is read last.
    """
    files = RunFiles.read(folder)
    private = files.stated.get("private")
    if not isinstance(private, bool):
        raise files.refusal("privacy.json", "does not say whether the run is private")
    try:
        if private or "event" in files.stated:  # version 0.1 called seeded runs private, too
            if not private and files.stated.get("secure"):
                raise files.refusal("privacy.json", "says that a secure run is not private")
            return _recomputed(files)
        if files.settings is not None and MECHANISMS.load(files.settings.mechanism).noisy:
            raise files.refusal("config.yaml", "says that the run is private, and privacy.json that it is not")
        if any(charge["event"] is not None for charge in files.charges):
            raise files.refusal("ledger.jsonl", "says that the run is private, and privacy.json that it is not")
        return None
    except RunFolderError:
        raise
    except (ArithmeticError, AttributeError, LookupError, MemoryError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split()).removesuffix(".")
        raise files.refusal("privacy.json", f"what it states cannot be recomputed ({reason})") from error


def _recomputed(files: RunFiles) -> Cost:
    stated, path = files.stated, files.folder / "privacy.json"
    if isinstance(stated.get("delta"), bool):
        raise files.refusal("privacy.json", "has a delta that is no number")
    if not files.config and (files.summary or (files.folder / "models.safetensors").exists()):
        raise files.refusal("config.yaml", "is missing or empty")
    event = read_event(stated.get("event"), path)
    covered = _covered(files)
    _check_ledger(files, covered)
    slots = 1 if files.selected else stated.get("participation", {}).get("slots", 1)
    part = event, -(-covered // slots)
    _check_settings(files, event, slots)
    started = stated.get("started_from", {})
    earlier = tuple((read_event(each["event"], path), int(each["num_releases"])) for each in started.get("earlier", []))
    due = _due(files, part, earlier)
    epsilon = due["epsilon"]
    files.check("privacy.json", stated, due, by="its event")
    _check_target(files, epsilon)
    return Cost(
        folder=files.folder,
        epsilon=epsilon if math.isfinite(epsilon) else None,
        delta=stated["delta"],
        covered=covered,
        charged=len(files.charges),
        part=part,
        adjacency=due["adjacency"],
        secure=stated.get("secure") is True,
        selected=files.selected,
        started_from=started.get("run"),
        earlier=earlier,
    )


def _covered(files: RunFiles) -> int:
    """The releases that the statement covers; a selection is one, charged as a whole, and again if repeated."""
    stated = files.stated
    planned = stated["num_rounds"] + stated.get("reserve_rounds", 0)
    covered = stated.get("num_releases", planned)  # not stated in version 0.1
    may_end_early = not files.config or files.config.get("max_epsilon") is not None
    if covered != planned and not (may_end_early and covered < planned):
        limit = "" if may_end_early else ", with no max_epsilon in config.yaml"
        raise files.refusal("privacy.json", f"covers {covered} releases of {planned} rounds with the reserve{limit}")
    return int(stated["selection"].get("charges", 1)) if files.selected else int(covered)


def _check_ledger(files: RunFiles, covered: int) -> None:
    """Refuse a ledger that lacks the charge of a released round, or has impossible charges."""
    charges, rounds = files.charges, set[int]()
    once = bool(files.config) and not files.stated.get("secure")  # seeded repeats are identical
    for charge in charges:
        number = charge["round"]
        if charge["event"] != files.stated["event"]:
            raise files.refusal("ledger.jsonl", "it and privacy.json describe different releases")
        if number > len(rounds):
            raise files.refusal("ledger.jsonl", f"round {len(rounds)} has no charge, and round {number} has one")
        if number in rounds and once:
            raise files.refusal(
                "ledger.jsonl", f"round {number} is charged twice, and privacy.json says secure = false"
            )
        rounds.add(number)
    if len(charges) > covered:
        raise files.refusal("ledger.jsonl", f"holds {len(charges)} releases, but privacy.json covers {covered}")
    count, name = files.released
    if count > len(rounds) and not files.selected:
        held = f"has charges of {len(rounds)} rounds" if rounds else "is missing or empty"
        raise files.refusal("ledger.jsonl", f"{held}, but {name} shows {count} released")
    name = "privacy.json" if files.selected else "summary.json"
    noted = covered if files.selected else files.summary.get("releases_charged", len(charges))
    over = files.selected or files.summary.get("status") == "finished"
    if len(charges) < noted or (over and len(charges) > noted):
        raise files.refusal("ledger.jsonl", f"holds {len(charges)} charges, and {name} counts {noted}")


def _check_settings(files: RunFiles, event: Any, slots: int) -> None:
    """Refuse settings that do not lead to the stated releases and noise."""
    stated, settings = files.stated, files.settings
    names = ("secure", "num_rounds", "reserve_rounds", "num_clients", "accountant")
    due = {name: stated.get(name) for name in names} | {"delta": files.delta}
    files.check("config.yaml", files.config, due, by="privacy.json")
    _check_start(files)
    mechanism = files.config.get("mechanism", stated.get("mechanism"))
    if mechanism not in MECHANISMS and mechanism != stated.get("mechanism"):
        raise files.refusal("config.yaml", f"has mechanism = {mechanism!r:.60}, which is none")
    if settings is None:
        return
    from rrcluster.privacy.identifier import NoIdentifier
    from rrcluster.privacy.mechanism import PlanInputs
    from rrcluster.privacy.selection import check_covered
    from rrcluster.types import Coordinates

    one = getattr(event, "run", event)
    several = stated["noise"].get("identifier") != NoIdentifier().describe()
    num_clusters = getattr(getattr(one, "choice", None), "num_clusters", files.config["num_clusters"] if several else 1)
    inputs = PlanInputs(settings, Coordinates(0, 1), num_clusters, stated["num_clients"], 0, None, ServerSettings())
    make = MECHANISMS.load(settings.mechanism).maker(inputs)
    noise = settings.noise_multiplier or one.noise_multiplier / make(1.0).event.noise_multiplier
    made = make(noise)
    if files.selected:
        check_covered(event, made.event, made.slots.most_rounds(settings.num_rounds))
    else:
        given, due = describe(made.event) | {"slots": made.slots.count}, stated["event"] | {"slots": slots}
        files.check("config.yaml", given, due, by="privacy.json")
    described = made.describe().noise
    if slots > 1:  # an earlier version's noise may have another correlation, at the same cost
        spread = stated.get("participation", {}).get("noise_of_a_round", 1.0)
        described["noise_std"] = described["noise_multiplier"] * described["sensitivity"] * spread
    files.check("privacy.json", stated, {"mechanism": made.name, "noise": described}, by="config.yaml")
    files.check("summary.json", files.summary, {"noise_multiplier": noise}, by="config.yaml")


def _check_start(files: RunFiles) -> None:
    """Refuse a run that started from another one's models without stating their cost."""
    first, started = files.config.get("start_from") or None, files.stated.get("started_from", {})
    files.check("config.yaml", {"start_from": first}, {"start_from": started.get("run")}, by="privacy.json")
    if first is not None and not started.get("earlier"):
        raise files.refusal("privacy.json", "states no releases of the run that it started from")


def _check_target(files: RunFiles, epsilon: float) -> None:
    """Refuse another cost in the summary, and settings with another target."""
    due = {name: files.stated.get(name) for name in ("num_rounds", "secure")} | {"delta": files.delta}
    if not str(files.summary.get("version")).startswith("0.1."):  # which stated the rounds made so far
        due["epsilon"] = epsilon
    files.check("summary.json", files.summary, due, by="privacy.json")
    most = files.config.get("max_epsilon")
    target = files.config.get("epsilon") if files.settings is None else files.settings.target_epsilon
    for name, value in {"epsilon": target, "max_epsilon": most}.items():
        least = _LEAST_SHARE * target - 1e-3 if name == "epsilon" and target is not None and most is None else 0.0
        if value is not None and not least <= epsilon <= value * (1 + ALIKE):
            raise files.refusal("config.yaml", f"has {name} = {value:g}, and the run costs {epsilon:.6g}")


def _due(files: RunFiles, part: Part, earlier: tuple[Part, ...]) -> dict[str, Any]:
    """The numbers of the statement."""
    from rrcluster.privacy.accounting import account, epsilon
    from rrcluster.privacy.evidence import derived, risk

    stated, (event, count), members = files.stated, part, files.among_members
    delta, accountant = files.delta, str(stated.get("accountant"))
    observed: Any = event.seen()
    adjacency = event.adjacency
    if members is not None:  # observed by a member, which knows its own share of the noise
        honest = members["least_honest"]
        if type(members["most_colluders"]) is not int:
            raise TypeError("most_colluders is not a whole number")
        shares = honest - (not members["most_colluders"])
        observed = replace(observed, noise_multiplier=event.noise_multiplier * math.sqrt(shares / honest))
        adjacency = "zero-out"
    whole, seen = (epsilon(each, num_rounds=count, delta=delta, accountant=accountant) for each in (event, observed))
    rows = [asdict(row) for row in account(event, num_rounds=count, delta=delta)]
    due: dict[str, Any] = {
        "delta": max(delta, stated["delta"]) if members is not None else delta,
        "epsilon": whole,
        "adjacency": adjacency,
        "sampling": event.sampling,
        "accountants": rows,
        "bracket": _bracket(stated.get("bracket"), rows[0]["epsilon"], part, delta),
        "participation": {"towards": [{"neighbours": adjacency, "epsilon": whole}, {"epsilon": seen}]},
        **derived(event, num_rounds=count, delta=delta, accountant=accountant),
    }
    if members is not None:
        due["risk"] = risk(observed, num_rounds=count, delta=delta, accountant=accountant)
    _check_risk_in_words(files, due["risk"])
    if "risk" in stated:  # older versions called seeded runs private
        due["private"] = stated.get("secure") is True
    if not files.selected:
        due["participation"]["most_participations"] = count
    if earlier:
        due["started_from"] = _together(files, (*earlier, part))
    return due


def _check_risk_in_words(files: RunFiles, risk: Mapping[str, float]) -> None:
    """Refuse a sentence on risk with less than these numbers: others read it, and do not recompute it."""
    said = re.findall(r"at most ([\d.]+)%|, ([\d.]+)% while", str(files.stated.get("risk_in_words", "")))
    quoted = [float(one or other) for one, other in said]
    exact = [100 * risk["at_1_percent"], 100 * risk["at_5_percent"], 50 * (1 + risk["advantage"])]
    less = [shown < due * (1 - ALIKE) for shown, due in zip(quoted, exact, strict=False)]
    if "risk_in_words" in files.stated and (len(quoted) != len(exact) or any(less)):
        raise files.refusal("privacy.json", f"has risk_in_words with {quoted}%, and its event gives {exact}%")


def _bracket(stated: Any, epsilon: float | None, part: Part, delta: float) -> Any:
    """The stated bracket around `epsilon`; a missing or lower upper end is recomputed."""
    from rrcluster.privacy.evidence import bracket

    if not isinstance(stated, Mapping) or epsilon is None or stated.get("least") is None:
        return stated
    most = stated.get("most")
    if most is None or most < epsilon:
        most = bracket(part[0], num_rounds=part[1], delta=delta).most
    return {"least": min(stated["least"], epsilon), "most": most}


def _together(files: RunFiles, parts: tuple[Part, ...]) -> dict[str, Any]:
    """The cost of a run and of the models it started from, as numbers and in words."""
    from rrcluster.privacy.composition import account_together

    rows = account_together(parts, delta=files.delta)
    total = min((row.epsilon for row in rows if row.epsilon is not None), default=None)
    said, due = [files.stated["started_from"].get("what"), *files.stated.get("notes", [])], epsilon_text(total)
    quoted = [epsilon for text in said for epsilon in re.findall(r"epsilon = ([\d.]+)", str(text))]
    files.check("privacy.json", {"notes": quoted}, {"notes": [due] * len(quoted)}, by="its event")
    return {"epsilon_together": total}


NO_PRIVACY = "none (no privacy)"
NO_BOUND = "no finite bound"


def epsilon_text(epsilon: float | None, *, private: bool = True) -> str:
    """Two decimals (two significant digits below 0.01), rounded up; words where there is no number."""
    if not private:
        return NO_PRIVACY
    if epsilon is None:
        return NO_BOUND
    if abs(epsilon) >= 1e9:  # meaningless, and too many digits to write out
        return "more than 1e9" if epsilon > 0 else NO_BOUND
    if epsilon >= 0.01 or epsilon <= 0:
        return rounded_up(epsilon, 2)
    return f"{digits_up(epsilon, 2):f}"


_GUESSED = {
    "add-remove": "whether you took part",
    "replace-one": "whether a data set is yours",
    "zero-out": "whether you contributed anything",
}


def risk_text(risk: Mapping[str, float], adjacency: str, *, sampled: bool) -> str:
    """The statement's `risk` in words, rounded up, with its limits. `sampled`: cohorts are secret."""
    known = "everything else but who was drawn" if sampled else "everything else"
    even = (1 + risk["advantage"]) / 2
    one, five, most = (rounded_up(100 * share, 1) + "%" for share in (risk["at_1_percent"], risk["at_5_percent"], even))
    return (
        f"Somebody who sees all that was released, knows {known} and guesses {_GUESSED[adjacency]} is right in "
        f"at most {one} of the cases where it is so while wrong in 1% of those where it is not, {five} while wrong in "
        f"5%, and right in at most {most} of all where both are equally likely. This does not bound what the models "
        "tell about people like you, nor what somebody learns elsewhere."
    )


def rounded_up(value: float, decimals: int) -> str:
    """A finite number with so many decimals, rounded up."""
    return f"{Decimal(str(value)).quantize(Decimal(1).scaleb(-decimals), rounding=ROUND_CEILING):f}"


def digits_up(value: float, digits: int) -> Decimal:
    """A positive number with so many significant digits, rounded up."""
    exact = Decimal(str(value))
    return exact.quantize(Decimal(1).scaleb(exact.adjusted() + 1 - digits), rounding=ROUND_CEILING)
