"""`emnist`: populations of different labels, without true clusters."""

from rrcluster.paper import recipes
from rrcluster.paper.recipes import rebalanced, remembering, unrebalanced
from rrcluster.paper.study import IDENTIFIER, JOINT, Claim, Quick, Row, Spotlight, Study, columns, padded

TABLE = "table:acc_emnist, with DP-FedPer from app:acc_emnist"
_OTHERS = ("fedavg", "fedper", "ifca", "fesem", "fedcam")

EMNIST = Study(
    name="emnist",
    title="EMNIST: mild and high heterogeneity of labels",
    source=TABLE,
    columns=columns(
        {
            "mild": ("Mild heterogeneity (Dirichlet 0.5)", {"concentration": 0.5}),
            "high": ("High heterogeneity (Dirichlet 0.1)", {"concentration": 0.1}),
        },
        (2, 4, 8),
    ),
    rows=(
        Row("fedavg", "DP-FedAvg", unrebalanced("fedavg"), padded((26.47, 30.95, 32.61), (23.82, 24.46, 25.54))),
        Row(
            "fedper",
            "DP-FedPer",
            remembering("fedper", model="cnn"),
            padded((40.67, 40.81, 41.23), (24.78, 25.51, 26.12)),
        ),
        Row("ifca", "DP-IFCA", unrebalanced("ifca"), padded((62.23, 65.39, 65.93), (32.53, 35.60, 36.19))),
        Row("fesem", "DP-FeSEM", remembering("fesem"), padded((60.43, 65.72, 66.24), (31.12, 37.52, 38.74))),
        Row("fedcam", "DP-FedCAM", unrebalanced("fedcam"), padded((57.35, 57.22, 61.26), (23.66, 24.55, 29.70))),
        Row(
            "rr-ifca",
            "RR-Cluster (IFCA)",
            rebalanced("ifca", exploration=1.0),
            padded((66.38, 66.75, 67.04), (37.13, 38.92, 39.05)),
        ),
        *recipes.ours(),
    ),
    settings=recipes.EMNIST,
    by_model=recipes.BY_MODEL,
    choices=(
        "Data: the 116,323 images of ByMerge's test file, divided 80/20 (the paper names all 814,255 images and no "
        "division); not comparable number for number.",
        "Test images: 100 per client, in the label proportions of its training images (not stated).",
        "There are no true clusters, so no oracle and no clustering accuracy.",
        *recipes.COARSE,
        *recipes.IMAGE_CHOICES,
    ),
    quick=Quick(
        settings={"num_rounds": 15, "local_epochs": 2, "max_samples": 40, "evaluate_every": 15},
        columns=("mild-eps8", "high-eps8"),
        rows=("fedavg", "ifca", "fesem", "rr-ifca", "ifca-explore"),
        words="at most 40 training images a client, 15 rounds of 2 local epochs; epsilon 8; without DP-FedPer and "
        "DP-FedCAM.",
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
        Claim("Clustering beats one global model (ours, under joint)", TABLE, JOINT, (("ifca", "fedavg"),)),
    ),
    figures=("epsilon", "worst-decile", "sizes"),
    spotlights=(Spotlight("high-eps8", (("ifca", JOINT), ("rr-ifca", JOINT))),),
)
