import os
import signal
import zlib

import numpy as np
import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a shell's background jobs


@pytest.fixture
def rng(request):
    """A generator of the test's own; its seed is printed when the test fails."""
    seed = zlib.crc32(request.node.nodeid.encode())
    print(f"rng seed: {seed}")
    return np.random.default_rng(seed)


@pytest.fixture
def fixed_entropy(rng, monkeypatch):
    """The operating system's generator, replaced by the test's own: tests of laws then do not fail by chance."""
    from rrcluster import entropy

    monkeypatch.setattr(entropy.os, "urandom", rng.bytes)


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    """Calibrations and downloads of the tests stay out of the user's cache, but are shared among tests."""
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base  # all processes of a test run share it
    monkeypatch.setenv("XDG_CACHE_HOME", str(base / "cache"))
    monkeypatch.delenv("COLUMNS", raising=False)  # tables are as wide as their columns ask for


@pytest.fixture(scope="session", autouse=True)
def first_names():
    """The names before any test or fixture registers one."""
    from rrcluster import registry

    return {kind: dict(names._all()) for kind, names in registry.KINDS.items()}


@pytest.fixture(autouse=True)
def own_names(first_names):
    """Names that a test, or a fixture of its module, registers are gone after it."""
    from rrcluster import registry

    yield
    for kind, names in registry.KINDS.items():
        names._entries = dict(first_names[kind])
