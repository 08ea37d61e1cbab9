"""Send a run's figures to Weights & Biases or MLflow: `rr.run(..., on_round=WandbLogger(project="mine"))`.

They get what TensorBoard gets: names under `released/` are public, names under `diagnostic_not_private/` were computed
from raw data. Both services write down when each figure came, and how long a round takes depends on who took part: a
secure run refuses them.
"""

from importlib import import_module
from typing import Any

from rrcluster.errors import ConfigError


class WandbLogger:
    """One W&B run; the arguments are those of `wandb.init`."""

    records_times = True

    def __init__(self, **init: Any) -> None:
        """Start a W&B run."""
        self._run = _imported("wandb").init(**init)

    def __call__(self, round_index: int, figures: dict[str, float]) -> None:
        """One round."""
        self._run.log(figures, step=round_index)


class MlflowLogger:
    """Metrics of the active MLflow run, or of a new one in `experiment`."""

    records_times = True

    def __init__(self, *, experiment: str | None = None) -> None:
        """Choose the experiment."""
        self._mlflow = _imported("mlflow")
        if experiment is not None:
            self._mlflow.set_experiment(experiment)

    def __call__(self, round_index: int, figures: dict[str, float]) -> None:
        """One round."""
        self._mlflow.log_metrics(figures, step=round_index)


def _imported(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise ConfigError(f"this logger needs the package {name}; install it: pip install {name}.") from error
