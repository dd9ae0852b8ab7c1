"""Network of PPG: policy and value on separate torsos, and an auxiliary value on the policy's torso."""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from agents.api import Array, Observation, Params
from agents.networks.actor_critic import ActorCritic, bind_head, policy_outputs, separate_torsos
from agents.networks.branch import Heads, HeadSize, make_branch
from agents.networks.config import NetworkConfig
from agents.networks.observation_inputs import actor_config, make_inputs, validate_torso
from agents.networks.policy_head import make_policy_head
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec, LeafSpec
from envpool_bridge.spec.tree import items


class PhasicOutputs(NamedTuple):
    """Outputs for observations [..., *leaf]; XLA removes unused ones.

    Attributes:
        policy: Parameters of the action distribution, [..., P].
        value: Value from the value's torso, [...] float32.
        auxiliary: Value from the policy's torso, [...] float32.
    """

    policy: Array
    value: Array
    auxiliary: Array


class Phasic(NamedTuple):
    """A feed-forward network bound to an environment's spec.

    Parameters are those of `agents/networks/actor_critic.py` with separate torsos, and one more head of the actor.

    Attributes:
        net: Network without the auxiliary value, as other algorithms use it.
        outputs: Maps (params, observation [..., *leaf]) to all outputs.
        divergence: Maps parameters [..., P] of two policies p and q to KL(p || q) [...], nats.
    """

    net: ActorCritic
    outputs: Callable[[Params, Observation], PhasicOutputs]
    divergence: Callable[[Array, Array], Array]


def make_phasic(config: NetworkConfig, spec: EnvSpec) -> Phasic:
    """Returns a network initialized as by `make_actor_critic`, the auxiliary head as the value's.

    Source: Cobbe et al. 2021 (arXiv:2009.04416), figure 1.

    Raises:
        UserError: If the network is recurrent, shares its torso, or does not fit the environment.
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
    critic_inputs = make_inputs(spec, config.torso)
    actor_inputs = make_inputs(spec, config.torso, without=spec.critic_only)
    validate_torso(spec, critic_inputs)
    head = make_policy_head(config, spec)
    heads: Heads = {"head": HeadSize(head.num_outputs, 0.01), "auxiliary": HeadSize(1, 1.0)}
    if config.sde_period is not None:
        heads = {**heads, "features": None}
    actor = make_branch(actor_config(config, actor_inputs), actor_inputs, heads)
    critic = make_branch(config.critic, critic_inputs, {"head": HeadSize(1, 1.0)})
    trunk = separate_torsos(actor, critic)

    def outputs(params: Params, observation: Observation) -> PhasicOutputs:
        heads = actor.outputs(params["actor"], observation)
        policy = head.parameters(params, policy_outputs(heads, "head"), observation)
        return PhasicOutputs(policy, trunk.value(params, observation), heads["auxiliary"][..., 0])

    return Phasic(bind_head(config, head, trunk), outputs, policy_divergence(spec))


def policy_divergence(spec: EnvSpec) -> Callable[[Array, Array], Array]:
    """Returns the function from parameters [..., P] of p and q to KL(p || q) [...] in nats, in closed form.

    Leaves and elements are independent, so their divergences add up. Squashing is injective, so the KL is that of the Gaussians.
    """
    parts = [part for _, leaf in items(spec.action) for part in _divergences(leaf)]

    def divergence(p: Array, q: Array) -> Array:
        total, start = jnp.zeros(p.shape[:-1]), 0
        for part_divergence, size in parts:
            total += part_divergence(p[..., start : start + size], q[..., start : start + size])
            start += size
        return total

    return divergence


def _divergences(leaf: LeafSpec) -> list[tuple[Callable[[Array, Array], Array], int]]:
    """Returns the KL of each independent part of a leaf's distribution, and its number of parameters."""
    if isinstance(leaf, ArraySpec):
        return [(_normal_divergence, 2 * math.prod(leaf.shape))]
    num_values = (leaf.num_values,) if isinstance(leaf, DiscreteSpec) else leaf.num_values
    return [(_categorical_divergence, size) for size in num_values]


def _categorical_divergence(p: Array, q: Array) -> Array:
    log_p, log_q = jax.nn.log_softmax(p), jax.nn.log_softmax(q)
    # Logits of illegal values are finite (`agents/networks/distributions/masking.py`): 0 times a number, never infinity.
    return jnp.sum(jnp.exp(log_p) * (log_p - log_q), axis=-1)


def _normal_divergence(p: Array, q: Array) -> Array:
    (mean, log_std), (other_mean, other_log_std) = jnp.split(p, 2, axis=-1), jnp.split(q, 2, axis=-1)
    squares = jnp.exp(2.0 * (log_std - other_log_std)) + jnp.square((mean - other_mean) * jnp.exp(-other_log_std))
    return jnp.sum(other_log_std - log_std + 0.5 * (squares - 1.0), axis=-1)
