"""SAC with many critics, of which each step draws some, and an actor that waits, as in REDQ."""

import dataclasses
import itertools
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.api import LearnerState
from agents.ops.n_step import first_n_step_transitions
from agents.sac import SAC, actor_loss, build_sac, init, make_sac, sample_actions, target_values
from tests.unit.agents.test_sac import CONFIG, NETWORK, SPEC, N, sac_sample


def of_five_critics() -> tuple[SAC, LearnerState]:
    bound = build_sac(dataclasses.replace(CONFIG, num_critics=5, num_target_critics=2), SPEC, NETWORK)
    state = jax.jit(partial(init, bound))(jax.random.key(9))
    # Each critic has its own offset: its values show which one it is.
    offset = jax.tree.map(lambda leaf: leaf + jnp.arange(5.0).reshape(5, *(1,) * (leaf.ndim - 1)), state.extra.critic)
    return bound, dataclasses.replace(state, extra=dataclasses.replace(state.extra, target_critic=offset))


def test_targets_are_the_least_of_critics_drawn_at_each_step():
    bound, state = of_five_critics()
    observation, action = sac_sample().trajectory.observation[1], jnp.zeros((N, 2))
    each = np.asarray(jax.jit(bound.critics.values)(state.extra.target_critic, observation, action))
    pairs = {pair: np.minimum(each[pair[0]], each[pair[1]]) for pair in itertools.combinations(range(5), 2)}
    compute, drawn = jax.jit(partial(target_values, bound)), set()
    for number in range(60):
        got = np.asarray(compute(state.extra, observation, action, jax.random.key(number)))
        equal = {pair for pair, least in pairs.items() if np.allclose(got, least, rtol=1e-5)}
        assert equal, number  # one pair for all rows
        drawn |= equal
    assert drawn == set(pairs)


def test_with_drawn_critics_the_actor_climbs_the_mean_of_all():
    bound, state = of_five_critics()
    batch = first_n_step_transitions(sac_sample().trajectory, CONFIG.discount, CONFIG.n_step)
    critic = state.extra.target_critic
    value, metrics = jax.jit(partial(actor_loss, bound))(
        state.params["actor"], critic, state.extra.log_temperature, batch, jax.random.key(1)
    )
    action, log_prob = jax.jit(partial(sample_actions, bound))(
        state.params["actor"], batch.observation, jax.random.key(1)
    )
    q = np.asarray(jax.jit(bound.critics.values)(critic, batch.observation, action), np.float64).mean(0)
    counted = np.asarray(batch.weight) > 0
    expected = (0.5 * np.asarray(log_prob, np.float64) - q)[counted].mean()
    assert float(value) == pytest.approx(expected, rel=1e-4)
    assert float(metrics["loss/actor"]) == float(value)


def test_actor_and_temperature_wait_for_their_turn_of_three():
    agents = [make_sac(dataclasses.replace(CONFIG, policy_delay=delay), SPEC, NETWORK) for delay in (1, 3)]
    plain, delayed = (jax.jit(agent.update) for agent in agents)
    state = jax.jit(agents[0].init)(jax.random.key(0))
    for number in range(1, 7):
        key = jax.random.key(number)
        expected, (after, metrics, _) = plain(state, sac_sample(), key)[0], delayed(state, sac_sample(), key)
        chex.assert_trees_all_close(after.extra.critic, expected.extra.critic, rtol=1e-6)
        chex.assert_trees_all_close(after.extra.target_critic, expected.extra.target_critic, rtol=1e-6)
        if number % 3 == 0:
            chex.assert_trees_all_close(after, expected, rtol=1e-6)
        else:
            chex.assert_trees_all_equal(after.params["actor"], state.params["actor"])
            chex.assert_trees_all_equal(after.opt_state["actor"], state.opt_state["actor"])
            assert float(after.extra.log_temperature) == float(state.extra.log_temperature)
        assert np.isfinite(metrics["loss/actor"])
        state = after
