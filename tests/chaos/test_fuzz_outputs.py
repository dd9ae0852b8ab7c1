"""Generated environment outputs: what the spaces allow is stored as it is, anything else is refused by name."""

import fractions
import math
import numbers
from decimal import Decimal
from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envpool_bridge.envs.gymnasium_env import GymnasiumRows, GymnasiumSource
from envpool_bridge.envs.protocol import EpisodeReset, first_rows, step_rows
from envpool_bridge.errors import BadEnvOutputError
from envpool_bridge.shm.layout import PoolShape, make_layout
from envpool_bridge.shm.slots import allocate_slots
from envpool_bridge.spec.tree import leaves, take

SPACES = {
    "bounded": spaces.Box(-2.0, 2.0, (3,), np.float32),
    "wide": spaces.Box(-np.inf, np.inf, (2, 3), np.float64),
    "bytes": spaces.Box(0, 9, (4,), np.uint8),
    "dice": spaces.Discrete(5, start=-1),
    "many": spaces.MultiDiscrete([2, 3]),
    "named": spaces.Dict({"a": spaces.Box(-1.0, 1.0, (1,), np.float32), "b": spaces.Discrete(2)}),
    "pair": spaces.Tuple((spaces.Discrete(3), spaces.Box(-1, 1, (2,), np.int16))),
}
GOOD = {
    "bounded": np.array([0.5, -2.0, 2.0], np.float32),
    "wide": np.arange(6.0).reshape(2, 3),
    "bytes": np.array([0, 9, 3, 4], np.uint8),
    "dice": 3,
    "many": np.array([1, 2]),
    "named": {"a": np.zeros(1, np.float32), "b": 1},
    "pair": (2, np.array([-1, 1], np.int16)),
}
ODD_NUMBERS = st.sampled_from(
    [
        *(0, 1, -1, 2, 10**39, 10**400, -(10**25), 0.5, 1e39, 3.4e38, math.nan, math.inf, -math.inf, True, False),
        *(np.float32(1.5), np.float16(2), np.float64("nan"), np.int8(-1), np.uint64(2**63), np.bool_(True)),
        *(np.longdouble(1), fractions.Fraction(1, 3), Decimal(1), 1j, None, "1", b"1", [1.0], (1,), {}, object),
        *(np.zeros(()), np.zeros(1), np.array(1), np.array(True), np.zeros((), object)),
    ]
)
DTYPES = st.sampled_from(
    [
        *(
            np.float32,
            np.float64,
            np.float16,
            np.uint8,
            np.int8,
            np.int16,
            np.int64,
            bool,
            object,
            "U1",
            "M8[s]",
            ">f4",
            ">i2",
        )
    ]
)
SHAPES = st.sampled_from([(3,), (1,), (4,), (2,), (2, 3), (3, 2), (6,), (), (0,), (1, 3)])
VALUES = st.sampled_from([0.0, 1.0, -1.0, 2.0, -2.0, 2.5, 9.0, 10.0, -3.0, 255.0, 1e39, math.nan, math.inf, 1 + 1e-12])


@st.composite
def arrays(draw):
    """An array of any form; some of those are right for one of the spaces."""
    array = np.zeros(draw(SHAPES))
    for place in range(array.size):
        array.flat[place] = draw(VALUES)
    with np.errstate(all="ignore"):
        array = array.astype(draw(DTYPES))
    return draw(st.sampled_from([array, array[::-1], array.tolist()])) if array.ndim else array


@st.composite
def observations(draw, name):
    """What the space allows, about every third time; the same with a value that is odd; anything else."""
    if draw(st.integers(0, 2)) == 0:
        return GOOD[name]
    kind = draw(st.integers(0, 2))
    if kind == 0 and isinstance(SPACES[name], spaces.Box | spaces.MultiDiscrete):
        changed = GOOD[name].copy()
        with np.errstate(all="ignore"):
            changed.flat[draw(st.integers(0, changed.size - 1))] = np.array(draw(VALUES)).astype(changed.dtype)
        return changed
    if kind == 1 and name == "named":
        parts = {"a": GOOD["named"]["a"], "b": 1, "c": 0}
        return {
            key: draw(st.just(parts[key]) | ODD_NUMBERS | arrays()) for key in draw(st.sets(st.sampled_from("abc")))
        }
    if kind == 1 and name == "pair":
        return tuple(draw(st.lists(st.just(GOOD["pair"][1]) | st.integers(-1, 3) | arrays(), max_size=3)))
    return draw(ODD_NUMBERS | arrays())


# --- the oracle: what is legal, by the words of Gymnasium's interface, one number at a time
def is_legal_number(value, low, high, stored):
    with np.errstate(over="ignore"):
        kept = stored(value)
    slack = (
        16 * np.finfo(np.float32).eps * max([abs(bound) for bound in (low, high) if math.isfinite(bound)], default=0)
    )
    slack = slack if stored is np.float32 else 0
    return bool(math.isfinite(kept)) and low - slack <= kept <= high + slack


def is_legal_integer(value, low, high):
    if isinstance(value, np.ndarray):
        return value.shape == () and value.dtype.kind in "iu" and low <= int(value) <= high
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and low <= int(value) <= high


def is_legal_observation(space, value):
    if isinstance(space, spaces.Dict):
        keys = set(space.spaces)
        return (
            isinstance(value, dict)
            and set(value) == keys
            and all(is_legal_observation(space[k], value[k]) for k in keys)
        )
    if isinstance(space, spaces.Tuple):
        same = isinstance(value, tuple) and len(value) == len(space)
        return same and all(is_legal_observation(child, item) for child, item in zip(space, value, strict=True))
    if isinstance(space, spaces.Discrete):
        return is_legal_integer(value, int(space.start), int(space.start + space.n) - 1)
    if not isinstance(value, np.ndarray) or value.shape != space.shape or value.dtype != space.dtype:
        return False
    if isinstance(space, spaces.MultiDiscrete):
        return all(0 <= int(item) < int(size) for item, size in zip(value.flat, space.nvec.flat, strict=True))
    stored = np.float32 if space.dtype.kind == "f" else int
    bounds = zip(value.flat, space.low.flat, space.high.flat, strict=True)
    return all(is_legal_number(item, low, high, stored) for item, low, high in bounds)


def is_legal_reward(value):
    value = value[()] if isinstance(value, np.ndarray) and value.shape == () else value
    if isinstance(value, bool | np.bool_ | np.ndarray) or not isinstance(value, numbers.Real | np.number):
        return False
    if isinstance(value, complex | np.complexfloating):
        return False
    try:
        return is_legal_number(value, -math.inf, math.inf, np.float32)
    except OverflowError:
        return False


def is_legal_flag(value):
    return isinstance(value, bool | np.bool_) or (
        isinstance(value, np.ndarray) and value.shape == () and value.dtype == bool
    )


def is_legal(space, result):
    if not isinstance(result, tuple) or len(result) != 5:
        return False
    observation, reward, terminated, truncated, info = result
    flags = is_legal_flag(terminated) and is_legal_flag(truncated)
    return is_legal_observation(space, observation) and is_legal_reward(reward) and flags and isinstance(info, dict)


class Says(gymnasium.Env):
    """Returns what it is told to."""

    def __init__(self, name):
        self.observation_space, self.action_space = SPACES[name], spaces.Discrete(2)
        self.name, self.result = name, (GOOD[name], 0.5, False, False, {})

    def reset(self, *, seed=None, options=None):
        return GOOD[self.name], {}

    def step(self, action):
        return self.result


SOURCES = {name: GymnasiumSource(partial(Says, name)) for name in SPACES}
SPECS = {name: source.spec() for name, source in SOURCES.items()}
SLOTS = {
    name: allocate_slots(make_layout(spec, PoolShape(1, 1, 1, 2, 4, 1), {}, ()))[0] for name, spec in SPECS.items()
}


FIELDS = ("observation", "reward", "terminated", "truncated", "info", "form")


@st.composite
def outputs(draw):
    """(name of a space, what its environment's step returns)."""
    name = draw(st.sampled_from(sorted(SPACES)))
    spoiled = draw(st.sampled_from(["", *FIELDS, *FIELDS, "several"]))

    def field(which, good, odd):
        return draw(odd) if spoiled == which or (spoiled == "several" and draw(st.booleans())) else draw(good)

    flags = st.booleans()
    result = (
        field("observation", st.just(GOOD[name]), observations(name)),
        field("reward", st.floats(-1e30, 1e30), st.floats(width=64) | ODD_NUMBERS),
        field("terminated", flags, ODD_NUMBERS),
        field("truncated", flags, ODD_NUMBERS),
        field("info", st.just({}), ODD_NUMBERS),
    )
    if spoiled != "form":
        return name, result
    shape = draw(st.integers(0, 2))
    return name, (result[: draw(st.integers(0, 4))], (*result, {}), draw(ODD_NUMBERS))[shape]


def check_output(name, result):
    """Row 1 returns `result`, row 0 what is right: fails unless that is stored, or refused, as the oracle says."""
    envs = [Says(name), Says(name)]
    rows = GymnasiumRows(envs, SPECS[name], (7, 8), 0, keep_infos=True, strict=True)
    slot = SLOTS[name]
    first, out = first_rows(slot), step_rows(slot, 0)
    rows.reset(EpisodeReset((0, 0), (None, None)), first)
    envs[1].result = result
    out.prepare()
    legal = is_legal(SPACES[name], result)
    refused = ""
    try:
        rows.step(np.zeros(2, np.int64), out)
        rows.verify(take(out.observation, None), out.reward[None])
    except BadEnvOutputError as error:
        refused = str(error)
    assert legal == (not refused), f"{'wrongly refused' if legal else 'wrongly accepted'}: {result!r}: {refused}"
    if refused:
        assert "row 8, step 1: bad " in refused
    else:
        check_stored(name, result, out)


def check_stored(name, result, out):
    assert out.reward[1] == np.float32(result[1])
    assert (out.terminated[1], out.truncated[1]) == (bool(result[2]), bool(result[3]))
    space, value = SPACES[name], result[0]
    expected = {
        "named": lambda: [value["a"], value["b"]],
        "pair": lambda: [value[0], value[1]],
        "dice": lambda: [int(value) - int(space.start)],
    }.get(name, lambda: [value])()
    for stored, item in zip(leaves(out.observation), expected, strict=True):
        np.testing.assert_array_equal(stored[1], np.asarray(item).astype(stored.dtype))


FUZZ = settings(deadline=None, database=None, suppress_health_check=list(HealthCheck), derandomize=True)


@given(outputs())
@settings(FUZZ, max_examples=400)
def test_fuzzed_outputs_are_stored_exactly_or_rejected(output):
    check_output(*output)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ten_thousand_outputs_are_stored_exactly_or_rejected():
    counts = {True: 0, False: 0}

    @given(outputs())
    @settings(FUZZ, max_examples=10_000)
    def check(output):
        counts[is_legal(SPACES[output[0]], output[1])] += 1
        check_output(*output)

    check()
    print(f"{counts[True]} legal, {counts[False]} illegal outputs")
    assert min(counts.values()) > 2000
