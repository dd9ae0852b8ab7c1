"""Action values of a team: of each agent from its own observation, and of the team by a mixer."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from agents.api import AgentState, Array, InitialAgentStateFn, Observation, Params
from agents.networks.branch import HeadSize
from agents.networks.config import NetworkConfig, validate_read
from agents.networks.distributions import make_legal
from agents.networks.mixer import Mixer
from agents.networks.team_branch import make_team_branch
from agents.ops.epsilon_greedy import select_action
from agents.ops.team_rows import by_agent
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import DiscreteSpec, EnvSpec, is_one_leaf


class TeamValues(NamedTuple):
    """Bound to a team's spec; n agents, A actions of each. Parameters are {"agents": ..., "mixer": ...}.

    Attributes:
        init: Returns parameters; the key is consumed.
        unroll: Maps (params, observation [T, N n, ...], state, is_first [T, N n]) to agents' values [T, N n, A] and the next state.
        legal: Maps an observation to [..., A], 0 where an action is illegal; None if all actions are always legal.
        mixed: Maps (params, values [T, N n, A], action [T, N n], observation [T, N n, ...], present [T, N n]) to the team's values
            [T, N] of the agents' actions. Absent agents do not count.
        initial_state: Initial recurrent state of agents.
    """

    init: Callable[[Array], Params]
    unroll: Callable[[Params, Observation, AgentState, Array], tuple[Array, AgentState]]
    legal: Callable[[Observation], Array | None]
    mixed: Callable[[Params, Array, Array, Observation, Array], Array]
    initial_state: InitialAgentStateFn


def make_team_values(config: NetworkConfig, spec: EnvSpec, mixer: Mixer, *, shared: bool) -> TeamValues:
    """Returns networks of one configuration. Only the mixer sees the global state, and only agents are recurrent.

    Raises:
        UserError: Actions other than one Discrete value with as many choices for every agent, or a torso that does not fit.
    """
    count, num_actions = spec.rows_per_env, num_team_actions(spec)
    validate_read(config, "a team of action values")
    heads = {"value": HeadSize(num_actions, 1.0)}
    agents = make_team_branch(config, spec, heads, shared=shared, without=spec.critic_only)

    def init(key: Array) -> Params:
        agents_key, mixer_key = jax.random.split(key)
        return {"agents": agents.init(agents_key), "mixer": mixer.init(mixer_key)}

    def unroll(
        params: Params, observation: Observation, state: AgentState, is_first: Array
    ) -> tuple[Array, AgentState]:
        outputs, state = agents.unroll(params["agents"], observation, state, is_first)
        return outputs["value"], state

    def mixed(params: Params, values: Array, action: Array, observation: Observation, present: Array) -> Array:
        chosen = jnp.where(present, select_action(values, action), 0.0)
        return mixer.mix(params["mixer"], by_agent(count, 1, chosen), observation, present)

    return TeamValues(init, unroll, make_legal(spec), mixed, agents.initial_state)


def num_team_actions(
    spec: EnvSpec,
    others: str = "use MADDPG for continuous ones, PPO for others",
    different: str = "wrap the environment so that all have as many, with an action mask",
) -> int:
    """Returns A, the number of actions of every agent of the team.

    Args:
        spec: Spec of the rows.
        others: Advice for other kinds of actions.
        different: Advice for agents with different numbers of actions.

    Raises:
        UserError: If the action is not one Discrete value, or the agents' numbers of actions differ.
    """
    if not is_one_leaf(spec.action) or not isinstance(spec.action, DiscreteSpec):
        raise UserError(
            f"{spec.env_id}: an action value belongs to each action of an agent: expected one Discrete action, got {spec.action}; "
            f"{others}"
        )
    if any(agent.action != spec.agents[0].action for agent in spec.agents):
        sizes = {agent.name: getattr(agent.action, "num_values", agent.action) for agent in spec.agents}
        raise UserError(f"{spec.env_id}: expected as many actions of every agent of a team, got {sizes}; {different}")
    return spec.action.num_values
