"""The findings of docs/paper.md on the published claims: each as the quantity claimed, and an instance beyond it.

The clip is 1 throughout. Findings whose instances are elsewhere are named in docs/paper.md with their tests.
"""

import math

import numpy as np
import pytest
from rrcluster_research import lemma
from scipy.special import gammaln, logsumexp
from scipy.stats import norm

from rrcluster.errors import UnsupportedEvent
from rrcluster.privacy.accounting import epsilon
from rrcluster.privacy.clip import clip_to_grid, grid_step
from rrcluster.privacy.events import FixedSize, PoissonGaussian
from rrcluster.privacy.identifier import GaussianIdentifier
from rrcluster.privacy.profiles import fixed_size_rdp, gaussian_delta, gaussian_rdp, keep_probability
from rrcluster.privacy.rebalancing import rebalance
from rrcluster.privacy.relation import identifier_sensitivity, update_sensitivity

GRID = np.linspace(-60, 60, 240_001)


def mixture(weights, means, std, at=GRID):
    """Log density of a mixture of Gaussians of one std."""
    parts = [math.log(weight) + norm.logpdf(at, mean, std) for weight, mean in zip(weights, means, strict=True)]
    return logsumexp(np.stack(parts), axis=0)


def renyi(order, p, q):
    """Renyi divergence of two log densities on the grid."""
    step = GRID[1] - GRID[0]
    return float(logsumexp(order * p + (1 - order) * q) + math.log(step)) / (order - 1)


def hockey_stick(eps, p, q):
    return float(np.maximum(np.exp(p) - math.exp(eps) * np.exp(q), 0).sum() * (GRID[1] - GRID[0]))


def gaussian_renyi(order, shift, std):
    return order * float(np.sum(np.square(shift))) / (2 * std**2)


def test_the_divergence_on_the_grid_is_the_closed_form():
    p, q = mixture([1], [1.0], 2.0), mixture([1], [0.0], 2.0)
    assert renyi(8, p, q) == pytest.approx(gaussian_renyi(8, 1.0, 2.0), rel=1e-6)
    assert hockey_stick(0.7, p, q) == pytest.approx(float(gaussian_delta(0.7, 2.0)), rel=1e-5)


class TestFinding1:
    """Neighbours by adding or removing a client; amplification for fixed-size cohorts and replaced clients."""

    def test_a_guarantee_for_added_clients_is_none_for_replaced_ones(self):
        # Poisson cohorts, q = 0.1, noise std 1, one round: epsilon for add-remove at delta 1e-3, then the same release
        # with one client at +1 replaced by one at -1.
        eps = epsilon(PoissonGaussian(1.0, 0.1), num_rounds=1, delta=1e-3)
        p, q = (mixture([0.9, 0.1], [0.0, value], 1.0) for value in (1.0, -1.0))
        assert hockey_stick(eps, p, mixture([1], [0.0], 1.0)) <= 1e-3 * (1 + 1e-6)
        assert hockey_stick(eps, p, q) > 1.2e-3

    def test_a_cohort_of_qm_clients_tells_the_size_of_the_population(self):
        # floor(0.1 M) with one client more: the number of messages differs for certain, whatever the noise.
        assert (int(0.1 * 999), int(0.1 * 1000)) == (99, 100)

    def test_the_accountant_of_the_paper_takes_fixed_size_cohorts_alone(self):
        with pytest.raises(UnsupportedEvent):
            epsilon(PoissonGaussian(1.0, 0.1), num_rounds=1, delta=1e-3, accountant="paper")
        assert epsilon(FixedSize(1.0, 100, 1000), num_rounds=1, delta=1e-3, accountant="paper") > 0


def test_finding_2_a_list_of_identifiers_tells_how_many_there_are(rng):
    """Under add-remove no identifier noise is (order, eps_1)-RDP, as the proposition asks: supports are disjoint."""
    noisy = GaussianIdentifier(100.0)
    lengths = [
        {len(noisy.assign(np.zeros(n, dtype=int), np.ones(n, dtype=bool), num_clusters=4, rng=rng)) for _ in range(20)}
        for n in (10, 11)
    ]
    assert lengths == [{10}, {11}]  # the event "ten of them": probability 1 and 0, so delta = 1 at every epsilon


def sums(values, assignment, num_clusters):
    return np.array([values[assignment == cluster].sum() for cluster in range(num_clusters)])


def test_finding_3_rebalancing_costs_more_than_the_sensitivity_of_one_cluster(rng):
    """Cluster 0: B = 4 clients at +1, A among them; cluster 1: eight at -1. Noise std 2 sigma, as the paper adds."""
    values, clusters, b, sigma, order = np.repeat([1.0, -1.0], [4, 8]), np.repeat([0, 1], [4, 8]), 4, 1.0, 8
    with_a = sums(values, rebalance(clusters, num_clusters=2, min_cluster_size=b, rng=rng), 2)
    without = sums(values[1:], rebalance(clusters[1:], num_clusters=2, min_cluster_size=b, rng=rng), 2)
    claimed = order / (2 * sigma**2)
    assert (without - with_a).tolist() == [-2, 1]
    assert gaussian_renyi(order, without - with_a, 2 * sigma) == pytest.approx(1.25 * claimed)


def literal_rebalance(clusters, num_clusters, b, rng):
    """Algorithm 2 as printed: clusters of at least B are large, and movers are uniform over all their members."""
    sizes = np.bincount(clusters, minlength=num_clusters)
    pool = np.flatnonzero(sizes[clusters] >= b)
    slots = np.repeat(np.arange(num_clusters), np.where(sizes < b, b - sizes, 0))
    moved = clusters.copy()
    moved[rng.choice(pool, size=len(slots), replace=False)] = slots
    return moved


class TestFinding4:
    """One client lifts a cluster of B - 1 to B: all its members become donors.

    Cluster a: B - 1 clients at -1; cluster c: nobody; cluster l: the rest of 100, at +1. Add A = -1 to a.
    """

    @staticmethod
    def shifts(b):
        """(B + 1, 3) differences of the sums, by the number t of movers that come from a; and log P(t)."""
        rest = 100 - (b - 1)
        t = np.arange(b + 1)
        before = np.array([-(b - 1) + 1, b, rest - b - 1])  # one mover from l fills a, B of them fill c
        after = np.stack([-(b - t), (b - t) - t, rest - (b - t)], axis=1)

        def log_choose(n, k):
            return gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1)

        return after - before, log_choose(b, t) + log_choose(rest, b - t) - log_choose(b + rest, b)

    @pytest.mark.parametrize("b", [4, 8])
    def test_the_sums_are_those_of_the_rule(self, b, rng):
        rest = 100 - (b - 1)
        values, clusters = np.repeat([-1.0, 1.0], [b - 1, rest]), np.repeat([0, 2], [b - 1, rest])
        before = sums(values, literal_rebalance(clusters, 3, b, rng), 3)
        moved = literal_rebalance(np.append(clusters, 0), 3, b, rng)
        from_a = int((moved[[*range(b - 1), 100]] == 1).sum())
        after = sums(np.append(values, -1.0), moved, 3)
        assert (after - before).tolist() == self.shifts(b)[0][from_a].tolist()

    @pytest.mark.parametrize(("b", "clips"), [(4, 9.6), (8, 19.3), (12, 29.1)])
    def test_the_farthest_shift_is_many_clips(self, b, clips):
        farthest = np.linalg.norm(self.shifts(b)[0], axis=1).max()
        assert farthest == pytest.approx(math.sqrt(6 * b * b - 2 * b + 5))
        assert farthest == pytest.approx(clips, abs=0.05)
        assert farthest > update_sensitivity(update_clip=1.0)

    @pytest.mark.parametrize(("b", "sigma", "least"), [(8, 1.0, 40.0), (12, 2.0, 1.7)])
    def test_the_divergence_of_the_round_is_far_above_the_claim(self, b, sigma, least):
        shift, log_probability = self.shifts(b)
        inner = shift @ shift.T / (2 * sigma) ** 2
        found = logsumexp(inner + log_probability[:, None] + log_probability)  # order 2, mixture against one Gaussian
        claimed = 2 / (2 * sigma**2)
        assert found > least > claimed

    def test_a_donor_of_size_b_can_fall_below_it(self, rng):
        clusters = np.repeat([0, 1], [4, 3])  # B = 4: cluster 0 is "large", cluster 1 lacks one
        moved = literal_rebalance(clusters, 2, 4, rng)
        assert np.bincount(moved).tolist() == [3, 4]


def test_finding_6_the_identifier_costs_twice_the_claim():
    """Noise sigma_s on a one-hot: the paper counts order / (2 sigma_s^2), two one-hots are sqrt(2) apart."""
    order, sigma = 8, 1.5
    first, second = np.eye(4)[0], np.eye(4)[2]
    claimed = order / (2 * sigma**2)
    assert gaussian_renyi(order, first - second, sigma) == pytest.approx(2 * claimed)
    assert identifier_sensitivity() == pytest.approx(np.linalg.norm(first - second))


@pytest.mark.parametrize(("order", "true", "theorem"), [(8, 0.217, 0.070), (16, 1.73, 0.149)])
def test_finding_7_zero_out_sensitivities_do_not_fit_the_fixed_size_theorem(order, true, theorem):
    """q = 0.1, noise std 2: client i at +1, all others at -1; zero i out. Relative to a cohort without i the sum is 2
    more with i and 1 more with i's zero, since i takes somebody's place."""
    p, q = (mixture([0.9, 0.1], [0.0, shift], 2.0) for shift in (2.0, 1.0))
    claimed = float(fixed_size_rdp([order], lambda orders: gaussian_rdp(orders, 2.0), 0.1)[0])
    assert claimed == pytest.approx(theorem, abs=1e-3)
    assert renyi(order, p, q) == pytest.approx(true, rel=5e-3)
    assert renyi(order, p, q) > claimed


def test_finding_8_the_exact_size_in_the_denominator_is_seen_in_the_noise(rng):
    """The mean of n = 25 clients has noise std s / 25, that of 26 has s / 26; d = 10,000 coordinates tell which."""
    d, n = 10_000, 25
    ratio = (1 + 1 / n) ** 2
    nats = d / 2 * (ratio - 1 - math.log(ratio))
    assert nats == pytest.approx(15.8, abs=0.1)
    sizes = np.repeat([n, n + 1], 100)
    squares = np.array([np.sum((rng.standard_normal(d) / size) ** 2) for size in sizes]) / d
    threshold = math.log(ratio) / ((n + 1) ** 2 - n**2)  # where both are equally likely
    guessed = np.where(squares > threshold, n, n + 1)
    assert (guessed == sizes).mean() > 0.99


def test_finding_9_the_printed_clipping_line_bounds_nothing():
    """It divides by max(1, |s| / C) with the one-hot s of norm 1: a factor C, whatever the length of the update."""
    update, clip = np.full(100, 50.0), 0.1
    printed = update / max(1.0, np.linalg.norm(np.eye(4)[1]) / clip)
    ours = clip_to_grid(update[None], update_clip=clip)[0] * grid_step(clip)
    assert np.linalg.norm(printed) == pytest.approx(50.0)
    assert np.linalg.norm(printed) > 100 * clip
    assert np.linalg.norm(ours) <= clip


class TestFinding11:
    """From Renyi to (epsilon, delta): the last inequality loses log(1/delta) / (order - 1)."""

    def test_the_printed_inequality_understates_epsilon(self):
        # All clients in every round (q = 1), one round, z = 4: the Renyi value of order 2 is 1/16.
        delta, printed = 1e-3, float(gaussian_rdp([2], 4.0)[0])
        true = float(gaussian_delta(printed, 4.0))
        assert printed == pytest.approx(1 / 16)
        assert true > 70 * delta
        assert float(gaussian_delta(printed + math.log(1 / delta), 4.0)) < delta  # with the term it holds

    def test_a_sum_outside_the_logarithm_is_larger_and_so_harmless(self):
        a, b = 0.3, 0.7
        assert math.log(1 + a) + b > math.log(1 + a + b)


def test_finding_12_publishing_somebody_satisfies_delta_one_over_m():
    """M = 1000 and delta = 1e-3, "< 1/M": equal. Publish one client drawn at random, in full, and nothing else."""
    m, delta = 1000, 0.001
    assert not delta < 1 / m
    law = np.full(m, 1 / m)
    replaced = np.append(law[:-1], [0.0, 1 / m])  # the last client's record becomes another one
    distance = np.maximum(np.append(law, 0.0) - replaced, 0).sum()  # hockey-stick at epsilon 0
    assert distance <= delta * (1 + 1e-9)
    assert distance > 1e-4  # the default here, 1 / (10 M), excludes it


def test_finding_14_choices_made_of_raw_updates_are_not_private_by_themselves(rng):
    """FeSEM's choice is by distance of the raw update: without noise one client decides the sizes for certain."""
    centres = np.array([[1.0, 0.0], [-1.0, 0.0]])

    def sizes(updates, noisy):
        choices = np.linalg.norm(updates[:, None] - centres, axis=2).argmin(axis=1)
        if noisy:
            choices = GaussianIdentifier(2.0).assign(choices, np.ones(len(choices), bool), num_clusters=2, rng=rng)
        return tuple(np.bincount(choices, minlength=2))

    updates = rng.normal(size=(20, 2))
    updates[0] = centres[0]
    other = updates.copy()
    other[0] = centres[1]
    assert sizes(updates, noisy=False) != sizes(other, noisy=False)  # disjoint supports: delta = 1
    laws = [{sizes(data, noisy=True) for _ in range(400)} for data in (updates, other)]
    assert len(laws[0] & laws[1]) > 5


def test_finding_15_rebalancing_depends_on_the_data_when_a_client_leaves():
    """With the same coins, who else is moved depends on whether A is there; given equal noisy choices it does not."""
    clusters = np.repeat([0, 1], [4, 12])

    def moved(choices):
        return rebalance(choices, num_clusters=2, min_cluster_size=4, rng=np.random.default_rng(0))

    assert (moved(clusters)[1:] == clusters[1:]).all()
    assert (moved(clusters[1:]) != clusters[1:]).sum() == 1
    assert (moved(clusters) == moved(clusters.copy())).all()


def test_finding_16_the_published_identifier_noise_is_wrong_half_of_the_time(rng):
    """sigma_s = 1 and k = 4; and it costs order * 1 a round before sampling, as much as updates at z = 0.71."""
    choices = rng.integers(4, size=40_000)
    answers = GaussianIdentifier(1.0).assign(choices, np.ones(40_000, bool), num_clusters=4, rng=rng)
    assert np.mean(answers == choices) == pytest.approx(keep_probability(1.0, 4), abs=0.01)
    assert keep_probability(1.0, 4) == pytest.approx(0.55, abs=0.005)
    assert gaussian_renyi(1, np.eye(4)[0] - np.eye(4)[1], 1.0) == pytest.approx(float(gaussian_rdp([1], 2**-0.5)[0]))


def test_finding_17_the_second_term_of_the_lemma_says_nothing_at_the_published_noise():
    known = {"num_clusters": 4}
    assert lemma.identifier_error_printed(identifier_noise_multiplier=0.71, **known) < 1
    assert lemma.identifier_error_printed(identifier_noise_multiplier=0.72, **known) > 1
    true = lemma.identifier_error(identifier_noise_multiplier=1.0, **known)
    assert true == pytest.approx(1 - keep_probability(1.0, 4), abs=1e-6)
    assert lemma.identifier_error_printed(identifier_noise_multiplier=1.0, **known) > 1 > true


def test_finding_19_updates_of_real_clients_are_longer_than_the_published_clips():
    """Convergence is proved for a clip above every gradient; the published grid ends at 0.1."""
    from rrcluster.data.build import load_federated
    from rrcluster.engine import protocol as calls
    from rrcluster.engine.batched.batched_engine import BatchedEngine
    from rrcluster.models import make_model
    from rrcluster.settings import LocalSettings

    data = load_federated("fashion-mini", num_clients=20, seed=0)
    model = make_model("linear", input_shape=data.input_shape, num_classes=10)
    start = np.zeros((20, model.num_parameters), dtype=np.float32)
    trained = calls.train(
        BatchedEngine(model),
        start,
        data.cohort(np.arange(20)),
        local=LocalSettings(local_lr=0.05, local_epochs=5),
        key=(0, 0),
    )
    assert np.median(np.linalg.norm(trained - start, axis=1)) > 0.1  # the largest clip of the paper's grid
