"""Discrete BCQ against its formulas written out, and the actions that its behavior policy leaves."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from agents.api import Mode
from agents.networks.config import NetworkConfig
from agents.networks.q_network import QNetwork
from agents.offline.discrete_bcq import DiscreteBCQConfig, build_discrete_bcq, likely_actions, make_discrete_bcq
from agents.ops.optimizers import OptimizerConfig
from envpool_bridge.errors import UserError
from tests.support.offline_steps import (
    DISCRETE,
    KEY,
    NETWORK,
    RATE,
    REPLAY,
    SPEC,
    N,
    adam,
    assert_close,
    mean,
    parts,
    sample_of,
    start,
)


def test_a_step_is_that_of_its_equations():
    config = DiscreteBCQConfig(
        REPLAY, learning_rate=RATE, discount=0.9, threshold=0.9, optimizer=OptimizerConfig(epsilon=1e-8)
    )
    agent, bcq = make_discrete_bcq(config, DISCRETE, NETWORK), build_discrete_bcq(config, DISCRETE, NETWORK)
    state, sample = start(agent), sample_of(DISCRETE)
    observation, _, reward, going, following, weight = parts(sample)
    action = sample.trajectory.action[0]

    def q(params, at):
        return bcq.dqn.net.outputs(params, at, None)[..., 0]

    def probability(params, at):
        return jax.nn.softmax(bcq.behavior.outputs(params["behavior"], at, None)[..., 0])

    def best(params):
        p = probability(params, following)
        allowed = p / p.max(axis=1, keepdims=True) > 0.9
        return jnp.argmax(jnp.where(allowed, q(params, following), -1e8), axis=1)

    def loss(params):
        chosen = q(params, observation)[jnp.arange(N), action]
        next_value = jax.lax.stop_gradient(q(state.extra.target, following)[jnp.arange(N), best(params)])
        huber = optax.losses.huber_loss(chosen, reward + 0.9 * going * next_value, delta=1.0)
        logits = bcq.behavior.outputs(params["behavior"], observation, None)[..., 0]
        negative = -jnp.log(probability(params, observation)[jnp.arange(N), action])
        return mean(huber, weight) + mean(negative, weight) + 0.01 * mean((logits**2).mean(axis=1), weight)

    unrestricted = jnp.argmax(q(state.params["network"], following), axis=1)
    assert not np.array_equal(best(state.params["network"]), unrestricted)
    after, metrics, _ = jax.jit(agent.update)(state, sample, KEY)
    value, gradient = jax.jit(jax.value_and_grad(loss))(state.params["network"])
    assert_close(metrics["loss/total"], value)
    assert_close(after.params["network"], adam(state.params["network"], gradient))


def behavior_of(probabilities, legal):
    logits = jnp.log(jnp.array(probabilities))[..., None]
    return QNetwork(None, lambda params, o, noise: logits, None, None, lambda params, o: legal, 3, False)


@pytest.mark.parametrize(
    ("threshold", "legal", "expected"),
    [
        (0.0, None, [True, True, True]),
        (0.3, None, [True, True, False]),
        (0.7, None, [True, False, False]),
        (1.0, None, [True, False, False]),
        (0.3, jnp.array([0, 1, 1]), [False, True, True]),  # relative to the best legal action
        (0.0, jnp.array([0, 1, 0]), [False, True, False]),
    ],
)
def test_actions_are_likely_relative_to_the_most_probable_one(threshold, legal, expected):
    likely = likely_actions(behavior_of([0.6, 0.3, 0.1], legal), threshold, None, None)
    np.testing.assert_array_equal(likely, expected)


def test_unlikely_actions_are_never_taken():
    config = DiscreteBCQConfig(REPLAY, threshold=1.0, epsilon_start=1.0, epsilon_end=1.0)
    agent, bcq = make_discrete_bcq(config, DISCRETE, NETWORK), build_discrete_bcq(config, DISCRETE, NETWORK)
    state, observation = start(agent), sample_of(DISCRETE).trajectory.observation[0]
    behavior = bcq.behavior.outputs(state.params["network"]["behavior"], observation, None)[..., 0]
    values = bcq.dqn.net.outputs(state.params["network"], observation, None)[..., 0]
    assert not np.array_equal(behavior.argmax(axis=1), values.argmax(axis=1))
    for mode in Mode:
        action, _, _ = agent.act(state.params, observation, (), jnp.zeros(N, bool), jax.random.split(KEY, N), mode)
        np.testing.assert_array_equal(action, behavior.argmax(axis=1))


def test_what_does_not_fit_is_rejected():
    with pytest.raises(UserError, match="expected one Discrete action"):
        make_discrete_bcq(DiscreteBCQConfig(), SPEC, NETWORK)
    with pytest.raises(UserError, match=r"expected network.core 'none', got 'gru'"):
        make_discrete_bcq(DiscreteBCQConfig(), DISCRETE, NetworkConfig(core="gru"))
    with pytest.raises(UserError, match=r"threshold must lie in \[0, 1\]"):
        DiscreteBCQConfig(threshold=1.5)
