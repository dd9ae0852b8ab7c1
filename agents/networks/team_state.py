"""State of a whole team at a step: the environment's global state, the observations of all agents, or both.

Rows are environment x agent with environments major. Observations of absent agents are replaced by zeros. The global state is that
of the first row of a present agent.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from agents.api import Array, Observation
from agents.networks.config import IMAGE_TORSOS, NetworkConfig
from agents.networks.observation_inputs import make_inputs
from agents.networks.observation_scale import is_image
from agents.networks.torsos.entity_sets import is_entity_set
from agents.ops.team_rows import by_agent
from envpool_bridge.spec.specs import EnvSpec
from envpool_bridge.spec.tree import items, lookup, path_name


class TeamState(NamedTuple):
    """Bound to a team's spec; n = `EnvSpec.rows_per_env`.

    Attributes:
        spec: Spec of the view, whose rows are environments: {"state": ...}, {"team": ({leaf name: ...},) * n} or both.
        view: Maps (observation [T, N n, ...], present [T, N n] bool) to the view [T, N, ...].
    """

    spec: EnvSpec
    view: Callable[[Observation, Array], Observation]


def make_team_state(spec: EnvSpec, torso: str, *, always_observations: bool) -> TeamState:
    """Returns the global state if the environment has one (`spec.critic_only`), else all observations without action masks.

    Args:
        spec: Spec of the rows.
        torso: Torso of the network.
        always_observations: Whether to include observations even if there is a global state.

    Raises:
        UserError: If the agents' observations have no input for a network.
    """
    count, hidden = spec.rows_per_env, spec.critic_only
    own = make_inputs(spec, torso, without=hidden).leaves
    observation_spec: dict[str, Any] = {}
    if hidden:
        observation_spec["state"] = lookup(spec.observation, hidden)
    if always_observations or not hidden:
        observation_spec["team"] = ({path_name(path): leaf for path, leaf in own},) * count

    def view(observation: Observation, present: Array) -> Observation:
        there = by_agent(count, 1, present)
        team: dict[str, Any] = {}
        if "state" in observation_spec:
            split = jax.tree.map(partial(by_agent, count, 1), lookup(observation, hidden))
            team["state"] = jax.tree.map(partial(_first_present, jnp.argmax(there, axis=2)), split)
        if "team" in observation_spec:
            leaves = {path_name(path): by_agent(count, 1, lookup(observation, path)) for path, _ in own}
            team["team"] = tuple(
                jax.tree.map(partial(_agent_values, there[:, :, index], index), leaves) for index in range(count)
            )
        return team

    return TeamState(EnvSpec(spec.env_id, observation_spec, spec.action), view)


def memoryless_config(config: NetworkConfig, spec: EnvSpec) -> NetworkConfig:
    """Returns the configuration of a feed-forward network of a view, with torso "mlp" if no leaf fits the configured torso.

    A global state is often a vector while agents observe images.
    """
    leaves = [leaf for _, leaf in items(spec.observation)]
    fits = {"entities": is_entity_set, **dict.fromkeys(IMAGE_TORSOS, is_image)}.get(config.torso)
    torso = config.torso if fits is None or any(map(fits, leaves)) else "mlp"
    layers = config.convolutions if torso == config.torso else NetworkConfig.convolutions
    return dataclasses.replace(config, core="none", torso=torso, convolutions=layers)


def _first_present(first: Array, leaf: Array) -> Array:
    """Returns the entry [T, N, ...] at `first` [T, N] of [T, N, n, ...]."""
    index = first.reshape(first.shape + (1,) * (leaf.ndim - 2))
    return jnp.take_along_axis(leaf, index, axis=2)[:, :, 0]


def _agent_values(present: Array, index: int, leaf: Array) -> Array:
    """Returns one agent's values, zeros where it is absent. A product would keep NaNs of absent agents."""
    own = leaf[:, :, index]
    return jnp.where(present.reshape(present.shape + (1,) * (own.ndim - 2)), own, jnp.zeros_like(own))
