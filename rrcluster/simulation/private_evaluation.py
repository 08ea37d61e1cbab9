"""What a sampled client says about the released models: two numbers in [0, 1] that travel inside its report.

It judges the models that would be handed out if the run stopped now (`ServerState.average`): they are made of earlier
releases alone, so Theorem 1 of docs/privacy.md covers what it says about them. It picks the model of least loss on its
own samples and reports that model's accuracy and clipped loss on the same samples. Those are the samples it trains on:
holding some back would cost training data and leave a handful per client, while client-level noise keeps a model
from telling its own clients' samples from others' (docs/tuning.md has the measured gap).
"""

import numpy as np

from rrcluster.data.federated import Cohort
from rrcluster.engine import calls
from rrcluster.methods.method import Clients, Method, Tools
from rrcluster.types import Array, Models


def own_evaluations(
    models: Models, cohort: Cohort, *, loss_bound: float | None, algorithm: Method, tools: Tools
) -> Array | None:
    """(n, 2) accuracy, and loss in units of the loss bound, of each client's own best model on its own samples.

    None without a loss bound: then nothing is evaluated. A client without samples says 1/2 to both, which is zero in
    its message; a loss that is infinite or no number is reported as the bound, or a model's failures would drop out of
    the mean. Clipping is the mechanism's business.
    """
    if loss_bound is None:
        return None
    chosen = algorithm.scores(models, Clients.without_memory(cohort), tools=tools).argmin(axis=1)
    loss, accuracy = calls.measure(tools.engine, tools.split.vectors(models), cohort)
    rows = np.arange(len(chosen))
    share = np.nan_to_num(loss[rows, chosen] / loss_bound, nan=1.0, posinf=1.0)
    own = np.stack([accuracy[rows, chosen], share], axis=1)
    return np.where(cohort.sizes[:, None] > 0, own, 0.5)
