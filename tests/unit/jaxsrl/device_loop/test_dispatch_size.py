"""How many updates a dispatch gets."""

import pytest

from jaxsrl.device_loop.loop import DispatchSize


def settled(seconds_per_update, dispatches=40):
    pace = DispatchSize()
    for _ in range(dispatches):
        pace.record(pace.updates, pace.updates * seconds_per_update)
    return pace.updates


@pytest.mark.parametrize("seconds_per_update", [1e-5, 3e-4, 0.004, 0.06, 0.2])
def test_a_dispatch_settles_between_a_tenth_and_half_a_second(seconds_per_update):
    assert 0.1 <= settled(seconds_per_update) * seconds_per_update <= 0.5


def test_an_update_that_takes_longer_is_alone():
    assert settled(3.0) == 1


def test_fewer_updates_once_they_have_become_slow():
    pace = DispatchSize()
    for _ in range(5):
        pace.record(pace.updates, 0.01)
    assert pace.updates == 32
    pace.record(32, 0.6)
    assert pace.updates == 16


def test_a_dispatch_that_was_cut_short_does_not_change_the_pace():
    pace = DispatchSize()
    pace.record(1, 0.01)
    pace.record(1, 0.001)
    assert pace.updates == 2


@pytest.mark.parametrize(
    ("done", "total", "every", "expected"),
    [
        (0, 100, 0, 8),
        (95, 100, 0, 5),
        (0, 100, 10, 8),
        (8, 100, 10, 2),
        (10, 100, 10, 8),
        (99, 100, 10, 1),
        (0, 3, 10, 3),
    ],
)
def test_dispatch_ends_at_checkpoints_and_at_the_end(done, total, every, expected):
    pace = DispatchSize()
    for _ in range(3):
        pace.record(pace.updates, 0.01)
    assert pace.next_size(done, total, every) == expected
