"""Encoding of actions for MADDPG: points of a cube for continuous actions, one-hot vectors for discrete ones."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from agents.api import Action, Array
from agents.networks.distributions import mask_logits
from agents.networks.team_values import num_team_actions
from agents.ops.action_scaling import continuous_actions, standard_normal, uniform_actions
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import DiscreteSpec, EnvSpec


class TeamActions(NamedTuple):
    """Functions of one agent's actions, D numbers each.

    `outputs` [..., D] are those of a policy's network, `legal` [..., D] a mask or None.

    Attributes:
        size: D.
        encode: Maps actions, [..., *leaf] each leaf, to vectors [..., D] float32.
        decode: Maps back.
        best: Maps (outputs, legal) to the policy's action, a vector.
        explore: Maps (outputs [B, D], legal, keys [B]) to actions of training; keys are consumed.
        uniform: Maps (legal, keys [B]) to uniformly random actions, [B, D]; keys are consumed.
        relaxed: Maps (outputs, legal, key) to differentiable vectors; the key is consumed.
    """

    size: int
    encode: Callable[[Action], Array]
    decode: Callable[[Array], Action]
    best: Callable[[Array, Array | None], Array]
    explore: Callable[[Array, Array | None, Array], Array]
    uniform: Callable[[Array | None, Array], Array]
    relaxed: Callable[[Array, Array | None, Array], Array]


def make_team_actions(spec: EnvSpec, noise: float, temperature: float) -> TeamActions:
    """Returns the functions for this environment's actions.

    Args:
        spec: Spec of the rows.
        noise: Standard deviation of the Gaussian noise on continuous actions, in units of actions scaled to [-1, 1].
        temperature: Temperature of the softmax that relaxes a discrete action in gradients.

    Raises:
        UserError: If the actions are neither one Discrete value nor bounded arrays of floats, or differ among agents.
    """
    if isinstance(spec.action, DiscreteSpec):
        return _discrete(num_team_actions(spec), temperature)
    if any(agent.action != spec.agents[0].action for agent in spec.agents):
        different = {agent.name: agent.action for agent in spec.agents}
        raise UserError(f"{spec.env_id}: expected the same actions of every agent of a team, got {different}")
    return _continuous(spec, noise)


def _continuous(spec: EnvSpec, noise: float) -> TeamActions:
    actions = continuous_actions(spec)

    def best(outputs: Array, legal: Array | None) -> Array:
        del legal
        return jnp.tanh(outputs)

    def explore(outputs: Array, legal: Array | None, keys: Array) -> Array:
        return jnp.clip(best(outputs, legal) + noise * standard_normal(keys, actions.size), -1.0, 1.0)

    def uniform(legal: Array | None, keys: Array) -> Array:
        del legal
        return uniform_actions(keys, actions.size)

    def relaxed(outputs: Array, legal: Array | None, key: Array) -> Array:
        del key
        return best(outputs, legal)

    return TeamActions(actions.size, actions.to_unit, actions.from_unit, best, explore, uniform, relaxed)


def _discrete(size: int, temperature: float) -> TeamActions:
    """Returns functions of softmax policies: training samples them, evaluation and targets take the most likely action."""

    def encode(action: Action) -> Array:
        return jax.nn.one_hot(action, size)

    def decode(vector: Array) -> Action:
        return jnp.argmax(vector, axis=-1).astype(jnp.int32)

    def best(outputs: Array, legal: Array | None) -> Array:
        return encode(decode(mask_logits(outputs, legal)))

    def explore(outputs: Array, legal: Array | None, keys: Array) -> Array:
        noise = jax.vmap(lambda key: jax.random.gumbel(key, (size,)))(keys)
        return encode(decode(mask_logits(outputs, legal) + noise))

    def uniform(legal: Array | None, keys: Array) -> Array:
        return explore(jnp.zeros((keys.shape[0], size)), legal, keys)

    def relaxed(outputs: Array, legal: Array | None, key: Array) -> Array:
        # Straight through (Jang et al. 2017, section 2.2): critics see one action, gradients pass the softmax it was drawn from.
        noisy = mask_logits(outputs, legal) + jax.random.gumbel(key, outputs.shape)
        soft = jax.nn.softmax(noisy / temperature)
        return encode(decode(noisy)) + soft - jax.lax.stop_gradient(soft)

    return TeamActions(size, encode, decode, best, explore, uniform, relaxed)
