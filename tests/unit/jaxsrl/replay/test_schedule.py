"""Gradient steps are exactly those of the formula, however many env steps there are."""

from fractions import Fraction
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.api import ReplayConfig
from envpool_bridge.errors import UserError
from jaxsrl.replay.schedule import HostPace, PaceState, init_pace_state, make_pace, steps_due, updates_until


def all_steps(pace, count):
    """[count] int, gradient steps after each trajectory."""

    def step(state, _):
        due, state = steps_due(pace, state, jnp.asarray(True))
        return state, due

    return np.asarray(jax.lax.scan(step, init_pace_state(pace), None, count)[1])


def formula(config, rate, env_steps):
    return max(0, int((env_steps - config.min_size) * rate))


@pytest.mark.parametrize(
    "exact",
    [Fraction(1, 6), Fraction(1, 640), Fraction(1, 3), Fraction(1024, 300 * 1024), Fraction(3177, 480), Fraction(20)],
)
def test_steps_are_floor_of_the_formula(exact):
    config = ReplayConfig(min_size=777, gradient_steps_per_env_step=float(exact))
    due = all_steps(make_pace(config, 60), 3000)
    assert np.cumsum(due).tolist() == [formula(config, exact, number * 60) for number in range(1, 3001)]


@settings(deadline=None, max_examples=12)
@given(
    min_size=st.integers(1, 5000),
    steps=st.integers(1, 500),
    per=st.integers(1, 40960),
    env_steps=st.integers(1, 4096),
)
def test_steps_are_floor_of_the_formula_for_any_sizes(min_size, steps, per, env_steps):
    config = ReplayConfig(min_size=min_size, gradient_steps_per_env_step=steps / per)
    due = all_steps(make_pace(config, env_steps), 500)
    assert np.cumsum(due).tolist() == [formula(config, Fraction(steps, per), n * env_steps) for n in range(1, 501)]


@settings(deadline=None, max_examples=12)
@given(
    min_size=st.integers(1, 5000),
    steps=st.integers(1, 500),
    per=st.integers(1, 640),
    env_steps=st.integers(1, 4096),
    gradient_steps=st.integers(1, 1000),
)
def test_updates_until_is_the_first_that_reaches_it(min_size, steps, per, env_steps, gradient_steps):
    config = ReplayConfig(min_size=min_size, gradient_steps_per_env_step=steps / per)
    updates = updates_until(config, env_steps, gradient_steps)
    before, after = (formula(config, Fraction(steps, per), count * env_steps) for count in (updates - 1, updates))
    assert before < gradient_steps <= after


def test_ten_billion_env_steps_are_counted_exactly():
    config = ReplayConfig(min_size=1000, gradient_steps_per_env_step=3 / 9970)
    pace, env_steps = make_pace(config, 123_457), 123_457
    done = 10**10 // env_steps  # trajectories; their remainder is known without stepping through them
    ratio = Fraction(3, 9970)
    left = int(((done * env_steps - 1000) * ratio % 1) * ratio.denominator)
    state = PaceState(*(jnp.asarray(value, jnp.int32) for value in (0, left, 0)))
    step = jax.jit(partial(steps_due, pace))
    total = 0
    for number in range(1, 20):
        due, state = step(state, True)
        total += int(due)
        expected = formula(config, ratio, (done + number) * env_steps)
        assert total == expected - formula(config, ratio, done * env_steps)


def test_steps_that_find_nothing_to_draw_are_owed():
    pace = make_pace(ReplayConfig(min_size=8, gradient_steps_per_env_step=0.5), 8)
    state, done = init_pace_state(pace), []
    for can_draw in (True, True, False, False, True):
        due, state = steps_due(pace, state, jnp.asarray(can_draw))
        done.append(int(due))
    assert done == [0, 4, 0, 0, 12]


def test_no_steps_and_too_many_are_refused():
    with pytest.raises(UserError, match="never be a gradient step: got 1e-12"):
        make_pace(ReplayConfig(gradient_steps_per_env_step=1e-12), 64)
    with pytest.raises(UserError, match="4000000.0 are 4096000000 gradient steps for a trajectory of 1024 env steps"):
        make_pace(ReplayConfig(gradient_steps_per_env_step=4e6), 1024)


@pytest.mark.parametrize(("rate", "env_steps"), [(1 / 160, 7), (317.7 / 48, 60), (1 / 6, 4096)])
def test_a_buffer_on_the_host_counts_the_same_steps(rate, env_steps):
    pace = make_pace(ReplayConfig(min_size=777, gradient_steps_per_env_step=rate), env_steps)
    host, device, step = HostPace(pace), init_pace_state(pace), jax.jit(partial(steps_due, pace))
    rng = np.random.default_rng(0)
    for number in range(300):
        can_draw = bool(rng.random() < 0.8)
        due, device = step(device, can_draw)
        assert host.steps_due(can_draw) == int(due)
        if number % 100 == 50:
            saved, host = jax.device_get(device), HostPace(pace)
            host.restore(saved)
    jax.tree.map(np.testing.assert_array_equal, host.arrays(), device)
    assert [leaf.dtype for leaf in jax.tree.leaves(host.arrays())] == [np.int32] * 3
