"""Estimators with scikit-learn's habits: its own checks, and the same predictions as the models they trained."""

import pickle

import numpy as np
import pandas as pd
import pytest

import rrcluster as rr

sklearn = pytest.importorskip("sklearn", reason="estimators need rrcluster[sklearn]")
from sklearn.base import clone  # noqa: E402
from sklearn.utils.estimator_checks import check_estimator  # noqa: E402

EXPECTED_TO_FAIL: dict[str, str] = {}  # none: without groups every row is a client of its own, as the checks call it
SKIPPED = {"check_array_api_input"}  # scikit-learn runs it under SCIPY_ARRAY_API alone


@pytest.mark.filterwarnings("ignore")  # the checks raise and expect warnings of their own
@pytest.mark.parametrize("kind", [rr.RRClusterClassifier, pytest.param(rr.RRClusterRegressor, marks=pytest.mark.slow)])
def test_scikit_learns_own_checks(kind):
    results = check_estimator(kind(epsilon=4), expected_failed_checks=EXPECTED_TO_FAIL, on_skip=None)
    assert len(results) > 50
    assert {result["check_name"] for result in results if result["status"] != "passed"} <= SKIPPED


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(3)
    rows, clients = 10_000, 250
    who = rng.integers(0, clients, rows)
    frame = pd.DataFrame(
        {
            "wärme": np.where(rng.random(rows) < 0.05, np.nan, rng.normal(size=rows)),
            "farbe": rng.choice(np.array(["rot", "grün", "日本", None], dtype=object), rows),
            "count": rng.integers(0, 9, rows),
        }
    )
    level = rng.normal(size=clients)[who] + np.nan_to_num(frame["wärme"]) + (frame["farbe"] == "rot")
    return frame, level + rng.normal(size=rows) / 3, np.array([f"client {number}" for number in who])


@pytest.mark.parametrize("kind", [rr.RRClusterClassifier, rr.RRClusterRegressor])
def test_an_estimator_predicts_what_its_run_does(table, tmp_path, kind):
    X, level, groups = table
    y = np.where(level > 0.3, "ja", "nein") if kind is rr.RRClusterClassifier else level.to_numpy()
    first, later = slice(0, 5000), slice(5000, None)
    made = kind(epsilon=8, folder=str(tmp_path / "run")).fit(X[first], y[first], groups=groups[first])
    assert made.epsilon_ <= 8
    unseen = X[later].copy()
    unseen.iloc[:50, 1] = "unbekannt"
    labelled = X[first].assign(**{"(client)": groups[first], "(target)": y[first]})
    models = rr.load(tmp_path / "run")
    wanted = models.predict(unseen.assign(**{"(client)": groups[later]}), labelled=labelled)
    got = made.predict(unseen, groups=groups[later])
    if kind is rr.RRClusterClassifier:
        np.testing.assert_allclose(made.predict_proba(unseen, groups=groups[later]), wanted.outputs, atol=1e-6)
        assert (got == wanted.prediction).all()
        assert (got == y[later]).mean() > (made.predict(unseen) == y[later]).mean() + 0.05
        assert made.score(unseen, y[later], groups=groups[later]) == (got == y[later]).mean()
    else:
        np.testing.assert_allclose(got, wanted.prediction, atol=1e-5)
        errors = [((values - y[later]) ** 2).mean() for values in (got, made.predict(unseen))]
        assert errors[0] < 0.6 * errors[1], errors
        scores = [made.score(unseen, y[later]), made.score(unseen, y[later], groups=groups[later])]
        np.testing.assert_allclose(scores, [1 - error / y[later].var() for error in errors[::-1]])
    again = pickle.loads(pickle.dumps(made))
    np.testing.assert_array_equal(again.predict(unseen, groups=groups[later]), got)
    assert clone(made).set_params(epsilon=2).get_params()["epsilon"] == 2


def test_rules_of_columns_are_settings(table, tmp_path):
    X, level, groups = table
    days = pd.date_range("2024-01-01", periods=1000)
    X = X.iloc[:1000].assign(day=days.strftime("%Y-%m-%d"))
    settings = {"types": {"day": "weekday"}, "categories": {"farbe": ["rot", "grün"]}, "num_clusters": 1}
    with pytest.warns(rr.errors.NotDeclared, match=r"'farbe': [0-9.]+% of rows have a value outside"):
        made = rr.RRClusterClassifier(epsilon=8, settings=settings).fit(X, level[:1000] > 0.3, groups=groups[:1000])
    assert made.labelled_.columns.names[5:7] == ("day weekday=Monday", "day weekday=Tuesday")
    later = X.assign(day=days.date)
    np.testing.assert_array_equal(made.predict_proba(X, groups[:1000]), made.predict_proba(later, groups[:1000]))
