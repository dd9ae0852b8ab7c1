"""The network of PPG: policy and value on torsos of their own, and a second value on the policy's torso."""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from agents.api import AgentState, Array, Observation, Params
from agents.networks.actor_critic import ActorCritic
from agents.networks.branch import Branch, HeadSize, Outputs, make_branch
from agents.networks.config import NetworkConfig
from agents.networks.observation_inputs import inputs_of, require_fit
from agents.networks.policy_head import PolicyHead, make_policy_head
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec, LeafSpec
from envpool_bridge.spec.tree import items


class PhasicOutputs(NamedTuple):
    """Of observations [..., *leaf]; what a caller does not use is not computed.

    Attributes:
        policy: [..., P], parameters of the action distribution.
        value: [...] float32, by the value's torso.
        auxiliary: [...] float32, the value by the policy's torso.
    """

    policy: Array
    value: Array
    auxiliary: Array


class Phasic(NamedTuple):
    """Bound to an environment's spec; without memory.

    Parameters are those of `agents/networks/actor_critic.py` with torsos apart, and one more head of the actor.

    Attributes:
        net: the network as every other algorithm knows it, which says nothing of the auxiliary value.
        outputs: (params, observation [..., *leaf]) to all outputs.
        divergence: (parameters [..., P] of one policy, of another) to KL(one || other) [...], nats.
    """

    net: ActorCritic
    outputs: Callable[[Params, Observation], PhasicOutputs]
    divergence: Callable[[Array, Array], Array]


def make_phasic(config: NetworkConfig, spec: EnvSpec) -> Phasic:
    """Returns a network for this environment, initialised as `make_actor_critic` does; the auxiliary head as the value's.

    Source: Cobbe et al. 2021 (arXiv:2009.04416), figure 1.

    Raises:
        UserError: the network is to remember, or to share its torso; or it does not fit the environment.
    """
    if config.core != "none":
        raise UserError(
            f"PPG keeps observations of many trajectories without the states of a memory: expected network.core 'none', got "
            f"{config.core!r}; use it, or PPO"
        )
    if config.shared_torso:
        raise UserError(
            "PPG trains policy and value in phases, each with a torso of its own: expected network.shared_torso False or "
            "None, got True; leave it out, or use PPO"
        )
    critic_inputs = inputs_of(spec, config.torso)
    actor_inputs = inputs_of(spec, config.torso, without=spec.critic_only)
    require_fit(spec, critic_inputs)
    head = make_policy_head(config, spec)
    actor = make_branch(config, actor_inputs, {"head": HeadSize(head.num_outputs, 0.01), "auxiliary": HeadSize(1, 1.0)})
    critic = make_branch(config, critic_inputs, {"head": HeadSize(1, 1.0)})
    return _bound(spec, head, actor, critic)


def _bound(spec: EnvSpec, head: PolicyHead, actor: Branch, critic: Branch) -> Phasic:
    def init(key: Array) -> Params:
        actor_key, critic_key = jax.random.split(key)
        return {"actor": actor.init(actor_key), "critic": critic.init(critic_key), **head.params}

    def outputs(params: Params, observation: Observation) -> PhasicOutputs:
        acted, value = _outputs(actor, params["actor"], observation), _value(critic, params, observation)
        policy = head.parameters(params, acted["head"], observation)
        return PhasicOutputs(policy, value, acted["auxiliary"][..., 0])

    def policy(params: Params, observation: Observation) -> Array:
        return head.parameters(params, _outputs(actor, params["actor"], observation)["head"], observation)

    def unroll(
        params: Params, observation: Observation, state: AgentState, is_first: Array
    ) -> tuple[Array, Array, AgentState]:
        del is_first
        return policy(params, observation), _value(critic, params, observation), state

    net = ActorCritic(
        init=init,
        policy=policy,
        value=partial(_value, critic),
        distribution=head.distribution,
        initial_state=actor.initial_state,
        step=lambda params, observation, state, is_first: (policy(params, observation), state),
        unroll=unroll,
        remembers=False,
    )
    return Phasic(net, outputs, policy_divergence(spec))


def _value(critic: Branch, params: Params, observation: Observation) -> Array:
    return _outputs(critic, params["critic"], observation)["head"][..., 0]


def _outputs(branch: Branch, params: Params, observation: Observation) -> Outputs:
    outputs, _ = branch.unroll(params, observation, (), jnp.zeros((), bool))  # without memory: neither is looked at
    return outputs


def policy_divergence(spec: EnvSpec) -> Callable[[Array, Array], Array]:
    """KL(one || other) [...] in nats, of two policies' parameters [..., P], in closed form.

    Leaves and elements are independent, so theirs add up. Squashing is one to one, so the KL is that of the Gaussians before.
    """
    parts = [part for _, leaf in items(spec.action) for part in _divergences(leaf)]

    def divergence(one: Array, other: Array) -> Array:
        total, begin = jnp.zeros(one.shape[:-1]), 0
        for of_part, size in parts:
            total += of_part(one[..., begin : begin + size], other[..., begin : begin + size])
            begin += size
        return total

    return divergence


def _divergences(leaf: LeafSpec) -> list[tuple[Callable[[Array, Array], Array], int]]:
    """KL of each independent part of a leaf's distribution, with how many parameters it has."""
    if isinstance(leaf, ArraySpec):
        return [(_normal_divergence, 2 * math.prod(leaf.shape))]
    num_values = (leaf.num_values,) if isinstance(leaf, DiscreteSpec) else leaf.num_values
    return [(_categorical_divergence, size) for size in num_values]


def _categorical_divergence(one: Array, other: Array) -> Array:
    log_one, log_other = jax.nn.log_softmax(one), jax.nn.log_softmax(other)
    # Illegal values are finitely unlikely (`agents/distributions/masking.py`): 0 times a number, never infinity.
    return jnp.sum(jnp.exp(log_one) * (log_one - log_other), axis=-1)


def _normal_divergence(one: Array, other: Array) -> Array:
    (mean, log_std), (other_mean, other_log_std) = jnp.split(one, 2, axis=-1), jnp.split(other, 2, axis=-1)
    squares = jnp.exp(2.0 * (log_std - other_log_std)) + jnp.square((mean - other_mean) * jnp.exp(-other_log_std))
    return jnp.sum(other_log_std - log_std + 0.5 * (squares - 1.0), axis=-1)
