"""A run folder: what is public, what is diagnostic and what is private each in files of their own.

config.yaml        every setting, resolved
privacy.json       the statement
ledger.jsonl       charges, written before each release
rounds.jsonl       released values only
summary.json       released values only
models.safetensors shared and clustered coordinates of the models handed out
diagnostics.jsonl  everything computed from raw client data
checkpoint/        private to the run: mode 0700, removed at the end, read by no report; holds the lock too

A secure run writes no diagnostics.jsonl, and no times: how long a round took tells how many clients were in it.
"""

import hashlib
import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from safetensors import safe_open
from safetensors.numpy import load_file, save

from rrcluster.durable import drop_temporaries, sync_file
from rrcluster.errors import RunFolderError
from rrcluster.experiments.config import RunConfig, from_flat
from rrcluster.experiments.files import (
    append_json,
    keep_rounds_before,
    lines_by_round,
    write_bytes,
    write_json,
    write_text,
)
from rrcluster.experiments.lock import FolderLock
from rrcluster.experiments.released import describe_evaluation, read_evaluation
from rrcluster.reading import plain_yaml, read_text
from rrcluster.server_state import RunningMean, ServerState
from rrcluster.settings import without_removed
from rrcluster.simulation.evaluate import Evaluation
from rrcluster.simulation.faults import Incidents
from rrcluster.simulation.measures import RoundMeasures
from rrcluster.simulation.memory import ClientMemory
from rrcluster.simulation.simulate import RoundRecord
from rrcluster.types import Models, NoisyEvaluation


@dataclass(frozen=True)
class RunFolder:
    """One run's files. Whoever writes them holds the lock."""

    path: Path
    lock: FolderLock | None = None

    @classmethod
    def create(cls, path: Path, config: RunConfig, statement: dict[str, Any]) -> "RunFolder":
        """Start a new run folder. Refuses one that holds a run already, or in which another process starts one."""
        _refuse_a_second_run(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunFolderError(
                f"{path}: cannot be made ({error.strerror}); choose another folder with --out."
            ) from error
        folder = cls(path, FolderLock(path / "checkpoint" / "lock"))
        try:
            _refuse_a_second_run(path)
            drop_temporaries(path)
            write_json(path / "privacy.json", statement)
            write_text(path / "config.yaml", yaml.safe_dump(config.flat(), sort_keys=False))
        except BaseException:
            folder.release()
            raise
        return folder

    @classmethod
    def open(cls, path: Path) -> tuple["RunFolder", RunConfig]:
        """An existing run folder, locked and without what a killed process left half-written, and its config."""
        try:
            settings = plain_yaml(read_text(path / "config.yaml"))
        except FileNotFoundError as error:
            raise RunFolderError(f"{path} holds no run (no config.yaml); start one with `rrcluster run`.") from error
        except (OSError, ValueError) as error:
            raise RunFolderError(
                f"{path / 'config.yaml'}: cannot be read; the file is damaged. Start a new run."
            ) from error
        if not isinstance(settings, dict):
            raise RunFolderError(f"{path / 'config.yaml'}: holds no settings; the file is damaged. Start a new run.")
        config = from_flat(without_removed(settings), source=str(path / "config.yaml"))
        folder = cls(path, FolderLock(path / "checkpoint" / "lock"))
        drop_temporaries(path)
        drop_temporaries(path / "checkpoint")
        return folder, config

    def release(self) -> None:
        """Let another process have the folder."""
        if self.lock is not None:
            self.lock.release()

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return (self.path / "models.safetensors").exists()

    def add_round(self, record: RoundRecord) -> None:
        """Append a round's released values; not how long it took, which tells how many clients were in it.

        No epsilon of the rounds so far: the run costs what privacy.json states, also when it is stopped here.
        """
        release = record.release
        line: dict[str, Any] = {
            "round": record.round_index,
            "sizes": release.sizes.tolist(),
            "denominators": release.denominators.tolist(),
            "noise_std": release.noise_std.tolist(),
        }
        if release.evaluation is not None:
            line["private_evaluation"] = describe_evaluation(release.evaluation)
        append_json(self.path / "rounds.jsonl", line)

    def private_evaluations(self) -> list[NoisyEvaluation]:
        """The evaluations released so far, round by round; a line that a full disk has torn counts as not written."""
        lines = lines_by_round(self.path / "rounds.jsonl")
        return [read_evaluation(told) for _, line in lines if (told := json.loads(line).get("private_evaluation"))]

    def add_diagnostics(
        self,
        round_index: int,
        evaluation: Evaluation,
        incidents: Incidents,
        seconds: float,
        measures: RoundMeasures | None = None,
    ) -> None:
        """Append what was computed from raw client data, in place of what an earlier attempt at this round wrote.

        The time so far and the clients that failed so far are here too: both follow the secret sizes of the cohorts.
        Without `measures` the round was made by a process that is gone: what that has written down stays.
        """
        path = self.path / "diagnostics.jsonl"
        if measures is None and any(at == round_index for at, _ in lines_by_round(path)):
            return
        keep_rounds_before(path, round_index)
        line = {"round": round_index, **asdict(evaluation), "seconds": round(seconds, 2)}
        append_json(path, line | asdict(incidents) | ({} if measures is None else asdict(measures)))

    def save_state(self, state: ServerState, memory: ClientMemory) -> None:
        """Write the checkpoint: one file, renamed into place, so it is always whole; what it follows is on disk."""
        for name in ("rounds.jsonl", "diagnostics.jsonl"):
            if (self.path / name).exists():
                sync_file(self.path / name)
        target = self.path / "checkpoint" / "state.safetensors"
        numbers = np.array([state.round_index, state.num_averaged], dtype=np.int64)
        weights = np.array([state.sizes.weight])
        tensors = {
            "numbers": numbers,
            "weights": weights,
            "sizes": state.sizes.total,
        }
        for name, models in (
            ("models", state.models),
            ("velocity", state.velocity),
            ("average", state.average),
        ):
            tensors |= {f"{name}.shared": models.shared, f"{name}.clustered": models.clustered}
        tensors |= memory.tensors()
        whole = {name: np.ascontiguousarray(values) for name, values in tensors.items()}
        write_bytes(target, save(whole, metadata={"sha256": _digest(whole)}))

    def load_state(self) -> tuple[ServerState, ClientMemory] | None:
        """The checkpointed state and memory, None if there are none; rounds after it are dropped, to be run again."""
        path = self.path / "checkpoint" / "state.safetensors"
        try:
            tensors = _read_tensors(path) if path.exists() else None
            saved = None if tensors is None else (_state(tensors), ClientMemory.from_tensors(tensors))
        except Exception as error:  # a damaged file fails in many ways inside the reader
            raise RunFolderError(f"{path}: the checkpoint is damaged; start a new run.") from error
        for name in ("rounds.jsonl", "diagnostics.jsonl"):
            keep_rounds_before(self.path / name, 0 if saved is None else saved[0].round_index)
        return saved

    def save_models(self, models: Models, metadata: dict[str, Any]) -> None:
        """The models handed out, with what is needed to use them again."""
        tensors = {
            "shared": models.shared.astype(np.float32),
            "clustered": models.clustered.astype(np.float32),
        }
        text = {name: json.dumps(value) for name, value in metadata.items()}
        write_bytes(self.path / "models.safetensors", save(tensors, metadata=text))

    def save_summary(self, summary: dict[str, Any]) -> None:
        """What came out, released values only."""
        write_json(self.path / "summary.json", summary)

    def drop_checkpoint(self) -> None:
        """Remove the private part once the run is over."""
        shutil.rmtree(self.path / "checkpoint", ignore_errors=True)


def _read_tensors(path: Path) -> dict[str, Any]:
    """The tensors of a checkpoint, exactly as they were written: one flipped bit is an error."""
    with safe_open(path, framework="np") as file:
        told = (file.metadata() or {}).get("sha256")
    tensors = load_file(path)
    if told != _digest(tensors):
        raise ValueError("the digest differs")
    return tensors


def _digest(tensors: dict[str, Any]) -> str:
    digest = hashlib.sha256()
    for name, values in sorted(tensors.items()):
        digest.update(f"{name} {values.dtype} {values.shape}\n".encode())
        digest.update(values.tobytes())
    return digest.hexdigest()


def _refuse_a_second_run(path: Path) -> None:
    try:
        if not (path / "config.yaml").exists():
            return
    except OSError:  # told by whoever makes the folder
        return
    finished = RunFolder(path).finished
    way_out = f"`rrcluster report {path}` shows it" if finished else f"continue it with `rrcluster run --resume {path}`"
    raise RunFolderError(
        f"{path} already holds a run; {way_out}, or choose another folder with --out (out= in Python)."
    )


def _state(tensors: dict[str, Any]) -> ServerState:
    def models(name: str) -> Models:
        return Models(tensors[f"{name}.shared"], tensors[f"{name}.clustered"])

    round_index, num_averaged = (int(number) for number in tensors["numbers"])
    return ServerState(
        models=models("models"),
        velocity=models("velocity"),
        average=models("average"),
        num_averaged=num_averaged,
        sizes=RunningMean(tensors["sizes"], float(tensors["weights"][0])),
        round_index=round_index,
    )
