"""How good models are on public images: a score that reads no client's data, and so costs nothing."""

from dataclasses import dataclass, replace

import numpy as np

from rrcluster.data.build import GENERATED, load_federated
from rrcluster.data.federated import TestSet
from rrcluster.engine import calls
from rrcluster.errors import ConfigError
from rrcluster.experiments.setup import Experiment
from rrcluster.types import Models

PUBLIC_DATA = "fashion-mini"  # its test images, which no client holds
_FEW_CLIENTS = 40  # only the test images are used, whoever the clients are


@dataclass(frozen=True)
class PublicScore:
    """The public images of each group, in two halves: one picks a model, the other judges it."""

    halves: tuple[tuple[TestSet, TestSet], ...]

    @classmethod
    def load(cls, experiment: Experiment) -> "PublicScore":
        """The images in the experiment's own partition; refused where its models could not read them."""
        config, data = experiment.config, experiment.data
        public = load_federated(
            PUBLIC_DATA,
            num_clients=_FEW_CLIENTS,
            seed=0,
            partition=None if config.data.data in GENERATED else config.data.partition,
            concentration=config.data.concentration if config.data.partition == "dirichlet" else None,
        )
        if (public.input_shape, public.num_classes) != (data.input_shape, data.num_classes):
            raise ConfigError(
                f"--public-score judges models on {PUBLIC_DATA}, and data = {config.data.data} has other inputs or "
                "classes; leave it out and set private_evaluation above 0."
            )
        return cls(tuple((_every_second(tests, 0), _every_second(tests, 1)) for tests in public.test_sets))

    def __call__(self, models: Models, experiment: Experiment) -> float:
        """Mean over the groups of the accuracy, on one half, of the model with the least loss on the other."""
        vectors, engine = experiment.split.vectors(models), experiment.engine
        scores = []
        for picking, judging in self.halves:
            best = int(np.nan_to_num(calls.test(engine, vectors, picking)[0], nan=np.inf).argmin())
            scores.append(calls.test(engine, vectors[[best]], judging)[1][0])
        return float(np.mean(scores))


def _every_second(tests: TestSet, first: int) -> TestSet:
    return replace(tests, targets=tests.targets[first::2], make_inputs=lambda: tests.inputs[first::2])
