"""`map`: where rebalancing pays, over group sizes, k against the number of groups, cohort, epsilon, and kind of groups.

The paper asks this question and has no table of it.
"""

from typing import Any

from rrcluster_research import recipes
from rrcluster_research.recipes import rebalanced, unrebalanced
from rrcluster_research.study import IDENTIFIER, JOINT, Claim, Column, Quick, Row, Settings, Study

_SOURCE = "no table: the paper's question of when rebalancing pays"
_EPSILONS = (2.0, 8.0)
_COHORT, _CLUSTERS = 0.1, 4
# Of the expected clients per cluster and round, as in the other tables: 8 and 20 of 25.
_EXACT_SHARE, _COIN_SHARE = recipes.EXACT_B / 25, recipes.COIN_B / 25


def _place(
    key: str, title: str, ratio: tuple[int, ...], *, kind: str = "rotation", k: int = _CLUSTERS, q: float = _COHORT
) -> tuple[str, str, Settings, dict[str, Settings]]:
    """A population, k and cohort: key, title, settings, and what replaces values of the rows."""
    settings: dict[str, Any] = {"partition": kind, "ratio": list(ratio), "num_clusters": k, "sample_rate": q}
    expected = q * recipes.FASHION["num_clients"] / k
    replaced: dict[str, Settings] = {
        mechanism: {"min_cluster_size": round(share * expected), "num_clusters": len(ratio)}  # k: of the oracle alone
        for mechanism, share in ((IDENTIFIER, _EXACT_SHARE), (JOINT, _COIN_SHARE))
    }
    return key, title, settings, replaced


_PLACES = (
    _place("even", "1:1:1:1", (1, 1, 1, 1)),
    _place("three", "2:1:1", (2, 1, 1)),
    _place("uneven", "8:1:1:1", (8, 1, 1, 1)),
    _place("two", "1:1", (1, 1)),
    _place("one", "one group", (1,)),
    _place("flip-even", "labels flipped, 1:1:1:1", (1, 1, 1, 1), kind="label-flip"),
    _place("flip-uneven", "labels flipped, 8:1:1:1", (8, 1, 1, 1), kind="label-flip"),
    _place("k2", "1:1:1:1, k = 2", (1, 1, 1, 1), k=2),
    _place("k8", "1:1:1:1, k = 8", (1, 1, 1, 1), k=8),
    _place("small", "1:1:1:1, q = 0.03", (1, 1, 1, 1), q=0.03),
    _place("uneven-small", "8:1:1:1, q = 0.03", (8, 1, 1, 1), q=0.03),
    _place("uneven-large", "8:1:1:1, q = 0.3", (8, 1, 1, 1), q=0.3),
)

_ORACLE = unrebalanced("oracle", num_clusters=_CLUSTERS)[JOINT]

MAP = Study(
    name="map",
    title="FashionMNIST: where rebalancing pays",
    source=_SOURCE,
    columns=tuple(
        Column(f"{key}-eps{epsilon:g}", f"Epsilon {epsilon:g}", epsilon, {**settings, "epsilon": epsilon}, title, own)
        for epsilon in _EPSILONS
        for key, title, settings, own in _PLACES
    ),
    rows=(
        Row("ifca", "DP-IFCA", {mechanism: unrebalanced("ifca")[mechanism] for mechanism in (IDENTIFIER, JOINT)}),
        Row("exact", "RR-Cluster (IFCA), the paper's rule", {IDENTIFIER: rebalanced("ifca")[IDENTIFIER]}),
        Row("coin", "RR-Cluster (IFCA), coins", {JOINT: rebalanced("ifca")[JOINT]}),
        Row("explore", "DP-IFCA + exploration", {JOINT: {"algorithm": "ifca", **recipes.EXPLORING}}),
        Row("survey", "Default: DP-IFCA + survey", recipes.DEFAULT),
        Row("oracle", "Oracle: true clusters given", {JOINT: _ORACLE}, reference=True),
    ),
    settings=recipes.FASHION,
    choices=(
        "Populations: FashionMNIST, groups by rotation or by permuted labels, of the sizes named; k = 4 and "
        "q = 0.1 unless named.",
        "B: 8 of 25 expected clients per cluster and round under identifier, 20 of 25 with coins, in proportion where "
        "k or q differ. The oracle has as many clusters as there are groups.",
        *recipes.EDGES,
        *recipes.IMAGE_CHOICES,
    ),
    quick=Quick(
        settings={"data": "fashion-mini", "num_rounds": 30, "local_epochs": 2, "evaluate_every": 30},
        columns=tuple(f"{key}-eps8" for key in ("even", "uneven", "flip-uneven", "two", "k8", "small")),
        rows=("ifca", "exact", "coin", "explore", "survey", "oracle"),
        words="fashion-mini (10,000 bundled images, each used by all groups), 30 rounds of 2 local epochs; epsilon 8, "
        "six of the twelve places.",
    ),
    pairs=(
        ("exact", "ifca", IDENTIFIER),
        ("coin", "ifca", JOINT),
        ("explore", "ifca", JOINT),
        ("survey", "explore", JOINT),
        ("survey", "coin", JOINT),
    ),
    claims=(
        Claim(
            "Rebalancing by the paper's rule pays somewhere on the map",
            _SOURCE,
            IDENTIFIER,
            (("exact", "ifca"),),
            needs="some",
        ),
        Claim("Rebalancing by coins pays somewhere on the map", _SOURCE, JOINT, (("coin", "ifca"),), needs="some"),
        Claim("Coins beat a survey somewhere on the map", _SOURCE, JOINT, (("coin", "survey"),), needs="some"),
    ),
    figures=("map",),
)
