"""Which mechanisms can carry accuracy and loss inside their release, and why the others cannot."""

from rrcluster import checks
from rrcluster.errors import PrivacyError

_REFUSED = {
    "identifier": "under replace-one its event accounts noisy identifiers and sums for 2C, and has no room for more",
    "none": "it releases nothing privately, and diagnostics.jsonl has the exact values",
}


def check_evaluation(mechanism: str, private_evaluation: float) -> None:
    """Refuse a weight above 0 under any mechanism but `joint`."""
    checks.non_negative(private_evaluation=private_evaluation)
    if private_evaluation and mechanism != "joint":
        raise PrivacyError(
            f"private_evaluation = {private_evaluation:g} with mechanism = {mechanism}: {_REFUSED[mechanism]}; set it "
            "to 0, or use mechanism = joint."
        )
