"""Evaluations whose environments worker processes step play the episodes that one process plays."""

import dataclasses
import os
import signal
import threading
from functools import partial
from multiprocessing import active_children
from pathlib import Path
from typing import Any
from unittest.mock import patch

import gymnasium
import jax
import numpy as np
import pytest

from agents.api import Mode
from agents.ppo import PPOConfig, make_ppo
from envpool_bridge.envs.gymnasium_env import GymnasiumSource
from envpool_bridge.errors import UserError, WorkerDiedError
from envpool_bridge.pool import EnvPool
from experiments.ppo_cartpole import EXPERIMENT
from jaxsrl import EnvConfig, EvalConfig, NetworkConfig, PoolConfig, RunConfig
from jaxsrl.cli.commands.evaluate import Evaluate
from jaxsrl.evaluation.evaluate import evaluate
from jaxsrl.evaluation.worker_rows import in_workers


class Dies(gymnasium.Env):
    """An environment whose process dies in its third step."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self._steps += 1
        if self._steps == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return np.zeros(2, np.float32), 1.0, False, False, {}


class RaisesLater(gymnasium.Env):
    """An environment whose second episode raises; its first has up to 20 steps."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,))
    action_space = gymnasium.spaces.Discrete(2)
    episodes = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.episodes += 1
        self._left = int(self.np_random.integers(1, 20))
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        if self.episodes > 1:
            raise RuntimeError("second episode")
        self._left -= 1
        return np.zeros(2, np.float32), 1.0, self._left == 0, False, {}


def _agent(source: Any) -> Any:
    agent = make_ppo(PPOConfig(), source.spec(), NetworkConfig(hidden_sizes=(8,)))
    return agent, agent.init(jax.random.key(0)).params


@pytest.mark.parametrize("mode", [Mode.GREEDY, Mode.SAMPLE])
@pytest.mark.parametrize(
    ("config", "processes"),
    [
        (EnvConfig("CartPole-v1"), 2),
        (EnvConfig("CartPole-v1"), 4),  # 6 rows: 3 workers
        (EnvConfig("RememberCue", suite="probe", frame_stack=3), 2),
    ],
    ids=["two", "not a divisor", "frames"],
)
def test_workers_play_the_same_episodes(mode: Mode, config: EnvConfig, processes: int) -> None:
    source = config.source()
    agent, params = _agent(source)
    play = partial(evaluate, agent, params, episodes=14, seed=5, mode=mode, max_rows=6)
    assert play(in_workers(source, processes)) == play(source)
    assert not active_children()


def test_a_dead_worker_ends_the_evaluation() -> None:
    source = GymnasiumSource(Dies, env_id="Dies")
    agent, params = _agent(source)
    with pytest.raises(WorkerDiedError):
        evaluate(agent, params, in_workers(source, 2), episodes=2)
    assert not active_children()


@pytest.mark.parametrize("processes", [0, 3])
def test_environments_rest_after_their_episodes(processes: int) -> None:
    source = GymnasiumSource(RaisesLater, env_id="RaisesLater")
    agent, params = _agent(source)
    report = evaluate(agent, params, in_workers(source, processes), episodes=6)
    assert len(set(report.lengths)) > 1  # the short ones waited for the longest


def test_a_source_that_cannot_be_sent_is_rejected_at_once() -> None:
    lock = threading.Lock()

    def make() -> gymnasium.Env:
        with lock:
            return gymnasium.make("CartPole-v1")

    with pytest.raises(UserError, match="cannot be sent"):
        in_workers(make, 2)


def test_no_workers_is_the_source_itself() -> None:
    source = EnvConfig("CartPole-v1").source()
    assert in_workers(source, 0) is source


def test_workers_return_no_infos() -> None:
    with pytest.raises(UserError, match="infos"):
        in_workers(EnvConfig("CartPole-v1").source(), 2).make_rows(range(2), 0, True)


def test_a_native_vector_is_rejected_before_training(tmp_path: Path) -> None:
    vector = EnvConfig("CartPole-v1", suite="gymnasium_vector")
    run = RunConfig(
        total_env_steps=64, num_envs=4, rollout_length=8, directory=str(tmp_path), eval=EvalConfig(processes=2)
    )
    with pytest.raises(UserError, match="threads"):
        dataclasses.replace(EXPERIMENT, env=vector, run=run).train(quiet=True)
    assert not list(tmp_path.glob("*/metrics.jsonl"))


def test_a_negative_number_of_processes_is_rejected() -> None:
    with pytest.raises(UserError, match="--processes"):
        Evaluate(Path("run"), processes=-1).run()
    with pytest.raises(UserError, match="at least 0"):
        in_workers(EnvConfig("CartPole-v1").source(), -1)


@pytest.mark.slow
def test_the_final_evaluation_of_a_run_has_workers(tmp_path: Path) -> None:
    run = RunConfig(
        total_env_steps=64,
        num_envs=4,
        rollout_length=8,
        directory=str(tmp_path),
        pool=PoolConfig(num_workers=1),
        eval=EvalConfig(final_episodes=4, processes=2),
    )
    experiment = dataclasses.replace(EXPERIMENT, agent=PPOConfig(), network=NetworkConfig(hidden_sizes=(8,)), run=run)
    with patch("jaxsrl.evaluation.worker_rows.EnvPool", wraps=EnvPool) as pool:
        with_workers = experiment.train(quiet=True)
    assert pool.call_count == 1
    source = experiment.env.source()
    agent, _ = _agent(source)
    assert with_workers.evaluation == evaluate(agent, with_workers.state.params, source, episodes=4)
