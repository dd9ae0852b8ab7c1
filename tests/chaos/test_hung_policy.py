"""Policies that hang or fail while they act: inside a worker, which is replaced; in an inference thread, which stops the run."""

import dataclasses
import logging
import pickle
import time
from functools import partial

import pytest

from envpool_bridge.envs.protocol import EpisodeReset
from envpool_bridge.shm.layout import PoolShape
from envpool_bridge.worker.policy import LocalPolicySpec
from tests.chaos.counting import PATIENT, check, copy, make_pool
from tests.unit.envpool_bridge.worker.test_acting_worker import ByRowAndStep

SHAPE = PoolShape(num_workers=2, lanes_per_worker=1, workers_per_lane=1, rows_per_part=2, rollout_length=6, num_slots=2)


class HangsOnce(ByRowAndStep):
    """Does not come back from acting for step 8 of row 0 while a file is there, which it removes."""

    def __init__(self, parts, once):
        super().__init__(parts)
        self.once = once

    def act(self, part, step, rows):
        if step == 8 and 0 in self.parts[part] and self.once.exists():
            self.once.unlink()
            time.sleep(600)
        return super().act(part, step, rows)


def make_hanging(once, layout, worker, parts, descriptors):
    return HangsOnce(parts, once)


def collected(pool, num_slots, policy):
    pool.start([EpisodeReset((0,) * 2, (None,) * 2)] * SHAPE.num_parts, policy)
    slots, deadline = [], time.monotonic() + 60.0
    for sequence in range(num_slots):
        while pool.acquire(0.1) is None:
            assert time.monotonic() < deadline
        slots.append(copy(pool.views[sequence % SHAPE.num_slots]))
        pool.release(sequence)
    return slots


def test_hung_policy_in_a_worker_is_reported_and_replaced(tmp_path, caplog):
    caplog.set_level(logging.WARNING, "envpool_bridge")
    (tmp_path / "once").touch()
    make = pickle.dumps(partial(make_hanging, tmp_path / "once"))
    options = dataclasses.replace(PATIENT, step_timeout_seconds=1.5)
    with make_pool(SHAPE, supervision=options) as pool:
        slots = collected(pool, 5, LocalPolicySpec(make, may_act=lambda sequence: True))
        totals = pool.supervision
    check(slots)
    assert (totals.hangs, totals.restarts) == (1, 1)
    assert "an action of its own policy within 1.5 s" in caplog.text
    assert "in act" in caplog.text  # its stack


class WaitsForParameters(ByRowAndStep):
    """May act for the first slot only, as long as a file is there."""

    def __init__(self, parts, wait):
        super().__init__(parts)
        self.wait = wait

    def may_act(self, sequence):
        return sequence < 1 or not self.wait.exists()

    def act(self, part, step, rows):
        return self.may_act(step // SHAPE.rollout_length) and super().act(part, step, rows)


def make_waiting(wait, layout, worker, parts, descriptors):
    return WaitsForParameters(parts, wait)


@pytest.mark.slow
def test_a_policy_that_waits_for_its_parameters_does_not_hang(tmp_path):
    wait = tmp_path / "wait"
    wait.touch()
    options = dataclasses.replace(PATIENT, step_timeout_seconds=1.5)
    policy = LocalPolicySpec(
        pickle.dumps(partial(make_waiting, wait)), may_act=lambda sequence: sequence < 1 or not wait.exists()
    )
    with make_pool(SHAPE, supervision=options) as pool:
        pool.start([EpisodeReset((0,) * 2, (None,) * 2)] * SHAPE.num_parts, policy)
        assert pool.acquire(60.0) == 0
        time.sleep(2.5)  # longer than a step may take
        assert pool.supervision.hangs == 0
        pool.release(0)
        wait.unlink()
        pool.wake_workers()
        assert pool.acquire(60.0) == 1


def test_inference_thread_error_is_raised_in_the_main_thread():
    from jaxsrl.machine.lifecycle import Lifecycle

    lifecycle = Lifecycle()
    began = time.monotonic()
    stopped = []

    def acts():
        raise FloatingPointError("the policy broke")

    def goes_on():
        while not lifecycle.should_stop():
            assert time.monotonic() - began < 60.0
            time.sleep(0.005)
        stopped.append(True)

    lifecycle.start_thread("inference 1", goes_on)
    lifecycle.start_thread("inference 0", acts)
    lifecycle.join(60.0)
    assert stopped == [True]
    with pytest.raises(FloatingPointError, match="the policy broke"):
        lifecycle.raise_error()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_inference_thread_error_ends_the_run_without_leftovers(tmp_path, monkeypatch):
    from agents.networks.config import NetworkConfig
    from agents.ppo import PPOConfig, make_ppo
    from envpool_bridge.envs.config import EnvConfig
    from jaxsrl.collect.inference import server
    from jaxsrl.config.run_config import RunConfig
    from jaxsrl.envs.registry import make_env
    from jaxsrl.machine.resources import Resources
    from jaxsrl.plan.policies import PLANS
    from jaxsrl.run_plan import run

    acts, calls = server.act_in_slot, []

    def breaks(*arguments):
        calls.append(1)
        if len(calls) == 30:
            raise FloatingPointError("the policy broke")
        return acts(*arguments)

    monkeypatch.setattr(server, "act_in_slot", breaks)
    source = make_env(EnvConfig("CartPole-v1"))
    config = RunConfig(name="run", directory=str(tmp_path), num_envs=8, rollout_length=4, total_env_steps=10**7)
    agent = make_ppo(PPOConfig(num_epochs=1, num_minibatches=1), source.spec(), NetworkConfig(hidden_sizes=(8,)))
    plan = PLANS["single_learner_fine"](config, Resources.detect())
    with pytest.raises(FloatingPointError, match="the policy broke"):
        run(plan, agent, source, config, quiet=True)
