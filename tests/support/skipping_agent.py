"""An agent whose parameters become NaN in chosen updates."""

import dataclasses

import jax.numpy as jnp

from agents.api import Agent, LearnerState, OnPolicy
from jaxsrl.learner.finite_updates import with_finite_updates


def make_skipping(*nonfinite: int) -> Agent:
    """Returns an agent that always takes action 0 and counts its updates, of which those with these numbers are skipped."""

    def act(params, observation, agent_state, is_first, keys, mode):
        return jnp.zeros(is_first.shape, jnp.int32), {}, ()

    def update(state, batch, key):
        is_bad = jnp.isin(state.num_updates, jnp.asarray(nonfinite, jnp.int32))
        params = jnp.where(is_bad, jnp.nan, state.params + 1.0)
        state = dataclasses.replace(state, params=params, num_updates=state.num_updates + 1)
        return state, {"loss": jnp.float32(0.0)}

    def init(key):
        return LearnerState(jnp.float32(0.0), (), jnp.int32(0))

    return with_finite_updates(Agent("skipping", init, lambda num_rows: (), act, update, {}, OnPolicy()))
