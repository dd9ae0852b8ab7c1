"""Joint distribution over a tree of action leaves that are independent given the observation."""

from collections.abc import Callable, Sequence
from functools import reduce
from itertools import accumulate
from typing import Any

import jax
import jax.numpy as jnp

from agents.api import Action, Array
from agents.networks.distributions.distribution import Distribution
from envpool_bridge.spec.specs import SpecTree
from envpool_bridge.spec.tree import leaves, unflatten


def joint(spec: SpecTree, parts: Sequence[Distribution]) -> Distribution:
    """Returns the distribution of independent leaves; parameters are those of each leaf in turn.

    Args:
        spec: Spec of the action; actions have its structure.
        parts: Distribution of each leaf, in order.
    """
    ends = list(accumulate(part.num_parameters for part in parts))

    def apply_each(function: Callable[[Distribution, Array, int], Any], parameters: Array) -> list[Any]:
        return [
            function(part, parameters[..., end - part.num_parameters : end], index)
            for index, (part, end) in enumerate(zip(parts, ends, strict=True))
        ]

    def sample(parameters: Array, keys: Array) -> Action:
        def draw(part: Distribution, own: Array, index: int) -> Array:
            # Each leaf has its own keys, or leaves would share their noise.
            return part.sample(own, jax.vmap(jax.random.fold_in, in_axes=(0, None))(keys, index))

        return unflatten(spec, apply_each(draw, parameters))

    def mode(parameters: Array) -> Action:
        return unflatten(spec, apply_each(lambda part, own, _: part.mode(own), parameters))

    def log_prob(parameters: Array, action: Action) -> Array:
        actions = leaves(action)
        return reduce(jnp.add, apply_each(lambda part, own, index: part.log_prob(own, actions[index]), parameters))

    def entropy(parameters: Array) -> Array:
        return reduce(jnp.add, apply_each(lambda part, own, _: part.entropy(own), parameters))

    def inside(action: Action) -> Action:
        return unflatten(spec, [part.inside(own) for part, own in zip(parts, leaves(action), strict=True)])

    return Distribution(ends[-1], sample, mode, log_prob, entropy, inside=inside)
