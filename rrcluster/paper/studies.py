"""The paper's tables and figures as data: configs next to the published numbers. `rrcluster reproduce` runs them."""

from rrcluster.errors import ConfigError
from rrcluster.paper.study import Study
from rrcluster.paper.study_cifar import CIFAR
from rrcluster.paper.study_clustering import CLUSTERING
from rrcluster.paper.study_emnist import EMNIST
from rrcluster.paper.study_fashion import ABLATION, CURVES, FASHION, INTRO
from rrcluster.paper.study_shakespeare import SHAKESPEARE
from rrcluster.paper.study_synthetic import SYNTHETIC

__all__ = ["STUDIES", "Study", "find_study"]

STUDIES: dict[str, Study] = {
    study.name: study for study in (INTRO, FASHION, CURVES, SHAKESPEARE, EMNIST, CIFAR, ABLATION, CLUSTERING, SYNTHETIC)
}


def find_study(name: str) -> Study:
    """The study of that name; a `ConfigError` that names the closest one otherwise."""
    from difflib import get_close_matches

    if name in STUDIES:
        return STUDIES[name]
    near = get_close_matches(name.lower(), STUDIES, n=1, cutoff=0.3)
    meant = f"did you mean {near[0]!r}? " if near else ""
    raise ConfigError(f"{name!r} is not a table or figure of the paper; {meant}Names: {', '.join(STUDIES)}.")
