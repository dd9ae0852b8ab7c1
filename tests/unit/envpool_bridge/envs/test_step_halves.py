"""Which environments are stepped in halves: never those where a wrapper would be missed."""

import dataclasses
from functools import partial
from operator import methodcaller

import cloudpickle
import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import RecordEpisodeStatistics, TimeLimit

from envpool_bridge.envs.concurrent_step import find_halves, make_concurrent_step
from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.envs.env_functions import call_attribute
from envpool_bridge.envs.probes.sleep import Sleep
from envpool_bridge.envs.protocol import FirstRows, GymnasiumReset
from envpool_bridge.envs.vector_requests import ApplyRequest, MaskedReset
from envpool_bridge.envs.vector_rows import VectorRowsSource
from envpool_bridge.vector_env.arguments import array_spec, row_spec
from tests.support.waiting_walks import Clock, WaitingWalk, Walk, limited, rows_of


class Shaped(WaitingWalk):
    """A class that derives from one with halves, and changes what the plain step returns."""

    def step(self, action):
        observation, reward, *rest = super().step(action)
        return observation, reward * 2, *rest


class ShapedInHalves(WaitingWalk):
    """As it should be done."""

    def step_wait(self):
        observation, reward, *rest = super().step_wait()
        return observation, reward * 2, *rest


class HalfShaped(Shaped):
    """Whose first half knows nothing of what its step does."""

    def step_wait(self):
        return super().step_wait()


class Plain(WaitingWalk):
    step_async = None


class Forwards(gymnasium.Wrapper):
    """As wrappers once were: what it lacks is asked of the environment inside."""

    def __getattr__(self, name):
        return getattr(self.env, name)


class WrapperInHalves(Forwards):
    """Which knows of the halves itself."""

    def step(self, action):
        return self.env.step(action)

    def step_async(self, action):
        self.env.step_async(action)

    def step_wait(self):
        return self.env.step_wait()


def with_own_step():
    env = WaitingWalk()
    env.step = env.step  # somebody looks on
    return env


@pytest.mark.parametrize(
    ("make_env", "in_halves"),
    [
        (WaitingWalk, True),
        (limited(WaitingWalk, 5), True),
        (ShapedInHalves, True),
        (lambda: WrapperInHalves(WaitingWalk()), True),
        (Walk, False),
        (Shaped, False),
        (HalfShaped, False),
        (Plain, False),
        (with_own_step, False),
        (lambda: Forwards(WaitingWalk()), False),
        (lambda: RecordEpisodeStatistics(WaitingWalk()), False),
        (lambda: TimeLimit(RecordEpisodeStatistics(WaitingWalk()), 5), False),
    ],
)
def test_find_halves_requires_equal_results(make_env, in_halves):
    rows, out = rows_of(make_env, 2)
    rows.reset(GymnasiumReset((0, 1)), FirstRows(out.observation, out.is_first))
    Walk.calls.clear()
    rows.step(np.zeros(2, np.int32), out)
    assert ("begin" in {what for _, what in Walk.calls}) == in_halves
    rows.close()


def vector_rows(make_env, mode):
    """Two rows of a vector environment, and what they write into."""
    env, (_, out) = make_env(), rows_of(make_env, 2)
    spaces = (env.observation_space, env.action_space)
    spec = row_spec("Walk", array_spec("observation", spaces[0], "Walk"), array_spec("action", spaces[1], "Walk"))
    source = VectorRowsSource((make_env, make_env), spec, spaces, True, mode, False, False)
    observation = (np.zeros((2, 1)), np.zeros((2, 1))) if source.shares_final_observations else np.zeros((2, 1))
    return source.make_rows(range(2), None, True), dataclasses.replace(out, observation=observation)


FIRST_RESET = MaskedReset((0, 1), pickled_options=(cloudpickle.dumps(None),) * 2)


def calls_of_steps(rows, out, count):
    Walk.calls.clear()
    for _ in range(count):
        rows.step(np.zeros(2, np.int32), out)
    return {what for _, what in Walk.calls}


@pytest.mark.parametrize("steps", [None, 9])
@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_vector_rows_keep_their_halves_after_calls(mode, steps):
    rows, out = vector_rows(WaitingWalk if steps is None else limited(WaitingWalk, steps), mode)
    rows.reset(FIRST_RESET, out)
    in_halves = steps is None or mode is not AutoresetMode.DISABLED  # which leaves the wrapper in place
    get = partial(call_attribute, "position", (), {})
    for _ in range(3):
        assert ("begin" in calls_of_steps(rows, out, 9)) == in_halves
        rows.reset(ApplyRequest(functions=(cloudpickle.dumps(get),) * 2), out)
    rows.close()


@pytest.mark.parametrize("after_reset", [True, False])
def test_vector_rows_use_a_step_that_was_set(after_reset):
    rows, out = vector_rows(WaitingWalk, AutoresetMode.NEXT_STEP)
    own = methodcaller("set_wrapper_attr", "step", lambda action: (np.zeros(1), 5.0, False, False, {}))
    set_step = ApplyRequest(functions=(cloudpickle.dumps(own), b""))
    for request in (FIRST_RESET, set_step) if after_reset else (set_step, FIRST_RESET):
        rows.reset(request, out)
    assert calls_of_steps(rows, out, 1) == {"begin", "wait", "step"}
    assert out.reward[0] == 5.0
    rows.close()


class ChoosesItsStep(Walk):
    """Has steps of its own from its second reset."""

    resets = 0

    def reset(self, *, seed=None, options=None):
        self.resets += 1
        if self.resets == 2:
            self.step = lambda action: (np.zeros(1), 5.0, False, False, {})
        return super().reset(seed=seed)

    def step(self, action):
        return np.zeros(1), 1.0, True, False, {}


@pytest.mark.parametrize(
    ("mode", "expected"), [(AutoresetMode.SAME_STEP, [1.0, 5.0]), (AutoresetMode.NEXT_STEP, [1.0, 0.0, 5.0])]
)
def test_vector_rows_use_a_step_that_a_reset_chooses(mode, expected):
    rows, out = vector_rows(ChoosesItsStep, mode)
    rows.reset(FIRST_RESET, out)
    rewards = []
    for _ in expected:
        out.prepare()
        rows.step(np.zeros(2, np.int32), out)
        rewards.append(out.reward.tolist())
    assert rewards == [[reward] * 2 for reward in expected]
    rows.close()


def test_rows_that_are_alone_or_differ_are_stepped_plainly():
    assert make_concurrent_step([WaitingWalk()], [str]) is None
    assert make_concurrent_step([WaitingWalk(), Walk()], [str, str]) is None
    assert make_concurrent_step([WaitingWalk(), WaitingWalk()], [str, str]) is not None


def test_sleep_offers_both_halves_unless_disabled():
    made = [EnvConfig("Sleep", "probe", kwargs).source().make_env() for kwargs in ("{}", '{"halves": false}')]  # pyright: ignore
    assert [find_halves(env) is not None for env in made] == [True, False]


def test_sleep_counts_from_step_async(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("envpool_bridge.envs.probes.sleep.time.monotonic", lambda: clock.now)
    monkeypatch.setattr(
        "envpool_bridge.envs.probes.sleep.time.sleep", lambda seconds: clock.wait_until(clock.now + seconds)
    )
    envs = [Sleep(milliseconds=1, max_milliseconds=9, halves=halves) for halves in (True, True, True, False)]
    for env in envs:
        env.reset(seed=4)
    for env in envs[:2]:
        env.step_async(0)
    first, second = (env.step_wait() for env in envs[:2])
    assert clock.waits == 1, "the second was over with the first"
    begun, clock.now = clock.now, 0.0
    plain = [env.step(0) for env in envs[2:]]
    assert clock.now == pytest.approx(2 * begun)
    assert len({repr(result) for result in (first, second, *plain)}) == 1
