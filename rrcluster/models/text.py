"""Networks for text: characters come as ids."""

from torch import Tensor, nn

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
