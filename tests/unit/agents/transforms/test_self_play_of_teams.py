"""Self-play with a policy for each team: slots act with both policies, and each learns from its own rows."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from agents.api import Mode
from agents.networks.config import NetworkConfig
from agents.ppo import PPOConfig, make_ppo
from agents.transforms.multi_policy import make_policies
from agents.transforms.self_play import make_self_play
from tests.unit.agents.transforms.test_self_play import (
    CONFIG,
    ROWS,
    SPEC,
    act,
    collected,
    different_slots,
    jitted,
    trees_equal,
)


def policy_of_each_team():
    return make_policies(
        SPEC,
        {"red_*": "red", "*": "blue"},
        lambda spec: make_ppo(PPOConfig(num_epochs=1, num_minibatches=2), spec, NetworkConfig(hidden_sizes=(8,))),
    )


def test_each_policy_acts_and_learns_for_its_team_alone():
    plain = policy_of_each_team()
    agent = make_self_play(plain, SPEC, CONFIG, ROWS)
    state, slots = different_slots(agent, plain=plain)
    rows = agent.initial_agent_state(ROWS)
    (action, extras, _), observation, keys = act(agent, state.params, rows)
    controller, is_red = np.asarray(rows["controller"]), np.arange(ROWS) % 2 == 0
    for player, params in enumerate([state.params["learner"], *slots], start=-1):
        own, first = controller == player, jnp.zeros(ROWS, bool)
        theirs = jitted(plain.act)(params, observation, rows["policy"], first, keys, Mode.SAMPLE)
        np.testing.assert_array_equal(action[own], theirs[0][own])
        for name, values in theirs[1].items():
            np.testing.assert_allclose(extras[name][own], values[own], rtol=1e-5)
    batch, update = collected(agent, state.params), jax.jit(agent.update)
    base = update(state, batch, jax.random.key(5))[0].params["learner"]
    for noisy, learns in (
        (controller >= 0, ()),
        ((controller < 0) & is_red, "red"),
        ((controller < 0) & ~is_red, "blue"),
    ):
        changed = dataclasses.replace(batch, reward=batch.reward + jnp.where(jnp.asarray(noisy), batch.reward, 0.0))
        learned = update(state, changed, jax.random.key(5))[0].params["learner"]
        assert [name for name in ("red", "blue") if not trees_equal(base[name], learned[name])] == [learns] * bool(
            learns
        )
