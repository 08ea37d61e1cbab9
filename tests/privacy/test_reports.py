import numpy as np
import pytest
import torch

from rrcluster.errors import ConfigError
from rrcluster.privacy.reports import Reports, check_reports


def check(updates, choices, **kwargs):
    return check_reports(Reports(updates, choices, **kwargs), width=2, num_clusters=3)


def test_good_reports_pass():
    reports = check(np.ones((2, 2), dtype=np.float32), [0, 2])
    assert reports.valid.tolist() == [True, True]
    assert reports.destinations.tolist() == [0, 2]


def test_torch_reports_pass():
    reports = check(torch.ones(2, 2), torch.tensor([1, 1]))
    assert reports.valid.all()
    assert (reports.updates == 1).all()


HOSTILE = {
    "nan": [np.nan, 1.0],
    "infinite": [np.inf, 1.0],
    "overflowing": [1e200, 1.0],
    "short": [1.0],
    "matrix": [[1.0, 2.0]],
    "text": ["a", "b"],
    "complex": [1j, 0],
    "nothing": None,
    "ragged": [[1.0], [1.0, 2.0]],
    "object": object(),
    "conjugate": torch.full((2,), 1j, dtype=torch.complex64).conj(),
    "sparse": torch.ones(2).to_sparse(),
    "wider than float64": np.array([1.0, 2.0], dtype=np.longdouble) * np.longdouble("1e4000"),
    "endless": (lambda rows: rows.append(rows) or rows)([]),
}


@pytest.mark.parametrize("bad", HOSTILE.values(), ids=HOSTILE.keys())
def test_one_hostile_update_spoils_only_itself(bad):
    reports = check([[1.0, 2.0], bad, np.array([3.0, 4.0])], [0, 1, 2])
    assert reports.valid.tolist() == [True, False, True]
    assert (reports.updates[1] == 0).all()
    assert np.isfinite(reports.updates).all()


@pytest.mark.parametrize("bad", [-1, 3, 10**30, 1.5, np.nan, "one", None, [0], 1j])
def test_one_hostile_choice_spoils_only_itself(bad):
    reports = check(np.ones((3, 2)), [0, bad, 2])
    assert reports.valid.tolist() == [True, False, True]


def test_of_reports_under_one_id_the_first_is_kept():
    reports = check(np.array([[1.0, 0], [2.0, 0], [3.0, 0]]), [0, 1, 2], client_ids=[7, 8, 7])
    assert reports.valid.tolist() == [True, True]
    assert reports.updates[:, 0].tolist() == [1.0, 2.0]
    assert reports.choices.tolist() == [0, 1]


def test_the_first_of_several_is_kept_even_when_it_is_invalid():
    reports = check(np.array([[np.nan, 0], [2.0, 0]]), [0, 1], client_ids=[7, 7])
    assert reports.valid.tolist() == [False]


def test_a_destination_out_of_range_makes_the_report_invalid():
    reports = check(np.ones((2, 2)), [0, 1], destinations=[2, 9])
    assert reports.valid.tolist() == [True, False]


def test_no_reports_at_all():
    reports = check(np.zeros((0, 2)), [])
    assert reports.updates.shape == (0, 2)


@pytest.mark.parametrize("ids", [[1], 1, "ab", None])
def test_client_ids_that_do_not_fit_are_the_callers_mistake(ids):
    if ids is None:
        assert check(np.ones((2, 2)), [0, 0], client_ids=ids).valid.all()
        return
    with pytest.raises(ConfigError, match="one id per update"):
        check(np.ones((2, 2)), [0, 0], client_ids=ids)


def test_half_precision_reports_pass():
    for kind in (torch.bfloat16, torch.float16):
        assert check(torch.ones(2, 2, dtype=kind), torch.tensor([1, 1])).valid.all()
    assert check([torch.ones(2, dtype=torch.bfloat16)], [0]).valid.all()


def test_padding_adds_invalid_reports():
    padded = check(np.ones((1, 2)), [1]).padded(3)
    assert padded.valid.tolist() == [True, False, False]
    assert padded.updates.shape == (3, 2)


@pytest.mark.parametrize(
    ("updates", "choices", "text"),
    [
        (np.ones((2, 5)), [0, 0], "updates have 5 coordinates, the plan has 2"),
        (np.ones((2, 2)), [0], "choices must hold one cluster per update"),
        (np.ones((2, 2)), 0, "choices must hold one cluster per update"),
        (np.ones((2, 2)), "01", "choices must hold one cluster per update"),
        (np.float64(1.0), [0], "or a sequence of rows"),
        (None, [0], "or a sequence of rows"),
        ("ab", [0, 0], "not str"),
    ],
)
def test_mistakes_of_the_caller_raise(updates, choices, text):
    with pytest.raises(ConfigError, match=text):
        check(updates, choices)


def test_one_odd_choice_does_not_spoil_the_others_when_stacked():
    for stacked in (np.array([0, 1, 1.5]), np.array([0, 1, "x"]), np.array([0, 1, None], dtype=object)):
        assert check(np.ones((3, 2)), stacked).valid.tolist() == [True, True, False]
    stacked = np.array([["1.0", "2.0"], ["a", "b"]])
    assert check(stacked, [0, 1]).valid.tolist() == [True, False]


class Hostile:
    def __array__(self, *_, **__):
        raise RuntimeError("secret 42")


def test_an_object_that_raises_spoils_only_itself():
    assert check([[1.0, 2.0], Hostile()], [0, 1]).valid.tolist() == [True, False]
    assert check(np.ones((2, 2)), [0, Hostile()]).valid.tolist() == [True, False]
    conjugated = torch.full((2,), 1j, dtype=torch.complex64).conj()
    assert check([conjugated, torch.ones(2)], [0, 1]).valid.tolist() == [False, True]
    assert check([np.array([np.longdouble("1e4000"), 1]), [1.0, 1.0]], [0, 1]).valid.tolist() == [False, True]


def test_a_text_is_another_client_than_the_number_it_spells():
    assert check(np.ones((3, 2)), [0, 0, 0], client_ids=[1, "1", b"1"]).valid.tolist() == [True] * 3


def test_one_number_is_one_client_whatever_its_type():
    ids = [5, np.int64(5), np.uint8(5), torch.tensor(5), np.array(5)]
    assert check(np.ones((5, 2)), [0] * 5, client_ids=ids).valid.tolist() == [True]


@pytest.mark.parametrize("odd", [np.arange(5000), 0.5, None, True, ("a", 1)])
def test_an_id_that_is_neither_number_nor_text_is_refused(odd):
    with pytest.raises(ConfigError, match="whole numbers or texts"):
        check(np.ones((2, 2)), [0, 0], client_ids=[1, odd])


def test_every_field_travels_with_its_report():
    rows = np.array([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]])
    reports = check(np.ones((3, 2)), [0, 1, 2], destinations=[1, 0, 0], evaluations=rows, client_ids=[5, 5, 6])
    assert reports.evaluations.tolist() == [[0.1, 0.2], [0.5, 0.6]]
    assert reports.destinations.tolist() == [1, 0]
    assert reports.padded(4).evaluations.tolist() == [[0.1, 0.2], [0.5, 0.6], [0, 0], [0, 0]]
    assert reports.padded(4).destinations.tolist() == [1, 0, 0, 0]
    assert reports.padded(4).norms.tolist() == [*reports.norms, 0, 0]


@pytest.mark.parametrize("bad", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_evaluations_make_their_own_report_invalid_alone(bad):
    if bad is HOSTILE["overflowing"]:
        bad = [1e309, 1.0]  # a finite one, however large, is clipped
    reports = check(np.ones((3, 2)), [0, 1, 2], evaluations=[[1.0, 0.25], bad, [0.5, 1.0]])
    assert reports.valid.tolist() == [True, False, True]
    assert reports.evaluations.tolist() == [[1, 0.25], [0, 0], [0.5, 1]]
    assert reports.updates[1].tolist() == [0, 0]


@pytest.mark.parametrize("said", [np.ones((2, 2)), np.ones((3, 5)), "text", 3], ids=["few", "wide", "text", "number"])
def test_evaluations_that_the_caller_got_wrong_raise(said):
    with pytest.raises(ConfigError, match="evaluations"):
        check(np.ones((3, 2)), [0, 1, 2], evaluations=said)


def test_reports_show_nothing_of_what_clients_sent():
    """Raw values in a traceback or a log line would be a release without noise."""
    raw = Reports(np.full((1, 2), 41.5), [7], [7], ["client-93"], [[0.125, 0.75]])
    assert repr(raw) == "Reports(unique=False)"


def test_a_wrong_number_of_evaluations_is_refused_without_saying_how_many_clients_there_are():
    with pytest.raises(ConfigError, match="as many as there are updates") as refused:
        check_reports(Reports(np.zeros((37, 2)), [0] * 37, evaluations=np.zeros((3, 2))), width=2, num_clusters=1)
    assert "37" not in str(refused.value)
