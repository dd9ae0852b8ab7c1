"""Vectors, images and actions of a world model: shapes, losses by hand, round trips."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.world_models.actions import make_action_vectors
from agents.world_models.autoencoder import Decoder, Encoder
from agents.world_models.observations import Decoded, make_observations, num_halvings
from agents.world_models.rssm import initial_latent
from agents.world_models.sizes import WorldModelConfig
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec, MultiDiscreteSpec

SIZES = WorldModelConfig(deter=16, hidden=8, classes=4, units=8, stoch=4, blocks=2, depth=2).sizes
MIXED = EnvSpec(
    "test",
    {
        "camera": ArraySpec((3, 20, 34), "uint8"),
        "position": ArraySpec((2, 2), "float32"),
        "room": DiscreteSpec(3),
        "slots": MultiDiscreteSpec((2,), (2, 4), (0, 0)),
    },
    DiscreteSpec(5),
)
T, B = 2, 3


def mixed_observation(seed=0):
    random = np.random.default_rng(seed)
    return {
        "camera": random.integers(0, 256, (T, B, 3, 20, 34)).astype(np.uint8),
        "position": 10 * random.normal(size=(T, B, 2, 2)).astype(np.float32),
        "room": random.integers(0, 3, (T, B)).astype(np.int32),
        "slots": random.integers(0, 2, (T, B, 2)).astype(np.int32),
    }


def test_vectors_and_images_are_encoded_and_reconstructed():
    observations, observation = make_observations(MIXED), mixed_observation()
    assert observations.num_numbers == 4 + 3 + 2 + 4
    assert observations.image_shapes() == ((20, 34, 3),)
    encoder, decoder = Encoder(observations, SIZES), Decoder(observations, SIZES)
    encoded = jax.jit(encoder.init)(jax.random.key(0), observation)
    tokens = jax.jit(encoder.apply)(encoded, observation)
    assert tokens.shape[:2] == (T, B)
    one = jax.tree.map(lambda leaf: leaf[1], observation)
    np.testing.assert_allclose(encoder.apply(encoded, one), tokens[1], rtol=1e-4, atol=1e-5)
    latent = initial_latent(SIZES, T * B)
    latent = jax.tree.map(lambda leaf: leaf.reshape((T, B, *leaf.shape[1:])), latent)
    made = jax.jit(decoder.init)(jax.random.key(1), latent)
    decoded = jax.jit(decoder.apply)(made, latent)
    assert decoded.vector.shape == (T, B, 13)
    assert decoded.images[0].shape == (T, B, 20, 34, 3)
    assert observations.reconstruction_loss(decoded, observation).shape == (T, B)


def test_the_reconstruction_loss_is_that_by_hand():
    observations, observation = make_observations(MIXED), mixed_observation()
    random = np.random.default_rng(1)
    vector = random.normal(size=(T, B, 13)).astype(np.float32)
    image = random.random((T, B, 20, 34, 3)).astype(np.float32)
    got = observations.reconstruction_loss(Decoded(jnp.asarray(vector), (jnp.asarray(image),)), observation)
    for t in range(T):
        for b in range(B):
            x, error = observation["position"][t, b].ravel().astype(float), 0.0
            error += ((vector[t, b, :4] - np.sign(x) * np.log(1 + abs(x))) ** 2).sum()
            places = [(4, 3, observation["room"][t, b]), (7, 2, observation["slots"][t, b, 0])]
            for start, size, chosen in [*places, (9, 4, observation["slots"][t, b, 1])]:
                logits = vector[t, b, start : start + size].astype(float)
                error -= logits[chosen] - np.log(np.exp(logits).sum())
            pixels = np.moveaxis(observation["camera"][t, b], 0, -1) / 255.0
            error += ((image[t, b] - pixels) ** 2).sum()
            np.testing.assert_allclose(got[t, b], error, rtol=1e-4)


@pytest.mark.parametrize(
    ("leaf", "shape"),
    [
        (ArraySpec((84, 84), "uint8"), (84, 84, 1)),
        (ArraySpec((4, 84, 84), "uint8"), (84, 84, 4)),
        (ArraySpec((64, 64, 3), "uint8"), (64, 64, 3)),
        (ArraySpec((7, 7, 3), "uint8"), None),
        (ArraySpec((100, 20), "float32"), None),
    ],
)
def test_arrays_of_enough_pixels_are_images(leaf, shape):
    observations = make_observations(EnvSpec("test", leaf, DiscreteSpec(2)))
    assert observations.image_shapes() == (() if shape is None else (shape,))


def test_images_from_64_pixels_on_are_halved_four_times():
    assert [num_halvings(side, side) for side in (16, 20, 32, 64, 84, 256)] == [2, 2, 3, 4, 4, 4]


DISCRETE_TREE = {"move": MultiDiscreteSpec((2,), (3, 2), (0, 0)), "jump": DiscreteSpec(2)}
BOX = ArraySpec((2,), "float32", -2.0, 4.0)


def test_discrete_actions_round_trip_as_one_hot_vectors():
    vectors = make_action_vectors(EnvSpec("test", ArraySpec((1,), "float32"), DISCRETE_TREE))
    random = np.random.default_rng(0)
    action = {"move": random.integers(0, 2, (T, B, 2)).astype(np.int32), "jump": random.integers(0, 2, (T, B))}
    vector = vectors.encode(action)
    assert vector.shape == (T, B, vectors.size) == (T, B, 7)
    np.testing.assert_array_equal(vector.sum(-1), 3.0)
    jax.tree.map(np.testing.assert_array_equal, vectors.decode(vector), action)


def test_a_categorical_policy_samples_its_probabilities():
    vectors = make_action_vectors(EnvSpec("test", ArraySpec((1,), "float32"), DiscreteSpec(3)))
    outputs = jnp.array([2.0, 0.0, -50.0])
    soft = np.exp([2.0, 0.0, -50.0]) / np.exp([2.0, 0.0, -50.0]).sum()
    probs = 0.99 * soft + 0.01 / 3
    np.testing.assert_allclose(np.exp(vectors.log_prob(outputs, jnp.eye(3))), probs, rtol=1e-4)
    np.testing.assert_allclose(vectors.entropy(outputs), -(probs * np.log(probs)).sum(), rtol=1e-4)
    samples = vectors.sample(outputs, vectors.noise(jax.random.key(0), (40_000,)))
    np.testing.assert_allclose(samples.mean(0), probs, atol=0.01)
    assert vectors.mode(outputs).tolist() == [1.0, 0.0, 0.0]


def test_a_continuous_policy_is_a_gaussian_in_scaled_units():
    vectors = make_action_vectors(EnvSpec("test", ArraySpec((1,), "float32"), BOX))
    outputs = jnp.array([0.5, -3.0, -20.0, 20.0])
    samples = np.asarray(vectors.sample(outputs, vectors.noise(jax.random.key(0), (40_000,))))
    mean, std = np.tanh([0.5, -3.0]), np.array([0.1, 1.0])
    np.testing.assert_allclose(samples.mean(0), mean, atol=0.02)
    np.testing.assert_allclose(samples.std(0), std, rtol=0.02)
    x = np.array([0.3, 0.7])
    density = np.exp(-0.5 * ((x - mean) / std) ** 2) / (std * np.sqrt(2 * np.pi))
    np.testing.assert_allclose(vectors.log_prob(outputs, jnp.asarray(x)), np.log(density).sum(), rtol=1e-4)
    np.testing.assert_allclose(vectors.entropy(outputs), (0.5 * np.log(2 * np.pi * np.e * std**2)).sum(), rtol=1e-4)
    np.testing.assert_allclose(vectors.decode(jnp.array([0.5, 3.0])), [2.5, 4.0], rtol=1e-5)
    np.testing.assert_allclose(vectors.encode(jnp.array([2.5, 4.0])), [0.5, 1.0], rtol=1e-5)


@pytest.mark.parametrize(
    ("spec", "match"),
    [
        (EnvSpec("t", {"m": ArraySpec((2,), "int8"), "x": BOX}, DiscreteSpec(2), action_mask=("m",)), "no action mask"),
        (EnvSpec("t", BOX, {"a": BOX, "b": DiscreteSpec(2)}), "expected continuous actions"),
        (EnvSpec("t", BOX, ArraySpec((1,), "float32")), "expected finite bounds"),
    ],
)
def test_actions_that_do_not_fit_are_rejected(spec, match):
    with pytest.raises(UserError, match=match):
        make_action_vectors(spec)
