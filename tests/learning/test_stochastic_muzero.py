"""Stochastic MuZero tells the sides of a tossed coin apart, which decides whether tossing it pays."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.api import Mode, ReplayConfig
from agents.networks.config import NetworkConfig
from agents.ops.two_hot import two_hot_mean
from agents.search.puct import PUCTConfig
from agents.stochastic_muzero import StochasticMuZeroConfig, build_stochastic_muzero, make_stochastic_muzero
from tests.learning.probe_runs import BEST_ACTIONS, DISCOUNT, VALUES, probe_source, trained

CONFIG = StochasticMuZeroConfig(
    replay=ReplayConfig(capacity=4_096, batch_size=64, min_size=256, gradient_steps_per_env_step=0.25),
    puct=PUCTConfig(24),
    num_outcomes=4,
    latent_size=16,
    value_limit=5,
    unroll_steps=3,
    n_step=2,
    discount=DISCOUNT,
    target_update_period=10,
    learning_rate=3e-3,
    total_updates=200,
)
NETWORK = NetworkConfig(hidden_sizes=(32,), activation="relu", layer_norm=True)


def learned(tmp_path, probe):
    """(algorithm, agent, parameters) after training on a probe."""
    make_agent = partial(make_stochastic_muzero, CONFIG, network=NETWORK)
    spec, agent, params = trained(
        tmp_path, probe_source(probe), make_agent, rows=16, steps=8, updates=CONFIG.total_updates
    )
    return build_stochastic_muzero(CONFIG, spec, NETWORK), agent, params


def played(agent, params, observations):
    """Greedy actions and values of a search from each observation."""
    keys = jax.random.split(jax.random.key(0), len(observations))
    action, extras, _ = agent.act(params, observations, (), np.ones(len(observations), bool), keys, Mode.GREEDY)
    return action.tolist(), extras["root_value"]


@pytest.mark.slow
def test_the_sides_of_a_tossed_coin_are_told_apart(tmp_path):
    muzero, agent, params = learned(tmp_path, "TossedCoin")
    network, net = params["network"], muzero.net
    start, sides = jnp.zeros((2, 1)), jnp.array([[-1.0], [1.0]])
    outcomes = net.encode(network, start, sides).argmax(-1)
    assert outcomes[0] != outcomes[1]
    after = net.decide(network, net.represent(network, start), jax.nn.one_hot(jnp.ones(2, jnp.int32), 2))
    np.testing.assert_allclose(jax.nn.softmax(after.outcome)[jnp.arange(2), outcomes], 0.5, atol=0.15)
    state, _ = net.advance(network, after.latent, jax.nn.one_hot(outcomes, CONFIG.num_outcomes))
    assert net.predict(network, state).policy.argmax(-1).tolist() == [0, 1]
    actions, values = played(agent, params, jnp.concatenate([start[:1], sides]))
    assert actions == [1, 0, 1]
    np.testing.assert_allclose(values, [DISCOUNT, 1.0, 1.0], atol=0.15)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["DiscountedReward", "MatchObservation", "EndsByTask", "EndsByClock"])
def test_values_and_actions_of_a_probe_are_learned(tmp_path, name):
    muzero, agent, params = learned(tmp_path, name)
    observations = jnp.array(list(VALUES[name]))[:, None]
    prediction = muzero.net.predict(params["network"], muzero.net.represent(params["network"], observations))
    # The value is that of acting, which explores: of two actions the other one costs 2, and EndsByClock is worth 10.
    tolerance = {"MatchObservation": 0.25, "EndsByClock": 0.5}.get(name, 0.15)
    np.testing.assert_allclose(two_hot_mean(prediction.value), list(VALUES[name].values()), atol=tolerance)
    if name in BEST_ACTIONS:
        assert played(agent, params, observations)[0] == list(BEST_ACTIONS[name].values())
