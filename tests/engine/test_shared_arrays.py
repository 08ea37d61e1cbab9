"""Messages whose arrays lie in shared memory."""

import os
from multiprocessing import Pipe

import numpy as np
import pytest

from rrcluster.engine.workers.shared_arrays import SharedArena, open_unnamed_file, receive_shared, send_shared


@pytest.fixture
def ends():
    """Both ends of a connection, each with an arena over the same file."""
    ours, theirs = Pipe()
    file = open_unnamed_file()
    with ours, theirs:
        yield (ours, SharedArena(file)), (theirs, SharedArena(file))
    os.close(file)


def messages(rng):
    large = rng.normal(size=(40, 30, 50))
    yield {"numbers": large, "ids": np.arange(3), "settings": (1, "sgd")}
    yield [large[:, ::2], large[:, :7].T, np.asfortranarray(large)]  # a view with gaps, and other orders
    yield [np.zeros((0, 5), np.float32), np.zeros(()), large[:1]]  # smaller than what was there before
    yield rng.normal(size=500_000)  # larger
    yield "nothing but words"


def test_messages_arrive_as_they_were_sent(ends, rng):
    sender, receiver = ends
    for message in messages(rng):
        send_shared(*sender, message)
        received = receive_shared(*receiver)
        np.testing.assert_equal(received, message)


def test_arrays_are_not_copied_on_arrival(ends):
    sender, receiver = ends
    send_shared(*sender, np.arange(10))
    received = receive_shared(*receiver)
    send_shared(*sender, np.arange(10) + 1)
    assert received.tolist() == list(range(1, 11))


def test_sending_does_not_wait_for_a_busy_receiver(ends, rng):
    """A megabyte would not fit into the connection itself; views with gaps are pickled, and go the same way."""
    sender, _ = ends
    for _ in range(3):
        send_shared(*sender, rng.normal(size=(1000, 300))[:, ::2])
