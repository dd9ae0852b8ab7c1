"""A run from a checkpoint whose episodes cannot be continued, or of an earlier version."""

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.api import LearnerState
from agents.networks.config import NetworkConfig
from agents.ops.schedules import init_factors
from agents.ppo import PPOConfig, make_ppo
from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.errors import UserError
from jaxsrl.training.run_state import from_arrays, restore_state, state_to_arrays, validate_learner

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
