"""Two networks of one kind, summed at the output: what FedCAM trains, one shared and one per cluster."""

import copy
from dataclasses import replace

from torch import Tensor, nn

from rrcluster.models.model import FixedPart, Model, Parameters


class AdditiveNet(nn.Module):
    """h(x) + f(x)."""

    def __init__(self, network: nn.Module) -> None:
        """Two copies; their parameters are the flat vector's first and second half."""
        super().__init__()
        self.common, self.residual = copy.deepcopy(network), copy.deepcopy(network)

    def forward(self, inputs: Tensor) -> Tensor:
        """Sum of the outputs."""
        outputs: Tensor = self.common(inputs) + self.residual(inputs)
        return outputs


def additive(model: Model) -> Model:
    """`model` twice, summed. Grouped form: the sum of the two grouped forms. Fixed features are those of `model`."""

    def grouped(parameters: Parameters, inputs: Tensor) -> Tensor:
        return model.grouped(_half("common.", parameters), inputs) + model.grouped(
            _half("residual.", parameters), inputs
        )

    fixed = None if model.fixed is None else FixedPart(model.fixed.features, additive(model.fixed.rest))
    name, module = f"{model.name}+{model.name}", AdditiveNet(model.module)
    return replace(model, name=name, module=module, grouped_form=grouped, fixed=fixed, accelerated=None)


def _half(prefix: str, parameters: Parameters) -> Parameters:
    return {name.removeprefix(prefix): value for name, value in parameters.items() if name.startswith(prefix)}
