"""REINFORCE: returns against a loop over each episode, which steps count, and the options."""

import chex
import jax
import numpy as np
import pytest

from agents import reinforce
from agents.api import Trajectory
from agents.networks.config import NetworkConfig
from agents.ops import returns
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec
from tests.support.actor_critic_loss import learned

DISCOUNT = 0.9


def random_case(seed=0, num_steps=20, num_rows=6, p_end=0.2):
    """A trajectory in a legal NEXT_STEP pattern, without observations; and values."""
    rng = np.random.default_rng(seed)
    shape = (num_steps, num_rows)
    terminated, truncated = rng.random((2, *shape)) < p_end / 2
    valid = np.ones(shape, bool)
    for t in range(1, num_steps):
        valid[t] = ~(terminated | truncated)[t - 1]
        terminated[t] &= valid[t]
        truncated[t] &= valid[t]
    reward = rng.normal(size=shape).astype(np.float32)
    value = rng.normal(size=(num_steps + 1, num_rows)).astype(np.float32)
    return Trajectory(None, None, None, reward, terminated, truncated, valid, valid, {}), value


def by_episode(data, value):
    """For every step by itself: rewards to the end of its episode, plus what the value says beyond; and whether it ended."""
    result, is_complete = np.zeros(data.reward.shape), np.zeros(data.reward.shape, bool)
    num_steps = len(data.reward)
    for start, row in zip(*np.nonzero(data.valid), strict=True):
        for t in range(start, num_steps):
            result[start, row] += DISCOUNT ** (t - start) * data.reward[t, row]
            is_complete[start, row] = data.terminated[t, row] or data.truncated[t, row]
            if not data.terminated[t, row] and (data.truncated[t, row] or t == num_steps - 1):
                result[start, row] += DISCOUNT ** (t + 1 - start) * value[t + 1, row]
            if is_complete[start, row]:
                break
    return result, is_complete


def learned_from(data, value, counts, **changes):
    config = reinforce.REINFORCEConfig(discount=DISCOUNT, **changes)
    return learned(reinforce, config, data, 0.0, value, counts.sum())


def test_with_bootstrap_every_valid_step_counts():
    data, value = random_case()
    got = learned_from(data, value, data.valid, bootstrap=True)
    expected, _ = by_episode(data, value)
    np.testing.assert_allclose(got.target, np.where(data.valid, expected, value[:-1]), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(got.advantage, (expected - value[:-1]) * data.valid, rtol=1e-4, atol=1e-4)


def test_without_bootstrap_only_complete_episodes_count():
    data, value = random_case()
    expected, is_complete = by_episode(data, np.zeros_like(value))
    got = learned_from(data, value, is_complete)
    assert 0 < is_complete.sum() < data.valid.sum()
    np.testing.assert_allclose(got.advantage, np.where(is_complete, expected - value[:-1], 0.0), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(got.target, np.where(is_complete, expected, value[:-1]), rtol=1e-4, atol=1e-4)
    fraction = is_complete.sum() / data.valid.sum()
    assert float(got.metrics["returns/complete_fraction"]) == pytest.approx(fraction)


def test_without_baseline_the_advantage_is_the_return():
    data, value = random_case()
    expected, is_complete = by_episode(data, np.zeros_like(value))
    got = learned_from(data, value, is_complete, baseline=False)
    np.testing.assert_allclose(got.advantage, np.where(is_complete, expected, 0.0), rtol=1e-4, atol=1e-4)


def test_reinforce_ignores_invalid_steps_bit_for_bit():
    data, value = random_case()
    junk = np.where(data.valid, data.reward, np.nan).astype(np.float32)
    arguments = (data.terminated, data.truncated, data.valid)
    one = returns.monte_carlo(data.reward, value, *arguments, discount=DISCOUNT)
    other = returns.monte_carlo(junk, value, *arguments, discount=DISCOUNT)
    chex.assert_trees_all_equal(one, other)


@pytest.mark.parametrize(("changes", "learns"), [({}, True), ({"baseline": False}, False)])
def test_values_are_learned_only_if_something_uses_them(changes, learns):
    spec = EnvSpec("test", ArraySpec((1,), "float32"), DiscreteSpec(2))
    agent = reinforce.make_reinforce(reinforce.REINFORCEConfig(**changes), spec, NetworkConfig(hidden_sizes=(4,)))
    yes, no = np.ones((1, 2), bool), np.zeros((1, 2), bool)
    data = Trajectory(
        np.ones((2, 2, 1), np.float32), np.ones((2, 2), bool), np.array([[0, 1]]), np.ones((1, 2), np.float32),
        yes, no, yes, no, {"behavior_log_prob": np.zeros((1, 2), np.float32)},
    )  # fmt: skip
    before = agent.init(jax.random.key(0))
    after, _ = agent.update(before, data, jax.random.key(0))
    moved = [
        not np.array_equal(x, y)
        for x, y in zip(*map(jax.tree.leaves, (before.params["critic"], after.params["critic"])), strict=True)
    ]
    assert any(moved) == learns
    assert not np.array_equal(jax.tree.leaves(before.params["actor"])[0], jax.tree.leaves(after.params["actor"])[0])
