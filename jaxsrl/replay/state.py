"""What a learner that replays carries from one trajectory to the next, and how it lies on devices."""

import dataclasses
from typing import Any

import jax

from agents.api import Array, LearnerState, Trajectory
from jaxsrl.replay.device.sampler import SampledWindows, Selection
from jaxsrl.replay.schedule import PaceState


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Pending:
    """Priorities that gradient steps have found and draws do not know yet, [d, ...] each.

    Attributes:
        drawn: the windows.
        priority: [d, N] float32.
        num_steps: int32 scalar, gradient steps so far; once there were 2 d, it goes on from d.
    """

    drawn: SampledWindows
    priority: Array
    num_steps: Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Buffer:
    """All of a replay buffer.

    Attributes:
        storage: the steps (`jaxsrl.replay.device.storage`), rows second.
        selection: which of them can be drawn.
        pace: when gradient steps are due.
        pending: priorities that wait; () without `ReplayConfig.priority_delay`.
    """

    storage: Trajectory
    selection: Selection
    pace: PaceState
    pending: Pending | tuple[()]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ReplayExtra:
    """`LearnerState.extra` of an agent that replays.

    Attributes:
        extra: the agent's own.
        buffer: what it learns from.
    """

    extra: Any
    buffer: Buffer


def inner_state(state: LearnerState) -> LearnerState:
    """Returns the learner state as the agent itself knows it."""
    return dataclasses.replace(state, extra=state.extra.extra)


def state_shardings(state: LearnerState, rows: Any, replicated: Any) -> LearnerState:
    """Returns the sharding of each leaf: stored steps [C, B, ...] are sharded over rows as trajectories [T, B, ...] are.

    Args:
        state: of any agent; only its structure counts.
        rows: of the steps.
        replicated: of everything else.
    """
    shardings = jax.tree.map(lambda _: replicated, state)
    if not isinstance(state.extra, ReplayExtra):
        return shardings
    buffer = state.extra.buffer
    stored = dataclasses.replace(shardings.extra.buffer, storage=jax.tree.map(lambda _: rows, buffer.storage))
    return dataclasses.replace(shardings, extra=dataclasses.replace(shardings.extra, buffer=stored))


def replace_learned(state: LearnerState, learnt: LearnerState) -> LearnerState:
    """Returns the state with the parameters, the optimizer and what else the agent carries of another; its count and experience stay.

    Args:
        state: of any agent.
        learnt: of the same agent, with or without experience.
    """
    extra = learnt.extra.extra if isinstance(learnt.extra, ReplayExtra) else learnt.extra
    if isinstance(state.extra, ReplayExtra):
        extra = ReplayExtra(extra, state.extra.buffer)
    return LearnerState(learnt.params, learnt.opt_state, state.num_updates, extra)
