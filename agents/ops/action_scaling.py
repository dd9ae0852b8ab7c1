"""Bounded continuous actions scaled to the cube [-1, 1]^D, and random points for exploration."""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from agents.api import Action, Array, LearnerState
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import ArraySpec, EnvSpec, LeafSpec
from envpool_bridge.spec.tree import Path, items, leaves, shown_path, unflatten


class ContinuousActions(NamedTuple):
    """The affine map between actions and [-1, 1]^D. One vector contains all leaves of an action, in order.

    Attributes:
        size: D.
        to_unit: Maps actions, [..., *leaf] each leaf, to [..., D] float32 in [-1, 1]: those that the environment executes, which
            clips actions to their bounds.
        from_unit: Maps back, to the leaves' dtypes and within their bounds.
    """

    size: int
    to_unit: Callable[[Action], Array]
    from_unit: Callable[[Array], Action]


def continuous_actions(spec: EnvSpec) -> ContinuousActions:
    """Returns the map for this environment.

    Raises:
        UserError: If a leaf of the action is not an array of floats, or an element lacks a finite lower bound below a finite
            upper bound.
    """
    action_leaves = list(items(spec.action))
    bounds = [_bounds(spec.env_id, path, leaf) for path, leaf in action_leaves]
    low, high = (np.concatenate([pair[side] for pair in bounds]) for side in (0, 1))
    # In float64, because bounds near the largest float32 would overflow.
    center = ((low.astype(np.float64) + high) / 2.0).astype(np.float32)
    half = ((high.astype(np.float64) - low) / 2.0).astype(np.float32)
    ends = np.cumsum([pair[0].size for pair in bounds]).tolist()

    def to_unit(action: Action) -> Array:
        flat = [
            jnp.reshape(values, (*values.shape[: values.ndim - len(leaf.shape)], -1)).astype(jnp.float32)
            for values, (_, leaf) in zip(leaves(action), action_leaves, strict=True)
        ]
        return jnp.clip((jnp.concatenate(flat, axis=-1) - center) / half, -1.0, 1.0)

    def from_unit(unit: Array) -> Action:
        # Clipped, because some environments reject an action that rounding moved out of its bounds.
        flat = jnp.clip(center + half * unit, low, high)
        pieces = jnp.split(flat, ends[:-1], axis=-1)
        shaped = [
            piece.reshape((*piece.shape[:-1], *leaf.shape)).astype(leaf.dtype)
            for piece, (_, leaf) in zip(pieces, action_leaves, strict=True)
        ]
        return unflatten(spec.action, shaped)

    return ContinuousActions(ends[-1], to_unit, from_unit)


def uniform_actions(keys: Array, size: int) -> Array:
    """Returns uniformly random points [B, size] of [-1, 1]^size, one for each typed key [B] (consumed)."""
    return jax.vmap(lambda key: jax.random.uniform(key, (size,), minval=-1.0))(keys)


def sync_random_acting(random_updates: int | None, state: LearnerState) -> LearnerState:
    """Returns the state whose parameters contain "acts_uniformly", whether actions are uniformly random.

    Args:
        random_updates: Trajectories collected by random actions. None: all before the first gradient step.
        state: State whose `extra` counts `num_gradient_steps`.
    """
    uniform = state.extra.num_gradient_steps == 0 if random_updates is None else state.num_updates < random_updates
    return dataclasses.replace(state, params={**state.params, "acts_uniformly": uniform})


def standard_normal(keys: Array, size: int) -> Array:
    """Returns standard normal noise [B, size], one vector for each typed key [B] (consumed)."""
    return jax.vmap(lambda key: jax.random.normal(key, (size,)))(keys)


def _bounds(env_id: str, path: Path, leaf: LeafSpec) -> tuple[np.ndarray, np.ndarray]:
    """Returns the lowest and highest value of each element of a leaf, flattened."""
    shown = shown_path("action", path)
    if not isinstance(leaf, ArraySpec) or not leaf.dtype.startswith("float"):
        raise UserError(
            f"{env_id}: expected continuous actions, arrays of floats, got {leaf} for {shown}; use an algorithm for discrete "
            f"actions (dqn, ppo), or PPO for both kinds together"
        )
    low, high = (np.broadcast_to(bound, leaf.stored_shape).astype(np.float32).ravel() for bound in leaf.limits())
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise UserError(
            f"{env_id}: expected finite bounds, which actions are scaled to, got {shown} between {leaf.low} and {leaf.high}; "
            f"wrap the environment (gymnasium.wrappers.TransformAction(env, f, Box(-1, 1, {leaf.shape})) with f from there to its "
            f"actions), or use PPO"
        )
    if not (low < high).all():
        element = int(np.argmin(low < high))
        raise UserError(
            f"{env_id}: expected lower bounds below upper ones, got {low[element]} and {high[element]} for element {element} "
            f"of {shown}; remove constant elements from the action"
        )
    return low, high
