"""A run on several ranks: every rank makes the experiment from the same settings, and rank 0 runs it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rrcluster.engine.distributed import RankedEngine, Ranks, Worker
from rrcluster.engine.protocol import Engine
from rrcluster.errors import PrivacyError, RankError
from rrcluster.experiments.config import RunConfig, from_flat
from rrcluster.experiments.fingerprint import fingerprint
from rrcluster.experiments.setup import Experiment, make_experiment

_ALIKE = ("config", "rrcluster", "torch", "numpy", "device", "engine")  # what all ranks must have in common


def make_shared(config: RunConfig, ranks: Ranks | None) -> Experiment:
    """The experiment of a config, its clients shared among `ranks` if there are any.

    A secure run is refused: what ranks tell each other are raw updates, unencrypted, and its statement does not cover
    who could listen.
    """
    if ranks is None:
        return make_experiment(config)
    if config.privacy.secure:
        raise PrivacyError(
            f"secure = true with {ranks.channel.size} ranks would send raw updates from process to process, "
            "unencrypted; run it in one process, without torchrun."
        )
    ranks.prepare(config.flat())
    experiment = make_experiment(config)
    machines = _machines(fingerprint(config, experiment.engine), ranks.ready())
    return replace(experiment, engine=RankedEngine(experiment.engine, ranks, machines, experiment.data))


def prepare_worker(settings: Mapping[str, Any]) -> Worker:
    """What another rank makes of the settings that rank 0 sends."""
    config = from_flat(dict(settings), source="rank 0")
    experiment = make_experiment(config)
    return Worker(experiment.engine, experiment.data, fingerprint(config, experiment.engine))


def told_machines(engine: Engine) -> dict[str, Any]:
    """For the fingerprint: on which machines the other ranks run. Where each share is computed may change last bits."""
    return {"ranks": list(engine.machines)} if isinstance(engine, RankedEngine) else {}


def _machines(own: Mapping[str, Any], others: list[Mapping[str, Any]]) -> tuple[str, ...]:
    """The other ranks' machines; a `RankError` where their versions or devices are not those of rank 0."""
    for rank, about in enumerate(others, start=1):
        for name in _ALIKE:
            if about.get(name) != own[name]:
                raise RankError(
                    f"rank {rank} has {name} {about.get(name)}, rank 0 has {own[name]}; results would depend on who "
                    "computes what. Give all ranks the same."
                )
    return tuple(f"{about['machine']}, {about['threads']} threads" for about in others)
