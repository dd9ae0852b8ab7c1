"""Actions with several choices or several leaves, against sums written out with numpy and scipy."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats

from agents.networks import distributions
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec, MultiDiscreteSpec

OBSERVATION = ArraySpec((2,), "float32")
SIZES = [((3, 3, 3), (3,)), ((2, 4, 3, 1), (2, 2))]
HYBRID = {
    "arm": (ArraySpec((2,), "float32", -1.0, 1.0), DiscreteSpec(3)),
    "buttons": MultiDiscreteSpec((2,), (2, 3), (0, 0)),
}


def logits_of(sizes, seed=0, rows=5):
    return np.random.default_rng(seed).normal(size=(rows, sum(sizes))).astype(np.float32)


def split(logits, sizes):
    return np.split(logits, np.cumsum(sizes)[:-1], axis=-1)


@pytest.mark.parametrize(("sizes", "shape"), SIZES)
def test_multi_discrete_elements_are_separate_choices(sizes, shape):
    distribution = distributions.multi_categorical(sizes, shape)
    logits = logits_of(sizes)
    probabilities = [scipy.special.softmax(part, axis=-1) for part in split(logits, sizes)]
    assert distribution.num_parameters == sum(sizes)
    total = np.zeros(5)
    for values in itertools.product(*map(range, sizes)):
        action = np.broadcast_to(np.reshape(values, shape), (5, *shape)).astype(np.int32)
        expected = sum(np.log(p[:, value]) for p, value in zip(probabilities, values, strict=True))
        got = distribution.log_prob(jnp.asarray(logits), jnp.asarray(action))
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
        total += np.exp(np.asarray(got, np.float64))
    np.testing.assert_allclose(total, 1.0, rtol=1e-5)
    entropy = sum(scipy.stats.entropy(p, axis=-1) for p in probabilities)
    np.testing.assert_allclose(distribution.entropy(jnp.asarray(logits)), entropy, rtol=1e-5)
    mode = distribution.mode(jnp.asarray(logits))
    assert mode.shape == (5, *shape)
    assert mode.dtype == jnp.int32
    np.testing.assert_array_equal(
        mode.reshape(5, -1), np.stack([part.argmax(-1) for part in split(logits, sizes)], axis=-1)
    )


@pytest.mark.parametrize(("sizes", "shape"), SIZES)
def test_multi_discrete_sample_frequencies_and_independence(sizes, shape):
    logits = np.broadcast_to(logits_of(sizes, rows=1), (20_000, sum(sizes)))
    distribution = distributions.multi_categorical(sizes, shape)
    samples = distribution.sample(jnp.asarray(logits), jax.random.split(jax.random.key(0), 20_000))
    assert samples.shape == (20_000, *shape)
    flat = np.asarray(samples).reshape(20_000, -1)
    probabilities = [scipy.special.softmax(part[0]) for part in split(logits, sizes)]
    for element, probability in enumerate(probabilities):
        frequency = np.bincount(flat[:, element], minlength=sizes[element]) / 20_000
        np.testing.assert_allclose(frequency, probability, atol=0.015)
    both = np.mean((flat[:, 0] == 0) & (flat[:, 1] == 0))
    assert both == pytest.approx(probabilities[0][0] * probabilities[1][0], abs=0.015)


def test_multi_discrete_log_prob_gradients_match_softmax():
    sizes = (2, 4, 3)
    distribution = distributions.multi_categorical(sizes, (3,))
    logits, action = logits_of(sizes, rows=1)[0], np.array([1, 0, 2])
    gradient = jax.grad(lambda x: distribution.log_prob(x, jnp.asarray(action)))(jnp.asarray(logits))
    expected = [
        np.eye(size)[value] - scipy.special.softmax(part)
        for size, value, part in zip(sizes, action, split(logits, sizes), strict=True)
    ]
    np.testing.assert_allclose(gradient, np.concatenate(expected), rtol=1e-4, atol=1e-6)


def test_multi_discrete_sizes_must_match_shape():
    with pytest.raises(ValueError, match="4 elements: got 3"):
        distributions.multi_categorical((2, 2, 2), (2, 2))


def test_joint_sums_leaves_and_keeps_spec_structure():
    spec = EnvSpec("e", OBSERVATION, HYBRID)
    distribution = distributions.distribution_for(spec)
    assert distribution.num_parameters == 2 * 2 + 3 + (2 + 3)
    rng = np.random.default_rng(0)
    parameters = rng.normal(size=(4, 12)).astype(np.float32)
    action = {
        "arm": (rng.normal(size=(4, 2)).astype(np.float32), rng.integers(0, 3, 4).astype(np.int32)),
        "buttons": np.stack([rng.integers(0, 2, 4), rng.integers(0, 3, 4)], axis=-1).astype(np.int32),
    }
    mean, log_std, choice, first, second = np.split(parameters.astype(np.float64), [2, 4, 7, 9], axis=-1)
    log_softmax, rows = scipy.special.log_softmax, np.arange(4)
    expected = scipy.stats.norm(mean, np.exp(log_std)).logpdf(action["arm"][0]).sum(-1)
    expected += log_softmax(choice, axis=-1)[rows, action["arm"][1]]
    expected += log_softmax(first, axis=-1)[rows, action["buttons"][:, 0]]
    expected += log_softmax(second, axis=-1)[rows, action["buttons"][:, 1]]
    np.testing.assert_allclose(distribution.log_prob(jnp.asarray(parameters), action), expected, rtol=1e-4)
    entropy = scipy.stats.norm(mean, np.exp(log_std)).entropy().sum(-1)
    for logits in (choice, first, second):
        entropy += scipy.stats.entropy(scipy.special.softmax(logits, axis=-1), axis=-1)
    np.testing.assert_allclose(distribution.entropy(jnp.asarray(parameters)), entropy, rtol=1e-4)
    mode = distribution.mode(jnp.asarray(parameters))
    assert jax.tree.structure(mode) == jax.tree.structure(action)
    np.testing.assert_allclose(mode["arm"][0], mean, rtol=1e-6)
    np.testing.assert_array_equal(mode["arm"][1], choice.argmax(-1))
    sample = distribution.sample(jnp.asarray(parameters), jax.random.split(jax.random.key(0), 4))
    shapes = jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype.name), sample)
    assert shapes == jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype.name), action)


def test_joint_samples_leaves_and_rows_independently():
    spec = EnvSpec("e", OBSERVATION, {"a": DiscreteSpec(2), "b": DiscreteSpec(2)})
    distribution = distributions.distribution_for(spec)
    keys = jax.random.split(jax.random.key(0), 10_000)
    sample = distribution.sample(jnp.zeros((10_000, 4)), keys)
    assert float(np.mean(sample["a"] == sample["b"])) == pytest.approx(0.5, abs=0.02)
    alone = distribution.sample(jnp.zeros((1, 4)), keys[7:8])
    assert (int(alone["a"][0]), int(alone["b"][0])) == (int(sample["a"][7]), int(sample["b"][7]))


def test_squashing_names_the_leaf_without_bounds():
    spec = EnvSpec("walker", OBSERVATION, {"arm": HYBRID["arm"][0], "leg": (ArraySpec((1,), "float32"),)})
    with pytest.raises(UserError, match=r"walker: squashed actions need finite bounds.*got action\['leg'\]\[0\]"):
        distributions.distribution_for(spec, squash=True)


@pytest.mark.parametrize(
    ("low", "high"), [((-np.inf, -1.0), (np.inf, 1.0)), ((0.0, -1.0), (0.0, 1.0))], ids=["infinite", "constant"]
)
def test_squashing_needs_an_interval_for_each_element(low, high):
    spec = EnvSpec("walker", OBSERVATION, ArraySpec((2,), "float32", low, high))
    with pytest.raises(UserError, match="walker: squashed actions need finite bounds, lower ones below upper ones"):
        distributions.distribution_for(spec, squash=True)


def test_squashed_actions_of_the_widest_bounds_are_finite():
    spec = EnvSpec("walker", OBSERVATION, ArraySpec((1,), "float32", -3.4e38, 3.4e38))
    distribution = distributions.distribution_for(spec, squash=True)
    assert np.isfinite(distribution.mode(jnp.array([[0.5, 0.0]]))).all()
