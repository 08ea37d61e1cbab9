"""The add-on in a PyTorch loop of your own: your clients, your training, and `rr.Server` for everything private.

The server draws the cohort, says what to send, charges the ledger on disk, releases and moves the models. If this
program is killed, the same program goes on where the folder says.
"""

import tempfile

import numpy as np
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import rrcluster as rr

M, K, ROUNDS = 300, 2, 12
torch.manual_seed(0)
rng = np.random.default_rng(0)  # stands for the clients' own randomness
net = nn.Linear(5, 2)
d = sum(weights.numel() for weights in net.parameters())
inputs = torch.randn(M, 30, 5)
targets = ((inputs[:, :, 0] > 0) ^ (torch.arange(M) % 2 == 1)[:, None]).long()  # two groups that disagree


def losses(client, models):
    """What a client does first: judge every model on its own data."""
    answer = []
    for vector in models:
        vector_to_parameters(torch.as_tensor(vector, dtype=torch.float32), net.parameters())
        answer.append(nn.functional.cross_entropy(net(inputs[client]), targets[client]).item())
    return answer


def train(client, vector):
    """What a client does next: train the model of its destination, and report the change."""
    vector_to_parameters(torch.as_tensor(vector, dtype=torch.float32), net.parameters())
    start, optimiser = parameters_to_vector(net.parameters()).detach().clone(), torch.optim.SGD(net.parameters(), 0.5)
    for _ in range(5):
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(inputs[client]), targets[client]).backward()
        optimiser.step()
    return (parameters_to_vector(net.parameters()).detach() - start).numpy()


plan = rr.PrivacyPlan.build(
    coordinates=rr.Coordinates(shared=0, clustered=d), num_clusters=K, num_clients=M, sample_rate=0.3,
    num_rounds=ROUNDS, epsilon=8, delta=1e-4, update_clip=0.5, min_cluster_size=20,
)  # fmt: skip
with rr.Server(plan, rng.normal(size=(K, d)) * 0.1, folder=tempfile.mkdtemp(), seed=0) as server:
    while not server.finished:
        cohort, guidance = server.cohort(), server.guidance
        choices, destinations = guidance.choose([losses(client, guidance.vectors) for client in cohort], rng=rng)
        updates = [train(client, guidance.vectors[j]) for client, j in zip(cohort, destinations, strict=True)]
        server.finish(updates, choices, destinations=destinations, client_ids=cohort)
    mine = np.array([np.argmin(losses(client, server.models)) for client in range(M)])
    agree = np.mean(mine == np.arange(M) % 2)  # clusters have no names of their own: 0 and 1 may be exchanged
print(f"epsilon {server.epsilon:.2f}: {max(agree, 1 - agree):.0%} of the clients are with their group")
assert max(agree, 1 - agree) > 0.9
