"""TensorBoard events of a run. Tags under `released/` are public; tags under `diagnostic_not_private/` are not."""

from pathlib import Path
from types import TracebackType

from rrcluster.errors import ConfigError
from rrcluster.experiments.run import Progress

_FIGURES = ("accuracy", "loss", "clustering_accuracy", "worst_decile", "adjusted_rand", "clusters_alive")


class EventWriter:
    """Writes into `tensorboard/` of a run folder. Not for secure runs: events carry times (config.py refuses it)."""

    def __init__(self, folder: Path) -> None:
        """Needs the extra `tensorboard`."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ConfigError("--tensorboard needs TensorBoard; install rrcluster[tensorboard].") from error
        self._writer = SummaryWriter(str(folder / "tensorboard"))

    def __enter__(self) -> "EventWriter":
        """Ready."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Flush and close."""
        self._writer.close()

    def add(self, progress: Progress) -> None:
        """One round."""
        step = progress.round_index
        for cluster, size in enumerate(progress.sizes):
            self._writer.add_scalar(f"released/size_{cluster}", float(size), step)
        if progress.private_evaluation is not None:
            self._writer.add_scalar("released/accuracy", progress.private_evaluation.accuracy, step)
            self._writer.add_scalar("released/loss", progress.private_evaluation.loss, step)
        if progress.evaluation is not None:
            for name in _FIGURES:
                value = getattr(progress.evaluation, name)
                self._writer.add_scalar(f"diagnostic_not_private/{name}", value, step)
