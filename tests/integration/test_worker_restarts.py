"""A run whose environment processes are killed: it goes on to its end, and its records tell of it."""

import json
import time

import pytest

from agents.networks.config import NetworkConfig
from agents.ppo import PPOConfig, make_ppo
from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.options import SupervisorOptions
from envpool_bridge.pool import EnvPool
from jaxsrl.envs.registry import make_env
from jaxsrl.machine.resources import Resources
from jaxsrl.plan.policies import PLANS
from jaxsrl.run_plan import run
from jaxsrl.training.train import TrainingLoop
from tests.chaos.counting import kill, pids
from tests.support.run_configs import run_config

UPDATES = 30


def train(directory, monkeypatch, kills, **supervision):
    """Kills a worker after each of these updates."""
    config = run_config(
        name="run",
        directory=str(directory),
        plan="single_learner_fine",
        num_envs=8,
        pool_num_workers=2,
        pool_lanes_per_worker=1,
        rollout_length=8,
        total_env_steps=8 * 8 * UPDATES,
        checkpoint_interval_updates=0,
        pool_supervision=SupervisorOptions(**supervision),
    )
    after, start, pools = TrainingLoop.after_update, EnvPool.start, []

    def start_and_note(pool, *arguments):
        pools.append(pool)
        start(pool, *arguments)

    def kill_and_go_on(training, learner):
        if learner.num_updates in kills:
            (pool,) = pools  # whose workers are asked for by index: its server may have a spare worker as well
            worker = learner.num_updates % 2
            killed = pids(pool)[worker]
            assert kill(pool, worker)
            deadline = time.monotonic() + 60.0
            while supervision.get("max_restarts") != 0 and (killed in pids(pool) or len(pids(pool)) < 2):
                assert time.monotonic() < deadline, "the worker was not started again"
                time.sleep(0.01)
        after(training, learner)

    monkeypatch.setattr(EnvPool, "start", start_and_note)
    monkeypatch.setattr(TrainingLoop, "after_update", kill_and_go_on)
    source = make_env(EnvConfig("CartPole-v1"))
    spec = source.spec()
    agent = make_ppo(PPOConfig(num_epochs=1, num_minibatches=1), spec, NetworkConfig(hidden_sizes=(8,)))
    return run(PLANS[config.plan](config, Resources.detect()), agent, source, config, spec=spec, quiet=True)


def test_killed_workers_come_back_and_the_run_ends_as_it_should(tmp_path, monkeypatch):
    report = train(tmp_path, monkeypatch, {5, 9, 14})
    assert report.num_updates == UPDATES
    last = json.loads((report.directory / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["env/restarts_total"] == 3.0


def test_run_without_restarts_reports_the_first_death(tmp_path, monkeypatch):
    with pytest.raises(Exception, match="SIGKILL"):
        train(tmp_path, monkeypatch, {5}, max_restarts=0)
