"""A cue that must be remembered: networks with memory learn to name it, one without provably cannot."""

from dataclasses import replace
from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest

from agents.networks.actor_critic import make_actor_critic
from agents.networks.config import NetworkConfig
from agents.ppo import PPOConfig, make_ppo
from jaxsrl.evaluation.evaluate import evaluate
from tests.learning.probe_runs import DISCOUNT, probe_source, trained

AGENT = PPOConfig(
    discount=DISCOUNT,
    gae_lambda=0.95,
    entropy_coef=0.01,
    num_minibatches=2,
    chunk_length=8,
    burn_in=4,
)


def learnt(directory, network, updates, learning_rate=3e-3):
    source = probe_source("RememberCue")
    make_agent = partial(make_ppo, replace(AGENT, learning_rate=learning_rate), network=network)
    spec, agent, params = trained(directory, source, make_agent, rows=32, steps=16, updates=updates)
    return evaluate(agent, params, source, episodes=100, seed=1).mean_return, make_actor_critic(network, spec), params


@pytest.mark.slow
@pytest.mark.parametrize(
    ("core", "updates", "learning_rate"),
    [
        ("gru", 150, 3e-3),
        ("lstm", 150, 3e-3),
        ("gtrxl", 300, 1e-3),
    ],  # attention does not learn the cue at a rate of 3e-3
    ids=["gru", "lstm", "gtrxl"],
)
def test_recurrent_network_learns_the_cue_and_its_value(tmp_path, core, updates, learning_rate):
    heads = {"core_heads": 2, "core_memory": 4} if core == "gtrxl" else {}
    network = NetworkConfig(hidden_sizes=(16,), core=core, core_size=16, **heads)
    mean_return, net, params = learnt(tmp_path, network, updates, learning_rate)
    assert mean_return == 1.0
    observation = np.zeros((4, 2, 1), np.float32)
    observation[0, :, 0] = (-1.0, 1.0)
    is_first = np.arange(4)[:, None] == np.zeros((1, 2), int)
    _, value, _ = net.unroll(params, jnp.asarray(observation), net.initial_state(2), jnp.asarray(is_first))
    np.testing.assert_allclose(value, np.repeat(DISCOUNT ** np.array([3, 2, 1, 0])[:, None], 2, 1), atol=0.1)


@pytest.mark.slow
def test_a_network_without_memory_cannot(tmp_path):
    mean_return, _, _ = learnt(tmp_path, NetworkConfig(hidden_sizes=(16,)), 60)
    assert abs(mean_return) < 0.5  # a fair coin over 100 episodes: five standard deviations
