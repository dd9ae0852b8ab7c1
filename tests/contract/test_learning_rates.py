"""Learning rates and optimizers of every algorithm: a schedule that has reached 0, and clipped plain steps."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from agents.catalog import AGENTS
from agents.ops.optimizers import OptimizerConfig
from agents.ops.schedules import ScheduleConfig
from tests.contract import replaying_agents, test_agents

TOTAL = 10


def agent_and_batch(name, **changes):
    if name in replaying_agents.REPLAYING:
        agent = replaying_agents.agent_of(name, **changes)
        return agent, replaying_agents.sample_for(name, agent)
    spec = test_agents.TEAM if name == "coma" else test_agents.ALONE
    config = AGENTS[name].config(total_updates=TOTAL, **test_agents.SIZES.get(name, {}), **changes)
    return AGENTS[name].make(config, spec, test_agents.NETWORK), test_agents.trajectory()


def learned(state):
    """Parameters that optimizers move."""
    own = state.params.get("agent", state.params)  # without statistics of observations
    params = {name: leaf for name, leaf in own.items() if name not in ("epsilon", "acts_uniformly", "best_return")}
    return params, getattr(state.extra, "critic", ())


@pytest.mark.parametrize("name", sorted(AGENTS))
def test_no_parameter_moves_once_the_learning_rate_is_zero(name):
    agent, batch = agent_and_batch(name, learning_rate_schedule=ScheduleConfig("linear"))
    state = dataclasses.replace(jax.jit(agent.init)(jax.random.key(0)), num_updates=jnp.int32(TOTAL))
    after, metrics = jax.jit(agent.update)(state, batch, jax.random.key(1))[:2]
    assert float(metrics["learning_rate"]) == 0.0
    chex.assert_trees_all_equal(learned(after), learned(state))


@pytest.mark.parametrize("name", ["ddpg", "maddpg", "sac", "td3"])
def test_steps_of_actor_critics_have_the_clipped_length(name):
    limit, rates = 1e-3, {"actor_learning_rate": 0.5, "critic_learning_rate": 0.25}
    agent, batch = agent_and_batch(name, optimizer=OptimizerConfig("sgd", max_grad_norm=limit), **rates)
    state = jax.jit(agent.init)(jax.random.key(0))
    after = jax.jit(agent.update)(state, batch, jax.random.key(1))[0]
    for before, now, rate in (
        (state.extra.critic, after.extra.critic, 0.25),
        (state.params["actor"], after.params["actor"], 0.0 if name == "td3" else 0.5),  # TD3 delays its actor
    ):
        length = optax.tree.norm(jax.tree.map(lambda x, y: x - y, before, now))
        np.testing.assert_allclose(length, rate * limit, rtol=1e-2)
