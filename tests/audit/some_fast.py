"""Parameters of which a few run in the fast suite, and all of them in the slow one (`make slow`)."""

import pytest


def some_fast(names, *, one_in):
    """One in so many, the first among them, without the mark `slow`."""
    return [
        pytest.param(name, id=getattr(name, "name", str(name)), marks=[pytest.mark.slow] if place % one_in else [])
        for place, name in enumerate(names)
    ]
