"""Actions as vectors of numbers, which a world model takes and a policy samples: one-hot categories, or numbers in [-1, 1]."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from agents.api import Action, Array
from agents.ops.action_scaling import continuous_actions
from agents.world_models.rssm import mixed_log_probs
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import DiscreteSpec, EnvSpec, LeafSpec, MultiDiscreteSpec
from envpool_bridge.spec.tree import items, leaves, unflatten

_LOG_2PI = 1.8378770664093453
_STD_RANGE = (0.1, 1.0)
_STD_SHIFT = 2.0  # the initial deviation is near the larger end


class ActionVectors(NamedTuple):
    """Bound to an environment's spec. F is the size of an action's vector, P that of the policy's outputs.

    Attributes:
        size: F.
        num_parameters: P.
        encode: Maps actions [..., *leaf] to vectors [..., F] float32.
        decode: Maps vectors [..., F] to actions; numbers beyond their bounds are clipped.
        noise: Maps (key, shape) to random numbers [*shape, F] for `sample`; the key is consumed.
        sample: Maps (outputs [..., P], noise [..., F]) to vectors [..., F].
        mode: Maps outputs [..., P] to the most likely vectors [..., F].
        log_prob: Maps (outputs [..., P], vectors [..., F]) to log-probabilities or log-densities [...] in nats.
        entropy: Maps outputs [..., P] to entropies [...] in nats.
    """

    size: int
    num_parameters: int
    encode: Callable[[Action], Array]
    decode: Callable[[Array], Action]
    noise: Callable[[Array, tuple[int, ...]], Array]
    sample: Callable[[Array, Array], Array]
    mode: Callable[[Array], Array]
    log_prob: Callable[[Array, Array], Array]
    entropy: Callable[[Array], Array]


def make_action_vectors(spec: EnvSpec) -> ActionVectors:
    """Returns the vectors of actions that are all discrete, or all bounded arrays of floats.

    Raises:
        UserError: If the actions are of both kinds or unbounded, or some may be illegal: imagined states have no mask.
    """
    if spec.action_mask:
        raise UserError(
            f"{spec.env_id}: Dreamer imagines states, which have no action mask: expected an environment where every action is "
            f"always legal; use PPO or DQN"
        )
    if all(isinstance(leaf, DiscreteSpec | MultiDiscreteSpec) for leaf in leaves(spec.action)):
        return _categories(spec)
    return _numbers(spec)


def _categories(spec: EnvSpec) -> ActionVectors:
    """Returns vectors of independent categories, 1 % uniform; a MultiDiscrete leaf is several."""
    action_leaves = [leaf for _, leaf in items(spec.action)]
    sizes = [size for leaf in action_leaves for size in _num_values(leaf)]
    ends = [sum(sizes[: index + 1]) for index in range(len(sizes))]

    def split(vector: Array) -> list[Array]:
        return jnp.split(vector, ends[:-1], axis=-1)

    def log_probs(outputs: Array) -> Array:
        return jnp.concatenate([mixed_log_probs(part) for part in split(outputs)], axis=-1)

    def best(scores: Array) -> Array:
        hot = [jax.nn.one_hot(jnp.argmax(part, axis=-1), part.shape[-1]) for part in split(scores)]
        return jnp.concatenate(hot, axis=-1)

    def encode(action: Action) -> Array:
        flat = [
            jnp.reshape(value, (*value.shape[: value.ndim - len(leaf.shape)], -1))
            for value, leaf in zip(leaves(action), action_leaves, strict=True)
        ]
        numbers = jnp.concatenate(flat, axis=-1)
        return jnp.concatenate([jax.nn.one_hot(numbers[..., i], size) for i, size in enumerate(sizes)], axis=-1)

    def decode(vector: Array) -> Action:
        numbers = jnp.stack([jnp.argmax(part, axis=-1) for part in split(vector)], axis=-1)
        shaped, start = [], 0
        for leaf in action_leaves:
            count = len(_num_values(leaf))
            values = numbers[..., start : start + count].reshape((*numbers.shape[:-1], *leaf.shape))
            shaped.append(values.astype(leaf.dtype))
            start += count
        return unflatten(spec.action, shaped)

    def entropy(outputs: Array) -> Array:
        terms = log_probs(outputs)
        return -jnp.sum(jnp.exp(terms) * terms, axis=-1)

    return ActionVectors(
        size=ends[-1],
        num_parameters=ends[-1],
        encode=encode,
        decode=decode,
        noise=lambda key, shape: jax.random.gumbel(key, (*shape, ends[-1])),
        sample=lambda outputs, noise: best(log_probs(outputs) + noise),
        mode=best,
        log_prob=lambda outputs, vector: jnp.sum(vector * log_probs(outputs), axis=-1),
        entropy=entropy,
    )


def _num_values(leaf: LeafSpec) -> tuple[int, ...]:
    assert isinstance(leaf, DiscreteSpec | MultiDiscreteSpec)
    return (leaf.num_values,) if isinstance(leaf, DiscreteSpec) else leaf.num_values


def _numbers(spec: EnvSpec) -> ActionVectors:
    """Returns vectors of Gaussians with means in (-1, 1) and deviations in (0.1, 1)."""
    actions = continuous_actions(spec)
    smallest, largest = _STD_RANGE

    def gaussian(outputs: Array) -> tuple[Array, Array]:
        mean, raw = jnp.split(outputs, 2, axis=-1)
        return jnp.tanh(mean), (largest - smallest) * jax.nn.sigmoid(raw + _STD_SHIFT) + smallest

    def sample(outputs: Array, noise: Array) -> Array:
        mean, std = gaussian(outputs)
        return mean + std * noise

    def log_prob(outputs: Array, vector: Array) -> Array:
        mean, std = gaussian(outputs)
        return jnp.sum(-0.5 * jnp.square((vector - mean) / std) - jnp.log(std) - 0.5 * _LOG_2PI, axis=-1)

    def entropy(outputs: Array) -> Array:
        return jnp.sum(jnp.log(gaussian(outputs)[1]) + 0.5 * (1.0 + _LOG_2PI), axis=-1)

    return ActionVectors(
        size=actions.size,
        num_parameters=2 * actions.size,
        encode=actions.to_unit,
        decode=actions.from_unit,
        noise=lambda key, shape: jax.random.normal(key, (*shape, actions.size)),
        sample=sample,
        mode=lambda outputs: gaussian(outputs)[0],
        log_prob=log_prob,
        entropy=entropy,
    )
