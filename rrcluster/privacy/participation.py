"""Who takes part, and towards whom which epsilon holds, in the words and numbers of the privacy statement."""

from typing import Any

from rrcluster.privacy.plan import PrivacyPlan

SECRET = "Who took part in a round is kept secret."
_NOTHING_SECRET = (
    "Who may take part in which round is public, and nothing about participation has to be kept secret: epsilon does "
    "not rest on it."
)
_SLOT_PUBLIC = "Which slot a client is in is public."


def participation_name(plan: PrivacyPlan) -> str:
    """How clients come to take part, by the law of the plan's sampler."""
    if plan.event.sampling != "Poisson":
        return "fixed-size"
    if plan.mechanism.slots.count == 1:
        return "everybody" if plan.event.sample_rate == 1 else "poisson"
    return "schedule" if plan.event.sample_rate == 1 else "within-slot"


def secrets(plan: PrivacyPlan) -> list[str]:
    """What has to be kept secret for the plan's epsilon to hold, as sentences."""
    if plan.event.sample_rate == 1:
        return [_NOTHING_SECRET]
    return [SECRET, *([_SLOT_PUBLIC] if plan.mechanism.slots.count > 1 else [])]


def describe_participation(plan: PrivacyPlan) -> dict[str, Any]:
    """Slots, cap and correlation; and both epsilons: for observers of the models, and for who sees who took part."""
    slots = plan.mechanism.slots
    described = {
        "name": participation_name(plan),
        "secret": " ".join(secrets(plan)),
        "most_participations": plan.num_participations,
        "towards": [
            {
                "who": "observers of the models and of everything else that is released, who do not see who took part",
                "neighbours": plan.event.adjacency,
                "epsilon": plan.epsilon(),
            },
            {
                "who": "somebody who also sees who takes part in which round; presence itself is not protected from "
                "them, what a client contributes is",
                "neighbours": "zero-out" if plan.event.adjacency == "add-remove" else plan.event.adjacency,
                "epsilon": plan.epsilon_seen(),
            },
        ],
    }
    if slots.count == 1:
        return described
    return described | {
        "slots": slots.count,
        "slot_key": slots.key,
        "rounds_between_participations": slots.count,
        **plan.mechanism.describe().correlation,
    }
