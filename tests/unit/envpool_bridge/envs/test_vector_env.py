"""Vector environments: what they return is checked leaf by leaf, what they are given is in their own form."""

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv

from envpool_bridge.envs.protocol import EpisodeReset, FirstRows, GymnasiumReset, StepRows
from envpool_bridge.envs.seeding import episode_seed
from envpool_bridge.envs.vector_env import VectorSource
from envpool_bridge.errors import BadEnvOutputError, WorkerError
from envpool_bridge.spec.specs import zeros_of

ROWS = 3
OBSERVED = {
    "image": np.arange(18, dtype=np.uint8).reshape(3, 3, 2),
    "place": (np.array([1, 2, 3], np.int32), np.array([[0, -2], [1, 1], [1, 0]])),
    "speed": np.array([0.5, -1.0, 1.0]),
    "count": np.array([1, 2, 3]),
}


class Scripted(VectorEnv):
    """Returns what the test puts into it, and keeps what it is given."""

    single_observation_space = spaces.Dict(
        image=spaces.Box(0, 255, (3, 2), np.uint8),
        place=spaces.Tuple((spaces.Discrete(3, start=1), spaces.MultiDiscrete([2, 4], start=[0, -2]))),
        speed=spaces.Box(-1.0, 1.0, (), np.float64),
        count=spaces.Box(-(2**63), 2**63 - 1, (), np.int64),
    )
    single_action_space = spaces.Dict(
        gear=spaces.Discrete(3, start=-1), steer=spaces.Box(-2.0, 2.0, (2,), np.float64), on=spaces.MultiBinary(2)
    )

    def __init__(self, num_envs):
        self.num_envs = num_envs
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.observed = {**OBSERVED}
        self.reward, self.terminated = np.ones(num_envs), np.zeros(num_envs, bool)
        self.truncated = np.zeros(num_envs, bool)
        self.infos = {}
        self.seed = self.action = None

    def reset(self, *, seed=None, options=None):
        self.seed = seed
        return self.observed, self.infos

    def step(self, actions):
        self.action = actions
        return self.observed, self.reward, self.terminated, self.truncated, self.infos


def made(keep_infos=False, run_seed=None, **arguments):
    """(environment, its rows, StepRows to write into), after a reset."""
    rows = VectorSource(Scripted, "Scripted", **arguments).make_rows(range(4, 4 + ROWS), run_seed, keep_infos)
    env = rows._env
    flags = [np.zeros(ROWS, bool) for _ in range(4)]
    observation = zeros_of(rows._spec.observation, (ROWS,))
    infos = {name: np.full(ROWS, np.nan, np.float32) for name in arguments.get("info_fields", ())}
    out = StepRows(observation, flags[0], np.zeros(ROWS, np.float32), *flags[1:], infos)
    rows.reset(GymnasiumReset((None,) * ROWS), FirstRows(observation, flags[0]))
    return env, rows, out


def actions():
    return {
        "gear": np.array([0, 1, 2], np.int32),
        "steer": np.array([[0.5, 9.0], [-9.0, 1.0], [0.0, 0.0]], np.float32),
        "on": np.array([[0, 1], [1, 1], [0, 0]], np.int32),
    }


def test_every_leaf_is_stored_zero_based_in_its_stored_dtype():
    _, rows, out = made()
    rows.step(actions(), out)
    np.testing.assert_array_equal(out.observation["image"], OBSERVED["image"])
    np.testing.assert_array_equal(out.observation["place"][0], np.int32([0, 1, 2]))
    np.testing.assert_array_equal(out.observation["place"][1], np.int32([[0, 0], [1, 3], [1, 2]]))
    np.testing.assert_array_equal(out.observation["speed"], np.float32([0.5, -1.0, 1.0]))
    np.testing.assert_array_equal(out.observation["count"], np.int32([1, 2, 3]))


def test_vector_rows_convert_and_clip_actions():
    env, rows, out = made()
    rows.step(actions(), out)
    np.testing.assert_array_equal(env.action["gear"], [-1, 0, 1])
    np.testing.assert_array_equal(env.action["steer"], [[0.5, 2.0], [-2.0, 1.0], [0.0, 0.0]])
    np.testing.assert_array_equal(env.action["on"], [[0, 1], [1, 1], [0, 0]])
    dtypes = {name: values.dtype for name, values in env.action.items()}
    assert dtypes == {"gear": np.int64, "steer": np.float64, "on": np.int8}


@pytest.mark.parametrize(
    ("leaf", "value", "message"),
    [
        (
            "image",
            np.zeros((3, 2, 3), np.uint8),
            r"row 4, step 1: bad observation\['image'\]: .*shape \(3, 3, 2\), got",
        ),
        ("image", np.zeros((3, 3, 2)), r"row 4, step 1: bad observation\['image'\]: expected dtype uint8, got float64"),
        ("image", [[1]], r"bad observation\['image'\]: expected an array .* got list"),
        (
            "place",
            (np.array([1, 4, 2]), OBSERVED["place"][1]),
            r"row 5.* observation\['place'\]\[0\]: .*1 <= value < 4, got 4",
        ),
        (
            "place",
            (np.ones(3), OBSERVED["place"][1]),
            r"observation\['place'\]\[0\]: expected integers, got dtype float64",
        ),
        (
            "place",
            (OBSERVED["place"][0], np.array([[0, 0], [0, 0], [0, -3]])),
            r"row 6.* observation\['place'\]\[1\]: expected -2 <= value < 2 at \[1\], got -3",
        ),
        ("place", (OBSERVED["place"][0],), r"bad observation\['place'\]: expected a tuple of 2"),
        (
            "count",
            np.array([1, 2, 2**40]),
            r"row 6.* observation\['count'\]: expected values that fit int32, got 1099511627776",
        ),
        (
            "other",
            np.zeros(3),
            r"bad observation: expected a dict of \['count', 'image', 'place', 'speed'\], got a dict of",
        ),
    ],
)
def test_vector_rows_reject_another_form_with_row_and_leaf(leaf, value, message):
    env, rows, out = made()
    env.observed[leaf] = value
    with pytest.raises(BadEnvOutputError, match=message):
        rows.step(actions(), out)


def test_vector_rows_reject_values_out_of_range():
    env, rows, out = made()
    rows.step(actions(), out)
    env.observed["speed"] = np.array([0.0, 1.5, 0.0])
    rows.step(actions(), out)
    with pytest.raises(BadEnvOutputError, match=r"row 5, step 2: bad observation\['speed'\]: expected at most 1.0"):
        rows.verify(
            {
                name: tuple(x[None] for x in leaf) if name == "place" else leaf[None]
                for name, leaf in out.observation.items()
            },
            out.reward[None],
        )


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        (
            "reward",
            np.ones((ROWS, 1)),
            r"bad reward: expected an array of shape \(3,\) of numbers, got an array of shape",
        ),
        ("reward", [1.0, 1.0, 1.0], "bad reward: .* got list"),
        ("terminated", np.zeros(ROWS), r"bad terminated: expected an array of shape \(3,\) of bool"),
        ("truncated", np.zeros(ROWS, np.int8), "bad truncated: .* and dtype int8"),
    ],
)
def test_vector_rows_reject_rewards_and_flags_of_another_form(field, value, message):
    env, rows, out = made()
    setattr(env, field, value)
    with pytest.raises(BadEnvOutputError, match=message):
        rows.step(actions(), out)


def test_vector_rows_reject_non_finite_actions():
    env, rows, out = made()
    bad = {**actions(), "steer": np.array([[0.0, 0.0], [0.0, np.nan], [0.0, 0.0]], np.float32)}
    with pytest.raises(WorkerError, match=r"row 5, step 1: the policy's action is not finite: action\['steer'\]"):
        rows.step(bad, out)
    env.observed["speed"] = np.array([0.0, 0.0, np.nan])
    rows.step(actions(), out)
    with pytest.raises(BadEnvOutputError, match=r"row 6, step 1: bad observation\['speed'\]"):
        rows.step(bad, out)


def test_vector_rows_pass_row_seeds_where_accepted():
    request = EpisodeReset((2, 0, 5), (None,) * ROWS)
    each = [episode_seed(9, row, episode) for row, episode in ((4, 2), (5, 0), (6, 5))]
    for seeds_rows, wanted in ((True, each), (False, each[0])):
        env, rows, out = made(run_seed=9, seeds_rows=seeds_rows)
        rows.reset(request, out)
        assert env.seed == wanted


def test_vector_rows_pass_consecutive_seeds_as_one():
    env, rows, out = made()
    rows.reset(GymnasiumReset((7, 8, 9)), out)
    assert env.seed == 7
    rows.reset(GymnasiumReset((7, 9, 8)), out)
    assert env.seed == [7, 9, 8]


def test_infos_are_handed_out_by_row_and_their_numbers_recorded():
    env, rows, out = made(keep_infos=True, info_fields=("score",))
    env.infos = {
        "score": np.array([1.0, 2.0, 3.0]),
        "_score": np.array([True, False, True]),
        "lives": np.array([5, 4, 3]),
    }
    rows.step(actions(), out)
    assert rows.infos == [{"score": 1.0, "lives": 5}, {"lives": 4}, {"score": 3.0, "lives": 3}]
    np.testing.assert_array_equal(out.infos["score"], np.float32([1, np.nan, 3]))


def test_vector_rows_stack_frames_and_store_them_once():
    spec = VectorSource(Scripted, "Scripted", frame_stack=4).spec()
    image, (place, _) = spec.observation["image"], spec.observation["place"]
    assert (image.shape, image.stored_shape, place.shape) == ((4, 3, 2), (3, 2), ())


def test_an_exception_names_the_rows_and_the_step():
    env, rows, out = made()
    env.step = lambda actions: 1 / 0
    with pytest.raises(WorkerError, match="Scripted, rows 4 to 6, step 1: ZeroDivisionError"):
        rows.step(actions(), out)
