"""Start a run from the models of a finished one, under a budget of its own, and say what both cost together."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rrcluster.errors import ConfigError, PrivacyError
from rrcluster.methods import Method
from rrcluster.models import Model
from rrcluster.privacy.composition import account_together, check_composable, one_relation
from rrcluster.privacy.cost import Part, epsilon_text, folder_cost
from rrcluster.privacy.ledger import describe
from rrcluster.privacy.plan import PrivacyPlan
from rrcluster.privacy.statement import statement
from rrcluster.runs.load import load
from rrcluster.types import Models


@dataclass(frozen=True)
class Start:
    """The first models of a run, and the releases they are made of."""

    run: str  # as the setting names it
    models: Models
    parts: tuple[Part, ...]  # events of the run, and of those that it started from itself

    def describe(self, plan: PrivacyPlan) -> dict[str, Any]:
        """What the privacy statement says of it."""
        if not plan.private:
            return {}
        parts = [*self.parts, (plan.event, plan.num_participations)]
        rows = account_together(parts, delta=plan.delta)
        total = min((row.epsilon for row in rows if row.epsilon is not None), default=None)
        cost = "no finite epsilon" if total is None else f"epsilon = {epsilon_text(total)} at delta = {plan.delta:g}"
        return {
            "run": self.run,
            "what": f"The first models are those that another run released. For a client that took part in both, the "
            f"releases of both count: {cost} together. The epsilon stated above is that of this run's releases alone.",
            "epsilon_together": total,
            "earlier": [{"event": describe(event), "num_releases": count} for event, count in self.parts],
        }


def load_start(run: str, *, method: Method, network: Model, num_clusters: int, plan: PrivacyPlan) -> Start:
    """The models of `run`, if they fit and are released in a way that this run's statement can build on."""
    trained = load(run, model=network)
    if trained.method.name != method.name or trained.num_clusters != num_clusters:
        raise ConfigError(
            f"start_from = {run} trained {trained.num_clusters} models by {trained.method.name}, and this run "
            f"trains {num_clusters} by {method.name}; use the same method and num_clusters."
        )
    if not plan.private:
        return Start(run, trained.models, ())
    cost = folder_cost(Path(run))
    if cost is None:
        raise PrivacyError(
            f"start_from = {run} is a run without privacy: its models are raw, and no noise added later would protect "
            "its clients. Start from a private run; models trained on public data are given as a module's weights."
        )
    if plan.secure and not cost.secure:
        raise PrivacyError(
            f"start_from = {run} is a seeded run, for research only; a secure run cannot build on it. Make that run "
            "with --secure too."
        )
    if cost.selected:
        raise PrivacyError(f"start_from = {run} is the outcome of a private selection, which is not composed here.")
    parts = (*cost.earlier, cost.part)
    check_composable([*parts, (plan.event, plan.num_participations)])
    one_relation({cost.adjacency, plan.event.adjacency})
    return Start(run, trained.models, parts)


def full_statement(plan: PrivacyPlan, start: Start | None) -> dict[str, Any]:
    """The plan's statement, and what it costs together with the run whose models it starts from."""
    stated = statement(plan)
    if start is None:
        return stated
    earlier = start.describe(plan)
    return stated | {"started_from": earlier, "notes": [*([earlier["what"]] if earlier else []), *stated["notes"]]}
