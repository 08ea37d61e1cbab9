import json
import math

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from rrcluster.errors import ConfigError, PrivacyError, UnsupportedEvent
from rrcluster.privacy import calibrate as module
from rrcluster.privacy.accounting import epsilon
from rrcluster.privacy.calibrate import cache_file, calibrate
from rrcluster.privacy.events import FixedSize, KaryChoice, PoissonGaussian
from rrcluster.privacy.profiles import keep_probability


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def poisson(z):
    return PoissonGaussian(z, 0.1)


def fixed(z):
    return FixedSize(z, 100, 1000)


def equal_split(z):
    return FixedSize(math.sqrt(2) * z, 100, 1000, KaryChoice(keep_probability(2 * z, 4), 4))


def check_smallest(make, z, **run):
    """Within the target at full resolution, and 2e-4 less noise is not."""
    target = run.pop("epsilon")
    assert epsilon(make(z), **run) <= target < epsilon(make(z * (1 - 2e-4)), **run)


@pytest.mark.parametrize(
    ("make", "accountant", "target", "rounds", "delta", "table"),
    [
        (poisson, "pld", 2, 100, 1e-3, 1.674),
        (poisson, "pld", 0.5, 50, 1e-4, 4.393),
        (poisson, "rdp", 2, 100, 1e-3, 1.858),
        (fixed, "pld", 2, 100, 1e-3, 1.813),
        (fixed, "pld", 16, 200, 1e-4, 0.792),
        pytest.param(fixed, "rdp", 4, 100, 1e-3, 1.995, marks=pytest.mark.slow),
        (fixed, "paper", 4, 100, 1e-3, 2.572),
        (fixed, "paper", 16, 50, 1e-4, 0.710),
    ],
)
def test_table(make, accountant, target, rounds, delta, table):
    run = {"epsilon": target, "num_rounds": rounds, "delta": delta, "accountant": accountant}
    z = calibrate(make, **run, cache=False)
    assert z == pytest.approx(table, abs=5.1e-4 + 2e-4 * table)
    check_smallest(make, z, **run)


def test_the_identifier_route():
    run = {"epsilon": 2, "num_rounds": 100, "delta": 1e-3}
    z = calibrate(equal_split, **run)
    check_smallest(equal_split, z, **run)
    assert z < 0.9 * calibrate(fixed, **run), "as a response, the argmax costs less than as a Gaussian"


@pytest.mark.parametrize(
    ("q", "target", "rounds", "delta"),
    [
        (0.1, 0.05, 100, 1e-5),
        (0.1, 2, 1, 1e-5),
        pytest.param(0.1, 50, 100, 1e-5, marks=pytest.mark.slow),
        pytest.param(0.1, 0.05, 2000, 1e-4, marks=pytest.mark.slow),
        pytest.param(0.001, 2, 2000, 1e-5, marks=pytest.mark.slow),
        pytest.param(0.001, 50, 1, 1e-4, marks=pytest.mark.slow),
        (1, 0.05, 2000, 1e-4),
        (1, 50, 1, 1e-4),
    ],
)
@pytest.mark.parametrize("make", ["poisson", "fixed"])
def test_extremes(make, q, target, rounds, delta):
    def event(z):
        return PoissonGaussian(z, q) if make == "poisson" else FixedSize(z, round(1000 * q), 1000)

    run = {"epsilon": target, "num_rounds": rounds, "delta": delta}
    check_smallest(event, calibrate(event, **run), **run)


@example(target=1.0, rounds=1, delta=1e-7, rate=1.0, name="pld", poissonian=False)  # far in the tail
@given(
    target=st.floats(0.2, 20),
    rounds=st.integers(1, 300),
    delta=st.floats(1e-7, 1e-3),
    rate=st.sampled_from([0.02, 0.1, 0.5, 1.0]),
    name=st.sampled_from(["pld", "rdp", "paper"]),
    poissonian=st.booleans(),
)
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_never_overspends(target, rounds, delta, rate, name, poissonian):
    def event(z):
        return PoissonGaussian(z, rate) if poissonian else FixedSize(z, round(rate * 1000), 1000)

    try:
        z = calibrate(event, epsilon=target, num_rounds=rounds, delta=delta, accountant=name, cache=False)
    except PrivacyError:
        return
    assert epsilon(event(z), num_rounds=rounds, delta=delta, accountant=name) <= target


def test_refuses_below_the_floor():
    with pytest.raises(PrivacyError, match=r"no noise reaches epsilon = 2 .*still 2\.226.*use the accountant 'pld'"):
        calibrate(fixed, epsilon=2, delta=1e-3, num_rounds=100, accountant="paper")
    with pytest.raises(PrivacyError, match=r"no noise reaches epsilon = 2 .*; allow a larger epsilon"):
        calibrate(lambda z: FixedSize(z, 100, 1000, KaryChoice(0.7, 4)), epsilon=2, delta=1e-3, num_rounds=100)


def test_refuses_targets_that_need_no_noise():
    with pytest.raises(PrivacyError, match="met with practically no noise"):
        calibrate(lambda z: PoissonGaussian(z, 0.001), epsilon=1, delta=0.01, num_rounds=5)
    with pytest.raises(PrivacyError, match="too large to protect anyone"):
        calibrate(lambda z: PoissonGaussian(z, 1.0), epsilon=1e5, delta=1e-5, num_rounds=1)


def test_passes_refusals_and_bad_events_on():
    with pytest.raises(UnsupportedEvent, match="this event is Poisson sampling"):
        calibrate(poisson, epsilon=2, delta=1e-3, num_rounds=100, accountant="paper")
    with pytest.raises(ConfigError, match="cohort_size = 20 is more than num_clients = 10"):
        calibrate(lambda z: FixedSize(z, 20, 10), epsilon=2, delta=1e-3, num_rounds=100)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"epsilon": 0}, "epsilon = 0 must be greater than 0"),
        ({"epsilon": math.inf}, "epsilon = inf must be greater than 0 and finite"),
        ({"epsilon": math.nan}, "epsilon = nan must be a number"),
        ({"delta": 0}, "delta = 0 must be greater than 0 and less than 1"),
        ({"delta": 1.5}, r"delta = 1.5 must be greater"),
        ({"num_rounds": 0}, "num_rounds = 0 must be a whole number of at least 1"),
        ({"accountant": "gdp"}, "accountant = 'gdp' is not known"),
    ],
)
def test_bad_arguments(wrong, message):
    with pytest.raises(ConfigError, match=message):
        calibrate(poisson, **{"epsilon": 2, "delta": 1e-3, "num_rounds": 10, **wrong})


RUN = {"epsilon": 2.0, "delta": 1e-3, "num_rounds": 30, "accountant": "paper"}


def small(z):
    return FixedSize(z, 10, 1000)


@pytest.fixture
def no_search(monkeypatch):
    def fail(*_, **__):
        raise AssertionError("searched although the answer was remembered")

    def forbid():
        monkeypatch.setattr(module, "_smallest", fail)

    return forbid


def test_the_cache_is_used(no_search):
    z = calibrate(small, **RUN)
    no_search()
    assert calibrate(small, **RUN) == z
    assert list(cache_file().parent.iterdir()) == [cache_file()], "no temporary file is left"
    with pytest.raises(AssertionError):
        calibrate(small, **RUN, cache=False)


@pytest.mark.parametrize(
    "other",
    [{"epsilon": 2.5}, {"delta": 1e-4}, {"num_rounds": 31}, {"accountant": "pld"}],
)
def test_other_questions_have_other_answers(other):
    assert calibrate(small, **RUN) != calibrate(small, **{**RUN, **other})


def test_a_fixed_and_a_scaled_response_are_not_mixed_up():
    """Both events agree at multiplier 1; only the second gets a noisier response when the noise grows."""
    at_one = keep_probability(2.0, 4)
    run = {"epsilon": 8.0, "delta": 1e-3, "num_rounds": 30}
    first = calibrate(lambda z: FixedSize(z, 100, 1000, KaryChoice(at_one, 4)), **run)
    second = calibrate(lambda z: FixedSize(z, 100, 1000, KaryChoice(keep_probability(2 * z, 4), 4)), **run)
    assert first != second


def test_an_entry_for_another_event_is_not_used(no_search):
    """Even if two makers agree wherever the key looks."""
    calibrate(small, **RUN)
    no_search()
    with pytest.raises(AssertionError, match="searched"):
        calibrate(lambda z: small(z if z in (1.0, 2.0) else z / 2), **RUN)


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"a": 1}', "\x00\x01", "[" * 100_000])
def test_a_corrupted_file_is_ignored_and_replaced(content):
    z = calibrate(small, **RUN)
    cache_file().write_text(content)
    assert calibrate(small, **RUN) == z
    assert len(json.loads(cache_file().read_text())) >= 1


@pytest.mark.parametrize(
    "poison", [0.5, -1.0, 0, True, "1.0", None, math.nan, math.inf, 1e300, 50.0, [], {}, {"multiplier": 1.0}]
)
def test_a_poisoned_entry_is_ignored(poison):
    z = calibrate(small, **RUN)
    ((key, _),) = json.loads(cache_file().read_text()).items()
    cache_file().write_text(json.dumps({key: poison}))
    assert calibrate(small, **RUN) == z


def test_a_remembered_multiplier_that_overspends_by_a_hair_is_ignored():
    z = calibrate(small, **RUN)
    ((key, _),) = json.loads(cache_file().read_text()).items()
    cache_file().write_text(json.dumps({key: z / (1 + module.TOLERANCE)}))
    assert calibrate(small, **RUN) == z


def test_an_entry_moved_to_another_question_is_ignored():
    loose = calibrate(small, **{**RUN, "epsilon": 1.9})
    ((_, entry),) = json.loads(cache_file().read_text()).items()
    cache_file().unlink()
    z = calibrate(small, **{**RUN, "num_rounds": 60})
    ((key, _),) = json.loads(cache_file().read_text()).items()
    cache_file().write_text(json.dumps({key: entry}))
    assert calibrate(small, **{**RUN, "num_rounds": 60}) == z > loose


def test_an_unwritable_folder_is_ignored(tmp_path, monkeypatch):
    blocked = tmp_path / "a-file"
    blocked.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    assert calibrate(small, **RUN) == calibrate(small, **RUN, cache=False)


def test_a_failed_rename_leaves_nothing_behind(monkeypatch):
    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(module.Path, "replace", fail)
    calibrate(small, **RUN)
    assert list(cache_file().parent.iterdir()) == []


def test_where_the_cache_is(tmp_path, monkeypatch):
    assert cache_file() == tmp_path / "rrcluster" / "multipliers.json"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_file() == tmp_path / "home" / ".cache" / "rrcluster" / "multipliers.json"
