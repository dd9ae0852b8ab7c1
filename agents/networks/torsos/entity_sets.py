"""Sets of entities among the leaves of an observation, and their masks.

A set is a leaf of floats of rank 2, [entities, features]. A sibling leaf [entities] named as the set and "_mask" is 0 for absent or
hidden entities.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax.numpy as jnp

from agents.api import Array
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import ArraySpec, LeafSpec, describe_leaves
from envpool_bridge.spec.tree import Path, shown_path


class EntitySet(NamedTuple):
    """Features [..., N, F] float32 of N entities, and their visibility [..., N] bool."""

    features: Array
    visible: Array


def is_entity_set(leaf: LeafSpec) -> bool:
    """Returns whether the leaf is a set: floats of rank 2, no stack of frames."""
    return isinstance(leaf, ArraySpec) and leaf.dtype.startswith("float") and len(leaf.shape) == 2 and leaf.frames == 1


def masks_of(leaves: Sequence[tuple[Path, LeafSpec]]) -> dict[Path, Path | None]:
    """Returns the mask of each set among the leaves; None if all entities are visible."""
    paths = {path for path, _ in leaves}
    sets = [path for path, leaf in leaves if is_entity_set(leaf)]
    masks = {path: (*path[:-1], f"{path[-1]}_mask") for path in sets if path}
    return {path: masks[path] if masks.get(path) in paths else None for path in sets}


def with_masks(leaves: Sequence[tuple[Path, LeafSpec]], encoded: Mapping[Path, Array]) -> dict[Path, Array | EntitySet]:
    """Returns encoded leaves with each set and its mask replaced by one EntitySet at the set's path."""
    merged: dict[Path, Array | EntitySet] = dict(encoded)
    for path, mask in masks_of(leaves).items():
        features = encoded[path]
        visible = jnp.ones(features.shape[:-1], bool) if mask is None else encoded[mask] != 0
        merged[path] = EntitySet(features, visible)
        if mask is not None:
            del merged[mask]
    return merged


def validate_entity_sets(env_id: str, leaves: Sequence[tuple[Path, LeafSpec]]) -> None:
    """Validates that the leaves contain a set of entities, and that masks fit their sets.

    Raises:
        UserError: If they do not; the message names the leaf.
    """
    specs, masks = dict(leaves), masks_of(leaves)
    if not masks:
        listed = ", ".join(describe_leaves(shown_path("observation", path), leaf) for path, leaf in leaves)
        raise UserError(
            f"{env_id}: the entities torso needs a float leaf of rank 2, [entities, features], got {listed}; use torso 'mlp'"
        )
    for path, mask in masks.items():
        if mask is None:
            continue
        leaf, size = specs[mask], specs[path].shape[0]
        # Observation normalization shifts and scales floats, so no 0 would be left in them.
        if not isinstance(leaf, ArraySpec) or leaf.shape != (size,) or leaf.dtype.startswith("float"):
            raise UserError(
                f"{env_id}: the mask of {shown_path('observation', path)} must be an array of integers or booleans of shape "
                f"({size},), got {describe_leaves(shown_path('observation', mask), leaf)}; change the environment's space, "
                f"or the name of the leaf if it is no mask"
            )
