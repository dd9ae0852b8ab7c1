"""Windows of a ring of steps, in the form that slots have: with the frames that stacking their observations needs."""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from agents.api import Array, Trajectory
from jaxsrl.replay.device.ring_index import RingPosition, step_age
from jaxsrl.replay.sizes import RingSizes


def gather_windows(
    sizes: RingSizes, storage: Trajectory, position: RingPosition, begin: Array, group: Array
) -> Trajectory:
    """Windows of L steps.

    Args:
        sizes: of the ring.
        storage: the ring.
        position: of the ring; all windows are complete (`selector.draw` draws no others).
        begin: [N] int32 in [0, C), steps of the ring.
        group: [N] int32 in [0, G), which rows.

    Returns:
        [L + F, N * A, ...] each leaf of the observation for F frames, of which the first F - 1 precede the window;
        [L + W, N * A] `is_first`; [L, N * A, ...] the rest; `agent_state` [N * A, ...] of the trajectory that the window begins
        in: before its first step where the window begins with it.
    """
    team = jnp.arange(sizes.agents_per_window, dtype=jnp.int32)
    rows = _computed_once((group[:, None] * sizes.agents_per_window + team).reshape(-1))
    begin = jnp.repeat(begin, sizes.agents_per_window)
    take = partial(_take, rows)
    places = {0: _computed_once(_indices(sizes, position, begin, 0))}
    steps = jax.tree.map(
        partial(take, places[0][:-1]), dataclasses.replace(storage, observation=(), is_first=(), agent_state=())
    )

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
    """Returns the newest `count` steps of all rows, without observations and memory (() in their place).

    Returns:
        [count + 1, B] `is_first`, [count, B, ...] the rest. Those before the first that was inserted are zeros.
    """
    steps = position.next_step - count + jnp.arange(count + 1, dtype=jnp.int32)
    steps = jnp.where(steps < 0, steps + sizes.ring_steps, steps)
    rest = dataclasses.replace(storage, observation=(), is_first=(), agent_state=())
    found: Trajectory = jax.tree.map(lambda ring: ring[steps[:-1]], rest)
    return dataclasses.replace(found, is_first=storage.is_first[steps.at[-1].set(sizes.ring_steps)])


def _indices(sizes: RingSizes, position: RingPosition, begin: Array, before: int) -> Array:
    """[before + L + 1, N] places in the ring of the steps from `before` before a window's first to the one after its last."""
    offset = jnp.arange(-before, sizes.window_steps + 1, dtype=jnp.int32)[:, None]
    size = sizes.ring_steps
    step = begin + offset
    step = jnp.where(step < 0, step + size, jnp.where(step >= size, step - size, step))
    age = step_age(sizes, position, begin)
    step = jnp.where(offset == age, size, step)  # what follows the newest step has a place of its own
    if not before:
        return step
    order = position.num_steps - age + offset  # since the first step that is kept
    return jnp.where(order < 0, size + 1 + before + order, step)


def _computed_once(indices: Array) -> Array:
    """Returns the same, by way of a scatter: compilers for CPU would compute indices again for each number that is read with them."""
    flat = indices.reshape(-1)
    places = jnp.arange(flat.shape[0], dtype=jnp.int32)
    copied = jnp.zeros(flat.shape, flat.dtype).at[places].set(flat, mode="promise_in_bounds", unique_indices=True)
    return copied.reshape(indices.shape)


def _take(rows: Array, steps: Array, ring: Any) -> Array:
    return ring.at[steps, rows].get(mode="promise_in_bounds")
