"""`synthetic`: noisy lines, without noise on anything released; the figure of 4 x 3 panels."""

from rrcluster.paper.recipes import rebalanced, unrebalanced
from rrcluster.paper.study import NO_NOISE, Claim, Column, Quick, Row, Study

FIGURE = "tab:synthetic_additional (a figure: no numbers are printed)"
_B = 8  # of 25 clients per cluster and round
_SCENARIOS = ("balanced-easy", "balanced-hard", "imbalanced-easy", "imbalanced-hard")

SYNTHETIC = Study(
    name="synthetic",
    title="Synthetic lines without privacy: which models are learnt",
    source=FIGURE,
    columns=tuple(
        Column(name, "No noise", None, {"data": f"synthetic-{name}"}, name.replace("-", ", ")) for name in _SCENARIOS
    ),
    rows=(
        Row("fedavg", "FedAvg", {NO_NOISE: unrebalanced("fedavg")[NO_NOISE]}),
        Row("ifca", "IFCA", {NO_NOISE: unrebalanced("ifca")[NO_NOISE]}),
        Row("rr-ifca", f"RR-Cluster (IFCA), B = {_B}", {NO_NOISE: rebalanced("ifca", exact=_B)[NO_NOISE]}),
    ),
    settings={"num_clients": 100, "sample_rate": 1.0, "num_rounds": 50, "num_clusters": 4, "local_lr": 0.05},
    choices=(
        "Slopes, intercepts, noise, clients and samples per client are those of the `synthetic-...` datasets "
        "(`docs/data.md`); the paper states none of them.",
        f"Rounds: 50, all clients in each; k = 4 also where there are fewer lines; B = {_B}.",
    ),
    quick=Quick(
        settings={"num_rounds": 20},
        columns=_SCENARIOS,
        rows=("fedavg", "ifca", "rr-ifca"),
        words="20 rounds.",
    ),
    measure="loss",
    pairs=(("rr-ifca", "ifca", NO_NOISE),),
    claims=(
        Claim(
            "RR-Cluster learns the lines that IFCA misses (lower loss)",
            FIGURE,
            NO_NOISE,
            (("rr-ifca", "ifca"),),
            needs="some",
        ),
    ),
    figures=("lines",),
)
