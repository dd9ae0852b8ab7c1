"""Environments that are defined where no file is (a notebook's cell, a prompt) run in worker processes too."""

import subprocess
import sys

import pytest

# What `python -c` runs has no file, as what a notebook runs has none.
SESSION = """
import sys

import gymnasium
import numpy as np

from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.envs.gymnasium_env import GymnasiumSource
from envpool_bridge.envs.protocol import EpisodeReset
from envpool_bridge.errors import UserError
from envpool_bridge.shm.layout import PoolShape
from envpool_bridge.pool import EnvPool, PoolOptions

START = 3.0
LOCK = __import__("threading").Lock()


class Counter(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 1000, (), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.array(START, np.float32), {}

    def step(self, action):
        return np.array(START, np.float32), 1.0, False, False, {}


def with_lock():
    LOCK.acquire()
    return Counter()


def source(what):
    if what.startswith("registered"):
        gymnasium.register("Mine/Counter-v0", Counter if what == "registered" else "__main__:Counter")
        return EnvConfig("Mine/Counter-v0").source()
    return GymnasiumSource({"class": Counter, "lambda": lambda: Counter(), "lock": with_lock}[what])


try:
    with EnvPool(source(sys.argv[1]), PoolShape(2, 1, 1, 1, 4, 2), PoolOptions(run_seed=0)) as pool:
        pool.start([EpisodeReset((0,), (None,))] * 2)
        assert pool.wait_started(60.0)
        print("began at", pool.views[0].observation[0].tolist())
except UserError as error:
    print("refused:", error)
"""


def printed_by(what):
    done = subprocess.run(
        [sys.executable, "-c", SESSION, what], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("what", ["class", "lambda", "registered", "registered by name"])
def test_session_environment_is_pickled_by_value(what):
    assert printed_by(what) == "began at [3.0, 3.0]"


def test_a_prompt_behind_a_script_is_a_session_too(tmp_path):
    (tmp_path / "script.py").write_text("import sys; sys.argv[1:] = ['class']")
    done = subprocess.run(
        [sys.executable, "-i", str(tmp_path / "script.py")],
        input="exec(compile(" + repr(SESSION) + ", 'typed', 'exec'))\n",
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert "began at [3.0, 3.0]" in done.stdout, done.stderr


def test_unpicklable_global_is_rejected_with_advice():
    printed = printed_by("lock")
    assert printed.startswith("refused: the environment of __main__:with_lock cannot be sent to worker processes")
    assert "cannot pickle '_thread.lock' object" in printed
    assert "create what it uses inside the function or the environment's methods" in printed
