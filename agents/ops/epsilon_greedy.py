"""Epsilon-greedy exploration: a schedule over a run, and rates of their own for rows, as pure functions."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from agents.api import Array
from envpool_bridge.errors import UserError

Schedule = Callable[[Array], Array]


@dataclasses.dataclass(frozen=True)
class Exploration:
    """How often an action is drawn at random.

    Attributes:
        initial: epsilon at the start, the probability of an action drawn evenly from the legal ones.
        final: epsilon at the end.
        fraction: of the run, after which epsilon is `final`; it falls linearly until then.
        ladder: alpha of Ape-X (Horgan et al. 2018, section 4.1, where it is 7): row i of B explores with
            epsilon^(1 + alpha i / (B - 1)). 0: all rows alike.
    """

    initial: float = 1.0
    final: float = 0.05
    fraction: float = 0.5
    ladder: float = 0.0

    def __post_init__(self) -> None:
        for name in ("initial", "final"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise UserError(f"exploration.{name} must lie in [0, 1]: got {getattr(self, name)}")
        if not 0.0 < self.fraction <= 1.0:
            raise UserError(f"exploration.fraction must lie in (0, 1]: got {self.fraction}")
        if not self.ladder >= 0.0:
            raise UserError(f"exploration.ladder must not be negative: got {self.ladder}")


def epsilon_schedule(config: Exploration, total_updates: int) -> Schedule:
    """Epsilon (float32 scalar) as a function of `num_updates` (int32 scalar, trajectories inserted so far).

    Args:
        config: of the exploration.
        total_updates: trajectories of the whole run.

    Raises:
        UserError: epsilon is to change over a run of unknown length.
    """
    if config.initial == config.final:
        return lambda num_updates: jnp.full((), config.final, jnp.float32)
    if total_updates < 1:
        raise UserError(
            f"exploration from {config.initial} to {config.final} needs the number of updates of the whole run: got "
            f"total_updates={total_updates}; give it, or the same initial and final"
        )
    length = config.fraction * total_updates

    def epsilon(num_updates: Array) -> Array:
        passed = jnp.clip(jnp.asarray(num_updates, jnp.float32) / length, 0.0, 1.0)
        return config.initial + (config.final - config.initial) * passed

    return epsilon


def ladder_exponents(ladder: float, num_rows: int) -> Array:
    """[num_rows] float32 exponents of epsilon, 1 + ladder i / (num_rows - 1); 1 for a single row.

    Source: Horgan et al. 2018 (arXiv:1803.00933), section 4.1.
    """
    return 1.0 + ladder * jnp.arange(num_rows, dtype=jnp.float32) / max(num_rows - 1, 1)


def epsilon_greedy(preference: Array, legal: Array | None, epsilon: Array, keys: Array) -> Array:
    """The preferred legal action of each row, or with probability epsilon one drawn evenly from the legal ones.

    Args:
        preference: [B, A] float32, action values.
        legal: [B, A], 0 where an action is illegal; None: all are legal. A row without any takes action 0 (it is about to reset).
        epsilon: float32, a scalar or [B].
        keys: [B] typed, one a row; consumed.

    Returns:
        [B] int32.
    """

    def draw(key: Array) -> tuple[Array, Array]:
        explore_key, action_key = jax.random.split(key)
        return jax.random.uniform(explore_key), jax.random.uniform(action_key, preference.shape[-1:])

    uniform, lottery = jax.vmap(draw)(keys)
    return jnp.where(uniform < epsilon, greedy(lottery, legal), greedy(preference, legal))


def greedy(preference: Array, legal: Array | None) -> Array:
    """The action [...] int32 of highest preference [..., A] among the legal ones (`legal` [..., A] is not 0; None: all)."""
    if legal is not None:
        preference = jnp.where(legal != 0, preference, -jnp.inf)
    return jnp.argmax(preference, axis=-1).astype(jnp.int32)
