"""The trajectory queue, against a list that is sorted as SRL sorts, and threads."""

import dataclasses
import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from agents.api import Trajectory
from envpool_bridge.errors import BadEnvOutputError, UserError, WaitTimeoutError
from jaxsrl.replay.queue.rate_limiter import ReplayClosedError
from jaxsrl.replay.queue.trajectory_queue import QueueConfig, TrajectoryQueue

SECONDS = 60.0


def trajectory_of(number, rows=2, steps=3):
    def filled(*shape, dtype="float32"):
        return np.full(shape, number, dtype)

    return Trajectory(
        observation={"a": filled(steps + 1, rows, 2), "b": filled(steps + 1, rows)},
        is_first=filled(steps + 1, rows, dtype="bool"),
        action=filled(steps, rows, dtype="int32"),
        reward=filled(steps, rows),
        terminated=filled(steps, rows, dtype="bool"),
        truncated=filled(steps, rows, dtype="bool"),
        valid=filled(steps, rows, dtype="bool"),
        policy_version=filled(steps, rows, dtype="int32"),
        extras={"log_prob": filled(steps, rows)},
        agent_state=(filled(rows, 4),),
    )


@pytest.mark.parametrize("seed", range(20))
def test_the_freshest_with_most_uses_left_comes_next_and_overflow_drops_the_least(seed):
    random_ = random.Random(seed)
    max_size, reuses = random_.randint(1, 5), random_.randint(1, 4)
    queue = TrajectoryQueue(QueueConfig(max_size=max_size, reuses=reuses))
    model, number, dropped, unused, got = [], 0, 0, 0, 0  # items [uses left, number], least first
    for _ in range(100):
        if random_.random() < 0.5:
            queue.put(trajectory_of(number), SECONDS)
            model = sorted([*model, [reuses, number]])
            number += 1
            if len(model) > max_size:
                left, _ = model.pop(0)
                dropped, unused = dropped + 1, unused + (left == reuses)
        elif model:
            left, expected = model.pop()
            batch, got = queue.get(SECONDS), got + 1
            assert (batch.number, batch.uses) == (expected, reuses - left)
            assert batch.trajectory.reward[0, 0] == expected
            model = sorted([*model, [left - 1, expected]]) if left > 1 else model
        else:
            with pytest.raises(WaitTimeoutError):
                queue.get(0.0)
    counts = queue.counts
    assert dataclasses.astuple(counts) == (number, got, dropped, unused, len(model))


def test_a_batch_is_several_trajectories_side_by_side_and_copied():
    queue = TrajectoryQueue(QueueConfig(batch_size=3))
    parts = [trajectory_of(number) for number in range(3)]
    for part in parts:
        with pytest.raises(WaitTimeoutError):
            queue.get(0.0)
        queue.put(part, SECONDS)
    expected = np.concatenate([part.reward for part in parts], axis=1)
    memory = np.concatenate([part.agent_state[0] for part in parts], axis=0)
    for part in parts:
        part.reward[...] = -1.0
    batch = queue.get(SECONDS).trajectory
    np.testing.assert_array_equal(batch.reward, expected)
    np.testing.assert_array_equal(batch.agent_state[0], memory)
    assert batch.observation["a"].shape == (4, 6, 2)
    assert batch.is_first.dtype == bool


def test_fifo_hands_out_each_batch_so_often_in_order_and_then_never_again():
    queue = TrajectoryQueue(QueueConfig(order="fifo", max_size=3, reuses=2))
    for number in range(3):
        queue.put(trajectory_of(number), SECONDS)
    assert [queue.get(SECONDS).number for _ in range(3)] == [0, 0, 1]
    queue.put(trajectory_of(3), SECONDS)
    assert [(queue.get(SECONDS).number, queue.counts.size) for _ in range(5)] == [
        (1, 2),
        (2, 2),
        (2, 1),
        (3, 1),
        (3, 0),
    ]
    assert queue.counts.dropped == 0


def test_fifo_waits_for_room_and_takes_nothing_that_it_refuses():
    queue = TrajectoryQueue(QueueConfig(order="fifo", max_size=1, reuses=2))
    queue.put(trajectory_of(0), SECONDS)
    for _ in range(2):
        with pytest.raises(WaitTimeoutError, match="insert 1 items"):
            queue.put(trajectory_of(7), 0.001)
        queue.get(SECONDS)
    queue.put(trajectory_of(1), SECONDS)
    assert queue.get(SECONDS).trajectory.reward[0, 0] == 1


def test_each_item_of_a_queue_between_threads_comes_out_exactly_once_and_in_order():
    queue = TrajectoryQueue(QueueConfig(order="fifo", max_size=2))

    def put():
        for number in range(200):
            queue.put(trajectory_of(number, rows=1, steps=1), SECONDS)

    def get():
        return [queue.get(SECONDS).number for _ in range(100)]

    with ThreadPoolExecutor(3) as pool:
        putting, *getting = pool.submit(put), pool.submit(get), pool.submit(get)
        putting.result()
        numbers = [future.result() for future in getting]
    assert sorted(numbers[0] + numbers[1]) == list(range(200))
    assert all(part == sorted(part) for part in numbers)


def test_a_trajectory_of_another_form_is_refused_and_the_queue_goes_on():
    queue = TrajectoryQueue(QueueConfig(batch_size=2))
    queue.put(trajectory_of(0), SECONDS)
    with pytest.raises(BadEnvOutputError, match=r"expected .* float32\[4, 2, 2\] here: got float32\[5, 2, 2\]"):
        queue.put(trajectory_of(1, steps=4), SECONDS)
    with pytest.raises(BadEnvOutputError, match="expected a trajectory of the structure"):
        queue.put(dataclasses.replace(trajectory_of(1), agent_state=()), SECONDS)
    queue.put(trajectory_of(2), SECONDS)
    with pytest.raises(BadEnvOutputError):  # a new batch is no new beginning
        queue.put(trajectory_of(1, rows=3), SECONDS)
    np.testing.assert_array_equal(queue.get(SECONDS).trajectory.reward[0], [0, 0, 2, 2])


def test_closing_wakes_the_learner_with_the_error():
    queue = TrajectoryQueue(QueueConfig())
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(queue.get, SECONDS)
        queue.close(ValueError("the worker died"))
        with pytest.raises(ReplayClosedError) as closed:
            waiting.result()
    assert str(closed.value.__cause__) == "the worker died"
    with pytest.raises(ReplayClosedError):
        queue.put(trajectory_of(0), SECONDS)


@pytest.mark.parametrize("name", ["max_size", "reuses", "batch_size"])
def test_sizes_below_one_are_refused(name):
    with pytest.raises(UserError, match=f"{name} must be at least 1: got 0"):
        QueueConfig(**{name: 0})


def test_a_batch_that_is_discarded_is_not_handed_out_again():
    queue = TrajectoryQueue(QueueConfig(max_size=3, reuses=4))
    for number in range(2):
        queue.put(trajectory_of(number), SECONDS)
    assert queue.get(SECONDS).number == 1
    queue.discard(1)
    queue.discard(7)
    assert [queue.get(SECONDS).number for _ in range(4)] == [0, 0, 0, 0]
    assert queue.counts.size == 0
