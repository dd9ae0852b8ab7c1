"""Position in a ring of steps, and the age of its steps."""

import dataclasses

import jax
import jax.numpy as jnp

from agents.api import Array
from jaxsrl.replay.sizes import RingSizes


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RingPosition:
    """Fill state of a ring; int32 scalars. A step keeps its index until it is overwritten.

    Attributes:
        next_step: Next step in [0, C), index of the next trajectory.
        num_steps: Number of steps at most C, stored steps of each row.
        num_insertions: trajectories so far. It wraps around; only differences are used.
    """

    next_step: Array
    num_steps: Array
    num_insertions: Array


def init_position() -> RingPosition:
    """Returns the position of an empty ring."""
    # Separate arrays: a donated state must not hold one array twice.
    return RingPosition(*(jnp.zeros((), jnp.int32) for _ in range(3)))


def advance(sizes: RingSizes, position: RingPosition) -> RingPosition:
    """Returns the position after one more trajectory."""
    after = position.next_step + sizes.rollout_length
    return RingPosition(
        jnp.where(after == sizes.ring_steps, 0, after),
        jnp.minimum(position.num_steps + sizes.rollout_length, sizes.ring_steps),
        position.num_insertions + 1,
    )


def step_age(sizes: RingSizes, position: RingPosition, step: Array) -> Array:
    """Returns the steps, in [1, C], from the start of `step`, in [0, C), to the end of the newest."""
    age = position.next_step - step
    return jnp.where(age <= 0, age + sizes.ring_steps, age)


def step_at_age(sizes: RingSizes, position: RingPosition, age: Array) -> Array:
    """Returns the step of the ring, in [0, C), of an age in [1, C]."""
    step = position.next_step - age
    return jnp.where(step < 0, step + sizes.ring_steps, step)
