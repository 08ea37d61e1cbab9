"""Messages whose arrays lie in shared memory."""

import os
from itertools import pairwise
from multiprocessing import Pipe

import numpy as np
import pytest

from rrcluster.engine.workers.shared_arrays import SharedConnection, open_unnamed_file


@pytest.fixture
def ends():
    """Both ends of a connection."""
    ours, theirs = Pipe()
    files = [open_unnamed_file() for _ in range(4)]
    with ours, theirs:
        yield SharedConnection(ours, files[:2], files[2:]), SharedConnection(theirs, files[2:], files[:2])
    for file in files:
        os.close(file)


def messages(rng):
    large = rng.normal(size=(40, 30, 50))
    yield {"numbers": large, "ids": np.arange(3), "settings": (1, "sgd")}
    yield [large[:, ::2], large[:, :7].T, np.asfortranarray(large)]  # a view with gaps, and other orders
    yield [np.zeros((0, 5), np.float32), np.zeros(()), large[:1]]  # smaller than what was there before
    yield rng.normal(size=500_000)  # larger
    yield "nothing but words"


def test_messages_arrive_as_they_were_sent(ends, rng):
    for sender, receiver in (ends, ends[::-1]):
        for message in messages(rng):
            sender.send(message)
            np.testing.assert_equal(receiver.receive(), message)


def test_one_message_may_be_ahead(ends, rng):
    sender, receiver = ends
    sent = [*messages(rng), *messages(rng)]
    sender.send(sent[0])
    for before, after in pairwise(sent):
        sender.send(after)
        np.testing.assert_equal(receiver.receive(), before)


def test_arrays_are_not_copied_on_arrival(ends):
    sender, receiver = ends
    sender.send(np.arange(10))
    received = receiver.receive()
    sender.send(np.arange(20))
    assert received.tolist() == list(range(10)), "the next message has an arena of its own"
    sender.send(np.arange(10) + 1)
    assert received.tolist() == list(range(1, 11))


def test_sending_does_not_wait_for_a_busy_receiver(ends, rng):
    """A megabyte would not fit into the connection itself; views with gaps are pickled, and go the same way."""
    sender, _ = ends
    for _ in range(3):
        sender.send(rng.normal(size=(1000, 300))[:, ::2])
