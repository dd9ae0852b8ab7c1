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
        selection: Trajectories that can be drawn.
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
    """`LearnerState.extra` of an agent with replay, or of such a policy among several.

    Attributes:
        extra: the agent's own.
        buffer: Experience.
    """

    extra: Any
    buffer: Buffer


def holds_buffer(extra: Any) -> bool:
    """Returns whether `LearnerState.extra` has experience: of the agent, or of one of several policies."""
    return any(map(_is_replay, _parts(extra)[0]))


def experience(extra: Any) -> Any:
    """Returns the buffer in `LearnerState.extra`; with several policies, a dict by their names with () for other policies."""
    parts, tree = _parts(extra)
    return tree.unflatten([part.buffer if _is_replay(part) else () for part in parts])


def learned_extra(extra: Any) -> Any:
    """Returns `LearnerState.extra` without experience."""
    parts, tree = _parts(extra)
    return tree.unflatten([part.extra if _is_replay(part) else part for part in parts])


def join_extra(template: Any, learned: Any, buffers: Any) -> Any:
    """Returns `LearnerState.extra` from its parts.

    Args:
        template: extra of the same structure; its values do not count.
        learned: Values from `learned_extra`.
        buffers: Buffers from `experience`.
    """
    parts, tree = _parts(template)
    if not any(map(_is_replay, parts)):
        return learned
    pairs = zip(parts, tree.flatten_up_to(learned), tree.flatten_up_to(buffers), strict=True)
    return tree.unflatten([ReplayExtra(own, buffer) if _is_replay(part) else own for part, own, buffer in pairs])


def inner_state(state: LearnerState) -> LearnerState:
    """Returns the learner state without experience."""
    return dataclasses.replace(state, extra=learned_extra(state.extra))


def state_shardings(state: LearnerState, rows: Any, replicated: Any) -> LearnerState:
    """Returns the sharding of each leaf: stored steps [C, B, ...] are sharded over rows as trajectories [T, B, ...] are.

    Args:
        state: State of any agent; only its structure counts.
        rows: sharding of the steps.
        replicated: sharding of everything else.
    """

    def shard(part: Any) -> Any:
        shardings = jax.tree.map(lambda _: replicated, part)
        if not _is_replay(part):
            return shardings
        stored = dataclasses.replace(shardings.buffer, storage=jax.tree.map(lambda _: rows, part.buffer.storage))
        return dataclasses.replace(shardings, buffer=stored)

    return jax.tree.map(shard, state, is_leaf=_is_replay)


def replace_learned(state: LearnerState, learned: LearnerState) -> LearnerState:
    """Returns the state with parameters, optimizer and extras of another state. Update count and experience stay.

    Args:
        state: State of any agent.
        learned: Learned values of the same agent, with or without experience.
    """
    extra = join_extra(state.extra, learned_extra(learned.extra), experience(state.extra))
    return LearnerState(learned.params, learned.opt_state, state.num_updates, extra)


def _is_replay(part: Any) -> bool:
    return isinstance(part, ReplayExtra)


def _parts(extra: Any) -> tuple[list[Any], Any]:
    return jax.tree.flatten(extra, is_leaf=_is_replay)
