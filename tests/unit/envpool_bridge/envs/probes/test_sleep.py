"""The environment that sleeps: it takes the time it is told to, and little of the processor's."""

import time

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.envs.probes.sleep import Sleep
from envpool_bridge.errors import UserError


def source(kwargs):
    return EnvConfig("Sleep", suite="probe", kwargs=kwargs).source()


def test_sleep_step_takes_the_configured_time():
    env = source('{"milliseconds": 20}').make_env()
    env.reset(seed=0)
    wall, processor = time.perf_counter(), time.process_time()
    for _ in range(5):
        env.step(0)
    assert time.perf_counter() - wall >= 5 * 0.020
    assert time.process_time() - processor < 0.5 * 5 * 0.020


def test_steps_may_take_times_drawn_between_two_bounds(monkeypatch):
    slept = []
    monkeypatch.setattr(time, "sleep", slept.append)
    env = Sleep(milliseconds=1, max_milliseconds=50)
    env.reset(seed=0)
    for _ in range(400):
        env.step(0)
    assert 0.001 <= min(slept) < 0.003
    assert 0.048 < max(slept) <= 0.050
    assert np.mean(slept) == pytest.approx(0.0255, abs=0.002)


def test_sleep_truncates_episodes_and_restarts():
    env = Sleep(milliseconds=0, episode_steps=3)
    for _ in range(2):
        first, _ = env.reset()
        steps = [env.step(1) for _ in range(3)]
        assert [float(first[0])] + [float(step[0][0]) for step in steps] == pytest.approx([0, 1 / 3, 2 / 3, 1])
        assert [step[1:4] for step in steps] == [(1.0, False, False), (1.0, False, False), (1.0, False, True)]


def test_gymnasiums_own_checker_has_no_complaint():
    check_env(Sleep(milliseconds=0), skip_render_check=True)


def test_rows_of_it_have_a_specification():
    spec = source('{"milliseconds": 0}').spec()
    assert (spec.env_id, spec.observation.shape, np.dtype(spec.observation.dtype)) == ("Sleep", (1,), np.float32)


@pytest.mark.parametrize(
    ("env_id", "kwargs", "message"),
    [
        ("Sleep", '{"hours": 1}', "Sleep of suite 'probe': bad kwargs"),
        ("Sleep", '{"milliseconds": -1}', "must not be negative: got -1"),
        ("Sleep", '{"episode_steps": 0}', "must be at least 1: got 0"),
        ("Sleep", '{"max_milliseconds": 4}', "max_milliseconds of Sleep must be at least 5.0: got 4"),
        ("ConstantReward", '{"milliseconds": 1}', "ConstantReward of suite 'probe': bad kwargs"),
        ("Sleepy", "{}", "unknown probe environment 'Sleepy'"),
    ],
)
def test_sleep_rejects_invalid_settings(env_id, kwargs, message):
    with pytest.raises(UserError, match=message):
        EnvConfig(env_id, suite="probe", kwargs=kwargs).source()
