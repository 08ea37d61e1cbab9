"""Apple's pfl at its fastest: two processes with one thread each, channels last, half of the cohort each.

Each process runs pfl's own simulated backend over its clients, and the sums are not even exchanged: the cost of pfl's
own distribution over processes is left out, to its advantage.
"""

import subprocess
import sys
from subprocess import PIPE

import numpy as np
import torch
from contenders import BATCH, EPOCHS, RATE, answer, load, network, put
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.common_types import Population
from pfl.context import CentralContext
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel

PROCESSES = 2


class Module(torch.nn.Module):
    """The network with the methods that pfl requires."""

    def __init__(self):
        super().__init__()
        self.net = network()
        self.loss_of = torch.nn.CrossEntropyLoss()

    def loss(self, inputs, targets):
        return self.loss_of(self.net(inputs), targets)

    def metrics(self, inputs, targets):
        return {"loss": Weighted(self.loss(inputs, targets).item() * len(inputs), len(inputs))}


def work(path, which):
    torch.set_num_threads(1)
    inputs, targets, starts = load(path)
    clients = list(range(which, len(inputs), PROCESSES))
    module = Module().to(memory_format=torch.channels_last)
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    data = {
        i: Dataset(
            [torch.from_numpy(inputs[i]).contiguous(memory_format=torch.channels_last), torch.from_numpy(targets[i])]
        )
        for i in clients
    }
    sampler = get_user_sampler("minimize_reuse", clients)
    users = FederatedDataset(data.__getitem__, sampler)
    backend, method = SimulatedBackend(users, users), FederatedAveraging()
    params = NNTrainHyperParams(local_num_epochs=EPOCHS, local_learning_rate=RATE, local_batch_size=BATCH)
    context = CentralContext(
        current_central_iteration=1,
        do_evaluation=False,
        cohort_size=len(clients),
        population=Population.TRAIN,
        model_train_params=params,
        model_eval_params=None,
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=1,
            evaluation_frequency=0,
            train_cohort_size=len(clients),
            val_cohort_size=0,
        ),
        seed=0,
    )

    def evaluate():
        with torch.no_grad():
            for i in clients:
                losses = []
                for start in starts:
                    put(start, module)
                    losses.append(module.loss(*data[i].raw_data).item())
                np.argmin(losses)
        put(starts[0], module)

    def ifca():
        evaluate()
        backend.gather_results(model, method, central_context=context)

    put(starts[0], module)
    answer(lambda: backend.gather_results(model, method, central_context=context), ifca)


def main(path):
    halves = [
        subprocess.Popen([sys.executable, __file__, path, str(which)], stdin=PIPE, stdout=PIPE, text=True)
        for which in range(PROCESSES)
    ]

    def say(word):
        for half in halves:
            half.stdin.write(word)
            half.stdin.flush()

    def hear():
        return [half.stdout.readline() for half in halves]

    def round_of(word):
        say(word)
        hear()

    hear()  # ready
    answer(lambda: round_of("train\n"), lambda: round_of("ifca\n"))


if __name__ == "__main__":
    work(sys.argv[1], int(sys.argv[2])) if len(sys.argv) > 2 else main(sys.argv[1])
