"""Equal problems under different declarations: updates of every algorithm of the catalog are the same in each of them.

Returns of agents that learn online are compared by tests/learning/test_declarations.py.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from agents.api import Mode, ReplayConfig, Sample
from agents.catalog import AGENTS
from agents.search.game import GameStep
from agents.transforms.normalization import NormalizationConfig
from envpool_bridge.spec.specs import ArraySpec
from tests.contract import replaying_agents, test_agents
from tests.contract.test_learning_rates import learned

LARGEST = 1_000
IN_SUITE = {("dqn", "int16"), ("ppo", "float32"), ("sac", "int16")}
FLOATS = ArraySpec((3,), "float32", -1.0, 1.0), ArraySpec((2,), "float32", -1.0, 1.0)
OTHERS = {
    "int16": (ArraySpec((3,), "int16", -LARGEST, LARGEST), ArraySpec((2,), "float32", 0.0, 100.0)),
    "float32": (ArraySpec((3,), "float32", -LARGEST, LARGEST), ArraySpec((2,), "float32", 0.0, 100.0)),
}


def _game(largest, dtype):
    def play(observation, move):
        state = observation["state"].at[move].add(1.0)
        board = jnp.round(state * largest / 10.0) if largest > 1 else state / 10.0
        after = {"action_mask": jnp.ones(3), "board": board.astype(dtype), "state": state}
        return GameStep(after, state.sum(), jnp.zeros((), bool))

    return lambda env_id: play


GAMES = {"small": _game(1, "float32"), "int16": _game(LARGEST, "int16"), "float32": _game(LARGEST, "float32")}
small_game, int16_game, float32_game = GAMES.values()


def _spec(name, observation, action):
    spec = replaying_agents.spec_of(name) if name in replaying_agents.REPLAYING else test_agents.ALONE
    spec = test_agents.TEAM if name == "coma" else spec
    action = action if name in replaying_agents.CONTINUOUS else spec.action
    leaf = "board" if name == "alphazero" else "observation"
    seen = {**spec.observation, leaf: observation} if isinstance(spec.observation, dict) else observation
    agents = tuple(dataclasses.replace(agent, observation=seen, action=action) for agent in spec.agents)
    return dataclasses.replace(spec, observation=seen, action=action, agents=agents)


def _agent(name, form, is_normalized):
    sizes = test_agents.SIZES.get(name, {}) | replaying_agents.SMALL.get(name, {})
    if name == "alphazero":
        sizes["game"] = f"tests.contract.test_declarations:{form}_game"
    if name in replaying_agents.REPLAYING:
        sizes["replay"] = ReplayConfig(batch_size=replaying_agents.WINDOWS)
    fields = {field.name for field in dataclasses.fields(AGENTS[name].config)}
    if is_normalized and "normalize_observations" in fields:
        sizes["normalize_observations"] = True
    if is_normalized and "normalization" in fields:
        sizes["normalization"] = NormalizationConfig(observations=True)
    core = {"core": "gru", "core_size": 4} if name == "r2d2" else {}
    network = dataclasses.replace(test_agents.NETWORK, **core)
    spec = _spec(name, *OTHERS.get(form, FLOATS))
    return AGENTS[name].make(AGENTS[name].config(total_updates=10, **sizes), spec, network)


def _data(name, agent, form):
    """Returns the same steps in one of the declarations."""
    sample = replaying_agents.sample_for(name, agent) if name in replaying_agents.REPLAYING else None
    steps = sample.trajectory if sample else test_agents.trajectory()
    leaf = {"alphazero": "board", "decision_transformer": "observation"}.get(name)
    numbers = np.round(np.clip((steps.observation[leaf] if leaf else steps.observation) / 4.0, -1.0, 1.0), 3)
    # Dreamer sees the logarithms of all numbers in their units.
    shown = np.rint(numbers * LARGEST) if form in OTHERS or name == "dreamer" else numbers
    shown = shown.astype("int16" if form == "int16" else "float32")
    seen = {**steps.observation, leaf: shown} if leaf else shown
    if name == "alphazero":
        seen["state"] = numbers.astype(np.float32) * 10.0
    action = steps.action
    if name in replaying_agents.CONTINUOUS:
        action = (action / 2.0 + 1.0) * 50.0 if form in OTHERS else action / 2.0
    version = np.ones_like(steps.policy_version)  # after the statistics that normalize
    steps = dataclasses.replace(steps, observation=seen, action=action, policy_version=version)
    return dataclasses.replace(sample, trajectory=steps) if sample else steps


def _learned(name, form, is_normalized):
    """Returns the first parameters, those after two updates, and greedy actions then, in the first declaration's unit."""
    agent = _agent(name, form, is_normalized)
    data, update = _data(name, agent, form), jax.jit(agent.update)
    first = after = jax.jit(agent.init)(jax.random.key(0))
    for key in range(2):
        after = update(after, data, jax.random.key(key))[0]
    steps = data.trajectory if isinstance(data, Sample) else data
    seen = jax.tree.map(lambda x: x[0], steps.observation)
    rows = steps.reward.shape[1]
    keys, memory = jax.random.split(jax.random.key(2), rows), agent.initial_agent_state(rows)
    action = agent.act(after.params, seen, memory, jnp.ones(rows, bool), keys, Mode.GREEDY)[0]
    action = action / 50.0 - 1.0 if name in replaying_agents.CONTINUOUS and form in OTHERS else action
    return learned(first), learned(after), action


def _distance(one, other):
    return float(optax.tree.norm(jax.tree.map(lambda x, y: x - y, one, other)))


@pytest.mark.parametrize(
    ("name", "form", "is_normalized"),
    [
        pytest.param(name, form, is_normalized, marks=() if (name, form) in IN_SUITE else pytest.mark.slow)
        for name in sorted(AGENTS)
        for form, is_normalized in (("int16", False), ("float32", True))
    ],
)
def test_updates_do_not_depend_on_the_declaration(name, form, is_normalized):
    (first, small, action), (_, other, same) = (_learned(name, each, is_normalized) for each in ("small", form))
    assert _distance(small, other) < 0.02 * _distance(small, first)
    np.testing.assert_allclose(action, same, atol=2e-3)
