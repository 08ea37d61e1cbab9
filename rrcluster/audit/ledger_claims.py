"""What a ledger does and refuses, line by line: charges are on disk first, repeats cost what their noise costs."""

import contextlib
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from rrcluster.audit.finding import Finding
from rrcluster.errors import PrivacyError, RunFolderError
from rrcluster.privacy.events import PoissonGaussian
from rrcluster.privacy.ledger import Ledger, num_charged, read_charges

_EVENT, _OTHER = PoissonGaussian(1.0, 0.1), PoissonGaussian(2.0, 0.1)
_SETUP = {"config": "a", "torch": "1"}


def check_ledger_rules() -> Finding:
    """Every rule of the ledger, tried. Deterministic."""
    wrong = ""
    for rule in RULES:
        with tempfile.TemporaryDirectory() as folder:
            try:
                wrong = wrong or rule(Path(folder) / "ledger.jsonl")
            except Exception as error:  # a rule that cannot be tried is not kept
                wrong = wrong or f"{rule.__name__}: {type(error).__name__}: {error}"
    claim = "charges are on disk first, counted, limited, and never changed"
    return Finding("ledger", "ledger rules", claim, wrong or f"so, {len(RULES)} rules", not wrong)


def secure_repeats_are_charged(path: Path) -> str:
    """A secure round made again has fresh noise, and is charged again, up to the limit."""
    ledger = Ledger(path, secure=True, limit=3)
    for round_index in (0, 0, 1):
        ledger.charge(round_index, _EVENT)
    if (ledger.num_charged, num_charged(read_charges(path), secure=True)) != (3, 3):
        return "a secure round that is repeated is not charged again"
    again = Ledger(path, secure=True, limit=3)
    if again.num_charged != 3:
        return "a ledger that is opened again forgets charges"
    if again.affords(2) or not _refused(PrivacyError, lambda: again.charge(2, _EVENT)):
        return "more releases than the limit are charged"
    return "" if not Ledger(path, secure=True).affords(2, limit=3) else "the plan's limit is not kept"


def seeded_repeats_are_free_and_identical(path: Path) -> str:
    """A seeded round made again is the same release: charged once, and refused on another setup."""
    ledger = Ledger(path, made_by=_SETUP)
    for round_index in (0, 1, 1):
        ledger.charge(round_index, _EVENT)
    if ledger.num_charged != 2 or len(read_charges(path)) != 2:
        return "a seeded round that is repeated is not one charge"
    other = Ledger(path, made_by=_SETUP | {"torch": "2"})
    return "" if _refused(PrivacyError, lambda: other.charge(1, _EVENT)) else "a round is repeated on another setup"


def charges_are_on_disk(path: Path) -> str:
    """When `charge` returns, the line is written and flushed; where it cannot be written, the charge fails."""
    for round_index in range(3):
        ledger = Ledger(path)
        with _counted_flushes() as flushes:
            ledger.charge(round_index, _EVENT)
        if len(read_charges(path)) != round_index + 1:
            return "a charge is not on disk when it returns"
        if not flushes:
            return "a charge is not flushed to the disk"
    blocked = Ledger(path / "no folder" / "ledger.jsonl")
    if not _refused(Exception, lambda: blocked.charge(0, _EVENT)):
        return "a charge that cannot be written is taken for made"
    return ""


def a_run_is_one_plan(path: Path) -> str:
    """Neither the event nor the settings of a run may change."""
    Ledger(path, made_by=_SETUP).charge(0, _EVENT)
    if not _refused(PrivacyError, lambda: Ledger(path, made_by=_SETUP).charge(1, _OTHER)):
        return "the event of a run may change"
    changed = _SETUP | {"config": "b"}
    return "" if _refused(PrivacyError, lambda: Ledger(path, made_by=changed)) else "the settings of a run may change"


def damage_is_refused(path: Path) -> str:
    """A torn last line was never released; any other damage, and a missing charge, is an unknown cost."""
    ledger = Ledger(path)
    for round_index in range(3):
        ledger.charge(round_index, _EVENT)
    whole = path.read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join([whole[0], "{damaged", whole[2]]) + "\n", encoding="utf-8")
    if not _refused(RunFolderError, lambda: Ledger(path)):
        return "damaged charges are passed over"
    path.write_text("\n".join(whole[:2]) + "\n" + whole[2][:9], encoding="utf-8")
    if Ledger(path).num_charged != 2:
        return "a torn last charge changes the others"
    path.write_text(whole[1] + "\n", encoding="utf-8")
    missing = _refused(RunFolderError, lambda: Ledger(path).check_covers(2))
    return "" if missing else "a released round without a charge is accepted"


RULES: tuple[Callable[[Path], str], ...] = (
    secure_repeats_are_charged,
    seeded_repeats_are_free_and_identical,
    charges_are_on_disk,
    a_run_is_one_plan,
    damage_is_refused,
)


def _refused(kind: type[Exception], call: Callable[[], object]) -> bool:
    try:
        call()
    except kind:
        return True
    return False


@contextlib.contextmanager
def _counted_flushes() -> Iterator[list[int]]:
    """The descriptors that are flushed to the disk meanwhile."""
    own, flushed = os.fsync, list[int]()

    def watched(descriptor: int) -> None:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            flushed.append(descriptor)
        own(descriptor)

    os.fsync = watched  # type: ignore[assignment]
    try:
        yield flushed
    finally:
        os.fsync = own
