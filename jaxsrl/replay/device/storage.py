"""Ring of steps as a `Trajectory` whose time axis is the ring. Each frame of each row is stored once.

An array with T steps per slot is [C, B, ...]. An observation of F frames is [C + F, B, ...]: step C follows the newest step, and
the F - 1 after it precede the first step ever inserted. Recurrent state is stored once per trajectory, [C // T, B, ...].
"""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from agents.api import Array, Trajectory
from jaxsrl.replay.device.ring_index import RingPosition
from jaxsrl.replay.sizes import RingSizes


def storage_shapes(sizes: RingSizes, shapes: Trajectory) -> Trajectory:
    """Returns `jax.ShapeDtypeStruct` of every array of the ring.

    Args:
        sizes: Sizes of the ring.
        shapes: Shapes of a slot (see `make_sizes`).
    """
    longer = sizes.ring_steps - sizes.rollout_length
    steps = dataclasses.replace(shapes, agent_state=())
    ring = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((leaf.shape[0] + longer, *leaf.shape[1:]), leaf.dtype), steps)
    slots = sizes.ring_steps // sizes.rollout_length
    state = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((slots, *leaf.shape), leaf.dtype), shapes.agent_state)
    return dataclasses.replace(ring, agent_state=state)


def init_storage(sizes: RingSizes, shapes: Trajectory) -> Trajectory:
    """Returns an empty ring."""
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), storage_shapes(sizes, shapes))


def insert(sizes: RingSizes, storage: Trajectory, position: RingPosition, slot: Trajectory) -> Trajectory:
    """Returns the ring with one more trajectory, which replaces the oldest. In place if `storage` is donated.

    Args:
        sizes: Sizes of the ring.
        storage: the ring.
        position: Position before this trajectory.
        slot: [T, B, ...] with the frames before its first step (see `make_sizes`); it follows the previous slot. After a resume,
            a row may start another episode instead: its newest step is then no longer valid.
    """
    start, is_new = position.next_step, position.num_steps == 0
    observed = partial(_put_observed, sizes, start, is_new)
    newest = jnp.where(start == 0, sizes.ring_steps, start) - 1
    # Otherwise only a step that resets is before the first of an episode.
    valid = storage.valid[newest] & ~slot.is_first[-sizes.rollout_length - 1]
    storage = dataclasses.replace(storage, valid=_put(newest, storage.valid, valid[None]))
    ring = jax.tree.map(partial(_put, start), values_per_step(storage), values_per_step(slot))
    place = start // sizes.rollout_length
    return dataclasses.replace(
        ring,
        observation=jax.tree.map(observed, storage.observation, slot.observation),
        is_first=observed(storage.is_first, slot.is_first),
        agent_state=jax.tree.map(lambda kept, new: _put(place, kept, new[None]), storage.agent_state, slot.agent_state),
    )


def values_per_step(trajectory: Trajectory) -> Trajectory:
    """Returns the arrays with one value per step, and () for observations, `is_first` and recurrent state."""
    return dataclasses.replace(trajectory, observation=(), is_first=(), agent_state=())


def _put(start: Any, ring: Array, new: Array) -> Array:
    return jax.lax.dynamic_update_slice_in_dim(ring, new.astype(ring.dtype), start, 0)


def _put_observed(sizes: RingSizes, start: Array, is_new: Array, ring: Array, frames: Array) -> Array:
    """Returns the ring with frames [F-1 + T + 1, B, ...] of a slot: its steps, the one after them, and those before all."""
    before = frames.shape[0] - sizes.rollout_length - 1
    beyond = sizes.ring_steps
    if before:
        kept = jax.lax.slice_in_dim(ring, beyond + 1, beyond + 1 + before)
        ring = _put(beyond + 1, ring, jnp.where(is_new, frames[:before], kept))
    ring = _put(beyond, ring, frames[-1:])
    return _put(start, ring, frames[before:-1])
