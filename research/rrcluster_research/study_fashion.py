"""FashionMNIST: `fashion`, the main table, figures over some of its cells, the ablation of B, and `clustering`."""

from rrcluster_research import recipes
from rrcluster_research.recipes import rebalanced, remembering, unrebalanced
from rrcluster_research.study import (
    IDENTIFIER,
    JOINT,
    NO_NOISE,
    Claim,
    Column,
    Quick,
    Row,
    Spotlight,
    Study,
    columns,
    padded,
)

TABLE = "table:acc_fashionmnist, with DP-FedPer from app:acc_fashionmnist"
_BALANCED = ("Balanced clusters (0, 90, 180, 270 degrees)", {"partition": "rotation"})
_IMBALANCED = ("Imbalanced clusters (2:1:1; 0, 90, 180 degrees)", {"partition": "rotation-imbalanced"})

ROWS = (
    Row("fedavg", "DP-FedAvg", unrebalanced("fedavg"), padded((60.88, 61.50, 62.72), (60.80, 61.53, 61.59))),
    Row(
        "fedper",
        "DP-FedPer",
        remembering("fedper", model="cnn"),
        padded((61.03, 61.78, 62.19), (60.42, 61.83, 62.35)),
    ),
    Row("ifca", "DP-IFCA", unrebalanced("ifca"), padded((62.68, 64.46, 65.35), (56.12, 58.05, 59.63))),
    Row("fesem", "DP-FeSEM", remembering("fesem"), padded((63.16, 64.68, 64.76), (58.55, 59.82, 60.10))),
    Row("fedcam", "DP-FedCAM", unrebalanced("fedcam"), padded((49.70, 56.86, 61.54), (43.98, 47.51, 50.35))),
    Row(
        "rr-ifca",
        "RR-Cluster (IFCA)",
        rebalanced("ifca", exploration=1.0),
        padded((65.69, 66.63, 67.51), (61.31, 61.99, 63.77)),
    ),
    Row(
        "rr-fesem",
        "RR-Cluster (FeSEM)",
        {IDENTIFIER: rebalanced("fesem-memoryless")[IDENTIFIER], JOINT: rebalanced("fesem")[JOINT]},
        padded((63.89, 64.80, 64.86), (58.70, 60.34, 61.16)),
    ),
    Row(
        "rr-fedcam",
        "RR-Cluster (FedCAM)",
        rebalanced("fedcam"),
        padded((53.91, 58.65, 64.78), (46.12, 47.95, 50.78)),
    ),
    Row(
        "rr-ifca-large",
        f"RR-Cluster (IFCA), B = {recipes.COIN_B}",
        {IDENTIFIER: rebalanced("ifca", exact=recipes.COIN_B)[IDENTIFIER]},
    ),
    *recipes.ours(),
    recipes.oracle(),
)

QUICK_SETTINGS = {"data": "fashion-mini", "num_rounds": 15, "local_epochs": 3, "evaluate_every": 15}
QUICK_WORDS = "fashion-mini (10,000 bundled images, each used by all groups), 15 rounds of 3 local epochs"

FASHION = Study(
    name="fashion",
    title="FashionMNIST: every method, balanced and imbalanced clusters",
    source=TABLE,
    columns=columns({"balanced": _BALANCED, "imbalanced": _IMBALANCED}, (2, 4, 8)),
    rows=ROWS,
    settings=recipes.FASHION,
    by_model=recipes.BY_MODEL,
    by_budget=recipes.BY_BUDGET,
    choices=(*recipes.EDGES, *recipes.IMAGE_CHOICES),
    choices_by_model={"cnn": recipes.CNN_CHOICES},
    quick=Quick(
        settings=QUICK_SETTINGS,
        columns=("balanced-eps2", "balanced-eps8", "balanced-no-noise", "imbalanced-eps8"),
        rows=("fedavg", "ifca", "fesem", "rr-ifca", "ifca-explore", "ifca-coin", "oracle"),
        words=f"{QUICK_WORDS}; epsilon 2 and 8; without DP-FedPer and the FedCAM and RR (FeSEM) rows.",
    ),
    pairs=(
        *recipes.COMPARED,
        ("rr-ifca-large", "ifca", IDENTIFIER),
        ("rr-fedcam", "fedcam", IDENTIFIER),
        ("rr-fedcam", "fedcam", JOINT),
        ("rr-fesem", "fesem", IDENTIFIER),
        ("rr-fesem", "fesem", JOINT),
    ),
    claims=(
        Claim("RR-Cluster improves on DP-IFCA in every cell", TABLE, IDENTIFIER, (("rr-ifca", "ifca"),)),
        Claim(
            f"The same with B = {recipes.COIN_B}, beyond the paper's grid",
            "not in the paper",
            IDENTIFIER,
            (("rr-ifca-large", "ifca"),),
        ),
        Claim("RR-Cluster improves on DP-FedCAM in every cell", TABLE, IDENTIFIER, (("rr-fedcam", "fedcam"),)),
        Claim(
            "RR-Cluster improves on DP-FeSEM in every cell (here memoryless)",
            TABLE,
            IDENTIFIER,
            (("rr-fesem", "fesem"),),
        ),
        Claim(
            "RR-Cluster improves on DP-FeSEM in every cell (here under joint)",
            TABLE,
            JOINT,
            (("rr-fesem", "fesem"),),
        ),
        Claim("Coin rebalancing improves on IFCA (ours)", "not in the paper", JOINT, (("ifca-coin", "ifca"),)),
        Claim(
            "Coin rebalancing improves on IFCA with exploration (ours)",
            "not in the paper",
            JOINT,
            (("rr-ifca", "ifca-explore"),),
        ),
        Claim(
            "Without noise too, RR-Cluster is competitive with IFCA",
            "sec:method:tradeoff",
            NO_NOISE,
            (("rr-ifca", "ifca"),),
            needs="not worse",
        ),
    ),
    figures=("epsilon", "worst-decile", "sizes", "confusion"),
    spotlights=(
        Spotlight("balanced-eps8", (("ifca", IDENTIFIER), ("rr-ifca", IDENTIFIER))),
        Spotlight(
            "balanced-eps8", (("ifca", JOINT), ("ifca-coin", JOINT), ("ifca-explore", JOINT), ("rr-ifca", JOINT))
        ),
    ),
)

_INTRO = ("fedavg", "ifca", "rr-ifca")


def _unpublished(key: str) -> Row:
    """A row of the main table in a figure: its points are drawn in the paper, not printed."""
    row = FASHION.row(key)
    return Row(row.key, row.name, row.answers, (), row.reference)


INTRO = Study(
    name="intro",
    title="FashionMNIST accuracy over epsilon: DP-FedAvg, DP-IFCA, RR-Cluster",
    source="fig:intro_acc (a figure: no numbers are printed, and no epsilons)",
    columns=columns({"balanced": _BALANCED}, (1, 2, 4, 8, 16)),
    rows=(*map(_unpublished, _INTRO), *recipes.ours()[:1], recipes.oracle()),
    settings=recipes.FASHION,
    by_model=recipes.BY_MODEL,
    choices=("Epsilons: 1, 2, 4, 8, 16 (not stated).", *recipes.EDGES, *recipes.IMAGE_CHOICES),
    quick=Quick(
        settings=QUICK_SETTINGS,
        columns=("balanced-eps2", "balanced-eps8"),
        rows=(*_INTRO, "oracle"),
        words=f"{QUICK_WORDS}; epsilon 2 and 8.",
    ),
    pairs=(("rr-ifca", "ifca", IDENTIFIER), ("rr-ifca", "ifca", JOINT)),
    claims=(
        Claim(
            "DP-IFCA falls below DP-FedAvg at some budgets",
            "fig:intro_acc",
            IDENTIFIER,
            (("fedavg", "ifca"),),
            needs="some",
        ),
        Claim(
            "RR-Cluster beats DP-FedAvg and DP-IFCA",
            "fig:intro_acc",
            IDENTIFIER,
            (("rr-ifca", "fedavg"), ("rr-ifca", "ifca")),
        ),
    ),
)

CURVES = Study(
    name="curves",
    title="FashionMNIST: convergence at epsilon 2 and 4",
    source="fig:conv_curve (a figure: no numbers are printed)",
    columns=columns({"balanced": _BALANCED}, (2, 4), no_noise=False),
    rows=tuple(map(_unpublished, ("fedavg", "ifca", "fesem", "fedcam", "rr-ifca", "default", "ifca-explore"))),
    settings=recipes.FASHION,
    by_model=recipes.BY_MODEL,
    choices=("Population: balanced (not stated).", *recipes.EDGES, *recipes.IMAGE_CHOICES),
    quick=Quick(
        settings=QUICK_SETTINGS | {"evaluate_every": 3},
        columns=("balanced-eps2", "balanced-eps4"),
        rows=("fedavg", "ifca", "rr-ifca", "ifca-explore"),
        words=f"{QUICK_WORDS}; without FeSEM and FedCAM.",
    ),
    pairs=(("rr-ifca", "ifca", IDENTIFIER), ("rr-ifca", "ifca-explore", JOINT)),
    claims=(
        Claim(
            "RR-Cluster converges faster (higher mean accuracy over the rounds) than DP-IFCA",
            "fig:conv_curve",
            IDENTIFIER,
            (("rr-ifca", "ifca"),),
            measure="mean_accuracy",
        ),
    ),
    figures=("convergence",),
)

_SIZES = (4, 8, 12, 16, 20, 24)


def _sweep_row(size: int) -> Row:
    published = 62.68 if size == 0 else None  # the caption's baseline; the other points are drawn only
    if size == 0:
        return Row("b0", "B = 0 (DP-IFCA)", unrebalanced("ifca"), (published,))
    return Row(f"b{size}", f"B = {size}", rebalanced("ifca", exact=size, coin=size))


ABLATION = Study(
    name="ablation",
    title="FashionMNIST: accuracy over B, balanced, epsilon 2",
    source="fig:tradeoff_main (a figure; the caption prints the baseline)",
    columns=(Column("balanced-eps2", _BALANCED[0], 2.0, {**_BALANCED[1], "epsilon": 2.0}),),
    rows=(
        *map(_sweep_row, (0, *_SIZES)),
        *(
            Row(
                f"floor{floor}",
                f"B = 0, size floor {floor}",
                {
                    mechanism: {"algorithm": "ifca", "exploration": 0.0, "size_floor": float(floor)}
                    for mechanism in (IDENTIFIER, JOINT)
                },
            )
            for floor in (5, 25)
        ),
        *recipes.ours()[:1],
    ),
    settings=recipes.FASHION,
    by_model=recipes.BY_MODEL,
    choices=(
        "B: 0 to 24 in steps of 4, all below qM/k = 25 (the paper's values are not printed).",
        "Size floor: 15 in every row, so that B alone changes; two rows change the floor alone.",
        *recipes.EDGES,
        *recipes.IMAGE_CHOICES,
    ),
    quick=Quick(
        settings=QUICK_SETTINGS,
        columns=("balanced-eps2",),
        rows=("b0", "b8", "b16", "b24", "floor5"),
        words=f"{QUICK_WORDS}; B = 0, 8, 16, 24 and one other floor.",
    ),
    pairs=tuple((f"b{size}", "b0", mechanism) for mechanism in (IDENTIFIER, JOINT) for size in _SIZES),
    claims=(
        Claim(
            "A range of B improves on B = 0",
            "fig:tradeoff_main",
            IDENTIFIER,
            tuple((f"b{size}", "b0") for size in _SIZES),
        ),
    ),
    figures=("sweep",),
)

_CLUSTERING_TABLE = "table:acc_cluster"
_CLUSTERING_SIZES = {  # B -> published, epsilon 0.5, 2, 4, 8, 16, infinity
    4: (40.62, 45.31, 43.75, 59.37, 87.50, 98.44),
    6: (40.62, 53.12, 62.50, 87.50, 100.00, 84.37),
    8: (40.62, 59.37, 87.50, 98.44, 100.00, 100.00),
}
_LARGEST_SIZE = "rr-b8"

CLUSTERING = Study(
    name="clustering",
    title="FashionMNIST: clustering accuracy, balanced",
    source=_CLUSTERING_TABLE,
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
            for size, published in _CLUSTERING_SIZES.items()
        ),
        Row(
            "rr-ifca",
            f"RR-Cluster (IFCA), B = {recipes.COIN_B} + exploration",
            {JOINT: rebalanced("ifca", exploration=1.0)[JOINT]},
        ),
        *(Row(row.key, row.name, dict.fromkeys((JOINT, NO_NOISE), row.answers[JOINT])) for row in recipes.ours()[:2]),
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
    pairs=tuple(
        (f"rr-b{size}", "ifca", mechanism) for mechanism in (IDENTIFIER, JOINT, NO_NOISE) for size in _CLUSTERING_SIZES
    ),
    claims=(
        Claim(
            "RR-Cluster clusters more clients correctly than DP-IFCA",
            _CLUSTERING_TABLE,
            IDENTIFIER,
            tuple((f"rr-b{size}", "ifca") for size in _CLUSTERING_SIZES),
        ),
        Claim(
            "Clustering accuracy rises with B",
            _CLUSTERING_TABLE,
            IDENTIFIER,
            ((_LARGEST_SIZE, "rr-b6"), ("rr-b6", "rr-b4")),
        ),
        Claim("Without noise too, RR-Cluster clusters better", _CLUSTERING_TABLE, NO_NOISE, ((_LARGEST_SIZE, "ifca"),)),
    ),
    figures=("epsilon", "sizes", "confusion"),
    spotlights=(
        Spotlight("balanced-eps8", (("ifca", IDENTIFIER), (_LARGEST_SIZE, IDENTIFIER))),
        Spotlight("balanced-eps8", (("ifca", JOINT), (_LARGEST_SIZE, JOINT), ("rr-ifca", JOINT))),
        Spotlight("balanced-no-noise", (("ifca", NO_NOISE), (_LARGEST_SIZE, NO_NOISE))),
    ),
)
