"""Rows of members that were resumed without theirs."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from jaxsrl.device_loop.program import make_run_keys
from jaxsrl.envs.cartpole import CartPole
from jaxsrl.many_seeds.program import MembersProgram, MemberStart
from tests.support.skipping_agent import make_skipping


def test_restarted_rows_are_in_unused_episodes():
    agent = make_skipping()
    keys = make_run_keys(0, jax.random.key(1), jax.random.key(2), 2)
    states = [dataclasses.replace(agent.init(None), num_updates=jnp.int32(updates)) for updates in (0, 6)]
    starts = [MemberStart(state, keys, None, {}) for state in states]
    program = MembersProgram(lambda values: agent, CartPole(), 4, starts, jax.local_devices()[:1])
    np.testing.assert_array_equal(program._rows.envs.episode, [[0, 0], [24, 24]])
