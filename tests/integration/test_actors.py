"""Actor processes: what they collect is what the serial loop collects, and how they end is known."""

import dataclasses
import os
import signal
import time

import jax
import numpy as np
import pytest

from agents.api import Agent
from agents.networks.config import NetworkConfig
from agents.ppo import PPOConfig, make_ppo
from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.envs.gymnasium_env import GymnasiumSource
from envpool_bridge.envs.probes.single_agent import ConstantReward
from envpool_bridge.envs.protocol import EpisodeReset
from envpool_bridge.errors import UserError, WorkerDiedError, WorkerError
from envpool_bridge.options import SupervisorOptions
from envpool_bridge.pool import EnvPool
from envpool_bridge.shm.layout import PoolShape
from envpool_bridge.worker.policy import LocalPolicySpec
from jaxsrl.collect.actor_pool import ActorCollector
from jaxsrl.collect.collector import Collector, CollectorConfig
from jaxsrl.collect.serial import SerialCollector
from jaxsrl.learner.loop import Learner
from jaxsrl.machine.resources import Resources
from jaxsrl.plan.policies import PLANS
from jaxsrl.run_plan import run
from tests.support.run_configs import run_config

ROWS, STEPS, SLOTS = 6, 8, 6
CARTPOLE = EnvConfig("CartPole-v1").source()
EXACT = ("is_first", "action", "terminated", "truncated", "valid", "policy_version")


def make_agent(source: GymnasiumSource) -> Agent:
    return make_ppo(PPOConfig(num_minibatches=2), source.spec(), NetworkConfig(hidden_sizes=(16,)))


def make_config(source, agent: Agent, lag: int, first_sequence: int = 0, plan_name="single_learner_coarse"):
    settings = run_config(num_envs=ROWS, pool_num_workers=2, rollout_length=STEPS, max_policy_lag=lag)
    plan = PLANS[plan_name](settings, Resources.detect())
    return CollectorConfig(source, source.spec(), plan, agent, 3, first_sequence, jax.random.key(8))


def actors(source, agent: Agent, lag: int = 0) -> ActorCollector:
    return ActorCollector(make_config(source, agent, lag))


def params_of(agent: Agent, version: int):
    return agent.init(jax.random.key(version)).params


def acquire(source: Collector, seconds: float = 60.0) -> int:
    deadline = time.monotonic() + seconds
    while (sequence := source.acquire(0.2)) is None:
        assert time.monotonic() < deadline, "no slot was filled"
    return sequence


def collect(source: Collector, agent: Agent, lag: int, first: int = 0):
    """Copies of the first slots, as a learner that publishes other parameters after each would see them."""
    found = []
    try:
        for version in range(max(0, first - lag), first + 1):
            source.publish(version, params_of(agent, version))
        source.start(EpisodeReset((0,) * ROWS, (None,) * ROWS))
        begun = source.first_observation(lambda: False)
        for expected in range(first, first + SLOTS):
            sequence = acquire(source)
            assert sequence == expected
            (slot,) = source.slots(sequence)
            arrays = {name: getattr(slot, name).copy() for name in ("observation", "reward", *EXACT)}
            found.append(arrays | {name: values.copy() for name, values in slot.extras.items()})
            source.publish(sequence + 1, params_of(agent, sequence + 1))
            source.release(sequence)
        totals = dict(source.totals())
    finally:
        source.close()
    np.testing.assert_array_equal(begun, found[0]["observation"][0])
    return found, totals


@pytest.mark.parametrize(("lag", "first"), [(1, 5), *(pytest.param(lag, 0, marks=pytest.mark.slow) for lag in (0, 1))])
def test_actors_collect_like_the_serial_loop(lag, first):
    agent = make_agent(CARTPOLE)
    serial = SerialCollector(make_config(CARTPOLE, agent, lag, first, "serial"), jax.local_devices()[0])
    expected, _ = collect(serial, agent, lag, first)
    got, totals = collect(ActorCollector(make_config(CARTPOLE, agent, lag, first)), agent, lag, first)
    assert not all(slot["valid"].all() for slot in got)  # episodes ended
    for sequence, (mine, reference) in enumerate(zip(got, expected, strict=True), first):
        for name in EXACT:
            np.testing.assert_array_equal(mine[name], reference[name], err_msg=name)
        for name in set(reference) - set(EXACT):
            np.testing.assert_allclose(mine[name], reference[name], rtol=1e-5, atol=1e-5, err_msg=name)
        assert (mine["policy_version"] == max(0, sequence - lag)).all()
    assert totals["inference/rows"] >= SLOTS * STEPS * ROWS
    assert totals["inference/rows"] == totals["inference/calls"] * ROWS / 2
    assert 0.0 < totals["inference/busy_seconds"] < 60.0


@pytest.mark.slow
def test_actors_wait_for_parameters_then_continue():
    agent = make_agent(CARTPOLE)
    source = actors(CARTPOLE, agent)
    try:
        source.publish(0, params_of(agent, 0))
        source.start(EpisodeReset((0,) * ROWS, (None,) * ROWS))
        source.release(acquire(source))
        took = []
        for version in range(1, 5):
            assert source.acquire(0.1) is None  # this slot is for a version that is not there
            params = params_of(agent, version)
            start = time.monotonic()
            source.publish(version, params)
            assert acquire(source) == version
            took.append(time.monotonic() - start)
            source.release(version)
        assert min(took) < 0.5  # woken, and not found awake after an idle second
    finally:
        source.close()


@pytest.mark.slow
def test_from_lag_2_on_no_version_is_older_than_the_lag(tmp_path):
    settings = {"num_envs": ROWS, "pool_num_workers": 2, "rollout_length": STEPS, "max_policy_lag": 3}
    config = run_config(name="run", directory=str(tmp_path), total_env_steps=ROWS * STEPS * 20, **settings)
    plan = PLANS["single_learner_coarse"](config, Resources.detect())
    lags = []
    original = Learner._measure_lag

    def measure(self, slots):
        lags.append(self.num_updates - np.concatenate([slot.policy_version for slot in slots], axis=1))
        original(self, slots)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Learner, "_measure_lag", measure)
        report = run(plan, make_agent(CARTPOLE), CARTPOLE, config, quiet=True)
    assert report.num_updates == len(lags) == 20
    assert all(0 <= lag.min() <= lag.max() <= 3 for lag in lags)


def raises(*arguments):
    raise ValueError("the network is upside down")


@pytest.mark.slow
def test_policy_exception_has_its_traceback():
    agent = make_agent(CARTPOLE)._replace(act=raises)
    source = actors(CARTPOLE, agent)
    try:
        source.publish(0, params_of(agent, 0))
        source.start(EpisodeReset((0,) * ROWS, (None,) * ROWS))
        with pytest.raises(WorkerError, match="the network is upside down") as raised:
            acquire(source)
        assert 'raise ValueError("the network is upside down")' in str(raised.value)
        assert "In the worker:" in str(raised.value)
    finally:
        source.close()


class FallsOff(ConstantReward):
    def step(self, action):
        raise RuntimeError("the belt came off")


def test_an_exception_of_an_environment_comes_back_with_its_row():
    source = GymnasiumSource(FallsOff)
    agent = make_agent(source)
    collecting = actors(source, agent)
    try:
        collecting.publish(0, params_of(agent, 0))
        collecting.start(EpisodeReset((0,) * ROWS, (None,) * ROWS))
        with pytest.raises(WorkerError, match=r"row \d, step \d+: RuntimeError: the belt came off"):
            acquire(collecting)
    finally:
        collecting.close()


def test_killed_actor_without_restarts_is_an_error():
    agent = make_agent(CARTPOLE)
    config = dataclasses.replace(make_config(CARTPOLE, agent, 0), supervision=SupervisorOptions(max_restarts=0))
    source = ActorCollector(config)
    try:
        source.publish(0, params_of(agent, 0))
        source.start(EpisodeReset((0,) * ROWS, (None,) * ROWS))
        source.release(acquire(source))
        os.kill(source._pool._workers._pids[1], signal.SIGKILL)
        with pytest.raises(WorkerDiedError, match="worker 1 .*SIGKILL"):
            acquire(source, 10.0)
    finally:
        source.close()


def test_unstarted_source_closes_cleanly():
    source = actors(CARTPOLE, make_agent(CARTPOLE))
    source.close()
    source.close()


def test_workers_that_share_a_lane_cannot_act():
    shape = PoolShape(2, 1, 2, 1, 4, 2)
    with EnvPool(CARTPOLE, shape) as pool, pytest.raises(UserError, match="expected workers_per_lane 1, got 2"):
        pool.start([EpisodeReset((0,), (None,))] * 2, LocalPolicySpec(b"never loaded"))
