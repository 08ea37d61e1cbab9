"""An agreement comes from somebody who is not trusted: whatever it holds, it is refused in a sentence or as good."""

import copy
import json

import pytest
from federation_lab import agree
from hypothesis import given, settings
from hypothesis import strategies as st

from rrcluster.federation.agreed_run import AgreedRun
from rrcluster.federation.agreement import Agreement
from rrcluster.storage import parse_json

VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 10**6),
    st.sampled_from([0.0, -1.0, 1e-9, 1e308, float("inf"), float("nan"), 10**30]),
    st.sampled_from(["", "members", "x", "../../etc/passwd", "a\x00b", "joint", "1e-3", "ab" * 40]),
    st.lists(st.integers(-1, 3), max_size=2),
    st.dictionaries(st.sampled_from(["name", "features", "type"]), st.integers(0, 2), max_size=2),
)


@pytest.fixture(scope="module")
def facts():
    return json.loads(json.dumps(agree(mode="secure").facts()))


def places(value, path=()):
    """The path of every value inside."""
    if path:
        yield path
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inside:
        yield from places(part, (*path, key))


def changed(facts, path, value):
    """With another value at one place; with nothing there for `...`."""
    whole = copy.deepcopy(facts)
    holder = whole
    for key in path[:-1]:
        holder = holder[key]
    if value is ...:
        del holder[path[-1]]
    else:
        holder[path[-1]] = value
    return whole


def check(facts, data):
    options = sorted(places(facts), key=str)
    path = data.draw(st.sampled_from([*options, ("samples", "columns", "features"), ("samples", "columns", "classes")]))
    value = data.draw(st.one_of(VALUES, st.just(...)) if path in options else VALUES)
    altered = changed(facts, path, value)
    try:
        agreement = Agreement.of_facts(parse_json(json.dumps(altered)))
        agreed = AgreedRun.build(agreement, trains=False)
    except ValueError:  # also of what is nested too deeply
        return
    assert agreed.guarantee() == pytest.approx(agreement.guarantee)  # what an operator reads is what runs


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_changed_agreement_is_refused_or_runs_as_it_says(facts, data):
    check(facts, data)


@pytest.mark.slow
@settings(max_examples=600, deadline=None)
@given(data=st.data())
def test_many_changed_agreements_are_refused_or_run_as_they_say(facts, data):
    check(facts, data)
