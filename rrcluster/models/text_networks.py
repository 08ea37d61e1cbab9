"""Networks for text: characters come as ids."""

from functools import partial

import torch
from torch import Tensor, nn

from rrcluster.errors import ConfigError
from rrcluster.models.layers import dense, embed, lstm
from rrcluster.models.model import Model, Parameters

EMBEDDING, HIDDEN, LAYERS = 8, 256, 2


class CharacterLSTM(nn.Module):
    """Embedding(8), two LSTM layers of 256, a linear layer on the last state: the character that comes next."""

    def __init__(self, vocabulary: int) -> None:
        """Layers for a vocabulary of this size."""
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, EMBEDDING)
        self.lstm = nn.LSTM(EMBEDDING, HIDDEN, num_layers=LAYERS, batch_first=True)
        self.head = nn.Linear(HIDDEN, vocabulary)

    def forward(self, ids: Tensor) -> Tensor:
        """(s, steps) int64 -> (s, vocabulary)."""
        states, _ = self.lstm(self.embedding(ids))
        outputs: Tensor = self.head(states[:, -1])
        return outputs


def character_lstm(input_shape: tuple[int, ...], outputs: int) -> Model:  # noqa: ARG001  # any length will do
    """LEAF's network for Shakespeare: 819,920 parameters with a vocabulary of 80.

    At 2,048 windows of 80 characters at once, the projected inputs of a layer take 670 MB.
    """
    return Model(
        "lstm",
        CharacterLSTM(outputs),
        grouped_form=_lstm_grouped,
        recurrent=True,
        takes_ids=True,
        samples_at_once=2048,
        clients_at_once=384,
    )


def _lstm_grouped(parameters: Parameters, inputs: Tensor) -> Tensor:
    steps_first = inputs.transpose(1, 2)  # (G, steps, s)
    hidden = embed(steps_first.flatten(1), parameters["embedding.weight"]).reshape(*steps_first.shape, -1)
    for layer in range(LAYERS):
        hidden = lstm(hidden, parameters, "lstm", layer)
    return dense(hidden[:, -1], parameters["head.weight"], parameters["head.bias"])


class CharacterNgram(nn.Module):
    """The next character from the last few: one row of weights for each of them by its place, and a bias, added up.

    One linear layer on one-hot inputs, so the loss is convex. The bias is a table of one row, and the last layer: what
    is personal in FedPer and clustered where the base is shared.
    """

    def __init__(self, vocabulary: int, before: int) -> None:
        """Weights for `before` characters of a vocabulary of this size."""
        super().__init__()
        self.vocabulary, self.before = vocabulary, before
        self.table = nn.Embedding(before * vocabulary, vocabulary)
        self.bias = nn.Embedding(1, vocabulary)

    def forward(self, ids: Tensor) -> Tensor:
        """(s, steps) int64 -> (s, vocabulary)."""
        rows = ids[:, -self.before :] + self.vocabulary * torch.arange(self.before, device=ids.device)
        outputs: Tensor = self.table(rows).sum(1) + self.bias.weight
        return outputs


def character_ngram(input_shape: tuple[int, ...], outputs: int, *, name: str, before: int) -> Model:
    """Additive n-gram model of `before` characters: (80 before + 1) 80 parameters with a vocabulary of 80.

    It starts close to zero, as `linear` does and for the same reasons.
    """
    if input_shape[0] < before:
        raise ConfigError(
            f"model = {name} looks at the last {before} characters, and the inputs have {input_shape[0]}; "
            "use longer windows."
        )
    form = partial(_ngram_grouped, before)
    return Model(name, CharacterNgram(outputs, before), grouped_form=form, takes_ids=True, init_scale=0.05)


bigram = partial(character_ngram, name="bigram", before=1)
trigram = partial(character_ngram, name="trigram", before=2)
fourgram = partial(character_ngram, name="fourgram", before=3)


def _ngram_grouped(before: int, parameters: Parameters, inputs: Tensor) -> Tensor:
    """A product with one-hot rows, for the reason given in `embed`."""
    table, bias = parameters["table.weight"], parameters["bias.weight"]
    places = torch.arange(table.shape[2], device=inputs.device)
    one_hot = (inputs[:, :, -before:, None] == places).flatten(2)  # (G, s, before x vocabulary)
    return torch.baddbmm(bias, one_hot.to(table.dtype), table)
