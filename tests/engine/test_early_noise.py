"""Noise that a thread draws ahead is the noise of the run's own streams, whatever else is drawn."""

import numpy as np

from rrcluster.rng import Streams
from rrcluster.simulation.simulate import EarlyNoise


def test_every_round_has_the_numbers_of_its_own_stream():
    early, plain = EarlyNoise(Streams(3)), Streams(3)
    for t in range(4):
        rng, own = early("release", t), plain("release", t)
        assert (rng.standard_normal(50) == own.standard_normal(50)).all()
        assert rng.random() == own.random()  # goes on where the draw ended


def test_a_round_that_is_asked_for_twice_is_drawn_once_and_repeated_after_use():
    early, plain = EarlyNoise(Streams(3)), Streams(3)
    assert early("release", 0) is early("release", 0)
    first = early("release", 0).standard_normal(9)
    assert (early("release", 0).standard_normal(9) == first).all()
    assert (plain("release", 0).standard_normal(9) == first).all()


def test_another_first_draw_than_expected_is_that_of_the_stream():
    early, plain = EarlyNoise(Streams(3)), Streams(3)
    early("release", 0).standard_normal(50)
    assert early("release", 1).random() == plain("release", 1).random()
    assert (early("release", 2).standard_normal(7) == plain("release", 2).standard_normal(7)).all()
    assert np.array_equal(early("release", 3).standard_normal(7), plain("release", 3).standard_normal(7))
    assert early("cohort", 1).random() == plain("cohort", 1).random()
    assert early.client_key("coin", 2) == plain.client_key("coin", 2)
