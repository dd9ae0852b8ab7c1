"""Actor-critic networks, feed-forward or recurrent, as pure functions of parameters."""

from typing import NamedTuple, Protocol

import jax

from agents.api import AgentState, Array, InitialAgentStateFn, Observation, Params
from agents.distributions import Distribution
from agents.networks.branch import Branch, HeadSize, Outputs, make_branch
from agents.networks.config import NetworkConfig
from agents.networks.observation_inputs import ObservationInputs, make_inputs, validate_torso
from agents.networks.policy_head import make_policy_head
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import EnvSpec
from envpool_bridge.spec.tree import shown_path


class ApplyFn(Protocol):
    """Outputs for observations [..., *observation]."""

    def __call__(self, params: Params, observation: Observation) -> Array: ...


class StepFn(Protocol):
    """Policy parameters [B, P] of one step of B rows, and the next state.

    Args: params; observation [B, ...]; state [B, ...] each, () for feed-forward networks; is_first [B] bool.
    """

    def __call__(
        self, params: Params, observation: Observation, state: AgentState, is_first: Array
    ) -> tuple[Array, AgentState]: ...


class UnrollFn(Protocol):
    """Policy parameters [T, B, P] and values [T, B] of T steps, and the next state, as T calls of `step` give them.

    Args: params; observation [T, B, ...]; state [B, ...] each, before the first step; is_first [T, B] bool.
    """

    def __call__(
        self, params: Params, observation: Observation, state: AgentState, is_first: Array
    ) -> tuple[Array, Array, AgentState]: ...


class NetworkInitFn(Protocol):
    """Parameters; `key` is consumed."""

    def __call__(self, key: Array) -> Params: ...


class ActorCritic(NamedTuple):
    """A network bound to an environment's spec. `step` and `unroll` work for all networks.

    Attributes:
        init: Returns parameters.
        policy: Returns the action distribution's parameters [..., P]; of feed-forward networks only. Separate torsos compute no
            values here.
        value: Returns values [...]; of feed-forward networks only. Separate torsos compute no policy here.
        distribution: Action distribution of the policy's parameters.
        initial_state: Returns the initial recurrent state.
        step: Computes one step, for acting.
        unroll: Computes T steps, for learning.
        is_recurrent: Whether there is a state.
    """

    init: NetworkInitFn
    policy: ApplyFn
    value: ApplyFn
    distribution: Distribution
    initial_state: InitialAgentStateFn
    step: StepFn
    unroll: UnrollFn
    is_recurrent: bool


class _Trunk(NamedTuple):
    """Policy outputs and values before the policy head, of separate or shared torsos."""

    init: NetworkInitFn
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
        UserError: The torso does not fit the observations, squashing or the mask does not fit the actions, or policy and value
            share a torso and have different inputs.
    """
    critic_inputs = make_inputs(spec, config.torso)
    actor_inputs = make_inputs(spec, config.torso, without=spec.critic_only)
    validate_torso(spec, critic_inputs)
    if config.shares_torso and actor_inputs != critic_inputs:
        name = shown_path("observation", spec.critic_only)
        raise UserError(f"{spec.env_id}: only the value may see {name}: give it its own torso (shared_torso=False)")
    head = make_policy_head(config, spec)
    build = _shared_torso if config.shares_torso else _separate_torsos
    trunk = build(config, actor_inputs, critic_inputs, head.num_outputs)

    def policy(params: Params, observation: Observation) -> Array:
        return head.parameters(params, trunk.policy(params, observation), observation)

    def step(params: Params, observation: Observation, state: AgentState, is_first: Array) -> tuple[Array, AgentState]:
        if config.core == "none":
            return policy(params, observation), state
        one_step = jax.tree.map(lambda leaf: leaf[None], (observation, is_first))
        outputs, _, state = unroll(params, one_step[0], state, one_step[1])
        return outputs[0], state

    def unroll(
        params: Params, observation: Observation, state: AgentState, is_first: Array
    ) -> tuple[Array, Array, AgentState]:
        outputs, value, state = trunk.unroll(params, observation, state, is_first)
        return head.parameters(params, outputs, observation), value, state

    return ActorCritic(
        init=lambda key: {**trunk.init(key), **head.params},
        policy=policy,
        value=trunk.value,
        distribution=head.distribution,
        initial_state=trunk.initial_state,
        step=step,
        unroll=unroll,
        is_recurrent=config.core != "none",
    )


def _separate_torsos(
    config: NetworkConfig, actor_inputs: ObservationInputs, critic_inputs: ObservationInputs, num_outputs: int
) -> _Trunk:
    actor = make_branch(config, actor_inputs, {"head": HeadSize(num_outputs, 0.01)})
    critic = make_branch(config, critic_inputs, {"head": HeadSize(1, 1.0)})

    def init(key: Array) -> Params:
        actor_key, critic_key = jax.random.split(key)
        return {"actor": actor.init(actor_key), "critic": critic.init(critic_key)}

    def policy(params: Params, observation: Observation) -> Array:
        return _outputs(actor, params["actor"], observation)["head"]

    def value(params: Params, observation: Observation) -> Array:
        return _outputs(critic, params["critic"], observation)["head"][..., 0]

    def initial_state(num_rows: int) -> AgentState:
        states = {"actor": actor.initial_state(num_rows), "critic": critic.initial_state(num_rows)}
        return states if config.core != "none" else ()

    def unroll(
        params: Params, observation: Observation, state: AgentState, is_first: Array
    ) -> tuple[Array, Array, AgentState]:
        if config.core == "none":
            return policy(params, observation), value(params, observation), state
        policy_heads, actor_state = actor.unroll(params["actor"], observation, state["actor"], is_first)
        value_heads, critic_state = critic.unroll(params["critic"], observation, state["critic"], is_first)
        return policy_heads["head"], value_heads["head"][..., 0], {"actor": actor_state, "critic": critic_state}

    return _Trunk(init, policy, value, unroll, initial_state)


def _shared_torso(config: NetworkConfig, inputs: ObservationInputs, _: ObservationInputs, num_outputs: int) -> _Trunk:
    heads = {"policy": HeadSize(num_outputs, 0.01), "value": HeadSize(1, 1.0)}
    shared = make_branch(config, inputs, heads)

    def init(key: Array) -> Params:
        return {"shared": shared.init(key)}

    def policy(params: Params, observation: Observation) -> Array:
        return _outputs(shared, params["shared"], observation)["policy"]

    def value(params: Params, observation: Observation) -> Array:
        return _outputs(shared, params["shared"], observation)["value"][..., 0]

    def unroll(
        params: Params, observation: Observation, state: AgentState, is_first: Array
    ) -> tuple[Array, Array, AgentState]:
        outputs, state = shared.unroll(params["shared"], observation, state, is_first)
        return outputs["policy"], outputs["value"][..., 0], state

    return _Trunk(init, policy, value, unroll, shared.initial_state)


def _outputs(branch: Branch, params: Params, observation: Observation) -> Outputs:
    if branch.outputs is None:
        raise TypeError("a recurrent network has no outputs for an observation alone: use `step` or `unroll`")
    return branch.outputs(params, observation)
