"""An environment that a user's script registers is stepped by workers that never register it, nor import the script."""

import subprocess
import sys

import pytest

SCRIPT = """
import sys

import gymnasium
import numpy as np

from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.envs.protocol import EpisodeReset
from envpool_bridge.errors import UserError
from envpool_bridge.shm.layout import PoolShape
from envpool_bridge.pool import EnvPool, PoolOptions
from envpool_bridge.vector_env import PoolVectorEnv


class Counter(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 1000, (), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, start=0):
        self.start = start

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = np.float32(self.start)
        return np.array(self.count, np.float32), {}

    def step(self, action):
        self.count += 1
        return np.array(self.count, np.float32), 1.0, False, False, {}


ENTRY_POINTS = {
    "class": Counter,
    "name": "__main__:Counter",
    "lambda": lambda start=0: Counter(start),
    "open file": lambda start=0, file=sys.stdin: Counter(start),
}


def play_in_function():
    gymnasium.register("CartPole-v1", "gymnasium.envs.classic_control:CartPoleEnv", max_episode_steps=3)
    gymnasium.register("Mine/Unused-v0", ENTRY_POINTS["open file"])
    env = PoolVectorEnv([lambda: gymnasium.make("Mine/Counter-v0"), lambda: gymnasium.make("Mine/Counter-v0")])
    observation, _ = env.reset()
    env.close()
    cart = PoolVectorEnv(lambda: gymnasium.make("CartPole-v1"), 1)
    cart.reset(seed=0)
    ends = [cart.step(np.array([step % 2]))[3].item() for step in range(3)]
    cart.close()
    print("began at", observation.tolist(), ends)


if __name__ == "__main__":
    gymnasium.register("Mine/Counter-v0", ENTRY_POINTS[sys.argv[1]], max_episode_steps=50, kwargs={"start": 3})
    if sys.argv[2] == "in a function":
        try:
            play_in_function()
        except UserError as error:
            print("refused:", error)
        sys.exit()
    config = EnvConfig("Mine/Counter-v0", kwargs=sys.argv[2])
    try:
        pool = EnvPool(config.source(), PoolShape(2, 1, 1, 1, 4, 2), PoolOptions(run_seed=0))
        with pool:
            pool.start([EpisodeReset((0,), (None,))] * 2)
            assert pool.wait_started(60.0)
            print("began at", pool.views[0].observation[0].tolist())
    except UserError as error:
        print("refused:", error)
"""


def ran(tmp_path, entry_point, kwargs="{}"):
    script = tmp_path / "my_script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), entry_point, kwargs]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("entry_point", ["class", "name", "lambda"])
def test_an_id_that_only_the_script_registers_works_in_workers(tmp_path, entry_point):
    assert ran(tmp_path, entry_point) == "began at [3.0, 3.0]"


@pytest.mark.parametrize("entry_point", ["class", "name", "lambda"])
def test_a_function_may_make_ids_that_only_the_script_knows(tmp_path, entry_point):
    assert ran(tmp_path, entry_point, "in a function") == "began at [3.0, 3.0] [False, False, True]"


def test_a_registration_that_cannot_be_sent_is_rejected_if_made(tmp_path):
    refused = ran(tmp_path, "open file", "in a function")
    assert "cannot send the registration of Mine/Counter-v0 (PicklingError: " in refused, refused


def test_config_arguments_override_registered_ones(tmp_path):
    assert ran(tmp_path, "class", '{"start": 8}') == "began at [8.0, 8.0]"


MODULE = """
import gymnasium
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

gymnasium.register("Mine/Short-v0", CartPoleEnv, max_episode_steps=7)
"""


def test_an_id_may_name_the_module_that_registers_it(tmp_path, monkeypatch):
    import gymnasium

    from envpool_bridge.envs.config import EnvConfig
    from envpool_bridge.errors import UserError

    (tmp_path / "my_registrations.py").write_text(MODULE)
    with pytest.raises(UserError, match="names the module 'my_registrations', which does not exist .* PYTHONPATH"):
        EnvConfig("my_registrations:Mine/Short-v0").source()
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UserError, match="unknown environment id 'Mine/Short-v0'.*write 'module:id'"):
        EnvConfig("Mine/Short-v0").source()
    try:
        assert EnvConfig("my_registrations:Mine/Short-v0").source().spec().observation.shape == (4,)
    finally:
        gymnasium.registry.pop("Mine/Short-v0", None)
        sys.modules.pop("my_registrations", None)
