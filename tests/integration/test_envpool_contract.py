"""What calls of EnvPool 1.2.5 return, as it returned it: the same of our interface, and the differences that the page names."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from envpool_bridge.compat import envpool
from envpool_bridge.errors import UserError

NONE = np.zeros(4, int)
IDS = {"env_id": ("<i4", (4,)), "players": {"env_id": ("<i4", (4,))}, "elapsed_step": ("<i4", (4,))}


def forms(items):
    return {
        name: forms(item) if isinstance(item, dict) else (item.dtype.str, item.shape) for name, item in items.items()
    }


def after_reset(env, call, *arguments, **options):
    env.reset()
    return getattr(env, call)(*arguments, **options)


def last_of_episode(env):
    """Returns (reward, terminated, elapsed step) of the last two results of an episode and of the one after it."""
    env.reset()
    told = []
    while not (len(told) > 1 and told[-2][1]):
        _, reward, terminated, _, info = env.step(np.zeros(1, int))
        told.append((reward[0], terminated[0], info["elapsed_step"][0]))
    return told[-3][2] == told[-2][2] - 1, told[-2][:2], told[-1]


def truncated(env):
    env.reset()
    return [tuple(bool(flag[0]) for flag in env.step(np.zeros((1, 1)))[2:4]) for _ in range(7)]


def two_sends(env):
    env.async_reset()
    ids = [env.recv()[4]["env_id"] for _ in range(2)]
    for one in ids:
        env.send(np.zeros(2, int), one)
    return sorted(np.concatenate([env.recv()[4]["env_id"] for _ in range(2)]).tolist())


def is_kept(env):
    observation = env.reset()[0]
    before = observation.copy()
    env.step(np.zeros(4, int))
    return np.array_equal(observation, before)


FOUR = {"num_envs": 4}
CALLS = {
    "step without reset": (FOUR, lambda env: [part.tolist() for part in env.step(NONE)[1:3]], [[0.0] * 4, [False] * 4]),
    "steps without reset": (
        FOUR,
        lambda env: [env.step(NONE)[4]["elapsed_step"].tolist() for _ in range(3)],
        [[0] * 4, [1] * 4, [2] * 4],
    ),
    "forms of reset": (FOUR, lambda env: forms({"o": env.reset()[0], **env.reset()[1]}), {"o": ("<f4", (4, 4)), **IDS}),
    "forms of step": (
        FOUR,
        lambda env: [part.dtype.str for part in after_reset(env, "step", NONE)[:4]],
        ["<f4", "<f4", "|b1", "|b1"],
    ),
    "infos of step": (FOUR, lambda env: forms(after_reset(env, "step", NONE)[4]), IDS),
    "sizes": (FOUR, lambda env: (env.num_envs, len(env), env.is_vector_env, env.is_async), (4, 4, True, False)),
    "spaces": (
        FOUR,
        lambda env: (env.single_observation_space == env.observation_space, env.single_action_space, env.action_space),
        (True, spaces.Discrete(2), spaces.Discrete(2)),
    ),
    "classes": (FOUR, lambda env: isinstance(env, gymnasium.vector.VectorEnv) and isinstance(env, gymnasium.Env), True),
    "autoreset": (FOUR, lambda env: env.metadata["autoreset_mode"], gymnasium.vector.AutoresetMode.NEXT_STEP),
    "config": (FOUR, lambda env: (env.config["num_envs"], env.config["batch_size"]), (4, 4)),
    "config of spec": (
        FOUR,
        lambda env: [
            getattr(env.spec.config, name) for name in ("num_envs", "batch_size", "max_episode_steps", "seed")
        ],
        [4, 4, 500, 42],
    ),
    "threshold": (FOUR, lambda env: env.spec.reward_threshold, 475.0),
    "reset of ids": (FOUR, lambda env: after_reset(env, "reset", np.array([1, 3]))[1]["env_id"].tolist(), [1, 3]),
    "observations of ids": (FOUR, lambda env: after_reset(env, "reset", np.array([1, 3]))[0].shape, (2, 4)),
    "first reset of ids": (FOUR, lambda env: env.reset(np.array([3]))[0].shape, (1, 4)),
    "reset of a mask": (
        FOUR,
        lambda env: after_reset(env, "reset", options={"reset_mask": np.arange(4) % 2 == 0})[1]["env_id"].tolist(),
        [0, 2],
    ),
    "step after a reset of ids": (
        FOUR,
        lambda env: [
            after_reset(env, "step", NONE)[4]["elapsed_step"].tolist(),
            env.reset(np.array([2]))[1]["elapsed_step"].tolist(),
            env.step(NONE)[4]["elapsed_step"].tolist(),
        ],
        [[1] * 4, [0], [2, 2, 1, 2]],
    ),
    "num_threads": ({"num_envs": 4, "num_threads": 3}, lambda env: env.reset()[0].shape, (4, 4)),
    "dict": (
        FOUR,
        lambda env: after_reset(env, "step", {"action": NONE, "env_id": np.arange(4)})[1].tolist(),
        [1.0] * 4,
    ),
    "actions of floats": (FOUR, lambda env: after_reset(env, "step", np.ones(4))[1].tolist(), [1.0] * 4),
    "seed": ({"num_envs": 2, "seed": [3, 4]}, lambda env: np.allclose(env.reset()[0], first_observations(3)), True),
    "episode's end": ({"num_envs": 1, "seed": 1}, last_of_episode, (True, (1.0, True), (0.0, False, 0))),
    "time limit": (
        {"task_id": "Pendulum-v1", "max_episode_steps": 5},
        truncated,
        [(False, False)] * 4 + [(False, True)] + [(False, False)] * 2,
    ),
    "reward of floats": (
        {"task_id": "Pendulum-v1"},
        lambda env: after_reset(env, "step", np.zeros((1, 1)))[1].dtype,
        np.dtype("float32"),
    ),
    "ids": (
        {"num_envs": 8, "batch_size": 4},
        lambda env: (len(env), env.all_env_ids.dtype.str, env.is_async),
        (8, "<i4", True),
    ),
    "reset of batches": ({"num_envs": 8, "batch_size": 4}, lambda env: env.reset()[0].shape, (4, 4)),
    "two sends": ({"num_envs": 4, "batch_size": 2}, two_sends, [0, 1, 2, 3]),
    "copies": (FOUR, is_kept, True),
    "frames": (
        {"num_envs": 2, "render_mode": "rgb_array"},
        lambda env: after_reset(env, "render").shape,
        (1, 400, 600, 3),
    ),
    "close": (FOUR, lambda env: [env.close(), env.close(terminate=True)], [None, None]),
    "wrapper": (FOUR, lambda env: after_reset(gymnasium.Wrapper(env), "step", NONE)[0].shape, (4, 4)),
    "vector wrappers": (
        FOUR,
        lambda env: [
            after_reset(wrapper(env), "step", NONE)[0].shape
            for wrapper in (
                gymnasium.wrappers.vector.NormalizeObservation,
                gymnasium.wrappers.vector.RecordEpisodeStatistics,
            )
        ],
        [(4, 4)] * 2,
    ),
    "discrete observations": (
        {"task_id": "FrozenLake-v1", "num_envs": 2},
        lambda env: (env.reset()[0].shape, env.observation_space),
        ((2,), spaces.Discrete(16)),
    ),
}


def first_observations(seed):
    alone = gymnasium.make("CartPole-v1")
    return [alone.reset(seed=seed + number)[0] for number in range(2)]


@pytest.mark.parametrize("name", CALLS)
def test_calls_return_what_envpool_returns(name):
    settings, call, expected = CALLS[name]
    env = envpool.make(**{"task_id": "CartPole-v1", "num_threads": 1, **settings})
    try:
        assert call(env) == expected
    finally:
        env.close()


def test_functions_are_those_of_envpool():
    assert "CartPole-v1" in envpool.list_all_envs()
    spec = envpool.make_spec("CartPole-v1", num_envs=2)
    assert (spec.config.num_envs, spec.config.max_episode_steps, spec.action_space) == (2, 500, spaces.Discrete(2))
    for make in (envpool.make_gymnasium, envpool.make_gym):
        env = make("CartPole-v1", num_threads=1)
        assert isinstance(env, envpool.GymnasiumEnvPool)
        env.close()


def test_calls_without_effect_warn_or_are_rejected():
    env = envpool.make("CartPole-v1", "gym", num_envs=4, num_threads=1)
    calls = {
        "xla is EnvPool's own": env.xla,
        "render needs render_mode='rgb_array'": env.render,
        r"expected ids from 0 to 3, without a reset_mask: got \[4\]": lambda: env.reset(np.array([4])),
        "the first actions start all 4 environments": lambda: env.send(np.zeros(1, int), np.array([2])),
    }
    try:
        for seed in ((), (1,)):
            with pytest.warns(UserWarning, match="pass seed to make or reset"):
                env.seed(*seed)
        with pytest.raises(AttributeError, match="no setter"):
            env.num_envs = 2
        for message, call in calls.items():
            with pytest.raises(UserError, match=message):
                call()
        env.reset()
        with pytest.raises(UserError, match="expected integers, got dtype float64"):
            env.step(np.full(4, 0.5))
        with pytest.raises(UserError, match="whole lanes of 4 environments"):
            env.step(np.zeros(2, int), np.array([0, 3]))
    finally:
        env.close()
