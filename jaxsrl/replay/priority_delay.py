"""Delayed priorities: those of gradient step k affect draws from gradient step k + 1 + d on.

The delay lets d samples be drawn ahead of the learner, and makes draws depend on counts instead of timing.
"""

from typing import Any

import jax
import jax.numpy as jnp

from agents.api import Array
from jaxsrl.replay.device.sampler import SampledWindows, Selection, update_priorities
from jaxsrl.replay.sizes import RingSizes
from jaxsrl.replay.state import Pending


def init_pending(sizes: RingSizes) -> Any:
    """Returns the state without pending priorities; () if priorities are never delayed."""
    delay, windows = sizes.priority_delay, sizes.batch_size
    if not delay or not sizes.priority_exponent:
        return ()

    def numbers(dtype: Any, *shape: int) -> Array:
        return jnp.zeros((delay, *shape), dtype)

    int32, float32 = jnp.int32, jnp.float32
    drawn = SampledWindows(
        begin=numbers(int32, windows),
        group=numbers(int32, windows),
        age=numbers(int32, windows),
        num_insertions=numbers(int32),
        probability=numbers(float32, windows),
        num_windows=numbers(int32),
    )
    return Pending(drawn, numbers(float32, windows), jnp.zeros((), int32))


def delay_priorities(
    sizes: RingSizes, selection: Selection, pending: Any, drawn: SampledWindows, priority: Array
) -> tuple[Selection, Any]:
    """Stores the priorities [N] of these windows as pending, and applies those of d gradient steps ago."""
    if not isinstance(pending, Pending):
        return update_priorities(sizes, selection, drawn, priority), pending
    delay = sizes.priority_delay
    place = pending.num_steps % delay
    arrived: SampledWindows = jax.tree.map(lambda array: array[place], pending.drawn)
    # The second condition always holds: it orders the write to the sum-tree after what this draw read of it, without a copy.
    counts = (pending.num_steps >= delay) & (drawn.begin[0] >= 0)
    selection = update_priorities(sizes, selection, arrived, pending.priority[place], counts)
    sent = jax.tree.map(lambda array, new: array.at[place].set(new), pending.drawn, drawn)
    priorities = pending.priority.at[place].set(priority.astype(jnp.float32))
    after = pending.num_steps + 1
    return selection, Pending(sent, priorities, jnp.where(after == 2 * delay, delay, after))
