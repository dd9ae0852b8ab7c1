"""Windows of a ring of steps in the form of slots, with the frames that are needed to stack observations."""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from agents.api import Array, Trajectory
from jaxsrl.replay.device.ring_index import RingPosition, step_age
from jaxsrl.replay.device.storage import values_per_step
from jaxsrl.replay.sizes import RingSizes


def gather_windows(
    sizes: RingSizes, storage: Trajectory, position: RingPosition, begin: Array, group: Array
) -> Trajectory:
    """Returns windows of L steps.

    Args:
        sizes: Sizes of the ring.
        storage: the ring.
        position: Position of the ring; all windows must be complete, as those of `sampler.draw` are.
        begin: [N] int32 in [0, C), steps of the ring.
        group: [N] int32 in [0, G), group of rows.

    Returns:
        Observations [L + F, N * A, ...] for F frames, of which the first F - 1 precede the window. `is_first` [L + W, N * A]. The
        rest is [L, N * A, ...]. `agent_state` [N * A, ...] is from before the first step of the trajectory in which the window
        starts.
    """
    team = jnp.arange(sizes.agents_per_window, dtype=jnp.int32)
    rows = _computed_once((group[:, None] * sizes.agents_per_window + team).reshape(-1))
    begin = jnp.repeat(begin, sizes.agents_per_window)
    take = partial(_take, rows)
    places = {0: _computed_once(_indices(sizes, position, begin, 0))}
    steps = jax.tree.map(partial(take, places[0][:-1]), values_per_step(storage))

    def observed(ring: Array) -> Array:
        before = ring.shape[0] - sizes.ring_steps - 1
        if before not in places:
            places[before] = _computed_once(_indices(sizes, position, begin, before))
        return take(places[before], ring)

    return dataclasses.replace(
        steps,
        observation=jax.tree.map(observed, storage.observation),
        is_first=observed(storage.is_first),
        agent_state=jax.tree.map(partial(take, begin // sizes.rollout_length), storage.agent_state),
    )


def newest_steps(sizes: RingSizes, storage: Trajectory, position: RingPosition, count: int) -> Trajectory:
    """Returns the newest `count` steps of all rows, without observations and recurrent state (() in their place).

    Returns:
        [count + 1, B] `is_first`, [count, B, ...] the rest. Steps before the first insertion are zeros.
    """
    steps = position.next_step - count + jnp.arange(count + 1, dtype=jnp.int32)
    steps = jnp.where(steps < 0, steps + sizes.ring_steps, steps)
    newest: Trajectory = jax.tree.map(lambda ring: ring[steps[:-1]], values_per_step(storage))
    return dataclasses.replace(newest, is_first=storage.is_first[steps.at[-1].set(sizes.ring_steps)])


def _indices(sizes: RingSizes, position: RingPosition, begin: Array, before: int) -> Array:
    """Returns [before + L + 1, N] ring indices, from `before` steps before a window's first to one after its last."""
    offset = jnp.arange(-before, sizes.window_steps + 1, dtype=jnp.int32)[:, None]
    size = sizes.ring_steps
    step = begin + offset
    step = jnp.where(step < 0, step + size, jnp.where(step >= size, step - size, step))
    age = step_age(sizes, position, begin)
    step = jnp.where(offset == age, size, step)  # the step after the newest has its own place
    if not before:
        return step
    order = position.num_steps - age + offset  # since the first stored step
    return jnp.where(order < 0, size + 1 + before + order, step)


def _computed_once(indices: Array) -> Array:
    """Returns the same indices via a scatter, since CPU compilers would compute them again for each value read."""
    flat = indices.reshape(-1)
    places = jnp.arange(flat.shape[0], dtype=jnp.int32)
    copied = jnp.zeros(flat.shape, flat.dtype).at[places].set(flat, mode="promise_in_bounds", unique_indices=True)
    return copied.reshape(indices.shape)


def _take(rows: Array, steps: Array, ring: Any) -> Array:
    return ring.at[steps, rows].get(mode="promise_in_bounds")
