"""Bounded queue between threads: order, bounds, deadlines and closing."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from envpool_bridge.errors import WaitTimeoutError
from jaxsrl.replay.bounded_queue import BoundedQueue, ReplayClosedError

SECONDS = 60.0


def test_items_come_out_once_and_in_order():
    queue = BoundedQueue(2)

    def put():
        for number in range(2000):
            queue.put(number, SECONDS)

    def get():
        return [queue.get(SECONDS) for _ in range(1000)]

    with ThreadPoolExecutor(3) as pool:
        putting, *getting = pool.submit(put), pool.submit(get), pool.submit(get)
        putting.result()
        numbers = [future.result() for future in getting]
    assert sorted(numbers[0] + numbers[1]) == list(range(2000))
    assert all(part == sorted(part) for part in numbers)


def test_full_queue_blocks_put_until_a_get():
    queue = BoundedQueue(1)
    queue.put("first", SECONDS)
    with pytest.raises(WaitTimeoutError, match="insert 1 items of a queue: 1 are inserted, 0 removed and 1 left"):
        queue.put("rejected", 0.001)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(queue.put, "second", SECONDS)
        assert queue.get(SECONDS) == "first"
        waiting.result()
    assert queue.get(SECONDS) == "second"


def test_empty_queue_blocks_get_until_its_deadline():
    queue = BoundedQueue(1, "samples from the thread x")
    start = time.monotonic()
    with pytest.raises(WaitTimeoutError, match=r"waited 0.05 s to sample 1 samples from the thread x: 0 are inserted"):
        queue.get(0.05)
    assert 0.05 <= time.monotonic() - start < 10.0


def test_close_wakes_all_threads_with_the_first_error():
    empty, full = BoundedQueue(1), BoundedQueue(1)
    full.put(0, SECONDS)
    started = threading.Barrier(3)

    def wait(call, *arguments):
        started.wait(SECONDS)
        call(*arguments, SECONDS)

    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(wait, empty.get), pool.submit(wait, full.put, 1)]
        started.wait(SECONDS)
        for queue in (empty, full):
            queue.close(ValueError("the worker died"))
            queue.close(ValueError("later"))
        for future, verb in zip(waiting, ("sample", "insert"), strict=True):
            with pytest.raises(ReplayClosedError, match=f"no thread can {verb}") as closed:
                future.result()
            assert str(closed.value.__cause__) == "the worker died"
    with pytest.raises(ReplayClosedError):
        full.get(SECONDS)
