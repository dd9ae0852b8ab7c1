"""What is known of a whole team at a step: the environment's global state, what all agents observe, or both.

Rows are environment x agent with environments major. What an agent that is not there observes is taken as zeros, whatever it holds;
and so is the global state that its row holds: the first row of an agent that is there counts.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from agents.api import Array, Observation
from agents.networks.config import IMAGE_TORSOS, NetworkConfig
from agents.networks.observation_inputs import inputs_of, is_image
from agents.networks.torsos.entity_sets import is_entity_set
from agents.ops.team_rows import by_agent
from envpool_bridge.spec.specs import EnvSpec
from envpool_bridge.spec.tree import items, lookup, path_name


class TeamState(NamedTuple):
    """Bound to a team's spec; n = `EnvSpec.rows_per_env`.

    Attributes:
        spec: of the view, whose rows are environments: {"state": ...}, {"team": ({leaf name: ...},) * n} or both.
        view: (observation [T, N n, ...], present [T, N n] bool: whether the row's agent is there) to the view [T, N, ...].
    """

    spec: EnvSpec
    view: Callable[[Observation, Array], Observation]


def make_team_state(spec: EnvSpec, torso: str, *, always_observations: bool) -> TeamState:
    """Returns the global state if the environment has one (`spec.critic_only`), else all observations without action masks.

    Args:
        spec: of the rows.
        torso: of the network that is to see it.
        always_observations: whether observations are seen beside a global state too.

    Raises:
        UserError: agents observe nothing that a network could see.
    """
    count, hidden = spec.rows_per_env, spec.critic_only
    own = inputs_of(spec, torso, without=hidden).leaves
    seen: dict[str, Any] = {}
    if hidden:
        seen["state"] = lookup(spec.observation, hidden)
    if always_observations or not hidden:
        seen["team"] = ({path_name(path): leaf for path, leaf in own},) * count

    def view(observation: Observation, present: Array) -> Observation:
        there = by_agent(count, 1, present)
        found: dict[str, Any] = {}
        if "state" in seen:
            split = jax.tree.map(partial(by_agent, count, 1), lookup(observation, hidden))
            found["state"] = jax.tree.map(partial(_of_first, jnp.argmax(there, axis=2)), split)
        if "team" in seen:
            leaves = {path_name(path): by_agent(count, 1, lookup(observation, path)) for path, _ in own}
            found["team"] = tuple(
                jax.tree.map(partial(_of_place, there[:, :, place], place), leaves) for place in range(count)
            )
        return found

    return TeamState(EnvSpec(spec.env_id, seen, spec.action), view)


def memoryless_config(config: NetworkConfig, spec: EnvSpec) -> NetworkConfig:
    """Returns the configuration of a network that sees a view: no core, and dense layers alone where nothing fits the torso.

    A global state is often a vector where agents see images.
    """
    leaves = [leaf for _, leaf in items(spec.observation)]
    fits = {"entities": is_entity_set, **dict.fromkeys(IMAGE_TORSOS, is_image)}.get(config.torso)
    torso = config.torso if fits is None or any(map(fits, leaves)) else "mlp"
    return dataclasses.replace(config, core="none", torso=torso)


def _of_first(first: Array, leaf: Array) -> Array:
    """[T, N, ...] of [T, N, n, ...]: the entry at `first` [T, N]."""
    index = first.reshape(first.shape + (1,) * (leaf.ndim - 2))
    return jnp.take_along_axis(leaf, index, axis=2)[:, :, 0]


def _of_place(present: Array, place: int, leaf: Array) -> Array:
    """Returns a selection, not a product: absent agents' values may be anything."""
    own = leaf[:, :, place]
    return jnp.where(present.reshape(present.shape + (1,) * (own.ndim - 2)), own, jnp.zeros_like(own))
