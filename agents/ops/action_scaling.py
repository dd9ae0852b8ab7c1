"""Bounded continuous actions as points of a cube: what networks choose and judge, whatever units the environment has."""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from agents.api import Action, Array
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import ArraySpec, EnvSpec, LeafSpec
from envpool_bridge.spec.tree import Path, items, leaves, shown_path, unflatten


class ContinuousActions(NamedTuple):
    """The affine map between actions and [-1, 1]^D. All leaves of an action lie in one vector, in order.

    Attributes:
        size: D.
        to_unit: actions, [..., *leaf] each leaf, to [..., D] float32 in [-1, 1].
        from_unit: the inverse, in the leaves' dtypes and within their bounds.
    """

    size: int
    to_unit: Callable[[Action], Array]
    from_unit: Callable[[Array], Action]


def continuous_actions(spec: EnvSpec) -> ContinuousActions:
    """The map for this environment.

    Raises:
        UserError: a leaf of the action is not an array of floats, or has an element without a finite lower and a larger finite
            upper bound.
    """
    found = list(items(spec.action))
    bounds = [_bounds(spec.env_id, path, leaf) for path, leaf in found]
    low, high = (np.concatenate([pair[side] for pair in bounds]) for side in (0, 1))
    # In float64: bounds near the largest float32 would overflow.
    centre = ((low.astype(np.float64) + high) / 2.0).astype(np.float32)
    half = ((high.astype(np.float64) - low) / 2.0).astype(np.float32)
    ends = np.cumsum([pair[0].size for pair in bounds]).tolist()

    def to_unit(action: Action) -> Array:
        flat = [
            jnp.reshape(values, (*values.shape[: values.ndim - len(leaf.shape)], -1)).astype(jnp.float32)
            for values, (_, leaf) in zip(leaves(action), found, strict=True)
        ]
        return (jnp.concatenate(flat, axis=-1) - centre) / half

    def from_unit(unit: Array) -> Action:
        # Clipped: rounding must not leave the bounds, of which some environments are strict.
        flat = jnp.clip(centre + half * unit, low, high)
        pieces = jnp.split(flat, ends[:-1], axis=-1)
        shaped = [
            piece.reshape((*piece.shape[:-1], *leaf.shape)).astype(leaf.dtype)
            for piece, (_, leaf) in zip(pieces, found, strict=True)
        ]
        return unflatten(spec.action, shaped)

    return ContinuousActions(ends[-1], to_unit, from_unit)


def _bounds(env_id: str, path: Path, leaf: LeafSpec) -> tuple[np.ndarray, np.ndarray]:
    """Lowest and highest values of each element of a leaf, flattened."""
    shown = shown_path("action", path)
    if not isinstance(leaf, ArraySpec) or not leaf.dtype.startswith("float"):
        raise UserError(
            f"{env_id}: expected continuous actions, arrays of floats, got {leaf} for {shown}; use an algorithm for discrete "
            f"actions (dqn, ppo), or PPO for both kinds together"
        )
    low, high = leaf.bound("low"), leaf.bound("high")
    if low is None or high is None or not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise UserError(
            f"{env_id}: expected finite bounds, which actions are scaled to, got {shown} between {leaf.low} and {leaf.high}; "
            f"wrap the environment (gymnasium.wrappers.RescaleAction), or use PPO"
        )
    low, high = (np.broadcast_to(bound, leaf.stored_shape).astype(np.float32).ravel() for bound in (low, high))
    if not (low < high).all():
        element = int(np.argmin(low < high))
        raise UserError(
            f"{env_id}: expected lower bounds below upper ones, got {low[element]} and {high[element]} for element {element} "
            f"of {shown}; leave out of the action what cannot be chosen"
        )
    return low, high
