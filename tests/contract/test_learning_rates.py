"""Learning rates, entropy coefficients and optimizers of every algorithm."""

import dataclasses
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from agents.catalog import AGENTS
from agents.ops.gradient_steps import make_update
from agents.ops.optimizers import OptimizerConfig
from agents.ops.schedules import ScheduleConfig, get_factors, set_factor
from tests.contract import replaying_agents, test_agents

TOTAL = 10


def agent_and_batch(name, **changes) -> tuple[Any, Any]:
    if name in replaying_agents.REPLAYING:
        agent = replaying_agents.agent_of(name, **changes)
        return agent, replaying_agents.sample_for(name, agent)
    spec = test_agents.TEAM if name == "coma" else test_agents.ALONE
    config = AGENTS[name].config(total_updates=TOTAL, **test_agents.SIZES.get(name, {}), **changes)
    return AGENTS[name].make(config, spec, test_agents.NETWORK), test_agents.trajectory()


def learned(state):
    """Parameters that optimizers move."""
    own = state.params.get("agent", state.params)  # without statistics of observations
    data = ("epsilon", "acts_uniformly", "best_return", "return_scale")
    params = {name: leaf for name, leaf in own.items() if name not in data}
    return params, getattr(state.extra, "critic", ())


@pytest.fixture(scope="module", params=sorted(AGENTS))
def decaying(request):
    """An agent's compiled update with a learning rate that falls to 0, its first state, and a batch."""
    agent, batch = agent_and_batch(request.param, learning_rate_schedule=ScheduleConfig("linear"))
    return jax.jit(agent.update), jax.jit(agent.init)(jax.random.key(0)), batch


def test_no_parameter_moves_once_the_learning_rate_is_zero(decaying):
    update, first, batch = decaying
    state = dataclasses.replace(first, num_updates=jnp.int32(TOTAL))
    after, metrics = update(state, batch, jax.random.key(1))[:2]
    assert float(metrics["learning_rate"]) == 0.0
    chex.assert_trees_all_equal(learned(after), learned(state))


def test_batches_in_which_no_step_counts_move_nothing(decaying):
    update, state, batch = decaying
    for seed in range(3):
        state = update(state, batch, jax.random.key(seed))[0]  # gives the optimizers moments
    steps = getattr(batch, "trajectory", batch)
    # Dreamer's model learns the first observations of episodes, too.
    empty = dataclasses.replace(steps, valid=np.zeros_like(steps.valid), is_first=np.zeros_like(steps.is_first))
    empty = empty if steps is batch else dataclasses.replace(batch, trajectory=empty)
    after = state
    for seed in range(3, 5):  # TD3's actor moves in every second step
        after = update(after, empty, jax.random.key(seed))[0]
    chex.assert_trees_all_equal(kept(after), kept(state))


def kept(state):
    """All but counters, targets, which follow, and PPG's trajectories."""
    leaves = jax.tree_util.tree_leaves_with_path((state.params, state.opt_state, state.extra))
    named = {jax.tree_util.keystr(path): leaf for path, leaf in leaves}
    follows = ("target", "slow_value", "num_gradient_steps", "memory")
    return {name: leaf for name, leaf in named.items() if not any(word in name for word in follows)}


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


WITH_ENTROPY = sorted(name for name, entry in AGENTS.items() if hasattr(entry.config(), "entropy_coef"))


def test_algorithms_with_an_entropy_bonus():
    assert WITH_ENTROPY == ["a2c", "coma", "dreamer", "impala", "ppg", "ppo", "reinforce"]


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in WITH_ENTROPY if name != "dreamer"])  # whose first steps are tiny
def test_entropy_factor_equals_another_coefficient(name):
    """A factor of 1/4 learns what a quarter of the coefficient does, in one program and in parts, and stays."""
    (agent, batch), (quarter, _) = (agent_and_batch(name, entropy_coef=coef, learning_rate=0.1) for coef in (0.8, 0.2))
    first = jax.jit(agent.init)(jax.random.key(0))
    changed = dataclasses.replace(first, extra=set_factor(first.extra, "entropy_coef_factor", 0.25))
    updates = [jax.jit(agent.update)]
    if getattr(agent, "gradient_steps", None):
        updates.append(jax.jit(make_update(agent.gradient_steps)))
    expected = jax.jit(quarter.update)(first, batch, jax.random.key(1))[0]
    for update in updates:
        after = update(changed, batch, jax.random.key(1))[0]
        chex.assert_trees_all_close(learned(after)[0], learned(expected)[0], rtol=1e-4, atol=1e-6)
        assert float(get_factors(after.extra)["entropy_coef_factor"]) == 0.25
    other = updates[0](first, batch, jax.random.key(1))[0]
    moved = jax.tree.map(lambda x, y: float(jnp.abs(x - y).max()), learned(other)[0], learned(expected)[0])
    assert max(jax.tree.leaves(moved)) > 1e-5
