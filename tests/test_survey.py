from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import rrcluster as rr
from rrcluster.audit import histories
from rrcluster.audit.rounds import Training, check_postprocessing
from rrcluster.audit.suite import TARGETS
from rrcluster.audit.targets import SECURE
from rrcluster.errors import ConfigError
from rrcluster.privacy.ledger import Ledger
from rrcluster.report.folders import _with_init
from rrcluster.report.values import method_label
from rrcluster.runs.config import from_flat
from rrcluster.runs.experiment import make_experiment
from rrcluster.server.choice import TEMPERATURE, fading
from rrcluster.server.state import lengthened
from rrcluster.server.survey import (
    LEAST_ROUNDS,
    PARTS,
    Survey,
    SurveyQuestion,
    place_of,
    resolve_init,
    sketch,
    survey_size,
)
from rrcluster.settings import ServerSettings
from rrcluster.simulation.simulate import Checkpoint, make_server, simulate
from rrcluster.types import Coordinates, Release

WIDTH = 300


def settings(**changes):
    base = {"data": "fashion-mini", "num_clients": 200, "num_rounds": 12, "sample_rate": 0.5, "model": "edges"}
    base |= {
        "ratio": [2, 1],
        "num_clusters": 4,
        "init": "survey",
        "init_rounds": 8,
        "noise_multiplier": 0.4,
        "delta": 1e-3,
    }
    return from_flat({**base, "local_epochs": 3, "samples_per_client": 20, "device": "cpu", **changes})


def chosen(experiment, records):
    """The clusters that any client of these rounds says it belongs to: a count row of exact sums."""
    k = experiment.plan.mechanism.num_clusters
    counts = sum(record.collection.honest.total[-2 - k : -2] for record in records)
    assert counts.sum() == sum(record.collection.num_reports for record in records) * (
        experiment.plan.mechanism.count_units
    )
    return set(np.flatnonzero(counts).tolist())


def groups_of(centres, sizes, rng, spread=0.6):
    """Updates of clients around the centres of their groups, and the groups."""
    group = np.repeat(np.arange(len(sizes)), sizes)
    updates = centres[group] + spread * rng.normal(size=(len(group), centres.shape[1])) / np.sqrt(centres.shape[1])
    return updates, group


def surveyed(updates, k, rng, *, noise=0.0, rounds=22, rate=0.5):
    """The survey after all of its questions, with Poisson cohorts and Gaussian noise on the sums."""
    survey = Survey.begin(np.zeros(updates.shape[1]), k)
    for t in range(rounds):
        place = place_of(t, rounds)
        if not place.asks:
            break
        cohort = updates[rng.random(len(updates)) < rate]
        choices, answers = survey.question(place.stage, 1.0).answer(cohort)
        assert not choices.any()  # answers are in the first block; where in it depends on the answer
        total = noise * rng.normal(size=updates.shape[1])
        total[: answers.shape[1]] += answers.sum(axis=0)
        survey = survey.updated(place, total, noise=noise, num_clusters=k)
    return survey


@pytest.mark.parametrize("k", [4, 7])
@pytest.mark.parametrize("noise", [0.0, 1.0])
@pytest.mark.parametrize("sizes", [(200, 200), (240, 120, 40), (100, 100, 100, 100), (400,)])
def test_it_finds_the_groups_and_no_others(sizes, noise, k, rng):
    centres = np.linalg.qr(rng.normal(size=(WIDTH, len(sizes))))[0].T
    updates, group = groups_of(centres, sizes, rng)
    survey = surveyed(updates, k, rng, noise=noise)
    assert survey.num_groups == len(sizes)
    nearest, answers = survey.question("start", 1.0).answer(updates)
    assert answers is None
    agree = np.zeros((len(sizes), k))
    np.add.at(agree, (group, nearest), 1)
    assert agree.max(axis=1).sum() >= 0.97 * len(group)  # every group has a centre of its own
    assert len(set(agree.argmax(axis=1))) == len(sizes)


def test_noise_makes_no_groups(rng):
    """Clients that pull all ways: the survey cannot tell, and hardly ever claims a group, however loud the noise."""
    updates, _ = groups_of(np.zeros((1, WIDTH)), (300,), rng)
    found = [surveyed(updates, 4, rng, noise=noise, rounds=12).num_groups for noise in (0.0, 0.5, 2.0, 20.0) * 5]
    assert found[::4] == [0] * 5
    assert np.mean(found) < 1


def test_groups_beside_which_clients_differ_more_are_not_called_one(rng):
    """Centres so near that all would be merged: nobody knows, where the survey once claimed a single group."""
    centres = np.linalg.qr(rng.normal(size=(WIDTH, 4)))[0].T
    updates, _ = groups_of(centres, (150, 150, 150, 150), rng, spread=5.0)
    assert surveyed(updates, 4, rng).num_groups == 0


def test_a_run_that_cannot_tell_groups_opens_all_clusters_and_explores(monkeypatch):
    monkeypatch.setattr("rrcluster.server.survey.least_agreement", lambda _: 9.0)
    experiment = make_experiment(settings(num_clusters=3, num_rounds=20))
    whole = list(experiment.rounds())
    assert whole[-1].state.survey.num_groups == 0
    first = whole[0].state.models.clustered
    assert (whole[5].state.models.clustered == first).all()  # independent ones: nothing was trained
    assert len(np.unique(first, axis=0)) == 3
    assert chosen(experiment, whole[6:]) == {0, 1, 2}
    assert len(np.unique(whole[-1].state.models.clustered, axis=0)) == 3
    assert (whole[-1].state.sizes.total > 0).all()
    server = make_server(
        model=experiment.model,
        method=experiment.method,
        plan=experiment.plan,
        settings=experiment.server,
        streams=experiment.streams,
    )
    as_far = 20 / (20 - server.schedule.num_questions)  # models may go as far as without a survey, and not farther
    assert all((record.release.step_factors <= as_far + 1e-9).all() for record in whole[6:])
    assert (whole[-1].release.step_factors > 1).all()
    told = server.tell(whole[7].state)
    assert told.question is None
    assert told.rules.temperature == TEMPERATURE * fading(8, 20) > 0  # as without a survey
    for t in (4, 5, 6, 9):
        resumed = list(experiment.rounds(checkpoint=Checkpoint(whole[t].state)))
        assert (resumed[-1].state.models.clustered == whole[-1].state.models.clustered).all()


def test_groups_that_pull_nearly_the_same_way_are_told_apart_by_their_spread(rng):
    """A common part is most of every update, as of networks on raw pixels: angles alone would say one group."""
    apart, common = np.linalg.qr(rng.normal(size=(WIDTH, 4)))[0].T, rng.normal(size=WIDTH)
    centres = 2.5 * common / np.linalg.norm(common) + apart
    cosines = (centres @ centres.T) / (np.linalg.norm(centres, axis=1)[:, None] * np.linalg.norm(centres, axis=1))
    assert cosines[~np.eye(4, dtype=bool)].min() > 0.8
    updates, _ = groups_of(centres, (150, 150, 150, 150), rng, spread=0.3)
    assert surveyed(updates, 4, rng).num_groups == 4


vectors = arrays(np.float64, (3, 40), elements=st.floats(-1e6, 1e6) | st.sampled_from([np.nan, np.inf, 0.0]))


@given(vectors, st.sampled_from([stage for stage, _ in PARTS if stage != "start"]))
def test_no_answer_is_longer_than_its_scale(updates, stage):
    basis = np.linalg.qr(np.random.default_rng(0).normal(size=(8, 5)))[0]
    question = SurveyQuestion(stage, np.zeros(40), basis, np.zeros((2, 5)), scale=0.4)
    choices, answers = question.answer(updates)
    usable = np.isfinite(updates).all(axis=1)
    assert (np.linalg.norm(answers[usable], axis=1) <= 0.4 * (1 + 1e-9)).all()
    assert np.isnan(answers[~usable]).all()  # the mechanism makes it the zero message
    assert not choices.any()


def test_a_sketch_is_of_the_direction_alone_and_keeps_angles(rng):
    first, second = rng.normal(size=(2, 5000))
    assert sketch(3 * first[None], 32) == pytest.approx(sketch(first[None], 32))
    near = first + 0.1 * second
    a, b, c = sketch(np.stack([first, near, second]), 32)
    assert a @ b > 0.9 * np.linalg.norm(a) * np.linalg.norm(b)
    assert abs(a @ c) < 0.6
    assert not sketch(np.zeros((1, 50)), 8).any()


def test_an_answer_is_the_clients_own(rng):
    updates = rng.normal(size=(20, WIDTH))
    question = SurveyQuestion("skew", np.zeros(WIDTH), np.eye(12)[:, :4], np.zeros((0, 4)), 1.0)
    together, alone = question.answer(updates)[1][[3, 9]], question.answer(updates[[3, 9]])[1]
    assert (together == alone).all()


def test_every_part_has_a_round_and_the_last_one_ends_it():
    for rounds in range(LEAST_ROUNDS, 60):
        places = [place_of(t, rounds) for t in range(rounds)]
        parts = range(max(len(PARTS) - rounds, 0), len(PARTS))  # the shortest ask for the spread once
        assert [place.part for place in places] == sorted(place.part for place in places)
        assert sum(place.last for place in places) == len(parts)
        assert {place.part for place in places} == set(parts)
    assert [place_of(t, LEAST_ROUNDS).stage for t in range(LEAST_ROUNDS)] == ["spread", "skew", "centres", "start"]


def test_the_shortest_survey_finds_clear_groups(rng):
    centres = np.linalg.qr(rng.normal(size=(WIDTH, 4)))[0].T
    updates, _ = groups_of(centres, (100, 100, 100, 100), rng)
    assert surveyed(updates, 8, rng, noise=0.5, rounds=LEAST_ROUNDS).num_groups == 4


def test_a_sketch_fits_into_an_update():
    assert survey_size(4420, 4) == (48, 8)
    assert survey_size(4420, 11) == (48, 11)
    assert survey_size(20, 2) == (5, 2)
    with pytest.raises(ConfigError, match="needs more than 8 parameters"):
        survey_size(8, 4)


def test_a_run_opens_as_many_clusters_as_it_found_and_goes_on_after_any_round(tmp_path):
    config = settings()
    experiment = make_experiment(config)
    whole = list(experiment.rounds())
    start = whole[0].state.survey.start
    last = whole[-1].state
    assert last.survey.num_groups == 2
    for record in whole[:6]:  # models stay while clients answer
        assert (record.state.models.clustered[0] == start).all()
    assert (last.models.clustered[2:] == last.models.clustered[0]).all()  # closed ones are handed out as the first
    assert not (last.models.clustered[1] == last.models.clustered[0]).all()
    assert chosen(experiment, whole[8:]) == {0, 1}
    assert not last.sizes.total[2:].any()  # what is released of closed clusters is noise
    for t in (2, 5, 6, 9):
        resumed = list(make_experiment(config).rounds(checkpoint=Checkpoint(whole[t].state)))
        assert (resumed[-1].state.models.clustered == last.models.clustered).all()


def test_the_checkpoint_keeps_a_survey():
    record = list(make_experiment(settings()).rounds())[4]
    survey = record.state.survey
    again = Survey.from_tensors(survey.tensors() | {"numbers": np.zeros(2)})
    assert vars(again).keys() == vars(survey).keys()
    assert all(np.array_equal(value, getattr(again, name)) for name, value in vars(survey).items())
    assert Survey.from_tensors({"numbers": np.zeros(2)}) is None


def test_it_costs_what_any_rounds_cost():
    plain, asked = (make_experiment(settings(init=init, init_rounds=None)) for init in ("independent", "survey"))
    assert plain.plan.epsilon() == asked.plan.epsilon()
    assert plain.plan.event == asked.plan.event
    ledger = Ledger(limit=12)
    list(asked.rounds(ledger=ledger))
    assert ledger.num_charged == 12


def test_a_run_resumes_from_its_folder_in_every_part(tmp_path):
    config = settings(out=str(tmp_path / "whole"))
    whole = rr.run(config)
    for stop in (2, 9):
        out = tmp_path / f"stopped-{stop}"

        def interrupt(round_index, _, stop=stop):
            if round_index == stop:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            rr.run(settings(out=str(out)), on_round=interrupt)
        assert (rr.run(resume=out).models.clustered == whole.models.clustered).all()


def test_an_empty_cohort_answers_and_releases():
    for stage, _ in PARTS:
        question = SurveyQuestion(stage, np.zeros(40), np.eye(8)[:, :3], np.zeros((2, 3)), 1.0)
        choices, answers = question.answer(np.zeros((0, 40)))
        assert choices.shape == (0,)
        assert answers is None or answers.shape[0] == 0
    rare = list(make_experiment(settings(sample_rate=0.004)).rounds())
    assert len(rare) == 12
    assert min(record.collection.num_reports for record in rare) == 0


def test_an_update_that_is_no_number_is_no_answer():
    question = SurveyQuestion("centres", np.zeros(40), np.eye(8)[:, :3], np.zeros((2, 3)), 1.0)
    updates = np.ones((3, 40))
    updates[1, 7] = np.nan
    assert np.isnan(question.answer(updates)[1]).any(axis=1).tolist() == [False, True, False]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"min_cluster_size": 5}, "keeps closed; set B to 0"),
        ({"mechanism": "identifier"}, "use mechanism = joint"),
        ({"algorithm": "fesem"}, "use ifca, or another init"),
        (
            {"data": "synthetic-balanced-easy", "model": "auto", "samples_per_client": None, "ratio": []},
            "needs more than",
        ),
        ({"init_rounds": 3}, "at least 4 for init = survey"),
        ({"ratio": [1, -1]}, "ratio = -1"),
        ({"ratio": [1] * 5}, "at most 4 groups"),
        ({"partition": "dirichlet", "ratio": [1, 1], "init": "independent", "init_rounds": None}, "ratio is not"),
    ],
)
def test_refusals(changes, text):
    with pytest.raises(ConfigError, match=text):
        make_experiment(settings(**changes))


@pytest.mark.parametrize("target", [TARGETS["joint"][0], SECURE], ids=["seeded", "secure"])
def test_the_audit_tries_a_survey_and_refutes_nothing(target, monkeypatch):
    scene = histories.Scene("ifca", "survey")
    monkeypatch.setattr(histories, "_scenes", lambda _: (scene,))
    training = Training(target, simulate)
    findings = [histories.check_histories(training)]
    if not target.secure:  # which draws other first models every time
        findings.append(check_postprocessing(training))
    assert all(finding.holds for finding in findings), findings


@pytest.mark.parametrize(
    ("changes", "init", "rounds"),
    [
        ({"init": "survey"}, "survey", 9),
        ({}, "survey", 9),
        ({"noise_multiplier": 2.5}, "survey", 22),  # as many as small groups need, a fifth of the rounds at most
        ({"num_rounds": 28}, "survey", 6),
        ({"num_rounds": 10}, "survey", 4),
        ({"mechanism": "none", "noise_multiplier": None}, "survey", 9),
        ({"noise_multiplier": 5.0}, "independent", None),
        ({"num_rounds": 9}, "independent", None),
        ({"exploration": 0.0}, "independent", None),
        ({"min_cluster_size": 5}, "independent", None),
        ({"algorithm": "fesem"}, "independent", None),
        ({"algorithm": "fedavg"}, "independent", None),
        ({"mechanism": "identifier", "sample_rate": 0.5}, "independent", None),
        ({"model": "edges-mlp"}, "independent", None),  # several trained layers
        ({"num_clusters": 1}, "independent", None),
    ],
)
def test_auto_asks_where_it_can_find_groups_and_as_long_as_noise_demands(changes, init, rounds):
    given = {"init": "auto", "init_rounds": None, "num_rounds": 100, "sample_rate": 0.5} | changes
    experiment = make_experiment(settings(**given))
    assert (experiment.server.init, experiment.server.init_rounds) == (init, rounds)
    assert experiment.statement()["initialisation"] == {"init": init, "rounds": rounds}
    assert experiment.config.server.init == given["init"]  # as asked for, so that the same command finds its run


def test_a_model_that_is_too_small_is_refused_however_long_the_survey():
    with pytest.raises(ConfigError, match="more than"):
        resolve_init(ServerSettings(init="survey", init_rounds=8), small_plan(), survey_applies=True)
    assert resolve_init(ServerSettings(), small_plan(), survey_applies=True).init == "independent"


def small_plan():
    known = {"num_clients": 1000, "num_clusters": 4, "noise_multiplier": 0.5, "delta": 1e-3}
    return rr.PrivacyPlan.build(**known, num_rounds=100, sample_rate=0.5, coordinates=Coordinates(0, 15))


@pytest.mark.parametrize("noise", [0.0, 1e-3, 1e3])
def test_steps_after_a_survey_make_up_for_its_rounds_where_noise_is_small(noise):
    mechanism = replace(small_plan().mechanism, coordinates=Coordinates(0, 2))
    sums, sizes = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([10.0, 40.0])
    given = Release(np.zeros(0), sums, sizes, sizes, 1.0, noise, noise)
    longer = lengthened(given, mechanism, num_rounds=100, lost=20, found=True)
    factors = longer.cluster_sums / sums
    assert np.allclose(factors, 1.75 if noise < 1 else 1.0, atol=1e-3)
    untold = lengthened(given, mechanism, num_rounds=100, lost=20, found=False)
    assert np.allclose(untold.cluster_sums / sums, 1.25 if noise < 1 else 1.0, atol=1e-3)
    at_most = lengthened(given, mechanism, num_rounds=100, lost=60, found=True)
    assert np.allclose(at_most.cluster_sums / sums, 2.0 if noise < 1 else 1.0, atol=1e-3)
    assert np.array_equal(longer.denominators, given.denominators)
    assert np.allclose(longer.noise_std, factors[:, 0] * given.noise_std)  # of the means, as rounds.jsonl states it


def test_a_report_says_what_auto_stood_for():
    config = settings(init="auto", init_rounds=None).flat()
    for init, label in (("survey", "DP-IFCA + survey"), ("independent", "DP-IFCA + exploration")):
        assert method_label(_with_init(config, {"initialisation": {"init": init, "rounds": None}})) == label
    stated = {"initialisation": {"init": "survey"}}
    assert _with_init(config | {"init": "independent"}, stated)["init"] == "independent"
