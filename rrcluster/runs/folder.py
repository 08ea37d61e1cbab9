"""A run folder, with separate files for public, diagnostic and private content.

config.yaml        every setting, resolved
privacy.json       the statement
ledger.jsonl       charges, written before each release
rounds.jsonl       released values only
summary.json       released values only
models.safetensors shared and clustered coordinates of the models handed out
cluster-N.safetensors  the same models, one file each, by layer name: for plain PyTorch
diagnostics.jsonl  everything computed from raw client data
checkpoint/        private to the run: mode 0700, removed at the end; holds the lock too. Reports read its round alone

A secure run writes no diagnostics.jsonl, and no times: how long a round took tells how many clients were in it.
"""

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from safetensors.numpy import save

from rrcluster.data.federated import FederatedData
from rrcluster.errors import RunFolderError
from rrcluster.privacy.cost import folder_cost
from rrcluster.privacy.slots import PastNoise
from rrcluster.registry import DATASETS, METHODS, MODELS
from rrcluster.runs.config import CONFIG, RunConfig, from_flat, read_settings, refuse_a_second_run
from rrcluster.runs.fingerprint import KEY_FILE, last_audit, remember
from rrcluster.runs.lock import FolderLock, bind
from rrcluster.runs.outcome import describe_evaluation, read_evaluation
from rrcluster.server.server import FinishedRound
from rrcluster.server.slotted_rounds import DrawnRound, StoredNoise
from rrcluster.server.state import RunningMean, ServerState
from rrcluster.server.survey import Survey
from rrcluster.settings import names_file
from rrcluster.simulation.clients import ClientMemory, Incidents
from rrcluster.simulation.evaluate import Evaluation, RoundMeasures
from rrcluster.simulation.simulate import RoundRecord
from rrcluster.storage import (
    append_json,
    drop_temporaries,
    explain_write,
    json_text,
    make_folders,
    read_json_lines,
    read_mapping,
    read_plain,
    read_tensors,
    replace_file,
    sync_file,
    write_file,
    write_json,
)
from rrcluster.types import Models, NoisyEvaluation

_PUBLIC = (
    "config.yaml",
    "privacy.json",
    "ledger.jsonl",
    "rounds.jsonl",
    "summary.json",
    "models.safetensors",
    "diagnostics.jsonl",
)
_PRIVATE = ("state.safetensors", "drawn.safetensors", "place.json", KEY_FILE)  # in checkpoint/


EVALUATION, EVALUATION_OF_START = "private_evaluation", "evaluation_of_start"  # in rounds.jsonl


@dataclass(frozen=True)
class RunFolder:
    """One run's files. Only the holder of the lock writes them."""

    path: Path
    lock: FolderLock | None = None

    @classmethod
    def create(
        cls, path: Path, config: RunConfig, statement: dict[str, Any], *, own_data: FederatedData | None = None
    ) -> "RunFolder":
        """Create a run folder. Refuses one that contains a run, or in which another process is creating one.

        `own_data` is the user's own data, which must be the same when the run is resumed.
        """
        refuse_a_second_run(path)
        with explain_write(path):
            make_folders(path)
        folder = cls(path, FolderLock(path / "checkpoint" / "lock"))
        try:
            refuse_a_second_run(path)
            drop_temporaries(path, _public(config))
            if config.privacy.secure:
                bind(path)
            if own_data is not None:
                remember(path, own_data)
            audited = {"audit": last_audit()} if config.privacy.secure else {}
            write_json(path / "privacy.json", statement | audited)
            write_file(path / CONFIG, yaml.safe_dump(config.flat(), sort_keys=False))
        except BaseException:
            folder.release()
            raise
        return folder

    @classmethod
    def open(cls, path: Path) -> tuple["RunFolder", RunConfig]:
        """Open a run folder with its config; locks it and removes partial files of a killed process."""
        settings = read_settings(path)
        _refuse_unknown_objects(path, settings)
        config = from_flat(settings, source=str(path / CONFIG))
        folder = cls(path, FolderLock(path / "checkpoint" / "lock"))
        drop_temporaries(path, _public(config))
        drop_temporaries(path / "checkpoint", _PRIVATE)
        return folder, config

    def check_statement(self, statement: dict[str, Any]) -> None:
        """Refuse to continue a run whose files disagree on its cost, or state a different plan."""
        folder_cost(self.path)
        document = read_mapping(self.path / "privacy.json")
        slotted = "slots" in statement.get("participation", {})
        stated_names = ("delta", "event", "num_releases", "started_from", "federation")
        later = [name for name in ("initialisation", "questions") if name in document]  # not by older versions
        for name in (*stated_names, *later, *(["participation"] if slotted else [])):
            if document.get(name) != json.loads(json.dumps(statement.get(name))):
                raise RunFolderError(
                    f"{self.path / 'privacy.json'}: states another {name} than the settings give, so the run's cost "
                    "would be unknown. Restore config.yaml and privacy.json, or start a new run."
                )

    def release(self) -> None:
        """Release the lock."""
        if self.lock is not None:
            self.lock.release()

    @property
    def finished(self) -> bool:
        """Whether the run has finished."""
        return (self.path / "models.safetensors").exists()

    def add_round(self, record: RoundRecord | FinishedRound, *, of_start: bool = False) -> None:
        """Append a round's released values; not its duration, which reveals the number of clients.

        `of_start`: the evaluation is of the run's initial models.

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
            line[EVALUATION_OF_START if of_start else EVALUATION] = describe_evaluation(release.evaluation)
        append_json(self.path / "rounds.jsonl", line)

    def private_evaluations(self, name: str = EVALUATION) -> list[NoisyEvaluation]:
        """The evaluations released so far, round by round; a line torn by a full disk does not count.

        `name` selects those of the run's trained or initial models.
        """
        lines = _read_rounds(self.path / "rounds.jsonl")
        return [read_evaluation(line[name]) for line in lines if line.get(name)]

    def add_diagnostics(
        self,
        round_index: int,
        evaluation: Evaluation,
        incidents: Incidents,
        seconds: float,
        measures: RoundMeasures | None = None,
        comparison: Mapping[str, Any] | None = None,
    ) -> None:
        """Append values computed from raw client data, replacing those of an earlier attempt at this round.

        The time so far and the failed clients are here too: both depend on the secret sizes of the cohorts. Without
        `measures` the round was made by an earlier process, whose line stays.
        """
        path = self.path / "diagnostics.jsonl"
        if measures is None and any(line["round"] == round_index for line in _read_rounds(path)):
            return
        _keep_rounds_before(path, round_index)
        line = {"round": round_index, **asdict(evaluation), "seconds": round(seconds, 2)}
        line |= asdict(incidents) | ({} if measures is None else asdict(measures))
        append_json(path, line | ({"comparison": comparison} if comparison else {}))

    def save_state(self, state: ServerState, memory: ClientMemory, past: PastNoise | None = None) -> None:
        """Write the checkpoint, atomically; the files it continues are flushed first."""
        for name in ("rounds.jsonl", "diagnostics.jsonl"):
            if (self.path / name).exists():
                sync_file(self.path / name)
        numbers = np.array([state.round_index, state.num_averaged], dtype=np.int64)
        weights = np.array([state.sizes.weight])
        tensors = {"numbers": numbers, "weights": weights, "sizes": state.sizes.total}
        for name, models in (("models", state.models), ("velocity", state.velocity), ("average", state.average)):
            tensors |= {f"{name}.shared": models.shared, f"{name}.clustered": models.clustered}
        noise = {} if past is None else past.tensors()
        server_state = dict(state.learnt) if state.survey is None else state.survey.tensors()
        self._save_private("state.safetensors", tensors | server_state | memory.tensors() | noise)

    def save_drawn(self, drawn: DrawnRound) -> None:
        """Save a round that is about to be charged and released, so that it can be repeated exactly."""
        self._save_private("drawn.safetensors", drawn.tensors())

    def load_noise(self) -> StoredNoise:
        """The noise from which a plan with slots resumes: the checkpoint's, and the last drawn round."""
        try:
            tensors, drawn = self._read_private("state.safetensors"), self._read_private("drawn.safetensors")
            made = None if drawn is None else DrawnRound.from_tensors(drawn)
            return StoredNoise(None if tensors is None else PastNoise.from_tensors(tensors), made, self.save_drawn)
        except Exception as error:
            raise RunFolderError(
                f"{self.path / 'checkpoint'}: the noise on which the next round builds is damaged, and fresh "
                "noise would void the guarantee; start a new run."
            ) from error

    def _save_private(self, name: str, tensors: dict[str, Any]) -> None:
        target = self.path / "checkpoint" / name
        whole = {name: np.ascontiguousarray(values) for name, values in tensors.items()}
        with explain_write(target):  # `write_file` might recreate checkpoint/ with open permissions
            replace_file(target, _in_order(save(whole, metadata={"sha256": _digest(whole)})), mode=0o600)

    def _read_private(self, name: str) -> dict[str, Any] | None:
        path = self.path / "checkpoint" / name
        return _read_tensors(path) if path.exists() else None

    def load_state(self, *, last_charged: int = -1) -> tuple[ServerState, ClientMemory] | None:
        """The checkpointed state and memory, None if there are none; later rounds are dropped, to be run again.

        `last_charged`, of a run that checkpoints after every round and cannot repeat one, is its last charged round: a
        checkpoint older than the round before is refused.
        """
        path = self.path / "checkpoint" / "state.safetensors"
        try:
            tensors = self._read_private("state.safetensors")
            saved = None if tensors is None else (_state(tensors), ClientMemory.from_tensors(tensors))
        except Exception as error:  # a damaged file can raise any error inside the reader
            raise RunFolderError(f"{path}: the checkpoint is damaged; start a new run.") from error
        done = 0 if saved is None else saved[0].round_index
        if last_charged > done:
            raise RunFolderError(
                f"{path}: is lost, or an old copy: it has {done} rounds, and round {last_charged} was charged. The "
                "rounds between were released and cannot be repeated; restore the file, or start a new run."
            )
        for name in ("rounds.jsonl", "diagnostics.jsonl"):
            _keep_rounds_before(self.path / name, done)
        return saved

    def save_models(self, models: Models, metadata: dict[str, Any], cluster_files: dict[str, bytes]) -> None:
        """Save the released models, with everything needed to use them again; the run is finished when this returns."""
        for name, content in cluster_files.items():
            write_file(self.path / name, _in_order(content))
        tensors = {"shared": models.shared.astype(np.float32), "clustered": models.clustered.astype(np.float32)}
        text = {name: json.dumps(value) for name, value in metadata.items()}
        write_file(self.path / "models.safetensors", _in_order(save(tensors, metadata=text)))

    def drop_drawn(self) -> None:
        """Remove the round that was saved before its release."""
        (self.path / "checkpoint" / "drawn.safetensors").unlink(missing_ok=True)

    def drop_checkpoint(self) -> None:
        """Remove the private part once the run is over."""
        shutil.rmtree(self.path / "checkpoint", ignore_errors=True)


def _public(config: RunConfig) -> list[str]:
    """Names of the files beside checkpoint/."""
    return [*_PUBLIC, *(f"cluster-{cluster}.safetensors" for cluster in range(config.method.num_clusters))]


def _read_rounds(path: Path) -> list[dict[str, Any]]:
    """The lines of a file, one per round, up to the first damaged one; none if there is no file."""
    lines = read_json_lines(path, damaged="stop") if path.exists() else []
    return list(takewhile(lambda line: isinstance(line.get("round"), int), lines))


def _keep_rounds_before(path: Path, round_index: int) -> None:
    """Drop the lines of rounds from `round_index` on, which will be run again, and all from a damaged line on."""
    earlier = "".join(json_text(line) + "\n" for line in _read_rounds(path) if line["round"] < round_index)
    if path.exists() and read_plain(path) != earlier.encode():
        write_file(path, earlier)


def _read_tensors(path: Path) -> dict[str, Any]:
    """The tensors of a checkpoint, exactly as written: one flipped bit is an error."""
    tensors, metadata = read_tensors(path)
    if metadata.get("sha256") != _digest(tensors):
        raise ValueError("the digest differs")
    return tensors


def _in_order(content: bytes) -> bytes:
    """A safetensors file with its header sorted: the library writes metadata in varying order."""
    length = int.from_bytes(content[:8], "little")
    header = json.dumps(json.loads(content[8 : 8 + length]), sort_keys=True, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)  # the following values stay aligned
    return len(header).to_bytes(8, "little") + header + content[8 + length :]


def _digest(tensors: dict[str, Any]) -> str:
    digest = hashlib.sha256()
    for name, values in sorted(tensors.items()):
        digest.update(f"{name} {values.dtype} {values.shape}\n".encode())
        digest.update(values.tobytes())
    return digest.hexdigest()


def _refuse_unknown_objects(path: Path, settings: dict[str, Any]) -> None:
    """Refuse a run whose data, model or method was an object of its program; say how to continue."""
    for name, names in {"data": DATASETS, "model": MODELS, "algorithm": METHODS}.items():
        value = settings.get(name)
        if isinstance(value, str) and value not in names and not (name == "data" and names_file(value)):
            raise RunFolderError(
                f"{path}: {name} = {value!r} is not known here: it was an object of the program that started the run. "
                f"Give it again in Python: rr.run(resume={str(path)!r}, {name}=...)."
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
        survey=Survey.from_tensors(tensors),
        learnt={name: values for name, values in tensors.items() if name.startswith(("questionnaire.", "start."))},
    )
