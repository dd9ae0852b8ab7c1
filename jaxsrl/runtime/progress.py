"""All that a checkpoint holds, to and from arrays."""

import dataclasses

import jax
import numpy as np

from agents.api import AnyAgent, LearnerState, Params
from envpool_bridge.adapters.rows import EpisodeReset
from envpool_bridge.specs import EnvSpec
from jaxsrl.agent_layout import agent_state_spec
from jaxsrl.checkpoint import Arrays, flatten, unflatten
from jaxsrl.metrics.episodes import EpisodeTracker
from jaxsrl.runtime.episode_log import EpisodeLog

LEARNER, _BEHIND, EPISODES, _LOG = "learner", "behind", "episodes/", "environments/"


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


def to_arrays(state: LearnerState, behind: Params | None, episodes: EpisodeTracker, log: EpisodeLog) -> Arrays:
    """Everything by name; fetches from the device."""
    state, behind = jax.device_get((state, behind))
    arrays = flatten(state, LEARNER)
    if behind is not None:
        arrays |= flatten(behind, _BEHIND)
    arrays |= {EPISODES + name: value for name, value in episodes.to_arrays().items()}
    arrays |= {_LOG + name: value for name, value in log.to_arrays().items()}
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
    episodes.restore(named(arrays, EPISODES))
    first_step = int(state.num_updates) * rollout_length
    log = EpisodeLog(num_rows, first_step, spec, agent_state=agent_state_spec(agent))
    reset = log.restore(named(arrays, _LOG))
    return Progress(state, behind, episodes, log, reset)


def restore_state(agent: AnyAgent, key: jax.Array, arrays: Arrays) -> LearnerState:
    """The learner state alone, which is all that evaluation needs."""
    template = jax.eval_shape(agent.init, key)
    template = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), template)
    return unflatten(template, arrays, LEARNER)


def named(arrays: Arrays, prefix: str) -> Arrays:
    """The arrays whose names begin with `prefix`, without it."""
    return {name.removeprefix(prefix): value for name, value in arrays.items() if name.startswith(prefix)}
