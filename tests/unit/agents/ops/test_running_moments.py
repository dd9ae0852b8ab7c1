"""Running mean and variance against gymnasium's in float64, and after 1e9 values."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.wrappers.utils import RunningMeanStd

from agents.ops.running_moments import Moments, RunningMoments, batch_moments, deviation, init_moments, merge


def exact(pair) -> np.ndarray:
    return np.asarray(pair, np.float64).sum(0)


@jax.jit
def add(running, x, valid):
    return merge(running, batch_moments(x, valid))


@pytest.mark.parametrize("scale", [(0.0, 1.0), (1e4, 0.1), (-3e-6, 1e-5)])
def test_running_moments_match_gymnasium(scale):
    center, spread = scale
    rng = np.random.default_rng(0)
    running, reference = init_moments((2, 3)), RunningMeanStd(epsilon=0.0, shape=(2, 3), dtype=np.float64)
    values = []
    for number in range(10):
        x = (center + spread * rng.normal(number, 1.0, (4, 5, 2, 3))).astype(np.float32)
        valid = rng.random((4, 5)) < 0.7
        running = add(running, np.where(valid[..., None, None], x, np.nan), valid)
        reference.update(x[valid].astype(np.float64))
        values.append(x[valid])
    together = np.concatenate(values).astype(np.float64)
    assert exact(running.count) == len(together)
    np.testing.assert_allclose(exact(running.mean), reference.mean, rtol=1e-6, atol=1e-5 * spread)
    np.testing.assert_allclose(exact(running.variance), reference.var, rtol=1e-4)
    np.testing.assert_allclose(exact(running.variance), together.var(0), rtol=1e-4)


@pytest.mark.parametrize("constant", [123456.789, 1e7 + 1])
def test_a_constant_has_no_variance(constant):
    running, valid = init_moments(()), np.ones((64, 33), bool)
    for _ in range(5):
        running = add(running, np.full(valid.shape, constant, np.float32), valid)
    assert float(exact(running.variance)) < (1e-9 * constant) ** 2


def test_running_moments_ignore_batch_without_valid_steps():
    running = add(init_moments((2,)), np.ones((3, 4, 2), np.float32), np.ones((3, 4), bool))
    after = add(running, np.full((3, 4, 2), np.nan, np.float32), np.zeros((3, 4), bool))
    assert jax.tree.all(jax.tree.map(lambda one, other: bool((one == other).all()), running, after))
    nothing = add(init_moments((2,)), np.full((3, 4, 2), np.nan, np.float32), np.zeros((3, 4), bool))
    np.testing.assert_array_equal(nothing.mean, 0.0)


def test_after_1e9_values_they_still_count_and_still_follow():
    pair = lambda value: jnp.array([value, 0.0], jnp.float32)  # noqa: E731
    running = RunningMoments(pair(1e9), pair(100.0), pair(1.0))
    batch = Moments(*map(jnp.float32, (100.0, 100.0, 0.5, 1.0)))
    merges = 20_000
    running = jax.jit(lambda first: jax.lax.fori_loop(0, merges, lambda _, kept: merge(kept, batch), first))(running)
    added = 100.0 * merges
    assert exact(running.count) == 1e9 + added
    share = added / (1e9 + added)
    # A lone float32 would still be at 100: one merge moves it by 5e-8, its last bit is 8e-6.
    assert exact(running.mean) - 100.0 == pytest.approx(0.5 * share, rel=1e-4)
    assert exact(running.variance) - 1.0 == pytest.approx(0.25 * share * (1 - share), rel=1e-4)


def test_the_order_of_batches_does_not_matter():
    rng = np.random.default_rng(0)
    batches = [Moments(*map(jnp.float32, (n, rng.normal(), rng.normal(), rng.random()))) for n in (3.0, 50.0, 7.0)]
    results = []
    for order in ([0, 1, 2], [2, 0, 1]):
        running = init_moments(())
        for place in order:
            running = merge(running, batches[place])
        results.append((exact(running.count), exact(running.mean), exact(running.variance)))
    np.testing.assert_allclose(*results, rtol=1e-6)


def test_deviation_is_initially_one_and_never_zero():
    assert float(deviation(init_moments(()), 1e-8)) == 1.0
    constant = add(init_moments(()), np.full((3, 4), 5.0, np.float32), np.ones((3, 4), bool))
    assert float(deviation(constant, 1e-8)) == pytest.approx(1e-4)
