"""Observations of some rows: written and validated as those of all rows are."""

import dataclasses

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from envpool_bridge.envs.io import validation
from envpool_bridge.envs.io.observation_writer import ObservationWriter
from envpool_bridge.envs.io.output_rules import OutputRules
from envpool_bridge.envs.io.spaces import spec_of_spaces
from envpool_bridge.envs.io.validation import ValueCheck
from envpool_bridge.errors import BadEnvOutputError
from envpool_bridge.shm.layout import PoolShape, make_layout
from envpool_bridge.shm.slots import allocate_slots
from envpool_bridge.spec.tree import leaves, take
from tests.support.generated_spaces import observations

ROW_IDS = (10, 11, 12, 13)
RULES = OutputRules("e", ROW_IDS)
ACTION = spaces.Discrete(2)


def target(spec):
    """Zeros for one observation of each row."""
    (slot,) = allocate_slots(make_layout(spec, PoolShape(1, 1, 1, len(ROW_IDS), 2, 1), {}))
    return take(slot.observation, 0)


@settings(max_examples=50, deadline=None)
@given(observations, st.sets(st.integers(0, 3), min_size=1), st.integers(0, 1000))
def test_write_rows_equals_write_for_these_rows(space, rows, seed):
    space.seed(seed)
    spec = spec_of_spaces(space, ACTION, "e", 1)
    values, writer = [space.sample() for _ in ROW_IDS], ObservationWriter(spec, RULES)
    whole, part, chosen = target(spec), target(spec), sorted(rows)
    writer.write(values, whole, 1, thorough=True)
    writer.write_rows(chosen, [values[row] for row in chosen], part, 1)
    others = [row for row in range(4) if row not in rows]
    for one, all_rows in zip(leaves(part), leaves(whole), strict=True):
        np.testing.assert_array_equal(one[chosen], all_rows[chosen], strict=True)
        assert not one[others].any()


@pytest.mark.parametrize(("start", "number"), [(-5, np.uint8(3)), (-100, np.int8(100)), (-150, np.int8(-128))])
def test_narrow_integers_are_stored_from_zero(start, number):
    spec = spec_of_spaces(spaces.Discrete(220, start=start), ACTION, "e", 1)
    writer, whole, part = ObservationWriter(spec, RULES), target(spec), target(spec)
    writer.write([number] * 4, whole, 1, thorough=True)
    writer.write_rows([1], [number], part, 1)
    assert whole.tolist() == [int(number) - start] * 4
    assert part.tolist() == [0, int(number) - start, 0, 0]


@pytest.mark.parametrize(
    ("space", "bad", "problem"),
    [
        (spaces.Box(-(2**63), 2**63 - 1, (2,), np.int64), np.full(2, 2**35), "values that fit int32"),
        (spaces.Box(0.0, 1.0, (2,), np.float32), np.zeros(3, np.float32), r"shape \(2,\), got \(3,\)"),
        (spaces.Box(0.0, 1.0, (2,), np.float32), np.zeros(2), "dtype float32, got float64"),
        (spaces.Discrete(3), 3, "value < 3"),
        (spaces.Dict(a=spaces.Discrete(3)), {"b": 1}, r"a dict of \['a'\], got a dict of \['b'\]"),
    ],
)
def test_write_rows_names_the_row_of_a_bad_form(space, bad, problem):
    spec = spec_of_spaces(space, ACTION, "e", 1)
    good = np.ones(2, np.int64) if space.dtype == np.int64 and space.shape else space.sample()
    with pytest.raises(BadEnvOutputError, match=f"row 12, step 5: .*observation.*{problem}"):
        ObservationWriter(spec, RULES).write_rows([0, 2], [good, bad], target(spec), 5)


@pytest.mark.parametrize(
    ("space", "bad"),
    [
        (spaces.Box(np.float32([0.0, 5.0]), np.float32([1.0, 6.0])), [0.5, 4.5]),
        (spaces.Box(np.float32([0.0, 5.0]), np.float32([1.0, 6.0])), [5.5, 5.5]),
        (spaces.Box(-np.inf, np.inf, (2,)), [0.5, np.nan]),
    ],
)
def test_verify_rows_names_the_row_of_a_bad_value(space, bad):
    check = ValueCheck(spec_of_spaces(space, ACTION, "e", 1), RULES)
    good = [0.5, 5.5]
    check.verify_rows([1, 3], np.float32([bad, good, bad, good]), 7)
    with pytest.raises(BadEnvOutputError, match="row 13, step 7: .*observation"):
        check.verify_rows([1, 3], np.float32([good, good, good, bad]), 7)


@settings(max_examples=50, deadline=None)
@given(st.data(), st.sampled_from(["float32", "float64", "int32", "uint8"]))
def test_few_values_are_judged_as_many_are(data, dtype):
    spec = spec_of_spaces(spaces.Box(3, 7, (2, 2), dtype), ACTION, "e", 1, keep_64_bits=True)
    chosen = sorted(data.draw(st.sets(st.integers(0, 3), min_size=1)))
    numbers = [2, 3, 5, 7, 8, *([np.nan, np.inf, -np.inf] if dtype.startswith("float") else [])]
    values = np.array([data.draw(st.sampled_from(numbers)) for _ in range(16)], dtype).reshape(4, 2, 2)

    def is_good(few_rows):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(validation, "_FEW_ROWS", few_rows)
            try:
                ValueCheck(spec, RULES).verify_rows(chosen, values, 7)
            except BadEnvOutputError:
                return False
            return True

    expected = (values[chosen] >= 3) & (values[chosen] <= 7)
    assert is_good(few_rows=8) == is_good(few_rows=0) == expected.all()


def test_verify_rows_requires_a_legal_action():
    space = spaces.Dict(action_mask=spaces.MultiBinary(2), seen=spaces.Box(0.0, 1.0, (1,)))
    spec = dataclasses.replace(spec_of_spaces(space, ACTION, "e", 1), action_mask=("action_mask",))
    masks = np.array([[0, 0], [0, 0], [0, 0], [1, 0]], np.int8)
    observation = {"action_mask": masks, "seen": np.zeros((4, 1), np.float32)}
    with pytest.raises(BadEnvOutputError, match="row 10, step 7: .*legal value"):
        ValueCheck(spec, RULES).verify_rows([3, 0], observation, 7)
