"""What a GTrXL remembers: the inputs of its layers at the last M steps of the episode, and which of them a step may see."""

import jax.numpy as jnp

from agents.api import AgentState, Array


def empty_memory(num_rows: int, num_layers: int, num_memory: int, size: int) -> AgentState:
    """Memory of no step.

    Returns:
        "memory": [B, num_layers, num_memory, size] float32, the newest last, zeros where there is none; "filled": [B] int32,
        how many steps there are.
    """
    return {
        "memory": jnp.zeros((num_rows, num_layers, num_memory, size), jnp.float32),
        "filled": jnp.zeros((num_rows,), jnp.int32),
    }


def visible_steps(filled: Array, is_first: Array, num_memory: int) -> Array:
    """Which of M steps in memory and T new ones each new step attends to.

    Itself and at most M before it, none from before its episode's beginning. One step at a time would see the same.

    Args:
        filled: [B] int32, steps in memory.
        is_first: [T, B] bool.
        num_memory: M.

    Returns:
        [B, T, M + T] bool.
    """
    length = is_first.shape[0]
    # Step t stands at place M + t of the M + T.
    distance = num_memory + jnp.arange(length)[:, None] - jnp.arange(num_memory + length)[None]
    in_window = (distance >= 0) & (distance <= num_memory)
    episode = _episodes(filled, is_first, num_memory)
    return in_window & (episode[:, None, :] == episode[:, num_memory:, None])


def remember(state: AgentState, inputs: Array, is_first: Array) -> AgentState:
    """Memory after T steps.

    Args:
        state: as `empty_memory` describes it, before them.
        inputs: [B, num_layers, T, size] of the layers.
        is_first: [T, B] bool.
    """
    num_memory = state["memory"].shape[2]
    episode = _episodes(state["filled"], is_first, num_memory)
    kept = (episode == episode[:, -1:])[:, -num_memory:]
    memory = jnp.concatenate([state["memory"], inputs], axis=2)[:, :, -num_memory:]
    # Zeros rather than what is forgotten: then memory does not depend on how many steps came in one call.
    memory = jnp.where(kept[:, None, :, None], memory, 0.0)
    return {"memory": memory, "filled": jnp.sum(kept, axis=1, dtype=jnp.int32)}


def _episodes(filled: Array, is_first: Array, num_memory: int) -> Array:
    """Returns number of the episode of each place, [B, M + T] int32: 0 that of the memory, -1 where a place holds no step."""
    remembered = jnp.arange(num_memory) >= num_memory - filled[:, None]
    episode = jnp.cumsum(is_first.T, axis=1, dtype=jnp.int32)
    return jnp.concatenate([jnp.where(remembered, 0, -1), episode], axis=1)
