"""The same agent under every plan computes the same thing; runs repeat and resume to the bit."""

import dataclasses
import json
import os
import signal

import jax
import numpy as np
import pytest

from agents.networks.config import NetworkConfig
from agents.ppo import PPOConfig, make_ppo
from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.envs.gymnasium_env import GymnasiumSource
from envpool_bridge.envs.probes.single_agent import EndsByClock
from envpool_bridge.errors import WorkerError
from jaxsrl.config.run_config import RunConfig
from jaxsrl.learner.loop import Learner
from jaxsrl.machine.resources import Resources
from jaxsrl.plan.policies import PLANS
from jaxsrl.run_plan import RunReport, run
from tests.support.run_configs import run_config

NETWORK = NetworkConfig(hidden_sizes=(16,))
AGENT = PPOConfig(learning_rate=1e-3, num_epochs=2, num_minibatches=2)


def train(directory, **changes) -> RunReport:
    settings = {
        "name": "run",
        "directory": str(directory),
        "num_envs": 16,
        "rollout_length": 8,
        "total_env_steps": 16 * 8 * 20,
        "checkpoint_interval_updates": 0,
        "max_policy_lag": 0,
    }
    config = run_config(**{**settings, **changes})
    source = EnvConfig("CartPole-v1").source()
    spec = source.spec()
    agent = make_ppo(AGENT, spec, NETWORK)
    plan = PLANS[config.plan](config, Resources.detect())
    return run(plan, agent, source, config, spec=spec, quiet=True)


def leaves(report: RunReport) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(report.state)]


def assert_same_bits(one: RunReport, other: RunReport) -> None:
    assert one.num_updates == other.num_updates
    for a, b in zip(leaves(one), leaves(other), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.fixture(scope="module")
def serial_runs(tmp_path_factory):
    """What the serial plan comes to, by lag."""
    return {lag: train(tmp_path_factory.mktemp("serial"), plan="serial", max_policy_lag=lag) for lag in (0, 1)}


DIVISIONS = [
    *((2, 1, 1), (4, 2, 0)),
    *(
        pytest.param(*case, marks=pytest.mark.slow)
        for case in ((1, 1, 0), (2, 2, 0), (4, 2, 1), (1, 1, 1), (2, 1, 0), (2, 2, 1))
    ),
]


@pytest.mark.parametrize(("workers", "per_lane", "lag"), DIVISIONS)
def test_environment_processes_match_the_serial_plan(tmp_path, serial_runs, workers, per_lane, lag):
    serial = serial_runs[lag]
    fine = train(tmp_path / "fine", pool_num_workers=workers, pool_workers_per_lane=per_lane, max_policy_lag=lag)
    assert fine.num_updates == serial.num_updates == 20
    assert fine.metrics["episode/count"] == serial.metrics["episode/count"] > 10
    for a, b in zip(leaves(serial), leaves(fine), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("lag", [1, pytest.param(0, marks=pytest.mark.slow)])
def test_the_same_run_twice_gives_the_same_bits(tmp_path, lag):
    assert_same_bits(train(tmp_path / "a", max_policy_lag=lag), train(tmp_path / "b", max_policy_lag=lag))


@pytest.mark.slow
def test_another_seed_gives_other_parameters(tmp_path):
    one, other = train(tmp_path / "a", total_env_steps=256), train(tmp_path / "b", total_env_steps=256, seed=1)
    assert any(not np.array_equal(a, b) for a, b in zip(leaves(one), leaves(other), strict=True))


RESUMES = [
    ("single_learner_fine", 1),
    *(
        pytest.param(*case, marks=pytest.mark.slow)
        for case in (("serial", 0), ("serial", 1), ("single_learner_fine", 0))
    ),
]


@pytest.mark.parametrize(("policy", "lag"), RESUMES)
def test_resumed_run_equals_uninterrupted_bit_for_bit(tmp_path, policy, lag):
    whole = train(tmp_path / "whole", plan=policy, max_policy_lag=lag)
    for updates in (3, 20):
        resumed = train(tmp_path / "parts", plan=policy, max_policy_lag=lag, total_env_steps=16 * 8 * updates)
        assert resumed.num_updates == updates
    assert_same_bits(whole, resumed)
    assert resumed.metrics == whole.metrics


def test_interrupted_run_saves_and_resumes_bit_for_bit(tmp_path, monkeypatch):
    whole = train(tmp_path / "whole", max_policy_lag=1)
    original = Learner.step
    calls = {"left": 7}

    def step_then_interrupt(self, *arguments):
        done = original(self, *arguments)
        calls["left"] -= done
        if done and calls["left"] == 0:
            os.kill(os.getpid(), signal.SIGINT)
        return done

    monkeypatch.setattr(Learner, "step", step_then_interrupt)
    interrupted = train(tmp_path / "parts", max_policy_lag=1)
    assert interrupted.stopped_by == "SIGINT"
    assert 7 <= interrupted.num_updates < 20
    assert_same_bits(whole, train(tmp_path / "parts", max_policy_lag=1))


def test_a_finished_run_is_not_trained_again(tmp_path):
    first = train(tmp_path, total_env_steps=256)
    again = train(tmp_path, total_env_steps=256)
    assert again.seconds == 0.0
    assert_same_bits(first, again)


@pytest.mark.slow
def test_asynchronous_lag_stays_within_its_bound(tmp_path):
    report = train(tmp_path, max_policy_lag=3, inference_batching="merged", pool_num_workers=2)
    assert report.num_updates == 20
    lines = (report.directory / "metrics.jsonl").read_text().splitlines()
    assert 0 <= json.loads(lines[-1])["policy/lag_max"] <= 3


@pytest.mark.slow  # to compile; with actors in test_every_plan.py
def test_learner_on_four_devices_matches_one(tmp_path):
    one, four = train(tmp_path / "one"), train(tmp_path / "four", learner_num_devices=4)
    for a, b in zip(leaves(one), leaves(four), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-6)


def test_failing_environment_is_reported_with_traceback(tmp_path):
    config = RunConfig(name="bad", directory=str(tmp_path), num_envs=4, rollout_length=8, total_env_steps=10_000)
    source = GymnasiumSource(BreaksAtStepTwenty)
    spec = source.spec()
    plan = PLANS[config.plan](config, Resources.detect())
    with pytest.raises(WorkerError, match=r"row \d, step 39: RuntimeError: the belt came off") as raised:
        run(plan, make_ppo(AGENT, spec, NETWORK), source, config, spec=spec, quiet=True)
    assert 'raise RuntimeError("the belt came off")' in str(raised.value)  # the worker's own traceback


class BreaksAtStepTwenty(EndsByClock):
    count = 0  # every episode is one step, and every second step only resets

    def step(self, action):
        self.count += 1
        if self.count == 20:
            raise RuntimeError("the belt came off")
        return super().step(action)


def test_frozen_configuration_cannot_be_written():
    with pytest.raises(dataclasses.FrozenInstanceError):
        RunConfig().seed = 3
