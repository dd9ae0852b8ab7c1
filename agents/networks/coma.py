"""Networks of COMA: a policy of each row's own observation, and a critic of the whole team's observations and actions.

The critic's inputs for a row are its observation and agent index, the others' actions, and the state or all observations. Rows are
environment x agent with environments major, so every operation stays within an environment: rows that are sharded over
environments need no gather. Observations and actions of absent agents are replaced by zeros.
"""

import dataclasses
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from agents.api import Action, AgentState, Array, InitialAgentStateFn, Observation, Params
from agents.networks.actor_critic import ApplyFn, InitFn, StepFn
from agents.networks.branch import HeadSize, make_branch
from agents.networks.config import NetworkConfig
from agents.networks.distributions import Distribution
from agents.networks.observation_inputs import actor_config, make_inputs, validate_torso
from agents.networks.policy_head import make_policy_head
from agents.networks.team_values import num_team_actions
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec
from envpool_bridge.spec.tree import Path


class ComaNetworks(NamedTuple):
    """Bound to an environment's spec. Parameters are {"actor": ..., "critic": ...}; `action_values` takes only the latter.

    Attributes:
        init: Returns parameters; the key is consumed.
        step: Computes one step, for acting, as `ActorCritic.step` does.
        unroll: Computes T steps, for learning, as T calls of `step` do. Maps (params, observation [T, B, ...], state [B, ...] each,
            is_first [T, B] bool) to logits [T, B, A], illegal actions masked, and the next state.
        action_values: Maps (parameters of the critic, view of `team_view`) to values [T, B, A] of each action of the row's agent,
            in reward units. The view has the other agents' actions.
        distribution: Action distribution of the policy's logits.
        initial_state: Returns the initial recurrent state of the policy.
    """

    init: InitFn
    step: StepFn
    unroll: StepFn
    action_values: ApplyFn
    distribution: Distribution
    initial_state: InitialAgentStateFn


def make_coma_networks(config: NetworkConfig, spec: EnvSpec) -> ComaNetworks:
    """Returns networks of one configuration. The policy may be recurrent; the critic of the whole team is always feed-forward.

    Heads start small (gain 0.01) for the policy, 1 for the critic.

    Raises:
        UserError: If the actions do not fit COMA, the torso does not fit the observations, or the configuration shares the torso.
    """
    if config.shared_torso:
        raise UserError(f"{spec.env_id}: only COMA's critic sees the whole team: expected shared_torso null or false")
    critic_spec = team_spec(spec)
    validate_torso(spec, make_inputs(spec, config.torso))
    head = make_policy_head(config, spec)
    actor_inputs = make_inputs(spec, config.torso, without=spec.critic_only)
    actor = make_branch(actor_config(config, actor_inputs), actor_inputs, {"head": HeadSize(head.num_outputs, 0.01)})
    critic_inputs = make_inputs(critic_spec, config.torso)
    critic = make_branch(
        dataclasses.replace(config.critic, core="none"), critic_inputs, {"head": HeadSize(head.num_outputs, 1.0)}
    )

    def init(key: Array) -> Params:
        actor_key, critic_key = jax.random.split(key)
        return {"actor": actor.init(actor_key), "critic": critic.init(critic_key)}

    def unroll(
        params: Params, observation: Observation, state: AgentState, is_first: Array
    ) -> tuple[Array, AgentState]:
        outputs, state = actor.unroll(params["actor"], observation, state, is_first)
        return head.parameters(params, outputs["head"], observation), state

    def step(params: Params, observation: Observation, state: AgentState, is_first: Array) -> tuple[Array, AgentState]:
        one_step = jax.tree.map(lambda leaf: leaf[None], (observation, is_first))
        logits, state = unroll(params, one_step[0], state, one_step[1])
        return logits[0], state

    def action_values(critic_params: Params, view: Observation) -> Array:
        return critic.unroll(critic_params, view, (), view["agent"])[0]["head"]

    return ComaNetworks(init, step, unroll, action_values, head.distribution, actor.initial_state)


def team_spec(spec: EnvSpec) -> EnvSpec:
    """Returns the spec of `team_view`.

    Raises:
        UserError: If the action is not one Discrete value, or the agents' numbers of actions differ.
    """
    own = _without(spec.observation, spec.action_mask)
    view: dict[str, Any] = {
        "agent": DiscreteSpec(spec.rows_per_env),
        "others": ArraySpec((spec.rows_per_env * _num_actions(spec),), "float32"),
        "own": own,
    }
    if not spec.critic_only:
        view["team"] = (own,) * spec.rows_per_env
    return EnvSpec(spec.env_id, view, spec.action)


def team_view(spec: EnvSpec, observation: Observation, action: Action, present: Array) -> Observation:
    """Returns the critic's inputs for every row.

    Args:
        spec: Spec of the rows; n = `spec.rows_per_env`.
        observation: Leaves [T, B, ...], with the global state at `spec.critic_only` if there is one.
        action: [T, B] int32.
        present: [T, B] bool.

    Returns:
        A dict. "agent" [T, B] int32 is the index of the agent. "others" [T, B, n A] float32 are one-hot actions of all agents,
        zeros for the row's own and absent ones. "own" is the row's observation without its action mask. Without a global
        state, "team" are the observations of all n agents in order. Observations of absent agents are zeros.
    """
    count = spec.rows_per_env
    own = jax.tree.map(partial(_where_present, present), _without(observation, spec.action_mask))
    chosen = jax.nn.one_hot(action, _num_actions(spec)) * present[..., None]
    agents = jnp.arange(action.shape[1], dtype=jnp.int32) % count
    view: dict[str, Any] = {
        "agent": jnp.broadcast_to(agents, action.shape),
        "others": _other_actions(count, chosen),
        "own": own,
    }
    if not spec.critic_only:
        view["team"] = tuple(jax.tree.map(partial(_agent_values, count, index), own) for index in range(count))
    return view


def _num_actions(spec: EnvSpec) -> int:
    different = "map agents with different actions to policies of their own (--policies.mapping), or use MAPPO"
    return num_team_actions(spec, "use PPO", different)


def _without(tree: Any, path: Path) -> Any:
    """Returns the tree of dicts without the subtree at `path`; unchanged for an empty path."""
    if not path:
        return tree
    key, *rest = path
    left = {name: child for name, child in tree.items() if name != key}
    return left | {key: _without(tree[key], tuple(rest))} if rest else left


def _where_present(present: Array, leaf: Array) -> Array:
    """Returns values with zeros for absent agents. A product would keep their NaNs."""
    return jnp.where(present.reshape(present.shape + (1,) * (leaf.ndim - 2)), leaf, jnp.zeros_like(leaf))


def _agent_values(count: int, index: int, leaf: Array) -> Array:
    """Returns, in every row of [T, B, ...], the value of agent `index` of its environment."""
    by_env = leaf.reshape((leaf.shape[0], -1, count, *leaf.shape[2:]))
    return jnp.broadcast_to(by_env[:, :, index : index + 1], by_env.shape).reshape(leaf.shape)


def _other_actions(count: int, chosen: Array) -> Array:
    """Returns [T, B, n A]: the rows [T, B, A] of all agents of the environment, zeros for the row's own."""
    steps, rows, size = chosen.shape
    by_env = chosen.reshape((steps, -1, 1, count, size))
    other = ~jnp.eye(count, dtype=bool)[:, :, None]
    return jnp.where(other, by_env, 0.0).reshape((steps, rows, count * size))
