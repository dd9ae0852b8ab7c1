"""Networks of COMA: a policy of each row's own observation, and a critic of the whole team's observations and actions."""

import dataclasses
from typing import NamedTuple, Protocol

import jax

from agents.api import AgentState, Array, InitialAgentStateFn, Observation, Params
from agents.distributions import Distribution
from agents.networks.actor_critic import NetworkInitFn, StepFn
from agents.networks.branch import HeadSize, make_branch
from agents.networks.config import NetworkConfig
from agents.networks.observation_inputs import make_inputs, validate_torso
from agents.networks.policy_head import make_policy_head
from agents.networks.team_view import team_spec
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import EnvSpec


class PolicyUnrollFn(Protocol):
    """Logits [T, B, A] of T steps, illegal actions masked, and the next state, as T calls of `step` give them.

    Args: params; observation [T, B, ...]; state [B, ...] each, before the first step; is_first [T, B] bool.
    """

    def __call__(
        self, params: Params, observation: Observation, state: AgentState, is_first: Array
    ) -> tuple[Array, AgentState]: ...


class ActionValuesFn(Protocol):
    """Values [T, B, A], in reward units, of each action of the row's agent, given the other agents' actions in the view."""

    def __call__(self, critic_params: Params, view: Observation) -> Array: ...


class ComaNetworks(NamedTuple):
    """Bound to an environment's spec. Parameters are {"actor": ..., "critic": ...}; `action_values` takes only the latter.

    Attributes:
        init: Returns parameters.
        step: Computes one step, for acting.
        unroll: Computes T steps, for learning.
        action_values: Returns values of a `team_view`.
        distribution: Action distribution of the policy's logits.
        initial_state: Returns the initial recurrent state of the policy.
    """

    init: NetworkInitFn
    step: StepFn
    unroll: PolicyUnrollFn
    action_values: ActionValuesFn
    distribution: Distribution
    initial_state: InitialAgentStateFn


def make_coma_networks(config: NetworkConfig, spec: EnvSpec) -> ComaNetworks:
    """Returns networks of one configuration. The policy may be recurrent; the critic of the whole team is always feed-forward.

    Heads start small (gain 0.01) for the policy, 1 for the critic.

    Raises:
        UserError: The actions do not fit COMA, the torso does not fit the observations, or the configuration shares the torso.
    """
    if config.shared_torso:
        raise UserError(f"{spec.env_id}: only COMA's critic sees the whole team: expected shared_torso null or false")
    critic_spec = team_spec(spec)
    validate_torso(spec, make_inputs(spec, config.torso))
    head = make_policy_head(config, spec)
    actor_inputs = make_inputs(spec, config.torso, without=spec.critic_only)
    actor = make_branch(config, actor_inputs, {"head": HeadSize(head.num_outputs, 0.01)})
    critic_inputs = make_inputs(critic_spec, config.torso)
    critic = make_branch(
        dataclasses.replace(config, core="none"), critic_inputs, {"head": HeadSize(head.num_outputs, 1.0)}
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
