"""Simulated preparation of samples beside the learner, against closed forms and a plain loop."""

import pytest

from jaxsrl.planner.simulator.prepare import simulate_prepare


@pytest.mark.parametrize("devices", [0, 1, 3])
def test_preparation_without_lag_is_in_turn(devices):
    assert simulate_prepare(1.0, 3.0, devices, 0, 10) == pytest.approx(1 / 4)


@pytest.mark.parametrize(("devices", "expected"), [(1, 1 / 3), (2, 2 / 3), (3, 1.0), (8, 1.0)])
def test_the_slower_of_learner_and_preparation_limits(devices, expected):
    speed = simulate_prepare(1.0, 3.0, devices, lag=16, steps_per_update=1000)
    assert speed == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize(("devices", "lag", "steps"), [(1, 1, 4), (2, 1, 7), (2, 3, 5), (3, 2, 9)])
def test_simulated_preparation_equals_a_loop(devices, lag, steps):
    gradient, prepare, updates = 2.0, 3.5, 3
    now, number, free = 0.0, 0, [0.0] * devices
    for _ in range(updates):
        begin, ready = [now], []
        for n in range(steps):
            while len(ready) < min(steps, n + lag + 1):
                place = number % devices
                free[place] = max(free[place], begin[-1]) + prepare
                ready.append(free[place])
                number += 1
            now = max(now, ready[n]) + gradient
            begin.append(now)
    assert simulate_prepare(gradient, prepare, devices, lag, steps, updates) == pytest.approx(steps * updates / now)
