"""Scale of observations by declared bounds, against values by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from agents.a2c import A2CConfig, make_a2c
from agents.networks.actor_critic import make_actor_critic
from agents.networks.config import NetworkConfig
from agents.networks.observation_inputs import make_inputs
from agents.networks.observation_scale import (
    image_shape,
    image_values,
    is_image,
    normalized_leaves,
    normalized_spec,
    scaled,
)
from agents.ppo import PPOConfig, make_ppo
from agents.transforms.normalization import NormalizationConfig
from agents.world_models.observations import make_observations
from envpool_bridge.envs.io.spaces import spec_of_spaces
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec

INT32 = np.iinfo(np.int32)
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")


def spec_of(space):
    return spec_of_spaces(space, spaces.Discrete(2), "e", 1)


def box(low, high, dtype):
    return spaces.Box(np.array(low, dtype), np.array(high, dtype), dtype=np.dtype(dtype))


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((4, 84, 84), (84, 84, 4)),  # frames first
        ((84, 80, 3), (84, 80, 3)),
        ((5, 4, 26), (5, 4, 26)),  # a board with its planes last
        ((8, 8, 119), (8, 8, 119)),
        ((4, 84, 80, 3), (84, 80, 12)),  # stacked colors
        ((4, 3, 84, 80), (84, 80, 12)),
    ],
)
def test_channels_and_frames_are_the_last_axis(shape, expected):
    image = np.random.default_rng(0).integers(0, 255, (2, *shape)).astype(np.uint8)
    leaf = ArraySpec(shape, "uint8")
    assert is_image(leaf)
    assert image_shape(leaf) == expected
    got = image_values(leaf, jnp.asarray(image))
    pixels = np.zeros((2, *expected))
    for place, value in np.ndenumerate(image):
        row, *place = place
        frame = place.pop(0) if len(shape) == 4 else 0
        if place and shape[-3] <= 4 and shape[-1] > 16:
            place = [*place[1:], place[0]]
        pixels[row, place[0], place[1], frame * (expected[2] // (shape[0] if len(shape) == 4 else 1)) + place[2]] = (
            value
        )
    np.testing.assert_allclose(got, pixels / 255.0, rtol=1e-6)


@pytest.mark.parametrize("shape", [(4, 10, 12), (4, 10, 12, 3)])
def test_declared_frames_of_small_images_are_channels(shape):
    leaf = ArraySpec(shape, "uint8", frames=4)
    image = np.random.default_rng(0).integers(0, 255, (3, *shape)).astype(np.uint8)
    expected = np.concatenate([image[:, frame].reshape((3, 10, 12, -1)) for frame in range(4)], axis=-1)
    np.testing.assert_allclose(image_values(leaf, jnp.asarray(image)), expected / 255.0, rtol=1e-6)


@pytest.mark.parametrize("shape", [(32, 32, 32, 3), (4, 10, 12, 3), (3, 3), (3, 0, 3), (2, 2, 2, 2, 2)])
def test_other_arrays_are_no_images(shape):
    assert not is_image(ArraySpec(shape, "uint8"))


@pytest.mark.parametrize("shape", [(3, 3, 2), (24, 24, 3), (4, 24, 24, 3)])
@pytest.mark.parametrize(
    ("dtype", "low", "high", "value", "expected"),
    [
        *((dtype, 0, 1, 1, 1.0) for dtype in INTEGERS),
        ("bool", 0, 1, 1, 1.0),
        ("uint8", 0, 255, 51, 0.2),
        ("int8", -1, 1, -1, -1.0),
        ("int32", 0, 10, 5, 0.5),
        ("int16", -5, 10, -5, -0.5),
        ("uint16", 0, 65535, 65535, 1.0),
        ("float32", 0, 255, 51, 0.2),
        ("float64", 0, 1, 0.25, 0.25),
        ("float32", -1, 1, -0.5, -0.5),
        ("float32", -np.inf, np.inf, 7.0, 7.0),
        ("int32", INT32.min, INT32.max, 7, 7.0),
        ("uint8", 10, 20, 10, 0.0),
        ("int8", -20, -10, -20, -1.0),
    ],
)
def test_images_are_scaled_by_bounds_whatever_their_dtype(dtype, low, high, value, expected, shape):
    leaf = spec_of(spaces.Box(low, high, shape, np.dtype(dtype))).observation
    image = jnp.full((2, *shape), value, leaf.dtype)
    got = image_values(leaf, image) if is_image(leaf) else scaled(leaf, image)
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("space", "value", "expected"),
    [
        (box([0, -4, 5], [100, 4, 15], "int64"), [25, -4, 15], [0.25, -1.0, 1.0]),
        (box([0, INT32.min], [4, INT32.max], "int32"), [2, -70000], [0.5, -70000.0]),
        (box([0, 3], [INT32.max, 3], "int32"), [300, 3], [300.0, 3.0]),
        (spaces.Box(0, 255, (2,), np.uint8), [0, 51], [0.0, 0.2]),
        (spaces.Box(-1, 1, (2,), np.int8), [-1, 1], [-1.0, 1.0]),
        (spaces.MultiBinary(2), [0, 1], [0.0, 1.0]),
        (spaces.Box(0.0, 100.0, (2,), np.float32), [3.0, 100.0], [0.03, 1.0]),
        (box([-9.0, -np.inf, -1e7], [9.0, 50.0, 1e7], "float64"), [3.0, 40.0, 5.0], [3.0, 40.0, 5.0]),
        (spaces.Box(0, 1, (0,), np.float32), [], [0.0]),
        (spaces.Box(0, 255, (4, 4, 4, 4), np.uint8), np.full((4, 4, 4, 4), 51), np.full(256, 0.2)),
    ],
)
def test_numbers_of_vectors_are_scaled_by_their_bounds(space, value, expected):
    spec = spec_of(space)
    encoded = make_inputs(spec, "mlp").encode(jnp.asarray([value], spec.observation.dtype))
    np.testing.assert_allclose(encoded, [expected], rtol=1e-6)
    steps = make_inputs(spec, "mlp").encode(jnp.asarray([[value] * 3] * 2, spec.observation.dtype))
    np.testing.assert_allclose(steps, [expected] * 6, rtol=1e-6)
    if np.size(value) and spec.observation.dtype.startswith("int"):
        floats = jnp.asarray([value], jnp.float32)  # as normalization returns them
        np.testing.assert_array_equal(make_inputs(spec, "mlp").encode(floats), floats.reshape(1, -1))


def test_pixels_of_a_world_model_lie_between_0_and_1():
    for low, high, dtype in [
        (0, 255, "float32"),
        (-1, 1, "float32"),
        (0, 1, "int8"),
        (-3, 5, "int32"),
        (5, 9, "uint8"),
    ]:
        spec = spec_of(spaces.Box(low, high, (4, 20, 20, 3), np.dtype(dtype)))
        observations = make_observations(spec)
        assert observations.image_shapes() == ((20, 20, 12),)
        ends = [observations.pixels(jnp.full((2, 4, 20, 20, 3), value, dtype))[0] for value in (low, high)]
        assert 0.0 <= ends[0].min() < ends[1].max() == 1.0
    unbounded = make_observations(spec_of(spaces.Box(-np.inf, np.inf, (20, 20, 3), np.float32)))
    assert not unbounded.images  # no range that the decoder's sigmoid could have


def test_scaling_of_bytes_is_the_same_program_as_a_division():
    leaf, image = ArraySpec((24, 24, 3), "uint8"), jnp.arange(24 * 24 * 3, dtype=jnp.uint8).reshape(1, 24, 24, 3)
    np.testing.assert_array_equal(jax.jit(lambda x: image_values(leaf, x))(image), image.astype(jnp.float32) / 255.0)


def test_a_network_that_scales_twice_is_rejected():
    spec, config = spec_of(box([0, 0], [100, 100], "float32")), NetworkConfig(hidden_sizes=(4,))
    normalized = PPOConfig(normalization=NormalizationConfig(observations=True))
    with pytest.raises(UserError, match=r"^the network scales other observations .*; pass its NetworkConfig, or"):
        make_ppo(normalized, spec, make_actor_critic(config, spec))
    with pytest.raises(UserError, match="scales other observations"):
        make_a2c(A2CConfig(), spec, make_actor_critic(config, spec_of(box([0, 0], [50, 50], "float32"))))
    make_ppo(normalized, spec, make_actor_critic(config, normalized_spec(spec, True)))
    make_ppo(PPOConfig(), spec, make_actor_critic(config, spec))


def test_running_statistics_normalize_numbers_alone():
    numbers = {
        "counts": ArraySpec((3,), "int32", 0, 10_000),
        "ram": ArraySpec((3,), "uint8"),
        "speed": ArraySpec((3,), "float32", -1.0, 1.0),
        "units": ArraySpec((4, 2), "float32"),
        "volume": ArraySpec((3, 3, 3), "float32"),
    }
    others = {
        "action_mask": ArraySpec((2,), "int8", 0, 1),
        "board": ArraySpec((3, 3, 2), "int8", 0, 1),
        "camera": ArraySpec((24, 24, 3), "float32", 0.0, 255.0),
        "flags": ArraySpec((3,), "int8", 0, 1),
        "kind": DiscreteSpec(3),
        "units_mask": ArraySpec((4,), "int32"),
    }
    spec = EnvSpec("e", {**numbers, **others}, DiscreteSpec(2), action_mask=("action_mask",))
    assert {path[0] for path, _ in normalized_leaves(spec)} == set(numbers)
