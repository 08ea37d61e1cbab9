"""Runs on several ranks: every rank makes the experiment from the same settings, and rank 0 runs it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rrcluster.engine.distributed import DistributedEngine, PreparedRank, Ranks
from rrcluster.errors import PrivacyError, RankError
from rrcluster.experiments.config import RunConfig, from_flat
from rrcluster.experiments.fingerprint import fingerprint
from rrcluster.experiments.setup import Experiment, make_experiment

_EQUAL_ON_ALL = ("config", "rrcluster", "torch", "numpy", "device", "engine")  # of the ranks' fingerprints


def make_distributed(config: RunConfig, ranks: Ranks) -> Experiment:
    """The experiment of a config, its clients shared among `ranks`.

    A secure run is refused: ranks exchange raw updates, unencrypted, and its privacy statement does not cover
    eavesdroppers.
    """
    if config.privacy.secure:
        raise PrivacyError(
            f"secure = true with {ranks.channel.size} ranks would send raw updates from process to process, "
            "unencrypted; run it in one process, without torchrun."
        )
    ranks.prepare(config.flat())
    experiment = make_experiment(config)
    machines = _machines(fingerprint(config, experiment.engine), ranks.fingerprints())
    return replace(experiment, engine=DistributedEngine(experiment.engine, ranks, machines, experiment.data))


def prepare_rank(settings: Mapping[str, Any]) -> PreparedRank:
    """What a rank other than 0 makes of the settings that rank 0 sends."""
    config = from_flat(dict(settings), source="rank 0")
    experiment = make_experiment(config)
    return PreparedRank(experiment.engine, experiment.data, fingerprint(config, experiment.engine))


def _machines(own: Mapping[str, Any], others: list[Mapping[str, Any]]) -> tuple[str, ...]:
    """The other ranks' machines; a `RankError` where their versions or devices differ from those of rank 0."""
    for rank, other in enumerate(others, start=1):
        for name in _EQUAL_ON_ALL:
            if other.get(name) != own[name]:
                raise RankError(
                    f"rank {rank} has {name} {other.get(name)}, rank 0 has {own[name]}; results would depend on which "
                    "rank computes a client. Give all ranks the same."
                )
    return tuple(f"{other['machine']}, {other['threads']} threads" for other in others)
