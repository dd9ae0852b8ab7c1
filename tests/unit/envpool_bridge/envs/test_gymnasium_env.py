"""Rows of a run: what is looked at between the exact checks, and what the policy is not blamed for."""

from typing import ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from envpool_bridge.envs.gymnasium_env import GymnasiumSource
from envpool_bridge.envs.protocol import EpisodeReset, FirstRows, GymnasiumReset, StepRows, first_rows
from envpool_bridge.errors import BadEnvOutputError, WorkerError
from envpool_bridge.shm.layout import PoolShape, make_layout
from envpool_bridge.shm.slots import allocate_slots

FINE = np.zeros(2, np.float32)
NAN = np.array([0.0, np.nan], np.float32)


class Says(gymnasium.Env):
    """Returns what the test put into `answers` at that step, else a fine step."""

    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
    answers: ClassVar[dict] = {}

    def reset(self, *, seed=None, options=None):
        self.step_number = 0
        return FINE, {}

    def step(self, action):
        self.step_number += 1
        return self.answers.get(self.step_number, (FINE, 0.5, False, False, {}))


def rows_that_say(monkeypatch, answers, num_rows=2):
    monkeypatch.setattr(Says, "answers", answers)
    rows = GymnasiumSource(Says, "Says").make_rows(range(10, 10 + num_rows), None, False)
    flags = [np.ones(num_rows, bool) for _ in range(4)]
    out = StepRows(np.zeros((num_rows, 2), np.float32), flags[0], np.zeros(num_rows, np.float32), *flags[1:])
    rows.reset(GymnasiumReset((None,) * num_rows), FirstRows(out.observation, out.is_first))
    return rows, out


def step(rows, out, count, action=0.0):
    for _ in range(count):
        out.prepare()
        rows.step(np.full((rows.num_rows, 1), action, np.float32), out)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ((np.zeros(2), 0.5, False, False, {}), "bad observation: expected dtype float32, got float64"),
        ((np.zeros(3, np.float32), 0.5, False, False, {}), r"bad observation: expected shape \(2,\), got \(3,\)"),
        ((np.zeros(2, np.int32), 0.5, False, False, {}), "bad observation: expected dtype float32, got int32"),
        ((None, 0.5, False, False, {}), "bad observation: expected a numpy array"),
        (([0.0, 0.0], 0.5, False, False, {}), "bad observation: expected a numpy array"),
        ((FINE, "much", False, False, {}), "bad reward: expected a number"),
        ((FINE, 0.5, None, False, {}), "bad terminated: expected a bool, got NoneType None"),
        ((FINE, 0.5, False, 2, {}), "bad truncated: expected a bool, got int 2"),
        ((FINE, 0.5, False, {}), "bad step result: expected .observation, reward, terminated"),
    ],
)
def test_unstorable_output_is_rejected_between_strict_checks(monkeypatch, answer, says):
    rows, out = rows_that_say(monkeypatch, {5: answer})
    step(rows, out, 4)
    with pytest.raises(BadEnvOutputError, match=f"Says, row 10, step 5: {says}"):
        step(rows, out, 1)


@pytest.mark.parametrize("number", [1, 17])
def test_at_the_exact_checks_a_one_is_no_true(monkeypatch, number):
    rows, out = rows_that_say(monkeypatch, {number: (FINE, 0.5, 1, False, {})})
    step(rows, out, number - 1)
    with pytest.raises(BadEnvOutputError, match=f"row 10, step {number}: bad terminated: expected a bool, got int 1"):
        step(rows, out, 1)


def test_between_them_a_one_is_recorded_as_the_true_it_means(monkeypatch):
    rows, out = rows_that_say(monkeypatch, {5: (FINE, 0.5, 1, False, {})})
    step(rows, out, 5)
    assert out.terminated.all()
    step(rows, out, 1)
    assert not out.valid.any()
    assert out.is_first.all()


def test_non_finite_observation_is_reported_before_the_action(monkeypatch):
    rows, out = rows_that_say(monkeypatch, {3: (NAN, 0.5, False, False, {})})
    step(rows, out, 3)
    with pytest.raises(BadEnvOutputError, match="row 10, step 3: bad observation: expected a finite value"):
        step(rows, out, 1, action=np.nan)


def test_a_policy_whose_own_action_is_not_finite_is(monkeypatch):
    rows, out = rows_that_say(monkeypatch, {})
    step(rows, out, 3)
    with pytest.raises(WorkerError, match="row 10, step 4: the policy's action is not finite"):
        step(rows, out, 1, action=np.nan)


def test_reward_of_nan_is_rejected_by_verify(monkeypatch):
    rows, out = rows_that_say(monkeypatch, {2: (FINE, None, False, False, {})})
    step(rows, out, 2)
    with pytest.raises(BadEnvOutputError, match="row 10, step 2: bad reward: expected a finite float32, got nan"):
        rows.verify(out.observation[None], out.reward[None])


def test_verify_names_step_and_row_of_a_bad_value(monkeypatch):
    rows, out = rows_that_say(monkeypatch, {})
    step(rows, out, 6)
    observation, reward = np.zeros((4, 2, 2), np.float32), np.zeros((4, 2), np.float32)
    rows.verify(observation, reward)
    observation[2, 1, 0] = 1.5
    with pytest.raises(
        BadEnvOutputError, match=r"row 11, step 5: bad observation: expected at most .* at \[0\], got 1.5"
    ):
        rows.verify(observation, reward)
    observation[2, 1, 0], reward[0, 1] = 0.0, np.inf
    with pytest.raises(BadEnvOutputError, match="row 11, step 3: bad reward: expected a finite float32, got inf"):
        rows.verify(observation, reward)


class ReusesItsArray(gymnasium.Env):
    """Shows the number of steps, always in the same array."""

    observation_space = spaces.Box(0.0, 100.0, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self):
        self.shown = np.zeros(1, np.float32)

    def reset(self, *, seed=None, options=None):
        self.shown[0] = 0
        return self.shown, {}

    def step(self, action):
        self.shown += 1
        return self.shown, 0.0, False, False, {}


@pytest.mark.parametrize(("replayed", "frames"), [(5, [3, 4, 5]), (1, [0, 0, 1])])
def test_replayed_frames_of_a_reused_array_differ(replayed, frames):
    source = GymnasiumSource(ReusesItsArray, "Reuses", frame_stack=3)
    rows = source.make_rows([0], 1, False)
    (slot,) = allocate_slots(make_layout(source.spec(), PoolShape(1, 1, 1, 1, 4, 1), {}))
    rows.reset(EpisodeReset((0,), (np.zeros(replayed, np.int32),)), first_rows(slot))
    assert slot.frames[:3, 0, 0].tolist() == frames


class ChoosesItsStep(ReusesItsArray):
    """Takes steps of 10 in the episodes whose number is odd."""

    episode = -1

    def reset(self, *, seed=None, options=None):
        self.episode += 1
        if self.episode % 2:
            self.step = self.leap
        else:
            vars(self).pop("step", None)
        return super().reset()

    def step(self, action):
        self.shown += 1
        return self.shown, 0.0, self.shown[0] >= 3, False, {}

    def leap(self, action):
        self.shown += 10
        return self.shown, 0.0, self.shown[0] >= 30, False, {}


def test_a_step_that_a_reset_chooses_is_called():
    rows = GymnasiumSource(ChoosesItsStep, "Chooses").make_rows(range(2), 1, False)
    flags = [np.ones(2, bool) for _ in range(4)]
    out = StepRows(np.zeros((2, 1), np.float32), flags[0], np.zeros(2, np.float32), *flags[1:])
    seen = []
    for request in (GymnasiumReset((None, None)), EpisodeReset((1, 1), (np.zeros(2, np.int32),) * 2)):
        rows.reset(request, FirstRows(out.observation, out.is_first))
        for _ in range(9):
            seen.append(out.observation[:, 0].tolist())
            out.prepare()
            rows.step(np.zeros(2, np.int32), out)
    first, replayed = [0, 1, 2, 3, 0, 10, 20, 30, 0], [20, 30, 0, 1, 2, 3, 0, 10, 20]
    assert seen == [[value] * 2 for value in first + replayed]
