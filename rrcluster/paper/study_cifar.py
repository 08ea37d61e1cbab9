"""`cifar`: rotated CIFAR-10 and CIFAR-100."""

from rrcluster.paper import recipes
from rrcluster.paper.recipes import rebalanced, remembering, unrebalanced
from rrcluster.paper.study import IDENTIFIER, JOINT, Claim, Quick, Row, Spotlight, Study, columns, padded

TABLE = "table:acc_cifar"
_OTHERS = ("fedavg", "fedprox", "fesem", "fedcam", "ifca")

CIFAR = Study(
    name="cifar",
    title="CIFAR-10 and CIFAR-100, rotated",
    source=TABLE,
    columns=columns(
        {
            "cifar10": ("CIFAR-10, four rotations", {"data": "cifar10"}),
            "cifar100": ("CIFAR-100, four rotations", {"data": "cifar100"}),
        },
        (4, 8),
    ),
    rows=(
        Row("fedavg", "DP-FedAvg", unrebalanced("fedavg"), padded((52.89, 54.48), (14.05, 14.49))),
        Row("fedprox", "DP-FedProx", unrebalanced("fedprox"), padded((52.04, 54.61), (14.48, 14.53))),
        Row("fesem", "DP-FeSEM", remembering("fesem"), padded((53.01, 55.87), (16.23, 17.08))),
        Row("fedcam", "DP-FedCAM", unrebalanced("fedcam"), padded((52.50, 54.73), (16.36, 17.04))),
        Row("ifca", "DP-IFCA", unrebalanced("ifca"), padded((53.91, 56.77), (16.29, 17.47))),
        Row(
            "rr-ifca",
            "RR-Cluster (IFCA)",
            rebalanced("ifca", exploration=1.0),
            padded((57.46, 58.41), (17.83, 18.00)),
        ),
        *recipes.ours(),
        recipes.oracle(),
    ),
    settings=recipes.CIFAR,
    by_model=recipes.BY_MODEL,
    choices=(
        "Network: the paper's is not described; here `edges-coarse`, 1,770 parameters with 10 classes: a linear layer "
        "on fixed features (docs/data.md), because noise hurts fewer parameters less (`--model cifar-cnn` has 308,490; "
        "under noise it was not compared). Clip: C = 0.4 for all methods.",
        "Clients: 1,000 with 50 images each, as for FashionMNIST.",
        *recipes.IMAGE_CHOICES,
    ),
    quick=Quick(
        settings={"num_clients": 200, "num_rounds": 5, "local_epochs": 1, "max_samples": 20, "evaluate_every": 5},
        columns=("cifar10-eps8", "cifar100-eps8"),
        rows=("fedavg", "ifca", "rr-ifca"),
        words="200 clients of which 20 take part per round, at most 20 training images and 20 test images, 5 rounds of "
        "one epoch; epsilon 8; three methods, B = 4. Far too little to learn from: it shows that everything runs.",
        answers={IDENTIFIER: {"min_cluster_size": 4}, JOINT: {"min_cluster_size": 4}},
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
    figures=("epsilon", "worst-decile", "sizes", "confusion"),
    spotlights=(Spotlight("cifar10-eps8", (("ifca", JOINT), ("rr-ifca", JOINT))),),
)
