"""Action masks: logits that give illegal values probability 0."""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp

from agents.api import Array, Observation
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec, MultiDiscreteSpec
from envpool_bridge.spec.tree import items, lookup, shown_path

ILLEGAL = -1e9
"""Logit of an illegal value: its probability is exactly 0 in float32. Finite, so that no gradient is 0 times infinity."""


class MaskedLeaf(NamedTuple):
    """Masked leaf of the action, and its mask.

    Attributes:
        action: Index of the masked leaf among the leaves of the action spec.
        mask: Keys of the mask in the observation.
    """

    action: int
    mask: tuple[str, ...]


def mask_logits(logits: Array, mask: Array | None) -> Array:
    """Returns logits [..., A] with `ILLEGAL` for illegal values, where `mask` [..., A] is 0; without a mask all are legal.

    The probabilities of the other values then sum to 1. If a choice has no legal value, which only happens in rows that are
    about to reset, all values have the same probability.
    """
    return logits if mask is None else jnp.where(mask != 0, logits, ILLEGAL)


def make_legal(spec: EnvSpec) -> Callable[[Observation], Array | None]:
    """Returns the function from observations to the mask, None if every action is always legal; raises as `find_mask` does."""
    masked = find_mask(spec)
    return lambda observation: None if masked is None else lookup(observation, masked.mask)


def find_mask(spec: EnvSpec) -> MaskedLeaf | None:
    """Returns the masked leaf and its mask; None if every action is always legal.

    The mask has one element for each value of a Discrete leaf, or for each value of each element of a MultiDiscrete leaf, in
    order. It masks the only discrete leaf of the action.

    Raises:
        UserError: If the observation has no such leaf, the action does not have exactly one discrete leaf, or their sizes differ.
    """
    if not spec.action_mask:
        return None
    shown = shown_path("observation", spec.action_mask)
    mask = dict(items(spec.observation)).get(spec.action_mask)
    if mask is None:
        raise UserError(f"{spec.env_id}: expected the action mask at {shown}, which the observation does not have")
    actions = list(items(spec.action))
    discrete = [index for index, (_, leaf) in enumerate(actions) if isinstance(leaf, DiscreteSpec | MultiDiscreteSpec)]
    if len(discrete) != 1:
        names = ", ".join(shown_path("action", actions[index][0]) for index in discrete) or "none"
        raise UserError(
            f"{spec.env_id}: the action mask {shown} needs exactly one discrete leaf of the action to mask, got {names}; make "
            f"them one MultiDiscrete leaf, or leave the mask out of the spec"
        )
    path, leaf = actions[discrete[0]]
    size = leaf.num_values if isinstance(leaf, DiscreteSpec) else sum(leaf.num_values)
    if not isinstance(mask, ArraySpec) or mask.shape != (size,):
        raise UserError(
            f"{spec.env_id}: expected the action mask {shown} to have shape ({size},), one element for each value of "
            f"{shown_path('action', path)}, got {mask}"
        )
    return MaskedLeaf(discrete[0], spec.action_mask)
