"""Actions one by one and together: the same values, within the space's bounds, in its own dtypes; against numpy's clip."""

import numpy as np
import pytest
from gymnasium import spaces

from envpool_bridge.envs.io.action_reader import ActionReader
from envpool_bridge.envs.io.spaces import spec_of_spaces

INFINITE = np.inf
OBSERVATION = spaces.Box(0.0, 1.0, (1,))
GIVEN = np.asarray([[-5.0, -5.0, 0.25], [5.0, 5.0, -0.25]], np.float32)


def reader_of(space, clip=True):
    return ActionReader(spec_of_spaces(OBSERVATION, space, "e", 1).action, clip)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("low", "high"),
    [
        ((-1.0, -2.0, -3.0), (1.0, 2.0, 3.0)),
        ((-1.0, -2.0, -3.0), (INFINITE,) * 3),
        ((-INFINITE,) * 3, (1.0, 2.0, 3.0)),
        ((-1.0, -INFINITE, -3.0), (INFINITE, 2.0, 3.0)),
        ((-INFINITE,) * 3, (INFINITE,) * 3),
    ],
)
def test_numbers_are_clipped_on_the_sides_that_have_bounds(low, high, dtype):
    space = spaces.Box(np.asarray(low, dtype), np.asarray(high, dtype), dtype=dtype)
    expected = np.clip(GIVEN.astype(dtype), low, high).astype(dtype)
    together = reader_of(space).read_together(GIVEN)
    assert together.dtype == dtype
    np.testing.assert_array_equal(together, expected)
    np.testing.assert_array_equal(reader_of(space).read(GIVEN), expected)
    np.testing.assert_array_equal(reader_of(space, clip=False).read_together(GIVEN), GIVEN)


def test_clipped_actions_of_64_bits_lie_in_their_space():
    bounds = np.random.default_rng(0).uniform(0.01, 100.0, 200)  # between numbers of 32 bits
    space = spaces.Box(-bounds, bounds, dtype=np.float64)
    given = np.stack([bounds * 2, -bounds * 2, bounds, -bounds]).astype(np.float32)
    actions = reader_of(space).read(given)
    assert all(space.contains(action) for action in actions)
    np.testing.assert_allclose(actions, [bounds, -bounds, bounds, -bounds], rtol=1e-6)


def test_bounds_beyond_32_bits_clip_nothing():
    space = spaces.Box(-1e300, 1e300, (3,), np.float64)
    np.testing.assert_array_equal(reader_of(space).read(GIVEN), GIVEN)


def test_action_reader_does_not_change_stored_actions():
    given = GIVEN.copy()
    reader_of(spaces.Box(-1.0, 1.0, (3,))).read_together(given)[...] = 7.0
    np.testing.assert_array_equal(given, GIVEN)


def test_action_reader_keeps_the_structure_of_mixed_actions():
    space = spaces.Dict({"button": spaces.Discrete(3, start=5), "force": spaces.Box(-1.0, 1.0, (3,))})
    reader, stored = reader_of(space), {"button": np.asarray([2, 0], np.int32), "force": GIVEN}
    together = reader.read_together(stored)
    np.testing.assert_array_equal(together["button"], [7, 5])
    np.testing.assert_array_equal(together["force"], [[-1.0, -1.0, 0.25], [1.0, 1.0, -0.25]])
    for row, action in enumerate(reader.read(stored)):
        assert space.contains(action)
        assert action["button"] == together["button"][row]
        np.testing.assert_array_equal(action["force"], together["force"][row])


def test_a_discrete_of_billions_needs_no_table_of_its_values():
    space = spaces.Discrete(2_000_000_000, start=-5, dtype=np.int32)
    actions = reader_of(space).read(np.asarray([0, 4095, 4096, 1_999_999_999], np.int32))
    assert actions == [-5, 4090, 4091, 1_999_999_994]
    assert {type(action) for action in actions} == {np.int32}
