"""Equal problems under different declarations: an update of every algorithm of the catalog is the same for floats and for integers.

Returns of agents that learn online are compared by tests/learning/test_declarations.py.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from agents.api import Mode, Sample
from agents.catalog import AGENTS
from agents.search.game import GameStep
from envpool_bridge.spec.specs import ArraySpec
from tests.contract import replaying_agents, test_agents
from tests.contract.test_learning_rates import learned

LARGEST, QUICK = 1_000, ("dqn", "ppo", "sac")
FLOATS = ArraySpec((3,), "float32", -1.0, 1.0), ArraySpec((2,), "float32", -1.0, 1.0)
INTEGERS = ArraySpec((3,), "int16", -LARGEST, LARGEST), ArraySpec((2,), "float32", 0.0, 100.0)


def _game(show):
    def play(observation, move):
        state = observation["state"].at[move].add(1.0)
        after = {"action_mask": jnp.ones(3), "board": show(state / 10.0), "state": state}
        return GameStep(after, state.sum(), jnp.zeros((), bool))

    return play


def floats_game(env_id):
    """Returns the rules of a game whose board holds floats."""
    del env_id
    return _game(lambda board: board)


def integers_game(env_id):
    """Returns the same rules with a board of integers."""
    del env_id
    return _game(lambda board: jnp.round(board * LARGEST).astype(jnp.int16))


def _spec(name, observation, action):
    spec = replaying_agents.spec_of(name) if name in replaying_agents.REPLAYING else test_agents.ALONE
    spec = test_agents.TEAM if name == "coma" else spec
    action = action if name in replaying_agents.CONTINUOUS else spec.action
    leaf = "board" if name == "alphazero" else "observation"
    seen = {**spec.observation, leaf: observation} if isinstance(spec.observation, dict) else observation
    agents = tuple(dataclasses.replace(agent, observation=seen, action=action) for agent in spec.agents)
    return dataclasses.replace(spec, observation=seen, action=action, agents=agents)


def _agent(name, spec):
    sizes = test_agents.SIZES.get(name, {}) | replaying_agents.SMALL.get(name, {})
    if name == "alphazero":
        is_float = spec.observation["board"].dtype == "float32"
        sizes["game"] = f"tests.contract.test_declarations:{'floats' if is_float else 'integers'}_game"
    if name in replaying_agents.REPLAYING:
        sizes["replay"] = replaying_agents.ReplayConfig(batch_size=replaying_agents.WINDOWS)
    network = dataclasses.replace(test_agents.NETWORK, core="gru" if name == "r2d2" else "none", core_size=4)
    return AGENTS[name].make(AGENTS[name].config(total_updates=10, **sizes), spec, network)


def _data(name, agent, is_float):
    """Returns the same steps in one of the declarations."""
    sample = replaying_agents.sample_for(name, agent) if name in replaying_agents.REPLAYING else None
    steps = sample.trajectory if sample else test_agents.trajectory()
    leaf = {"alphazero": "board", "decision_transformer": "observation"}.get(name)
    numbers = np.round(np.clip((steps.observation[leaf] if leaf else steps.observation) / 4.0, -1.0, 1.0), 3)
    unit = LARGEST if name == "dreamer" else 1  # which sees the logarithms of all numbers in their units
    shown = (numbers * unit).astype(np.float32) if is_float else np.rint(numbers * LARGEST).astype(np.int16)
    seen = {**steps.observation, leaf: shown} if leaf else shown
    if name == "alphazero":
        seen["state"] = numbers.astype(np.float32) * 10.0
    action = steps.action
    if name in replaying_agents.CONTINUOUS:
        action = action / 2.0 if is_float else (action / 2.0 + 1.0) * 50.0
    steps = dataclasses.replace(steps, observation=seen, action=action)
    return dataclasses.replace(sample, trajectory=steps) if sample else steps


def _learned(name, is_float):
    """Returns the first parameters, those that an update made of them, and greedy actions then, in the first declaration's unit."""
    agent = _agent(name, _spec(name, *(FLOATS if is_float else INTEGERS)))
    data = _data(name, agent, is_float)
    first = jax.jit(agent.init)(jax.random.key(0))
    after = jax.jit(agent.update)(first, data, jax.random.key(1))[0]
    steps = data.trajectory if isinstance(data, Sample) else data
    seen = jax.tree.map(lambda x: x[0], steps.observation)
    rows = steps.reward.shape[1]
    keys, memory = jax.random.split(jax.random.key(2), rows), agent.initial_agent_state(rows)
    action = agent.act(after.params, seen, memory, np.ones(rows, bool), keys, Mode.GREEDY)[0]
    action = (action / 50.0 - 1.0) if name in replaying_agents.CONTINUOUS and not is_float else action
    return learned(first), learned(after), action


def _distance(one, other):
    return float(optax.tree.norm(jax.tree.map(lambda x, y: x - y, one, other)))


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in sorted(AGENTS)]
)
def test_an_update_does_not_depend_on_the_declaration(name):
    (first, floats, action), (_, integers, same) = _learned(name, True), _learned(name, False)
    assert _distance(floats, integers) < 0.02 * _distance(floats, first)
    np.testing.assert_allclose(action, same, atol=1e-3)
