"""Distribution over the actions of a spec."""

import math

import numpy as np

from agents.networks.distributions.categorical import categorical, multi_categorical
from agents.networks.distributions.distribution import Distribution
from agents.networks.distributions.joint import joint
from agents.networks.distributions.normal import diagonal_normal, tanh_normal
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import DiscreteSpec, EnvSpec, LeafSpec, MultiDiscreteSpec, is_one_leaf
from envpool_bridge.spec.tree import Path, items, shown_path


def distribution_for(spec: EnvSpec, squash: bool = False) -> Distribution:
    """Returns the distribution over the actions of an environment: of its one leaf, or jointly of all leaves.

    Args:
        spec: Spec of the environment.
        squash: Use TanhNormal instead of DiagonalNormal for continuous actions; needs finite bounds.

    Raises:
        UserError: `squash` is set and an action is unbounded.
    """
    parts = leaf_distributions(spec, squash)
    return parts[0] if is_one_leaf(spec.action) else joint(spec.action, parts)


def leaf_distributions(spec: EnvSpec, squash: bool = False) -> list[Distribution]:
    """Returns the distribution of each leaf of the action, in order; arguments and errors are those of `distribution_for`."""
    return [_of_leaf(spec.env_id, path, leaf, squash) for path, leaf in items(spec.action)]


def _of_leaf(env_id: str, path: Path, leaf: LeafSpec, squash: bool) -> Distribution:
    if isinstance(leaf, DiscreteSpec):
        return categorical(leaf.num_values)
    if isinstance(leaf, MultiDiscreteSpec):
        return multi_categorical(leaf.num_values, leaf.shape)
    size = math.prod(leaf.shape)
    low, high = (np.broadcast_to(bound, leaf.shape).ravel() for bound in leaf.limits())
    if not squash:
        return diagonal_normal(size, leaf.shape, low, high)
    if not (np.isfinite(low) & np.isfinite(high) & (low < high)).all():
        raise UserError(
            f"{env_id}: squashed actions need finite bounds, lower ones below upper ones: got {shown_path('action', path)} "
            f"between {leaf.low} and {leaf.high}; use squash=False"
        )
    return tanh_normal(size, leaf.shape, low, high)
