"""Epsilon-greedy exploration: a schedule over the run, one rate per row, and the choice of actions. Pure functions."""

import jax
import jax.numpy as jnp

from agents.api import Array
from agents.ops.schedules import Schedule, linear
from envpool_bridge.errors import UserError


def epsilon_schedule(start: float, end: float, decay_fraction: float, total_updates: int) -> Schedule:
    """Returns epsilon (float32 scalar) as a function of `num_updates` (int32 scalar, trajectories inserted so far).

    Args:
        start: Epsilon of the first update, the probability of a uniformly random legal action.
        end: Epsilon after the decay, which is linear.
        decay_fraction: Fraction of the run over which epsilon decays.
        total_updates: Trajectories of the whole run.

    Raises:
        UserError: Epsilon changes over a run of unknown length.
    """
    if start == end:
        return lambda num_updates: jnp.full((), end, jnp.float32)
    if total_updates < 1:
        raise UserError(
            f"epsilon from {start} to {end} needs the number of updates of the whole run: got "
            f"total_updates={total_updates}; set it, or epsilon_start equal to epsilon_end"
        )
    return linear(start, end, decay_fraction * total_updates)


def apex_epsilon_exponents(alpha: float, num_rows: int) -> Array:
    """Returns [num_rows] float32 exponents of epsilon: 1 + alpha i / (num_rows - 1) of row i; 1 for a single row.

    Source: Horgan et al. 2018 (arXiv:1803.00933), section 4.1.
    """
    return 1.0 + alpha * jnp.arange(num_rows, dtype=jnp.float32) / max(num_rows - 1, 1)


def epsilon_greedy(preference: Array, legal: Array | None, epsilon: Array | float, keys: Array) -> Array:
    """Returns each row's preferred legal action, or with probability epsilon a uniformly random legal one.

    Args:
        preference: [B, A] float32, action values.
        legal: [B, A], 0 where an action is illegal. None: all actions are legal. A row without a legal action takes action 0
            (it is about to reset).
        epsilon: float32, a scalar or [B].
        keys: [B] typed, one for each row; consumed.

    Returns:
        [B] int32.
    """

    def draw(key: Array) -> tuple[Array, Array]:
        explore_key, action_key = jax.random.split(key)
        return jax.random.uniform(explore_key), jax.random.uniform(action_key, preference.shape[-1:])

    uniform, lottery = jax.vmap(draw)(keys)
    return jnp.where(uniform < epsilon, greedy(lottery, legal), greedy(preference, legal))


def greedy(preference: Array, legal: Array | None) -> Array:
    """Returns the legal action [...] int32 of highest preference [..., A].

    Args:
        preference: [..., A] float32.
        legal: [..., A], 0 where an action is illegal. None: all actions are legal.
    """
    if legal is not None:
        preference = jnp.where(legal != 0, preference, -jnp.inf)
    return jnp.argmax(preference, axis=-1).astype(jnp.int32)


def select_action(outputs: Array, action: Array) -> Array:
    """Returns the outputs [...] or [..., K] of `action` [...] int32, from [..., A] or [..., A, K]."""
    axis = action.ndim
    # A one-hot product, not a gather: on CPU its gradient is a plain matrix instead of a scatter.
    chosen = action[..., None] == jnp.arange(outputs.shape[axis])
    mask = chosen.reshape(chosen.shape + (1,) * (outputs.ndim - axis - 1))
    return jnp.sum(jnp.where(mask, outputs, 0.0), axis=axis)
