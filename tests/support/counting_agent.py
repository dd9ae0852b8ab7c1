"""An agent that learns nothing and sums up its inputs."""

import jax
import jax.numpy as jnp

from agents.api import LearnerState, Replay, ReplayAgent


def make_counting(replay: Replay) -> ReplayAgent:
    """Makes an agent whose `params` are an order-dependent sum of all samples; priorities are rewards of first steps."""

    def init(key):
        return LearnerState(jnp.zeros((3,)), jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32), {"inner": jnp.ones(2)})

    def update(state, sample, key):
        reward = sample.trajectory.reward
        seen = jnp.stack([reward.sum(), jax.random.uniform(key), sample.num_windows.astype(jnp.float32)])
        params = 0.5 * state.params + seen
        after = LearnerState(params, state.opt_state + 1, state.num_updates, {"inner": state.extra["inner"] * 1.5})
        rows = reward[0].reshape(-1, replay.agents_per_window)
        return after, {"loss": state.opt_state.astype(jnp.float32)}, 1.0 + rows[:, 0] % 7

    def act(params, observation, agent_state, is_first, keys, mode):
        raise NotImplementedError

    return ReplayAgent("counting", init, lambda rows: (), act, update, {}, replay)
