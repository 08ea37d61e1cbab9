"""A questionnaire without noise finds what is there: ranges, texts, groups, and how much clients differ."""

from dataclasses import replace

import numpy as np
import pytest

from rrcluster.mixed.answers import Rows
from rrcluster.mixed.facts import Facts
from rrcluster.mixed.questionnaire import Questionnaire, described_votes, facts_of, handed_out, k_means
from rrcluster.mixed.questions import SMALL, STAGES, Form
from rrcluster.mixed.raw_columns import COARSE, EDGES, ZERO_BIN, coarse_ranges, extreme_bins, one_hot


def asked(form, rows, *, noise=0.0, until=None, expected=None, seed=0):
    """The state after all rounds, by the sums of everybody's messages and Gaussian noise on them."""
    rng, state = np.random.default_rng(seed), Questionnaire(form)
    for t in range(form.num_rounds):
        if until is not None and STAGES[form.stage(t)][0] == until:
            break
        total = state.question(t).messages(rows).sum(axis=0) + noise * rng.standard_normal(form.width)
        count = len(rows.mask) + 4 * noise * rng.standard_normal()
        state = state.updated(t, total, count, noise=noise, count_noise=4 * noise, expected=expected or len(rows.mask))
    return state


def population(*, n=400, s=8, d=3, effect=0.0, groups=1, seed=0):
    """Rows of d columns with a linear truth, a random intercept, and groups apart in the first two columns."""
    rng = np.random.default_rng(seed)
    group = np.arange(n) % groups
    angle = 2 * np.pi * group / groups
    values = rng.normal(size=(n, s, d)) + 0.2 * rng.normal(size=(n, 1, d))
    if groups > 1:
        values[..., :2] += 4 * np.stack([np.cos(angle), np.sin(angle)], axis=1)[:, None]
    slopes = (
        np.ones(d) if groups == 1 else np.array([2.0, -2.0, 0.0, 1.0])[(group[:, None] + np.arange(d)) % 4][:, None]
    )
    logits = (values * slopes).sum(axis=2) + effect * rng.normal(size=(n, 1))
    targets = (rng.random((n, s)) < 1 / (1 + np.exp(-logits)))[..., None].astype(float)
    return Rows(values, None, targets, np.ones((n, s))), group


def test_ranges_hold_the_bulk_of_every_column_in_whatever_units():
    rows, _ = population()
    units, shifts = np.array([1e-3, 1.0, 1e3]), np.array([0.01, -5.0, 2e4])
    rows = Rows(rows.values * units + shifts, None, rows.targets, rows.mask)
    facts = asked(Form(3, 0, 1, "binary"), rows, until="moments").facts
    low, high = np.quantile(rows.values.reshape(-1, 3), [0.02, 0.98], axis=0)
    assert (facts.low < low).all()
    assert (facts.high > high).all()
    assert (facts.high - facts.low < 7 * (high - low)).all()


def test_a_column_over_many_factors_of_ten_is_compressed_and_others_are_not():
    rng = np.random.default_rng(0)
    rows, _ = population()
    wealth = np.exp(rng.normal(size=(400, 1)) * 4) * np.exp(rng.normal(size=(400, 8)))
    values = np.concatenate([wealth[..., None], rows.values[..., 1:]], axis=2)
    facts = asked(Form(3, 0, 1, "binary"), Rows(values, None, rows.targets, rows.mask), until="moments").facts
    assert facts.knee[0] > 0
    assert (facts.knee[1:] == 0).all()


def test_a_normal_column_is_not_compressed_however_little_noise_there_is():
    values = np.random.default_rng(0).normal(scale=3.0, size=(5000, 1, 1))
    bins = extreme_bins(values, np.ones((5000, 1), dtype=bool), EDGES)
    assert coarse_ranges(one_hot(bins, COARSE).sum(axis=0), 0.0, 5000.0).knee == 0


def test_declared_ranges_are_kept_and_nobody_votes_for_them():
    rows, _ = population()
    form = Form(3, 0, 1, "binary", declared=((0.0, 1.0), None, (-2.0, 2.0)))
    question = Questionnaire(form).question(0)
    votes = question.messages(rows)[:, : 2 * 3 * COARSE].reshape(400, 2, 3, COARSE)
    assert (votes[:, :, [0, 2]] == 0).all()
    assert (votes[:, :, 1] > 0).any()
    facts = asked(form, rows, until="moments").facts
    assert (facts.low[[0, 2]] == [0.0, -2.0]).all()
    assert (facts.high[[0, 2]] == [1.0, 2.0]).all()


def test_texts_and_missing_cells_become_columns_where_enough_clients_have_them():
    rows, _ = population()
    codes = np.zeros_like(rows.values)
    values = rows.values.copy()
    values[:100, 0, 1], codes[:100, 0, 1] = np.nan, 2  # a quarter of the clients: bucket 2 of column 1
    values[:40, 1, 2] = np.nan  # a tenth: a missing cell of column 2
    values[:3, 2, 0], codes[:3, 2, 0] = np.nan, 1  # less than one in fifty
    facts = asked(Form(3, 2, 1, "binary"), Rows(values, codes, rows.targets, rows.mask), until="moments").facts
    assert facts.active.tolist() == [0, 1, 2, 3 + 1 * 3 + 2, 3 + 2 * 3]


def test_votes_of_too_few_share_the_range_of_all_columns():
    votes = np.zeros((2, 3, COARSE))
    votes[:, 0, ZERO_BIN + 5] = 100
    votes[:, 1, ZERO_BIN + 4] = 100
    ranges = coarse_ranges(votes, noise=1.0, clients=100)
    assert ranges.low[2] < 0
    assert ranges.high[2] == ranges.high[0] > ranges.high[1] > 0


def test_means_and_spreads_are_those_of_the_columns():
    rows, _ = population()
    facts = asked(Form(3, 0, 1, "binary"), rows, until="map").facts
    columns = facts.columns_of(rows.values, None, rows.mask, buckets=0)
    assert np.allclose(facts.centre, columns.mean(axis=(0, 1)), atol=0.01)
    assert np.allclose(facts.scale, columns.std(axis=(0, 1)), rtol=0.05)


@pytest.mark.parametrize(("effect", "least", "most"), [(0.0, 0.0, 0.3), (2.0, 0.8, 4.0)])
def test_the_size_of_random_intercepts_is_learnt(effect, least, most):
    rows, _ = population(effect=effect)
    facts = asked(Form(3, 0, 1, "binary"), rows).facts
    assert least <= facts.chosen[1] <= most


def test_groups_in_the_columns_are_found_and_no_others():
    form = Form(3, 0, 1, "binary", most_clusters=4)
    rows, group = population(groups=3, effect=0.5)
    state = asked(form, rows, noise=3.0)
    assert state.facts.chosen[0] == 3
    cluster = state.facts.nearest(state.question(39).described(rows), 3, form.families_of(3))
    assert len(set(zip(group.tolist(), cluster.tolist(), strict=True))) <= 6
    table = np.zeros((3, 3))
    np.add.at(table, (group, cluster), 1)
    assert table.max(axis=1).sum() > 0.95 * len(group)
    for seed in range(3):
        alone, _ = population(groups=1, effect=0.5, seed=seed)
        assert asked(form, alone, noise=3.0, seed=seed).facts.chosen[0] == 1


def test_models_of_clusters_far_apart_are_trained_as_far_as_those_of_near_ones():
    form, losses = Form(3, 0, 1, "binary", most_clusters=3), []
    for further in (0.0, 4.0):
        rows, group = population(n=600, groups=3)
        angle = 2 * np.pi * group / 3
        values = rows.values.copy()
        values[..., :2] += further * np.stack([np.cos(angle), np.sin(angle)], axis=1)[:, None]
        state = asked(form, replace(rows, values=values), until="first choice")
        question, setting = state.question(form.ends[5]), (3, SMALL, SMALL)
        losses.append(question._losses(replace(rows, values=values), {3: question._first(3)}, (setting,)).mean())
    assert losses[1] < losses[0] + 0.009


@pytest.mark.parametrize(("ordered", "columns", "effects"), [(True, 3, False), (False, 3, True), (False, 300, False)])
def test_effects_must_be_better_by_more_than_noise_where_rows_are_ordered_or_columns_many(ordered, columns, effects):
    facts = Facts(active=np.arange(float(columns)))
    state = Questionnaire(Form(columns, 0, 1, "binary", ordered=ordered), facts)
    settings = ((1, SMALL, SMALL), (1, 0.5, 0.2), (2, SMALL, SMALL))
    assert (state._paying(settings, np.array([0.0, -0.02, -0.021]), 0.01)[1] > SMALL) == effects
    assert state._paying(settings, np.array([0.0, -0.04, 0.0]), 0.01) == settings[1]
    assert state._paying(settings, np.array([0.0, -0.04, -0.08]), 0.01) == settings[2]


def test_counts_replace_a_bound_that_is_far_too_large():
    rows, _ = population(effect=1.0)
    form = Form(3, 0, 1, "binary")
    state = asked(form, rows, noise=6.0, expected=1200)
    assert state._num_clients(24.0, 1200) == pytest.approx(400, abs=20)
    assert state._num_clients(24.0, 405) == 405


def test_what_is_handed_out_holds_what_clients_need():
    rows, _ = population(groups=3, effect=1.0)
    form = Form(3, 0, 1, "binary")
    state = asked(form, rows)
    models = handed_out(form, state.facts)
    read = facts_of(form, models)
    assert models.num_clusters == int(state.facts.chosen[0])
    assert np.allclose(read.second, state.facts.correlated(state.facts.second))
    assert np.allclose(read.centre, state.facts.centre)
    assert np.allclose(read.scale, state.facts.scale)
    assert (read.chosen == state.facts.chosen).all()
    again = Questionnaire.of(form, state.tensors())
    assert handed_out(form, again.facts).shared.tolist() == models.shared.tolist()


def test_without_a_personal_part_none_is_chosen():
    rows, _ = population(effect=2.0)
    facts = asked(Form(3, 0, 1, "binary", personal=False), rows).facts
    assert (facts.chosen[1:] == 0.01).all()


def test_centres_of_points_are_found_from_some_start():
    points = np.array([[0.0, 0], [0, 1], [5, 5], [5, 6], [-5, 5], [-5, 6]])
    centres = k_means(points, np.ones(6), 3)
    assert sorted(centres.round(2).tolist()) == [[-5, 5.5], [0, 0.5], [5, 5.5]]


@pytest.mark.parametrize("form", [Form(3, 0, 1, "binary", most_clusters=1), Form(1, 0, 1, "binary")])
def test_one_cluster_and_one_column_are_enough(form):
    rows, _ = population(effect=2.0)
    rows = Rows(rows.values[..., : form.num_columns], None, rows.targets, rows.mask)
    facts = asked(form, rows, noise=2.0).facts
    assert facts.chosen[0] == 1
    assert facts.chosen[1] > 0.5


def test_many_sparse_columns_share_a_range_and_are_learnt():
    rng = np.random.default_rng(0)
    shape = (1000, 4, 125)
    values = (rng.random(shape) < 0.05) * rng.integers(1, 4, size=shape).astype(float)
    logits = values[..., :20].sum(axis=2) - values[..., 20:40].sum(axis=2)
    targets = (rng.random(shape[:2]) < 1 / (1 + np.exp(-2 * logits)))[..., None].astype(float)
    state = asked(Form(125, 0, 1, "binary"), Rows(values, None, targets, np.ones(shape[:2])), noise=6.25)
    assert -state.facts.low[0] == state.facts.high[0] >= 2.5
    weights = state.facts.first[0, 0, 1:]
    assert weights[:20].mean() > 0.1 > -0.1 > weights[20:40].mean()
    assert abs(weights[40:].mean()) < 0.05


def test_votes_tell_the_middle_of_a_column_and_how_far_rows_and_means_reach_from_it():
    places = np.linspace(-1, 1, 21)[None]
    votes = np.zeros((2, 1, 21))
    votes[0, 0, [11, 15]] = votes[1, 0, [15, 19]] = 0.5  # least numbers 0.1 and 0.5, greatest 0.5 and 0.9
    middle, reach = described_votes(votes, places, 0.0)
    assert np.allclose(middle, 0.5)
    assert np.allclose(reach, [[(0.4**2 + 0 + 0 + 0.4**2) / 4, 0.2**2]])
    assert (described_votes(votes, places, 0.01)[1] > reach).all()


def test_moments_are_clipped_about_as_long_as_they_are_and_hold_for_columns_far_from_the_middle():
    rows, _ = population(n=2000)
    far = Rows(rows.values + 5.0 * np.arange(3), None, rows.targets, rows.mask)
    for own in (rows, far):
        facts = asked(Form(3, 0, 1, "binary"), own, until="map").facts
        most = 0.6 * 4, 0.5 * 4
        assert all(0 < clip < 0.7 * bound for clip, bound in zip(facts.moment_clips, most, strict=True))
        columns = facts.standardised(facts.columns_of(own.values, None, own.mask, buckets=0), own.mask)[..., 1:]
        flat = columns.reshape(-1, 3)
        assert np.abs(flat.mean(axis=0)).max() < 0.05
        assert np.abs(flat.std(axis=0) - 1).max() < 0.05


def test_noise_hides_a_small_effect_no_more_than_it_must():
    rows, _ = population(n=1000, effect=0.7)
    sizes = [asked(Form(3, 0, 1, "binary"), rows, noise=6.25, seed=seed).facts.chosen[1] for seed in range(6)]
    assert min(sizes) > 0.1
    assert 0.2 < np.median(sizes) < 1.6
