"""Gymnasium spaces as specs: what is stored, and what is refused by name."""

import numpy as np
import pytest
from gymnasium import spaces

from envpool_bridge.envs.io.spaces import spec_of_spaces
from envpool_bridge.errors import UnsupportedSpaceError
from envpool_bridge.spec.padding import padded_spec
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, MultiDiscreteSpec

INT64, UINT64, INT32 = np.iinfo(np.int64), np.iinfo(np.uint64), np.iinfo(np.int32)
TWO = spaces.Discrete(2)
PIXELS = spaces.Box(0, 255, (4, 4), np.uint8)


def observed(space) -> ArraySpec | DiscreteSpec:
    return spec_of_spaces(space, TWO, "e", 1).observation


def refusal(observation=TWO, action=TWO) -> str:
    with pytest.raises(UnsupportedSpaceError) as refused:
        spec_of_spaces(observation, action, "e", 1)
    return str(refused.value)


def box(low, high, dtype) -> spaces.Box:
    return spaces.Box(np.array(low, dtype), np.array(high, dtype), dtype=dtype)


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (PIXELS, ArraySpec((4, 4), "uint8")),
        (spaces.Box(-1.0, 1.0, (2,), np.float32), ArraySpec((2,), "float32", -1.0, 1.0)),
        (spaces.Box(-np.inf, np.inf, (2,), np.float64), ArraySpec((2,), "float32", None, None, "float64")),
        (box([0, -5], [1, 7], np.int64), ArraySpec((2,), "int32", (0, -5), (1, 7), "int64")),
        (box([0, -5], [9, 9], np.int32), ArraySpec((2,), "int32", (0, -5), 9)),
        (spaces.Box(0, 1, (3,), np.bool_), ArraySpec((3,), "bool")),
        (spaces.Discrete(5, start=-2), DiscreteSpec(5, -2)),
    ],
)
def test_a_space_is_stored_with_its_shape_dtype_and_bounds(space, expected):
    assert observed(space) == expected


def test_composites_keep_their_structure_and_their_names():
    space = spaces.Dict({"image": PIXELS, "arm": spaces.Tuple((TWO, spaces.MultiBinary(3)))})
    assert observed(space) == {
        "image": ArraySpec((4, 4), "uint8"),
        "arm": (DiscreteSpec(2), ArraySpec((3,), "int8", 0, 1)),
    }
    action = spaces.Dict({"aim": spaces.Box(-1.0, 1.0, (2,)), "keys": spaces.MultiBinary(2), "move": TWO})
    assert spec_of_spaces(TWO, action, "e", 1).action == {
        "aim": ArraySpec((2,), "float32", -1.0, 1.0),
        "keys": MultiDiscreteSpec((2,), (2, 2), (0, 0), "int8"),
        "move": DiscreteSpec(2),
    }
    grid = spaces.MultiDiscrete(np.array([[2, 3], [4, 5]]), start=np.array([[0, -1], [7, 0]]))
    assert observed(grid) == MultiDiscreteSpec((2, 2), (2, 3, 4, 5), (0, -1, 7, 0))


@pytest.mark.parametrize("bad", [spaces.Text(5), spaces.Sequence(TWO), spaces.OneOf((TWO, TWO)), spaces.Dict({})])
def test_a_leaf_of_an_unsupported_kind_is_named(bad):
    nested = spaces.Dict({"arm": spaces.Tuple((TWO, bad)), "speed": TWO})
    assert refusal(nested).startswith(f"e: observation['arm'][1] is {bad}")
    assert refusal(bad).startswith(f"e: observation is {bad}")
    assert refusal(action=nested).startswith(f"e: action['arm'][1] is {bad}")
    assert "which is not supported: expected Box, Discrete" in refusal(bad)
    assert len(refusal(spaces.Text(5, charset="".join(map(chr, range(10_000)))))) < 700


def test_dict_space_rejects_keys_that_are_not_strings():
    assert "with keys [3] that are not strings" in refusal(spaces.Dict({3: TWO}))


@pytest.mark.parametrize(
    ("space", "low", "high"),
    [
        (PIXELS, 0, 255),
        (spaces.Box(0, 1, (3,), np.uint8), 0, 1),
        (spaces.Box(-128, 1, (3,), np.int8), -128, 1),
        (spaces.Box(0, 65535, (3,), np.uint16), 0, 65535),
        (spaces.Box(0, 1, (3,), np.bool_), 0, 1),
        (spaces.MultiBinary(3), 0, 1),
        (spaces.Box(0, 7, (3,), np.uint64), 0, 7),
        (spaces.Box(0, INT64.max, (3,), np.int64), 0, np.inf),
        (box([INT64.min, -5], [1, INT64.max], np.int64), [-np.inf, -5], [1, np.inf]),
        (spaces.Box(INT32.min, INT32.max, (3,), np.int32), -np.inf, np.inf),
        (box([-np.inf, -1], [2, np.finfo(np.float32).max], np.float32), [-np.inf, -1], [2, np.inf]),
        (spaces.Box(0.0, 255.0, (3,), np.float64), 0, 255),
        (spaces.Box(-1.0, 1.0, (0,), np.float32), -1, 1),
    ],
)
def test_the_limits_of_values_do_not_depend_on_the_dtype(space, low, high):
    leaf = observed(spaces.Dict({"a": space}))["a"]
    lows, highs = (np.broadcast_to(limit, space.shape) for limit in leaf.limits())
    np.testing.assert_array_equal(lows, np.broadcast_to(low, space.shape))
    np.testing.assert_array_equal(highs, np.broadcast_to(high, space.shape))


def test_shared_rows_have_the_limits_of_their_dtypes():
    bits, larger = (observed(spaces.Box(0, 1, (size,), np.uint8)) for size in (2, 3))
    assert padded_spec("observation", ["a", "b"], [bits, larger]) == ArraySpec((3,), "uint8", 0, 1)
    wide = observed(spaces.Box(1, INT64.max, (2,), np.int64))
    assert padded_spec("observation", ["a", "b"], [wide, observed(spaces.Box(1, 5, (3,), np.int64))]).low is None


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
def test_a_mask_may_have_any_integer_dtype(dtype):
    masked = spaces.Dict({"action_mask": spaces.Box(0, 1, (3,), np.dtype(dtype)), "observation": PIXELS})
    assert spec_of_spaces(masked, spaces.Discrete(3), "e", 1).action_mask == ("action_mask",)


def test_mask_leaf_is_detected_and_must_fit_the_action():
    masked = spaces.Dict({"action_mask": spaces.MultiBinary(3), "observation": PIXELS})
    assert spec_of_spaces(masked, spaces.Discrete(3), "e", 1).action_mask == ("action_mask",)
    boxed = spaces.Dict({"action_mask": spaces.Box(0, 1, (5,), np.int8), "observation": PIXELS})
    assert spec_of_spaces(boxed, spaces.MultiDiscrete([2, 3]), "e", 1).action_mask == ("action_mask",)
    assert spec_of_spaces(spaces.Dict({"mask": TWO}), TWO, "e", 1).action_mask == ()
    text = refusal(masked, spaces.Discrete(4))
    assert "expected observation['action_mask'] to be a MultiBinary(4)" in text
    assert "needs a Discrete or MultiDiscrete action to mask" in refusal(masked, spaces.Box(-1.0, 1.0, (3,)))
    wide = spaces.Dict({"action_mask": spaces.Box(0, 2, (3,), np.int8)})
    assert "expected observation['action_mask'] to be a MultiBinary(3)" in refusal(wide, spaces.Discrete(3))


def test_an_integer_box_is_no_action():
    integers = spaces.Box(0, 2**40, (2,), np.int64)
    assert refusal(action=integers).startswith(f"e: action is {integers}, which is not supported")


def test_space_error_is_one_line_for_long_bounds():
    low = np.arange(60, dtype=np.float32)
    long = spaces.Box(low, low + 1)
    assert "\n" in str(long)
    assert "\n" not in refusal(spaces.Dict({"a": spaces.Sequence(long)}))


@pytest.mark.parametrize(
    ("space", "problem"),
    [
        (box([0, 0], [1, 2**31], np.int64), "whose high 2147483648 does not fit the 32 bits (int32)"),
        (box([0, -(2**31) - 1], [1, 1], np.int64), "whose low -2147483649 does not fit the 32 bits (int32)"),
        (box([0, 0], [INT64.max, 2**40], np.int64), "whose high 1099511627776 does not fit the 32 bits (int32)"),
        (box([0, 0], [1, 2**32], np.uint64), "whose high 4294967296 does not fit the 32 bits (uint32)"),
        (box([2**33, 0], [UINT64.max, 1], np.uint64), "whose low 8589934592 does not fit the 32 bits (uint32)"),
        (spaces.Discrete(2**31), "whose n 2147483648 does not fit the 32 bits (int32)"),
        (spaces.Discrete(3, start=2**31 - 2), "whose start + n 2147483649 does not fit the 32 bits (int32)"),
        (spaces.Discrete(3, start=-(2**31) - 1), "whose start -2147483649 does not fit the 32 bits (int32)"),
    ],
)
def test_integers_over_32_bits_are_rejected(space, problem):
    text = refusal(space)
    shown = " ".join(str(space).split())
    assert text.startswith(f"e: observation is {shown}, {problem}")
    assert "declare narrower bounds" in text
    if isinstance(space, spaces.Discrete):
        assert refusal(action=space).startswith(f"e: action is {space}, {problem}")


@pytest.mark.parametrize(
    ("space", "low", "high"),
    [
        (spaces.Box(-np.inf, np.inf, (2,), np.int64), None, None),
        (box([INT64.min] * 2, [INT64.max] * 2, np.int64), None, None),
        (spaces.Box(0, np.inf, (2,), np.int64), 0, None),
        (box([0] * 2, [UINT64.max] * 2, np.uint64), None, None),
        (box([0, 3], [UINT64.max, 7], np.uint64), (0, 3), (2**32 - 1, 7)),
        (box([INT64.min, -5], [5, INT64.max], np.int64), (INT32.min, -5), (5, INT32.max)),
        (box([INT32.min] * 2, [INT32.max] * 2, np.int64), INT32.min, INT32.max),
        (box([5, 5], [2**32 - 1] * 2, np.uint32), 5, None),
    ],
)
def test_bounds_at_the_limits_of_the_dtype_mean_unbounded(space, low, high):
    spec = observed(space)
    assert isinstance(spec, ArraySpec)
    assert (spec.low, spec.high) == (low, high)
    assert spec.source_dtype == space.dtype


def test_the_largest_discrete_that_fits_is_taken():
    assert observed(spaces.Discrete(2**31 - 1)) == DiscreteSpec(2**31 - 1)
    assert observed(spaces.Discrete(3, start=-(2**31))) == DiscreteSpec(3, -(2**31))


def test_action_bounds_keep_their_order_when_rounded():
    below, above = np.nextafter(np.float32(0.1), np.float32(0)), np.float32(0.1)
    assert float(below) < 0.1 < float(above)
    low, high = np.array([0.1, 0.1, -0.1]), np.array([0.1, 0.1 + 1e-12, 0.3])
    spec = spec_of_spaces(TWO, spaces.Box(low, high, dtype=np.float64), "e", 1).action
    assert isinstance(spec, ArraySpec)
    assert all(a <= b for a, b in zip(spec.low, spec.high, strict=True))
    np.testing.assert_array_equal(np.float32(spec.low), [above, above, -below])
    assert np.float32(spec.high)[:2].tolist() == [above, above]
    assert spec.high[2] <= 0.3
