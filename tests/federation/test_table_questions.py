"""Mixed effects over messages: members answer the agreed questions alone, and what is learnt is the simulator's."""

import csv
from dataclasses import replace

import numpy as np
import pytest
from federation_lab import COUNTS, SECURE, SETTINGS, daemons_of, deployed_rounds, members

import rrcluster as rr
from rrcluster.errors import ProtocolError
from rrcluster.federation.agreed_run import close
from rrcluster.federation.agreed_settings import table_shape
from rrcluster.federation.agreement import Agreement
from rrcluster.federation.collect import InProcess
from rrcluster.federation.messages import Letter, decode, read_task

COLUMNS = {"features": ["size", "colour"], "target": "y", "classes": [0, 1], "encoding": "cells"}
RULES = {"algorithm": "mixed-effects", "num_rounds": 18, "noise_multiplier": 0.03, "data": "members"}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path, rng = tmp_path_factory.mktemp("table") / "people.csv", np.random.default_rng(0)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["person", "size", "colour", "y"])
        for person in range(sum(COUNTS)):
            own = rng.normal()
            for _ in range(8):
                size, colour = rng.normal(), rng.choice(["red", "green"])
                answer = int(rng.random() < 1 / (1 + np.exp(-2 * size - (colour == "red") - own)))
                writer.writerow([person, 100 * size, colour, answer])
    return rr.from_frame(path, client="person", test_share=0.0, **COLUMNS)


def agree(mode):
    settings = {name: value for name, value in SETTINGS.items() if name not in ("samples_per_client", "sample_rate")}
    settings = {**settings, **SECURE, **RULES}
    del settings["local_epochs"]
    honest = {"least_honest": 2, "most_colluders": 0} if mode == "secure" else {}
    return close(Agreement("lab", settings, table_shape(COLUMNS), members(), mode, **honest))


class Listening:
    """Daemons in this process, and the messages to member 0."""

    def __init__(self, daemons):
        self.inner, self.letters = InProcess(daemons), []

    def ask(self, messages):
        self.letters.append(decode(messages[0], longest=10**9))
        return self.inner.ask(messages)

    def stayed(self):
        return self.inner.stayed()


@pytest.fixture(scope="module", params=["plain", "secure"])
def over_messages(request, data, tmp_path_factory):
    agreed, daemons = daemons_of(agree(request.param), data, tmp_path_factory.mktemp("members"))
    transport = Listening(daemons)
    return agreed, daemons, transport, list(deployed_rounds(agreed, transport))


def test_what_is_learnt_over_messages_is_the_simulators(over_messages, data):
    agreed, _, _, rounds = over_messages
    simulated = replace(agreed.experiment, data=data).rounds() if agreed.secure is None else None
    learnt = rounds[-1].state.learnt
    assert len(rounds) == 18
    if simulated is not None:
        other = list(simulated)[-1].state.learnt
        np.testing.assert_array_equal(learnt["questionnaire.active"], other["questionnaire.active"])
        np.testing.assert_allclose(
            learnt["questionnaire.centre"], other["questionnaire.centre"], atol=0.25
        )  # each has its own noise
    models = rounds[-1].state.models
    assert np.isfinite(models.shared).all()
    assert np.isfinite(models.clustered).all()
    assert np.abs(learnt["questionnaire.second"]).max() > 0.5


@pytest.mark.parametrize("over_messages", ["plain"], indirect=True)
def test_members_refuse_facts_of_other_shapes_and_rounds_beyond_the_last(over_messages):
    agreed, daemons, transport, _ = over_messages
    tasks = [letter for letter in transport.letters if "active" in letter.arrays]
    assert len(tasks) == 18
    mechanism, form = agreed.plan.mechanism, agreed.form
    for letter in (tasks[3], tasks[9], tasks[-1]):
        plain = {name: value for name, value in letter.arrays.items() if name not in ("clients", "envelopes")}
        known = {name: value for name, value in plain.items() if value.size and value.dtype == np.float64}
        own = {"clients", "envelopes", "sealed"} & set(letter.arrays)
        extra = {name: (letter.arrays[name].dtype.str[1:], (None,) * letter.arrays[name].ndim) for name in own}
        others = set(letter.arrays) - set(plain) - own
        assert not others
        read_task(letter, letter.name, mechanism, form=form, **extra)
        for name in sorted(known.keys() - {"prices", "transition"}):
            wrong = Letter(letter.name, letter.facts, {**letter.arrays, name: np.ones((2, 7))})
            with pytest.raises(ProtocolError):
                read_task(wrong, letter.name, mechanism, form=form, **extra)
    beyond = Letter(tasks[-1].name, {**tasks[-1].facts, "round": 18}, tasks[-1].arrays)
    with pytest.raises(ProtocolError):
        read_task(beyond, beyond.name, mechanism, form=form, **extra)
    assert daemons


def test_a_member_whose_table_gives_other_columns_is_refused(data):
    from rrcluster.errors import DataError
    from rrcluster.federation.agreed_run import check_data

    agreement = agree("plain")
    with pytest.raises(DataError, match="more clients"):
        check_data(data, agreement, 0)
    with pytest.raises(DataError, match="columns"):
        check_data(replace(data, columns=replace(data.columns, buckets=3)), agreement, 0)
