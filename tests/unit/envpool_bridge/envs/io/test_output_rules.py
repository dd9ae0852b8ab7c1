"""Output that is not as declared: strict rows reject it with the way out, lenient rows repair and count it."""

import logging

import numpy as np
import pytest
from gymnasium import Env, spaces

from envpool_bridge.envs.gymnasium_env import GymnasiumRows, GymnasiumSource
from envpool_bridge.envs.io import output_rules
from envpool_bridge.envs.protocol import EpisodeReset, first_rows, step_rows
from envpool_bridge.errors import BadEnvOutputError
from envpool_bridge.shm.layout import PoolShape, make_layout
from envpool_bridge.shm.slots import allocate_slots
from envpool_bridge.spec.tree import items, take

BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)
GOOD = np.float32([0.5, 0.25])
PAIR = spaces.Tuple((BOX, spaces.Discrete(3)))
FRACTION = np.float64(0.1)  # rounded to float32


class Foreign:
    """Array of another library."""

    def __init__(self, values):
        self.values = values

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.values, dtype)


class OnlyDlpack:
    def __init__(self, values):
        self.values = values

    def __dlpack__(self, **arguments):
        return self.values.__dlpack__(**arguments)

    def __dlpack_device__(self):
        return self.values.__dlpack_device__()


class Says(Env):
    action_space = spaces.Discrete(2)

    def __init__(self, space, **says):
        self.observation_space, self.says = space, says

    def reset(self, *, seed=None, options=None):
        self.step_result = (
            self.says.get("observation"),
            *(
                self.says.get(name, good)
                for name, good in (("reward", 0.5), ("terminated", False), ("truncated", False))
            ),
        )
        return self.step_result[0], {}

    def step(self, action):
        return *self.step_result, {}


def played(space, strict, **says):
    """Returns (newest slot row 0, rows) after a reset and one step of the environment."""
    says = {"observation": GOOD, **says}
    env = Says(space, **says)
    spec = GymnasiumSource(lambda: env).spec()
    rows = GymnasiumRows([env], spec, [7], 0, keep_infos=False, strict=strict)
    (slot,) = allocate_slots(make_layout(spec, PoolShape(1, 1, 1, 1, 2, 1), {}))
    rows.reset(EpisodeReset((0,), (None,)), first_rows(slot))
    out = step_rows(slot, 0)
    out.prepare()
    rows.step(np.zeros(1, np.int64), out)
    rows.verify(take(out.observation, None), out.reward[None])
    return out, rows


def same(stored, expected):
    return all(np.array_equal(value[0], dict(items(expected))[path]) for path, value in items(stored))


@pytest.mark.parametrize(
    ("space", "value", "stored"),
    [
        (BOX, GOOD.astype(np.float64) + FRACTION, np.float32(GOOD.astype(np.float64) + FRACTION)),
        (BOX, np.array([1, 0]), np.float32([1, 0])),
        (BOX, [0.5, 0.25], GOOD),
        (BOX, (0.5, 0.25), GOOD),
        (BOX, Foreign([0.5, 0.25]), GOOD),
        (BOX, np.float32([1.5, -3.0]), np.float32([1.5, -3.0])),
        (spaces.Box(0, 255, (2,), np.uint8), np.array([7, 255]), np.uint8([7, 255])),
        (spaces.Box(0, 255, (2,), np.uint8), np.array([7.0, 8.0]), np.uint8([7, 8])),
        (spaces.MultiDiscrete([4, 4]), [1, 2], np.int32([1, 2])),
        (spaces.MultiBinary(2), np.array([True, False]), np.int8([1, 0])),
        (spaces.Discrete(4, start=2), 3.0, np.int32(1)),
        (spaces.Discrete(4), True, np.int32(1)),
        (spaces.Dict(a=BOX), {"a": GOOD, "b": 1}, {"a": GOOD}),
        (PAIR, [GOOD, 1], (GOOD, np.int32(1))),
    ],
)
def test_repairable_observations_are_stored_and_counted(space, value, stored):
    with pytest.raises(BadEnvOutputError, match=r"row 7, step 0: bad observation.*strict=False \(--env.no-strict\)"):
        played(space, True, observation=value)
    out, rows = played(space, False, observation=value)
    assert same(out.observation, stored)
    assert rows._rules.repaired == [2]  # the reset's and the step's


@pytest.mark.parametrize(
    ("space", "value"),
    [
        (BOX, np.float32([[0.5], [0.25]])),
        (BOX, [0.5]),
        (BOX, [[0.5], [0.5, 0.25]]),
        (BOX, "ab"),
        (BOX, None),
        (BOX, np.float32([0.5, np.nan])),
        (BOX, np.float32([np.inf, 2.0])),
        (spaces.Box(0, 255, (2,), np.uint8), np.array([7, 256])),
        (spaces.Box(0, 255, (2,), np.uint8), np.array([7.5, 8.0])),
        (spaces.Discrete(4), 4.0),
        (spaces.Discrete(4), 0.5),
        (spaces.MultiDiscrete([4, 4]), [1, 4]),
        (spaces.Dict(a=BOX), {"b": GOOD}),
        (PAIR, [GOOD]),
    ],
)
def test_other_observations_are_rejected_in_any_case(space, value):
    for strict in (True, False):
        with pytest.raises(BadEnvOutputError, match="row 7, step 0: bad observation.*in its spaces$"):
            played(space, strict, observation=value)


@pytest.mark.parametrize(
    ("field", "value", "stored"),
    [
        ("reward", True, 1.0),
        ("reward", np.array([0.25]), 0.25),
        ("terminated", 1, True),
        ("terminated", None, False),
        ("truncated", np.array([True]), True),
        ("truncated", 0, False),
    ],
)
def test_repairable_results_are_stored_and_counted(field, value, stored):
    with pytest.raises(BadEnvOutputError, match=f"row 7, step 1: bad {field}.*strict=False"):
        played(BOX, True, **{field: value})
    out, rows = played(BOX, False, **{field: value})
    assert getattr(out, field)[0] == stored
    assert rows._rules.repaired == [1]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("reward", None),
        ("reward", np.nan),
        ("reward", [1.0, 2.0]),
        ("reward", 10**400),
        ("terminated", 2),
        ("truncated", "no"),
    ],
)
def test_other_results_are_rejected_in_any_case(field, value):
    for strict in (True, False):
        with pytest.raises(BadEnvOutputError, match=f"row 7, step 1: bad {field}"):
            played(BOX, strict, **{field: value})


@pytest.mark.parametrize(
    "says",
    [
        {"observation": Foreign(GOOD)},
        {"observation": OnlyDlpack(GOOD)},
        {"reward": Foreign(np.float32(0.5))},
        {"reward": np.array(0.5)},
        {"terminated": Foreign(np.bool_(False)), "truncated": np.array(False)},
    ],
)
def test_equal_values_in_foreign_arrays_need_no_repair(says):
    out, rows = played(BOX, True, **says)
    assert same(out.observation, GOOD)
    assert (out.reward[0], out.terminated[0], out.truncated[0]) == (0.5, False, False)
    assert rows._rules.repaired == [0]


def test_rounding_over_a_bound_is_within_it():
    eps = np.finfo(np.float32).eps
    asymmetric = spaces.Box(0.0, 1.0, (2,), np.float32)
    for space, value in ((BOX, [1 + 8 * eps, -1 - 8 * eps]), (asymmetric, [-8 * eps, 1 + 8 * eps])):
        out, rows = played(space, True, observation=np.float32(value))
        assert same(out.observation, np.float32(value))
        assert rows._rules.repaired == [0]
        with pytest.raises(BadEnvOutputError, match="the space's"):
            played(space, True, observation=np.float32(value) * 4)


def test_the_first_repair_of_a_process_is_logged_once(monkeypatch, caplog):
    monkeypatch.setattr(output_rules, "REPAIRS", output_rules.Repairs())
    with caplog.at_level(logging.WARNING, "envpool_bridge"):
        played(BOX, False, observation=[0.5, 0.25])
    assert [record.message for record in caplog.records] == [
        "Says, row 7, step 0: bad observation: expected a numpy array of shape (2,) and dtype float32, got list "
        "[0.5, 0.25]. The output is accepted, and counted, because strict is false"
    ]
    assert output_rules.REPAIRS.total == 2
