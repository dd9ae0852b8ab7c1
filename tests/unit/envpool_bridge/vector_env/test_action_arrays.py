"""Actions of a vector environment as arrays: integers that shared memory would change are rejected, all others are kept."""

import numpy as np
import pytest
from gymnasium import spaces

from envpool_bridge.envs.io.spaces import spec_without_conversion
from envpool_bridge.errors import UserError
from envpool_bridge.spec.encoding import restored, store
from envpool_bridge.spec.specs import zeros_of
from envpool_bridge.vector_env.calls import ActionArrays

TINY = spaces.Discrete(3, start=-1, dtype=np.int8)
PAIR = spaces.MultiDiscrete([3, 4], start=[-2, 5])
PIXEL = spaces.Box(0, 255, (1,), np.uint8)
LIMBS = spaces.Dict(arm=PIXEL, leg=spaces.Discrete(2))
WIDE = spaces.Box(-(2**62), 2**62, (1,), np.int64)
UNSIGNED = spaces.Box(0, 2**64 - 1, (), np.uint64)
HIGHEST = 2**31 - 1


def arrays_of(space, actions, count=2):
    return ActionArrays(spec_without_conversion("action", space, "e"), space).convert(actions, count)


@pytest.mark.parametrize(
    ("space", "actions", "says"),
    [
        (spaces.Discrete(3), [1, 2**32 + 1], r"row 1, action: expected an integer from -2147483648 to 2147483647, got 4294967297"),
        (spaces.Discrete(3), np.array([2**64 - 1, 0], np.uint64), "row 0, action: .* got 18446744073709551615"),
        (spaces.Discrete(3), [-(2**63), 0], "row 0, action: .* got -9223372036854775808"),
        (spaces.Discrete(3), [0, 2**31] * 64, "row 1, action: .* got 2147483648"),
        (spaces.Discrete(5, start=-2), [HIGHEST, HIGHEST - 2], "row 0, action: .* to 2147483645, got 2147483647"),
        (TINY, np.array([0, 300], np.int32), "row 1, action: expected an integer from -128 to 127, got 300"),
        (PAIR, [[0, 5], [2**40, 5]], r"row 1, action: .* -2147483650 to 2147483645 at \[0\], got 1099511627776"),
        (PAIR, [[0, 5], [0, 2**40]], r"row 1, action: .* -2147483643 to 2147483652 at \[1\], got"),
        (spaces.MultiBinary(2), [[0, 1], [0, 300]], r"row 1, action: .* -128 to 127 at \[1\], got 300"),
        (PIXEL, [[-1], [300]], r"row 0, action: expected an integer from 0 to 255 at \[0\], got -1"),
        (PIXEL, [[0], [300]], "row 1, action: .* got 300"),
        (PIXEL, [[1.0], [0.7]], "row 1, action: .* got 0.7"),
        (PIXEL, [[np.nan], [0.0]], "row 0, action: .* got nan"),
        (PIXEL, [[0], [2**70]], "expected numbers, got dtype object"),
        (WIDE, [[0.0], [2.0**63]], r"row 1, action: .* got 9.22337"),
        (UNSIGNED, [0, -1], "row 1, action: expected an integer from 0 to 18446744073709551615, got -1"),
        (LIMBS, {"arm": [[1], [256]], "leg": [0, 1]}, r"row 1, action\['arm'\]: .* got 256"),
    ],
)  # fmt: skip
def test_integers_that_would_become_others_are_rejected(space, actions, says):
    count = len(actions) if not isinstance(actions, dict) else 2
    with pytest.raises(UserError, match=says):
        arrays_of(space, actions, count)


@pytest.mark.parametrize(
    ("space", "actions"),
    [
        (spaces.Discrete(3), [7, -1]),  # outside the space: for the environment to judge
        (spaces.Discrete(3), [-(2**31), HIGHEST]),
        (spaces.Discrete(3), np.array([True, False])),
        (spaces.Discrete(3), np.array([2, 0], np.uint64)),
        (spaces.Discrete(5, start=-2), [HIGHEST - 2, -2]),
        (spaces.Discrete(5, start=2**31 - 9), [2**31 - 9, 2**31 - 5]),
        (spaces.Discrete(200_000), [199_999, 128] * 64),
        (TINY, [-1, 127]),
        (PAIR, [[-2, 8], [0, 5]]),
        (spaces.MultiBinary(2), [[0, 1], [1, 1]]),
        (PIXEL, [[255], [0]]),
        (PIXEL, [[255.0], [0.0]]),
        (WIDE, [[-(2**62)], [2**62]]),
        (UNSIGNED, [0, 2**63 - 1]),
        (UNSIGNED, np.array([0, 2**64 - 1], np.uint64)),
        (spaces.Box(-1.0, 1.0, (1,)), [[np.nan], [np.inf]]),
        (spaces.Box(-1.0, 1.0, (1,)), [[1], [0]]),
    ],
)
def test_other_actions_reach_the_environment_unchanged(space, actions):
    spec, count = spec_without_conversion("action", space, "e"), len(actions)
    stored = zeros_of(spec, (count,))
    store(spec, arrays_of(space, actions, count), stored)
    np.testing.assert_array_equal(restored(spec, stored), np.asarray(actions))
