"""Settings of the methods in all studies. The paper states q and the grids of C, B, k, epochs and rates only.

Settings equal to the defaults of `rrcluster run` are left out, except exploration, which every row sets: 0 is the
published method, and with it there is no survey. Rows that explore have none either; the default's row then has the
default `init`.
"""

from typing import Any

from rrcluster_research.study import IDENTIFIER, JOINT, NO_NOISE, Answer, Row

PUBLISHED, EXPLORING = {"exploration": 0.0}, {"exploration": 1.0, "init": "independent"}
DEFAULT: dict[str, Answer] = {JOINT: {"algorithm": "ifca", "exploration": 1.0}}
COIN_B, EXACT_B = 20, 8  # of 25 clients per cluster and round; the paper's grid of B is 4, 8, 12

IMAGES: dict[str, Any] = {
    "num_clients": 1000,
    "sample_rate": 0.1,
    "num_rounds": 100,
    "num_clusters": 4,
    "model": "edges",
    "delta": 1e-3,
    "update_clip": 0.4,
    "local_lr": 0.05,
    "local_epochs": 5,
    "batch_size": 20,
    "average_last": 0.5,
}
FASHION = IMAGES | {"data": "fashion-mnist", "partition": "rotation"}
EMNIST = IMAGES | {"data": "emnist", "partition": "dirichlet", "model": "edges-coarse"}
CIFAR = IMAGES | {"data": "cifar10", "partition": "rotation", "model": "edges-coarse"}
BY_MODEL = {  # for networks that are requested by name
    "linear": {"update_clip": 0.2},
    "cnn": {"update_clip": 0.3, "local_lr": 0.03},
    "cifar-cnn": {"update_clip": 0.2},
}
_CNN_CLIPS = {
    2.0: 0.2,
    4.0: 0.3,
    8.0: 0.4,
    None: 0.4,
}  # chosen on rotated EMNIST
BY_BUDGET = {"cnn": {epsilon: {"sample_rate": 0.3, "update_clip": clip} for epsilon, clip in _CNN_CLIPS.items()}}
TEXT = IMAGES | {  # chosen on other roles
    "data": "shakespeare",
    "partition": "role",
    "num_clients": 300,
    "sample_rate": 1.0,
    "num_rounds": 10,
    "num_clusters": 2,
    "model": "fourgram",
    "update_clip": 10.0,
    "local_lr": 10.0,
    "local_epochs": 1,
    "max_samples": 320,
    "server_momentum": 0.5,
    "evaluate_every": 5,
}
BY_TEXT_MODEL = {"lstm": {"update_clip": 0.2, "local_lr": 1.0}}  # its rate was chosen without noise


def network(words: str, *, clip: float) -> tuple[str, ...]:
    """The choices of network and clip, as text."""
    return (
        f"Network: the paper has a CNN of unstated size; here {words}: a linear layer on fixed features, edges by "
        "direction in the cells of a grid (docs/own-data.md), because noise hurts fewer parameters less. `--model cnn` "
        "(26,010 parameters with 10 classes) and `--model linear` (7,850) have settings of their own. DP-FedPer needs "
        "a head and a base, and has the CNN (C = 0.3, local_lr 0.03).",
        f"Clip: C = {clip} for all methods but DP-FedPer (the paper tunes C in logspace(-1, -3, 5) per method, on "
        "validation data that its epsilon does not cover).",
    )


EDGES = network("`edges`, 4,420 parameters", clip=0.4)
COARSE = network("`edges-coarse`, 8,366 parameters with 47 classes", clip=0.4)
_ALIKE = (
    "k = 4 for all methods (the paper tunes k in 2, 4).",
    f"B = {EXACT_B} under identifier (the paper's grid is 4, 8, 12; noisy identifiers fill all clusters alike, so that "
    f"it hardly ever acts), B = {COIN_B} with coins under joint.",
    "DP-FeSEM and DP-FedPer under identifier, whose proof does not cover clients that remember their rounds: the "
    "memoryless forms (docs/methods), in which a client fits the model that it compares, or its last layer, anew in "
    "every round.",
    "Budget split under identifier: half of the round's budget to identifiers (not stated), Gaussian noise on them.",
    "delta = 1e-3, accountant: privacy loss distributions; identifier is replace-one with fixed-size cohorts, joint is "
    "add-remove with Poisson cohorts. Neither is the accountant of the paper, which is unsound.",
    "Models handed out: the mean over the last half of the rounds. Every client picks the one of least loss on its own "
    "training data.",
)
IMAGE_CHOICES = (
    "Rounds: T = 100 (not stated).",
    "Optimiser: SGD, batch 20, 5 local epochs, local_lr 0.05, server_lr 1 (not stated; rates of 1e-6 to 1e-3 fit "
    "Adam).",
    "Tuning (one seed a setting) is not covered by any epsilon here. Clip, rate, epochs "
    "and T: for rotated FashionMNIST on rotated EMNIST, the same for all methods and budgets (DP-FedPer's CNN too); "
    "EMNIST has the same. On rotated EMNIST `edges` wants C = 0.2 "
    "at epsilon 2 and 0.4 at 8; with 10 classes instead of 47 its noise is less than half as long, so 0.4 was taken. "
    "Features: `edges` for 10 classes won on FashionMNIST under Dirichlet, `edges-coarse` for 47 on rotated EMNIST, "
    "which are a table's images in other clients' hands; runs of seed 7 on the tables' own populations were seen "
    "before the choice. CIFAR-10: on its own images, clients of seed 7.",
    *_ALIKE,
)
CNN_CHOICES = (
    "Network: the paper has a CNN of unstated size; here `cnn`, two convolutions and two linear layers, 26,010 "
    "parameters.",
    "Cohorts and clip, for all methods: q = 0.3 (the paper has 0.1), C = 0.2, 0.3 and 0.4 at epsilon 2, 4 and 8, "
    "tuned on rotated EMNIST at the same epsilon (one seed a setting, and "
    "cnn-clip, three), which no epsilon covers; C = 0.4 without noise, not tuned. B is as with q = 0.1, so that coins "
    "are for clusters far smaller than the 75 clients expected.",
    "Rounds: T = 100 (not stated).",
    "Optimiser: SGD, batch 20, 5 local epochs, local_lr 0.03, server_lr 1 (not stated; rates of 1e-6 to 1e-3 fit "
    "Adam).",
    *_ALIKE,
)


def unrebalanced(method: str, **more: Any) -> dict[str, Answer]:
    """The same settings under every mechanism, without rebalancing."""
    settings: Answer = {"algorithm": method, **PUBLISHED, **more}
    return {IDENTIFIER: settings, JOINT: settings, NO_NOISE: settings}


def remembering(method: str, **more: Any) -> dict[str, Answer]:
    """FedPer, FeSEM: as published under joint; memoryless under identifier, which does not cover memory."""
    return {
        IDENTIFIER: {"algorithm": f"{method}-memoryless", **PUBLISHED, **more},
        JOINT: {"algorithm": method, **PUBLISHED, **more},
    }


def rebalanced(
    method: str, *, exploration: float = 0.0, exact: int = EXACT_B, coin: int = COIN_B, **more: Any
) -> dict[str, Answer]:
    """With random rebalancing: by coins and with `exploration` under joint, else exact and without exploration."""
    settings = {"algorithm": method, **PUBLISHED, **more}
    moved: Answer = settings | {"min_cluster_size": exact}
    coins: Answer = settings | {"min_cluster_size": coin, "exploration": exploration}
    return {IDENTIFIER: moved, JOINT: coins, NO_NOISE: moved}


def ours() -> tuple[Row, ...]:
    """Rows beyond the paper: our default, exploration alone and coins alone."""
    ifca = {"algorithm": "ifca"}
    return (
        Row("default", "Default: DP-IFCA + survey", DEFAULT),
        Row("ifca-explore", "DP-IFCA + exploration", {JOINT: ifca | EXPLORING}),
        Row("ifca-coin", "RR-Cluster (IFCA), no exploration", {JOINT: rebalanced("ifca")[JOINT]}),
    )


def oracle() -> Row:
    """Every client knows its true cluster: an upper bound for clustered methods."""
    return Row("oracle", "Oracle: true clusters given", unrebalanced("oracle"), reference=True)


COMPARED = (  # (row, base row, mechanism)
    ("rr-ifca", "ifca", IDENTIFIER),
    ("rr-ifca", "ifca-explore", JOINT),
    ("ifca-coin", "ifca", JOINT),
)
