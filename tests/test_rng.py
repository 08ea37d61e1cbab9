import numpy as np
import pytest
import torch

from rrcluster.rng import Streams, client_uniforms, client_words, stream


def test_philox_known_answer():
    # Random123's published vector for philox4x32-10 with counter and key zero.
    words = client_words((0, 0), np.array([0]), 4)[0]
    assert [f"{int(word):08x}" for word in words] == ["6627e8d5", "e169c58d", "bc57ac4c", "9b00dbd8"]


def test_torch_and_numpy_draw_the_same_bits():
    key = Streams(3).client_key("batches", 5)
    clients = np.array([0, 1, 5, 2**40 + 3], dtype=np.int64)
    ours = client_words(key, clients, 7)
    theirs = client_words(key, torch.from_numpy(clients), 7, like=torch.arange(2))
    assert (ours == theirs.numpy()).all()


def test_a_clients_draws_do_not_depend_on_its_cohort():
    key = Streams(0).client_key("coin", 2)
    alone = client_uniforms(key, np.array([17]), 5)
    among = client_uniforms(key, np.array([3, 17, 900]), 5)
    assert (alone[0] == among[1]).all()


def test_streams_are_named_and_two_seeds_share_none():
    def head(seed, name, *key):
        return tuple(stream(seed, name, *key).integers(2**63, size=4))

    names = [(name, t) for name in ("cohort", "coin", "release", "init", "batches") for t in range(20)]
    heads = [head(seed, *name) for seed in (0, 1) for name in names]
    assert len(set(heads)) == len(heads)
    assert head(0, "cohort", 1) == head(0, "cohort", 1)
    keys = [Streams(seed).client_key(*name) for seed in (0, 1) for name in names]
    assert len(set(keys)) == len(keys)


def test_a_key_is_not_the_concatenation_of_its_parts():
    assert stream(1, "a", 23).integers(2**63) != stream(1, "a", 2, 3).integers(2**63)
    assert stream(1, "a2", 3).integers(2**63) != stream(1, "a", 23).integers(2**63)


def test_uniforms_are_uniform():
    draws = client_uniforms(Streams(1).client_key("coin", 0), np.arange(100_000))[:, 0]
    counts = np.histogram(draws, bins=50, range=(0, 1))[0]
    assert ((counts - 2000) ** 2 / 2000).sum() < 110  # chi-square, 49 degrees of freedom: p about 1e-6
    assert draws.min() > 0
    assert draws.max() < 1


@pytest.mark.parametrize("count", [1, 4, 5])
def test_an_empty_cohort_draws_nothing(count):
    """Regression: a Poisson cohort can be empty, and the round then raised instead of releasing noise."""
    nobody = np.zeros(0, dtype=np.int64)
    assert client_uniforms((1, 2), nobody, count).shape == (0, count)
    like = torch.arange(2)
    assert tuple(client_words((1, 2), torch.as_tensor(nobody), count, like).shape) == (0, count)
