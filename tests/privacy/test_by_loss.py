"""Choices by loss: the claimed curves against brute force over all that two neighbouring clients may send."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from rrcluster.errors import UnsupportedEvent
from rrcluster.privacy import by_loss
from rrcluster.privacy.accounting import account, epsilon
from rrcluster.privacy.events import LOSS_RULES, FixedSizeByLoss, FixedSizeGaussian, FixedSizeKary
from rrcluster.privacy.identifier_noise import ByLossIdentifier
from rrcluster.privacy.profiles import gaussian_delta, kary_rdp

ORDERS = np.array([1.01, 1.5, 2, 3, 5, 8, 16, 64, 512])
EPSILONS = np.linspace(-6, 6, 61)


def law(rule, epsilon, losses):
    """The law of the answer by its definition: softmax; or all orders of asking, and who says yes."""
    c = np.clip(np.asarray(losses) - min(losses), 0, 1)
    yes = np.exp(-epsilon / 2 * c)
    if rule == "exponential":
        return yes / yes.sum()
    found = np.zeros(len(yes))
    for order in itertools.permutations(range(len(yes))):
        none_yet = 1.0
        for j in order:
            found[j] += none_yet * yes[j]
            none_yet *= 1 - yes[j]
    return found / math.factorial(len(yes))


def renyi(p, q, order):
    return float(np.logaddexp.reduce((order - 1) * np.log(p / q) + np.log(p))) / (order - 1)


def tried(k, rng):
    """Corners of the cube of losses, its edges, ties, and random points, some outside the clip."""
    corners = [list(map(float, corner)) for corner in itertools.product((0, 1), repeat=k)]
    random = [list(rng.random(k) * scale) for scale in (0.3, 1, 1, 3) for _ in range(3)]
    return [*corners, *random, [0.5] * k, [-1e6] + [1e6] * (k - 1)]


@pytest.mark.parametrize("rule", LOSS_RULES)
@pytest.mark.parametrize("k", [2, 3, 4])
@pytest.mark.parametrize("eps", [0.3, 1.5, 6.0])
def test_no_pair_of_neighbours_exceeds_the_curves_and_corners_attain_them(rule, k, eps, rng):
    laws = [law(rule, eps, losses) for losses in tried(k, rng)]
    claimed = by_loss.by_loss_rdp(ORDERS, rule, eps, k)
    profile = by_loss.by_loss_gaussian_delta(EPSILONS, 1.3, rule=rule, identifier_epsilon=eps, num_clusters=k)
    worst, reached = np.zeros(len(ORDERS)), np.zeros(len(EPSILONS))
    for p, q in itertools.permutations(laws, 2):
        worst = np.maximum(worst, [renyi(p, q, order) for order in ORDERS])
        delta = sum(a * gaussian_delta(EPSILONS - math.log(a / b), 1.3) for a, b in zip(p, q, strict=True))
        reached = np.maximum(reached, delta)
        assert np.log(p / q).max() <= by_loss.largest_loss(rule, eps, k) + 1e-12
    assert (worst <= claimed + 1e-12).all()
    assert worst == pytest.approx(claimed, rel=1e-9)
    assert (reached <= profile + 1e-12).all()
    assert reached == pytest.approx(profile, rel=1e-9)


@pytest.mark.parametrize("rule", LOSS_RULES)
def test_pruning_drops_nothing_that_matters(rule):
    k, eps = 6, 2.5
    pairs = [by_loss._pair(a, b, by_loss._cells(k, s, t)) for (s, a), (t, b) in itertools.product(
        [(s, by_loss.corner_law(rule, eps, k, s)) for s in range(1, k)], repeat=2
    )]  # fmt: skip
    assert len(by_loss.worst_pairs(rule, eps, k)) < len(pairs)
    whole = np.max([pair.rdp(ORDERS) for pair in pairs], axis=0)
    assert by_loss.by_loss_rdp(ORDERS, rule, eps, k) == pytest.approx(whole, rel=1e-12)


@pytest.mark.parametrize("k", [2, 5, 16])
@pytest.mark.parametrize("eps", [0.1, 2.0, 20.0])
def test_known_bounds_hold(k, eps):
    """Bounded range gives the exponential mechanism zCDP eps^2 / 8; both are pure eps-DP; corner laws add up to 1."""
    assert (by_loss.by_loss_rdp(ORDERS, "exponential", eps, k) <= ORDERS * eps**2 / 8 + 1e-12).all()
    for rule in LOSS_RULES:
        assert by_loss.largest_loss(rule, eps, k) <= eps + 1e-12
        for s in range(1, k):
            inside, outside = np.exp(by_loss.corner_law(rule, eps, k, s))
            assert s * inside + (k - s) * outside == pytest.approx(1, abs=1e-13)


def test_clear_choices_of_the_exponential_mechanism_are_randomised_response():
    """With 0/1 losses of one best cluster the two are the same law, so k-ary responses cannot cost more."""
    k, eps = 4, 3.0
    keep = by_loss.clear_choice_kept("exponential", eps, k)
    assert keep == pytest.approx(math.exp(1.5) / (math.exp(1.5) + 3))
    assert (kary_rdp(ORDERS, keep, k) <= by_loss.by_loss_rdp(ORDERS, "exponential", eps, k) + 1e-12).all()


@pytest.mark.parametrize("rule", LOSS_RULES)
def test_the_answer_has_the_law_that_is_accounted(rule, rng):
    losses, n = [0.9, 0.2, 0.5, 4.0], 40_000
    identifier = ByLossIdentifier(rule, 3.0, loss_bound=1.0)
    answers = identifier.assign(np.tile(losses, (n, 1)), np.ones(n, dtype=bool), rng=rng)
    expected = law(rule, 3.0, losses)
    assert stats.chisquare(np.bincount(answers, minlength=4), n * expected).pvalue > 1e-4
    assert stats.chisquare(np.bincount(answers, minlength=4), n * law(rule, 3.3, losses)).pvalue < 1e-4


@pytest.mark.parametrize("rule", LOSS_RULES)
def test_an_invalid_report_and_equal_losses_draw_uniformly(rule, rng):
    n = 30_000
    identifier = ByLossIdentifier(rule, 10.0)
    for losses, valid in (
        (np.tile([0.0, 9.0, 9.0], (n, 1)), np.zeros(n, bool)),
        (np.full((n, 3), 7.0), np.ones(n, bool)),
    ):
        answers = identifier.assign(losses, valid, rng=rng)
        assert stats.chisquare(np.bincount(answers, minlength=3)).pvalue > 1e-4


@pytest.mark.parametrize("rule", LOSS_RULES)
def test_accountants_agree_in_order_and_more_noise_costs_less(rule):
    event = FixedSizeByLoss(1.3, rule, 1.5, 4, 100, 1000)
    pld, rdp, paper = (row.epsilon for row in account(event, num_rounds=50, delta=1e-4))
    assert pld < rdp <= paper
    costs = [epsilon(FixedSizeByLoss(1.3, rule, e, 4, 100, 1000), num_rounds=50, delta=1e-4) for e in (0.5, 1.5, 3)]
    assert costs[0] < costs[1] < costs[2]
    updates = epsilon(FixedSizeGaussian(1.3, 100, 1000), num_rounds=50, delta=1e-4)
    assert updates < costs[0]


def test_two_clusters_by_loss_are_binary_randomised_response():
    """k = 2: one worst pair, that of k-ary randomised response at the same keep probability, so the same epsilon."""
    keep = by_loss.clear_choice_kept("permute-and-flip", 2.0, 2)
    one = epsilon(FixedSizeByLoss(1.1, "permute-and-flip", 2.0, 2, 50, 500), num_rounds=20, delta=1e-4)
    two = epsilon(FixedSizeKary(1.1, keep, 2, 50, 500), num_rounds=20, delta=1e-4)
    assert one == pytest.approx(two, rel=1e-9)


@pytest.mark.parametrize(("eps", "k", "text"), [(41.0, 4, "practically public"), (1.0, 17, "enumerated")])
def test_what_cannot_be_accounted_is_refused(eps, k, text):
    with pytest.raises(UnsupportedEvent, match=text):
        epsilon(FixedSizeByLoss(1.0, "exponential", eps, k, 10, 100), num_rounds=1, delta=1e-3)
