"""A member's own write-ahead ledger of the attempts it joined and the cost of the agreements it signed.

An untrusted server cannot be a client's accountant. The ledger is on the client's disk, spans federations, and is
written before anything that depends on data leaves the client. It counts *attempts*: once a masked sum is sent, the
other members can unmask it without its sender, so an attempt that fails afterwards is spent too; in plain mode, where
the server is trusted, it counts rounds, which the server may request again. It refuses more attempts than the
federation's plan has releases, and an attempt that is not later than the last one joined (a replay, or one in which the
daemon died and lost its secrets).

It also records the cost of every training the member agreed to, before it signs, so that trainings of the same clients
add up, and one that would exceed the operator's lifetime budget is refused.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rrcluster.errors import PrivacyError, ProtocolError, RunFolderError
from rrcluster.federation.member_folder import MemberFolder
from rrcluster.privacy.composition import account_together, check_composable
from rrcluster.privacy.cost import epsilon_text
from rrcluster.privacy.ledger import describe, read_event
from rrcluster.storage import append_line, drop_torn_line, explain_write, locked, make_folders, read_json_lines

if TYPE_CHECKING:
    from rrcluster.federation.agreed_run import AgreedRun


_WAY_OUT = "the spent budget is unknown; restore the file from a copy, or leave the federation."


@dataclass(frozen=True)
class TrainingCost:
    """The cost of a training for a client in every round: the whole plan, however it ends."""

    name: str
    event: Mapping[str, Any]  # in the format of privacy.json
    participations: int
    adjacency: str
    delta: float


def cost_together(costs: Sequence[TrainingCost]) -> float:
    """Epsilon of several trainings of the same clients, at their largest delta; PrivacyError if unknown."""
    relations = sorted({cost.adjacency for cost in costs})
    if len(relations) > 1:
        raise PrivacyError(
            f"the trainings are private under different relations ({' and '.join(relations)}), which do not add up to "
            "one epsilon; agree to trainings of one mode, or keep a ledger for each."
        )
    parts = tuple((read_event(dict(cost.event), Path("ledger.jsonl")), cost.participations) for cost in costs)
    check_composable(parts)
    rows = account_together(parts, delta=max(cost.delta for cost in costs))
    epsilons = [row.epsilon for row in rows if row.epsilon is not None]
    if not epsilons:
        raise PrivacyError("the total cost of the trainings cannot be accounted; take part in fewer of them.")
    return min(epsilons)


class ClientLedger:
    """Attempts of one member, on disk. It only ever grows."""

    def __init__(self, path: Path, *, lifetime: float | None = None) -> None:
        """Open or create the ledger; `lifetime` is the operator's limit on the epsilon of all trainings together."""
        make_folders(path.parent)
        self._path, self._lifetime = path, lifetime
        self._count: Counter[str] = Counter()
        with self._locked():  # a daemon may be writing a line, which must not count as torn
            pass

    def _read(self) -> None:
        path = self._path
        if path.exists():
            drop_torn_line(path)
        lines = read_json_lines(path, damaged="refuse", way_out=_WAY_OUT) if path.exists() else []
        self._costs = {str(line["federation"]): _cost(path, line) for line in lines if "event" in line}
        entries = [_entry(path, line) for line in lines if "event" not in line]
        count = Counter(federation for federation, _, _ in entries)
        if any(count[federation] < before for federation, before in self._count.items()):
            raise RunFolderError(f"{path}: holds fewer attempts than before, so a part of it is lost; {_WAY_OUT}")
        self._count = count
        self._last = {federation: (round_index, attempt) for federation, round_index, attempt in entries}
        self._rounds = Counter(federation for federation, _ in {entry[:2] for entry in entries})

    def joined(self, federation: bytes) -> int:
        """The number of attempts of this federation that the member joined."""
        return self._count[federation.hex()]

    def check_signed(self, federation: bytes) -> None:
        """Refuse a ledger that lacks the cost of a signed training: it was lost, or is an old copy."""
        if federation.hex() not in self._costs:
            raise RunFolderError(
                f"{self._path}: has no line of the training that was signed, so the file, or a part of it, is lost; "
                f"{_WAY_OUT}"
            )

    def agree(self, federation: bytes, cost: TrainingCost) -> float:
        """Record the cost of a training before it is signed; returns the epsilon of all trainings.

        Trainings that the member signed and never joined do not count. PrivacyError above the lifetime budget.
        """
        with self._locked():
            name = federation.hex()
            total = self._together(name, cost)
            if name not in self._costs:
                append_line(self._path, json.dumps({"federation": name, **asdict(cost)}))
                self._costs[name] = cost
        return total

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock the file, so that a second daemon of the member sees this one's lines."""
        with explain_write(self._path), locked(self._path):
            self._read()
            yield

    def _together(self, name: str, cost: TrainingCost) -> float:
        """Epsilon of the trainings joined so far plus this one; PrivacyError above the lifetime budget."""
        others = [key for key in self._count if key != name]
        if any(key not in self._costs for key in others):
            raise PrivacyError(f"{self._path}: a training has no recorded cost; {_WAY_OUT}")
        total = cost_together([*(self._costs[key] for key in others), cost])
        if self._lifetime is not None and total > self._lifetime:
            raise PrivacyError(
                f"with {cost.name} the clients' trainings cost epsilon = {epsilon_text(total)} together, above the "
                f"lifetime budget of {self._lifetime:g} that the operator set; do not take part, or ask for more noise."
            )
        return total

    def join(self, federation: bytes, round_index: int, attempt: int, *, limit: int, repeats: bool = False) -> None:
        """Record an attempt before anything that depends on data leaves the member.

        PrivacyError beyond the releases of the plan; ProtocolError for an attempt that is not a later one. With
        `repeats`, several attempts at one round count once: a trusted server charges each release, and asks again after
        a failure.
        """
        with self._locked():
            self._join(federation.hex(), (round_index, attempt), limit, repeats)

    def _join(self, name: str, attempt_id: tuple[int, int], limit: int, repeats: bool) -> None:
        round_index, attempt = attempt_id
        if self._last.get(name, attempt_id)[1] == _SEALED:
            raise PrivacyError("this folder is a restored copy, and takes no part in a training that it had signed.")
        if name in self._last and attempt_id <= self._last[name]:
            raise ProtocolError(
                f"round {round_index}, attempt {attempt} is not later than the last one joined; the server must start "
                "a new attempt."
            )
        again = repeats and name in self._last and round_index == self._last[name][0]
        if not again and (self._rounds if repeats else self._count)[name] >= limit:
            raise PrivacyError(
                f"this member has joined all {limit} attempts of the agreement; enrol again under a new budget."
            )
        if self._lifetime is not None and not self._count[name]:  # another training may have been joined since
            if name not in self._costs:
                raise PrivacyError(f"{self._path}: the training has no recorded cost; sign it first.")
            self._together(name, self._costs[name])
        line = json.dumps({"federation": name, "round": round_index, "attempt": attempt})
        append_line(self._path, line)  # returns after the line is flushed to disk
        self._last[name] = attempt_id
        self._count[name] += 1
        self._rounds[name] += not again


_SEALED = 2**62  # higher than any attempt


def seal(path: Path) -> None:
    """Close a ledger that may be an old copy: its trainings count in full, and none can be joined again."""
    lines = read_json_lines(path, damaged="refuse", way_out=_WAY_OUT)
    with explain_write(path), locked(path):
        for name in {str(line["federation"]): None for line in lines}:
            append_line(path, json.dumps({"federation": name, "round": _SEALED, "attempt": _SEALED}))


def _cost(path: Path, line: Mapping[str, Any]) -> TrainingCost:
    """The cost of a training, from its line."""
    names = [part.name for part in fields(TrainingCost)]
    kinds = (str, dict, int, str, float)
    if tuple(type(line.get(name)) for name in names) != kinds:
        raise RunFolderError(f"{path}: a line has no cost; {_WAY_OUT}")
    return TrainingCost(**{name: line[name] for name in names})


def _entry(path: Path, line: Mapping[str, Any]) -> tuple[str, int, int]:
    """The federation, round and attempt of a line."""
    entry = line.get("federation"), line.get("round"), line.get("attempt")
    if tuple(map(type, entry)) != (str, int, int):
        raise RunFolderError(f"{path}: a line has no attempt; {_WAY_OUT}")
    return cast(tuple[str, int, int], entry)


def ledger_of(folder: MemberFolder) -> ClientLedger:
    """The member's ledger of all trainings."""
    return ClientLedger(folder.path / "ledger.jsonl", lifetime=folder.settings().get("lifetime_epsilon"))


def agree_to(folder: MemberFolder, agreed: "AgreedRun") -> float:
    """Record the cost of a training; returns the epsilon of all trainings towards the party that learns most.

    PrivacyError above the lifetime budget.
    """
    guarantee, secure = agreed.guarantee(), agreed.secure
    event = agreed.plan.event if secure is None else secure.event_towards_members
    name, times = agreed.agreement.name, agreed.plan.num_participations
    cost = TrainingCost(name, describe(event), times, guarantee["adjacency"], guarantee["delta"])
    return ledger_of(folder).agree(agreed.agreement.digest, cost)


def signed_cost(folder: MemberFolder, agreed: "AgreedRun") -> float:
    """The same for a signed agreement; RunFolderError where the ledger has no record of it."""
    ledger_of(folder).check_signed(agreed.agreement.digest)
    return agree_to(folder, agreed)
