"""PoolVecEnv against stable-baselines3's own vector environments; skipped where stable-baselines3 is not installed."""

from functools import partial

import gymnasium
import numpy as np
import pytest

# pyright: reportMissingImports=false
pytest.importorskip("stable_baselines3")

from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv

from envpool_bridge.compat.sb3 import PoolVecEnv
from envpool_bridge.errors import UserError


class Counting(gymnasium.Env):
    """Episodes of `length` steps, every other one truncated, whose infos hold the step and the reset's options."""

    observation_space = gymnasium.spaces.Dict({"count": gymnasium.spaces.Box(0.0, 99.0, (2,), np.float32)})
    action_space = gymnasium.spaces.Discrete(2)
    render_mode = "rgb_array"

    def __init__(self, length):
        self.length, self.episodes, self.note = length, 0, "first"

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count, self.episodes = 0, self.episodes + 1
        return self.observe(), {"seed": seed, "options": options, "episodes": self.episodes}

    def step(self, action):
        self.count += 1
        ended, is_odd = self.count == self.length, self.episodes % 2 == 1
        return self.observe(), float(action), ended and is_odd, ended and not is_odd, {"count": self.count}

    def observe(self):
        return {"count": np.full(2, self.count, np.float32)}

    def visit(self):
        self.visits = getattr(self, "visits", 0) + 1
        return self.visits

    def add(self, number):
        return self.length + number

    def render(self):
        return np.full((2, 2, 3), self.count, np.uint8)


FUNCTIONS = [partial(Counting, length) for length in (1, 2, 3, 5)]


@pytest.fixture
def both():
    ours, theirs = PoolVecEnv(FUNCTIONS, num_workers=2), DummyVecEnv(FUNCTIONS)
    yield ours, theirs
    ours.close()
    theirs.close()


def assert_same(ours, theirs):
    if isinstance(theirs, dict):
        assert ours.keys() == theirs.keys()
        for key, value in theirs.items():
            assert_same(ours[key], value)
    elif isinstance(theirs, np.ndarray):
        np.testing.assert_array_equal(ours, theirs, strict=True)
    else:
        assert ours == theirs


def test_steps_equal_dummy_vec_env(both):
    rng = np.random.default_rng(0)
    for vec_env in both:
        vec_env.seed(5)
    for number in range(60):
        if number % 20 == 0:
            options = [{"a": 1}, {}, {"a": 1}, {"b": 2}] if number == 20 else {"c": 3}
            for vec_env in both:
                vec_env.set_options(options)
            assert_same(*[vec_env.reset() for vec_env in both])
            assert [info["seed"] for info in both[0].reset_infos] == [info["seed"] for info in both[1].reset_infos]
            for mine, other in zip(both[0].reset_infos, both[1].reset_infos, strict=True):
                assert mine["options"] == other["options"]
        actions = rng.integers(0, 2, 4)
        ours, theirs = [vec_env.step(actions) for vec_env in both]
        for mine, other in zip(ours[:3], theirs[:3], strict=True):
            assert_same(mine, other)
        for mine, other in zip(ours[3], theirs[3], strict=True):
            assert_same(mine, other)
        assert [info["episodes"] for info in both[0].reset_infos] == [info["episodes"] for info in both[1].reset_infos]


BOX, CHOICE = gymnasium.spaces.Box(0, 2**64 - 1, (), np.uint64), gymnasium.spaces.Discrete(3)
STRUCTURED = [
    gymnasium.spaces.Dict(choice=CHOICE, box=BOX),
    gymnasium.spaces.Tuple((BOX, CHOICE)),
    gymnasium.spaces.Dict(pair=gymnasium.spaces.Tuple((BOX, gymnasium.spaces.Dict(choice=CHOICE)))),
    gymnasium.spaces.Dict(choice=CHOICE, text=gymnasium.spaces.Text(5)),
]


class Echo(gymnasium.Env):
    """Environment whose infos hold the action."""

    observation_space = gymnasium.spaces.Discrete(2)

    def __init__(self, space):
        self.action_space = space

    def reset(self, *, seed=None, options=None):
        return 0, {}

    def step(self, action):
        return 0, 0.0, False, False, {"action": action}


@pytest.mark.parametrize("space", STRUCTURED, ids=str)
def test_structured_actions_are_one_for_each_environment(space):
    actions = [space.sample() for _ in range(2)]
    received = []
    for make in (partial(PoolVecEnv, num_workers=1), DummyVecEnv):
        vec_env = make([partial(Echo, space)] * 2)
        vec_env.reset()
        received.append([info["action"] for info in vec_env.step(actions)[3]])
        vec_env.close()
    assert received[0] == received[1] == actions


def test_actions_of_another_structure_are_rejected():
    wrong: list[tuple[gymnasium.Space, list[object]]] = [
        (STRUCTURED[0], [{"choice": np.zeros(2, int), "box": np.zeros(2)}, [{"choice": 1}] * 2]),
        (STRUCTURED[0], [[{"choice": 1, "box": 0, "other": 0}] * 2, [{"choice": 1, "box": 0}], 3]),
        (STRUCTURED[1], [[(0, 1, 2)] * 2, [(0,)] * 2, [(0, 1), (0,)], [(0, 1)] * 3, [(0, 1.5)] * 2]),
    ]
    for space, cases in wrong:
        vec_env = PoolVecEnv([partial(Echo, space)] * 2, num_workers=1)
        vec_env.reset()
        for actions in cases:
            with pytest.raises(UserError, match="expected"):
                vec_env.step(actions)
        vec_env.close()


def test_options_equal_dummy_vec_env(both):
    maps = [np.array([1, 2]), np.array([3, 4])]
    for options in (None, {}, {"map": maps[0]}, [{"map": maps[0]}, {"map": maps[1]}, {}, {"map": maps[0]}]):
        received = []
        for vec_env in both:
            if options is not None:
                vec_env.set_options(options)
            vec_env.seed(3)
            vec_env.reset()
            received.append([(info["seed"], info["options"], info["episodes"]) for info in vec_env.reset_infos])
        np.testing.assert_equal(*received)  # None where there are no options, and one reset of each environment


class PopsOptions(Counting):
    """Removes what it has read from the options."""

    def reset(self, *, seed=None, options=None):
        observation, info = super().reset(seed=seed)
        return observation, {**info, "level": (options or {}).pop("level", None)}


def test_each_environment_receives_its_own_options():
    vec_env = PoolVecEnv([partial(PopsOptions, 3)] * 2, num_workers=1)
    try:
        vec_env.set_options({"level": 4})
        vec_env.reset()
        assert [info["level"] for info in vec_env.reset_infos] == [4, 4]
    finally:
        vec_env.close()


def test_images_need_the_render_mode_of_arrays():
    vec_env = PoolVecEnv([partial(gymnasium.make, "CartPole-v1")] * 2, num_workers=1)
    try:
        with pytest.warns(UserWarning, match="images need the render_mode 'rgb_array', got None"):
            assert vec_env.get_images() == [None, None]
    finally:
        vec_env.close()


def test_methods_equal_dummy_vec_env(both):
    for vec_env in both:
        vec_env.reset()
        vec_env.set_attr("note", "second", indices=[0, 2])
        assert vec_env.get_attr("note") == ["second", "first", "second", "first"]
        assert vec_env.env_method("add", 10, indices=[3, 1]) == [15, 12]
        assert vec_env.env_method("add", number=1, indices=0) == [2]
        assert vec_env.env_method("add", 10, indices=[-1, 0, -4]) == [15, 11, 11]
        assert vec_env.env_method("visit", indices=[0, 1, 0]) == [1, 1, 2]
        assert vec_env.get_attr("length", indices=-1) == [5]
        assert vec_env.env_is_wrapped(Monitor) == [False] * 4
        assert vec_env.has_attr("length")
        assert not vec_env.has_attr("missing")
        assert vec_env.render_mode == "rgb_array"
        assert vec_env.render().shape == (4, 4, 3)
        vec_env.step(np.zeros(4, int))  # calls leave episodes as they are
    assert both[0].get_attr("count") == both[1].get_attr("count")


def test_make_vec_env_with_monitors():
    env = make_vec_env("CartPole-v1", 4, seed=0, vec_env_cls=PoolVecEnv, vec_env_kwargs={"num_workers": 2})
    try:
        assert env.env_is_wrapped(Monitor) == [True] * 4
        env.reset()
        episodes = []
        for _ in range(200):
            infos = env.step(np.ones(4, int))[3]
            episodes += [info["episode"] for info in infos if "episode" in info]
        assert len(episodes) > 40
        assert all(episode["r"] == episode["l"] for episode in episodes)
    finally:
        env.close()


@pytest.mark.slow
def test_ppo_learns_cartpole():
    env = make_vec_env("CartPole-v1", 8, seed=0, vec_env_cls=PoolVecEnv, vec_env_kwargs={"num_workers": 2})
    try:
        model = PPO("MlpPolicy", env, n_steps=32, batch_size=256, n_epochs=20, gae_lambda=0.8, gamma=0.98, seed=0,
                    learning_rate=1e-3, device="cpu")  # fmt: skip
        model.learn(100_000)
        returns = [info["r"] for info in model.ep_info_buffer]
        assert np.mean(returns[-50:]) > 400
    finally:
        env.close()
