"""Conversion of a run to and from the arrays of a checkpoint."""

import dataclasses
from collections.abc import Container, Iterable, Mapping
from functools import partial
from typing import Any

import jax
import numpy as np

from agents.api import Agent, AnyAgent, LearnerState, Params, ReplayAgent, Trajectory
from envpool_bridge.envs.protocol import EpisodeReset, first_stages
from envpool_bridge.spec.specs import EnvSpec
from jaxsrl.checkpoints.names import BEHIND, EPISODES, LEARNER, LOG, REPLAY, ROWS
from jaxsrl.checkpoints.partial_restore import restore_matching
from jaxsrl.checkpoints.schema import Form, validate_match
from jaxsrl.checkpoints.store import Arrays, flatten, leaf_forms, unflatten
from jaxsrl.collect.episode_log import EpisodeLog
from jaxsrl.collect.slot_layout import agent_state_spec
from jaxsrl.collect.stage_queue import StageQueue
from jaxsrl.machine.compiler_options import compiler_options
from jaxsrl.metrics.episodes import EpisodeTracker, row_groups
from jaxsrl.replay.client import buffer_shapes
from jaxsrl.replay.state import ReplayExtra, experience, holds_buffer, inner_state, join_extra

_STEPS, _STAGES = "steps", "stages"


@dataclasses.dataclass
class Progress:
    """A run between two updates.

    Attributes:
        state: learner state after `state.num_updates` updates.
        previous_params: parameters one version older, with which a run at lag 1 collects its next trajectory; None if not kept.
        episodes: running returns.
        log: episodes in progress, and the steps that have been collected.
        reset: how environments return to their saved state.
    """

    state: LearnerState
    previous_params: Params | None
    episodes: EpisodeTracker
    log: EpisodeLog
    reset: EpisodeReset


def init_state(agent: AnyAgent, key: jax.Array) -> LearnerState:
    """Returns the learner state before the first update."""
    return jax.jit(agent.init, compiler_options=compiler_options(jax.default_backend()))(key)


def begin(agent: AnyAgent, key: jax.Array, num_rows: int, spec: EnvSpec, first_row: int = 0) -> Progress:
    """Returns the state of a new run, or of its rows from `first_row`; `key` is consumed."""
    log = EpisodeLog(num_rows, 0, spec, agent_state=agent_state_spec(agent))
    episodes = _make_tracker(spec, num_rows, first_row)
    return Progress(init_state(agent, key), None, episodes, log, _start_episodes(log, 0, spec, first_row))


def _start_episodes(log: EpisodeLog, episode: int, spec: EnvSpec, first_row: int) -> EpisodeReset:
    """Returns the reset of all rows to the start of an episode, which is in the log then."""
    log.episodes[:], num_rows = episode, len(log.episodes)
    stages = first_stages(spec, range(first_row, first_row + num_rows))
    if stages:
        log.row_stages = np.array(stages, np.int64)
    return EpisodeReset((episode,) * num_rows, (None,) * num_rows, stages=stages)


def _make_tracker(spec: EnvSpec, num_rows: int, first_row: int) -> EpisodeTracker:
    return EpisodeTracker(num_rows, spec.info_fields, row_groups(spec, num_rows, first_row))


def to_arrays(
    state: LearnerState,
    previous_params: Params | None,
    episodes: EpisodeTracker,
    log: EpisodeLog,
    with_replay: bool = True,
) -> Arrays:
    """Returns all arrays of a checkpoint by name; fetches from the device.

    Args:
        state: State of the learner.
        previous_params: parameters one version older; None if not kept.
        episodes: running returns.
        log: episodes in progress.
        with_replay: whether to include replay data that the state holds.
    """
    previous_params = jax.device_get(previous_params)
    arrays = state_to_arrays(state, with_replay)
    if previous_params is not None:
        arrays |= flatten(previous_params, BEHIND)
    arrays |= {EPISODES + name: value for name, value in episodes.to_arrays().items()}
    arrays |= {LOG + name: value for name, value in log.to_arrays().items()}
    stages = {} if log.stages is None else {_STAGES: np.array(log.stages.stages, np.int64)}
    return arrays | {_STEPS: np.array(log.end_step)} | stages


def from_arrays(
    agent: AnyAgent,
    key: jax.Array,
    arrays: Arrays,
    num_rows: int,
    rollout_length: int,
    spec: EnvSpec,
    first_row: int = 0,
) -> Progress:
    """Returns the run as it was when `arrays` were made; `key` only gives the shapes.

    Environments restart where `arrays` holds none (`without_rows`).

    Raises:
        UserError: If the arrays are of another network or algorithm.
    """
    state = restore_state(agent, key, arrays)
    has_previous = any(name.startswith(BEHIND) for name in arrays)
    previous_params = unflatten(state.params, arrays, BEHIND) if has_previous else None
    episodes = _make_tracker(spec, num_rows, first_row)
    # With dropped trajectories, more steps were collected than learned from.
    first_step = int(arrays.get(_STEPS, int(state.num_updates) * rollout_length))
    log = EpisodeLog(num_rows, first_step, spec, agent_state=agent_state_spec(agent))
    if log.stages is not None and _STAGES in arrays:
        log.stages = StageQueue(arrays[_STAGES].tolist())
        log.row_stages = np.full(num_rows, log.stages.stages[0], np.int64)
    if not holds_episodes(arrays):
        # An episode takes at least one step, so no earlier one has this number, from which its seed follows.
        reset = _start_episodes(log, first_step, spec, first_row)
        return Progress(state, previous_params, episodes, log, reset)
    episodes.restore(named(arrays, EPISODES))
    reset = log.restore(named(arrays, LOG))
    return Progress(state, previous_params, episodes, log, reset)


def state_to_arrays(state: LearnerState, with_replay: bool = True) -> Arrays:
    """Returns the learner state by name; experience, if it holds any and `with_replay`, under a name of its own."""
    kept = buffer_to_arrays(experience(state.extra)) if with_replay and holds_buffer(state.extra) else {}
    return flatten(jax.device_get(inner_state(state)), LEARNER) | kept


def rows_fit(arrays: Arrays, agent: AnyAgent, num_rows: int, spec: EnvSpec) -> bool:
    """Returns whether a checkpoint holds the episodes in progress of `num_rows` rows of such environments."""
    log = EpisodeLog(num_rows, 0, spec, agent_state=agent_state_spec(agent))
    tracker = _make_tracker(spec, num_rows, 0)
    return tracker.fits(named(arrays, EPISODES)) and log.fits(named(arrays, LOG))


def without_rows(arrays: Arrays) -> Arrays:
    """Returns a checkpoint's arrays but for those of episodes in progress, of any kind of plan."""
    return {name: x for name, x in arrays.items() if not name.startswith((EPISODES, LOG, ROWS))}


def learner_that_fits(arrays: Arrays, fresh: LearnerState) -> tuple[Arrays, list[str]]:
    """Returns the arrays that can be restored into a state of the shapes of `fresh`, and descriptions of the others.

    Where all of the learner's arrays fit, they are all of the checkpoint's; otherwise the learner's, those that do not fit from
    `fresh`, and the steps collected.
    """
    fitting, left_out = restore_matching(arrays, state_to_arrays(fresh, with_replay=False), LEARNER)
    if not left_out:
        return arrays, []
    return fitting | {name: x for name, x in arrays.items() if name == _STEPS}, left_out


def without_replay(arrays: Arrays) -> Arrays:
    """Returns a checkpoint's arrays but for experience."""
    return {name: x for name, x in arrays.items() if not name.startswith(REPLAY)}


def holds_episodes(names: Iterable[str]) -> bool:
    """Returns whether a checkpoint with arrays of these names has episodes that environments replay."""
    return any(name.startswith(LOG) for name in names)


def holds_replay(names: Iterable[str]) -> bool:
    """Returns whether a checkpoint with arrays of these names holds experience."""
    return any(name.startswith(REPLAY) for name in names)


def validate_learner(agent: AnyAgent, key: jax.Array, checkpoint: Mapping[str, Form]) -> None:
    """Compares shapes and dtypes with those that `restore_state` needs, before the arrays of a checkpoint are read.

    Raises:
        UserError: If the arrays are of another network or algorithm.
    """
    expected = learner_forms(agent, key)
    missing = _missing_factors(expected, checkpoint)
    validate_match({name: form for name, form in expected.items() if name not in missing}, checkpoint, LEARNER)


def learner_forms(agent: AnyAgent, key: jax.Array) -> dict[str, Form]:
    """Returns shape and dtype of all arrays of the learner state by name, without experience."""
    return leaf_forms(inner_state(jax.eval_shape(agent.init, key)), LEARNER)


def replay_forms(agent: AnyAgent, key: jax.Array, shapes: Trajectory) -> dict[str, Form]:
    """Returns shape and dtype of all arrays of experience by name; empty for an agent without replay.

    Args:
        agent: Agent whose experience is on the host, or in its state.
        key: any.
        shapes: Shapes of a slot.
    """
    if isinstance(agent, ReplayAgent):
        return leaf_forms(buffer_shapes(agent.data, shapes), REPLAY)
    extra: Any = jax.eval_shape(agent.init, key).extra
    return leaf_forms(experience(extra), REPLAY) if holds_buffer(extra) else {}


def restore_state(agent: AnyAgent, key: jax.Array, arrays: Arrays, with_replay: bool = True) -> LearnerState:
    """Returns the learner state alone, which is all that evaluation needs.

    An agent with replay around it gets its experience back if the arrays have it, and starts with none if not; without
    `with_replay` the state has no experience.

    Raises:
        UserError: If the arrays are of another network or algorithm.
    """
    template = jax.eval_shape(agent.init, key)
    learned = _zeros(inner_state(template))
    factors = {name: np.ones((), np.float32) for name in _missing_factors(leaf_forms(learned, LEARNER), arrays)}
    state: LearnerState = unflatten(learned, {**arrays, **factors}, LEARNER)
    if not with_replay or not holds_buffer(template.extra):
        return state
    kept = (
        restore_buffer(experience(template.extra), arrays)
        if holds_replay(arrays)
        else experience(init_state(agent, key).extra)
    )
    return dataclasses.replace(state, extra=join_extra(template.extra, state.extra, kept))


def cut_experience(agent: AnyAgent, state: LearnerState, rows: np.ndarray) -> LearnerState:
    """Returns the state, in whose experience on devices no later step is joined to the newest one of these rows.

    An insertion does it for rows that start an episode. This is for rows that continue elsewhere than they were.

    Args:
        agent: Agent of the run.
        state: State of the learner, with experience or without.
        rows: [B] bool, of the run.
    """

    def cut(own_rows: np.ndarray, part: Any) -> Any:
        if not isinstance(part, ReplayExtra):
            return part
        buffer = part.buffer
        valid, newest = buffer.storage.valid, buffer.selection.position.next_step - 1  # -1 is the last of the ring
        valid = jax.device_put(valid.at[newest].set(valid[newest] & ~own_rows), valid.sharding)
        storage = dataclasses.replace(buffer.storage, valid=valid)
        return dataclasses.replace(part, buffer=dataclasses.replace(buffer, storage=storage))

    def cut_all(own_rows: np.ndarray, extra: Any) -> Any:
        return jax.tree.map(partial(cut, own_rows), extra, is_leaf=lambda part: isinstance(part, ReplayExtra))

    extra = state.extra
    groups = agent.groups if isinstance(agent, Agent) else ()
    if not groups:
        return dataclasses.replace(state, extra=cut_all(rows, extra))
    of_group = {
        group.name: rows.reshape(-1, group.rows_per_env)[:, list(group.agent_indices)].reshape(-1) for group in groups
    }
    extra = {name: cut_all(of_group[name], part) if name in of_group else part for name, part in extra.items()}
    return dataclasses.replace(state, extra=extra)


def restore_buffer(template: Any, arrays: Arrays) -> Any:
    """Returns the experience that a checkpoint holds, in numpy arrays.

    Args:
        template: shapes of a buffer.
        arrays: the checkpoint.

    Raises:
        UserError: If it is of other sizes.
    """
    return unflatten(template, arrays, REPLAY)


def buffer_to_arrays(buffer: Any) -> Arrays:
    """Returns experience by name, as `restore_buffer` finds it. Arrays on devices stay there."""
    leaves = jax.tree_util.tree_flatten_with_path(buffer)[0]
    return {
        f"{REPLAY}{jax.tree_util.keystr(path)}": leaf if hasattr(leaf, "nbytes") else np.asarray(leaf)
        for path, leaf in leaves
    }


def _missing_factors(expected: Iterable[str], saved: Container[str]) -> list[str]:
    """Returns the names of run-time factors that checkpoints of earlier versions do not have, where they were 1."""
    return [name for name in expected if name.rstrip("']").endswith("_factor") and name not in saved]


def _zeros(shapes: Any) -> Any:
    return jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)


def named(arrays: Arrays, prefix: str) -> Arrays:
    """Returns the arrays whose names start with `prefix`, without it."""
    return {name.removeprefix(prefix): value for name, value in arrays.items() if name.startswith(prefix)}
