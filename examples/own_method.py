"""Your own method: say which cluster suits a client and how it trains. Privacy, noise and rebalancing stay as they are.

This one is IFCA with another choice: a client goes where it makes the fewest mistakes, and the loss only breaks ties.
"""

import tempfile

import numpy as np

import rrcluster as rr


def fewest_mistakes(models, clients: rr.Clients, *, tools: rr.Tools) -> np.ndarray:
    loss, accuracy = tools.measure(models, clients)  # (n, k) each
    return (1 - accuracy) + 1e-3 * np.tanh(loss)


rr.register("method", "fewest-mistakes", rr.Method("fewest-mistakes", scores=fewest_mistakes), label="Fewest mistakes")

with tempfile.TemporaryDirectory() as folder:
    result = rr.run(
        algorithm="fewest-mistakes", num_clients=200, num_clusters=4, sample_rate=0.3, num_rounds=8, model="linear",
        epsilon=8, delta=5e-4, out=f"{folder}/run",
    )  # fmt: skip
    print(f"epsilon {result.epsilon:.2f}: accuracy {result.evaluation.accuracy:.1%} (diagnostic, not private)")
    assert result.evaluation.accuracy > 0.4
