"""n-step sums against a loop over every step of every episode, and the values they give against the on-policy returns."""

from functools import partial

import jax
import numpy as np
import pytest
import rlax

from agents.ops.n_step import n_step_rewards, take_steps
from envpool_bridge.errors import UserError

DISCOUNT = 0.9


def random_window(seed, num_steps, num_rows):
    """A legal NEXT_STEP pattern: the step after an end only resets. Such steps carry nonsense."""
    rng = np.random.default_rng(seed)
    reward = rng.normal(size=(num_steps, num_rows)).astype(np.float32)
    terminated, truncated = np.zeros((2, num_steps, num_rows), bool)
    valid = np.ones((num_steps, num_rows), bool)
    for row in range(num_rows):
        ended = rng.random() < 0.3
        for t in range(num_steps):
            if ended:
                valid[t, row], reward[t, row], ended = False, np.nan, False
                continue
            terminated[t, row], truncated[t, row] = rng.random(2) < 0.15
            ended = terminated[t, row] or truncated[t, row]
    return reward, terminated, truncated, valid


def returns_with_values(reward, value, terminated, truncated, valid, n_step, discount=DISCOUNT):
    """n-step returns: the sums and the discounted values of the observations that they reach."""
    steps = partial(n_step_rewards, discount=discount, n_step=n_step)
    sums = jax.jit(steps)(reward, terminated, truncated, valid)
    return sums.reward + sums.discount * take_steps(value, sums.position)


def by_loop(reward, terminated, truncated, valid, n):
    """Walks forward from every step until n rewards are summed, the episode ends, or the window does."""
    sums, discounts = np.zeros((2, *reward.shape))
    positions = np.zeros(reward.shape, int)
    for t, row in np.ndindex(*reward.shape):
        positions[t, row] = t
        for k in range(n if valid[t, row] else 0):
            at = t + k
            sums[t, row] += DISCOUNT**k * reward[at, row]
            positions[t, row], discounts[t, row] = at + 1, DISCOUNT ** (k + 1)
            if terminated[at, row]:
                discounts[t, row] = 0.0
            if terminated[at, row] or truncated[at, row] or at + 1 == len(reward):
                break
    return sums, discounts, positions


@pytest.mark.parametrize("n", [1, 9])
def test_n_step_sums_match_loop(n):
    window = random_window(n, 7, 200)
    found = jax.jit(partial(n_step_rewards, discount=DISCOUNT, n_step=n))(*window)
    sums, discounts, positions = by_loop(*window, n)
    np.testing.assert_allclose(found.reward, sums, atol=1e-5)
    np.testing.assert_allclose(found.discount, discounts, atol=1e-6)
    np.testing.assert_array_equal(found.position, positions)


@pytest.mark.parametrize("n", [1, 3, 50])
def test_n_step_returns_match_loop(n):
    reward, *flags = random_window(1, 7, 50)
    reward = np.nan_to_num(reward)
    value = np.random.default_rng(2).normal(size=(8, 50)).astype(np.float32)
    sums, discounts, positions = by_loop(reward, *flags, n)
    expected = sums + discounts * np.take_along_axis(value, positions, axis=0)
    np.testing.assert_allclose(returns_with_values(reward, value, *flags, n), expected, atol=1e-5)


def test_n_step_returns_agree_with_rlax():
    reward, terminated, truncated, valid = random_window(5, 30, 1)
    reward, value = np.nan_to_num(reward), np.random.default_rng(6).normal(size=(31, 1)).astype(np.float32)
    truncated[:], valid[:] = False, True
    got = returns_with_values(reward, value, terminated, truncated, valid, 4)
    discount = (DISCOUNT * ~terminated[:, 0]).astype(np.float32)
    expected = rlax.n_step_bootstrapped_returns(reward[:, 0], discount, value[1:, 0], 4)
    np.testing.assert_allclose(got[:, 0], expected, rtol=1e-4, atol=1e-5)


def test_take_steps_selects_row_by_row():
    tree = {"image": np.arange(24).reshape(4, 3, 2), "flag": np.arange(12).reshape(4, 3)}
    one = take_steps(tree, np.array([3, 0, 1]))
    assert one["flag"].tolist() == [9, 1, 5]
    assert one["image"].tolist() == [[18, 19], [2, 3], [10, 11]]
    two = take_steps(tree, np.array([[3, 0, 1], [0, 0, 0]]))
    assert two["flag"].tolist() == [[9, 1, 5], [0, 1, 2]]


def test_n_step_rejects_zero_steps():
    with pytest.raises(UserError, match="at least 1: got 0"):
        n_step_rewards(*random_window(0, 2, 1), discount=DISCOUNT, n_step=0)


def test_cut_episode_bootstraps_from_last_observation():
    # A failure at the third step, of which only `valid` tells: the episode's last step was in an earlier slot.
    reward, value = np.array([[1.0], [2.0], [0.0], [4.0]], np.float32), np.array([[8.0], [9.0], [10.0], [11.0], [12.0]])
    no, valid = np.zeros((4, 1), bool), np.array([[True], [True], [False], [True]])
    found = n_step_rewards(reward, no, no, valid, discount=0.5, n_step=3)
    assert found.position[:, 0].tolist() == [2, 2, 2, 4]
    np.testing.assert_allclose(found.reward[:, 0], [1.0 + 0.5 * 2.0, 2.0, 0.0, 4.0])
    np.testing.assert_allclose(found.discount[:, 0], [0.25, 0.5, 0.0, 0.5])
    returns = returns_with_values(reward, value.astype(np.float32), no, no, valid, 3, discount=0.5)
    np.testing.assert_allclose(returns[:, 0], [1.0 + 0.5 * (2.0 + 0.5 * 10.0), 2.0 + 0.5 * 10.0, 0.0, 4.0 + 0.5 * 12.0])
