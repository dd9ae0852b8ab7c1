"""All that a checkpoint holds, to and from arrays."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from agents.api import AnyAgent, LearnerState, Params
from envpool_bridge.adapters.rows import EpisodeReset
from envpool_bridge.specs import EnvSpec
from jaxsrl.agent_layout import agent_state_spec
from jaxsrl.checkpoint import Arrays, flatten, forms_of, unflatten
from jaxsrl.checkpoint_form import Form, require_fit
from jaxsrl.metrics.episodes import EpisodeTracker
from jaxsrl.replay.replayed import Replayed
from jaxsrl.runtime.episode_log import EpisodeLog

LEARNER, REPLAY, _BEHIND, EPISODES, LOG = "learner", "replay", "behind", "episodes/", "environments/"


@dataclasses.dataclass
class Progress:
    """A run between two updates.

    Attributes:
        state: learner state after `state.num_updates` updates.
        behind: parameters one version older, with which a run at lag 1 collects its next trajectory; None if not kept.
        episodes: running returns.
        log: episodes in progress.
        reset: how environments get to where they were.
    """

    state: LearnerState
    behind: Params | None
    episodes: EpisodeTracker
    log: EpisodeLog
    reset: EpisodeReset


def begin(agent: AnyAgent, key: jax.Array, num_rows: int, spec: EnvSpec) -> Progress:
    """The beginning of a run; `key` is consumed."""
    reset = EpisodeReset((0,) * num_rows, (None,) * num_rows)
    log = EpisodeLog(num_rows, 0, spec, agent_state=agent_state_spec(agent))
    return Progress(agent.init(key), None, EpisodeTracker(num_rows, spec.info_fields), log, reset)


def to_arrays(
    state: LearnerState,
    behind: Params | None,
    episodes: EpisodeTracker,
    log: EpisodeLog,
    with_replay: bool = True,
) -> Arrays:
    """Everything by name; fetches from the device. `with_replay` is whether experience that the state holds is kept."""
    behind = jax.device_get(behind)
    arrays = state_to_arrays(state, with_replay)
    if behind is not None:
        arrays |= flatten(behind, _BEHIND)
    arrays |= {EPISODES + name: value for name, value in episodes.to_arrays().items()}
    arrays |= {LOG + name: value for name, value in log.to_arrays().items()}
    return arrays


def from_arrays(
    agent: AnyAgent, key: jax.Array, arrays: Arrays, num_rows: int, rollout_length: int, spec: EnvSpec
) -> Progress:
    """The run as it was when `arrays` were made; `key` only gives the shapes.

    Raises:
        UserError: the arrays are of another network or algorithm.
    """
    state = restore_state(agent, key, arrays)
    has_behind = any(name.startswith(_BEHIND) for name in arrays)
    behind = unflatten(state.params, arrays, _BEHIND) if has_behind else None
    episodes = EpisodeTracker(num_rows, spec.info_fields)
    first_step = int(state.num_updates) * rollout_length
    log = EpisodeLog(num_rows, first_step, spec, agent_state=agent_state_spec(agent))
    if not any(name.startswith(LOG) for name in arrays):  # a partial restore: environments begin anew
        return Progress(state, behind, episodes, log, EpisodeReset((0,) * num_rows, (None,) * num_rows))
    episodes.restore(named(arrays, EPISODES))
    reset = log.restore(named(arrays, LOG))
    return Progress(state, behind, episodes, log, reset)


def state_to_arrays(state: LearnerState, with_replay: bool = True) -> Arrays:
    """The learner state by name; experience, if it holds any and `with_replay`, under a name of its own."""
    if not isinstance(state.extra, Replayed):
        return flatten(jax.device_get(state), LEARNER)
    learner = dataclasses.replace(state, extra=state.extra.extra)
    kept = buffer_to_arrays(state.extra.buffer) if with_replay else {}
    return flatten(jax.device_get(learner), LEARNER) | kept


def holds_replay(arrays: Arrays) -> bool:
    """Whether a checkpoint has experience in it."""
    return any(name.startswith(REPLAY) for name in arrays)


def require_learner(agent: AnyAgent, key: jax.Array, found: Mapping[str, Form]) -> None:
    """Refuses what `restore_state` would, by shapes and dtypes alone: before the arrays of a checkpoint are read.

    Raises:
        UserError: the arrays are of another network or algorithm.
    """
    template = jax.eval_shape(agent.init, key)
    if isinstance(template.extra, Replayed):
        buffer, template = template.extra.buffer, dataclasses.replace(template, extra=template.extra.extra)
        if any(name.startswith(REPLAY) for name in found):
            require_fit(forms_of(buffer, REPLAY), found, REPLAY)
    require_fit(forms_of(template, LEARNER), found, LEARNER)


def restore_state(agent: AnyAgent, key: jax.Array, arrays: Arrays) -> LearnerState:
    """The learner state alone, which is all that evaluation needs.

    An agent with replay around it gets its experience back if the arrays have it, and begins with none if not.

    Raises:
        UserError: the arrays are of another network or algorithm.
    """
    template = jax.eval_shape(agent.init, key)
    if not isinstance(template.extra, Replayed):
        return unflatten(_zeros(template), arrays, LEARNER)
    learner = _zeros(dataclasses.replace(template, extra=template.extra.extra))
    state: LearnerState = unflatten(learner, arrays, LEARNER)
    kept = restore_buffer(template.extra.buffer, arrays) if holds_replay(arrays) else None
    return dataclasses.replace(state, extra=Replayed(state.extra, kept or agent.init(key).extra.buffer))


def restore_buffer(template: Any, arrays: Arrays) -> Any:
    """The experience that a checkpoint holds, in numpy arrays.

    Args:
        template: a buffer of the same shapes; its values do not matter.
        arrays: the checkpoint.

    Raises:
        UserError: it is of other sizes.
    """
    return unflatten(_zeros(template), arrays, REPLAY)


def buffer_to_arrays(buffer: Any) -> Arrays:
    """Experience by name, as `restore_buffer` finds it."""
    return flatten(jax.device_get(buffer), REPLAY)


def _zeros(shapes: Any) -> Any:
    return jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)


def named(arrays: Arrays, prefix: str) -> Arrays:
    """The arrays whose names begin with `prefix`, without it."""
    return {name.removeprefix(prefix): value for name, value in arrays.items() if name.startswith(prefix)}
