"""An agent for some of the agents acts for their rows as the whole one does among all rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.api import Mode
from agents.networks.config import NetworkConfig
from agents.ppo import PPOConfig, make_ppo
from agents.transforms.multi_policy import make_policies
from agents.transforms.some_agents import act_for_some
from envpool_bridge.spec.specs import AgentSpec, ArraySpec, DiscreteSpec, EnvSpec

SEEN, CHOSEN, ENVS = ArraySpec((3,), "float32"), DiscreteSpec(4), 5
SPEC = EnvSpec("teams", SEEN, CHOSEN, agents=tuple(AgentSpec(name, SEEN, CHOSEN) for name in ("a_0", "b_0", "a_1")))
AGENT = make_policies(
    SPEC,
    {"a_*": "one", "*": "two"},
    lambda spec: make_ppo(PPOConfig(), spec, NetworkConfig(hidden_sizes=(8,), core="lstm", core_size=4)),
)


@pytest.mark.parametrize("indices", [(0, 2), (1,), (1, 2)])
def test_rows_of_some_agents_are_those_among_all_rows(indices):
    params, rows = jax.jit(AGENT.init)(jax.random.key(0)).params, ENVS * 3
    own = np.arange(rows).reshape(ENVS, 3)[:, list(indices)].ravel()
    observation, keys = jax.random.normal(jax.random.key(1), (rows, 3)), jax.random.split(jax.random.key(2), rows)
    some, first = act_for_some(AGENT, SPEC, indices), jnp.zeros(rows, bool)
    state, part = AGENT.initial_agent_state(rows), some.initial_agent_state(len(own))
    for step in range(2):  # the second with a state that differs between rows
        whole = jax.jit(AGENT.act, static_argnums=5)(params, observation + step, state, first, keys, Mode.SAMPLE)
        given = (params, (observation + step)[own], part, first[own], keys[own], Mode.SAMPLE)
        chosen = jax.jit(some.act, static_argnums=5)(*given)
        state, part = whole[2], chosen[2]
        for all_rows, mine in zip(jax.tree.leaves(whole), jax.tree.leaves(chosen), strict=True):
            np.testing.assert_array_equal(np.asarray(all_rows)[own], mine)
