"""What an environment returns is taken as it is or refused in words; never cast, broadcast or let through."""

import fractions

import numpy as np
import pytest

from envpool_bridge.envs.io.validation import ObservationForm, describe, flag_error, reward_error
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec

BOX = ArraySpec((2, 3), "float32", source_dtype="float64")
ONE = ArraySpec((1,), "float32")
DICE = DiscreteSpec(6, start=1)


def form_error(spec, observation) -> str | None:
    return ObservationForm(spec).problem(observation)


@pytest.mark.parametrize(
    "reward",
    [0, -3, 1.5, np.float64(-2.5), np.float32(1e38), np.float16(2), np.int64(7), np.uint8(7), fractions.Fraction(1, 3)],
)
def test_a_finite_number_of_any_kind_is_a_reward(reward):
    assert reward_error(reward) is None


@pytest.mark.parametrize(
    ("reward", "got"),
    [
        (True, "bool True"),
        (np.bool_(False), f"bool {np.bool_(False)!r}"),
        ("1.0", "str '1.0'"),
        (None, "NoneType None"),
        (1j, "complex 1j"),
        ([1.0], "list [1.0]"),
        (np.zeros(1), "an array of shape (1,) and dtype float64"),
        (np.array(1.0), "an array of shape () and dtype float64"),
    ],
)
def test_reward_must_be_a_number(reward, got):
    assert reward_error(reward) == f"expected a number, got {got}"


@pytest.mark.parametrize(
    ("reward", "got"),
    [
        (float("nan"), "nan"),
        (float("inf"), "inf"),
        (-float("inf"), "-inf"),
        (np.float32("nan"), "nan"),
        (np.float64("-inf"), "-inf"),
        (1e39, "1e+39"),
        (np.float64(-3.5e38), "-3.5e+38"),
        (10**39, str(10**39)),
    ],
)
def test_reward_beyond_float32_is_rejected(reward, got):
    assert reward_error(reward) == f"expected a finite float32, got {got}"


@pytest.mark.parametrize("flag", [True, False, np.bool_(True), np.bool_(False)])
def test_both_kinds_of_bool_are_flags(flag):
    assert flag_error(flag) is None


@pytest.mark.parametrize(
    ("flag", "got"),
    [
        (0, "int 0"),
        (1, "int 1"),
        (np.int64(1), f"int64 {np.int64(1)!r}"),
        (None, "NoneType None"),
        ("False", "str 'False'"),
        (np.array(True), "an array of shape () and dtype bool"),
        (np.array([True]), "an array of shape (1,) and dtype bool"),
    ],
)
def test_nothing_else_is_a_flag(flag, got):
    assert flag_error(flag) == f"expected a bool, got {got}"


def test_describe_names_the_type_and_truncates():
    assert describe("x" * 58) == f"str '{'x' * 58}'"  # 60 characters with its quotes: whole
    assert describe("x" * 59) == f"str '{'x' * 56}..."
    assert describe(np.zeros((2, 0), np.uint8)) == "an array of shape (2, 0) and dtype uint8"


@pytest.mark.parametrize(
    ("spec", "observation"),
    [
        (BOX, np.zeros((2, 3))),
        (BOX, np.zeros((3, 2)).T),
        (ONE, np.zeros(1, np.float32)),
        (ArraySpec((), "float32"), np.array(0, np.float32)),
        (ArraySpec((), "float32"), np.float32(0)),
        (ArraySpec((), "int64"), np.int64(3)),
        (DICE, 1),
        (DICE, 6),
        (DICE, np.int64(3)),
        (DICE, np.uint8(3)),
        (DICE, np.array(3)),
    ],
)
def test_an_observation_of_the_declared_form_is_taken(spec, observation):
    assert form_error(spec, observation) is None


@pytest.mark.parametrize(
    ("spec", "observation", "problem"),
    [
        (BOX, np.zeros((3, 2)), "expected shape (2, 3), got (3, 2)"),
        (BOX, np.zeros(3), "expected shape (2, 3), got (3,)"),
        (BOX, np.zeros((1, 3)), "expected shape (2, 3), got (1, 3)"),
        (BOX, np.zeros((1, 2, 3)), "expected shape (2, 3), got (1, 2, 3)"),
        (BOX, np.zeros(1), "expected shape (2, 3), got (1,)"),
        (ONE, np.array(0, np.float32), "expected shape (1,), got ()"),
        (ONE, np.zeros(2, np.float32), "expected shape (1,), got (2,)"),
        (BOX, np.zeros((2, 3), np.float32), "expected dtype float64, got float32"),
        (BOX, np.zeros((2, 3), int), "expected dtype float64, got int64"),
        (ONE, np.zeros(1), "expected dtype float32, got float64"),
        (ONE, [0.0], "expected a numpy array of shape (1,) and dtype float32, got list [0.0]"),
        (ONE, None, "expected a numpy array of shape (1,) and dtype float32, got NoneType None"),
        (ONE, 0.0, "expected a numpy array of shape (1,) and dtype float32, got float 0.0"),
        (ArraySpec((), "float32"), 0.0, "expected a numpy array of shape () and dtype float32, got float 0.0"),
        (ArraySpec((), "float32"), np.float64(0), "expected dtype float32, got float64"),
    ],
)
def test_observation_of_another_form_is_rejected(spec, observation, problem):
    assert form_error(spec, observation) == problem


@pytest.mark.parametrize(
    ("observation", "problem"),
    [
        (0, "expected 1 <= value < 7, got 0"),
        (7, "expected 1 <= value < 7, got 7"),
        (-1, "expected 1 <= value < 7, got -1"),
        (np.array(7), "expected 1 <= value < 7, got 7"),
        (2**70, f"expected 1 <= value < 7, got {2**70}"),
        (1.0, "expected an integer, got float 1.0"),
        (np.float32(1), f"expected an integer, got float32 {np.float32(1)!r}"),
        (np.bool_(True), f"expected an integer, got bool {np.bool_(True)!r}"),
        (np.array([1]), "expected an integer, got an array of shape (1,) and dtype int64"),
        (np.array(1.0), "expected an integer, got an array of shape () and dtype float64"),
        (None, "expected an integer, got NoneType None"),
        ("1", "expected an integer, got str '1'"),
    ],
)
def test_a_discrete_observation_is_an_integer_of_its_range(observation, problem):
    assert form_error(DICE, observation) == problem


def test_reward_beyond_all_floats_is_rejected():
    assert "expected a finite float32" in reward_error(10**400)


def test_a_reward_only_float64_can_hold_is_accepted_as_float64():
    assert reward_error(1e39, "float64") is None
    assert reward_error(1e39, "float32") is not None
