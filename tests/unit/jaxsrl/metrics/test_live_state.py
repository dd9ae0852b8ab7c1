"""What records tell: time left, the curve, the newest checkpoint; also of a run that was resumed."""

import pytest

from jaxsrl.metrics.evaluations import Evaluation
from jaxsrl.metrics.live_state import CURVE_POINTS, initial_state, seconds_left, with_record
from tests.support.metric_records import facts, record


def after(state, *records):
    for each in records:
        state = with_record(state, each)
    return state


def test_the_time_left_follows_from_what_this_process_has_done():
    state = after(initial_state(facts(updates=10)), record(2, seconds=4.0))
    assert seconds_left(state) == pytest.approx(16.0)  # 8 updates at 2 s each


def test_seconds_left_ignores_work_before_a_resume():
    resumed = facts(updates=10, first_update=6, first_env_steps=6 * 64)
    state = after(initial_state(resumed), record(7, seconds=2.0))
    assert seconds_left(state) == pytest.approx(
        6.0
    )  # 3 updates at 2 s; at the speed of 7 updates in 2 s it would be 0.86
    assert state.progress == pytest.approx(0.7)


def test_compiling_before_the_first_record_is_not_expected_again():
    state = after(initial_state(facts(updates=10)), record(1, seconds=100.0), record(3, seconds=102.0))
    assert seconds_left(state) == pytest.approx(7.0)


def test_the_speed_to_expect_is_that_of_the_last_minute():
    slow = [record(update, seconds=30.0 * update) for update in range(1, 5)]
    fast = [record(4 + number, seconds=120.0 + 10.0 * number) for number in range(1, 9)]
    state = after(initial_state(facts(updates=100)), *slow, *fast)
    assert seconds_left(state) == pytest.approx(88 * 10.0)


def test_seconds_left_is_none_without_progress():
    assert seconds_left(initial_state(facts())) is None
    assert seconds_left(after(initial_state(facts()), record(1, seconds=1.0), record(1, seconds=2.0))) is None


def test_seconds_left_is_zero_beyond_the_budget():
    state = after(initial_state(facts(updates=3)), record(4, seconds=1.0))
    assert seconds_left(state) == 0.0
    assert state.progress == 1.0


def test_the_best_mean_return_stays_when_the_newest_is_worse():
    values = [1.0, 5.0, 3.0]
    state = after(initial_state(facts()), *(record(n, **{"episode/return_mean": v}) for n, v in enumerate(values, 1)))
    assert (state.best_return, state.curve) == (5.0, (1.0, 5.0, 3.0))


def test_the_best_evaluation_is_of_the_last_stage():
    stages = [(3, 0, 90.0), (5, 1, 20.0), (7, 1, 10.0)]
    evaluations = [
        Evaluation(update, 0, 0, "greedy", mean, 0.0, mean, mean, 1.0, 1, 0, 0.1, stage)
        for update, stage, mean in stages
    ]
    best = initial_state(facts(), evaluations=evaluations).best_evaluation
    assert best == evaluations[1]


def test_the_curve_is_recent_and_the_best_is_not():
    many = [record(n, **{"episode/return_mean": -float(n)}) for n in range(1, CURVE_POINTS + 11)]
    state = after(initial_state(facts(updates=1000)), *many)
    assert len(state.curve) == CURVE_POINTS
    assert (state.curve[0], state.best_return) == (-11.0, -1.0)


def test_records_without_an_episode_leave_no_point():
    state = after(initial_state(facts()), record(1), record(2, **{"episode/return_mean": 2.0}), record(3))
    assert state.curve == (2.0,)


def test_curve_continues_from_earlier_processes():
    state = initial_state(facts(first_update=2, first_env_steps=128), [1.0, 2.0])
    assert (state.curve, state.best_return, state.record) == ((1.0, 2.0), 2.0, None)
    assert seconds_left(state) is None
    state = after(state, record(3, seconds=1.0, **{"episode/return_mean": 9.0}))
    assert state.curve == (1.0, 2.0, 9.0)
    assert seconds_left(state) == pytest.approx(7.0)


def test_checkpoint_age_counts_from_its_first_record():
    told = [(1, 0.0), (2, 2.0), (3, 2.0)]
    state = after(initial_state(facts()), *(record(n, seconds=float(n), **{"checkpoint/update": c}) for n, c in told))
    assert state.checkpoint_at == 2.0


def test_resumed_checkpoint_has_no_age():
    resumed = initial_state(facts(first_update=4, first_env_steps=256))
    assert after(resumed, record(5, seconds=1.0, **{"checkpoint/update": 4.0})).checkpoint_at is None
    saved = after(resumed, record(5, seconds=1.0, **{"checkpoint/update": 5.0}))
    assert saved.checkpoint_at == 1.0


def test_a_file_of_two_processes_is_read_as_two():
    first = [record(n, seconds=10.0 * n, **{"checkpoint/update": float(n)}) for n in (1, 2, 3)]
    second = [
        record(3, seconds=1.0, **{"checkpoint/update": 3.0}),
        record(4, seconds=2.0, **{"checkpoint/update": 3.0}),
    ]
    state = after(initial_state(facts(updates=10)), *first, *second)
    assert seconds_left(state) == pytest.approx(6.0)
    assert state.checkpoint_at is None
