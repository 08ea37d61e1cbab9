"""Models in a plain and a client-batched form; any `nn.Module` through `from_module`."""

from rrcluster.models.model import Layer, Model, from_module
from rrcluster.models.probe import fitted
from rrcluster.models.zoo import OURS, make_model

__all__ = ["OURS", "Layer", "Model", "fitted", "from_module", "make_model"]
