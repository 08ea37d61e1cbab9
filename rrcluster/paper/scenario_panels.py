"""The paper's 4 x 3 figure of the synthetic case study, trained here and drawn by scenarios.py."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rrcluster.data.federated import FederatedData
    from rrcluster.report.drawing import Drawing
    from rrcluster.rng import Rng

_POINTS = 60  # shown per group


def draw_scenarios(seed: int = 0) -> "Drawing":
    """Train every method in every scenario with one seed, and draw the models over samples of the groups."""
    import numpy as np

    from rrcluster.data.lines import SCENARIOS
    from rrcluster.paper.scenarios import Panel, scenario_figure
    from rrcluster.paper.synthetic_study import fitted_lines, population

    panels = {}
    for scenario, by_method in fitted_lines(seed).items():
        data, rng = population(scenario, seed), np.random.default_rng(seed)
        points = [_shown(data, group, rng) for group in range(len(SCENARIOS[scenario].ratio))]
        name = scenario.removeprefix("synthetic-").replace("-", ", ")
        panels[name] = {
            method: Panel(points, [(float(slope), float(shift)) for slope, shift in lines])
            for method, lines in by_method.items()
        }
    return scenario_figure(panels, caption="Final models (dashed) over samples of the four groups (colours).")


def _shown(data: "FederatedData", group: int, rng: "Rng") -> tuple[list[float], list[float]]:
    cohort = data.cohort((data.groups == group).nonzero()[0])
    x, y = cohort.inputs[:, :, 0].ravel(), cohort.targets.ravel()
    some = rng.choice(len(x), _POINTS, replace=False)
    return x[some].tolist(), y[some].tolist()
