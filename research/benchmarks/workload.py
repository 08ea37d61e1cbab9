"""Workload W, and how a contender is driven. Plain torch and numpy: the peers' environments hold no rrcluster.

W: 100 clients x 60 FashionMNIST images, 5 local epochs of SGD without momentum, batch 20, learning rate 0.05, the
26,010-parameter CNN. With `ifca`, each client first evaluates four models on all of its images and trains the best.

A contender prints `ready`, then reads words from stdin and answers each with the seconds its round took.
"""

import sys
import time

import numpy as np
import torch
from torch import nn

EPOCHS, BATCH, RATE, MODELS = 5, 20, 0.05, 4


def network():
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 8, stride=2, padding=3), nn.ReLU(), nn.MaxPool2d(2, stride=1)),
        *(nn.Conv2d(16, 32, 4, stride=2), nn.ReLU(), nn.MaxPool2d(2, stride=1)),
        *(nn.Flatten(), nn.Linear(512, 32), nn.ReLU(), nn.Linear(32, 10)),
    )


def load(path):
    """(clients, samples, 1, 28, 28) float32, (clients, samples) int64, (models, parameters) float32."""
    with np.load(path) as file:
        return file["inputs"], file["targets"], file["starts"]


@torch.no_grad()
def put(vector, module):
    """A flat vector into a module."""
    pieces = torch.split(torch.from_numpy(vector), [part.numel() for part in module.parameters()])
    for parameter, piece in zip(module.parameters(), pieces, strict=True):
        parameter.copy_(piece.reshape(parameter.shape))


def answer(train, ifca):
    """Drive the two rounds of a contender."""
    print("ready", flush=True)
    for word in sys.stdin:
        began = time.perf_counter()
        {"train": train, "ifca": ifca}[word.strip()]()
        print(time.perf_counter() - began, flush=True)
