"""Returns of n steps within a window, and where they bootstrap: what agents that learn from replay share.

Time-major, under Gymnasium's NEXT_STEP episode boundaries, as everywhere: `observation[t + 1]` of a step that ended an episode is
the terminal one, and the step after it only resets. Values are left to the caller, who may need them of few observations only.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from agents.api import Array
from envpool_bridge.errors import UserError


class NStep(NamedTuple):
    """The return from step t is `reward[t] + discount[t] * value(observation[position[t]])`.

    Attributes:
        reward: [L, B] float32, the discounted sum of up to n rewards.
        discount: [L, B] float32, of the value that follows: g^k after k steps, 0 after a terminal one.
        position: [L, B] int32 in [1, L], which observation that value is of; t itself for a step that only reset.
    """

    reward: Array
    discount: Array
    position: Array


def n_step(
    reward: Array, terminated: Array, truncated: Array, valid: Array, *, discount: float, num_steps: int
) -> NStep:
    """Sums of up to n rewards from each step of a window.

    A sum ends early where its episode does (truncation bootstraps from the terminal observation) and at the end of the window.

    Examples:
        >>> no, last = jnp.zeros([3, 1], bool), jnp.array([[False], [False], [True]])
        >>> found = n_step(jnp.ones([3, 1]), terminated=last, truncated=no, valid=~no, discount=0.5, num_steps=2)
        >>> found.reward[:, 0].tolist(), found.discount[:, 0].tolist(), found.position[:, 0].tolist()
        ([1.5, 1.5, 1.0], [0.25, 0.0, 0.0], [2, 3, 3])

    Args:
        reward: [L, B] float32.
        terminated: [L, B] bool.
        truncated: [L, B] bool.
        valid: [L, B] bool; a step that only reset has reward 0 and discount 0.
        discount: g in [0, 1].
        num_steps: n >= 1.

    Raises:
        UserError: `num_steps` is less than 1.

    Source: Sutton and Barto 2018, eq. 7.1.
    """
    if num_steps < 1:
        raise UserError(f"the number of steps of a return must be at least 1: got {num_steps}")
    # The last step of the window has nothing after it, as if it were cut.
    after = jnp.broadcast_to(jnp.arange(1, reward.shape[0] + 1, dtype=jnp.int32)[:, None], reward.shape)
    # What does not count begins an episode, perhaps without an end before it (a failure has cut it).
    cut_next = jnp.concatenate([~valid[1:], jnp.ones_like(valid[:1])])
    stops = terminated | truncated | cut_next
    one = NStep(reward, discount * (~terminated).astype(jnp.float32), after)
    longer = one
    for _ in range(num_steps - 1):
        # One more reward in front of the sums of one step fewer.
        rest = NStep(*(jnp.concatenate([part[1:], part[-1:]]) for part in longer))
        longer = NStep(
            reward=jnp.where(stops, one.reward, reward + discount * rest.reward),
            discount=jnp.where(stops, one.discount, discount * rest.discount),
            position=jnp.where(stops, one.position, rest.position),
        )
    counted = valid.astype(jnp.float32)
    # Not a product: what a step that only reset carries may be anything.
    return NStep(
        jnp.where(valid, longer.reward, 0.0), longer.discount * counted, jnp.where(valid, longer.position, after - 1)
    )


def at_positions(tree: Any, position: Array) -> Any:
    """Leaves [L+1, B, ...] at `position` [K, B], or [B] (int32, of each row): [K, B, ...] or [B, ...]."""
    one = position.ndim == 1
    index = position[None] if one else position

    def taken(x: Array) -> Array:
        found = jnp.take_along_axis(x, index.reshape(index.shape + (1,) * (x.ndim - 2)), axis=0)
        return found[0] if one else found

    return jax.tree.map(taken, tree)
