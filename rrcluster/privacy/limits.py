"""Identifiers that no accountant here will put a number to: practically public ones, or more cases than enumerated."""

from rrcluster.errors import UnsupportedEvent
from rrcluster.privacy.events import FixedSizeByLoss, FixedSizeKary, RoundEvent

# Nearer to 1, rounding of keep_probability would decide what the others' share, and so the loss, is.
_MIN_LEAVE_PROBABILITY = 1e-9
_MAX_IDENTIFIER_EPSILON = 40.0  # beyond, the other clusters' share is below 1e-8
_MAX_ENUMERATED = 16  # clusters


def check_identifiers(event: RoundEvent) -> None:
    """Raise UnsupportedEvent where the identifiers of `event` cannot be accounted, with the reason."""
    if isinstance(event, FixedSizeKary) and 1 - event.keep_probability < _MIN_LEAVE_PROBABILITY:
        raise UnsupportedEvent(
            f"keep_probability = {event.keep_probability!r} leaves less than {_MIN_LEAVE_PROBABILITY} for "
            "the other clusters: the choice is practically public; raise the identifier noise."
        )
    if not isinstance(event, FixedSizeByLoss):
        return
    if event.identifier_epsilon > _MAX_IDENTIFIER_EPSILON:
        raise UnsupportedEvent(
            f"identifier_epsilon = {event.identifier_epsilon:.4g} is more than {_MAX_IDENTIFIER_EPSILON:g}: the choice "
            "is practically public; raise the noise, or give the identifiers a smaller share."
        )
    if event.num_clusters > _MAX_ENUMERATED:
        raise UnsupportedEvent(
            f"num_clusters = {event.num_clusters} is more than {_MAX_ENUMERATED}, up to which all worst cases of a "
            "choice by loss are enumerated; use identifier = kary or gaussian."
        )
