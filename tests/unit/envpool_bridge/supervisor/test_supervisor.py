"""A pool whose workers die, hang and fail: what is lost, what is said, and what is left alone."""

import ctypes
import dataclasses
import functools
import logging
import os
import signal
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces

from envpool_bridge.envs.gymnasium_env import GymnasiumSource
from envpool_bridge.envs.protocol import EpisodeReset, first_rows, step_rows
from envpool_bridge.errors import TooManyFailedEnvsError, WorkerDiedError, WorkerError
from envpool_bridge.options import SupervisorOptions
from envpool_bridge.shm.layout import PoolShape, make_layout
from envpool_bridge.shm.slots import allocate_slots
from envpool_bridge.worker.isolation import IsolatedRows
from tests.chaos.counting import (
    PATIENT,
    SHAPE,
    Counting,
    begin,
    broken_steps,
    check,
    collect,
    joined,
    kill,
    make_pool,
    pids,
    still_running,
)

SHARED = PoolShape(
    num_workers=2, lanes_per_worker=2, workers_per_lane=2, rows_per_part=2, rollout_length=4, num_slots=2
)


@pytest.fixture(autouse=True)
def quiet(caplog):
    caplog.set_level(logging.WARNING, "envpool_bridge")


class ActsUp(Counting):
    """Misbehaves at the third step of its first episode while the file `once` is there, or at every third step."""

    def __init__(self, how, once=""):
        super().__init__()
        self.how, self.once = how, once

    def act_up(self):
        if self.steps != 3:
            return
        if self.once:
            try:
                os.unlink(self.once)  # only one of all environments gets hold of it
            except FileNotFoundError:
                return
        self.how()


def raise_value_error():
    raise ValueError("out of ideas")


def hang_in_c():
    while True:  # a signal ends the sleep
        ctypes.PyDLL(None).sleep(600)  # with the interpreter's lock held


def hang_in_python():
    while True:
        time.sleep(0.01)


def stop_itself():
    os.kill(os.getpid(), signal.SIGSTOP)


@functools.lru_cache
def run_undisturbed(shape, num_slots):
    with make_pool(shape) as pool:
        begin(pool)
        return collect(pool, num_slots)


def assert_rows_equal(slots, expected, rows):
    for slot, wanted in zip(slots, expected, strict=True):
        for name in ("observation", "is_first", "action", "reward", "terminated", "truncated", "valid"):
            np.testing.assert_array_equal(slot[name][:, rows], wanted[name][:, rows], err_msg=name)


@pytest.mark.parametrize("shape", [SHAPE, pytest.param(SHARED, marks=pytest.mark.slow)])
def test_killed_worker_loses_one_step_of_its_rows_only(shape):
    expected = run_undisturbed(shape, 6)

    def disturb(pool, sequence):
        if sequence == 2:
            kill(pool, 0)

    with make_pool(shape) as pool:
        begin(pool)
        slots = collect(pool, 6, disturb)
        totals = pool.supervision
    mine = [row for part in shape.parts_of_worker(0) for row in range(shape.num_rows)[shape.part_rows(part)]]
    others = sorted(set(range(shape.num_rows)) - set(mine))
    assert_rows_equal(slots, expected, others)
    assert_rows_equal(slots[:2], expected[:2], mine)
    check(slots)
    cut = broken_steps(joined(slots))
    assert totals.restarts == 1
    assert totals.episodes_cut == cut.sum() > 0
    assert (cut.sum(0) <= 1).all()
    assert not cut[:, others].any()
    # Each part says which incarnation of its worker it was filled by.
    parts = shape.parts_of_worker(0)
    assert (slots[0]["incarnation"] == 1).all()
    broken = int(np.flatnonzero(cut.any(1))[0]) // shape.rollout_length
    assert (slots[broken]["incarnation"][parts] == 2).any()
    assert (slots[-1]["incarnation"][parts] == 2).all()
    assert (np.delete(slots[-1]["incarnation"], parts) == 1).all()


def test_episode_after_a_cut_is_the_next_one():
    shape = PoolShape(1, 1, 1, 1, 8, 3)

    def identities(slots):
        whole = joined(slots)
        begins = np.flatnonzero(whole["is_first"][:, 0])
        return [tuple(whole["observation"][t, 0, ::3]) for t in begins]

    expected = identities(run_undisturbed(shape, 8))

    def disturb(pool, sequence):
        if sequence == 2:
            kill(pool, 0)

    with make_pool(shape) as pool:
        begin(pool)
        found = identities(collect(pool, 6, disturb))
    assert len(found) > 4
    assert found == expected[: len(found)]


def test_worker_killed_before_its_start_changes_nothing():
    expected = run_undisturbed(SHAPE, 2)
    with make_pool(SHAPE) as pool:
        begin(pool)
        assert kill(pool, 0)
        slots = collect(pool, 2)
    assert_rows_equal(slots, expected, list(range(6)))
    assert slots[0]["incarnation"].tolist() == [2, 1]


@pytest.mark.parametrize(
    ("how", "stack"),
    [
        (hang_in_c, "in hang_in_c"),
        pytest.param(hang_in_python, "in hang_in_python", marks=pytest.mark.slow),
        pytest.param(stop_itself, "", marks=pytest.mark.slow),
    ],
)
def test_hung_worker_reports_its_stack_and_is_replaced(how, stack, tmp_path, caplog):
    once = tmp_path / "once"
    once.touch()
    options = SupervisorOptions(step_timeout_seconds=1.5)
    with make_pool(SHAPE, partial(ActsUp, how, str(once)), options) as pool:
        begin(pool)
        began = time.monotonic()
        slots = collect(pool, 4)
        took = time.monotonic() - began
        totals = pool.supervision
    check(slots)
    assert (totals.hangs, totals.restarts) == (1, 1)
    assert took > 1.5
    assert "was killed: it did not finish a step within 1.5 s (step_timeout_seconds)" in caplog.text
    assert stack in caplog.text


def test_a_slow_learner_is_no_hang():
    options = SupervisorOptions(step_timeout_seconds=1.0)
    with make_pool(SHAPE, supervision=options) as pool:
        begin(pool)
        collect(pool, 1)
        deadline = time.monotonic() + 1.3  # all slots fill up, and the last actions were given
        while time.monotonic() < deadline:
            for lane in pool.wait_ready(0.05):
                pool.next_action(lane)[...] = 0
                pool.post_actions(lane)
        assert pool.supervision.hangs == 0
        deadline = time.monotonic() + 1.3  # nobody acts
        while time.monotonic() < deadline:
            pool.check()
            time.sleep(0.05)
        assert pool.supervision.hangs == 0


@pytest.mark.slow
def test_worker_that_keeps_dying_is_disabled(caplog):
    options = SupervisorOptions(max_restarts=2, max_backoff_seconds=0.0)

    def disturb(pool, sequence):
        if sequence in {2, 4, 6}:
            kill(pool, 0)
            deadline = time.monotonic() + 60.0
            while pool._counters.incarnation(0) < sequence // 2 + 1:
                assert time.monotonic() < deadline
                time.sleep(0.005)

    expected = run_undisturbed(SHAPE, 12)
    with make_pool(SHAPE, supervision=options) as pool:
        begin(pool)
        slots = collect(pool, 12, disturb)
        totals = pool.supervision
    assert totals.restarts == 2
    assert totals.rows_disabled == 3
    assert "its 3 rows are disabled" in caplog.text
    assert_rows_equal(slots, expected, [3, 4, 5])
    for slot in slots[9:]:
        assert not slot["valid"][:, :3].any()
        assert slot["is_first"][1:, :3].all()
        assert (slot["observation"][0, :3, 0] > 0).all()  # one that an environment has shown: a policy can act on it
        np.testing.assert_array_equal(
            slot["observation"][1:, :3], np.broadcast_to(slot["observation"][0, :3], (8, 3, 4))
        )


def test_too_few_rows_stop_the_pool_with_the_last_failure():
    options = SupervisorOptions(max_restarts=1, min_alive_fraction=0.6)
    with make_pool(SHAPE, partial(ActsUp, partial(os._exit, 7)), options) as pool:
        begin(pool)
        with pytest.raises(
            TooManyFailedEnvsError, match=r"(?s)[03] of 6 rows are left, expected at least 60%.*exit status 7"
        ) as caught:
            collect(pool, 50)
    assert "in the middle of a step" in str(caught.value)


def test_without_restarts_the_first_death_stops_the_pool():
    with make_pool(SHAPE, supervision=SupervisorOptions(max_restarts=0)) as pool:
        begin(pool)
        collect(pool, 1)
        # When memory runs out it is a worker that dies, not the learner.
        assert [int(Path(f"/proc/{pid}/oom_score_adj").read_text()) for pid in pids(pool)] == [500, 500]
        kill(pool, 1)
        with pytest.raises(WorkerDiedError, match=r"environment worker 1 .* died: SIGKILL"):
            collect(pool, 100)


def test_environment_error_stops_the_pool_with_traceback():
    with make_pool(SHAPE, partial(ActsUp, raise_value_error)) as pool:
        begin(pool)
        with pytest.raises(WorkerError, match=r"(?s)ValueError: out of ideas.*in raise_value_error"):
            collect(pool, 100)
        assert pool.supervision.restarts == 0


DROP = SupervisorOptions(bad_env_output="drop_episode", max_restarts=3)


class ReturnsNonsense(ActsUp):
    """Its observation is not finite where `ActsUp` would misbehave."""

    def __init__(self, once=""):
        super().__init__(self.break_down, once)
        self.broken = False

    def break_down(self):
        self.broken = True

    def observed(self):
        return np.full(4, np.nan, np.float32) if getattr(self, "broken", False) else super().observed()


@pytest.mark.parametrize(
    "make_env", [partial(ActsUp, raise_value_error), pytest.param(ReturnsNonsense, marks=pytest.mark.slow)]
)
def test_dropped_episode_loses_one_step_of_its_row_only(make_env, tmp_path, caplog):
    once = tmp_path / "once"
    once.touch()
    expected = run_undisturbed(SHAPE, 4)
    with make_pool(SHAPE, partial(make_env, once=str(once)), DROP) as pool:
        begin(pool)
        slots = collect(pool, 4)
        totals = pool.supervision
        deadline = time.monotonic() + 60.0
        while "its episode is dropped" not in caplog.text and time.monotonic() < deadline:
            time.sleep(0.02)
    check(slots)
    cut = broken_steps(joined(slots))
    (failed,) = np.flatnonzero(cut.any(0))
    assert cut.sum() == totals.episodes_cut == 1
    assert (totals.restarts, totals.rows_disabled) == (0, 0)
    assert_rows_equal(slots, expected, [row for row in range(6) if row != failed])
    assert "its episode is dropped" in caplog.text


def test_an_environment_that_keeps_failing_is_given_up_alone():
    options = SupervisorOptions(bad_env_output="drop_episode", max_restarts=3, min_alive_fraction=0.1)
    with make_pool(SHAPE, FailsInRowsOfOneWorker, options) as pool:
        begin(pool)
        slots = collect(pool, 12)
        totals = pool.supervision
    assert totals.rows_disabled == 3
    assert totals.episodes_cut == 3 * 4
    assert_rows_equal(slots, run_undisturbed(SHAPE, 12), [3, 4, 5])
    assert not slots[-1]["valid"][:, :3].any()


class FailsInRowsOfOneWorker(Counting):
    """Raises at every third step in the worker that was started first."""

    def act_up(self):
        if self.steps == 3 and first_worker():
            raise_value_error()


def first_worker():
    """Whether this process was forked first of its siblings."""
    keeper = os.getppid()
    server = Path(f"/proc/{keeper}/stat").read_text().rpartition(")")[2].split()[1]
    return keeper == min(int(pid) for pid in Path(f"/proc/{server}/task/{server}/children").read_text().split())


def test_non_finite_action_does_not_drop_an_episode():
    source = GymnasiumSource(Steers)
    spec = source.spec()
    (slot,) = allocate_slots(make_layout(spec, PoolShape(1, 1, 1, 2, 4, 1), {}))
    rows = IsolatedRows(source, spec, range(2), 0, (3, 60.0))
    rows.reset(EpisodeReset((0, 0), (None, None)), first_rows(slot))
    with pytest.raises(WorkerError, match="the policy's action is not finite"):
        rows.step(np.array([[0.0], [np.nan]], np.float32), step_rows(slot, 0))
    rows.close()


class Steers(Counting):
    def __init__(self):
        super().__init__()
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def step(self, action):
        return super().step(action[0])


@pytest.mark.slow  # a worker that is stopped is given five seconds
def test_after_close_no_worker_is_left_however_it_ended(tmp_path):
    once = tmp_path / "once"
    once.touch()
    with make_pool(SHAPE, partial(ActsUp, hang_in_c, str(once)), PATIENT) as pool:
        begin(pool)
        kill(pool, 0)
        kill(pool, 1, signal.SIGSTOP)
        workers = pids(pool)
    assert still_running(workers) == []


class HangsInReset(Counting):
    """Never begins its first episode while the file `once` is there."""

    def __init__(self, once):
        super().__init__()
        self.once = Path(once)

    def reset(self, *, seed=None, options=None):
        if self.once.exists():
            self.once.unlink()
            hang_in_python()
        return super().reset(seed=seed, options=options)


@pytest.mark.slow
def test_worker_that_does_not_start_is_replaced(tmp_path, caplog):
    once = tmp_path / "once"
    once.touch()
    options = dataclasses.replace(PATIENT, start_timeout_seconds=2.0)
    with make_pool(SHAPE, partial(HangsInReset, str(once)), options) as pool:
        begin(pool)
        slots = collect(pool, 2)
        assert pool.supervision.hangs >= 1
    assert_rows_equal(slots, run_undisturbed(SHAPE, 2), list(range(6)))
    assert "was killed: it did not finish its first observation within 2 s (start_timeout_seconds)" in caplog.text
