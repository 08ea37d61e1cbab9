"""Models in a plain and a client-batched form: built-in ones, by name, and any `nn.Module` through `from_module`."""

from collections.abc import Callable
from dataclasses import dataclass

from rrcluster import registry
from rrcluster.errors import ConfigError
from rrcluster.models import networks
from rrcluster.models.model import Layer, Model, from_module
from rrcluster.models.probe import fitted, seeded_generator
from rrcluster.models.scattering import scattering, scattering_pca
from rrcluster.models.table_linear import table_linear

__all__ = ["OURS", "Layer", "Model", "Shipped", "fitted", "from_module", "make_model", "shipped_model"]


@dataclass(frozen=True)
class Shipped:
    """A built-in model: its constructor and its inputs."""

    make: Callable[[tuple[int, ...], int], Model]
    takes: str  # in words, for errors
    shapes: tuple[tuple[int, ...], ...] = ()  # the only input shapes it takes; none: any
    ids: bool = False  # inputs are ids (int64) of a sequence rather than numbers
    own: bool = False  # registered: tried on a sample (probe.py) instead
    cells: bool = False  # inputs are a table's raw cells, which no error proposes for other data

    def fits(self, input_shape: tuple[int, ...], ids: bool) -> bool:
        """Whether the model can be trained on such inputs."""
        if self.own:
            return True
        one_axis = len(input_shape) == 1 or not self.ids
        return self.ids == ids and (not self.shapes or input_shape in self.shapes) and one_axis


_IMAGES, _EITHER = ((1, 28, 28), (3, 32, 32)), "1 x 28 x 28 or 3 x 32 x 32 images"

OURS: dict[str, Shipped] = {
    "linear": Shipped(networks.linear, "numbers of any shape"),
    "pooled-linear": Shipped(networks.pooled_linear, _EITHER, shapes=_IMAGES),
    "edges": Shipped(networks.edges, _EITHER, shapes=_IMAGES),
    "edges-coarse": Shipped(networks.edges_coarse, _EITHER, shapes=_IMAGES),
    "edges-mlp": Shipped(networks.edges_mlp, _EITHER, shapes=_IMAGES),
    "scattering": Shipped(scattering, _EITHER, shapes=_IMAGES),
    "scattering-pca": Shipped(scattering_pca, "1 x 28 x 28 images", shapes=((1, 28, 28),)),
    "table-linear": Shipped(table_linear, "rows of a table", cells=True),
    "mlp": Shipped(networks.mlp, "numbers of any shape"),
    "bigram": Shipped(networks.bigram, "sequences of character ids", ids=True),
    "trigram": Shipped(networks.trigram, "sequences of character ids", ids=True),
    "fourgram": Shipped(networks.fourgram, "sequences of character ids", ids=True),
}


def shipped_model(name: str) -> Shipped:
    """The constructor of a named model; a registered function of (input shape, outputs) may give a Model or a module.

    The function is called under a fixed seed, so that its random weights are the same in every process.
    """
    entry = registry.MODELS.load(name)
    if isinstance(entry, Shipped):
        return entry

    def make(input_shape: tuple[int, ...], outputs: int) -> Model:
        with seeded_generator():
            made = entry(input_shape, outputs)
        return made if isinstance(made, Model) else from_module(made, name=name)

    return Shipped(make, "whatever its author says", own=True)


def make_model(name: str, *, input_shape: tuple[int, ...], num_classes: int, ids: bool | None = None) -> Model:
    """A model by name, built-in or registered. `num_classes = 0` means regression: one output.

    `ids`: whether the inputs are ids (None: the model's own kind). A `ConfigError` names the models that fit, when this
    one does not.
    """
    shipped = shipped_model(name)
    shape, kind = tuple(input_shape), shipped.ids if ids is None else ids
    if not shipped.fits(shape, kind):
        others = {other: shipped_model(other) for other in registry.MODELS}
        fitting = [name for name, other in others.items() if other.fits(shape, kind) and not (other.own or other.cells)]
        raise ConfigError(
            f"model = {name} takes {shipped.takes}, not {'ids' if kind else 'numbers'} of shape {shape}; "
            f"use model = {' or '.join(fitting) or 'one of your own'}."
        )
    return shipped.make(shape, max(num_classes, 1))
