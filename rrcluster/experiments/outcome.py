"""What a run tells while it goes on, and when it has finished."""

from dataclasses import dataclass
from pathlib import Path

from rrcluster.simulation.evaluate import Evaluation
from rrcluster.types import Array, Models, NoisyEvaluation

_DIAGNOSTICS = ("accuracy", "loss", "clustering_accuracy", "worst_decile", "adjusted_rand", "clusters_alive")


@dataclass(frozen=True)
class Progress:
    """Where a run stands after a round. `evaluation` is diagnostic: computed from raw client data."""

    round_index: int
    num_rounds: int
    sizes: Array  # (k,) released
    epsilon: float | None  # of the whole plan, whenever the run is stopped
    evaluation: Evaluation | None  # of this round, where one was due
    private_evaluation: NoisyEvaluation | None = None  # released; the average over the last rounds

    @property
    def figures(self) -> dict[str, float]:
        """All of it by name: under `released/` what is public, under `diagnostic_not_private/` what is not."""
        named = {f"released/size_{cluster}": float(size) for cluster, size in enumerate(self.sizes)}
        if self.private_evaluation is not None:
            named["released/accuracy"] = self.private_evaluation.accuracy
            named["released/loss"] = self.private_evaluation.loss
        if self.evaluation is not None:
            for name in _DIAGNOSTICS:
                named[f"diagnostic_not_private/{name}"] = float(getattr(self.evaluation, name))
        return named


@dataclass(frozen=True)
class RunResult:
    """A finished run. `evaluation` is diagnostic, None in a secure run; everything else is made of releases."""

    folder: Path
    models: Models
    epsilon: float | None
    delta: float
    evaluation: Evaluation | None
