"""Steps begun together and then waited for: what `step` gives, errors in their place, and no thread."""

import threading
from typing import ClassVar

import numpy as np
import pytest
from gymnasium.wrappers import TransformReward

from envpool_bridge.envs.concurrent_step import AsyncStep, Halves
from envpool_bridge.envs.protocol import EpisodeReset, FirstRows, GymnasiumReset
from envpool_bridge.errors import BadEnvOutputError, WorkerError
from tests.support.waiting_walks import Clock, WaitingWalk, Walk, limited, rows_of


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    monkeypatch.setattr(Walk, "made", 0)
    monkeypatch.setattr(Walk, "calls", [])
    monkeypatch.setattr(WaitingWalk, "raises", {})


def begun_rows(num_rows, **settings):
    """Rows after their first reset, and what was asked of them since."""
    rows, out = rows_of(WaitingWalk, num_rows, **settings)
    rows.reset(GymnasiumReset(tuple(range(num_rows))), FirstRows(out.observation, out.is_first))
    Walk.calls.clear()
    return rows, out


def played(rows, out, request, num_steps=40):
    rows.reset(request, FirstRows(out.observation, out.is_first))
    recorded = [out.observation.tolist()]
    for action in np.random.default_rng(3).integers(0, 3, (num_steps, rows.num_rows), np.int32):
        out.prepare()
        rows.step(action, out)
        columns = (out.observation, out.is_first, out.reward, out.terminated, out.truncated, out.valid)
        recorded.append([*(column.tolist() for column in columns), list(rows.infos)])
    rows.close()
    return recorded


@pytest.mark.parametrize("steps", [3, 1000])
def test_async_step_records_the_same_as_plain_steps(steps):
    request = EpisodeReset((0,) * 6, (None,) * 6)
    plain = played(*rows_of(limited(Walk, steps), 6), request)
    assert played(*rows_of(limited(WaitingWalk, steps), 6), request) == plain
    resets, cut = (sum(sum(step[place]) for step in plain[1:]) for place in (1, 4))
    assert resets > 10
    assert (cut > 10) == (steps == 3)
    assert {what for _, what in Walk.calls} > {"begin", "wait"}


def test_async_step_starts_all_rows_before_waiting():
    rows, out = begun_rows(3)
    rows._ended_rows = [1]
    rows.step(np.zeros(3, np.int32), out)
    assert [(row, what) for row, what in Walk.calls if what != "step"] == [
        *((0, "begin"), (2, "begin")),
        *((1, "before reset"), (1, "reset")),
        *((0, "wait"), (2, "wait")),
    ]
    assert out.valid.tolist() == [True, False, True]
    rows.close()


class Remote(Walk):
    """Whose steps take 5 of a clock's seconds, in which others may take theirs."""

    clock = Clock()
    threads: ClassVar[set[int]] = set()

    def step(self, action):
        self.step_async(action)
        return self.step_wait()

    def step_async(self, action):
        self.over_at, self.action = self.clock.now + 5.0, action
        self.threads.add(threading.get_ident())

    def step_wait(self):
        self.clock.wait_until(self.over_at)
        return super().step(self.action)


@pytest.mark.parametrize(
    ("kind", "seconds", "waits"), [(Remote, 5.0, 1), (lambda: TransformReward(Remote(), float), 40, 8)]
)
def test_async_step_overlaps_waits_without_threads(kind, seconds, waits, monkeypatch):
    monkeypatch.setattr(Remote, "clock", Clock())
    threads = set(threading.enumerate())
    rows, out = rows_of(kind, 8)
    rows.reset(GymnasiumReset((0,) * 8), FirstRows(out.observation, out.is_first))
    rows.step(np.zeros(8, np.int32), out)
    assert (Remote.clock.now, Remote.clock.waits) == (seconds, waits)
    assert set(threading.enumerate()) <= threads
    assert Remote.threads == {threading.get_ident()}
    rows.close()


def test_async_step_starts_no_threads(monkeypatch):
    def refuse(*_):
        raise AssertionError("a thread was started")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    rows, out = begun_rows(4, overlap_rows=True)
    rows.step(np.zeros(4, np.int32), out)
    assert {what for _, what in Walk.calls} == {"begin", "wait", "step"}
    rows.close()


@pytest.mark.parametrize(
    ("half", "message"), [("begin", "row 22, step_async of step 1"), ("wait", "row 22, step_wait of step 1")]
)
def test_async_step_error_names_row_step_and_half(half, message):
    rows, out = begun_rows(4)
    WaitingWalk.raises = {(2, half): ConnectionError("gone"), (3, "wait"): OSError("later")}
    with pytest.raises(WorkerError, match=f"^Walk, {message}: ConnectionError: gone$") as caught:
        rows.step(np.zeros(4, np.int32), out)
    assert isinstance(caught.value.__cause__, ConnectionError)
    stepped = [row for row, what in Walk.calls if what == "step"]
    assert stepped == [0, 1]
    rows.close()
    assert [what for _, what in Walk.calls[-4:]] == ["close"] * 4
    assert ((3, "begin") in Walk.calls, (2, "wait") in Walk.calls) == (half == "wait",) * 2


def test_async_step_error_leaves_later_rows_untouched():
    rows, out = begun_rows(4)
    WaitingWalk.raises = {(1, "begin"): OSError("refused")}
    rows._ended_rows = [0, 3]
    with pytest.raises(WorkerError, match="row 21, step_async of step 1: OSError: refused"):
        rows.step(np.zeros(4, np.int32), out)
    assert {row for row, _ in Walk.calls} == {0, 1}
    rows.close()


def test_async_step_reports_the_first_row_that_fails():
    rows, out = begun_rows(3)
    WaitingWalk.raises = {
        (0, "wait"): KeyError("first"),
        (1, "before reset"): OSError("second"),
        (2, "begin"): OSError("third"),
    }
    rows._ended_rows = [1]
    with pytest.raises(WorkerError, match="row 20, step_wait of step 1: KeyError: 'first'"):
        rows.step(np.zeros(3, np.int32), out)
    rows.close()


def test_async_step_names_a_failed_reset_and_ends_steps():
    rows, out = begun_rows(3)
    WaitingWalk.raises = {(1, "before reset"): OSError("second")}
    rows._ended_rows = [1]
    with pytest.raises(WorkerError, match="row 21, reset 1: OSError: second"):
        rows.step(np.zeros(3, np.int32), out)
    assert [row for row, what in Walk.calls if what == "step"] == [0, 2]
    rows.close()


def test_results_before_the_one_that_fails_are_kept():
    def fail():
        raise KeyError("two")

    nothing = [Halves(lambda _: None, lambda row=row: row) for row in range(4)]
    steps = AsyncStep([str] * 4, [*nothing[:2], Halves(lambda _: None, fail), nothing[3]])
    results = []
    with pytest.raises(KeyError, match="two"):
        results.extend(steps([str] * 4, range(4)))
    assert results == [0, 1]
    assert steps.failed_call == "step_wait"


def test_async_step_reports_the_error_of_the_first_row():
    def fail(*_):
        raise KeyError

    steps = AsyncStep([str] * 2, [Halves(lambda _: None, fail)] * 2)
    with pytest.raises(KeyError):
        list(steps([fail, str], range(2)))
    assert steps.failed_call == "reset"
    with pytest.raises(KeyError):
        list(steps([str, fail], range(2)))
    assert steps.failed_call == "step_wait"


def test_async_step_takes_results_only_from_step_wait():
    class Hasty(WaitingWalk):
        def step_async(self, action):
            return self.step(action)

    rows, out = rows_of(Hasty, 2)
    rows.reset(GymnasiumReset((0, 1)), FirstRows(out.observation, out.is_first))
    with pytest.raises(WorkerError, match="row 20, step_async of step 1: TypeError: step_async must return None"):
        rows.step(np.zeros(2, np.int32), out)
    rows.close()


def test_async_step_rejects_an_invalid_step_wait_result(monkeypatch):
    monkeypatch.setattr(WaitingWalk, "step_wait", lambda self: (np.zeros(1), 0.0, True, {}))
    rows, out = begun_rows(2)
    with pytest.raises(
        BadEnvOutputError, match=r"row 20.*expected \(observation, reward, terminated, truncated, info\)"
    ):
        rows.step(np.zeros(2, np.int32), out)


def test_async_step_discards_an_interrupted_step():
    rows, out = begun_rows(3)
    WaitingWalk.raises = {(1, "wait"): KeyboardInterrupt()}
    with pytest.raises(KeyboardInterrupt):
        rows.step(np.zeros(3, np.int32), out)
    with pytest.raises(WorkerError, match="the step before was interrupted"):
        rows.step(np.zeros(3, np.int32), out)
    rows.close()
    assert Walk.calls[-3:] == [(0, "close"), (1, "close"), (2, "close in a step")]


def test_async_step_continues_after_a_plain_replay():
    once = played(*rows_of(WaitingWalk, 2, run_seed=17), EpisodeReset((0, 0), (None, None)), 4)
    assert not any(sum(step[1]) for step in once[1:]), "a seed whose first episodes are longer"
    actions = np.random.default_rng(3).integers(0, 3, (4, 2), np.int32)
    rows, out = rows_of(WaitingWalk, 2, run_seed=17)
    Walk.calls.clear()
    rows.reset(EpisodeReset((0, 0), tuple(actions[:3].T)), FirstRows(out.observation, out.is_first))
    assert [what for _, what in Walk.calls] == ["before reset", "reset", *["step"] * 3] * 2
    assert out.observation.tolist() == once[3][0]
    Walk.calls.clear()
    rows.step(actions[3], out)
    assert out.observation.tolist() == once[4][0]
    assert [what for _, what in Walk.calls][:2] == ["begin"] * 2
    rows.close()
