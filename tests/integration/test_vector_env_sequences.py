"""Random sequences of calls: PoolVectorEnv and Gymnasium's AsyncVectorEnv return equal values or raise the same classes."""

import random
import subprocess
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from gymnasium.vector.async_vector_env import AsyncState
from gymnasium.wrappers import TimeLimit

from envpool_bridge.vector_env import PoolVectorEnv

ROOT = Path(__file__).parents[2]
NUM_ENVS = 4
QUICK, MANY = 4, 334  # sequences in each of three modes


class Walk(gymnasium.Env):
    """A random walk that ends at `bound` or, by its wrapper, after some steps; infos vary with the step."""

    observation_space = spaces.Dict(
        {"place": spaces.Box(-99, 99, (2,), np.float32), "parity": spaces.Discrete(2, start=-1)}
    )
    action_space = spaces.Tuple((spaces.Discrete(3, start=-1), spaces.Box(-1, 1, (2,), np.float64)))

    def __init__(self, bound=3.0):
        self.metadata, self.render_mode, self.bound, self.steps = {"render_modes": ["ansi"]}, "ansi", bound, 0
        self.place = np.zeros(2, np.float32)

    def observation(self):
        return {"place": self.place.copy(), "parity": np.int64(self.steps % 2 - 1)}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps, self.place = 0, self.np_random.normal(size=2).astype(np.float32)
        return self.observation(), {"options": len(options)} if options else {}

    def step(self, action):
        self.steps += 1
        noise = self.np_random.normal(size=2)
        self.place = np.clip(self.place + int(action[0]) * action[1] + noise, -99, 99).astype(np.float32)
        info = {"bound": self.bound, "nested": {"steps": self.steps}} if self.steps % 2 else {}
        return self.observation(), float(noise[0]), bool(abs(self.place).max() > self.bound), False, info

    def render(self):
        return f"{self.place} of {self.bound}"

    def power(self, exponent, factor=1.0):
        return factor * self.bound**exponent


def make_envs():
    return [lambda limit=limit: TimeLimit(Walk(), limit) for limit in (3, 5, 8, 50)]


def random_seed(rng):
    return rng.choice([None, rng.randrange(1000), [rng.choice([None, rng.randrange(99)]) for _ in range(NUM_ENVS)]])


def random_options(rng):
    options = rng.choice([None, {}, {"level": 3}])
    if rng.random() < 0.5:
        mask = np.array([rng.random() < 0.4 for _ in range(NUM_ENVS)])
        masks = [mask, mask, mask, mask.astype(int), mask[:2], mask.tolist()]
        options = {**(options or {}), "reset_mask": rng.choice(masks)}
    return options


def random_call(rng, env):
    """Returns (method, arguments, keywords); wrong ones only where AsyncVectorEnv raises before it sends anything."""
    calls = [
        ("step", (env.action_space.sample(),), {}),
        ("step", (env.action_space.sample(),), {}),
        ("step_async", (env.action_space.sample(),), {}),
        ("step", (0,), {}),
        ("step_wait", (), {}),
        ("step_wait", (20.0,), {}),
        ("reset", (), {"seed": random_seed(rng), "options": random_options(rng)}),
        ("reset", (), {"seed": [1, 2], "options": None}),
        ("reset_async", (random_seed(rng), random_options(rng)), {}),
        ("reset_wait", (), {}),
        ("call", ("power", 2), {"factor": rng.random()}),
        ("call_async", ("power", 3), {}),
        ("call_wait", (), {}),
        ("get_attr", (rng.choice(["bound", "steps", "_elapsed_steps", "np_random_seed", "render_mode"]),), {}),
        ("set_attr", ("bound", [rng.uniform(1, 5) for _ in range(NUM_ENVS)]), {}),
        ("set_attr", ("bound", 2.5), {}),
        ("set_attr", ("bound", [1.0]), {}),
        ("set_attr", ("_max_episode_steps", [rng.randrange(2, 9) for _ in range(NUM_ENVS)]), {}),
        ("render", (), {}),
    ]
    return rng.choice(calls)


def outcome(env, name, arguments, keywords):
    """Calls a method; returns (value, None) or (None, exception)."""
    copies = {key: dict(value) if isinstance(value, dict) else value for key, value in keywords.items()}
    try:
        return getattr(env, name)(*[dict(a) if isinstance(a, dict) else a for a in arguments], **copies), None
    except Exception as error:  # noqa: BLE001  compared with the other's
        return None, error


def use_ints_in_finals(value):
    """Replaces numpy's integers in final observations: PoolVectorEnv returns ints there."""
    infos = value[-1] if isinstance(value, tuple) and value and isinstance(value[-1], dict) else {}
    for row, final in enumerate(infos.get("final_obs", ())):
        if final is not None:
            infos["final_obs"][row] = {key: int(x) if isinstance(x, np.integer) else x for key, x in final.items()}


def finish(env):
    """Waits for a pending operation."""
    if env._state is not AsyncState.DEFAULT:
        getattr(env, f"{env._state.value}_wait")()


def run_sequence(ours, theirs, seed):
    rng = random.Random(seed)
    for env in (ours, theirs):
        finish(env)
        env.set_attr("_max_episode_steps", [3, 5, 8, 50])
        env.set_attr("bound", 3.0)
    assert data_equivalence(ours.reset(seed=seed), theirs.reset(seed=seed))
    theirs.action_space.seed(seed)
    log = []
    for _ in range(rng.randrange(1, 20)):
        call = random_call(rng, theirs)
        (value, error), (expected, expected_error) = outcome(ours, *call), outcome(theirs, *call)
        log.append((call[0], type(expected_error).__name__))
        where = f"sequence {seed}: {log}, {call}"
        if expected_error is None:
            assert error is None, f"{where}: {error!r}"
            use_ints_in_finals(expected)
            assert data_equivalence(value, expected), f"{where}: {value}, expected {expected}"
        else:
            assert isinstance(error, type(expected_error)), f"{where}: {error!r}, expected {expected_error!r}"
    return log


def compare(mode, count):
    """Runs sequences in both; both are reused by all sequences, which start with a seeded reset."""
    theirs = AsyncVectorEnv(make_envs(), autoreset_mode=mode, context="fork")  # before the pool starts a thread
    ours = PoolVectorEnv(make_envs(), autoreset_mode=mode, num_workers=2)
    try:
        logs = [run_sequence(ours, theirs, seed) for seed in range(count)]
        names = {(name, error) for log in logs for name, error in log}
        if count == MANY:  # every call has succeeded, and every error was met
            assert {name for name, error in names if error == "NoneType"} >= {"step", "reset", "call", "set_attr"}
            assert {error for _, error in names} >= {"NoAsyncCallError", "AlreadyPendingCallError", "ValueError"}
        for env in (ours, theirs):
            finish(env)
    finally:
        ours.close()
        theirs.close(terminate=True)
    (_, error), (_, expected_error) = outcome(ours, "reset", (), {}), outcome(theirs, "reset", (), {})
    assert isinstance(error, type(expected_error))


@pytest.mark.parametrize(
    "count", [pytest.param(QUICK, id="quick"), pytest.param(MANY, id="many", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_sequences_equal_those_of_async_vector_env(mode, count):
    # AsyncVectorEnv forks, which a process with jax and its threads must not do.
    program = f"""
from gymnasium.vector import AutoresetMode
from tests.integration.test_vector_env_sequences import compare
compare(AutoresetMode({mode.value!r}), {count})
"""
    ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
