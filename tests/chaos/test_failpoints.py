"""Workers that fail at every place of the protocol, again and again: what the learner sees is whole all the same."""

import logging

import pytest

from envpool_bridge.faults.failpoint import PLACES
from envpool_bridge.options import SupervisorOptions
from envpool_bridge.shm.layout import PoolShape
from tests.chaos.counting import Counting, begin, check, collect, make_pool, pids, still_running
from tests.support.journal import journal_in
from tests.support.journal_audit import audit

TWO_LANES = PoolShape(2, 2, 1, 2, 6, 2)
SHARED_LANE = PoolShape(2, 1, 2, 2, 6, 3)
ONE_SLOT = PoolShape(2, 1, 1, 2, 6, 1)
OPTIONS = SupervisorOptions(
    max_restarts=100_000, max_backoff_seconds=0.0, step_timeout_seconds=0.3, start_timeout_seconds=20.0
)


def run_with(points, shape, directory, monkeypatch, num_slots=8, make_env=Counting, options=OPTIONS):
    """Collects slots while every worker fails as `points` say; fails unless all is well with them and nothing is left."""
    monkeypatch.setenv("JAXSRL_FAILPOINT", points)
    logging.getLogger("envpool_bridge").setLevel(logging.ERROR)
    try:
        with make_pool(shape, make_env, options, journal=journal_in(directory / "journals")) as pool:
            begin(pool)
            slots = collect(pool, num_slots, seconds=100.0)
            workers, totals = pids(pool), pool.supervision
    finally:
        logging.getLogger("envpool_bridge").setLevel(logging.NOTSET)
    assert still_running(workers) == []
    valid, _ = check(slots)
    found = audit(directory / "journals")
    assert found.is_clean, found
    assert found.transitions == valid
    return totals


def test_pool_recovers_from_deaths_between_publish_and_ring(tmp_path, monkeypatch):
    points = "worker.commit.after:kill@3,worker.post_observation.after:kill@11"
    assert run_with(points, SHARED_LANE, tmp_path, monkeypatch).restarts > 1


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("shape", [TWO_LANES, SHARED_LANE], ids=["two_lanes", "shared_lane"])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("place", [place for place in PLACES if place != "worker.reset"])
def test_a_kill_at_any_place_loses_doubles_and_tears_nothing(place, when, shape, tmp_path, monkeypatch):
    count = 2 if place in {"worker.commit", "worker.open_slot", "worker.carry", "worker.learner_bell"} else 9
    totals = run_with(f"{place}.{when}:kill@{count}", shape, tmp_path, monkeypatch)
    assert totals.restarts > 2


@pytest.mark.slow
@pytest.mark.parametrize("action", ["exit", "hang", "stop"])
def test_other_ways_to_fail_end_like_a_kill(action, tmp_path, monkeypatch):
    totals = run_with(f"worker.step.after:{action}@17", SHARED_LANE, tmp_path, monkeypatch, num_slots=6)
    assert totals.restarts > 1
    assert bool(totals.hangs) == (action != "exit")


@pytest.mark.slow
def test_pool_starts_after_a_kill_during_the_first_reset(tmp_path, monkeypatch):
    # The second part is the one that dies: the first has begun, and goes on where it was.
    points = "worker.reset.before:kill@2"
    options = SupervisorOptions(max_restarts=3, max_backoff_seconds=0.0)
    monkeypatch.setenv("JAXSRL_FAILPOINT", points)
    with make_pool(TWO_LANES, supervision=options) as pool:
        begin(pool)
        with pytest.raises(Exception, match="died: SIGKILL"):
            collect(pool, 100)
        assert pool.supervision.restarts >= 3


@pytest.mark.slow
def test_with_a_single_slot_nothing_is_lost_either(tmp_path, monkeypatch):
    run_with("worker.commit.after:kill@2,worker.step.before:kill@9", ONE_SLOT, tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("points", ["worker.step.after:raise@20", "worker.commit.before:raise@2"])
def test_drop_episode_treats_other_exceptions_as_deaths(points, tmp_path, monkeypatch):
    options = SupervisorOptions(max_restarts=100_000, bad_env_output="drop_episode", max_backoff_seconds=0.0)
    assert run_with(points, TWO_LANES, tmp_path, monkeypatch, options=options).restarts > 1


class RaisesNowAndThen(Counting):
    """Raises in a tenth of its steps."""

    def act_up(self):
        if self.np_random.random() < 0.1:
            raise ValueError("now and then")


@pytest.mark.slow
def test_dropped_episodes_pass_the_audit_too(tmp_path, monkeypatch):
    options = SupervisorOptions(max_restarts=100_000, bad_env_output="drop_episode", max_backoff_seconds=0.0)
    points = "worker.step.before:kill@40"
    totals = run_with(points, TWO_LANES, tmp_path, monkeypatch, 20, RaisesNowAndThen, options)
    assert totals.episodes_cut > 10
