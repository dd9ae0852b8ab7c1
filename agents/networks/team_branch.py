"""A path from observations to outputs for all agents of a team, with shared or separate weights.

Rows are environment x agent with environments major, so every operation stays within a row or an environment.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from agents.api import AgentState, Array, InitialAgentStateFn, Observation, Params
from agents.networks.branch import Branch, HeadSize, Outputs, make_branch
from agents.networks.config import NetworkConfig
from agents.networks.observation_inputs import make_inputs, validate_torso
from agents.ops.team_rows import by_agent, by_row
from envpool_bridge.spec.specs import DiscreteSpec, EnvSpec
from envpool_bridge.spec.tree import Path


class TeamBranch(NamedTuple):
    """Bound to a team's spec; B rows are those of whole environments.

    Attributes:
        init: Returns parameters; the key is consumed. They are [n, ...] each if n agents have separate weights.
        unroll: Maps (params, observation [T, B, ...], state [B, ...], is_first [T, B]) to each head's [T, B, num_outputs] and
            the next state.
        initial_state: Returns the initial state of a number of rows; () for a feed-forward branch.
    """

    init: Callable[[Array], Params]
    unroll: Callable[[Params, Observation, AgentState, Array], tuple[Outputs, AgentState]]
    initial_state: InitialAgentStateFn


def make_team_branch(
    config: NetworkConfig, spec: EnvSpec, heads: Mapping[str, HeadSize], *, shared: bool, without: Path = ()
) -> TeamBranch:
    """Returns torso, core and heads for every agent.

    Args:
        config: Configuration of the network.
        spec: Spec of the rows; n = `spec.rows_per_env`.
        heads: Outputs by name.
        shared: Whether all agents share weights. Several agents then get their index as input: one-hot, as the leaf "agent"
            next to "own". Otherwise each agent has its own weights.
        without: Keys of leaves that are no input, like the action mask.

    Raises:
        UserError: If the torso does not fit the observations.
    """
    count = spec.rows_per_env
    if count == 1 or not shared:
        inputs = make_inputs(spec, config.torso, without=without)
        validate_torso(spec, inputs)
        branch = make_branch(config, inputs, heads)
        return TeamBranch(branch.init, branch.unroll, branch.initial_state) if count == 1 else _separate(branch, count)
    view = EnvSpec(
        spec.env_id,
        {"agent": DiscreteSpec(count), "own": spec.observation},
        spec.action,
        action_mask=("own", *spec.action_mask) if spec.action_mask else (),
    )
    inputs = make_inputs(view, config.torso, without=("own", *without) if without else ())
    validate_torso(view, inputs)
    return _shared(make_branch(config, inputs, heads), count)


def _shared(branch: Branch, count: int) -> TeamBranch:
    def unroll(
        params: Params, observation: Observation, state: AgentState, is_first: Array
    ) -> tuple[Outputs, AgentState]:
        agents = jnp.arange(is_first.shape[1], dtype=jnp.int32) % count
        view = {"agent": jnp.broadcast_to(agents, is_first.shape), "own": observation}
        return branch.unroll(params, view, state, is_first)

    return TeamBranch(branch.init, unroll, branch.initial_state)


def _separate(branch: Branch, count: int) -> TeamBranch:
    apply = jax.vmap(branch.unroll, in_axes=(0, 2, 1, 2), out_axes=(2, 1))

    def unroll(
        params: Params, observation: Observation, state: AgentState, is_first: Array
    ) -> tuple[Outputs, AgentState]:
        by_env, first = jax.tree.map(partial(by_agent, count, 1), (observation, is_first))
        outputs, state = apply(params, by_env, jax.tree.map(partial(by_agent, count, 0), state), first)
        return jax.tree.map(partial(by_row, 1), outputs), jax.tree.map(partial(by_row, 0), state)

    return TeamBranch(lambda key: jax.vmap(branch.init)(jax.random.split(key, count)), unroll, branch.initial_state)
