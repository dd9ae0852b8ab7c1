"""Memory of a GTrXL: the inputs of its layers at the last M steps of the episode, and their visibility."""

import jax.numpy as jnp

from agents.api import AgentState, Array


def init_memory(num_rows: int, num_layers: int, num_memory: int, size: int) -> AgentState:
    """Returns the memory before the first step.

    Returns:
        "memory": [B, num_layers, num_memory, size] float32, the newest step last, zeros for missing steps. "filled": [B] int32,
        the number of stored steps.
    """
    return {
        "memory": jnp.zeros((num_rows, num_layers, num_memory, size), jnp.float32),
        "filled": jnp.zeros((num_rows,), jnp.int32),
    }


def visible_steps(filled: Array, is_first: Array, num_memory: int) -> Array:
    """Returns the visibility of M steps in memory and T new steps for each new step.

    A step attends to itself and to at most M earlier steps of its episode. The result does not depend on the division into calls.

    Args:
        filled: [B] int32, number of steps in memory.
        is_first: [T, B] bool.
        num_memory: M.

    Returns:
        [B, T, M + T] bool.
    """
    length = is_first.shape[0]
    # Step t has position M + t of M + T.
    distance = num_memory + jnp.arange(length)[:, None] - jnp.arange(num_memory + length)[None]
    in_window = (distance >= 0) & (distance <= num_memory)
    episode = _episodes(filled, is_first, num_memory)
    return in_window & (episode[:, None, :] == episode[:, num_memory:, None])


def update_memory(state: AgentState, inputs: Array, is_first: Array) -> AgentState:
    """Returns the memory after T steps.

    Args:
        state: Memory before them, as from `init_memory`.
        inputs: Inputs of the layers, [B, num_layers, T, size].
        is_first: [T, B] bool.
    """
    num_memory = state["memory"].shape[2]
    episode = _episodes(state["filled"], is_first, num_memory)
    in_episode = (episode == episode[:, -1:])[:, -num_memory:]
    memory = jnp.concatenate([state["memory"], inputs], axis=2)[:, :, -num_memory:]
    # Zeros for steps of earlier episodes: the memory does not depend on the number of steps of a call.
    memory = jnp.where(in_episode[:, None, :, None], memory, 0.0)
    return {"memory": memory, "filled": jnp.sum(in_episode, axis=1, dtype=jnp.int32)}


def _episodes(filled: Array, is_first: Array, num_memory: int) -> Array:
    """Returns the episode number of each position, [B, M + T] int32: 0 for the episode in memory, -1 for empty positions."""
    is_filled = jnp.arange(num_memory) >= num_memory - filled[:, None]
    episode = jnp.cumsum(is_first.T, axis=1, dtype=jnp.int32)
    return jnp.concatenate([jnp.where(is_filled, 0, -1), episode], axis=1)
