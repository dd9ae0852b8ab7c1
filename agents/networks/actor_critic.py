"""Actor-critic networks, feed-forward or recurrent, as pure functions of parameters."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from agents.api import Action, AgentState, Array, InitialAgentStateFn, Observation, Params
from agents.networks.branch import Branch, Heads, HeadSize, Outputs, make_branch
from agents.networks.config import NetworkConfig
from agents.networks.distributions import Distribution
from agents.networks.observation_inputs import actor_config, make_inputs, validate_torso
from agents.networks.policy_head import PolicyHead, make_policy_head
from agents.networks.state_dependent_noise import initial_noise_state, next_noise_state
from agents.settings import reject_other
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import EnvSpec
from envpool_bridge.spec.tree import shown_path

InitFn = Callable[[Array], Params]
"""Returns parameters; the key is consumed."""
ApplyFn = Callable[[Params, Observation], Array]
"""Returns outputs for observations [..., *observation]."""
StepFn = Callable[[Params, Observation, AgentState, Array], tuple[Array, AgentState]]
ExploreFn = Callable[[Params, Observation, AgentState, Array, Array], tuple[Array, Action, AgentState]]
UnrollFn = Callable[[Params, Observation, AgentState, Array], tuple[Array, Array, AgentState]]


class ActorCritic(NamedTuple):
    """A network bound to an environment's spec. `step` and `unroll` work for all networks.

    Attributes:
        init: Returns parameters; the key is consumed.
        policy: Returns the action distribution's parameters [..., P]; of feed-forward networks only. Separate torsos compute no
            values here.
        value: Returns values [...]; of feed-forward networks only. Separate torsos compute no policy here.
        distribution: Action distribution of the policy's parameters.
        initial_state: Returns the initial recurrent state.
        step: Computes one step, for acting. Maps (params, observation [B, ...], state [B, ...] each or (), is_first [B] bool) to
            the policy's parameters [B, P] and the next state.
        unroll: Computes T steps, for learning, as T calls of `step` do. Maps (params, observation [T, B, ...], state [B, ...] each,
            is_first [T, B] bool) to the policy's parameters [T, B, P], values [T, B] and the next state.
        is_recurrent: Whether there is a recurrent state.
        explore: Computes one step of gSDE. Maps (params, observation [B, ...], state [B, ...] each, is_first [B] bool, keys [B]) to
            the policy's parameters [B, P], actions [B, ...] and the next state; keys are consumed. None without gSDE.
        spec: Spec whose observations the network scales; None if it scales none.
    """

    init: InitFn
    policy: ApplyFn
    value: ApplyFn
    distribution: Distribution
    initial_state: InitialAgentStateFn
    step: StepFn
    unroll: UnrollFn
    is_recurrent: bool
    explore: ExploreFn | None = None
    spec: EnvSpec | None = None


class Trunk(NamedTuple):
    """Policy outputs and values before the policy head, of separate or shared torsos."""

    init: InitFn
    policy: ApplyFn
    value: ApplyFn
    unroll: UnrollFn
    initial_state: InitialAgentStateFn


def make_actor_critic(config: NetworkConfig, spec: EnvSpec) -> ActorCritic:
    """Returns a network for this environment. Heads start small (gain 0.01) for the policy, 1 for the value.

    The first weights of a leaf of a structured observation are stored under the leaf's name. The action mask is no input, and
    `critic_only` leaves are inputs of the value only. Separate torsos have separate cores.

    Source of the initialization: Andrychowicz et al. 2021 (arXiv:2006.05990), section 3.2.

    Raises:
        UserError: If the torso does not fit the observations, squashing or the mask does not fit the actions, or policy and value
            share a torso and have different inputs.
    """
    critic_inputs = make_inputs(spec, config.torso)
    actor_inputs = make_inputs(spec, config.torso, without=spec.critic_only)
    validate_torso(spec, critic_inputs)
    if config.shares_torso:
        reason = "policy and value share a torso, unless shared_torso is False"
        reject_other("network.critic_hidden_sizes", config.critic_hidden_sizes, None, reason)
    if config.shares_torso and actor_inputs != critic_inputs:
        name = shown_path("observation", spec.critic_only)
        raise UserError(f"{spec.env_id}: only the value may see {name}: give it its own torso (shared_torso=False)")
    head = make_policy_head(config, spec)
    policy, value = HeadSize(head.num_outputs, 0.01), HeadSize(1, 1.0)
    features: Heads = {} if config.sde_period is None else {"features": None}
    if config.shares_torso:
        trunk = _shared_torso(make_branch(config, actor_inputs, {"policy": policy, "value": value, **features}))
    else:
        actor = make_branch(actor_config(config, actor_inputs), actor_inputs, {"head": policy, **features})
        trunk = separate_torsos(actor, make_branch(config.critic, critic_inputs, {"head": value}))
    return bind_head(config, head, trunk)._replace(spec=spec)


def bind_head(config: NetworkConfig, head: PolicyHead, trunk: Trunk) -> ActorCritic:
    """Returns the network of a trunk and a policy head."""
    is_recurrent, period = config.core != "none", config.sde_period

    def policy(params: Params, observation: Observation) -> Array:
        return head.parameters(params, trunk.policy(params, observation), observation)

    def step(params: Params, observation: Observation, state: AgentState, is_first: Array) -> tuple[Array, AgentState]:
        if not is_recurrent:
            return policy(params, observation), state
        one_step = jax.tree.map(lambda leaf: leaf[None], (observation, is_first))
        outputs, _, state = unroll(params, one_step[0], state, one_step[1])
        return outputs[0], state

    def unroll(
        params: Params, observation: Observation, state: AgentState, is_first: Array
    ) -> tuple[Array, Array, AgentState]:
        outputs, value, after = trunk.unroll(params, observation, state if is_recurrent else (), is_first)
        return head.parameters(params, outputs, observation), value, after if is_recurrent else state

    return ActorCritic(
        init=lambda key: {**trunk.init(key), **head.params},
        policy=policy,
        value=trunk.value,
        distribution=head.distribution,
        initial_state=trunk.initial_state if period is None else initial_noise_state,
        step=step,
        unroll=unroll,
        is_recurrent=is_recurrent,
        explore=_make_explore(head, trunk, period),
    )


def _make_explore(head: PolicyHead, trunk: Trunk, period: int | None) -> ExploreFn | None:
    make_noise, from_noise = head.noise, head.distribution.from_noise
    if period is None or make_noise is None or from_noise is None:
        return None

    def explore(
        params: Params, observation: Observation, state: AgentState, is_first: Array, keys: Array
    ) -> tuple[Array, Action, AgentState]:
        state, outputs = next_noise_state(period, state, is_first, keys), trunk.policy(params, observation)
        parameters = head.parameters(params, outputs, observation)
        return parameters, from_noise(parameters, make_noise(params, outputs, state["seed"])), state

    return explore


def policy_outputs(outputs: Outputs, name: str) -> Array:
    """Returns the outputs of the policy's head `name`, then the features if the branch returns them."""
    head = outputs[name]
    return jnp.concatenate([head, outputs["features"]], axis=-1) if "features" in outputs else head


def separate_torsos(actor: Branch, critic: Branch) -> Trunk:
    """Returns a trunk of two branches, each with a head called "head". Their states are separate, too."""

    def init(key: Array) -> Params:
        actor_key, critic_key = jax.random.split(key)
        return {"actor": actor.init(actor_key), "critic": critic.init(critic_key)}

    def policy(params: Params, observation: Observation) -> Array:
        return policy_outputs(actor.outputs(params["actor"], observation), "head")

    def value(params: Params, observation: Observation) -> Array:
        return critic.outputs(params["critic"], observation)["head"][..., 0]

    def initial_state(num_rows: int) -> AgentState:
        states = {"actor": actor.initial_state(num_rows), "critic": critic.initial_state(num_rows)}
        return states if jax.tree.leaves(states) else ()

    def unroll(
        params: Params, observation: Observation, state: AgentState, is_first: Array
    ) -> tuple[Array, Array, AgentState]:
        if not jax.tree.leaves(state):
            return policy(params, observation), value(params, observation), state
        policy_heads, actor_state = actor.unroll(params["actor"], observation, state["actor"], is_first)
        value_heads, critic_state = critic.unroll(params["critic"], observation, state["critic"], is_first)
        return policy_heads["head"], value_heads["head"][..., 0], {"actor": actor_state, "critic": critic_state}

    return Trunk(init, policy, value, unroll, initial_state)


def _shared_torso(shared: Branch) -> Trunk:
    def unroll(
        params: Params, observation: Observation, state: AgentState, is_first: Array
    ) -> tuple[Array, Array, AgentState]:
        outputs, state = shared.unroll(params["shared"], observation, state, is_first)
        return policy_outputs(outputs, "policy"), outputs["value"][..., 0], state

    return Trunk(
        init=lambda key: {"shared": shared.init(key)},
        policy=lambda params, observation: policy_outputs(shared.outputs(params["shared"], observation), "policy"),
        value=lambda params, observation: shared.outputs(params["shared"], observation)["value"][..., 0],
        unroll=unroll,
        initial_state=shared.initial_state,
    )
