"""`clustering`: how many clients end up in the right cluster."""

from rrcluster.paper import recipes
from rrcluster.paper.recipes import rebalanced, remembering, unrebalanced
from rrcluster.paper.study import IDENTIFIER, JOINT, NO_NOISE, Claim, Quick, Row, Spotlight, Study, columns
from rrcluster.paper.study_fashion import QUICK_SETTINGS, QUICK_WORDS

TABLE = "table:acc_cluster"
_SIZES = {  # B -> published, epsilon 0.5, 2, 4, 8, 16, infinity
    4: (40.62, 45.31, 43.75, 59.37, 87.50, 98.44),
    6: (40.62, 53.12, 62.50, 87.50, 100.00, 84.37),
    8: (40.62, 59.37, 87.50, 98.44, 100.00, 100.00),
}
_LARGEST = "rr-b8"

CLUSTERING = Study(
    name="clustering",
    title="FashionMNIST: clustering accuracy, balanced",
    source=TABLE,
    columns=columns({"balanced": ("Balanced clusters", {"partition": "rotation"})}, (0.5, 2, 4, 8, 16)),
    rows=(
        Row("ifca", "DP-IFCA", unrebalanced("ifca"), (34.37, 42.18, 39.06, 40.62, 42.18, 75.00)),
        Row(
            "fesem",
            "DP-FeSEM",
            {**remembering("fesem"), NO_NOISE: {"algorithm": "fesem", "exploration": 0.0}},
            (None, 42.18, 39.06, 32.81, 50.00, 46.87),
        ),
        *(
            Row(f"rr-b{size}", f"RR-Cluster (IFCA), B = {size}", rebalanced("ifca", exact=size, coin=size), published)
            for size, published in _SIZES.items()
        ),
        Row(
            "rr-ifca",
            f"RR-Cluster (IFCA), B = {recipes.COIN_B} + exploration",
            {JOINT: rebalanced("ifca", exploration=1.0)[JOINT]},
        ),
        Row(
            "ifca-explore",
            "DP-IFCA + exploration",
            {mechanism: {"algorithm": "ifca", "exploration": 1.0} for mechanism in (JOINT, NO_NOISE)},
        ),
    ),
    settings=recipes.FASHION,
    by_model=recipes.BY_MODEL,
    choices=(
        "Clients: all 1,000 are judged, under the best one-to-one matching of clusters to rotations (every published "
        "entry is a multiple of 1/64, so 64 clients were judged there).",
        *recipes.EDGES,
        *recipes.IMAGE_CHOICES,
    ),
    quick=Quick(
        settings=QUICK_SETTINGS,
        columns=("balanced-eps2", "balanced-eps8", "balanced-no-noise"),
        rows=("ifca", "fesem", "rr-b4", "rr-b8", "rr-ifca", "ifca-explore"),
        words=f"{QUICK_WORDS}; epsilon 2, 8 and none; without B = 6.",
    ),
    measure="clustering_accuracy",
    pairs=tuple((f"rr-b{size}", "ifca", mechanism) for mechanism in (IDENTIFIER, JOINT, NO_NOISE) for size in _SIZES),
    claims=(
        Claim(
            "RR-Cluster clusters more clients correctly than DP-IFCA",
            TABLE,
            IDENTIFIER,
            tuple((f"rr-b{size}", "ifca") for size in _SIZES),
        ),
        Claim("Clustering accuracy rises with B", TABLE, IDENTIFIER, ((_LARGEST, "rr-b6"), ("rr-b6", "rr-b4"))),
        Claim("Without noise too, RR-Cluster clusters better", TABLE, NO_NOISE, ((_LARGEST, "ifca"),)),
    ),
    figures=("epsilon", "sizes", "confusion"),
    spotlights=(
        Spotlight("balanced-eps8", (("ifca", IDENTIFIER), (_LARGEST, IDENTIFIER))),
        Spotlight("balanced-eps8", (("ifca", JOINT), (_LARGEST, JOINT), ("rr-ifca", JOINT))),
        Spotlight("balanced-no-noise", (("ifca", NO_NOISE), (_LARGEST, NO_NOISE))),
    ),
)
