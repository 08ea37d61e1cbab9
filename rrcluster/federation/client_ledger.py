"""A member's own write-ahead ledger: the attempts it joined.

A server that is not trusted cannot be a client's accountant. The ledger is on the client's disk, spans federations, and
is written before anything that depends on data leaves the client. It counts *attempts*: once a masked sum is sent, the
other members can unmask it without its sender, so an attempt that fails afterwards is spent too; in plain mode, where
the server is trusted, it counts rounds, which the server may ask for again. It refuses more than the federation's plan
has releases, and an attempt that is not later than the last one joined (a replay, or one in which the daemon died and
lost its secrets).

It also has what every training costs that the member agreed to, so that a second training of the same clients adds up,
and one that would bring them above the operator's lifetime budget is refused before it is signed.

A member's ledger and the agreements it signed: what a training costs is written down before it is signed.
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


_WAY_OUT = "the budget spent is unknown; restore the file from a copy, or leave the federation."


@dataclass(frozen=True)
class TrainingCost:
    """What a training costs a client that takes part in all of it: its whole plan, however it ends."""

    name: str
    event: Mapping[str, Any]  # as privacy.json describes it
    participations: int
    adjacency: str
    delta: float


def cost_together(costs: Sequence[TrainingCost]) -> float:
    """Epsilon of trainings of the same clients, at the largest of their deltas; PrivacyError where none is known."""
    relations = sorted({cost.adjacency for cost in costs})
    if len(relations) > 1:
        raise PrivacyError(
            f"the trainings are private under different relations ({' and '.join(relations)}), which do not add up to "
            "one epsilon; agree to trainings of one mode, or keep a ledger for each."
        )
    parts = tuple((read_event(dict(cost.event), Path("ledger.jsonl")), cost.participations) for cost in costs)
    check_composable(parts)
    rows = account_together(parts, delta=max(cost.delta for cost in costs))
    known = [row.epsilon for row in rows if row.epsilon is not None]
    if not known:
        raise PrivacyError("what the trainings cost together cannot be accounted; keep to fewer of them.")
    return min(known)


class ClientLedger:
    """Attempts of one member, on disk. It only ever grows."""

    def __init__(self, path: Path, *, lifetime: float | None = None) -> None:
        """Open the ledger, or start one; `lifetime` is the epsilon of all trainings together that the operator set."""
        make_folders(path.parent)
        self._path, self._lifetime = path, lifetime
        self._count: Counter[str] = Counter()
        with self._locked():  # a daemon may be in the middle of a line, which is not torn
            pass

    def _read(self) -> None:
        path = self._path
        if path.exists():
            drop_torn_line(path)
        lines = read_json_lines(path, damaged="refuse", way_out=_WAY_OUT) if path.exists() else []
        self._costs = {str(line["federation"]): _cost(path, line) for line in lines if "event" in line}
        entries = [_entry(path, line) for line in lines if "event" not in line]
        count = Counter(federation for federation, _, _ in entries)
        if any(count[federation] < known for federation, known in self._count.items()):
            raise RunFolderError(f"{path}: holds fewer attempts than before, so a part of it is lost; {_WAY_OUT}")
        self._count = count
        self._last = {federation: (round_index, attempt) for federation, round_index, attempt in entries}
        self._rounds = Counter(federation for federation, _ in {entry[:2] for entry in entries})

    def joined(self, federation: bytes) -> int:
        """Attempts of this federation that the member took part in."""
        return self._count[federation.hex()]

    def check_signed(self, federation: bytes) -> None:
        """Refuse a ledger without the cost of a training that was signed: it was lost, or is an old copy."""
        if federation.hex() not in self._costs:
            raise RunFolderError(
                f"{self._path}: has no line of the training that was signed, so the file, or a part of it, is lost; "
                f"{_WAY_OUT}"
            )

    def agree(self, federation: bytes, cost: TrainingCost) -> float:
        """Write down what a training costs before it is signed; the epsilon of all trainings together.

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
        """A second daemon of the member must see what this one writes."""
        with explain_write(self._path), locked(self._path):
            self._read()
            yield

    def _together(self, name: str, cost: TrainingCost) -> float:
        """Epsilon of the trainings joined so far and this one; PrivacyError above the lifetime budget."""
        others = [key for key in self._count if key != name]
        if any(key not in self._costs for key in others):
            raise PrivacyError(f"{self._path}: a training has no cost written down; {_WAY_OUT}")
        total = cost_together([*(self._costs[key] for key in others), cost])
        if self._lifetime is not None and total > self._lifetime:
            raise PrivacyError(
                f"with {cost.name} the clients' trainings cost epsilon = {epsilon_text(total)} together, above the "
                f"lifetime budget of {self._lifetime:g} that the operator set; do not take part, or ask for more noise."
            )
        return total

    def join(self, federation: bytes, round_index: int, attempt: int, *, limit: int, repeats: bool = False) -> None:
        """Before anything that depends on data leaves the member.

        PrivacyError beyond the releases that the plan allows; ProtocolError for an attempt that is not a later one.
        With `repeats` attempts at one round count once: a server that is trusted charges what it releases, and asks
        again after a failure.
        """
        with self._locked():
            self._join(federation.hex(), (round_index, attempt), limit, repeats)

    def _join(self, name: str, asked: tuple[int, int], limit: int, repeats: bool) -> None:
        round_index, attempt = asked
        if self._last.get(name, asked)[1] == _SEALED:
            raise PrivacyError("this folder is a restored copy, and takes no part in a training that it had signed.")
        if name in self._last and asked <= self._last[name]:
            raise ProtocolError(
                f"round {round_index}, attempt {attempt} is not later than the last one joined; the server must start "
                "a new attempt."
            )
        again = repeats and name in self._last and round_index == self._last[name][0]
        if not again and (self._rounds if repeats else self._count)[name] >= limit:
            raise PrivacyError(
                f"this member has joined the {limit} attempts that were agreed on; enrol again under a new budget."
            )
        if self._lifetime is not None and not self._count[name]:  # another training may have been joined since
            if name not in self._costs:
                raise PrivacyError(f"{self._path}: the training has no cost written down; sign it first.")
            self._together(name, self._costs[name])
        line = json.dumps({"federation": name, "round": round_index, "attempt": attempt})
        append_line(self._path, line)  # on disk when it returns
        self._last[name] = asked
        self._count[name] += 1
        self._rounds[name] += not again


_SEALED = 2**62  # an attempt that none is later than


def seal(path: Path) -> None:
    """In a ledger that may be an old copy: its trainings count as joined, and no attempt at one is joined any more."""
    lines = read_json_lines(path, damaged="refuse", way_out=_WAY_OUT)
    with explain_write(path), locked(path):
        for name in {str(line["federation"]): None for line in lines}:
            append_line(path, json.dumps({"federation": name, "round": _SEALED, "attempt": _SEALED}))


def _cost(path: Path, line: Mapping[str, Any]) -> TrainingCost:
    """The cost of a training, from its line."""
    names = [part.name for part in fields(TrainingCost)]
    kinds = (str, dict, int, str, float)
    if tuple(type(line.get(name)) for name in names) != kinds:
        raise RunFolderError(f"{path}: a line holds no cost; {_WAY_OUT}")
    return TrainingCost(**{name: line[name] for name in names})


def _entry(path: Path, line: Mapping[str, Any]) -> tuple[str, int, int]:
    """Federation, round and attempt of a line."""
    entry = line.get("federation"), line.get("round"), line.get("attempt")
    if tuple(map(type, entry)) != (str, int, int):
        raise RunFolderError(f"{path}: a line holds no attempt; {_WAY_OUT}")
    return cast(tuple[str, int, int], entry)


def ledger_of(folder: MemberFolder) -> ClientLedger:
    """The member's ledger, over all trainings."""
    return ClientLedger(folder.path / "ledger.jsonl", lifetime=folder.settings().get("lifetime_epsilon"))


def agree_to(folder: MemberFolder, agreed: "AgreedRun") -> float:
    """Epsilon of all trainings with this one, towards whoever learns most; PrivacyError above the lifetime budget."""
    guarantee, secure = agreed.guarantee(), agreed.secure
    event = agreed.plan.event if secure is None else secure.event_towards_members
    name, times = agreed.agreement.name, agreed.plan.num_participations
    cost = TrainingCost(name, describe(event), times, guarantee["adjacency"], guarantee["delta"])
    return ledger_of(folder).agree(agreed.agreement.digest, cost)


def signed_cost(folder: MemberFolder, agreed: "AgreedRun") -> float:
    """The same for an agreement that was signed; RunFolderError where the ledger knows nothing of it."""
    ledger_of(folder).check_signed(agreed.agreement.digest)
    return agree_to(folder, agreed)
