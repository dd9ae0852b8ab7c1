"""Minibatches of one trajectory, cut along time."""

import jax

from agents.api import Array
from envpool_bridge.errors import UserError


def shuffled_minibatches(
    key: Array, length: int, num_epochs: int, num_minibatches: int, length_name: str = "rollout_length"
) -> Array:
    """Returns [num_epochs * num_minibatches, length / num_minibatches] int32: each epoch's permutation of time, cut.

    Only time is permuted and cut. B, which may be sharded over devices, stays in place, so nothing is gathered.

    Args:
        key: Consumed.
        length: Steps of time, or chunks of them.
        num_epochs: Permutations.
        num_minibatches: Parts of each permutation.
        length_name: Name of `length` in the error.

    Raises:
        UserError: `num_minibatches` does not divide `length`.
    """
    if length % num_minibatches:
        raise UserError(
            f"num_minibatches must divide {length_name}: got {num_minibatches} and {length}; minibatches are cut along time"
        )
    keys = jax.random.split(key, num_epochs)
    order = jax.vmap(lambda epoch_key: jax.random.permutation(epoch_key, length))(keys)
    return order.reshape(num_epochs * num_minibatches, length // num_minibatches)
