"""Models in a plain and a client-batched form; any `nn.Module` through `from_module`."""

from rrcluster.models.model import Layer, Model, from_module
from rrcluster.models.zoo import MODELS, make_model

__all__ = ["MODELS", "Layer", "Model", "from_module", "make_model"]
