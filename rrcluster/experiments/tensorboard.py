"""TensorBoard events of a run. Tags under `released/` are public; tags under `diagnostic_not_private/` are not."""

from pathlib import Path
from types import TracebackType

from rrcluster.errors import ConfigError


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

    def __call__(self, round_index: int, figures: dict[str, float]) -> None:
        """One round."""
        for name, value in figures.items():
            self._writer.add_scalar(name, value, round_index)
