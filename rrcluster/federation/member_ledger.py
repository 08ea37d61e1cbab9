"""A member's ledger and the agreements it signed: what a training costs is written down before it is signed."""

from typing import TYPE_CHECKING

from rrcluster.federation.client_ledger import ClientLedger, TrainingCost
from rrcluster.federation.member_folder import MemberFolder

if TYPE_CHECKING:
    from rrcluster.federation.agreed_run import AgreedRun


def ledger_of(folder: MemberFolder) -> ClientLedger:
    """The member's ledger, over all trainings."""
    return ClientLedger(folder.path / "ledger.jsonl", lifetime=folder.settings().get("lifetime_epsilon"))


def agree_to(folder: MemberFolder, agreed: "AgreedRun") -> float:
    """Epsilon of all trainings with this one; PrivacyError above the operator's lifetime budget."""
    guarantee = agreed.guarantee()
    cost = TrainingCost.of_plan(
        agreed.agreement.name, agreed.plan, adjacency=guarantee["adjacency"], delta=guarantee["delta"]
    )
    return ledger_of(folder).agree(agreed.agreement.digest, cost)


def signed_cost(folder: MemberFolder, agreed: "AgreedRun") -> float:
    """The same for an agreement that was signed; RunFolderError where the ledger knows nothing of it."""
    ledger_of(folder).check_signed(agreed.agreement.digest)
    return agree_to(folder, agreed)
