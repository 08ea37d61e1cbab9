"""The model of one cluster as plain PyTorch: weights by layer name, a module, and one safetensors file per cluster.

A file holds everything that `module.load_state_dict` asks for: the released weights of the cluster, and what the run
did not train (constant buffers, frozen layers) as it is in the module. Personal layers (the last layer under FedPer)
stay on the clients; in the file they are zero, where a client that has not trained yet starts, and its metadata names
them.
"""

import copy
import json
from dataclasses import dataclass
from typing import Any

import numpy as np
from safetensors.torch import save
from torch import Tensor, nn

from rrcluster.methods.coordinate_split import Split
from rrcluster.models import Model
from rrcluster.types import Models

FORMAT = "rrcluster-cluster/1"


@dataclass(frozen=True)
class ClusterModels:
    """The k models of a run, each as PyTorch has it."""

    models: Models
    model: Model  # the one the method trains (`Method.adapt`)
    split: Split

    def state_dict(self, cluster: int) -> dict[str, Tensor]:
        """Every parameter and buffer of the module by name, with this cluster's weights; copies."""
        named = {name: value for name, value in self.module(cluster).state_dict().items() if isinstance(value, Tensor)}
        return {name: value.detach().clone().contiguous() for name, value in named.items()}

    def module(self, cluster: int) -> nn.Module:
        """A copy of the module with this cluster's weights, in eval mode."""
        import torch

        vector = torch.as_tensor(self.split.vectors(self.models, np.array([cluster]))[0])
        module, values = copy.deepcopy(self.model.module).cpu(), self.model.unflatten(vector)
        with torch.no_grad():
            for name, parameter in module.named_parameters():  # weights that are used twice are named once
                if name in values:
                    parameter.copy_(values[name])
        return module.eval()

    @property
    def personal(self) -> list[str]:
        """Names of the layers of which a part stays on the clients."""
        places = self.split.personal
        return [layer.name for layer in self.model.layers if ((layer.start <= places) & (places < layer.stop)).any()]

    def files(self, about: dict[str, Any]) -> dict[str, bytes]:
        """Name and content of the file of every cluster; `about` goes into the metadata."""
        return {
            f"cluster-{cluster}.safetensors": save(
                self.state_dict(cluster),
                metadata={
                    name: json.dumps(value)
                    for name, value in {
                        **about, "format": FORMAT, "cluster": cluster, "personal": self.personal,
                    }.items()
                },
            )
            for cluster in range(self.models.num_clusters)
        }  # fmt: skip
