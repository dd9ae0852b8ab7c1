"""Two-hot categories against loops and hand values."""

import jax.numpy as jnp
import numpy as np
import pytest

from agents.ops.two_hot import clamped_fraction, cross_entropy, num_atoms, two_hot, two_hot_mean
from agents.ops.unrolled_targets import UnrolledTargets


@pytest.mark.parametrize("size", [0.0, 0.3, 1.0, 25.0, 999.0, 1e4])
@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_numbers_survive_the_round_trip(size, sign):
    x = sign * size
    probabilities = two_hot(jnp.array(x), limit=300)
    assert probabilities.shape == (num_atoms(300),)
    logits = jnp.log(jnp.maximum(probabilities, 1e-30))
    np.testing.assert_allclose(two_hot_mean(logits), x, rtol=1e-3, atol=1e-3)


def test_probability_is_divided_between_the_two_nearest_atoms():
    # rescale(8.75) = sqrt(9.75) - 1 + 0.00875 = 2.1312...
    position = np.sqrt(9.75) - 1 + 0.00875
    expected = np.zeros(7)
    expected[3 + 2], expected[3 + 3] = 3 - position, position - 2
    np.testing.assert_allclose(two_hot(jnp.array(8.75), limit=3), expected, atol=1e-6)
    np.testing.assert_allclose(two_hot(jnp.array(-8.75), limit=3), expected[::-1], atol=1e-6)


def test_numbers_beyond_the_last_atom_count_as_it():
    np.testing.assert_array_equal(two_hot(jnp.array(1e6), limit=2), [0, 0, 0, 0, 1])
    # sqrt(422.43 + 1) - 1 + 0.42243 = 20: an atom of 20 stands for 422.4. Unknown numbers do not count.
    value, reward = np.array([[422.0, 423.0], [-1e6, 1e6], [0.0, 1.0]]), np.array([[-423.0, 0.0], [5.0, 1e6]])
    known = np.array([[1.0, 1.0], [1.0, 0.0], [1.0, 0.0]])
    targets = UnrolledTargets(*(jnp.asarray(x, jnp.float32) for x in (reward, value, known, known)))
    np.testing.assert_allclose(clamped_fraction(targets, limit=20), 3 / 7, rtol=1e-6)


def test_cross_entropy_is_that_of_the_definition():
    logits, target = np.array([0.5, -1.0, 2.0]), np.array([0.2, 0.5, 0.3])
    log_softmax = logits - np.log(np.exp(logits).sum())
    np.testing.assert_allclose(
        cross_entropy(jnp.array(logits), jnp.array(target)), -(target * log_softmax).sum(), rtol=1e-6
    )
