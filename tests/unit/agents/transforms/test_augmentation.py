"""Random shifts of images, against numpy's padding and slicing."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.api import Sample, Trajectory
from agents.transforms.augmentation import random_shift
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec

PADDING = 3


def spec_of(observation):
    return EnvSpec("Images-v0", observation, DiscreteSpec(2))


def sample_of(observation, steps, rows):
    false = np.zeros((steps, rows), bool)
    trajectory = Trajectory(
        observation=observation,
        is_first=np.zeros((steps + 1, rows), bool),
        action=np.zeros((steps, rows), np.int32),
        reward=np.ones((steps, rows), np.float32),
        terminated=false,
        truncated=false,
        valid=~false,
        policy_version=np.zeros((steps, rows), np.int32),
        extras={},
    )
    return Sample(trajectory, np.full(rows, 0.5, np.float32), np.int32(2))


def shifted_by_numpy(images, height, dy, dx):
    """`images` padded by repeating edges along axes `height` and the next, and cut out again at an offset."""
    widths = [(PADDING, PADDING) if axis in (height, height + 1) else (0, 0) for axis in range(images.ndim)]
    padded = np.pad(images, widths, mode="edge")
    place = [slice(None)] * images.ndim
    for axis, offset in ((height, dy), (height + 1, dx)):
        place[axis] = slice(PADDING + offset, PADDING + offset + images.shape[axis])
    return padded[tuple(place)]


def shift_found(image, got, height):
    """The one (dy, dx) that explains `got`."""
    offsets = range(-PADDING, PADDING + 1)
    found = [
        (dy, dx) for dy in offsets for dx in offsets if np.array_equal(shifted_by_numpy(image, height, dy, dx), got)
    ]
    assert len(found) == 1
    return found[0]


CASES = {
    "colours": (ArraySpec((20, 18, 3), "uint8"), (20, 18, 3), 0),
    "stacks": (ArraySpec((4, 19, 21), "uint8", frames=4), (4, 19, 21), 1),
    "frames": (ArraySpec((4, 19, 21), "uint8", frames=4), (19, 21), 0),
}


@pytest.mark.parametrize("case", CASES)
def test_each_row_is_shifted_by_whole_pixels_with_its_edges_repeated(case):
    leaf, shape, height = CASES[case]
    steps, rows = 2, 12
    images = np.random.default_rng(0).integers(0, 256, (steps + 1, rows, *shape), np.uint8)
    shift = jax.jit(random_shift(spec_of(leaf), PADDING))
    got = shift((), sample_of(images, steps, rows), jax.random.key(1)).trajectory.observation
    assert (got.shape, got.dtype) == (images.shape, np.uint8)
    found = [shift_found(images[:, row], np.asarray(got[:, row]), height + 1) for row in range(rows)]
    assert len(set(found)) > rows // 2


def test_all_shifts_are_equally_frequent():
    steps, rows = 1, 4900
    ramp = np.broadcast_to(np.arange(20)[:, None] * 20 + np.arange(20), (steps + 1, rows, 20, 20))[..., None]
    shift = jax.jit(random_shift(spec_of(ArraySpec((20, 20, 1), "int32")), PADDING))
    sample = shift((), sample_of(jnp.asarray(ramp, jnp.int32), steps, rows), jax.random.key(0))
    centre = np.asarray(sample.trajectory.observation)[0, :, 10, 10, 0]
    _, counts = np.unique(centre, return_counts=True)
    expected = rows / (2 * PADDING + 1) ** 2
    assert len(counts) == (2 * PADDING + 1) ** 2
    assert ((counts - expected) ** 2 / expected).sum() < 93.2  # chi-square with 48 degrees, p = 1e-4


def test_steps_may_be_shifted_one_by_one():
    leaf, shape, height = CASES["stacks"]
    images = np.random.default_rng(0).integers(0, 256, (5, 3, *shape), np.uint8)
    shift = jax.jit(random_shift(spec_of(leaf), PADDING, each_step=True))
    got = np.asarray(shift((), sample_of(images, 4, 3), jax.random.key(1)).trajectory.observation)
    found = [[shift_found(images[t, row], got[t, row], height) for t in range(5)] for row in range(3)]
    assert all(len(set(of_row)) > 2 for of_row in found)


def test_single_frames_cannot_be_shifted_step_by_step():
    leaf, shape, _ = CASES["frames"]
    sample = sample_of(np.zeros((3, 2, *shape), np.uint8), 2, 2)
    with pytest.raises(UserError, match="single frames, each of which belongs to several stacks"):
        random_shift(spec_of(leaf), each_step=True)((), sample, jax.random.key(0))


def test_only_images_change():
    spec = spec_of({"camera": ArraySpec((20, 18, 3), "uint8"), "speed": ArraySpec((5,), "float32")})
    random_ = np.random.default_rng(0)
    images = random_.integers(0, 256, (3, 2, 20, 18, 3), np.uint8)
    speed = random_.normal(size=(3, 2, 5)).astype(np.float32)
    sample = sample_of({"camera": images, "speed": speed}, 2, 2)
    got = jax.jit(partial(random_shift(spec, PADDING), ()))(sample, jax.random.key(2))
    assert not np.array_equal(got.trajectory.observation["camera"], images)
    np.testing.assert_array_equal(got.trajectory.observation["speed"], speed)
    for field in ("is_first", "action", "reward", "terminated", "truncated", "valid", "policy_version"):
        np.testing.assert_array_equal(getattr(got.trajectory, field), getattr(sample.trajectory, field))
    np.testing.assert_array_equal(got.probability, sample.probability)


def test_what_has_no_image_or_no_shift_is_refused():
    with pytest.raises(UserError, match=r"Images-v0: a random shift needs an image of rank 3: got shapes \(4,\)"):
        random_shift(spec_of(ArraySpec((4,), "float32")))
    with pytest.raises(UserError, match="at least 1 pixel, or nothing is shifted: got 0"):
        random_shift(spec_of(ArraySpec((20, 18, 3), "uint8")), padding=0)
