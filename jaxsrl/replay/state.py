"""Replay part of a learner's state, and its sharding."""

import dataclasses
from typing import Any

import jax

from agents.api import Array, LearnerState, Trajectory
from jaxsrl.replay.device.sampler import SampledWindows, Selection
from jaxsrl.replay.schedule import PaceState


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Pending:
    """Priorities that do not affect draws yet, [d, ...] each.

    Attributes:
        drawn: the windows.
        priority: [d, N] float32.
        num_steps: int32 scalar, number of gradient steps; it counts in [d, 2 d) once it reaches d.
    """

    drawn: SampledWindows
    priority: Array
    num_steps: Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Buffer:
    """Complete state of a replay buffer.

    Attributes:
        storage: the steps (`jaxsrl.replay.device.storage`), rows second.
        selection: which of them can be drawn.
        pace: when gradient steps are due.
        pending: delayed priorities; () without `ReplayConfig.priority_delay`.
    """

    storage: Trajectory
    selection: Selection
    pace: PaceState
    pending: Pending | tuple[()]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ReplayExtra:
    """`LearnerState.extra` of an agent with replay.

    Attributes:
        extra: the agent's own.
        buffer: its experience.
    """

    extra: Any
    buffer: Buffer


def inner_state(state: LearnerState) -> LearnerState:
    """Returns the learner state without replay."""
    return dataclasses.replace(state, extra=state.extra.extra)


def state_shardings(state: LearnerState, rows: Any, replicated: Any) -> LearnerState:
    """Returns the sharding of each leaf: stored steps [C, B, ...] are sharded over rows as trajectories [T, B, ...] are.

    Args:
        state: of any agent; only its structure counts.
        rows: sharding of the steps.
        replicated: sharding of everything else.
    """
    shardings = jax.tree.map(lambda _: replicated, state)
    if not isinstance(state.extra, ReplayExtra):
        return shardings
    buffer = state.extra.buffer
    stored = dataclasses.replace(shardings.extra.buffer, storage=jax.tree.map(lambda _: rows, buffer.storage))
    return dataclasses.replace(shardings, extra=dataclasses.replace(shardings.extra, buffer=stored))


def replace_learned(state: LearnerState, learned: LearnerState) -> LearnerState:
    """Returns the state with parameters, optimizer and extras of another state. Update count and experience stay.

    Args:
        state: of any agent.
        learned: of the same agent, with or without experience.
    """
    extra = learned.extra.extra if isinstance(learned.extra, ReplayExtra) else learned.extra
    if isinstance(state.extra, ReplayExtra):
        extra = ReplayExtra(extra, state.extra.buffer)
    return LearnerState(learned.params, learned.opt_state, state.num_updates, extra)
