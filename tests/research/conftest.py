import pytest
from rrcluster_research.lemma import Setting


@pytest.fixture
def calm():
    """A setting that meets every assumption, with numbers that are easy by hand."""
    return Setting(
        num_clients=1000,
        num_clusters=2,
        min_cluster_size=250,
        num_coordinates=10,
        strong_convexity=0.5,
        smoothness=1.0,
        server_lr=0.8,
        separation=2.0,
        largest_separation=2.0,
        margin=0.25,
        loss_std=1e-3,
        gradient_std=0.01,
        cluster_size_std=2.0,
        identifier_noise_multiplier=0.1,
        noise_std=0.5,
        failure_probability=0.1,
    )
