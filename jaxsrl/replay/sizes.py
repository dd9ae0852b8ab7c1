"""Sizes of a replay buffer, derived from an agent's configuration and validated."""

import dataclasses
import math
from typing import Any, Literal

import jax

from agents.api import Replay, Trajectory
from envpool_bridge.errors import UserError

_MOST_STEPS = 2**30  # twice as many windows are still numbered by an int32


@dataclasses.dataclass(frozen=True)
class RingSizes:
    """Static sizes of a ring of steps and of the windows in it. Letters as in `agents.api`.

    Attributes:
        rollout_length: T, steps per insertion.
        num_rows: B.
        ring_steps: C, steps stored for each row; a multiple of T and of `stride`.
        window_steps: L.
        history: W - 1, frames before a window's first that are needed to stack its observations.
        stride: windows start at multiples of it; 1 where they start with episodes.
        agents_per_window: A.
        window_start: see `agents.api.Replay`.
        batch_size: N, windows of a sample.
        priority_exponent: alpha; 0 draws uniformly.
        priority_offset: added to every priority.
        priority_delay: gradient steps until a priority counts.
    """

    rollout_length: int
    num_rows: int
    ring_steps: int
    window_steps: int
    history: int
    stride: int
    agents_per_window: int
    window_start: Literal["any", "episode"]
    batch_size: int
    priority_exponent: float
    priority_offset: float
    priority_delay: int

    @property
    def num_groups(self) -> int:
        """G, number of windows that may start at a step: rows, or teams of rows."""
        return self.num_rows // self.agents_per_window

    @property
    def num_begins(self) -> int:
        """Number of steps of the ring at which windows may start."""
        return self.ring_steps // self.stride

    @property
    def num_leaves(self) -> int:
        """Largest number of windows, and of leaves for their weights."""
        return self.num_begins * self.num_groups

    @property
    def max_age(self) -> int:
        """Number of steps from the start of the oldest window to the newest step."""
        return self.ring_steps - self.history

    @property
    def keeps_tree(self) -> bool:
        """Returns whether windows differ in probability, so that a tree stores their weights."""
        return self.window_start == "episode" or self.priority_exponent > 0.0


def make_sizes(replay: Replay, shapes: Trajectory) -> RingSizes:
    """Returns the sizes of the buffer that an agent requests.

    Args:
        replay: replay part of the agent.
        shapes: Shapes of a slot, as arrays or `jax.ShapeDtypeStruct`. Each observation leaf is [T + F, B, ...] for F stacked
            frames. `is_first` is [T + W, B] with the largest F. The rest is as in `agents.api.Trajectory`.

    Raises:
        UserError: If the sizes are invalid; the message has sizes that are valid.
    """
    config = replay.config
    steps, rows = shapes.reward.shape
    stride = replay.stride if replay.window_start == "any" else 1
    _validate_windows(replay, shapes)
    unit = math.lcm(steps, stride)
    ring_steps = config.capacity // rows // unit * unit
    sizes = _sizes_of_ring(replay, shapes, ring_steps)
    needed = sizes.window_steps + sizes.history + max(steps, stride)
    if ring_steps < needed:
        least = math.ceil(needed / unit) * unit * rows
        raise UserError(
            f"replay.capacity is too small: {config.capacity} env steps are {ring_steps} steps (in whole units of {unit}) of "
            f"{rows} rows, but one window and one trajectory need {needed}: set it to at least {least}"
        )
    _validate_min_size(config.min_size, sizes)
    return sizes


def make_fixed_sizes(replay: Replay, shapes: Trajectory) -> RingSizes:
    """Returns the sizes of a buffer that one trajectory fills for good. Sizes and rates of `replay.config` do not count.

    Args:
        replay: replay part of an agent.
        shapes: Shapes of the trajectory, as for `make_sizes`; T is a multiple of `replay.stride`.

    Raises:
        UserError: If the trajectory is shorter than a window, or sizes are invalid.
    """
    steps, rows = shapes.reward.shape
    _validate_windows(replay, shapes)
    sizes = _sizes_of_ring(replay, shapes, steps)
    if steps < sizes.window_steps + sizes.history:
        raise UserError(
            f"a dataset needs at least {sizes.window_steps + sizes.history} steps of each of its {rows} rows for one window: got "
            f"{steps}"
        )
    return dataclasses.replace(sizes, priority_exponent=0.0, priority_delay=0)


def _sizes_of_ring(replay: Replay, shapes: Trajectory, ring_steps: int) -> RingSizes:
    """Returns the sizes of a ring; raises UserError if windows would have too large numbers."""
    config, (steps, rows) = replay.config, shapes.reward.shape
    if ring_steps * rows > _MOST_STEPS:
        raise UserError(
            f"replay.capacity is too large: windows are numbered by int32, which {_MOST_STEPS} env steps allow for: got "
            f"{ring_steps * rows}"
        )
    return RingSizes(
        rollout_length=steps,
        num_rows=rows,
        ring_steps=ring_steps,
        window_steps=replay.sequence_length,
        history=shapes.is_first.shape[0] - steps - 1,
        stride=replay.stride if replay.window_start == "any" else 1,
        agents_per_window=replay.agents_per_window,
        window_start=replay.window_start,
        batch_size=config.batch_size,
        priority_exponent=config.priority_exponent,
        priority_offset=config.priority_offset,
        priority_delay=config.priority_delay,
    )


def _validate_windows(replay: Replay, shapes: Trajectory) -> None:
    steps, rows = shapes.reward.shape
    if replay.sequence_length < 1 or replay.stride < 1 or replay.agents_per_window < 1:
        raise UserError(
            f"a window has at least 1 step, 1 row and a stride of 1: got {replay.sequence_length} steps, "
            f"{replay.agents_per_window} rows and a stride of {replay.stride}"
        )
    if rows % replay.agents_per_window:
        raise UserError(
            f"windows of {replay.agents_per_window} neighboring rows need a number of rows that is a multiple of it: got {rows}"
        )
    stores_state = not replay.whole_episodes and is_recurrent(shapes.agent_state)
    if replay.window_start == "any" and replay.stride % steps and stores_state:
        raise UserError(
            f"a policy with memory is known where trajectories begin, every {steps} steps: a stride of {replay.stride} steps "
            f"between windows is no multiple of it; set run.rollout_length to a divisor of {replay.stride}"
        )


def is_recurrent(agent_state: Any) -> bool:
    """Returns whether a policy is recurrent. A number per row, [B], is a constant, for example Ape-X's exploration rate."""
    return any(leaf.ndim > 1 for leaf in jax.tree.leaves(agent_state))


def _validate_min_size(min_size: int, sizes: RingSizes) -> None:
    held = sizes.ring_steps * sizes.num_rows
    if min_size > held:
        raise UserError(
            f"replay.min_size cannot be reached: it is {min_size}, but only {held} env steps are kept (replay.capacity in whole "
            f"trajectories of {sizes.rollout_length} steps of {sizes.num_rows} rows)"
        )
    trajectories = math.ceil(min_size / (sizes.rollout_length * sizes.num_rows))
    if trajectories * sizes.rollout_length < sizes.window_steps:
        raise UserError(
            f"replay.min_size is too small: after {min_size} env steps there are {trajectories * sizes.rollout_length} steps of "
            f"{sizes.num_rows} rows, and a window has {sizes.window_steps}: set it to at least "
            f"{sizes.window_steps * sizes.num_rows}"
        )
