"""Rows stepped side by side: all at once, results and errors as if one after another, and no thread left behind."""

import os
import threading
from typing import ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from envpool_bridge.envs.concurrent_step import ThreadedStep
from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.envs.gymnasium_env import GymnasiumSource
from envpool_bridge.envs.protocol import FirstRows, GymnasiumReset, StepRows
from envpool_bridge.errors import UserError, WorkerError

SECONDS = 60.0


@pytest.fixture
def overlapped():
    made = []

    def make(num_rows, core=None):
        made.append(ThreadedStep(num_rows, core))
        return made[-1]

    yield make
    for steps in made:
        steps.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("row ")]


def fail(error):
    raise error


def test_all_rows_are_in_their_step_at_the_same_time(overlapped):
    barrier = threading.Barrier(5)

    def step(action):
        barrier.wait(SECONDS)  # raises unless all five come
        return action

    steps = overlapped(5)
    for call in range(3):
        assert [*steps([step] * 5, range(call, call + 5))] == [*range(call, call + 5)]


def test_threaded_step_returns_results_in_row_order(overlapped):
    came = []
    done = [threading.Event() for _ in range(4)]
    done[3].set()

    def step(row):
        assert done[row].wait(SECONDS)
        came.append(row)
        done[row - 1].set()
        return row * 10

    assert [*overlapped(4)([step] * 4, range(4))] == [0, 10, 20, 30]
    assert came == [3, 2, 1, 0]


def test_threaded_step_keeps_a_thread_for_each_row(overlapped):
    steps = overlapped(3)
    seen = [[*steps([lambda _: threading.get_ident()] * 3, range(3))] for _ in range(200)]
    assert len({tuple(threads) for threads in seen}) == 1
    assert len({*seen[0], threading.get_ident()}) == 4


@pytest.mark.parametrize("core", [0, 1, 7])
def test_all_threads_keep_to_one_core_and_the_caller_to_none(overlapped, core):
    allowed = os.sched_getaffinity(0)
    found = [*overlapped(3, core)([lambda _: os.sched_getaffinity(0)] * 3, range(3))]
    assert found == [{sorted(allowed)[core % len(allowed)]}] * 3
    assert os.sched_getaffinity(0) == allowed


def test_threaded_step_raises_after_earlier_results(overlapped):
    steps = overlapped(4)
    functions = [str, str, lambda _: fail(KeyError("two")), lambda _: fail(SystemExit(3))]
    results = []
    with pytest.raises(KeyError, match="two"):
        results.extend(steps(functions, range(4)))
    assert results == ["0", "1"]
    assert [*steps([str] * 4, range(4))] == ["0", "1", "2", "3"]


def test_closing_ends_the_threads_and_frees_the_descriptors():
    descriptors, threads = set(os.listdir("/proc/self/fd")), set(threading.enumerate())
    steps = ThreadedStep(8)
    assert len(set(os.listdir("/proc/self/fd")) - descriptors) == 2
    assert len(set(threading.enumerate()) - threads) == 8
    for _ in range(3):  # an odd number: the threads listen to the other bell
        steps([str] * 8, range(8))
    steps.close()
    steps.close()
    assert set(os.listdir("/proc/self/fd")) <= descriptors
    assert set(threading.enumerate()) <= threads
    with pytest.raises(ValueError, match="closed"):
        steps([str] * 8, range(8))


def test_threaded_step_discards_an_interrupted_step(overlapped, monkeypatch):
    steps = overlapped(2)
    may_return = threading.Event()

    class Interrupted:
        def acquire(self, timeout):
            raise KeyboardInterrupt

        def release(self):
            pass

    monkeypatch.setattr(steps, "_all_returned", Interrupted())
    with pytest.raises(KeyboardInterrupt):
        steps([lambda _: may_return.wait(SECONDS)] * 2, range(2))
    with pytest.raises(WorkerError, match="the step before was interrupted"):
        steps([str] * 2, range(2))
    may_return.set()


def test_threaded_step_detects_a_dead_thread(monkeypatch):
    monkeypatch.setattr("envpool_bridge.envs.concurrent_step._LOOK_SECONDS", 0.01)
    steps = ThreadedStep(2)
    steps._wake = lambda: None  # pyright: ignore[reportAttributeAccessIssue]
    steps._closed = True
    os.eventfd_write(steps._bells[0], 1)  # one thread takes it, and ends
    while all(thread.is_alive() for thread in steps._threads):
        threading.Event().wait(0.001)
    steps._closed = False
    with pytest.raises(WorkerError, match="a thread that steps a row has ended"):
        steps([str] * 2, range(2))
    del steps._wake
    steps.close()


def test_threaded_step_rejects_too_few_threads(monkeypatch):
    start = threading.Thread.start

    def limited(thread):
        if thread.name == "row 2":
            raise RuntimeError("can't start new thread")
        start(thread)

    before = set(threading.enumerate())
    monkeypatch.setattr(threading.Thread, "start", limited)
    with pytest.raises(UserError, match=r"needs 4 threads in a worker, and the system allowed 2 .*use fewer rows"):
        ThreadedStep(4)
    assert set(threading.enumerate()) <= before


class Walk(gymnasium.Env):
    """A random walk of its own generator, of random length; `raises` maps rows to exceptions, `meeting` holds up steps."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space = spaces.Discrete(3)
    raises: ClassVar[dict] = {}
    meeting: ClassVar[threading.Barrier | None] = None
    made = 0

    def __init__(self):
        self.number = Walk.made
        Walk.made += 1

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.position = self.np_random.normal()
        return self._seen(), {}

    def step(self, action):
        if self.meeting is not None:
            self.meeting.wait(SECONDS)
        if self.number in self.raises:
            raise self.raises[self.number]
        self.position += float(action) + self.np_random.normal()
        return self._seen(), self.position, bool(self.np_random.random() < 0.2), False, {"row": self.number}

    def _seen(self):
        return np.array([self.position])


def rows_of(overlap_rows, num_rows, monkeypatch):
    monkeypatch.setattr(Walk, "made", 0)
    rows = GymnasiumSource(Walk, "Walk", overlap_rows=overlap_rows).make_rows(range(20, 20 + num_rows), 7, True)
    observation, reward = np.zeros((num_rows, 1), np.float32), np.zeros(num_rows, np.float32)
    is_first, terminated, truncated, valid = np.ones((4, num_rows), bool)
    out = StepRows(observation, is_first, reward, terminated, truncated, valid)
    rows.reset(GymnasiumReset(tuple(range(num_rows))), FirstRows(out.observation, out.is_first))
    return rows, out


def walk(overlap_rows, monkeypatch, num_rows=6):
    rows, out = rows_of(overlap_rows, num_rows, monkeypatch)
    actions = np.random.default_rng(3).integers(0, 3, (40, num_rows), np.int32)
    recorded = []
    for action in actions:
        out.prepare()
        rows.step(action, out)
        columns = (out.observation, out.is_first, out.reward, out.terminated, out.truncated, out.valid)
        recorded.append([*(column.tolist() for column in columns), list(rows.infos)])
    rows.close()
    return recorded


def test_threaded_rows_record_the_same_as_sequential_rows(monkeypatch):
    apart = walk(False, monkeypatch)
    assert walk(True, monkeypatch) == apart
    assert sum(not valid for step in apart for valid in step[5]) > 10


def test_rows_of_an_overlapping_source_meet_inside_their_steps(monkeypatch):
    rows, out = rows_of(True, 3, monkeypatch)
    monkeypatch.setattr(Walk, "meeting", threading.Barrier(3))
    rows.step(np.zeros(3, np.int32), out)  # one after another, the first would wait for the others in vain
    assert rows.infos == [{"row": 0}, {"row": 1}, {"row": 2}]
    rows.close()


def test_the_row_that_raised_is_named_when_rows_overlap(monkeypatch):
    rows, out = rows_of(True, 4, monkeypatch)
    monkeypatch.setattr(Walk, "raises", {2: ValueError("torn"), 3: OSError("late")})
    with pytest.raises(WorkerError, match="Walk, row 22, step 1: ValueError: torn"):
        rows.step(np.zeros(4, np.int32), out)
    rows.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("row ")]


def test_overlap_rows_works_or_is_rejected_for_each_suite():
    source = EnvConfig("Sleep", "probe", overlap_rows=True).source()
    assert isinstance(source, GymnasiumSource)
    assert source.overlap_rows
    assert not EnvConfig("Sleep", "probe").source().overlap_rows  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(UserError, match="overlap_rows is not for suite 'gymnasium_vector'"):
        EnvConfig("CartPole-v1", "gymnasium_vector", overlap_rows=True).source()
    with pytest.raises(UserError, match="overlap_rows is not for suite 'jax'"):
        EnvConfig("CartPole-v1", "jax", overlap_rows=True)


def test_one_row_needs_no_thread(monkeypatch):
    before = set(threading.enumerate())
    rows, _ = rows_of(True, 1, monkeypatch)
    assert set(threading.enumerate()) <= before
    rows.close()
