"""Where a ring of steps is: the newest step, and how old a window is."""

import dataclasses

import jax
import jax.numpy as jnp

from agents.api import Array
from jaxsrl.replay.sizes import RingSizes


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RingPosition:
    """How far a ring has been filled; int32 scalars. A step lies where it is until it is overwritten.

    Attributes:
        next_step: in [0, C), where the next trajectory goes.
        num_steps: at most C, steps that are kept of each row.
        num_insertions: trajectories so far. It wraps around, and only differences count.
    """

    next_step: Array
    num_steps: Array
    num_insertions: Array


def init_position() -> RingPosition:
    """Of an empty ring."""
    # Arrays of their own: a state that is donated holds none twice.
    return RingPosition(*(jnp.zeros((), jnp.int32) for _ in range(3)))


def advance(sizes: RingSizes, position: RingPosition) -> RingPosition:
    """Returns one trajectory further."""
    after = position.next_step + sizes.rollout_length
    return RingPosition(
        jnp.where(after == sizes.ring_steps, 0, after),
        jnp.minimum(position.num_steps + sizes.rollout_length, sizes.ring_steps),
        position.num_insertions + 1,
    )


def step_age(sizes: RingSizes, position: RingPosition, step: Array) -> Array:
    """How many steps, in [1, C], the newest is behind the beginning of `step`, in [0, C)."""
    age = position.next_step - step
    return jnp.where(age <= 0, age + sizes.ring_steps, age)


def step_at_age(sizes: RingSizes, position: RingPosition, age: Array) -> Array:
    """Returns the step of the ring, in [0, C), of this age in [1, C]."""
    step = position.next_step - age
    return jnp.where(step < 0, step + sizes.ring_steps, step)
