"""Real and predicted observations of the first steps of an evaluation, and the error of the predictions."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from agents.api import AnyAgent, Mode, Params, ReplayAgent, Trajectory
from agents.transforms.frame_stacking import with_stacked_frames
from envpool_bridge.envs.function_source import AnyEnv, as_source
from envpool_bridge.envs.protocol import EnvRows
from envpool_bridge.spec.tree import take
from jaxsrl.collect.inference.act import make_act
from jaxsrl.evaluation.evaluate import for_evaluation, on_one_device
from jaxsrl.evaluation.player import RowsPlayer, evaluation_seed
from jaxsrl.learner.mesh import as_trajectory
from jaxsrl.machine.cpu_dispatch import use_synchronous_cpu_dispatch

CONTEXT, HORIZON = 5, 45
"""Observations that are seen, and those predicted after them, as in the figure of Hafner et al. 2025."""
MOST_STEPS = 256  # all observations are decoded at once


@dataclasses.dataclass(frozen=True)
class OpenLoop:
    """Observations of one row, real and predicted.

    Attributes:
        env_id: id of the environment.
        leaves: (real, predicted) values by name: numbers [T, V], or images [T, H, W, C] in [0, 1].
        seen: [T] bool, observations that the agent saw; the others are predicted from them and the actions.
        is_first: [T] bool, observations that begin an episode.
    """

    env_id: str
    leaves: Mapping[str, tuple[np.ndarray, np.ndarray]]
    seen: np.ndarray
    is_first: np.ndarray

    def errors(self) -> dict[str, float]:
        """Returns the root-mean-square error of the unseen observations, by leaf; {} if all were seen."""
        return self._errors({name: predicted for name, (_, predicted) in self.leaves.items()})

    def errors_if_unchanged(self) -> dict[str, float]:
        """Returns `errors` of the prediction that nothing changes after the last seen observation."""
        last_seen = np.maximum.accumulate(np.where(self.seen, np.arange(len(self.seen)), 0))
        return self._errors({name: real[last_seen] for name, (real, _) in self.leaves.items()})

    def _errors(self, predicted: Mapping[str, np.ndarray]) -> dict[str, float]:
        if self.seen.all():
            return {}
        squares = {name: np.square(predicted[name] - real)[~self.seen] for name, (real, _) in self.leaves.items()}
        return {name: float(np.sqrt(np.mean(values))) for name, values in squares.items()}


def can_predict(agent: AnyAgent) -> bool:
    """Returns whether an agent offers predictions of observations."""
    return getattr(agent, "predict_observations", None) is not None


def predict_open_loop(
    agent: AnyAgent,
    params: Params,
    extra: Any,
    make_env: AnyEnv,
    *,
    episodes: int = 1,
    seed: int = 0,
    mode: Mode = Mode.GREEDY,
) -> OpenLoop:
    """Plays the episodes that `evaluate(..., max_rows=1)` plays, and predicts their observations.

    In each episode the agent sees `CONTEXT` observations, predicts the next `HORIZON`, sees the next, and so on. Playing ends
    after `MOST_STEPS`.

    Args:
        agent: agent for which `can_predict` holds.
        params: Parameters of the model.
        extra: `LearnerState.extra` of it.
        make_env: see `evaluate`.
        episodes: number of episodes.
        seed: Seed of environments and actions.
        mode: greedy or sampled actions.
    """
    use_synchronous_cpu_dispatch()
    source = for_evaluation(as_source(make_env))
    spec, (params, extra) = source.spec(), on_one_device((params, extra))
    stacked = with_stacked_frames(agent, spec)
    predict_observations = stacked.predict_observations if isinstance(stacked, ReplayAgent) else None
    if predict_observations is None:
        raise TypeError(f"expected an agent that predicts observations, got {agent.name}")
    rows = source.make_rows(range(spec.rows_per_env), evaluation_seed(seed), False)
    try:
        player = RowsPlayer(stacked, make_act(stacked, mode), params, spec, seed, rows.num_rows, MOST_STEPS)
        window = _play(player, rows, episodes)
    finally:
        rows.close()
    is_first = np.asarray(window.is_first)[-len(window.reward) - 1 :]
    seen = seen_observations(is_first)
    predict = jax.jit(predict_observations)
    pairs = jax.device_get(predict(params, extra, window, seen, jax.random.key(evaluation_seed(seed))))
    leaves = {name: (real[:, 0], predicted[:, 0]) for name, (real, predicted) in pairs.items()}
    return OpenLoop(spec.env_id, leaves, seen[:, 0], is_first[:, 0])


def seen_observations(is_first: np.ndarray) -> np.ndarray:
    """Returns [T, B] bool, the first `CONTEXT` of each `CONTEXT + HORIZON` observations of an episode, from [T, B] `is_first`."""
    steps = np.arange(len(is_first))[:, None]
    begin = np.maximum.accumulate(np.where(is_first, steps, 0))
    return (steps - begin) % (CONTEXT + HORIZON) < CONTEXT


def _play(player: RowsPlayer, rows: EnvRows, episodes: int) -> Trajectory:
    """Returns the steps until the first row has finished its episodes, at most `MOST_STEPS`."""
    player.start(rows)
    num_steps = 0
    while num_steps < MOST_STEPS and episodes:
        out = player.step(rows)
        num_steps += 1
        episodes -= int(out.terminated[0] | out.truncated[0])
    slot, dropped = player.slot, player.length - num_steps
    trajectory: Trajectory = jax.tree.map(lambda leaf: leaf[: len(leaf) - dropped], as_trajectory(slot))
    return dataclasses.replace(trajectory, agent_state=take(slot.agent_state, 0))
