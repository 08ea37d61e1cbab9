"""Correct code is not accused: every random check of every mechanism and mode, with a hundred seeds."""

import pytest
from false_alarms import alarms, random_steps


def test_every_mechanism_and_mode_is_tried():
    subjects = {step.subject for step in random_steps(0)}
    modes = ("w = 0", "w = C", "w = 16 C", "evaluation", "secure")
    assert {"joint", "identifier (gaussian)", "identifier (kary)", *(f"joint ({mode})" for mode in modes)} <= subjects


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100))
def test_correct_code_raises_no_alarm(seed):
    assert not alarms(seed)
