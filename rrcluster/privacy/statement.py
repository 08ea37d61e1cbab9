"""The privacy statement of a run, for a reviewer: releases, guarantee, and exclusions."""

from collections.abc import Sequence
from typing import Any

from rrcluster.privacy.events import ADD_REMOVE
from rrcluster.privacy.ledger import describe
from rrcluster.privacy.plan import PrivacyPlan
from rrcluster.privacy.selection import Selection
from rrcluster.settings import usual_delta

_SECRET = "Who took part in a round is kept secret."
_NOTHING_SECRET = (
    "Who may take part in which round is public, and nothing about participation has to be kept secret: epsilon does "
    "not rest on it."
)


def participation_name(plan: PrivacyPlan) -> str:
    """The name of the participation scheme, by the plan's sampler."""
    if plan.event.sampling != "Poisson":
        return "fixed-size"
    if plan.mechanism.slots.count == 1:
        return "everybody" if plan.event.sample_rate == 1 else "poisson"
    return "schedule"


def secret(plan: PrivacyPlan) -> str:
    """The secrets on which the plan's epsilon depends."""
    return _NOTHING_SECRET if plan.event.sample_rate == 1 else _SECRET


def describe_participation(plan: PrivacyPlan) -> dict[str, Any]:
    """Slots, cap, correlation, and two epsilons: for observers of the models, and for observers of participation."""
    slots = plan.mechanism.slots
    described = {
        "name": participation_name(plan),
        "secret": secret(plan),
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


SEEDED = (
    "NOT PRIVATE: the noise came from a seeded generator, and whoever has the seed can subtract it. The epsilon below "
    "is what the same run costs with noise nobody can regenerate. Use these artefacts for research only."
)

SECURE = (
    "Releases with exact noise from the operating system: no seed was used, and nothing that would let the noise or "
    "the cohorts be regenerated was stored. The epsilon below holds for config.yaml, privacy.json, ledger.jsonl, "
    "rounds.jsonl, summary.json, models.safetensors and cluster-N.safetensors together, at whatever instant the run "
    "was stopped and resumed."
)

_SECURE_SLOTS = SECURE.replace("was stored.", "is stored once the run has ended.")

_BOUND = (
    "num_clients is a declared bound. Neighbours are populations of at most so many clients that differ in one; how "
    "many there are is as private as who they are."
)

TRUST = [
    "The server is trusted: it sees raw reports in memory. The guarantee holds against everybody who sees releases.",
    "One client id stands for one person, who has no second one.",
    "Each client is taken to compute alone; a simulation that batches clients stands for that.",
]
_ALONE = (
    "Each client computes alone, so that no bit of its report depends on others: runs of rrcluster see to that, and a "
    "federated system of one's own has to."
)
_FLOATING = ["The floating-point Gaussian is taken for the real one; sums before the noise are exact integers."]
_EXACT = [
    "The noise is a discrete Gaussian on the integer grid of the messages, sampled without rounding (Canonne, Kamath, "
    "Steinke 2020). Up to a factor within exp(+-10^-500) on every probability it is post-processing of the continuous "
    "Gaussian that the accountants take (Proposition 4 of docs/privacy.md).",
    "The operating system's generator is taken for a source of independent uniform bits; clients join, and identifiers "
    "are kept, with probabilities within 2^-53 of those stated.",
]
_FRESH_REPEAT = (
    "A round that was repeated after a crash is a new release and is charged again; ledger.jsonl has every charge."
)
_EXACT_REPEAT = (
    "A round that was repeated after a crash is the identical release, from what was written down before it, and is "
    "charged once. For that, and because later noise builds on earlier noise, checkpoint/ holds noise of the last "
    "rounds while the run lasts. It uncovers exact sums: keep it from everybody. It is removed at the end."
)
_STOPPED = (
    "epsilon is that of the whole plan, also if the run is stopped early: whoever stops it may have looked at "
    "releases, and then the cost of those made so far would be no guarantee."
)
_UNACCOUNTED_TUNING = (
    "Choosing settings (B, k, clip, learning rates, rounds) by looking at private data, and picking the best of "
    "several runs or seeds: each look costs budget that is not in this epsilon."
)
_NOT_COVERED = [
    "diagnostics.jsonl and everything drawn from it: accuracy, loss and clustering accuracy are computed from raw "
    "client data without noise.",
    "How long rounds take, and publishing several runs on the same clients: their costs add up.",
    "Personal coordinates and the client's own choice of a model: they stay on the client.",
]
_NOT_COVERED_SECURE = [
    *_NOT_COVERED[1:],
    "How long a round took, when files were written and what the server's memory or swap holds: they depend on the "
    "cohort. No times and no diagnostics are written.",
]


OWN_DATA = (
    "What was decided by looking at all clients' rows before the run read them: types that a program inferred for a "
    "column (pandas.read_csv does, unless dtype=str), and columns, classes, vocabularies and ranges chosen by their "
    "values."
)

_SELECTED = [
    "What settings were on offer, and any choice of settings beyond the selection, such as another sweep after seeing "
    "this result: each costs budget that is not in this epsilon.",
    "How many runs the selection made, and how long it took, which tells: keep both secret.",
]


def trust_in(own_code: Sequence[str]) -> str:
    """The assumption of a run with user code."""
    return (
        f"Code of the user's own ({'; '.join(own_code)}) is trusted to keep nothing of one client for the next. "
        "Networks, losses and metrics were tried on made-up samples, and secure runs compute every client with copies "
        "of its own; what functions, closures, classes, global variables, weak references and objects that say "
        "themselves how they are copied (__deepcopy__) keep may escape both."
    )


def statement(plan: PrivacyPlan) -> dict[str, Any]:
    """Everything a reviewer needs to check the guarantee of `plan`, as plain data."""
    if not plan.private:
        return {
            "private": False,
            "epsilon": None,
            "artefacts": "NOT PRIVATE: mechanism none adds no noise. There is no guarantee to state.",
            "accountants": [],
            "notes": [],
            "not_covered": [_UNACCOUNTED_TUNING, *_NOT_COVERED],
        }
    from rrcluster.privacy.accounting import account
    from rrcluster.privacy.cost import risk_text
    from rrcluster.privacy.evidence import evidence

    selection = plan.selection
    event, count, accountant = plan.accounted
    rows = account(event, num_rounds=count, delta=plan.delta)
    shown = evidence(event, num_rounds=count, delta=plan.delta, accountant=accountant)
    return {
        "private": plan.secure,  # these files: seeded noise can be subtracted
        "artefacts": _SECURE_SLOTS if plan.stores_rounds else SECURE if plan.secure else SEEDED,
        "secure": plan.secure,
        "unit": "one client, with all of its data, over the whole run",
        "mechanism": plan.mechanism.name,
        "adjacency": plan.event.adjacency,
        "sampling": plan.event.sampling,
        "released": _released(plan),
        "noise": plan.mechanism.describe().noise,
        "num_rounds": plan.num_rounds,
        "reserve_rounds": plan.reserve_rounds,
        "num_releases": plan.num_releases,
        "num_clients": plan.mechanism.num_clients,
        "delta": plan.delta,
        "epsilon": plan.epsilon(),
        "accountant": accountant,
        "participation": describe_participation(plan),
        "event": describe(event),
        **({} if selection is None else {"selection": _selection(selection)}),
        "accountants": [{"accountant": row.accountant, "epsilon": row.epsilon, "reason": row.reason} for row in rows],
        **shown,
        "risk_in_words": risk_text(shown["risk"], plan.event.adjacency, sampled=event.seen() != event),
        "notes": [
            *_delta_notes(plan.delta, plan.mechanism.num_clients),
            *([_BOUND] if plan.event.adjacency == ADD_REMOVE else []),
            *_reserve_notes(plan),
            _STOPPED,
            TRUST[0],
            secret(plan),
            TRUST[1],
            _ALONE if plan.secure else TRUST[2],
            *((*_EXACT, _EXACT_REPEAT if plan.stores_rounds else _FRESH_REPEAT) if plan.secure else _FLOATING),
        ],
        "not_covered": [
            *([_UNACCOUNTED_TUNING] if selection is None else _SELECTED),
            *(_NOT_COVERED_SECURE if plan.secure else _NOT_COVERED),
        ],
    }


def _selection(selection: Selection) -> dict[str, Any]:
    event = selection.event
    return {
        "what": "This run is the best of a random number of runs, and epsilon pays for all of them. Nothing of the "
        "others was kept.",
        "number_of_runs": f"{event.law} with mean {event.mean_repetitions:g}, secret",
        "settings": f"each run drew one of the combinations uniformly: {'; '.join(selection.among)}",
        "score": selection.score,
        "charges": selection.charges,
    }


def _reserve_notes(plan: PrivacyPlan) -> list[str]:
    if plan.num_releases == plan.num_rounds:
        return []
    if plan.num_releases < plan.num_rounds + plan.reserve_rounds:
        return [f"epsilon covers {plan.num_releases} releases, after which max_epsilon ends the run."]
    return [
        f"epsilon covers {plan.num_releases} releases: {plan.num_rounds} rounds, and {plan.reserve_rounds} in reserve."
    ]


def _released(plan: PrivacyPlan) -> list[str]:
    k = plan.mechanism.num_clusters
    d_s, d_c = plan.mechanism.coordinates.shared, plan.mechanism.coordinates.clustered
    shared = [f"one noisy sum of {d_s} shared coordinates"] if d_s else []
    clustered = [f"{k} noisy sums of {d_c} clustered coordinates"] if d_c else []
    return [
        *shared,
        *clustered,
        *plan.mechanism.describe().released,
        "in every round, for empty clusters and cohorts too, and all models made of these",
    ]


def _delta_notes(delta: float, num_clients: int) -> list[str]:
    if delta <= 1 / (10 * num_clients):
        usual = delta == usual_delta(num_clients) != usual_delta(1)
        return [f"delta = {delta:g} is the default for {num_clients:,} clients: at most 1/(10 M)."] if usual else []
    return [
        f"delta = {delta:g} is weak: between 1/(10 M) = {1 / (10 * num_clients):g} and 1/M = {1 / num_clients:g}. At "
        "1/M, publishing one random client's data outright would satisfy the definition; quote this number only beside "
        "results of others at the same delta."
    ]
