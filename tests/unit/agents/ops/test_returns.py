"""Returns and advantages against loops that follow each episode by itself, and against rlax."""

import jax.numpy as jnp
import numpy as np
import pytest
import rlax

from agents.ops import returns

DISCOUNT, LAMBDA = 0.97, 0.9


def random_case(seed, num_steps, num_rows, p_end=0.2):
    """Rewards, values and flags in a legal NEXT_STEP pattern: the step after an end is invalid and ends nothing."""
    rng = np.random.default_rng(seed)
    reward = rng.normal(size=(num_steps, num_rows)).astype(np.float32)
    value = rng.normal(size=(num_steps + 1, num_rows)).astype(np.float32)
    terminated, truncated = np.zeros((2, num_steps, num_rows), bool)
    valid = np.ones((num_steps, num_rows), bool)
    for row in range(num_rows):
        ended = rng.random() < 0.3
        for t in range(num_steps):
            if ended:
                valid[t, row], reward[t, row], ended = False, 0.0, False
                continue
            terminated[t, row], truncated[t, row] = rng.random(2) < p_end / 2
            ended = terminated[t, row] or truncated[t, row]
    return reward, value, terminated, truncated, valid


def pieces(valid, terminated, truncated, row):
    """(first, last + 1) of every run of steps within one episode, and how it ends."""
    start = None
    for t in range(len(valid)):
        if not valid[t, row]:
            start = None
            continue
        start = t if start is None else start
        if terminated[t, row] or truncated[t, row] or t == len(valid) - 1:
            yield start, t + 1, bool(terminated[t, row])
            start = None


def gae_by_episode(reward, value, terminated, truncated, valid):
    """Sums of discounted temporal differences, written out for every pair of steps."""
    advantage = np.zeros_like(reward, dtype=np.float64)
    for row in range(reward.shape[1]):
        for start, end, is_terminal in pieces(valid, terminated, truncated, row):
            values = value[start : end + 1, row].astype(np.float64)
            if is_terminal:
                values[-1] = 0.0
            delta = reward[start:end, row] + DISCOUNT * values[1:] - values[:-1]
            for t in range(end - start):
                advantage[start + t, row] = sum((DISCOUNT * LAMBDA) ** k * delta[t + k] for k in range(end - start - t))
    return advantage


@pytest.mark.parametrize("num_steps", [1, 2, 7, 40])
@pytest.mark.parametrize("seed", [0, 1])
def test_gae_is_the_sum_over_each_episode(num_steps, seed):
    case = random_case(seed, num_steps, num_rows=5)
    got = returns.gae(*map(jnp.asarray, case), discount=DISCOUNT, lambda_=LAMBDA)
    np.testing.assert_allclose(got, gae_by_episode(*case), rtol=1e-4, atol=1e-5)


def test_gae_agrees_with_rlax_where_episodes_only_terminate():
    reward, value, terminated, truncated, valid = random_case(4, 30, num_rows=1)
    truncated[:], valid[:] = False, True
    got = returns.gae(
        *map(jnp.asarray, (reward, value, terminated, truncated, valid)), discount=DISCOUNT, lambda_=LAMBDA
    )
    discount = DISCOUNT * ~terminated[:, 0]
    expected = rlax.truncated_generalized_advantage_estimation(
        reward[:, 0], discount.astype(np.float32), LAMBDA, value[:, 0]
    )
    np.testing.assert_allclose(got[:, 0], expected, rtol=1e-4, atol=1e-5)


def test_truncation_bootstraps_and_termination_does_not():
    ones, zero = jnp.ones((1, 1)), jnp.zeros((1, 1), bool)
    value = jnp.array([[0.0], [10.0]])
    for terminated, truncated, expected in ((~zero, zero, 1.0), (zero, ~zero, 10.0)):
        got = returns.gae(ones, value, terminated, truncated, ~zero, discount=0.9, lambda_=1.0)
        assert float(got[0, 0]) == pytest.approx(expected)


def test_standardize_ignores_entries_without_weight():
    x, weight = jnp.array([1.0, 2.0, 3.0, 1e9]), jnp.array([1.0, 1.0, 1.0, 0.0])
    got = np.asarray(returns.standardize(x, weight))
    np.testing.assert_allclose(got, [-1.2247449, 0.0, 1.2247449, 0.0], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(returns.standardize(x, jnp.zeros(4)), np.zeros(4))
    assert float(returns.weighted_mean(jnp.array([jnp.nan, 2.0]), jnp.array([0.0, 1.0]))) == 2.0


@pytest.mark.parametrize("constant", [0.1, 3.7, 100.3, 1e7 + 1])
def test_a_constant_has_neither_deviation_nor_explained_variance(constant):
    x, weight = jnp.full((32, 64), constant, jnp.float32), jnp.ones((32, 64))
    np.testing.assert_allclose(returns.standardize(x, weight), 0.0, atol=1e-4)
    noise = np.random.default_rng(0).normal(size=x.shape)
    assert float(returns.explained_variance(x, x + noise, weight)) == 0.0


@pytest.mark.parametrize("seed", [0, 1])
def test_monte_carlo_is_gae_of_lambda_one_where_a_failure_cut(seed):
    reward, value, terminated, truncated, valid = random_case(seed, 20, 6)
    cut = np.random.default_rng(seed).random(valid.shape) < 0.2  # without an end before them
    reward, valid = np.where(cut, 0.0, reward), valid & ~cut
    ends = (terminated & valid, truncated & valid, valid)
    got, _ = returns.monte_carlo(reward, jnp.asarray(value), *map(jnp.asarray, ends), discount=DISCOUNT)
    advantage = returns.gae(reward, jnp.asarray(value), *map(jnp.asarray, ends), discount=DISCOUNT, lambda_=1.0)
    np.testing.assert_allclose(got, np.where(valid, advantage + value[:-1], 0.0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("seed", [0, 1])
def test_lambda_returns_are_a_loop_backwards(seed):
    random = np.random.default_rng(seed)
    reward, value, discount, mixing = random.normal(size=(4, 7, 3))
    discount, mixing = 0.9 * (np.abs(discount) > 0.3), 0.8 * (np.abs(mixing) > 0.3)
    later = random.normal(size=3)
    got = returns.lambda_returns(*(jnp.asarray(x, jnp.float32) for x in (reward, discount, value, later, mixing)))
    for t in reversed(range(7)):
        later = reward[t] + discount[t] * ((1 - mixing[t]) * value[t] + mixing[t] * later)
        np.testing.assert_allclose(got[t], later, rtol=1e-4, atol=1e-5)
