"""Reanalysis of MuZero: which windows of a sample are searched again, and with what result."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.api import Sample
from agents.muzero import build_muzero, make_muzero, reanalyze
from agents.networks.model_search import recorded_search
from agents.ops.target_update import TargetNetwork
from agents.search.model import SearchResult
from tests.unit.agents.test_muzero import ACTIONS, CONFIG, DISCRETE, NETWORK, K, L, N, windows

CALLS = 60


def sample_of(agent):
    window = jax.tree.map(jnp.asarray, windows(agent, DISCRETE))
    return Sample(window, jnp.ones(N), jnp.array(N))


def search_for_the_observation(params, observation, keys, temperature):
    """Stands for a search: its results tell which observations it was given."""
    del params, keys, temperature
    first = observation[:, 0]
    return SearchResult((), jnp.stack([first] * ACTIONS, axis=-1), first, ()), None


@pytest.mark.parametrize(("fraction", "count"), [(0.5, N // 2), (0.01, 1), (1.0, N)])
def test_every_place_of_a_sample_is_reanalyzed_as_often(fraction, count):
    """A mixed sample has the windows of a dataset at its end."""
    config = dataclasses.replace(CONFIG, reanalyze_fraction=fraction)
    muzero, agent = build_muzero(config, DISCRETE, NETWORK), make_muzero(config, DISCRETE, NETWORK)
    sample = sample_of(agent)
    given, observed = sample.trajectory.extras, sample.trajectory.observation[:-1, :, 0]
    step = jax.jit(partial(reanalyze, muzero._replace(search=search_for_the_observation), {}, TargetNetwork((), ())))
    times = np.zeros(N)
    for number in range(CALLS):
        root_value = np.asarray(step(sample, jax.random.key(number)).trajectory.extras["root_value"])
        is_searched = root_value[0] == observed[0]
        assert is_searched.sum() == count
        expected = np.where(is_searched, observed[: K + 1], given["root_value"][: K + 1])
        np.testing.assert_array_equal(root_value[: K + 1], expected)
        np.testing.assert_array_equal(root_value[K + 1 :], given["root_value"][K + 1 :])
        times += is_searched
    assert times.min() >= CALLS * count / N / 4


def test_reanalysis_searches_with_the_target_network():
    config = dataclasses.replace(CONFIG, reanalyze_fraction=0.5)
    muzero, agent = build_muzero(config, DISCRETE, NETWORK), make_muzero(config, DISCRETE, NETWORK)
    target, sample, key = agent.init(jax.random.key(0)).extra, sample_of(agent), jax.random.key(3)
    renewed = reanalyze(muzero, {}, target, sample, key).trajectory.extras
    choice_key, search_key = jax.random.split(key)
    chosen = jax.random.permutation(choice_key, N)[: N // 2]
    flat = jax.tree.map(lambda leaf: leaf[: K + 1, chosen].reshape(-1, 4), sample.trajectory.observation)
    keys = jax.random.split(search_key, N // 2 * (K + 1))
    expected = recorded_search(*muzero.search(target.target, flat, keys, jnp.ones(())))
    for name, values in expected.items():
        shape = (K + 1, N // 2, *values.shape[1:])
        np.testing.assert_allclose(renewed[name][: K + 1, chosen], values.reshape(shape), atol=1e-6)
    assert len(agent.data.transforms) == 1
    assert make_muzero(CONFIG, DISCRETE, NETWORK).data.transforms == ()
    assert L > K + 1
