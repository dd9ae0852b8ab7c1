"""Number of gradient steps due after each trajectory, in exact integers for any number of env steps."""

import dataclasses
import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np

from agents.api import Array, ReplayConfig
from envpool_bridge.errors import UserError

_LARGEST = 2**30  # remainders below it add up within int32


@dataclasses.dataclass(frozen=True)
class Pace:
    """Gradient steps of a run, whose trajectories all have the same number of env steps.

    Attributes:
        first: number, from 1, of the trajectory that reaches `ReplayConfig.min_size`.
        at_first: (gradient steps, remainder) of its env steps beyond the minimum.
        after: (gradient steps, remainder) of each later trajectory.
        denominator: unit of the remainders.
    """

    first: int
    at_first: tuple[int, int]
    after: tuple[int, int]
    denominator: int


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PaceState:
    """State of the pace; int32 scalars.

    Attributes:
        missing: trajectories until the first that counts.
        remainder: Remainder of a gradient step, in units of `Pace.denominator`.
        owed: gradient steps that were due while no window could be drawn.
    """

    missing: Array
    remainder: Array
    owed: Array


def steps_per_env_step(config: ReplayConfig) -> Fraction:
    """Returns `gradient_steps_per_env_step` as the simplest equal fraction.

    Raises:
        UserError: If the fraction is 0.
    """
    ratio = Fraction(config.gradient_steps_per_env_step).limit_denominator(_LARGEST)
    if ratio <= 0:
        raise UserError(
            f"replay.gradient_steps_per_env_step is too small, there would never be a gradient step: got "
            f"{config.gradient_steps_per_env_step}"
        )
    return ratio


def make_pace(config: ReplayConfig, env_steps: int) -> Pace:
    """Returns the pace for trajectories of `env_steps` env steps, T * B.

    Raises:
        UserError: `gradient_steps_per_env_step` is too small, or too large for a trajectory.
    """
    ratio = steps_per_env_step(config)
    first = math.ceil(config.min_size / env_steps)
    beyond = first * env_steps - config.min_size
    after = divmod(env_steps * ratio.numerator, ratio.denominator)
    if after[0] >= _LARGEST:
        raise UserError(
            f"replay.gradient_steps_per_env_step is too large: {config.gradient_steps_per_env_step} are {after[0]} gradient steps "
            f"for a trajectory of {env_steps} env steps"
        )
    return Pace(first, divmod(beyond * ratio.numerator, ratio.denominator), after, ratio.denominator)


def updates_until(config: ReplayConfig, env_steps: int, gradient_steps: int) -> int:
    """Returns the number of trajectories of `env_steps` env steps after which `gradient_steps` gradient steps are due.

    Each trajectory is an update. Windows can be drawn from the first trajectory that counts on.
    """
    return math.ceil((config.min_size + gradient_steps / steps_per_env_step(config)) / env_steps)


def init_pace_state(pace: Pace) -> PaceState:
    """Returns the state before the first trajectory."""
    return PaceState(jnp.asarray(pace.first, jnp.int32), jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32))


def steps_due(pace: Pace, state: PaceState, can_draw: Array) -> tuple[Array, PaceState]:
    """Returns (gradient steps to take now, the next state) after a trajectory has been inserted.

    The total is floor((i - min_size) * gradient_steps_per_env_step) after i env steps. Steps without a window to draw,
    for example before the first episode starts, stay owed.

    Args:
        pace: Pace of the run.
        state: State before this trajectory.
        can_draw: bool scalar, whether there is a window.
    """
    missing = jnp.maximum(state.missing - 1, 0)
    is_first = state.missing == 1
    steps = jnp.where(is_first, pace.at_first[0], pace.after[0])
    remainder = state.remainder + jnp.where(is_first, pace.at_first[1], pace.after[1])
    carry = remainder >= pace.denominator
    steps = steps + carry
    remainder = jnp.where(carry, remainder - pace.denominator, remainder)
    counts = missing == 0
    owed = state.owed + jnp.where(counts, steps, 0)
    due = jnp.where(can_draw, owed, 0)
    return due, PaceState(missing, jnp.where(counts, remainder, state.remainder), owed - due)


class HostPace:
    """`steps_due` in Python integers, for a buffer on the host. Thread-safety: one thread at a time."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._missing, self._remainder, self._owed = pace.first, 0, 0

    def steps_due(self, can_draw: bool) -> int:
        """Returns the gradient steps to take after an insertion; see `steps_due`."""
        if self._missing <= 1:
            steps, remainder = self._pace.at_first if self._missing else self._pace.after
            carry, self._remainder = divmod(self._remainder + remainder, self._pace.denominator)
            self._owed += steps + carry
        self._missing = max(self._missing - 1, 0)
        due = self._owed if can_draw else 0
        self._owed -= due
        return due

    def arrays(self) -> PaceState:
        """Returns the state in numpy arrays."""
        numbers = (np.asarray(number, np.int32) for number in (self._missing, self._remainder, self._owed))
        return PaceState(*numbers)  # pyright: ignore[reportArgumentType]

    def restore(self, state: PaceState) -> None:
        """Restores a state from `arrays` or from a device."""
        self._missing, self._remainder, self._owed = int(state.missing), int(state.remainder), int(state.owed)
