"""A run from a checkpoint whose episodes cannot be continued, or of an earlier version."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.api import LearnerState, ReplayConfig
from agents.dqn import DQNConfig, make_dqn
from agents.networks.config import NetworkConfig
from agents.ops.schedules import init_factors
from agents.ppo import PPOConfig, make_ppo
from agents.transforms.multi_policy import LearningGroup
from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.errors import UserError
from jaxsrl.learner.learning_agent import learning_agent
from jaxsrl.training.run_state import (
    cut_experience,
    from_arrays,
    restore_state,
    state_to_arrays,
    validate_learner,
)

FACTOR = "learner.extra['entropy_coef_factor']"


def test_restarted_environments_use_unused_episode_seeds():
    spec = EnvConfig("CartPole-v1").source().spec()
    agent = make_ppo(PPOConfig(), spec, NetworkConfig(hidden_sizes=(4,)))
    arrays = state_to_arrays(agent.init(jax.random.key(0)))
    for steps in (0, 12, 40):
        found = from_arrays(agent, jax.random.key(0), {**arrays, "steps": np.array(steps)}, 3, 4, spec)
        # After `steps` steps, a row is in an episode of a number below that.
        assert found.reset.episodes == (steps,) * 3
        np.testing.assert_array_equal(found.log.episodes, found.reset.episodes)


def replaying(num_rows, next_step):
    """An agent with a full ring of 16 valid steps on the device, and its state."""
    spec = EnvConfig("CartPole-v1").source().spec()
    config = DQNConfig(replay=ReplayConfig(capacity=16 * num_rows, batch_size=4, min_size=16), total_updates=9)
    agent = learning_agent(make_dqn(config, spec, NetworkConfig(hidden_sizes=(4,))), spec, num_rows, 4)
    state = jax.jit(agent.init)(jax.random.key(0))
    buffer = state.extra.buffer
    position = dataclasses.replace(buffer.selection.position, next_step=jnp.int32(next_step))
    storage = dataclasses.replace(buffer.storage, valid=jnp.ones_like(buffer.storage.valid))
    selection = dataclasses.replace(buffer.selection, position=position)
    buffer = dataclasses.replace(buffer, storage=storage, selection=selection)
    return agent, dataclasses.replace(state, extra=dataclasses.replace(state.extra, buffer=buffer))


@pytest.mark.parametrize(("next_step", "newest"), [(8, 7), (0, 15)])
def test_newest_steps_of_rows_that_moved_are_cut(next_step, newest):
    agent, state = replaying(2, next_step)
    valid = cut_experience(agent, state, np.array([False, True])).extra.buffer.storage.valid
    assert np.argwhere(~np.asarray(valid)).tolist() == [[newest, 1]]
    assert valid.sharding == state.extra.buffer.storage.valid.sharding
    # Of three agents an environment, the second and the third learn with this policy.
    agent = agent._replace(groups=(LearningGroup("a", (1, 2), 3, agent.update),))
    several = dataclasses.replace(state, extra={"a": state.extra, "frozen": ()})
    extra: Any = cut_experience(agent, several, np.array([True, False, True])).extra
    assert np.argwhere(~np.asarray(extra["a"].buffer.storage.valid)).tolist() == [[newest, 1]]
    assert extra["frozen"] == ()


def test_checkpoint_from_before_a_factor_continues_with_one():
    init = lambda _: LearnerState({}, (), jnp.int32(3), {"target": jnp.float32(2.0), **init_factors("entropy_coef")})  # noqa: E731
    agent: Any = SimpleNamespace(init=init)
    arrays = state_to_arrays(init(None))
    changed = restore_state(agent, jax.random.key(0), {**arrays, FACTOR: np.float32(0.5)})
    assert changed.extra == {"target": 2.0, "entropy_coef_factor": 0.5}
    del arrays[FACTOR]
    validate_learner(agent, jax.random.key(0), {name: (x.shape, x.dtype) for name, x in arrays.items()})
    assert restore_state(agent, jax.random.key(0), arrays).extra == {"target": 2.0, "entropy_coef_factor": 1.0}
    with pytest.raises(UserError, match="target"):
        restore_state(agent, jax.random.key(0), {name: x for name, x in arrays.items() if "target" not in name})
