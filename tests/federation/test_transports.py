"""A transport of one's own is a function that is registered: rounds go over it, and members stay as they are."""

import contextlib
import time

import numpy as np
import pytest
from folder_lab import REHEARSAL, do, listening, short_folder, signed

import rrcluster as rr
from rrcluster import registry
from rrcluster.cli import main
from rrcluster.federation.unix_socket import SOCKET, ask_socket

ASKED = []


@contextlib.contextmanager
def open_couriers(reach):
    """A member at a time, and a note of every message."""

    class Couriers:
        def ask(self, messages):
            ASKED.append(sorted(messages))
            return {place: carry(place, content) for place, content in messages.items()}

        def stayed(self):
            return ()

    def carry(place, content):
        path = reach.members / reach.agreement.members[place].name / SOCKET
        return ask_socket(path, content, deadline=time.monotonic() + reach.seconds, longest=reach.longest)

    yield Couriers()


@pytest.fixture
def couriers():
    rr.register("transport", "couriers", open_couriers)
    yield
    registry.TRANSPORTS.unregister("couriers")


def test_rounds_over_a_transport_of_ones_own_give_the_same_models(couriers, capsys):
    models = []
    for name in ("couriers", "local"):
        with short_folder() as base:
            trial = signed(base, REHEARSAL, "--mode", "plain", counts=(5, 7))
            with listening([base / "m0", base / "m1"]):
                do("serve", trial, "--transport", name, "--members", base, "--quiet")
            models.append(rr.load(trial / "run").models.clustered)
    assert ASKED.count([0, 1]) >= REHEARSAL["num_rounds"]
    np.testing.assert_array_equal(*models)


def test_a_transport_that_is_not_known_is_refused_with_those_that_are(capsys):
    with short_folder() as base:
        trial = signed(base, REHEARSAL, "--mode", "plain", counts=(5,))
        assert main(["federation", "serve", str(trial), "--transport", "flowers"]) == 2
    assert "transport = 'flowers' is not known; did you mean flower?" in capsys.readouterr().err
