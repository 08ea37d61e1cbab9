"""`shakespeare`: the next character, one client per speaking role."""

from rrcluster.experiments.paper import recipes
from rrcluster.experiments.paper.columns import columns, padded
from rrcluster.experiments.paper.recipes import clustered, one_model, rebalanced, remembering
from rrcluster.experiments.paper.study import IDENTIFIER, JOINT, Claim, Quick, Row, Spotlight, Study

TABLE = "table:acc_shakespeare, with DP-FedPer from app:acc_shakespeare"
_B = 8  # of 15 clients per cluster and round
_OTHERS = ("fedavg", "fedper", "ifca", "fesem", "fedcam")

SHAKESPEARE = Study(
    name="shakespeare",
    title="Shakespeare: next character by speaking role",
    source=TABLE,
    columns=columns({"roles": ("Speaking roles", {})}, (4, 8, 16)),
    rows=(
        Row("fedavg", "DP-FedAvg", one_model("fedavg"), padded((4.47, 13.43, 17.53))),
        Row("fedper", "DP-FedPer", remembering("fedper"), padded((13.09, 13.14, 13.18))),
        Row("ifca", "DP-IFCA", clustered("ifca"), padded((12.62, 12.64, 13.20))),
        Row("fesem", "DP-FeSEM", remembering("fesem"), padded((10.97, 12.99, 15.89))),
        Row("fedcam", "DP-FedCAM", clustered("fedcam"), padded((None, None, 4.47))),
        Row(
            "rr-ifca",
            "RR-Cluster (IFCA)",
            rebalanced("ifca", exploration=1.0, exact=_B, coin=_B),
            padded((13.42, 13.83, 16.25)),
        ),
        *recipes.ours(coin=_B),
    ),
    settings=recipes.TEXT,
    choices=(
        "Rounds: T = 100 (not stated). Network: embedding 8, two LSTM layers of 256, 80 characters in, 80 classes "
        "(819,920 parameters; the paper says LSTM).",
        "Optimiser: SGD, batch 20, one local epoch, local_lr 0.5, server_lr 1 (not stated). Clip: C = 0.2.",
        f"k = 2 and B = {_B} for all methods (the paper tunes k in 2, 4 and B in 4, 8, 12).",
        "Text: 300 roles of at least 1,000 characters, drawn from all 37 plays of the Moby edition, at most 2,000 "
        "training windows each (the paper uses LEAF's edition).",
        "A dash of the paper (DP-FedCAM: does not converge) is an empty cell.",
        "delta = 1e-3, accountant and budget split as for images. There are no true clusters, so no oracle.",
    ),
    quick=Quick(
        settings={"num_clients": 100, "sample_rate": 0.2, "num_rounds": 5, "max_samples": 10, "evaluate_every": 5},
        columns=("roles-eps16",),
        rows=("fedavg", "ifca", "rr-ifca"),
        words="100 roles of which 20 take part per round, at most 10 windows a role for training and for testing, 5 "
        "rounds; epsilon 16; three methods. Far too little to learn from: it shows that everything runs.",
    ),
    pairs=recipes.COMPARED,
    claims=(
        Claim("RR-Cluster improves on DP-IFCA", TABLE, IDENTIFIER, (("rr-ifca", "ifca"),)),
        Claim(
            "RR-Cluster is the best of all methods (ours, under joint)",
            TABLE,
            JOINT,
            tuple(("rr-ifca", other) for other in _OTHERS),
        ),
    ),
    figures=("epsilon", "worst-decile", "sizes"),
    spotlights=(Spotlight("roles-eps16", (("ifca", JOINT), ("rr-ifca", JOINT))),),
)
